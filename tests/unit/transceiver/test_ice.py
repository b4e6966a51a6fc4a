"""The rules of the transceiver's socket (tests/support/ice_model.py), one test each, without sockets and clocks."""

from __future__ import annotations

import secrets
from collections import Counter

import pytest

from relay.wire import stun
from relay.wire.address import Endpoint
from relay.wire.spp import FlowKey
from tests.support.ice_model import Checked, IceAgent, IceSession, Path, Source
from tests.support.stun import attribute, message, vectors

UFRAG, PWD, REMOTE = "serverufrag0000000000000000+", "passwordpassword12345678", "cli1"
RELAY = Source(("127.0.0.1", 4000), None, False)
OTHER_RELAY = Source(("127.0.0.1", 4001), None, False)


def flow(client_port: int, proxy_port: int = 3478) -> FlowKey:
    return FlowKey(Endpoint.of("203.0.113.7", client_port), Endpoint.of("192.0.2.1", proxy_port))


def check(
    username: str = f"{UFRAG}:{REMOTE}",
    pwd: str = PWD,
    *,
    use_candidate: bool = False,
    controlled: bool = False,
    transaction_id: bytes | None = None,
) -> bytes:
    attributes = [attribute(stun.USERNAME, username.encode())]
    role = stun.ICE_CONTROLLED if controlled else stun.ICE_CONTROLLING
    attributes.append(attribute(role, bytes(8)))
    if use_candidate:
        attributes.append(attribute(stun.USE_CANDIDATE, b""))
    return message(
        *attributes, key=pwd.encode(), transaction_id=transaction_id or secrets.token_bytes(12)
    )


class Bench:
    """An agent with one session, and a clock that is set by hand."""

    def __init__(self) -> None:
        self.agent = IceAgent()
        self.now_s = 1_000.0
        self.session = self.open(UFRAG)

    def open(self, ufrag: str) -> IceSession:
        return self.agent.open(ufrag, PWD, REMOTE, object(), self.now_s)

    def check(
        self, key: FlowKey, datagram: bytes | None = None, source: Source = RELAY
    ) -> Checked | None:
        return self.agent.check(datagram or check(), key, source, self.now_s)

    def path(self, key: FlowKey, *, use_candidate: bool = False) -> Path:
        checked = self.check(key, check(use_candidate=use_candidate))
        assert checked is not None
        assert checked.path is not None
        return checked.path

    def media(self, path: Path, source: Source = RELAY) -> None:
        self.agent.authenticated(path, source, self.now_s, media=True)

    def target(self) -> FlowKey | None:
        path = self.session.media_path(self.now_s)
        return None if path is None else path.key

    def members(self, key: FlowKey) -> list[IceSession]:
        return [path.session for path in self.agent.members(key, self.now_s)]


@pytest.fixture
def bench() -> Bench:
    return Bench()


# Rule 1: up to four sessions share a flow key


def test_four_sessions_share_a_flow_key_and_none_removes_another(bench: Bench) -> None:
    sessions = [bench.session, *(bench.open(f"ufrag{i}") for i in range(3))]
    for session in sessions:
        bench.now_s += 1
        assert bench.check(flow(1), check(f"{session.ufrag.decode()}:{REMOTE}"))
    assert bench.members(flow(1)) == sessions


def test_a_fifth_session_replaces_the_one_silent_longest(bench: Bench) -> None:
    sessions = [bench.session, *(bench.open(f"ufrag{i}") for i in range(4))]
    paths = []
    for session in sessions[:4]:
        checked = bench.check(flow(1), check(f"{session.ufrag.decode()}:{REMOTE}"))
        assert checked is not None
        paths.append(checked.path)
    bench.now_s += 5
    for path in (paths[0], paths[1], paths[3]):
        assert path is not None
        bench.media(path)
    assert bench.check(flow(1), check(f"{sessions[4].ufrag.decode()}:{REMOTE}"))
    assert bench.members(flow(1)) == [sessions[0], sessions[1], sessions[3], sessions[4]]
    assert sessions[2].paths == {}


def test_a_session_leaves_a_flow_key_after_30_s_without_an_authenticated_packet(
    bench: Bench,
) -> None:
    bench.path(flow(1))
    bench.now_s += 29.9
    assert bench.members(flow(1)) == [bench.session]
    bench.now_s += 0.1
    assert bench.members(flow(1)) == []
    bench.agent.expire(bench.now_s)
    assert bench.session.paths == {}


def test_packets_of_an_unvalidated_flow_key_are_offered_to_nobody(bench: Bench) -> None:
    bench.path(flow(1))
    assert bench.members(flow(2)) == []
    assert bench.members(flow(1, proxy_port=3479)) == []


# Rule 2: which checks are answered


def test_a_good_check_is_answered_with_the_clients_own_address(bench: Bench) -> None:
    datagram = check()
    checked = bench.check(flow(4711), datagram)
    assert checked is not None
    reply = stun.Message.read(checked.reply)
    assert reply.stun_class == 2
    assert reply.transaction_id == datagram[8:20]
    assert reply.verify(PWD.encode())
    assert reply.fingerprint
    # XOR-MAPPED-ADDRESS of 203.0.113.7:4711, and no more bytes than the request had
    assert bytes.fromhex("00200008") + b"\0\1" + (4711 ^ 0x2112).to_bytes(2) in checked.reply
    assert len(checked.reply) == 64 < len(datagram)


@pytest.mark.parametrize(
    ("username", "reason"),
    [
        (f"{REMOTE}:{UFRAG}", "unknown_ufrag"),
        (f"{UFRAG}:{REMOTE}:x", "wrong_username"),
        (f"{UFRAG}:cli2", "wrong_username"),
        (f"{UFRAG}:", "unknown_ufrag"),
        (f":{REMOTE}", "unknown_ufrag"),
        (UFRAG, "unknown_ufrag"),
        (f" {UFRAG}:{REMOTE}", "unknown_ufrag"),
        (f"other{UFRAG}:{REMOTE}", "unknown_ufrag"),
    ],
)
def test_a_username_that_is_not_ours_gets_silence(bench: Bench, username: str, reason: str) -> None:
    assert bench.check(flow(1), check(username)) is None
    assert bench.agent.drops == Counter({reason: 1})
    assert bench.members(flow(1)) == []


@pytest.mark.parametrize(
    ("datagram", "reason"),
    [
        (check(pwd="x" * 24), "wrong_integrity"),
        (message(attribute(stun.USERNAME, f"{UFRAG}:{REMOTE}".encode())), "wrong_integrity"),
        (message(attribute(stun.USERNAME, b"x" * 509), key=PWD.encode()), "malformed"),
        (check()[:-1] + b"\0", "malformed"),
        (check()[:60], "malformed"),
        (check() + b"\0", "malformed"),
        (b"\0" * 20, "malformed"),
        (message(kind=0x0101, key=PWD.encode()), "no_check"),
        (message(kind=0x0011, key=PWD.encode()), "no_check"),
        (message(kind=0x0003, key=PWD.encode()), "no_check"),
        (message(key=PWD.encode()), "unknown_ufrag"),
        (vectors()["rfc5769_request"], "unknown_ufrag"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_everything_else_gets_silence_and_a_count(
    bench: Bench, datagram: bytes, reason: str
) -> None:
    assert bench.check(flow(1), datagram) is None
    assert bench.agent.drops == Counter({reason: 1})
    assert bench.session.paths == {}


@pytest.mark.parametrize("chars", [4, 32, 33, 64, 255, 256])
def test_long_client_ufrags_are_answered(bench: Bench, chars: int) -> None:
    remote = "r" * chars
    bench.agent.open("ours", PWD, remote, object(), bench.now_s)
    assert bench.check(flow(1), check(f"ours:{remote}"))


def test_a_check_without_fingerprint_is_answered(bench: Bench) -> None:
    name = attribute(stun.USERNAME, f"{UFRAG}:{REMOTE}".encode())
    assert bench.check(flow(1), message(name, key=PWD.encode(), fingerprint=False))


def test_sixteen_flow_keys_are_answered_and_the_seventeenth_is_not(bench: Bench) -> None:
    for port in range(16):
        assert bench.check(flow(port))
    assert bench.check(flow(16)) is None
    assert bench.agent.drops == Counter(flow_key_limit=1)
    assert bench.check(flow(3))
    bench.now_s += 30
    assert bench.check(flow(16)), "the sixteen are no longer live"


def test_a_captured_check_from_another_flow_key_is_dropped(bench: Bench) -> None:
    captured = check(use_candidate=True)
    assert bench.check(flow(1), captured)
    bench.now_s += 29
    assert bench.check(flow(666), captured) is None
    assert bench.agent.drops == Counter(replayed_check=1)
    assert flow(666) not in bench.session.paths
    # The same flow key again is a retransmission.
    assert bench.check(flow(1), captured)


def test_a_repeat_from_its_own_flow_key_is_answered_but_proves_nothing(bench: Bench) -> None:
    first = check()
    bench.check(flow(1), first)
    bench.now_s += 20
    assert bench.check(flow(1), first, OTHER_RELAY)
    assert bench.session.authenticated_s == bench.now_s - 20
    assert bench.session.paths[flow(1)].source == RELAY


def test_transaction_ids_are_forgotten_after_60_s_and_bounded(bench: Bench) -> None:
    for index in range(5_000):
        bench.check(flow(1), check(transaction_id=index.to_bytes(12)))
    assert len(bench.session.transactions) == 1_024
    bench.now_s += 60
    bench.agent.expire(bench.now_s)
    assert len(bench.session.transactions) == 0


def test_ice_controlled_gets_487_and_moves_nothing(bench: Bench) -> None:
    checked = bench.check(flow(1), check(controlled=True))
    assert checked is not None
    reply = stun.Message.read(checked.reply)
    assert reply.stun_class == 3
    assert bytes.fromhex("0009") in checked.reply
    assert bytes((0, 0, 4, 87)) in checked.reply
    assert reply.verify(PWD.encode())
    assert checked.path is None
    assert bench.session.paths == {}


def test_ice_controlled_with_a_wrong_password_gets_silence(bench: Bench) -> None:
    assert bench.check(flow(1), check(pwd="x" * 24, controlled=True)) is None


# Rule 3: where everything but a STUN reply goes


def test_packets_go_to_the_source_of_the_last_authenticated_one(bench: Bench) -> None:
    path = bench.path(flow(1))
    assert path.source == RELAY
    bench.media(path, OTHER_RELAY)
    assert path.source == OTHER_RELAY
    bench.check(flow(1), source=RELAY)
    assert path.source == RELAY


def test_an_unauthenticated_check_moves_no_source(bench: Bench) -> None:
    path = bench.path(flow(1))
    bench.check(flow(1), check(pwd="x" * 24), OTHER_RELAY)
    assert path.source == RELAY


# Rule 4: where media goes


def test_media_goes_to_the_first_check_without_anything_better(bench: Bench) -> None:
    bench.path(flow(1))
    bench.now_s += 0.1
    bench.path(flow(2))
    assert bench.target() == flow(1)


def test_media_goes_to_the_latest_nomination_before_any_media_came(bench: Bench) -> None:
    for port in range(4):
        bench.path(flow(port), use_candidate=port == 2)
        bench.now_s += 0.01
    assert bench.target() == flow(2)
    bench.path(flow(3), use_candidate=True)
    assert bench.target() == flow(3)


def test_media_follows_the_newest_authenticated_media(bench: Bench) -> None:
    first, second = bench.path(flow(1)), bench.path(flow(2), use_candidate=True)
    bench.media(first)
    assert bench.target() == flow(1), "media counts for more than a nomination"
    bench.now_s += 1
    bench.media(second)
    assert bench.target() == flow(2)
    bench.now_s += 1
    bench.path(flow(1), use_candidate=True)
    assert bench.target() == flow(2), "a check does not move media"


def test_a_new_port_of_a_nat_is_followed_with_the_first_check_and_media(bench: Bench) -> None:
    bench.media(bench.path(flow(1)))
    bench.now_s += 2.5
    bench.media(bench.path(flow(2)))
    assert bench.target() == flow(2)


def test_a_flow_key_silent_for_10_s_gets_no_media_and_the_call_pauses(bench: Bench) -> None:
    path = bench.path(flow(1))
    bench.media(path)
    bench.now_s += 9.9
    assert bench.target() == flow(1)
    bench.now_s += 0.1
    assert bench.target() is None
    assert bench.session.has_consent(bench.now_s), "paused, not ended"
    bench.check(flow(1))
    assert bench.target() == flow(1)


def test_a_silent_media_path_gives_way_to_a_live_one(bench: Bench) -> None:
    bench.media(bench.path(flow(1)))
    bench.now_s += 5
    bench.path(flow(2), use_candidate=True)
    assert bench.target() == flow(1)
    bench.now_s += 5
    assert bench.target() == flow(2)


# Rule 5: consent is time


@pytest.mark.parametrize("use_candidate", [False, True])
def test_any_authenticated_check_keeps_consent(bench: Bench, use_candidate: bool) -> None:
    for _ in range(10):
        bench.now_s += 29
        bench.path(flow(1), use_candidate=use_candidate)
        assert bench.session.has_consent(bench.now_s)
    bench.now_s += 29.9
    assert bench.session.has_consent(bench.now_s)
    bench.now_s += 0.1
    assert not bench.session.has_consent(bench.now_s)


def test_media_keeps_consent(bench: Bench) -> None:
    path = bench.path(flow(1))
    bench.now_s += 29
    bench.media(path)
    bench.now_s += 29
    assert bench.session.has_consent(bench.now_s)


# The end


def test_a_closed_session_leaves_nothing(bench: Bench) -> None:
    other = bench.open("other")
    for port in range(5):
        bench.path(flow(port))
        bench.check(flow(port), check(f"other:{REMOTE}"))
    bench.agent.close(bench.session)
    bench.agent.close(bench.session)
    assert bench.members(flow(1)) == [other]
    assert bench.check(flow(1)) is None
    bench.agent.close(other)
    assert len(bench.agent) == 0
    assert bench.agent._flows == {}
