"""A client without patience that also talks: G.711 frames on a clock of their own, each arrival with its moment.

1. G.711 makes a frame's loudness readable from its bytes: no codec's delay is in what is measured.
2. It says what a test tells it, frame by frame; silence otherwise.
3. Times are those of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from pylibsrtp import Policy, Session

from tests.support.rawcall import OFFER, TIMEOUT_S, RawCall
from transceiver.media import SrtpKeys

FRAME_S = 0.02
CONSENT_INTERVAL_S = 5.0
"""Of checks alone (RFC 7675, 5.1)."""
FRAME_SAMPLES = 160
SILENCE = b"\xff" * FRAME_SAMPLES
LOUD = (b"\x9f" * 8 + b"\x1f" * 8) * (FRAME_SAMPLES // 16)
"""A square wave of 500 Hz at a quarter of full scale."""
PAYLOAD_TYPE = 0
_SSRC = 0x5EED
_MEDIA_OFFER = re.sub(r"(m=audio \d+ \S+) .*", rf"\1 {PAYLOAD_TYPE}", OFFER)


def is_loud(payload: bytes) -> bool:
    """Whether a μ-law frame holds more than a whisper: 8 samples beyond an eighth of full scale (G.711, table 2a)."""
    return sum((code ^ 0xFF) & 0x70 >= 0x50 for code in payload) >= 8


class RawMediaCall(RawCall):
    """A call that talks and listens."""

    def __init__(self, answer: str, timeline_s: dict[str, float]) -> None:
        super().__init__(answer, timeline_s)
        self.arrivals: list[tuple[float, bool]] = []
        """When each frame of the server's came, and whether it was loud."""
        self.first_loud = asyncio.Event()
        self.speaking_until_s = 0.0
        self.spoke_s: float | None = None
        """When the first loud frame since `speak` left."""
        self._sent = 0
        self._inbound: Session | None = None
        self._outbound: Session | None = None
        self._task: asyncio.Task[None] | None = None

    def datagram_received(self, data: bytes, addr: Any) -> None:
        """See RawCall."""
        if data[0] < 128:
            super().datagram_received(data, addr)
            if self._inbound is None and self._dtls.srtp_keys is not None:
                self._start_media(self._dtls.srtp_keys)
        elif self._inbound is not None and not 192 <= data[1] <= 223:
            now_s = time.monotonic()
            loud = is_loud(self._inbound.unprotect(data)[12:])
            self.arrivals.append((now_s, loud))
            if loud and not self.first_loud.is_set():
                self._mark("first_loud")
                self.first_loud.set()

    def speak(self, seconds: float) -> None:
        """Says something loud for so long, from the next frame on."""
        self.spoke_s = None
        self.speaking_until_s = time.monotonic() + seconds

    def mute_packets(self) -> None:
        """Sends no more frames, only checks."""
        assert self._task is not None
        self._task.cancel()
        self._task = asyncio.create_task(self._check_on())

    def go_on(self) -> None:
        """Sends frames again, as after a pause."""
        assert self._task is not None
        self._task.cancel()
        self._task = asyncio.create_task(self._talk())

    def vanish(self) -> None:
        """Falls silent for good without a word, and closes its socket."""
        assert self._task is not None
        assert self._transport is not None
        self._task.cancel()
        self._transport.abort()
        self._transport = None

    def last_loud_s(self) -> float:
        """When the newest loud frame came."""
        return next(at_s for at_s, loud in reversed(self.arrivals) if loud)

    def close(self) -> None:
        """See RawCall."""
        if self._task is not None:
            self._task.cancel()
        super().close()

    async def _check_on(self) -> None:
        while True:
            await asyncio.sleep(CONSENT_INTERVAL_S)
            self._check()

    def _start_media(self, keys: SrtpKeys) -> None:
        profile = Policy.SRTP_PROFILE_AES128_CM_SHA1_80
        if keys.profile == 7:
            profile = Policy.SRTP_PROFILE_AEAD_AES_128_GCM
        elif keys.profile == 8:
            profile = Policy.SRTP_PROFILE_AEAD_AES_256_GCM
        self._inbound = Session(
            Policy(
                key=keys.receive_key + keys.receive_salt,
                ssrc_type=Policy.SSRC_ANY_INBOUND,
                srtp_profile=profile,
            )
        )
        self._outbound = Session(
            Policy(
                key=keys.send_key + keys.send_salt,
                ssrc_type=Policy.SSRC_ANY_OUTBOUND,
                srtp_profile=profile,
            )
        )
        self._task = asyncio.create_task(self._talk())

    async def _talk(self) -> None:
        assert self._outbound is not None
        first = self._sent
        began_s = time.monotonic()
        while True:
            number = self._sent
            now_s = time.monotonic()
            loud = now_s < self.speaking_until_s
            if loud and self.spoke_s is None:
                self.spoke_s = now_s
            header = b"\x80" + bytes([PAYLOAD_TYPE]) + (number & 0xFFFF).to_bytes(2)
            header += (number * FRAME_SAMPLES & 0xFFFFFFFF).to_bytes(4) + _SSRC.to_bytes(4)
            self._send(self._outbound.protect(header + (LOUD if loud else SILENCE)))
            self._sent += 1
            due_s = began_s + (self._sent - first) * FRAME_S
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))


@contextlib.asynccontextmanager
async def raw_media_call(
    http: aiohttp.ClientSession,
    *,
    session: dict[str, Any] | None = None,
    backend: str | None = None,
) -> AsyncIterator[RawMediaCall]:
    """Places one call, with a session, to a backend by its name; it is there when its first event is."""
    body = {"sdp": _MEDIA_OFFER, "session": session or {}}
    timeline_s = {"offer": time.monotonic()}
    query = {"dcid": "0"} if backend is None else {"dcid": "0", "backend": backend}
    async with http.post("/v1/realtime/calls", params=query, json=body) as response:
        answer, location = await response.text(), response.headers.get("Location", "")
        assert response.status == 201, answer
    timeline_s["answer"] = time.monotonic()
    found = re.search(r"a=candidate:1 1 udp \d+ (\S+) (\d+) typ host", answer)
    assert found is not None
    _, call = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: RawMediaCall(answer, timeline_s), remote_addr=(found[1], int(found[2]))
    )
    call.location = location
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await call.heard.wait()
        yield call
    finally:
        call.close()
