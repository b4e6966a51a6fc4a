"""CPU time per forwarded packet: one worker of the relay against a null forwarder.

Method (README.md): drain; the relay and the null forwarder in turn, in the same run; the ratio of
each pair, and their median. Every round asserts that each packet arrived.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address
from statistics import median

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.programs import Forwarder, Program, load_generator, null_forwarder, relay_worker
from benchmarks.relay_process import KEY
from relay.wire.keyring import Keyring
from relay.wire.token import TokenCodec, TransceiverAddress

PACKETS = 8192
ROUNDS = 25
WARMUP_ROUNDS = 2
SIZE = 172


class CpuClock:
    """A timer for pytest-benchmark: CPU seconds that the forwarder under measurement has used."""

    measured: Forwarder | None = None

    def __call__(self) -> float:
        return 0.0 if self.measured is None else self.measured.cpu_ns() / 1e9


CLOCK = CpuClock()


class Bench:
    """A relay with established flows, a null forwarder beside it, and what loads both."""

    def __init__(self, load: Program, relay: Forwarder, null: Forwarder, flows: int) -> None:
        self._load = load
        self.relay = relay
        self.null = null
        self._public_port, self._internal_port = map(int, relay.greeting)
        self._null_port = int(null.greeting[0])
        codec = TokenCodec(Keyring.parse(f"0:{KEY.hex()}\n"))
        ufrags = [
            codec.seal(TransceiverAddress(1, IPv4Address("127.0.0.1"), int(port)))
            for port in load.greeting
        ]
        assert load.ask("establish", self._public_port, *ufrags, flows) == [flows]

    def fill_relay(self, direction: str) -> None:
        """Stops the relay and fills its public (up) or internal (down) socket."""
        port = self._public_port if direction == "up" else self._internal_port
        self._fill(self.relay, direction, port)

    def null_ns(self) -> float:
        """CPU nanoseconds per packet of the null forwarder, in one drain."""
        self._fill(self.null, "up", self._null_port)
        cpu_ns = self.null.drain()
        self.check_arrival("up", 0)
        return cpu_ns / PACKETS

    def check_arrival(self, direction: str, added: int) -> None:
        """Every packet has arrived on the other side, `added` bytes longer."""
        up, up_bytes, down, down_bytes = self._load.ask("collect")
        expected = [PACKETS, PACKETS * (SIZE + added)]
        assert ([up, up_bytes] if direction == "up" else [down, down_bytes]) == expected

    def _fill(self, forwarder: Forwarder, direction: str, port: int) -> None:
        forwarder.stop()
        self._load.ask(direction, port, PACKETS, SIZE)


@pytest.fixture
def bench(listen: str, transceivers: int, flows: int, batch: int) -> Iterator[Bench]:
    """Started for one case and ended after it."""
    with (
        load_generator(transceivers) as load,
        relay_worker(listen, batch) as relay,
        null_forwarder(int(load.greeting[0]), batch) as null,
    ):
        CLOCK.measured = relay
        yield Bench(load, relay, null, flows)
        CLOCK.measured = None


@pytest.mark.benchmark(timer=CLOCK)
@pytest.mark.parametrize("batch", [32, 256])
@pytest.mark.parametrize(
    ("listen", "transceivers", "flows"),
    [
        ("127.0.0.1", 1, 1),
        ("127.0.0.1", 1, 256),
        ("127.0.0.1", 16, 256),
        ("0.0.0.0", 16, 256),
        ("127.0.0.1", 16, 9600),
    ],
)
@pytest.mark.parametrize("direction", ["up", "down"])
def test_forward(
    benchmark: BenchmarkFixture,
    bench: Bench,
    direction: str,
    listen: str,
    transceivers: int,
    flows: int,
    batch: int,
) -> None:
    """Equal packets, one direction; the time is the relay's CPU time for one drain."""
    relay_ns: list[float] = []
    null_ns: list[float] = []

    def prepare() -> None:
        null_ns.append(bench.null_ns())
        bench.fill_relay(direction)

    def finish() -> None:
        bench.check_arrival(direction, 38 if direction == "up" else 0)

    def drain() -> None:
        relay_ns.append(bench.relay.drain() / PACKETS)

    benchmark.group = f"{direction}, {PACKETS} packets of {SIZE} bytes: CPU time"
    benchmark.pedantic(  # type: ignore[no-untyped-call]
        drain, setup=prepare, teardown=finish, rounds=ROUNDS, warmup_rounds=WARMUP_ROUNDS
    )
    del relay_ns[:WARMUP_ROUNDS], null_ns[:WARMUP_ROUNDS]
    ratios = sorted(r / n for r, n in zip(relay_ns, null_ns, strict=True))
    benchmark.extra_info.update(
        relay_us=round(median(relay_ns) / 1e3, 3),
        null_us=round(median(null_ns) / 1e3, 3),
        ratio=round(median(ratios), 3),
        ratio_quartiles=[round(ratios[len(ratios) * q // 4], 3) for q in (1, 3)],
    )
