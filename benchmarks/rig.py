"""A relay with established flows, a null forwarder beside it, and the generator that loads both."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
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
Verb = Literal["up", "down", "down-runs"]
"""As `loadgen` knows them."""


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
    """Modes of the null forwarders, with a plus between them."""


@dataclass(frozen=True)
class Fill:
    """So many packets into the socket of one program, and what must become of them."""

    verb: Verb
    forwarders: Sequence[Forwarder]
    port: int
    packets: int
    arrives: Direction
    added: int
    """Bytes by which each is longer when it arrives."""


class Rig:
    """All of them, started for one case."""

    def __init__(
        self,
        load: Load,
        generator: Program,
        relays: Sequence[Forwarder],
        nulls: Mapping[str, Forwarder],
    ) -> None:
        self.load = load
        self.generator = generator
        self.relays = relays
        self.nulls = nulls
        self.null = next(iter(nulls.values()))
        self.public_port, self.internal_port = map(int, relays[0].greeting)
        self.null_port = int(self.null.greeting[0])
        ports = [int(port) for port in generator.greeting]
        generator.ask("ufrags", *seal(ports, count=len(ports)))
        established = generator.ask("establish", self.public_port, load.flows)
        assert established == [load.flows], established

    def relay_fills(self, direction: str, packets: int = PACKETS) -> list[Fill]:
        """What `drain` does to the relay: "up", "down", "down-runs", or half of each for "both"."""
        if direction == "both":
            return self.relay_fills("up", packets // 2) + self.relay_fills("down", packets // 2)
        if direction == "up":
            return [Fill("up", self.relays, self.public_port, packets, "up", 38)]
        port = self.internal_port if len(self.relays) == 1 else 0
        verb: Verb = "down-runs" if direction == "down-runs" else "down"
        return [Fill(verb, self.relays, port, packets, "down", -38)]

    def null_fills(self, direction: str, packets: int = PACKETS) -> list[Fill]:
        """The same for null forwarders: plain up, fanning out down."""
        if direction == "both":
            return self.null_fills("up", packets // 2) + self.null_fills("down", packets // 2)
        if direction == "up":
            return [self.null_fill("up", "plain", packets, arrives="up")]
        verb: Verb = "down-runs" if direction == "down-runs" else "down"
        return [self.null_fill(verb, "fanout", packets, arrives="down", added=-38)]

    def null_fill(
        self, verb: Verb, mode: str, packets: int, *, arrives: Direction, added: int = 0
    ) -> Fill:
        """Of the null forwarder in that mode."""
        null = self.nulls[mode]
        return Fill(verb, [null], int(null.greeting[0]), packets, arrives, added)

    def drain_relay(self, direction: str, sizes: object, packets: int = PACKETS) -> float:
        """CPU nanoseconds per packet of the relay in one drain; every packet must arrive."""
        return self.drain(self.relay_fills(direction, packets), sizes)

    def drain_null(
        self,
        direction: Verb,
        sizes: object,
        packets: int = PACKETS,
        *,
        arrives: Direction,
        added: int = 0,
    ) -> float:
        """The same of the first null forwarder, whose datagrams arrive `added` bytes longer."""
        mode = next(iter(self.nulls))
        fill = self.null_fill(direction, mode, packets, arrives=arrives, added=added)
        return self.drain([fill], sizes)

    def drain(self, fills: Sequence[Fill], sizes: object) -> float:
        """All fills at once: CPU nanoseconds per packet of their forwarders together."""
        forwarders = list(dict.fromkeys(f for fill in fills for f in fill.forwarders))
        for forwarder in forwarders:
            forwarder.stop()
        expected = {"up": [0, 0], "down": [0, 0]}
        for fill in fills:
            sent, sent_bytes = self.generator.ask(fill.verb, fill.port, fill.packets, sizes)
            expected[fill.arrives][0] += sent
            expected[fill.arrives][1] += sent_bytes + fill.added * sent
        cpu_ns = sum(forwarder.resume() for forwarder in forwarders)
        for forwarder in forwarders:
            forwarder.await_sleep()
        cpu_ns = sum(forwarder.cpu_ns() for forwarder in forwarders) - cpu_ns
        arrived = self.generator.ask("collect")
        assert arrived == expected["up"] + expected["down"], (arrived, expected)
        return cpu_ns / sum(fill.packets for fill in fills)


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
        nulls = {
            mode: stack.enter_context(null_forwarder(int(generator.greeting[0]), load.batch, mode))
            for mode in load.null.split("+")
        }
        yield Rig(load, generator, relays, nulls)
