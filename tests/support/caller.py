"""A caller with a thread of its own: ICE from any of its addresses, DTLS-SRTP, numbered packets, a diary.

1. It sends one numbered packet every 20 ms from its selected path, and the echo brings each back, so a
   gap, a loss and a stranger's packet are facts of the diary and not of a statistic.
2. It shares the server's DTLS code and codecs, not its sockets and not its ICE.
3. A path checks every `check_interval_s` like a browser's, ten times as often until it is first answered,
   and never repeats a transaction id unless `resend` says so.
4. What a test changes while it runs are plain attributes of `Caller` and `CallerPath`.
"""

from __future__ import annotations

import itertools
import os
import re
import select
import socket
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from relay.wire import stun
from relay.wire._codec import StunClass
from relay.wire.address import Endpoint
from relay.wire.spp import FlowKey
from tests.support.lab import Host, TransceiverHost
from tests.support.offers import CHROMIUM, join, split
from tests.support.relayed import wait_until
from tests.support.rtp import RtpPacket, SrtpDtls, is_rtcp, read_rtp, write_rtp
from transceiver.dtls import Identity, Phase
from transceiver.offer import Fingerprint

PACKET_S = 0.02
PAYLOAD_BYTES = 160
POLL_S = 0.05
PAYLOAD_TYPE = 111
CONNECT_TIMEOUT_S = 20.0
LATER_S = 0.5
LAST_ECHO_S = 10.0
"""What has not come back by then never does."""

_IDENTITY = Identity.generate()
_SESSION, _AUDIO = split(CHROMIUM)[:2]
_REMOTE_UFRAG = _AUDIO.split("a=ice-ufrag:", 1)[1].split("\r\n", 1)[0]
_OFFER = re.sub(
    r"fingerprint:sha-256 \S+",
    f"fingerprint:sha-256 {_IDENTITY.fingerprint_sha256}",
    join(_SESSION.replace("BUNDLE 0 1", "BUNDLE 0"), _AUDIO),
)
_NUMBER = struct.Struct("!BxxxQ")


@dataclass(eq=False)
class CallerPath:
    """One of the caller's sockets and where it sends."""

    socket: socket.socket
    remote: tuple[str, int]
    checks: bool = True
    """Whether it sends checks."""
    nominates: bool = True
    """Whether its checks carry USE-CANDIDATE."""
    answered_s: list[float] = field(default_factory=list)
    """When a success came."""
    refused: int = 0
    """Errors that came."""
    heard: int = 0
    """Packets of the echo that came here."""
    other_source: int = 0
    """Datagrams that did not come from `remote`."""
    send_errors: int = 0
    next_check_s: float = 0.0
    waiting: dict[bytes, float] = field(default_factory=dict)

    @property
    def address(self) -> tuple[str, int]:
        """Where it is bound."""
        host, port = self.socket.getsockname()[:2]
        return host, port

    @property
    def flow(self) -> FlowKey:
        """What a relay knows it by."""
        return FlowKey(Endpoint.of(*self.address), Endpoint.of(*self.remote))


@dataclass(frozen=True)
class Outcome:
    """What became of the packets sent in some span of time."""

    sent: int
    lost: int
    gap_s: float
    """The longest time in which nothing was heard."""


class Caller:
    """A context manager: the call is placed on entering, and ended on exit unless the caller vanished."""

    def __init__(
        self,
        host: Host,
        transceiver: TransceiverHost,
        *local: tuple[str, int],
        remotes: Sequence[tuple[str, int]] = (),
        check_interval_s: float = 1.0,
        payload_bytes: int = PAYLOAD_BYTES,
        burst: int = 1,
        selected: int = 0,
        nominate_all: bool = True,
        check_all: bool = True,
    ) -> None:
        """A path from each of the `local` addresses (by default the host's), to the remote of the same
        index, else to the answer's candidate of its family. `nominate_all` False: only the selected one;
        `check_all` False: the others do not even check before they are told to. Packets leave `burst` at a time, at the same rate.
        """
        self.host = host
        self.transceiver = transceiver
        self.location = ""
        self.paths: list[CallerPath] = []
        self.selected = selected
        """The index of the path that media and DTLS take."""
        self.muted = False
        self.check_interval_s = check_interval_s
        self.resend = False
        """Unanswered checks are repeated as they were."""
        self.sent_s: list[float] = []
        self.heard_s: dict[int, float] = {}
        self.timeline_s: dict[str, float] = {}
        """When it was placed, and first had an answer, a checked path (ice), dtls and sound: monotonic."""
        self.foreign = 0
        """SRTP and SRTCP datagrams that were not authentic: somebody else's."""
        self._payload_bytes = payload_bytes
        self._burst = burst
        self._local = local or ((host.address, 0),)
        self._remotes = remotes
        self._nominate_all = nominate_all
        self._check_all = check_all
        self._authorized = {"Authorization": f"Bearer {transceiver.bearer}"}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="caller")
        self._dtls: SrtpDtls
        self._username = b""
        self._key = b""
        self._next_packet_s = 0.0
        self._failure: BaseException | None = None

    # What a test asks

    @property
    def connected(self) -> bool:
        """Whether DTLS is through."""
        return self._dtls.phase is Phase.CONNECTED

    def wait_connected(self, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        """Until packets come back."""
        wait_until(lambda: self.heard_s or self._failure, "connected, with sound", timeout_s)
        assert self._failure is None, self._failure

    def wait_handshake(self, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        """Until DTLS is through on this side."""
        wait_until(lambda: self.connected or self._failure, "connected", timeout_s)
        assert self._failure is None, self._failure

    def wait_checked(self) -> None:
        """Until every path has been answered."""
        wait_until(lambda: all(path.answered_s for path in self.paths), "all paths answered")

    def check_rarely(self, interval_s: float) -> None:
        """From now on; the checks that were due earlier are over when this returns."""
        self.check_interval_s = interval_s
        # An unanswered path's next check is a tenth of it away.
        due_s = time.monotonic() + interval_s / 20
        checking = [path for path in self.paths if path.checks]
        wait_until(lambda: all(path.next_check_s > due_s for path in checking), "rare checks")

    def settled(self, since_s: float, until_s: float) -> Outcome:
        """The outcome of a span that is over, once what was sent in it has come back or been overtaken: a packet that
        was sent LATER_S after it has come back. At most LAST_ECHO_S later.
        """
        deadline_s = time.monotonic() + LAST_ECHO_S
        while (outcome := self.outcome(since_s, until_s)).lost and time.monotonic() < deadline_s:
            if any(self.sent_s[n] > until_s + LATER_S for n in list(self.heard_s)):
                return self.outcome(since_s, until_s)
            time.sleep(POLL_S)
        return outcome

    def outcome(self, since_s: float, until_s: float) -> Outcome:
        """Of the packets sent in a span of the monotonic clock, as far as they have come back; see `settled`."""
        numbers = [n for n, at_s in enumerate(self.sent_s) if since_s <= at_s <= until_s]
        heard = [n for n in numbers if n in self.heard_s]
        times = sorted(at_s for at_s in list(self.heard_s.values()) if since_s <= at_s <= until_s)
        edges = [since_s, *times, until_s]
        gap_s = max(later - earlier for earlier, later in itertools.pairwise(edges))
        return Outcome(len(numbers), len(numbers) - len(heard), gap_s)

    def observe(self, seconds: float) -> Outcome:
        """What becomes of the packets of the next seconds."""
        since_s = time.monotonic()
        time.sleep(seconds)
        return self.settled(since_s, time.monotonic())

    def wait_heard_again(self, timeout_s: float) -> float:
        """Seconds until the next packet that is sent from now on comes back."""
        since_s = time.monotonic()
        first = len(self.sent_s)
        wait_until(lambda: any(n >= first for n in list(self.heard_s)), "heard again", timeout_s)
        return time.monotonic() - since_s

    # Life

    def __enter__(self) -> Caller:
        self._mark("placed")
        status, answer, self.location = self.host.request(
            self.transceiver.http,
            "POST",
            "/v1/realtime/calls",
            _OFFER,
            **{"Content-Type": "application/sdp", **self._authorized},
        )
        assert status == 201, (status, answer)
        self._mark("answer")
        self._username = f"{_field(answer, 'a=ice-ufrag:')}:{_REMOTE_UFRAG}".encode()
        self._key = _field(answer, "a=ice-pwd:").encode()
        fingerprint = Fingerprint("sha-256", _field(answer, "a=fingerprint:sha-256 "))
        self._dtls = SrtpDtls(_IDENTITY, "server", [fingerprint], self._send)
        candidates = re.findall(r"a=candidate:\d+ 1 udp \d+ (\S+) (\d+) typ host", answer)
        for index, address in enumerate(self._local):
            remote = (
                self._remotes[index]
                if self._remotes
                else next(
                    (c[0], int(c[1])) for c in candidates if (":" in c[0]) == (":" in address[0])
                )
            )
            path = CallerPath(self.host.udp(*address), remote)
            path.nominates = self._nominate_all or index == self.selected
            path.checks = self._check_all or index == 0
            path.next_check_s = time.monotonic() + 0.01 * index
            self.paths.append(path)
        self._dtls.begin(time.monotonic())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._stop.is_set():
            self.hang_up()
        self.vanish()

    def vanish(self) -> None:
        """Stop and close the sockets; nothing is said to the server."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        for path in self.paths:
            path.socket.close()

    def hang_up(self) -> int:
        """DELETE of the call; the HTTP status."""
        at = self.transceiver.http
        return self.host.request(at, "DELETE", self.location, **self._authorized)[0]

    # Inside

    def _mark(self, stage: str) -> None:
        self.timeline_s.setdefault(stage, time.monotonic())

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._step()
        except BaseException as error:
            self._failure = error
            raise

    def _step(self) -> None:
        now_s = time.monotonic()
        due_s = now_s + POLL_S
        for path in self.paths:
            if path.checks:
                if path.next_check_s <= now_s:
                    self._check(path, now_s)
                due_s = min(due_s, path.next_check_s)
        self._dtls.poll(now_s)
        if self.connected and not self.muted:
            if now_s - self._next_packet_s > 1:
                self._next_packet_s = now_s
            while self._next_packet_s <= now_s:
                for _ in range(self._burst):
                    self._send_packet()
                self._next_packet_s += PACKET_S * self._burst
            due_s = min(due_s, self._next_packet_s)
        sockets = {path.socket: path for path in self.paths}
        readable, _, _ = select.select(list(sockets), [], [], max(0.0, due_s - time.monotonic()))
        for ready in readable:
            for _ in range(64):
                try:
                    data, source = ready.recvfrom(65536)
                except (BlockingIOError, ConnectionError):
                    break
                self._receive(sockets[ready], data, source[:2])

    def _check(self, path: CallerPath, now_s: float) -> None:
        interval_s = self.check_interval_s if path.answered_s else self.check_interval_s / 10
        path.next_check_s = now_s + interval_s
        if self.resend and path.waiting:
            transaction_id = next(iter(path.waiting))
        else:
            transaction_id = os.urandom(12)
        attributes = [(stun.USERNAME, self._username), (stun.ICE_CONTROLLING, bytes(8))]
        if path.nominates:
            attributes.append((stun.USE_CANDIDATE, b""))
        path.waiting[transaction_id] = now_s
        check = stun.encode(StunClass.REQUEST, transaction_id, attributes, key=self._key)
        self._send_by(path, check)

    def _send_packet(self) -> None:
        number = len(self.sent_s)
        payload = _NUMBER.pack(0x78, number).ljust(self._payload_bytes, b"\x55")
        packet = RtpPacket(
            PAYLOAD_TYPE, number == 0, number & 0xFFFF, number * 960 & 0xFFFFFFFF, 0x1234, payload
        )
        datagram = self._dtls.protect(write_rtp(packet))
        assert datagram is not None
        self.sent_s.append(time.monotonic())
        self._send(datagram)

    def _send(self, datagram: bytes) -> None:
        self._send_by(self.paths[self.selected], datagram)

    def _send_by(self, path: CallerPath, datagram: bytes) -> None:
        try:
            path.socket.sendto(datagram, path.remote)
        except OSError:
            path.send_errors += 1

    def _receive(self, path: CallerPath, data: bytes, source: tuple[str, int]) -> None:
        now_s = time.monotonic()
        path.other_source += source != path.remote
        if data[0] <= 3:
            message = stun.Message.read(data)
            if path.waiting.pop(message.transaction_id, None) is None:
                return
            assert message.verify(self._key)
            if message.stun_class == StunClass.SUCCESS:
                path.answered_s.append(now_s)
                self._mark("ice")
            else:
                path.refused += 1
        elif data[0] < 64:
            self._dtls.receive(data, now_s)
            if self.connected:
                self._mark("dtls")
        elif is_rtcp(data):
            self.foreign += self._dtls.unprotect_rtcp(data) is None
        else:
            plain = self._dtls.unprotect(data)
            packet = plain and read_rtp(plain)
            if not packet:
                self.foreign += 1
                return
            number = _NUMBER.unpack_from(packet.payload)[1]
            path.heard += 1
            self._mark("sound")
            self.heard_s.setdefault(number, now_s)


def _field(text: str, start: str) -> str:
    return text.split(start, 1)[1].split("\r\n", 1)[0]
