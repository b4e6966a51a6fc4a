"""The rules of the transceiver's socket in C (csrc/media/ice.c) against those in Python (tests/support/ice_model.py).

Any sequence of checks, media and waiting has to give the same answers, members and media paths.
"""

from __future__ import annotations

import ctypes
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.wire import stun
from relay.wire.address import Endpoint
from relay.wire.spp import FlowKey
from tests.support.ice_model import IceAgent, IceSession, Source
from tests.support.stun import attribute, message

ROOT = Path(__file__).resolve().parents[2]
PWD = "passwordpassword12345678"
REASONS = (
    "malformed", "no_check", "unknown_ufrag", "wrong_username", "wrong_integrity",
    "replayed_check", "flow_key_limit",
)  # fmt: skip
OK, ROLE_CONFLICT, FIRST_REASON = 0, 1, 2
SESSIONS, FLOWS = 6, 20


class Addr(ctypes.Structure):
    _fields_ = [("ip", ctypes.c_uint8 * 16), ("port_be", ctypes.c_uint16)]


class Key(ctypes.Structure):
    _fields_ = [("client", Addr), ("proxy", Addr)]


class CSource(ctypes.Structure):
    _fields_ = [("peer", Addr), ("local_ip", ctypes.c_uint8 * 16), ("direct", ctypes.c_bool)]


class CPath(ctypes.Structure):
    _fields_ = [
        ("key", Key),
        ("source", CSource),
        ("used", ctypes.c_bool),
        ("session", ctypes.c_uint32),
        ("next", ctypes.c_int32),
        ("times", ctypes.c_uint64 * 4),
    ]


class CCheck(ctypes.Structure):
    _fields_ = [
        ("reply_bytes", ctypes.c_size_t),
        ("path", ctypes.POINTER(CPath)),
        ("reply", ctypes.c_uint8 * 128),
    ]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: install gcc")
    target = tmp_path_factory.mktemp("ice") / "libice.so"
    media, wire = ROOT / "csrc" / "media", ROOT / "csrc" / "wire"
    sources = [media / "ice.c", media / "hmac.c", wire / "stun.c", wire / "crc32.c"]
    command = [compiler, "-std=gnu11", "-O1", "-shared", "-fPIC", "-o", str(target)]
    subprocess.run([*command, *map(str, sources), "-lcrypto"], check=True)
    loaded = ctypes.CDLL(str(target))
    loaded.vr_ice_new.restype = ctypes.c_void_p
    loaded.vr_ice_find.restype = loaded.vr_ice_media_path.restype = ctypes.POINTER(CPath)
    loaded.vr_ice_has_consent.restype = ctypes.c_bool
    return loaded


class Both:
    """One agent of each kind, told the same."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.c = library
        self.now_s = 1_000.0
        self.python = IceAgent()
        self.ice = ctypes.c_void_p(library.vr_ice_new(SESSIONS, ctypes.c_uint64(1)))
        self.sessions: list[IceSession] = []
        for i in range(SESSIONS):
            self.sessions.append(self.python.open(f"ufrag{i}", PWD, "cli", object(), self.now_s))
            assert not library.vr_ice_open(
                self.ice, i, f"ufrag{i}".encode(), PWD.encode(), b"cli", self.now_ns
            )

    @property
    def now_ns(self) -> ctypes.c_uint64:
        return ctypes.c_uint64(round(self.now_s * 1e9))

    def close(self) -> None:
        self.c.vr_ice_free(self.ice)

    def check(self, session: int, flow: int, source: int, tid: int, options: int) -> None:
        attributes = [
            attribute(stun.USERNAME, f"ufrag{session}:{'cli' if options else 'x'}".encode())
        ]
        role = stun.ICE_CONTROLLED if options == 1 else stun.ICE_CONTROLLING
        attributes.append(attribute(role, bytes(8)))
        if options & 4:
            attributes.append(attribute(stun.USE_CANDIDATE, b""))
        pwd = b"wrong" if options == 2 else PWD.encode()
        datagram = message(*attributes, key=pwd, transaction_id=tid.to_bytes(12))
        key, at = flow_key(flow), Source(("127.0.0.1", 4_000 + source), None, False)
        before = self.python.drops.copy()
        checked = self.python.check(datagram, key, at, self.now_s)
        out = CCheck()
        status = self.c.vr_ice_check(
            self.ice, datagram, ctypes.c_size_t(len(datagram)), ctypes.byref(c_key(key)),
            ctypes.byref(c_source(source)), self.now_ns, ctypes.byref(out),
        )  # fmt: skip
        reply = bytes(out.reply[: out.reply_bytes])
        if checked is None:
            [reason] = self.python.drops - before
            assert (status, reply) == (FIRST_REASON + REASONS.index(reason), b"")
        else:
            assert status == (ROLE_CONFLICT if checked.path is None else OK)
            assert reply == checked.reply

    def media(self, session: int, flow: int, source: int) -> None:
        key, at = flow_key(flow), Source(("127.0.0.1", 4_000 + source), None, False)
        path = self.sessions[session].paths.get(key)
        found = self.c.vr_ice_find(self.ice, session, ctypes.byref(c_key(key)))
        assert bool(found) == (path is not None)
        if path is not None and path.is_live(self.now_s):
            self.python.authenticated(path, at, self.now_s, media=True)
            self.c.vr_ice_authenticated(
                self.ice, found, ctypes.byref(c_source(source)), self.now_ns, ctypes.c_bool(True)
            )

    def wait(self, seconds: float, expire: bool) -> None:
        self.now_s += seconds
        if expire:
            self.python.expire(self.now_s)
            for i in range(SESSIONS):
                self.c.vr_ice_expire(self.ice, i, self.now_ns)

    def compare(self) -> None:
        for i, session in enumerate(self.sessions):
            path = session.media_path(self.now_s)
            found = self.c.vr_ice_media_path(self.ice, i, self.now_ns)
            assert bool(found) == (path is not None)
            if path is not None:
                assert bytes(found.contents.key) == path.key.packed
                port = socket.ntohs(found.contents.source.peer.port_be)
                assert port == path.source.address[1]
            assert self.c.vr_ice_has_consent(self.ice, i, self.now_ns) == session.has_consent(
                self.now_s
            )
        for flow in range(FLOWS):
            key = flow_key(flow)
            members = {self.sessions.index(p.session) for p in self.python.members(key, self.now_s)}
            paths = (ctypes.POINTER(CPath) * 4)()
            count = self.c.vr_ice_members(
                self.ice, ctypes.byref(c_key(key)), self.now_ns, ctypes.byref(paths)
            )
            assert {paths[k].contents.session for k in range(count)} == members


def flow_key(flow: int) -> FlowKey:
    ip = "203.0.113.7" if flow % 2 else "2001:db8::7"
    return FlowKey(Endpoint.of(ip, 5_000 + flow), Endpoint.of("192.0.2.1", 3_478))


def c_key(key: FlowKey) -> Key:
    return Key.from_buffer_copy(key.packed)


def c_source(source: int) -> CSource:
    packed = bytes(10) + b"\xff\xff" + bytes([127, 0, 0, 1]) + (4_000 + source).to_bytes(2)
    return CSource.from_buffer_copy(packed.ljust(ctypes.sizeof(CSource), b"\0"))


small = st.integers
steps = st.one_of(
    # options: 0 wrong name, 1 controlled, 2 wrong password, 3 plain, 4.. USE-CANDIDATE
    st.tuples(
        st.just("check"), small(0, SESSIONS - 1), small(0, FLOWS - 1), small(0, 2), small(0, 60),
        st.sampled_from([0, 1, 2, 3, 3, 3, 4, 4]),
    ),
    st.tuples(st.just("media"), small(0, SESSIONS - 1), small(0, FLOWS - 1), small(0, 2)),
    st.tuples(
        st.just("wait"), st.sampled_from([0.0, 0.02, 1.0, 9.99, 10.0, 29.99, 30.0, 61.0]),
        st.booleans(),
    ),
)  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(script=st.lists(steps, max_size=80))
def test_both_agents_do_the_same(library: ctypes.CDLL, script: list[tuple[object, ...]]) -> None:
    both = Both(library)
    try:
        for name, *arguments in script:
            getattr(both, str(name))(*arguments)
            both.compare()
    finally:
        both.close()
