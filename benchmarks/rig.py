"""A relay with established flows, a null forwarder beside it, and the generator that loads both."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Literal

from benchmarks.programs import Forwarder, Program, load_generator, null_forwarder, relay_worker
from benchmarks.relay_process import KEY
from relay.wire.keyring import Keyring
from relay.wire.token import TokenCodec, TransceiverAddress

PACKETS = 8192
"""In one drain."""

PACKET_MEMORY_BYTES = 2304
"""What the kernel counts for a packet of up to 1,200 bytes in a receive buffer, at most."""

SO_RCVBUFFORCE = 33

Direction = Literal["up", "down"]


@dataclass(frozen=True)
class Load:
    """What a case is made of."""

    transceivers: int = 1
    flows: int = 256
    listen: str = "127.0.0.1"
    batch: int = 256
    workers: int = 1
    coalesce_us: int = 0
    null: str = "plain"
    """Mode of the null forwarder."""


class Rig:
    """All of them, started for one case."""

    def __init__(
        self, load: Load, generator: Program, relays: Sequence[Forwarder], null: Forwarder
    ) -> None:
        self.generator = generator
        self.relays = relays
        self.null = null
        self.public_port, self.internal_port = map(int, relays[0].greeting)
        self.null_port = int(null.greeting[0])
        ports = [int(port) for port in generator.greeting]
        generator.ask("ufrags", *seal(ports, count=len(ports)))
        established = generator.ask("establish", self.public_port, load.flows)
        assert established == [load.flows], established

    def drain_relay(self, direction: Direction, sizes: object, packets: int = PACKETS) -> float:
        """CPU nanoseconds per packet of the relay in one drain; every packet must arrive."""
        port = self.public_port if direction == "up" else self.internal_port
        added = 38 if direction == "up" else -38
        return self._drain(self.relays, direction, port, sizes, packets, added)

    def drain_null(
        self,
        direction: Direction,
        sizes: object,
        packets: int = PACKETS,
        *,
        arrives: Direction,
        added: int = 0,
    ) -> float:
        """The same of the null forwarder, whose datagrams arrive `added` bytes longer."""
        return self._drain(
            [self.null], direction, self.null_port, sizes, packets, added, arrives=arrives
        )

    def _drain(
        self,
        forwarders: Sequence[Forwarder],
        direction: Direction,
        port: int,
        sizes: object,
        packets: int,
        added: int,
        *,
        arrives: Direction | None = None,
    ) -> float:
        for forwarder in forwarders:
            forwarder.stop()
        sent, sent_bytes = self.generator.ask(direction, port, packets, sizes)
        cpu_ns = sum(forwarder.resume() for forwarder in forwarders)
        for forwarder in forwarders:
            forwarder.await_sleep()
        cpu_ns = sum(forwarder.cpu_ns() for forwarder in forwarders) - cpu_ns
        up, up_bytes, down, down_bytes = self.generator.ask("collect")
        arrived = (up, up_bytes) if (arrives or direction) == "up" else (down, down_bytes)
        assert arrived == (sent, sent_bytes + added * sent), (arrived, sent, sent_bytes)
        return cpu_ns / packets


def why_not() -> str | None:
    """Why nothing can be measured here, or None: a drain must fit a socket's receive buffer."""
    needed = PACKETS * PACKET_MEMORY_BYTES
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for option in (SO_RCVBUFFORCE, socket.SO_RCVBUF):
            try:
                probe.setsockopt(socket.SOL_SOCKET, option, needed)
                break
            except PermissionError:
                continue
        if probe.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= needed:
            return None
    return f"the receive buffer is too small: root, or sysctl net.core.rmem_max={needed}, is needed"


def seal(ports: Sequence[int], count: int, keyring: Keyring | None = None) -> list[str]:
    """`count` ufrags of cluster 1, of the transceivers at these ports in turn."""
    codec = TokenCodec(keyring or Keyring.parse(f"0:{KEY.hex()}\n"))
    return [
        codec.seal(TransceiverAddress(1, IPv4Address("127.0.0.1"), ports[i % len(ports)]))
        for i in range(count)
    ]


@contextmanager
def rig(load: Load) -> Iterator[Rig]:
    """Starts everything, establishes the flows, and ends everything."""
    if reason := why_not():
        raise RuntimeError(reason)
    with ExitStack() as stack:
        generator = stack.enter_context(load_generator(load.transceivers))
        relays = [
            stack.enter_context(relay_worker(load.listen, load.batch, coalesce_us=load.coalesce_us))
        ]
        for cpu in range(1, load.workers):
            port = int(relays[0].greeting[0])
            relays.append(
                stack.enter_context(relay_worker(load.listen, load.batch, port=port, cpu=-1 - cpu))
            )
        null = stack.enter_context(
            null_forwarder(int(generator.greeting[0]), load.batch, load.null)
        )
        yield Rig(load, generator, relays, null)
