"""The C token against an independent one, both directions, and against whatever bytes come."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from relay.wire._codec import TokenCipher, TokenStatus
from tests.support import token as reference

SECRETS = st.binary(min_size=32, max_size=32)
KEY_IDS = st.integers(0, 6)
U16 = st.integers(0, 0xFFFF)
PORTS = st.integers(1, 0xFFFF)
RANDOM = st.binary(min_size=8, max_size=8)
ICE_CHARS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


@st.composite
def fields(draw: st.DrawFn) -> reference.Fields:
    kind = draw(st.sampled_from((4, 6)))
    index = draw(st.integers(0, 15)) if kind == 6 else 0
    size = 4 if kind == 4 else 8
    address = draw(st.binary(min_size=size, max_size=size))
    return draw(KEY_IDS), kind, index, draw(U16), draw(PORTS), address


def cipher_of(ring: dict[int, bytes]) -> TokenCipher:
    cipher = TokenCipher()
    for key_id, secret in ring.items():
        cipher.add(key_id, secret)
    return cipher


def opened_or_reason(cipher: TokenCipher, ufrag: bytes) -> reference.Fields | str:
    opened = cipher.open(ufrag)
    return opened.name.lower() if isinstance(opened, TokenStatus) else opened


@given(secret=SECRETS, said=fields(), random=RANDOM)
def test_both_seal_the_same_and_open_what_the_other_sealed(
    secret: bytes, said: reference.Fields, random: bytes
) -> None:
    cipher = cipher_of({said[0]: secret})
    ours = cipher.seal(*said[1:], random)
    theirs = reference.seal(secret, said, random).encode()
    assert ours == theirs
    assert cipher.open(theirs) == said
    assert reference.open_with({said[0]: secret}, theirs) == said


@given(
    ring=st.dictionaries(KEY_IDS, SECRETS, min_size=1),
    data=st.data(),
    plaintext=st.binary(min_size=16, max_size=16),
)
def test_any_plaintext_under_a_good_mac(
    ring: dict[int, bytes], data: st.DataObject, plaintext: bytes
) -> None:
    key_id = data.draw(st.sampled_from(sorted(ring)))
    low_bits = data.draw(st.integers(0, 31))
    ufrag = reference.seal_plaintext(key_id, ring[key_id], low_bits, plaintext).encode()
    assert opened_or_reason(cipher_of(ring), ufrag) == reference.open_with(ring, ufrag)


@given(secret=SECRETS, key_id=KEY_IDS, text=st.text(ICE_CHARS, min_size=28, max_size=28))
def test_any_ice_chars(secret: bytes, key_id: int, text: str) -> None:
    ring = {key_id: secret}
    assert opened_or_reason(cipher_of(ring), text.encode()) == reference.open_with(
        ring, text.encode()
    )


@given(ufrag=st.one_of(st.binary(max_size=40), st.binary(min_size=28, max_size=28)))
@example(b"A" * 26 + b"==")
@example(b"A" * 27 + b"\n")
@example(b"-_" + b"A" * 26)
def test_any_bytes(ufrag: bytes) -> None:
    ring = {0: bytes(32)}
    assert opened_or_reason(cipher_of(ring), ufrag) == reference.open_with(ring, ufrag)


@given(
    ring=st.dictionaries(KEY_IDS, SECRETS, min_size=1),
    said=fields(),
    secret=SECRETS,
    random=RANDOM,
    bit=st.integers(0, 28 * 8 - 1),
)
def test_one_flipped_bit(
    ring: dict[int, bytes], said: reference.Fields, secret: bytes, random: bytes, bit: int
) -> None:
    ring = {**ring, said[0]: secret}
    ufrag = bytearray(reference.seal(secret, said, random).encode())
    ufrag[bit // 8] ^= 1 << bit % 8
    assert opened_or_reason(cipher_of(ring), bytes(ufrag)) == reference.open_with(
        ring, bytes(ufrag)
    )
