"""What travels between hosts: opened by whoever holds the secret, once changed by nobody."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.wire.address import Endpoint
from transceiver.boxes import CLOCK_SKEW_S, Ask, PeerSeal
from transceiver.peers import open_peers
from transceiver.siblings import Reply

NOW_S = 1_000_000.0
SEAL = PeerSeal(b"a secret")
ASK = Ask(3, "PATCH", "/v1/realtime/calls/rtc_x", {"Authorization": "Bearer ek_1"}, b"a=candidate")


@given(
    st.integers(0, 255),
    st.text(max_size=20),
    st.dictionaries(st.text(max_size=8), st.text(max_size=40), max_size=3),
    st.binary(max_size=100),
)
def test_what_is_sealed_is_opened(
    process: int, path: str, headers: dict[str, str], body: bytes
) -> None:
    ask = Ask(process, "GET", path, headers, body)
    box, nonce = SEAL.seal_ask(ask, NOW_S)
    assert PeerSeal(b"a secret").open_ask(box, NOW_S) == (ask, nonce)


@given(st.data())
def test_a_changed_box_is_none(data: st.DataObject) -> None:
    box, _ = SEAL.seal_ask(ASK, NOW_S)
    index = data.draw(st.integers(0, len(box) - 1))
    changed = bytearray(box)
    changed[index] ^= data.draw(st.integers(1, 255))
    assert SEAL.open_ask(bytes(changed), NOW_S) is None
    assert SEAL.open_ask(box[:index], NOW_S) is None


@given(st.binary(max_size=200))
def test_garbage_is_none(box: bytes) -> None:
    assert SEAL.open_ask(box, NOW_S) is None
    assert SEAL.open_answer(box, bytes(12)) is None


@pytest.mark.parametrize("skew_s", [-CLOCK_SKEW_S - 1, CLOCK_SKEW_S + 1])
def test_a_box_of_another_time_is_none(skew_s: float) -> None:
    box, _ = SEAL.seal_ask(ASK, NOW_S)
    assert SEAL.open_ask(box, NOW_S + skew_s) is None
    assert SEAL.open_ask(box, NOW_S + skew_s / 2) is not None


def test_an_answer_answers_one_request_and_is_none_of_the_other_direction() -> None:
    box, asked = SEAL.seal_ask(ASK, NOW_S)
    _, other = SEAL.seal_ask(ASK, NOW_S)
    answer = SEAL.seal_answer(Reply(200, {"ETag": "1", "Set-Cookie": "x"}, b"body"), asked)
    assert SEAL.open_answer(answer, asked) == Reply(200, {"ETag": "1"}, b"body")
    assert SEAL.open_answer(answer, other) is None
    assert SEAL.open_answer(box, asked) is None
    assert SEAL.open_ask(answer, NOW_S) is None


def test_peer_ports_follow_one_another() -> None:
    opened = open_peers(Endpoint.of("127.0.0.1", 0), 3)
    try:
        first = opened[0].getsockname()[1]
        assert [one.getsockname()[1] for one in opened] == [first, first + 1, first + 2]
        with pytest.raises(OSError, match="in use"):
            open_peers(Endpoint.of("127.0.0.1", first), 1)
    finally:
        for one in opened:
            one.close()
