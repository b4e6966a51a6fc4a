"""A client without patience: one check, DTLS, SCTP and the first event, as fast as a machine can.

What a browser's ICE ticks and a stock client's event loop add to a set-up is left out, so that
what is left is the server's. It shares the server's DTLS code, not its sockets.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any

import aiohttp

from relay.wire import stun
from relay.wire._codec import StunClass
from tests.support.calls import post_offer
from tests.support.offers import CHROMIUM
from transceiver.dtls import Dtls, Identity, Phase, Sctp
from transceiver.offer import Fingerprint

TIMEOUT_S = 10.0
RESEND_S = 0.1
_IDENTITY = Identity.generate()
OFFER = re.sub(
    r"fingerprint:sha-256 \S+", f"fingerprint:sha-256 {_IDENTITY.fingerprint_sha256}", CHROMIUM
)


class RawCall(asyncio.DatagramProtocol):
    """One call; `timeline_s` has the moments of offer, answer, ice, dtls and event."""

    def __init__(self, answer: str, timeline_s: dict[str, float]) -> None:
        self.timeline_s = timeline_s
        self.events: list[dict[str, Any]] = []
        self.heard = asyncio.Event()
        self.location = ""
        self._max_message_bytes = int(_field(answer, "a=max-message-size:"))
        self._ufrag = _field(answer, "a=ice-ufrag:")
        self._pwd = _field(answer, "a=ice-pwd:").encode()
        fingerprint = Fingerprint("sha-256", _field(answer, "a=fingerprint:sha-256 "))
        self._dtls = Dtls(_IDENTITY, "server", [fingerprint], self._send)
        self._sctp: Sctp | None = None
        self._transport: asyncio.DatagramTransport | None = None
        self._arrived = asyncio.Event()

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport
        self._dtls.begin(time.monotonic())
        self._persist()

    def _persist(self) -> None:
        """Says again what a busy machine may have lost, until the handshake is over."""
        if self._sctp is not None or self._transport is None:
            return
        if "ice" not in self.timeline_s:
            self._check()
        self._dtls.poll(time.monotonic())
        asyncio.get_running_loop().call_later(RESEND_S, self._persist)

    def _check(self) -> None:
        name = f"{self._ufrag}:{_field(OFFER, 'a=ice-ufrag:')}".encode()
        attributes = [
            (stun.USERNAME, name),
            (stun.ICE_CONTROLLING, bytes(8)),
            (stun.USE_CANDIDATE, b""),
        ]
        tid = time.monotonic_ns().to_bytes(12)
        self._send(stun.encode(StunClass.REQUEST, tid, attributes, key=self._pwd))

    def datagram_received(self, data: bytes, addr: Any) -> None:
        if data[0] <= 3:
            self._mark("ice")
        elif data[0] < 64:
            self._dtls.receive(data, time.monotonic())
            if self._dtls.phase is Phase.CONNECTED and self._sctp is None:
                self._mark("dtls")
                self._sctp = Sctp(
                    self._dtls,
                    on_channel=lambda: None,
                    on_message=self._on_message,
                    on_end=lambda reason: None,
                )
                self._sctp.negotiate_channel()
                self._sctp.begin(5_000, self._max_message_bytes)

    def send_event(self, event: dict[str, Any]) -> None:
        """Sends one event to the server."""
        assert self._sctp is not None
        self._sctp.send_text(json.dumps(event))

    def close(self) -> None:
        """Says close_notify and closes the socket."""
        if self._sctp is not None:
            self._sctp.close()
        self._dtls.close()
        if self._transport is not None:
            self._transport.close()

    def _send(self, datagram: bytes) -> None:
        if self._transport is not None:
            self._transport.sendto(datagram)

    def _on_message(self, text: str | bytes) -> None:
        self._mark("event")
        self.events.append(json.loads(text))
        self.heard.set()
        self._arrived.set()

    async def event(self, kind: str, since: int = 0) -> dict[str, Any]:
        """The first event of this type, from the `since`-th event on, once it is there."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                for event in self.events[since:]:
                    if event["type"] == kind:
                        return event
                self._arrived.clear()
                await self._arrived.wait()

    def _mark(self, stage: str) -> None:
        self.timeline_s.setdefault(stage, time.monotonic())


async def raw_call(http: aiohttp.ClientSession) -> RawCall:
    """Places one call and returns when its first event is there."""
    timeline_s = {"offer": time.monotonic()}
    status, answer, _ = await post_offer(http, OFFER, path="/v1/realtime/calls?dcid=0")
    assert status == 201, answer
    timeline_s["answer"] = time.monotonic()
    found = re.search(r"a=candidate:1 1 udp \d+ (\S+) (\d+) typ host", answer)
    assert found is not None
    _, call = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: RawCall(answer, timeline_s), remote_addr=(found[1], int(found[2]))
    )
    async with asyncio.timeout(TIMEOUT_S):
        await call.heard.wait()
    return call


def _field(text: str, start: str) -> str:
    return text.split(start, 1)[1].split("\r\n", 1)[0]
