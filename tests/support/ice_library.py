"""csrc/media's ICE agent through ctypes, for tests only: the structures repeat ice.h."""

from __future__ import annotations

import ctypes
import shutil
import socket
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from relay.wire.spp import FlowKey

TESTS = Path(__file__).resolve().parents[1]
STATUSES = (
    "ok", "role_conflict", "unknown_attribute", "malformed", "no_check", "unknown_ufrag", "wrong_username",
    "wrong_integrity", "replayed_check", "flow_key_limit",
)  # fmt: skip

U8, U16, U32, U64 = ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64


class Addr(ctypes.Structure):
    """struct vr_addr"""

    _fields_ = [("ip", U8 * 16), ("port_be", U16)]


class Key(ctypes.Structure):
    """struct vr_flow_key"""

    _fields_ = [("client", Addr), ("proxy", Addr)]


class CSource(ctypes.Structure):
    """struct vr_source"""

    _fields_ = [("peer", Addr), ("local_ip", U8 * 16), ("direct", ctypes.c_bool)]


class CPath(ctypes.Structure):
    """struct vr_ice_path"""

    _fields_ = [
        ("key", Key),
        ("source", CSource),
        ("used", ctypes.c_bool),
        ("session", U32),
        ("next", ctypes.c_int32),
        ("first_check_ns", U64),
        ("authenticated_ns", U64),
        ("nominated_ns", U64),
        ("media_ns", U64),
    ]


class CCheck(ctypes.Structure):
    """struct vr_ice_check"""

    _fields_ = [
        ("reply_bytes", ctypes.c_size_t),
        ("path", ctypes.POINTER(CPath)),
        ("reply", U8 * 128),
    ]


@dataclass(frozen=True)
class PathView:
    """What an ice.h path says; times in ns, 0: never."""

    packed_key: bytes
    source: int
    """The number of the relay, see `c_source`."""
    session: int
    first_check_ns: int
    authenticated_ns: int
    nominated_ns: int
    media_ns: int


def missing() -> str | None:
    """Why the library cannot be built here; None when it can."""
    lacking = [tool for tool in ("make", "gcc") if shutil.which(tool) is None]
    return f"no {' and no '.join(lacking)}" if lacking else None


@cache
def library() -> ctypes.CDLL:
    """Builds libice.so when its sources are newer, and loads it."""
    subprocess.run(
        ["make", "-s", "-C", str(TESTS / "c"), "ice-library"], check=True, capture_output=True
    )
    lib = ctypes.CDLL(str(TESTS.parent / "build" / "c" / "gcc" / "libice.so"))
    lib.vr_ice_new.restype = ctypes.c_void_p
    lib.vr_ice_find.restype = lib.vr_ice_media_path.restype = ctypes.POINTER(CPath)
    lib.vr_ice_has_consent.restype = ctypes.c_bool
    return lib


class IceLibrary:
    """One agent of ice.h with places for `max_sessions`."""

    def __init__(self, max_sessions: int) -> None:
        self._lib = library()
        self._ice = ctypes.c_void_p(self._lib.vr_ice_new(max_sessions, U64(1)))

    def free(self) -> None:
        """Gives the memory back."""
        self._lib.vr_ice_free(self._ice)

    def open(self, session: int, ufrag: str, pwd: str, remote_ufrag: str, now_ns: int) -> int:
        """See vr_ice_open."""
        texts = (ufrag.encode(), pwd.encode(), remote_ufrag.encode())
        return int(self._lib.vr_ice_open(self._ice, session, *texts, U64(now_ns)))

    def close(self, session: int) -> None:
        """See vr_ice_close."""
        self._lib.vr_ice_close(self._ice, session)

    def check(self, datagram: bytes, key: FlowKey, source: int, now_ns: int) -> tuple[str, bytes]:
        """The status's name and the reply."""
        out = CCheck()
        status = self._lib.vr_ice_check(
            self._ice, datagram, ctypes.c_size_t(len(datagram)), ctypes.byref(c_key(key)),
            ctypes.byref(c_source(source)), U64(now_ns), ctypes.byref(out),
        )  # fmt: skip
        return STATUSES[status], bytes(out.reply[: out.reply_bytes])

    def find(self, session: int, key: FlowKey) -> PathView | None:
        """See vr_ice_find."""
        return view(self._find(session, key))

    def members(self, key: FlowKey, now_ns: int) -> set[int]:
        """The sessions that a packet of this flow key is offered to."""
        paths = (ctypes.POINTER(CPath) * 4)()
        count = self._lib.vr_ice_members(
            self._ice, ctypes.byref(c_key(key)), U64(now_ns), ctypes.byref(paths)
        )
        return {paths[i].contents.session for i in range(count)}

    def authenticated(
        self, session: int, key: FlowKey, source: int, now_ns: int, media: bool
    ) -> None:
        """See vr_ice_authenticated; the session is on this flow key."""
        self._lib.vr_ice_authenticated(
            self._ice, self._find(session, key), ctypes.byref(c_source(source)), U64(now_ns),
            ctypes.c_bool(media),
        )  # fmt: skip

    def media_path(self, session: int, now_ns: int) -> PathView | None:
        """See vr_ice_media_path."""
        return view(self._lib.vr_ice_media_path(self._ice, session, U64(now_ns)))

    def has_consent(self, session: int, now_ns: int) -> bool:
        """See vr_ice_has_consent."""
        return bool(self._lib.vr_ice_has_consent(self._ice, session, U64(now_ns)))

    def expire(self, session: int, now_ns: int) -> None:
        """See vr_ice_expire."""
        self._lib.vr_ice_expire(self._ice, session, U64(now_ns))

    def _find(self, session: int, key: FlowKey) -> ctypes._Pointer[CPath]:
        found = self._lib.vr_ice_find(self._ice, session, ctypes.byref(c_key(key)))
        return found  # type: ignore[no-any-return]


def view(path: ctypes._Pointer[CPath]) -> PathView | None:
    """A copy of what a pointer points to; None for NULL."""
    if not path:
        return None
    p = path.contents
    return PathView(
        bytes(p.key),
        socket.ntohs(p.source.peer.port_be) - 4_000,
        p.session,
        p.first_check_ns,
        p.authenticated_ns,
        p.nominated_ns,
        p.media_ns,
    )


def c_key(key: FlowKey) -> Key:
    """struct vr_flow_key of a flow key."""
    return Key.from_buffer_copy(key.packed)


def c_source(relay: int) -> CSource:
    """The relay 127.0.0.1:4000+n."""
    packed = bytes(10) + b"\xff\xff" + bytes([127, 0, 0, 1]) + (4_000 + relay).to_bytes(2)
    return CSource.from_buffer_copy(packed.ljust(ctypes.sizeof(CSource), b"\0"))
