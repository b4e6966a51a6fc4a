"""CPU time per forwarded packet: one worker of the relay against a null forwarder.

Method (README.md): drain; the relay and the null forwarder in turn, in the same run; the ratio of
each pair, and their median. Every round asserts that each packet arrived.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.programs import Forwarder, Program, load_generator, null_forwarder, relay_worker
from benchmarks.relay_process import KEY
from relay.wire.keyring import Keyring
from relay.wire.token import TokenCodec, TransceiverAddress

PACKETS = 8192
ROUNDS = 25


class Bench:
    """A relay with established flows, a null forwarder beside it, and what loads both."""

    def __init__(self, load: Program, relay: Forwarder, null: Forwarder, flows: int) -> None:
        self._load = load
        self._relay = relay
        self._null = null
        self._public_port, self._internal_port = map(int, relay.greeting)
        codec = TokenCodec(Keyring.parse(f"0:{KEY.hex()}\n"))
        ufrags = [codec.seal(TransceiverAddress(1, "127.0.0.1", int(p))) for p in load.greeting]
        assert load.ask("establish", self._public_port, *ufrags, flows) == [flows]

    def relay_ns(self, direction: str, size: int) -> float:
        """CPU nanoseconds per packet of the relay, in one drain."""
        port = self._public_port if direction == "up" else self._internal_port
        return self._drain(self._relay, direction, port, size, 38 if direction == "up" else 0)

    def null_ns(self, size: int) -> float:
        """CPU nanoseconds per packet of the null forwarder, in one drain of the same size."""
        return self._drain(self._null, "up", int(self._null.greeting[0]), size, 0)

    def _drain(
        self, forwarder: Forwarder, direction: str, port: int, size: int, added: int
    ) -> float:
        forwarder.stop()
        self._load.ask(direction, port, PACKETS, size)
        cpu_ns = forwarder.drain()
        up, up_bytes, down, down_bytes = self._load.ask("collect")
        expected = [PACKETS, PACKETS * (size + added)]
        assert ([up, up_bytes] if direction == "up" else [down, down_bytes]) == expected
        return cpu_ns / PACKETS


@pytest.fixture
def bench(transceivers: int, flows: int, batch: int) -> Iterator[Bench]:
    """Started for one case and ended after it."""
    with (
        load_generator(transceivers) as load,
        relay_worker(batch) as relay,
        null_forwarder(int(load.greeting[0]), batch) as null,
    ):
        assert isinstance(relay, Forwarder)
        assert isinstance(null, Forwarder)
        yield Bench(load, relay, null, flows)


@pytest.mark.parametrize("batch", [32, 256])
@pytest.mark.parametrize(("transceivers", "flows"), [(1, 1), (1, 256), (16, 256)])
@pytest.mark.parametrize("direction", ["up", "down"])
def test_forward(
    benchmark: BenchmarkFixture,
    bench: Bench,
    direction: str,
    transceivers: int,
    flows: int,
    batch: int,
) -> None:
    """Equal 172-byte packets, one direction."""
    size = 172
    relay_ns: list[float] = []
    null_ns: list[float] = []

    def one_pair() -> None:
        null_ns.append(bench.null_ns(size))
        relay_ns.append(bench.relay_ns(direction, size))

    benchmark.group = f"{direction}, {size} bytes"
    benchmark.pedantic(one_pair, rounds=ROUNDS, warmup_rounds=2)
    ratios = sorted(r / n for r, n in zip(relay_ns[2:], null_ns[2:], strict=True))
    benchmark.extra_info.update(
        relay_us=round(median(relay_ns[2:]) / 1e3, 3),
        null_us=round(median(null_ns[2:]) / 1e3, 3),
        ratio=round(median(ratios), 3),
        ratio_quartiles=[round(ratios[len(ratios) * q // 4], 3) for q in (1, 3)],
    )
