"""The flow table against a dict: whatever is done to it, and whoever dies meanwhile, it holds the same.

A key is in each pool at most once. The model knows what was inserted; that the half-open pool may
forget, and whom, is checked where it happens.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.support import flowtable
from tests.support.flowtable import ESTABLISHED, HALF_OPEN, SLOTS, FlowTable

pytestmark = pytest.mark.skipif(
    flowtable.missing() is not None, reason=f"the C library needs a compiler: {flowtable.missing()}"
)

MAX_FLOWS = 24
KEYS = [bytes([i]) * 36 for i in range(40)]
key_of = st.sampled_from(KEYS)
pools = st.sampled_from([ESTABLISHED, HALF_OPEN])
owners = st.tuples(st.integers(0, 0xFFFF), st.binary(min_size=18, max_size=18))
tokens = st.binary(min_size=21, max_size=21)
paths = st.tuples(st.sampled_from([0, 2]), st.integers(0, 255), st.binary(min_size=18, max_size=18))


@dataclass
class Entry:
    """What the model knows of a flow."""

    path: tuple[int, int, bytes]
    created_ms: int
    owners: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    tokens: dict[int, bytes] = field(default_factory=dict)
    newer: int | None = None


def c_owner(owner: tuple[int, bytes]) -> flowtable.Owner:
    return flowtable.Owner(owner[0], (ctypes.c_uint8 * 18)(*owner[1]))


def c_path(path: tuple[int, int, bytes]) -> flowtable.WayBack:
    return flowtable.WayBack(path[0], path[1], (ctypes.c_uint8 * 18)(*path[2]))


class TableMachine(RuleBasedStateMachine):
    """One writer after another on one table."""

    @initialize(hash_key=st.binary(min_size=16, max_size=16))
    def make(self, hash_key: bytes) -> None:
        self.table = FlowTable(MAX_FLOWS, hash_key)
        self.model: tuple[dict[bytes, Entry], dict[bytes, Entry]] = ({}, {})
        self.now_ms = 0

    def insert_entry(self, pool: int, key: bytes, entry: Entry) -> bool:
        slot = self.table.place(pool, key, self.now_ms)
        if slot == flowtable.NO_SLOT:
            assert pool == ESTABLISHED
            return False
        if self.table.in_use(slot):
            assert pool == HALF_OPEN
            self.displace(slot, key)
        flow = flowtable.Flow(key=(ctypes.c_uint8 * 36)(*key), created_ms=entry.created_ms)
        rest = flowtable.Rest(path=c_path(entry.path))
        flow.valid = flowtable.VALID_PATH
        for i, owner in entry.owners.items():
            flow.valid |= 1 << i
            flow.half[i].owner = c_owner(owner)
        for i, token in entry.tokens.items():
            rest.token[i].sealed = (ctypes.c_uint8 * 21)(*token)
        self.table.insert(slot, flow, rest)
        self.model[pool][key] = entry
        return True

    def displace(self, slot: int, key: bytes) -> None:
        """The one that gives way is as old as any in the two buckets of the newcomer."""
        hash_ = self.table.hash(key).value
        view = self.table.view
        first = view.first_slot[HALF_OPEN] // SLOTS
        buckets = {
            first + ((hash_ >> 32) * view.buckets[HALF_OPEN] >> 32),
            first + ((hash_ & 0xFFFFFFFF) * view.buckets[HALF_OPEN] >> 32),
        }
        assert slot // SLOTS in buckets
        candidates = [bucket * SLOTS + i for bucket in buckets for i in range(SLOTS)]
        assert all(self.table.in_use(candidate) for candidate in candidates)
        oldest = min(view.flow[candidate].created_ms for candidate in candidates)
        assert view.flow[slot].created_ms == oldest
        del self.model[HALF_OPEN][bytes(view.flow[slot].key)]
        self.table.call("vr_flow_remove", slot)

    @rule(pool=pools, key=key_of, path=paths, owner=owners, token=tokens)
    def insert(
        self,
        pool: int,
        key: bytes,
        path: tuple[int, int, bytes],
        owner: tuple[int, bytes],
        token: bytes,
    ) -> None:
        if key in self.model[ESTABLISHED] or key in self.model[HALF_OPEN]:
            return
        entry = Entry(path, self.now_ms, tokens={0: token})
        if pool == ESTABLISHED:
            entry.owners[0] = owner
        self.insert_entry(pool, key, entry)

    @rule(key=key_of)
    def promote(self, key: bytes) -> None:
        """As the tracker does it, and a writer may die between the two steps."""
        former = self.model[HALF_OPEN].get(key)
        if former is None:
            return
        entry = Entry(former.path, self.now_ms, {0: (1, bytes(18))}, {0: bytes(21)})
        if self.insert_entry(ESTABLISHED, key, entry):
            self.table.call("vr_flow_remove", self.table.find(HALF_OPEN, key))
            del self.model[HALF_OPEN][key]

    @rule(key=key_of)
    def die_while_promoting(self, key: bytes) -> None:
        former = self.model[HALF_OPEN].get(key)
        if former is None:
            return
        entry = Entry(former.path, self.now_ms, {0: (1, bytes(18))}, {0: bytes(21)})
        if self.insert_entry(ESTABLISHED, key, entry):
            del self.model[HALF_OPEN][key]  # the heir will find the established one
            self.restart()

    @rule(pool=pools, key=key_of)
    def remove(self, pool: int, key: bytes) -> None:
        if self.model[pool].pop(key, None) is not None:
            self.table.call("vr_flow_remove", self.table.find(pool, key))

    @rule(pool=pools, key=key_of, i=st.integers(0, 1), owner=owners, token=tokens)
    def set_owner(
        self, pool: int, key: bytes, i: int, owner: tuple[int, bytes], token: bytes
    ) -> None:
        entry = self.model[pool].get(key)
        if entry is None or entry.owners.get(1 - i) == owner:
            return
        slot = self.table.find(pool, key)
        claim = flowtable.Claim(c_owner(owner), (ctypes.c_uint8 * 21)(*token))
        self.table.call("vr_flow_set_owner", slot, i, ctypes.byref(claim), ctypes.c_uint32(5))
        entry.owners[i] = owner
        entry.tokens[i] = token
        entry.newer = i

    @rule(pool=pools, key=key_of, i=st.integers(0, 1))
    def clear_owner(self, pool: int, key: bytes, i: int) -> None:
        entry = self.model[pool].get(key)
        if (
            entry is None
            or i not in entry.owners
            or (pool == ESTABLISHED and len(entry.owners) < 2)
        ):
            return
        self.table.call("vr_flow_clear_owner", self.table.find(pool, key), i)
        del entry.owners[i]

    @rule(pool=pools, key=key_of, i=st.integers(0, 1), token=tokens)
    def set_token(self, pool: int, key: bytes, i: int, token: bytes) -> None:
        entry = self.model[pool].get(key)
        if entry is not None:
            self.table.call("vr_flow_set_token", self.table.find(pool, key), i, token)
            entry.tokens[i] = token

    @rule(pool=pools, key=key_of, path=paths)
    def set_path(self, pool: int, key: bytes, path: tuple[int, int, bytes]) -> None:
        entry = self.model[pool].get(key)
        if entry is not None:
            slot = self.table.find(pool, key)
            self.table.call("vr_flow_set_path", slot, ctypes.byref(c_path(path)))
            entry.path = path

    @rule(ms=st.integers(0, 5000))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule(count=st.integers(1, 1500), start=st.integers(0, 3))
    def flood(self, count: int, start: int) -> None:
        """Newcomers of the half-open pool, of which some give way again; then all of them leave."""
        flooding = [b"flood" + (start + i).to_bytes(31, "big") for i in range(count)]
        for key in flooding:
            assert self.insert_entry(HALF_OPEN, key, Entry((0, 0, bytes(18)), self.now_ms))
        for key in flooding:
            self.remove(HALF_OPEN, key)

    @rule()
    def restart(self) -> None:
        """The writer dies; the next one adopts every entry."""
        self.table.restart()
        for slot in range(self.table.view.slots):
            if self.table.in_use(slot):
                self.table.call("vr_flow_adopt", slot)

    @invariant()
    @precondition(lambda self: hasattr(self, "table"))
    def holds_the_same(self) -> None:
        for pool in (ESTABLISHED, HALF_OPEN):
            assert self.table.view.counts[pool] == len(self.model[pool])
            for key in KEYS:
                slot = self.table.find(pool, key)
                assert (slot != flowtable.NO_SLOT) == (key in self.model[pool])
                if slot != flowtable.NO_SLOT:
                    self.check_entry(slot, self.model[pool][key])

    def check_entry(self, slot: int, entry: Entry) -> None:
        read = self.table.read(slot)
        assert read is not None
        flow, rest = read
        assert flow.valid & 3 == sum(1 << i for i in entry.owners)
        assert flow.valid & flowtable.VALID_PATH
        assert (rest.path.side, rest.path.listen, bytes(rest.path.address)) == entry.path
        for i, owner in entry.owners.items():
            held = flow.half[i].owner
            assert (held.cluster_id, bytes(held.address)) == owner
        if len(entry.owners) == 2 and entry.newer is not None:
            assert bool(flow.valid & flowtable.VALID_NEWER) == (entry.newer == 1)
        for i, token in entry.tokens.items():
            assert bytes(rest.token[i].sealed) == token

    def teardown(self) -> None:
        if hasattr(self, "table"):
            assert self.table.audit() == []


TestFlowTable = TableMachine.TestCase
TestFlowTable.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 36, 63])
def test_the_reference_hash_is_cpythons(size: int) -> None:
    """hash() of bytes is SipHash-1-3 with a key of zeros under PYTHONHASHSEED=0."""
    known = {1: 0x407448D2B89B1813, 36: 0xAC77921FCC642BD3}
    data = b"a" if size == 1 else bytes(range(size))
    if size in known:
        assert flowtable.siphash13(bytes(16), data) == known[size]
    table = FlowTable(1, bytes(range(16)))
    assert table.hash(bytes(36)).value == flowtable.siphash13(bytes(range(16)), bytes(36))
