"""csrc/relay's flow table through ctypes: one writer on anonymous memory, for tests only.

1. The structures repeat table.h; the sizes are asserted against its own _Static_asserts.
2. Nothing is checked here: a slot that a test makes up is the test's mistake.
"""

from __future__ import annotations

import ctypes
import mmap
import shutil
import subprocess
from functools import cache, lru_cache
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
NO_SLOT = 0xFFFFFFFF
ESTABLISHED, HALF_OPEN = 0, 1
VALID_NEWER, VALID_PATH = 4, 8
SLOTS = 16

U8, U16, U32, U64 = ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64


class Owner(ctypes.Structure):
    """struct vr_owner"""

    _fields_ = [("cluster_id", U16), ("address", U8 * 18)]


class Claim(ctypes.Structure):
    """struct vr_claim"""

    _fields_ = [("owner", Owner), ("sealed", U8 * 21)]


class Half(ctypes.Structure):
    """struct vr_owner_half"""

    _fields_ = [("check", U32), ("owner", Owner)]


class WayBack(ctypes.Structure):
    """struct vr_path"""

    _fields_ = [("side", U8), ("listen", U8), ("address", U8 * 18)]


class Token(ctypes.Structure):
    """A token of struct vr_flow_rest."""

    _fields_ = [("sealed", U8 * 21), ("check", U8 * 3)]


class Flow(ctypes.Structure):
    """struct vr_flow"""

    _fields_ = [
        ("key", U8 * 36),
        ("valid", U8),
        ("flags", U8),
        ("via", U8 * 2),
        ("generation", U32),
        ("up_seen_ms", U32),
        ("owner_seen_ms", U32),
        ("up_packets", U32),
        ("up_bytes", U64),
        ("half", Half * 2),
        ("created_ms", U32),
        ("down_packets", U32),
        ("down_bytes", U64),
    ]


class Rest(ctypes.Structure):
    """struct vr_flow_rest"""

    _fields_ = [
        ("path_check", U32),
        ("path", WayBack),
        ("success_ms", U32 * 2),
        ("token", Token * 2),
    ]


assert ctypes.sizeof(Flow) == 128
assert ctypes.sizeof(Rest) == 80


class View(ctypes.Structure):
    """struct vr_table"""

    _fields_ = [
        ("memory", ctypes.c_void_p),
        ("tag", ctypes.POINTER(U16)),
        ("flow", ctypes.POINTER(Flow)),
        ("rest", ctypes.POINTER(Rest)),
        ("hash_key", U64 * 2),
        ("max_flows", U32),
        ("buckets", U32 * 2),
        ("first_slot", U32 * 2),
        ("slots", U32),
        ("generation", U32),
        ("counts", U32 * 2),
    ]


class Fault(ctypes.Structure):
    """struct vr_fault"""

    _fields_ = [("slot", U32), ("kind", ctypes.c_int)]


@cache
def missing() -> str | None:
    """Why the library cannot be built here; None when it can."""
    lacking = [tool for tool in ("make", "gcc") if shutil.which(tool) is None]
    return f"no {' and no '.join(lacking)}" if lacking else None


@cache
def library() -> ctypes.CDLL:
    """Builds libtable.so when its sources are newer, and loads it."""
    subprocess.run(
        ["make", "-s", "-C", str(TESTS / "c"), "table-library"], check=True, capture_output=True
    )
    lib = ctypes.CDLL(str(TESTS.parent / "build" / "c" / "gcc" / "libtable.so"))
    lib.vr_table_bytes.restype = ctypes.c_size_t
    lib.vr_table_audit.restype = ctypes.c_size_t
    lib.vr_flow_token.restype = ctypes.POINTER(U8)
    lib.vr_flow_adopt.restype = ctypes.c_bool
    lib.vr_flow_read.restype = ctypes.c_bool
    for name in ("vr_flow_find", "vr_flow_place"):
        getattr(lib, name).restype = U32
    return lib


class FlowTable:
    """The writer's view of a fresh table of `max_flows`."""

    def __init__(self, max_flows: int, hash_key: bytes) -> None:
        self.lib = library()
        self._bytes = self.lib.vr_table_bytes(U32(max_flows))
        self._memory = mmap.mmap(-1, self._bytes)
        self._address = ctypes.addressof(U8.from_buffer(self._memory))
        memory, size = ctypes.c_void_p(self._address), ctypes.c_size_t(self._bytes)
        assert self.lib.vr_table_format(memory, size, U32(max_flows), hash_key) == 0
        self.restart()

    def restart(self) -> None:
        """A new writer: attaches and takes over. Entries are not adopted yet."""
        self.view = View()
        memory, size = ctypes.c_void_p(self._address), ctypes.c_size_t(self._bytes)
        assert self.lib.vr_table_attach(ctypes.byref(self.view), memory, size) == 0
        self.lib.vr_table_take(ctypes.byref(self.view))

    def hash(self, key: bytes) -> ctypes.c_uint64:
        """The key's SipHash-1-3, written once more, slowly."""
        return U64(siphash13(bytes(self.view.hash_key), key))

    def find(self, pool: int, key: bytes) -> int:
        """vr_flow_find"""
        return int(self.lib.vr_flow_find(ctypes.byref(self.view), pool, key, self.hash(key)))

    def place(self, pool: int, key: bytes, now_ms: int) -> int:
        """vr_flow_place"""
        view = ctypes.byref(self.view)
        return int(self.lib.vr_flow_place(view, pool, self.hash(key), U32(now_ms)))

    def insert(self, slot: int, flow: Flow, rest: Rest) -> None:
        """vr_flow_insert"""
        hash_ = self.hash(bytes(flow.key))
        self.lib.vr_flow_insert(
            ctypes.byref(self.view), U32(slot), hash_, ctypes.byref(flow), ctypes.byref(rest)
        )

    def call(self, name: str, slot: int, *args: object) -> object:
        """Any other function of flow.h that takes a table and a slot first."""
        return getattr(self.lib, name)(ctypes.byref(self.view), U32(slot), *args)

    def read(self, slot: int) -> tuple[Flow, Rest] | None:
        """vr_flow_read"""
        flow, rest = Flow(), Rest()
        ok = self.call("vr_flow_read", slot, ctypes.byref(flow), ctypes.byref(rest))
        return (flow, rest) if ok else None

    def audit(self) -> list[tuple[int, int]]:
        """(slot, kind) of up to 16 faults."""
        faults = (Fault * 16)()
        count = self.lib.vr_table_audit(ctypes.byref(self.view), faults, ctypes.c_size_t(16))
        return [(faults[i].slot, faults[i].kind) for i in range(min(count, 16))]

    def in_use(self, slot: int) -> bool:
        """vr_flow_in_use"""
        return bool(self.view.tag[slot])


@lru_cache(maxsize=4096)
def siphash13(key: bytes, data: bytes) -> int:
    """SipHash-1-3 (Aumasson, Bernstein 2012), from the paper rather than from siphash.h."""
    mask = 0xFFFFFFFFFFFFFFFF
    k0, k1 = (int.from_bytes(key[i : i + 8], "little") for i in (0, 8))
    v = [
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    ]

    def rotate(x: int, bits: int) -> int:
        return (x << bits | x >> (64 - bits)) & mask

    def sip_round() -> None:
        for a, b, turn_b, turn_a in ((0, 1, 13, 32), (2, 3, 16, 0), (0, 3, 21, 0), (2, 1, 17, 32)):
            v[a] = (v[a] + v[b]) & mask
            v[b] = rotate(v[b], turn_b) ^ v[a]
            v[a] = rotate(v[a], turn_a)

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF])
    for i in range(0, len(padded), 8):
        word = int.from_bytes(padded[i : i + 8], "little")
        v[3] ^= word
        sip_round()
        v[0] ^= word
    v[2] ^= 0xFF
    for _ in range(3):
        sip_round()
    return v[0] ^ v[1] ^ v[2] ^ v[3]
