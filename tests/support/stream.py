"""A steady stream of numbered media packets through a relay, and what became of them.

1. Each packet says when it was sent; the receiver has the kernel's time of arrival (SO_TIMESTAMPNS),
   so neither end's own delays are taken for the relay's.
2. Silence is the longest time that a packet took: what waits in a socket while nobody forwards waits
   that long.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from relay.wire.spp import HEADER_BYTES
from tests.support.relayed import Client, Transceiver

SO_TIMESTAMPNS = 35
SO_RCVBUFFORCE = 33
BUFFER_BYTES = 64 << 20
BURST_S = 0.001
LATE_S = 5
SWITCH_S = 0.0001
"""How long one end may keep the other from running, between taking the time and sending."""
_STAMP = struct.Struct("!2sxxQQ")
_PAD = bytes(172 - _STAMP.size)


@dataclass(frozen=True)
class Outcome:
    """What became of a stream."""

    sent: int
    received: int
    duplicates: int
    silence_s: float
    """The longest way through the relay."""

    @property
    def lost(self) -> int:
        """Packets that never arrived."""
        return self.sent - self.received


class Stream:
    """A context manager that sends from an established client while it is open; then `outcome`."""

    def __init__(
        self, client: Client, relay: tuple[str, int], transceiver: Transceiver, per_s: int
    ) -> None:
        self._client = client
        self._relay = relay
        self._transceiver = transceiver
        self._burst = max(1, round(per_s * BURST_S))
        self._pause_s = self._burst / per_s
        self._stop = threading.Event()
        self._sent = 0
        self._seen: set[int] = set()
        self._duplicates = 0
        self._silence_ns = 0
        receiver = transceiver.socket
        receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        for option in (SO_RCVBUFFORCE, socket.SO_RCVBUF):
            with contextlib.suppress(PermissionError):
                receiver.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
                break
        self._threads = [threading.Thread(target=run) for run in (self._send, self._receive)]

    @property
    def sent(self) -> int:
        """Packets sent so far."""
        return self._sent

    @property
    def outcome(self) -> Outcome:
        """Valid once the stream has been closed."""
        return Outcome(self._sent, len(self._seen), self._duplicates, self._silence_ns / 1e9)

    def __enter__(self) -> Self:
        self._transceiver.socket.settimeout(1.0)
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        sys.setswitchinterval(self._switch_s)

    def _send(self) -> None:
        due_s = time.monotonic()
        while not self._stop.is_set():
            for _ in range(self._burst):
                packet = _STAMP.pack(b"\x80\x6f", self._sent, time.time_ns()) + _PAD
                self._client.socket.sendto(packet, self._relay)
                self._sent += 1
            due_s += self._pause_s
            time.sleep(max(0.0, due_s - time.monotonic()))

    def _receive(self) -> None:
        """Until a second has passed without a packet after the last was sent; while some are missing, until
        LATE_S have: a worker that gets no CPU for so long has lost nothing.
        """
        quiet_s = 0
        while True:
            try:
                data, control, _, _ = self._transceiver.socket.recvmsg(2048, 64)
            except TimeoutError:
                quiet_s += self._stop.is_set()
                if quiet_s >= (1 if len(self._seen) == self._sent else LATE_S):
                    return
                continue
            quiet_s = 0
            if len(data) != HEADER_BYTES + 172:
                continue
            _, number, sent_ns = _STAMP.unpack_from(data, HEADER_BYTES)
            seconds, nanoseconds = struct.unpack("=qq", control[0][2])
            self._duplicates += number in self._seen
            self._seen.add(number)
            took_ns = seconds * 1_000_000_000 + nanoseconds - sent_ns
            self._silence_ns = max(self._silence_ns, took_ns)
