"""What attackers do to a running relay, at small rates and with the exact counters (benchmarks/
bench_attack.py has the same at 100,000 a second): no call is cut or moved, memory stays flat, and
the log stays silent, at its most talkative level.
"""

from __future__ import annotations

import os
import random
import string
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.process import Processes
from tests.support.relayed import RTP, Client, Relay, Transceiver, binding_request, wait_until
from tests.support.spoof import Spoofer, loopback

FLOOD = 4000
BASE64 = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
SETTLED_GROWTH_BYTES = 1 << 20


class Calls:
    """Two calls on one transceiver of a relay with one worker."""

    def __init__(self, relay: Relay, stack: ExitStack) -> None:
        self.relay = relay
        self.public = relay.public[0]
        self.sink = stack.enter_context(Transceiver())
        self.clients = [stack.enter_context(Client()) for _ in range(2)]
        self.ufrags = [self.sink.ufrag(relay.keyring) for _ in self.clients]
        self.keys = [
            client.establish(ufrag, self.public, self.sink)
            for client, ufrag in zip(self.clients, self.ufrags, strict=True)
        ]

    @property
    def victim(self) -> Client:
        """Whose address is spoofed."""
        return self.clients[0]

    def go_on(self, *others: Transceiver) -> None:
        """One packet each way passes on each call; the first call's also goes up to `others`."""
        for client, key in zip(self.clients, self.keys, strict=True):
            listeners = [self.sink, *others] if client is self.victim else [self.sink]
            expected = {"rx public": 1, "tx internal": len(listeners)}
            with self.relay.changed({**expected, "rx internal": 1, "tx public": 1}):
                client.send(RTP, self.public)
                for listener in listeners:
                    heard, payload, internal = listener.receive()
                    assert (heard, payload) == (key, RTP)
                self.sink.send(key, RTP[::-1], internal)
                assert client.receive() == (RTP[::-1], self.public)

    def log_lines(self) -> int:
        """How much the relay has said."""
        return len(self.relay.process.output().splitlines())

    def memory_bytes(self) -> int:
        """What the worker has in memory, shared tables included."""
        (pid,) = self.relay.worker_pids().values()
        resident_pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return resident_pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def relay(module_processes: Processes, tmp_path_factory: pytest.TempPathFactory) -> Relay:
    relay = Relay(module_processes, tmp_path_factory.mktemp("relay"), workers=1)
    relay.wait_standby()  # the last that it says of its start
    return relay


@pytest.fixture
def calls(relay: Relay) -> Iterator[Calls]:
    with ExitStack() as stack:
        made = Calls(relay, stack)
        made.go_on()
        lines, memory_bytes = made.log_lines(), made.memory_bytes()
        yield made
        assert made.log_lines() == lines, relay.process.tail()
        assert made.memory_bytes() - memory_bytes < SETTLED_GROWTH_BYTES


@pytest.fixture
def spoofer() -> Iterator[Spoofer]:
    with Spoofer() as opened:
        yield opened


def spoofed_check(ufrag: str) -> bytes:
    return binding_request(f"{ufrag}:evil".encode())


# --- from anywhere --------------------------------------------------------------------------------


def why_dropped(ufrag: str, key_id: int) -> str:
    """The reason for an ufrag that nobody sealed (design 3.1): its first six bits decide."""
    bits = BASE64.index(ufrag[0])
    if bits >> 3 == 7:
        return "token_no_hint"
    if bits >> 1 & 3:
        return "token_malformed"
    return "token_forged" if bits >> 3 == key_id else "token_unknown_key"


def test_random_tokens_make_nothing(calls: Calls, spoofer: Spoofer) -> None:
    rng = random.Random(3)
    ufrags = ["".join(rng.choices(BASE64, k=28)) for _ in range(FLOOD)]
    reasons = Counter(why_dropped(ufrag, calls.relay.keyring.keys[0].id) for ufrag in ufrags)
    drops = {f"drop {reason}": count for reason, count in reasons.items()}
    with calls.relay.changed({"rx public": FLOOD, **drops}):
        for i, ufrag in enumerate(ufrags):
            spoofer.send(spoofed_check(ufrag), loopback(i), calls.public)
    assert len(drops) == 4
    calls.go_on()


def test_tokens_with_a_good_beginning_are_forged(calls: Calls, spoofer: Spoofer) -> None:
    """The key's id and the format are right, as anybody can read them; the MAC is not."""
    head = calls.ufrags[0][:1]
    with calls.relay.changed({"rx public": FLOOD, "drop token_forged": FLOOD}):
        for i in range(FLOOD):
            spoofer.send(spoofed_check(head + f"{i:027}"), loopback(i), calls.public)
    calls.go_on()


def test_one_valid_token_from_random_sources(calls: Calls, spoofer: Spoofer) -> None:
    """20 new flows a second for one token; at most twice that around the turn of a second."""
    before = calls.relay.counters()
    for i in range(FLOOD):
        spoofer.send(spoofed_check(calls.ufrags[0]), loopback(i), calls.public)
    wait_until(
        lambda: calls.relay.counters()["rx public"] == before["rx public"] + FLOOD, "all received"
    )
    moved = {name: value - before[name] for name, value in calls.relay.counters().items()}
    created = int(moved["created"])
    assert {name: value for name, value in moved.items() if value} == {
        "rx public": FLOOD,
        "created": created,
        "tx internal": created,
        "drop cap_token_flows_rate": FLOOD - created,
    }
    assert 19 <= created <= 200, "one second's worth, less the call's own, to ten"
    for _ in range(created):
        calls.sink.receive()
    # The client whose token it is checks as before.
    calls.victim.establish(calls.ufrags[0], calls.public, calls.sink)
    calls.go_on()


def test_media_and_dtls_of_strangers_go_nowhere(calls: Calls, spoofer: Spoofer) -> None:
    """Case B20: also from the address of another client of the relay."""
    hello = b"\x16\xfe\xfd" + bytes(97)
    with calls.relay.changed({"rx public": FLOOD, "drop no_flow": FLOOD}):
        for i in range(FLOOD):
            spoofer.send(RTP if i % 2 else hello, loopback(i), calls.public)
    calls.go_on()


def test_a_captured_check_from_another_address(calls: Calls, spoofer: Spoofer) -> None:
    """It reaches the transceiver, which does not answer a repeat; without an answer nothing passes."""
    captured = calls.victim.check(calls.ufrags[0], calls.public)
    calls.sink.answer()
    calls.victim.receive()
    moved = {"rx public": 2, "tx internal": 1, "created": 1, "drop half_open": 1}
    with calls.relay.changed(moved):
        spoofer.send(captured, loopback(1), calls.public)
        assert calls.sink.receive()[1] == captured
        spoofer.send(RTP, loopback(1), calls.public)
    calls.go_on()


# --- from a client's address ----------------------------------------------------------------------


def test_an_own_token_from_a_victims_address_on_the_same_transceiver(calls: Calls) -> None:
    """Answered, and nothing changes: the owner is the same."""
    ufrag = calls.sink.ufrag(calls.relay.keyring)
    for _ in range(3):
        calls.victim.establish(ufrag, calls.public, calls.sink)
    calls.go_on()


def test_an_own_token_from_a_victims_address_on_other_transceivers(calls: Calls) -> None:
    """The first joins, each following one takes its place; the victim's owner stays."""
    with ExitStack() as stack:
        others = [stack.enter_context(Transceiver()) for _ in range(3)]
        for other in others:
            calls.victim.establish(other.ufrag(calls.relay.keyring), calls.public, other)
            calls.go_on(other)
        assert all(other.hears_nothing(0.02) for other in others)
        # Nor is a former owner heard any more.
        with calls.relay.changed({"rx internal": 1, "drop sender_not_owner": 1}):
            others[0].send(calls.keys[0], RTP, calls.relay.internal[0])


def test_checks_without_an_answer_do_not_join(calls: Calls) -> None:
    """Without the password of its session a valid token of another transceiver is worth nothing."""
    with Transceiver() as other:
        ufrag = other.ufrag(calls.relay.keyring)
        for _ in range(15):  # 20 a second would pass: it is a new token of the flow each time
            calls.victim.check(ufrag, calls.public)
            other.receive()
        calls.go_on()
        assert other.hears_nothing(0.02)
        # An error response tells the client and establishes nothing.
        calls.victim.check(ufrag, calls.public)
        other.refuse()
        calls.victim.receive()
        calls.go_on()


def test_a_flow_made_for_a_victim_before_he_comes(calls: Calls) -> None:
    with Client() as late, Transceiver() as attackers:
        late.establish(attackers.ufrag(calls.relay.keyring), calls.public, attackers)
        late.establish(calls.sink.ufrag(calls.relay.keyring), calls.public, calls.sink)
        late.send(RTP, calls.public)
        assert calls.sink.receive()[1] == attackers.receive()[1] == RTP


# --- towards a stranger ---------------------------------------------------------------------------


def test_a_stranger_gets_at_most_one_answer_for_each_check(calls: Calls) -> None:
    """A spoofed USE-CANDIDATE: no media goes to the stranger, and answers are capped with the checks."""
    with Client() as stranger:
        ufrag = calls.sink.ufrag(calls.relay.keyring)
        stranger.establish(ufrag, calls.public, calls.sink)
        calls.go_on()
        assert stranger.hears_nothing(0.02)
        sent = 120  # within any second 50 of them pass
        before = calls.relay.counters()
        for _ in range(sent):
            stranger.check(ufrag, calls.public)
        wait_until(
            lambda: calls.relay.counters()["rx public"] == before["rx public"] + sent,
            "all received",
        )
        moved = {name: value - before[name] for name, value in calls.relay.counters().items()}
        assert moved["tx internal"] + moved["drop cap_flow_checks"] == sent
        assert 40 <= moved["tx internal"] <= 100
        for _ in range(int(moved["tx internal"])):
            calls.sink.receive()
        assert calls.sink.hears_nothing(0.1)
