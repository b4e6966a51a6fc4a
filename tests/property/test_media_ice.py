"""The rules of the transceiver's socket in C (csrc/media/ice.c) against the model in Python.

Whatever comes in whatever order, both give the same answers, put the same sessions on the same flow
keys, send media the same way, and count consent alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from relay.wire import stun
from relay.wire.address import Endpoint
from relay.wire.spp import FlowKey
from tests.support import ice_library
from tests.support.ice_library import IceLibrary
from tests.support.ice_model import FLOW_KEYS_PER_SESSION, SECOND_NS, IceAgent, IceSession, rank
from tests.support.stun import attribute, message

pytestmark = pytest.mark.skipif(
    ice_library.missing() is not None, reason=f"the C library needs: {ice_library.missing()}"
)

PWD = "passwordpassword12345678"
SESSIONS, FLOWS = 6, 20
KEYS = [
    FlowKey(
        Endpoint.of("203.0.113.7" if flow % 2 else "2001:db8::7", 5_000 + flow),
        Endpoint.of("192.0.2.1", 3_478),
    )
    for flow in range(FLOWS)
]

sessions = st.integers(0, SESSIONS - 1)
keys = st.sampled_from(KEYS)
few_keys = st.sampled_from(KEYS[:3])
relays = st.integers(0, 2)
transactions = st.integers(0, 8)
extras = st.sampled_from([0x0001, 0x0014, 0x0026, 0x7FFF, 0x8022, 0xC057, 0xFFFF])
spans_ns = st.sampled_from([1, 20_000_000, *(round(s * SECOND_NS) for s in (1, 9.99, 10, 29.99, 30, 60))])  # fmt: skip


def check(
    session: int, tid: int, *, role: int = stun.ICE_CONTROLLING, pwd: str = PWD,
    remote: str = "cli", nominates: bool = False, also: Sequence[int] = (),
) -> bytes:  # fmt: skip
    attributes = [
        attribute(stun.USERNAME, f"ufrag{session}:{remote}".encode()),
        attribute(role, bytes(8)),
    ]
    if nominates:
        attributes.append(attribute(stun.USE_CANDIDATE, b""))
    attributes += [attribute(number, b"what") for number in also]
    return message(*attributes, key=pwd.encode(), transaction_id=tid.to_bytes(12))


class IceMachine(RuleBasedStateMachine):
    """Both agents, told the same; no two things happen at one moment."""

    @initialize()
    def begin(self) -> None:
        self.now_ns = 1_000 * SECOND_NS
        self.c = IceLibrary(SESSIONS)
        self.model = IceAgent()
        self.sessions: dict[int, IceSession] = {}
        self.fresh_tid = 1_000
        for session in range(SESSIONS - 1):
            self.open(session)

    def teardown(self) -> None:
        if hasattr(self, "c"):
            self.c.free()

    def open(self, session: int) -> None:
        ufrag = f"ufrag{session}"
        assert self.c.open(session, ufrag, PWD, "cli", self.now_ns) == 0
        self.sessions[session] = self.model.open(ufrag, PWD, "cli", self.now_ns)

    def both_check(self, datagram: bytes, key: FlowKey, relay: int) -> str:
        self.now_ns += 1
        before = self.model.drops.copy()
        expected = self.model.check(datagram, key, relay, self.now_ns)
        status, reply = self.c.check(datagram, key, relay, self.now_ns)
        if expected is None:
            [reason] = self.model.drops - before
            assert (status, reply) == (reason, b"")
        else:
            assert (status == "ok") == (expected.path is not None)
            assert reply == expected.reply
        return status

    @rule(session=sessions, key=keys, relay=relays, tid=transactions, nominates=st.booleans())
    def known_check(
        self, session: int, key: FlowKey, relay: int, tid: int, nominates: bool
    ) -> None:
        self.both_check(check(session, tid, nominates=nominates), key, relay)

    @rule(session=sessions, key=few_keys, tid=transactions, also=st.lists(extras, max_size=12))
    def check_with_more(self, session: int, key: FlowKey, tid: int, also: list[int]) -> None:
        self.both_check(check(session, tid, also=also), key, 0)

    @rule(session=sessions, key=few_keys, relay=relays, nominates=st.booleans())
    def new_check(self, session: int, key: FlowKey, relay: int, nominates: bool) -> None:
        self.fresh_tid += 1
        self.both_check(check(session, self.fresh_tid, nominates=nominates), key, relay)

    @rule(session=sessions, first=st.integers(0, 3), relay=relays)
    def checks_from_everywhere(self, session: int, first: int, relay: int) -> None:
        for key in KEYS[first : first + FLOW_KEYS_PER_SESSION]:
            self.fresh_tid += 1
            self.both_check(check(session, self.fresh_tid), key, relay)

    @rule(session=sessions, key=keys, tid=transactions, fault=st.integers(0, 2))
    def bad_check(self, session: int, key: FlowKey, tid: int, fault: int) -> None:
        datagram = (
            check(session, tid, role=stun.ICE_CONTROLLED),
            check(session, tid, pwd="wrong"),
            check(session, tid, remote="x"),
        )[fault]
        assert self.both_check(datagram, key, 0) != "ok"

    @rule(session=sessions, key=st.one_of(keys, few_keys), relay=relays, media=st.booleans())
    def authentic_packet(self, session: int, key: FlowKey, relay: int, media: bool) -> None:
        self.now_ns += 1
        if session not in self.c.members(key, self.now_ns):
            return
        path = self.sessions[session].paths[key]
        self.model.authenticated(path, relay, self.now_ns, media=media)
        self.c.authenticated(session, key, relay, self.now_ns, media)

    @rule(span_ns=spans_ns)
    def wait(self, span_ns: int) -> None:
        self.now_ns += span_ns

    @rule()
    def expire(self) -> None:
        self.model.expire(self.now_ns)
        for session in self.sessions:
            self.c.expire(session, self.now_ns)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(sorted(self.sessions)))
        self.model.close(self.sessions.pop(session))
        self.c.close(session)

    @precondition(lambda self: len(self.sessions) < SESSIONS)
    @rule(data=st.data())
    def reopen(self, data: st.DataObject) -> None:
        closed = sorted(set(range(SESSIONS)) - set(self.sessions))
        self.open(data.draw(st.sampled_from(closed)))

    @invariant()
    def flow_keys_have_the_same_sessions(self) -> None:
        for key in KEYS:
            by_model = {path.session.ufrag for path in self.model.members(key, self.now_ns)}
            members = self.c.members(key, self.now_ns)
            assert {f"ufrag{session}".encode() for session in members} == by_model

    @invariant()
    def paths_say_the_same(self) -> None:
        for session, expected in self.sessions.items():
            for key, path in expected.paths.items():
                found = self.c.find(session, key)
                assert found is not None
                assert (found.source, found.authenticated_ns) == (
                    path.source,
                    path.authenticated_ns,
                )
                assert (found.media_ns, found.nominated_ns) == (path.media_ns, path.nominated_ns)
                assert found.first_check_ns == path.first_check_ns

    @invariant()
    def media_goes_the_same_way(self) -> None:
        for session, expected in self.sessions.items():
            path = expected.media_path(self.now_ns)
            found = self.c.media_path(session, self.now_ns)
            assert (found is None) == (path is None)
            if found is not None and path is not None:
                assert found.packed_key == path.key.packed
                assert (found.media_ns, found.nominated_ns, -found.first_check_ns) == rank(path)

    @invariant()
    def consent_lasts_as_long(self) -> None:
        for session, expected in self.sessions.items():
            assert self.c.has_consent(session, self.now_ns) == expected.has_consent(self.now_ns)


TestIceMachine = IceMachine.TestCase
TestIceMachine.settings = settings(deadline=None, max_examples=60, stateful_step_count=40)


@given(st.data())
def test_a_changed_check_changes_nothing(data: st.DataObject) -> None:
    c = IceLibrary(1)
    assert c.open(0, "ufrag0", PWD, "cli", 1) == 0
    good = bytearray(check(0, 7, nominates=True))
    # The FINGERPRINT behind the integrity may be absent, or be changed into something unknown.
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 9))] ^= data.draw(st.integers(1, 255))
    status, reply = c.check(bytes(good), KEYS[0], 0, 1)
    if bytes(good) != check(0, 7, nominates=True):
        assert status not in ("ok", "role_conflict")
        assert (reply, c.find(0, KEYS[0])) == (b"", None)
    c.free()
