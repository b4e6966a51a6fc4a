"""Call ids: opened by the pool that drew them, and by nobody's forgery."""

from __future__ import annotations

import re
import secrets

import pytest

from relay.wire.address import Endpoint
from transceiver.callid import CALL_ID_CHARS, CallIds, Owner

KEY = bytes(range(32))
OWNER = Owner(65_535, 7, Endpoint.of("2001:db8::1", 8_443))


def test_an_id_names_its_owner_and_nothing_shows() -> None:
    ids = CallIds(KEY)
    drawn = {ids.draw(OWNER) for _ in range(1_000)}
    assert len(drawn) == 1_000
    for call_id in drawn:
        assert re.fullmatch(r"rtc_[A-Za-z0-9_]{80}", call_id)
        assert len(call_id) == CALL_ID_CHARS
        assert ids.open(call_id) == OWNER
    assert len({call_id[30:60] for call_id in drawn}) == 1_000, "the owner is encrypted"


@pytest.mark.parametrize("owner", [Owner(0, 0), Owner(3, 255, Endpoint.of("10.0.0.1", 1))])
def test_owners_survive(owner: Owner) -> None:
    assert CallIds(KEY).open(CallIds(KEY).draw(owner)) == owner


def test_every_changed_character_is_a_forgery() -> None:
    ids = CallIds(KEY)
    call_id = ids.draw(OWNER)
    for index in range(len(call_id)):
        for other in "abz27":
            if other != call_id[index]:
                assert ids.open(call_id[:index] + other + call_id[index + 1 :]) is None


def test_another_pools_id_is_a_forgery() -> None:
    assert CallIds(secrets.token_bytes(32)).open(CallIds(KEY).draw(OWNER)) is None


@pytest.mark.parametrize(
    "text",
    ["", "rtc_", "rtc_u1_9c6574da8b8a41a18da9308f4ad974ce", "x" * 84, "rtc_" + "A" * 80,
     "rtc_" + "1" * 80, "rtc_" + "ä" * 80, "rtc_" + "=" * 80, "rtc_" + "a" * 79, "rtc_" + "a" * 81],
)  # fmt: skip
def test_other_texts_open_to_nothing(text: str) -> None:
    assert CallIds(KEY).open(text) is None


def test_spelling_is_one() -> None:
    ids = CallIds(KEY)
    call_id = ids.draw(OWNER)
    assert ids.open("rtc_" + call_id[4:].upper()) is None


def test_a_key_has_32_bytes() -> None:
    with pytest.raises(ValueError):
        CallIds(b"short")
