"""What the relay does with the bytes of a check before any table: read STUN, open the token.

Each round is a batch of 1,000 calls through the Cython binding, so a figure includes one Python
call; `an empty call` is the baseline to subtract. Figures are per batch: µs here are ns a call.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from relay.wire._codec import StunReader, StunStatus, TokenCipher, TokenStatus, crc32
from relay.wire.keyring import Keyring, generate_line
from relay.wire.token import TokenCodec, TransceiverAddress
from tests.support.stun import attribute, message

BATCH = range(1000)

RING = Keyring.parse(generate_line())
HERE = TransceiverAddress(1, IPv4Address("192.0.2.10"), 40000)
UFRAG = TokenCodec(RING).seal(HERE).encode()
CHECK = message(
    attribute(0x0006, UFRAG + b":abcd"),
    attribute(0xC057, bytes(4)),
    attribute(0x802A, bytes(8)),
    attribute(0x0024, bytes(4)),
    key=b"password",
)
"""As Chromium sends it: USERNAME, vendor attribute, role, PRIORITY, HMAC, FINGERPRINT."""


@pytest.fixture
def cipher() -> TokenCipher:
    made = TokenCipher()
    made.add(RING.keys[0].id, RING.keys[0].secret)
    return made


@pytest.fixture
def reader() -> StunReader:
    buffer = bytearray(2048)
    buffer[: len(CHECK)] = CHECK
    return StunReader(buffer)


def batch(call: Callable[[], object]) -> object:
    """Makes 1,000 calls; the last result is asserted by the caller."""
    for _ in BATCH:
        result = call()
    return result


def test_an_empty_call(benchmark: BenchmarkFixture) -> None:
    assert benchmark(batch, lambda: crc32(b"")) == 0


def test_read_a_check(benchmark: BenchmarkFixture, reader: StunReader) -> None:
    assert benchmark(batch, lambda: reader.read(len(CHECK))) == StunStatus.OK


def test_open_its_token(
    benchmark: BenchmarkFixture, cipher: TokenCipher, reader: StunReader
) -> None:
    reader.read(len(CHECK))
    opened = benchmark(batch, lambda: cipher.open_check(reader))
    assert opened == (0, 4, 0, 1, 40000, HERE.address.packed)


def test_refuse_a_forged_token(benchmark: BenchmarkFixture, cipher: TokenCipher) -> None:
    forged = UFRAG[:-1] + (b"A" if UFRAG[-1:] != b"A" else b"B")
    assert benchmark(batch, lambda: cipher.open(forged)) == TokenStatus.FORGED
