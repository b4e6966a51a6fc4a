"""A media engine on a loopback socket, and clients behind relays of their own: one socket, one flow key."""

from __future__ import annotations

import array
import asyncio
import ipaddress
import math
import os
import secrets
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from relay.wire import stun
from relay.wire.address import Endpoint
from relay.wire.spp import FlowKey, unwrap, wrap
from tests.support.rtp import Srtp, is_rtcp
from tests.support.stun import attribute, message
from transceiver.media import Frame, MediaConfig, MediaEngine, MediaSession, SrtpKeys
from transceiver.sockets import open_media

PWD, REMOTE = "passwordpassword12345678", "cli1"
RATE = 8_000
KEY_BYTES = {0x0001: (16, 14), 0x0007: (16, 12), 0x0008: (32, 12)}
"""Of keys and salts, by SRTP profile."""


def check(ufrag: str, *, pwd: str = PWD, nominates: bool = False) -> bytes:
    """A new check of that session."""
    attributes = [
        attribute(stun.USERNAME, f"{ufrag}:{REMOTE}".encode()),
        attribute(stun.ICE_CONTROLLING, bytes(8)),
    ]
    if nominates:
        attributes.append(attribute(stun.USE_CANDIDATE, b""))
    return message(*attributes, key=pwd.encode(), transaction_id=secrets.token_bytes(12))


class Handler:
    """Remembers what happened to a call."""

    def __init__(self) -> None:
        self.checks = 0
        self.dtls: list[bytes] = []
        self.sound = bytearray()
        self.reads = 0
        self.frames: list[Frame] = []
        self.digits = ""
        self.expired = False
        self.authentic = False

    def on_check(self, now_s: float) -> None:
        self.checks += 1

    def on_dtls(self, datagram: bytes, on_authentic: Callable[[], None], now_s: float) -> None:
        self.dtls.append(datagram)
        if self.authentic:
            on_authentic()

    def on_sound(self, pcm: bytes) -> None:
        self.sound += pcm
        self.reads += 1

    def on_frames(self, frames: list[Frame]) -> None:
        self.frames += frames

    def on_digit(self, digit: str) -> None:
        self.digits += digit

    def on_expired(self) -> None:
        self.expired = True


class Client:
    """A client with its keys, and its relay's socket. `to` is where it sends."""

    def __init__(self, to: tuple[Any, ...], profile: int = 0x0007) -> None:
        self.to = to
        self.socket = relay_socket()
        self.key = FlowKey(
            Endpoint.of("203.0.113.7", secrets.randbelow(60_000) + 1),
            Endpoint.of("192.0.2.1", 3478),
        )
        key_bytes, salt_bytes = KEY_BYTES[profile]
        up = os.urandom(key_bytes), os.urandom(salt_bytes)
        down = os.urandom(key_bytes), os.urandom(salt_bytes)
        self.server_keys = SrtpKeys(profile, *up, *down)
        self.srtp = Srtp(SrtpKeys(profile, *down, *up))
        self.sequence = 100
        self.timestamp = 1_000

    def send(
        self, payload: bytes, key: FlowKey | None = None, over: socket.socket | None = None
    ) -> None:
        """Sends a wrapped datagram; `over` another relay's socket."""
        (over or self.socket).sendto(wrap(key or self.key, payload), self.to)

    def receive(self, at: socket.socket | None = None) -> list[bytes]:
        """Everything that has come for this client, `at` another relay's socket."""
        found: list[bytes] = []
        for datagram in received(at or self.socket):
            unwrapped = unwrap(datagram)
            assert unwrapped is not None
            assert unwrapped[0] == self.key
            found.append(bytes(unwrapped[1]))
        return found

    def check(self, ufrag: str, **options: Any) -> None:
        """Sends a new check of that session."""
        self.send(check(ufrag, **options))

    def protected(self, payload: bytes, payload_type: int = 0, ssrc: int = 7) -> bytes:
        """The next packet of the client's stream, as SRTP."""
        header = struct.pack(
            "!BBHII", 0x80, payload_type, self.sequence & 0xFFFF, self.timestamp & 0xFFFFFFFF, ssrc
        )
        self.sequence += 1
        self.timestamp += len(payload)
        return bytes(self.srtp.tx.protect(header + payload))

    def rtp(self, payload: bytes, payload_type: int = 0, ssrc: int = 7) -> None:
        """Sends the next packet."""
        self.send(self.protected(payload, payload_type, ssrc))

    def opened(self) -> list[bytes]:
        """The RTP packets that have come, decrypted."""
        media = [d for d in self.receive() if d[0] >= 128 and not is_rtcp(d)]
        return [bytes(self.srtp.rx.unprotect(datagram)) for datagram in media]


class Bench:
    """A running engine on a socket of its own. Made on the event loop; close it."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        *,
        direct: bool = False,
        relays: str = "127.0.0.0/8",
        wake_ms: int = 20,
    ) -> None:
        self.socket = open_media(host, 0)
        self.engine = MediaEngine(
            self.socket,
            max_sessions=8,
            allowed_relays=[ipaddress.ip_network(relays)],
            direct=direct,
            wake_ms=wake_ms,
        )
        self.clients: list[Client] = []
        self.engine.start(asyncio.get_running_loop(), yield_cpu=False)

    def close(self) -> None:
        """Ends the engine and closes every socket."""
        self.engine.stop()
        for opened in (self.socket, *(client.socket for client in self.clients)):
            opened.close()

    def open(self, **config: object) -> tuple[MediaSession, Handler, str]:
        """A session, its handler and its ufrag."""
        ufrag = secrets.token_hex(14)
        handler = Handler()
        values: dict[str, Any] = {
            "codec": "pcmu",
            "payload_types": {"pcmu": 0},
            "ssrc": 99,
            "cname": "voice",
            "rate_hz": RATE,
            "event_payload_type": 101,
            **config,
        }
        session = self.engine.open(ufrag, PWD, REMOTE, MediaConfig(**values), handler)
        return session, handler, ufrag

    def client(self, profile: int = 0x0007) -> Client:
        """A client that knows this engine."""
        self.clients.append(Client(("127.0.0.1", self.socket.getsockname()[1]), profile))
        return self.clients[-1]

    async def connected(self, client: Client, **config: object) -> tuple[MediaSession, Handler]:
        """A session of this client, with keys."""
        session, handler, ufrag = self.open(**config)
        client.check(ufrag)
        await until(lambda: handler.checks == 1)
        await self.came_round()
        client.receive()
        session.set_keys(client.server_keys)
        return session, handler

    def counted(self) -> Counter[str]:
        """Every datagram so far by its outcome: drops, checks, and packets taken."""
        counts = self.engine.counts()
        taken = {name: counts[name] for name in ("rtp_in", "rtcp_in", "dtls_in")}
        return Counter({**counts["drops"], **counts["checks"], **taken})

    async def outcome(self, *datagrams: bytes, over: socket.socket, host: str = "") -> Counter[str]:
        """Sends these as they are, and returns exactly what was counted for them; answers are there by then."""
        before, count = self.counted(), self.engine.counts()["received"]
        port = self.socket.getsockname()[1]
        for datagram in datagrams:
            over.sendto(datagram, (host or "127.0.0.1", port))
        await until(lambda: self.engine.counts()["received"] == count + len(datagrams))
        await self.came_round()
        return self.counted() - before

    async def came_round(self) -> None:
        """Until all that the engine has received, or was told, by now is counted, and what follows from it has
        left: it sends at the end of each round, of which the one under way may have looked at its socket already.
        """
        looks = self.engine.counts()["receive_calls"]
        await until(lambda: self.engine.counts()["receive_calls"] >= looks + 2)


def relay_socket() -> socket.socket:
    """A socket on loopback, non-blocking."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.bind(("127.0.0.1", 0))
    opened.setblocking(False)
    return opened


def received(at: socket.socket) -> list[bytes]:
    """Everything that waits there."""
    found: list[bytes] = []
    while True:
        try:
            found.append(at.recv(65_536))
        except BlockingIOError:
            return found


async def until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Waits for a condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.005)


def tone(samples: int, first: int = 0) -> bytes:
    """400 Hz at RATE."""
    return array.array(
        "h", [int(8_000 * math.sin(2 * math.pi * 400 * (first + i) / RATE)) for i in range(samples)]
    ).tobytes()


def loudness(pcm: bytes) -> float:
    """The root of the mean square."""
    samples = array.array("h", pcm)
    return math.sqrt(sum(s * s for s in samples) / max(1, len(samples)))
