"""A call whose packets the media engine carries: Python sees DTLS, events and PCM, no RTP.

1. The rules of the socket (design 3.5), SRTP, reports and the clock are the engine's; this file
   brings its events to the call and its numbers to the call's stats.
2. A backend with a rate talks in PCM at that rate and gets the call's MediaSession as its sound;
   one without is a pass-through: what the client sends goes back as it is.
"""

from __future__ import annotations

from collections.abc import Callable

from relay.wire.spp import FlowKey

from .answer import Local
from .backends.base import Sound
from .media import MediaConfig, MediaSession
from .session import Call, CallState


class EngineCall(Call):
    """See the module; everything else is Call's."""

    media: MediaSession

    def _open_transport(self, local: Local) -> None:
        engine = self._parts.engine
        assert engine is not None
        codec = self.offer.codec
        rate_hz = self._request.backend.rate_hz
        config = MediaConfig(
            codec=codec.name.lower(),
            payload_types={codec.name.lower(): codec.payload_type},
            ssrc=local.ssrc,
            cname=local.name,
            echo=rate_hz is None,
            rate_hz=rate_hz or 24_000,
        )
        self._carried_in = self._carried_out = 0
        self._last_flow: FlowKey | None = None
        self.media = engine.open(
            local.ice_ufrag, local.ice_pwd, self.offer.ice_ufrag, config, _Ear(self)
        )

    def _close_transport(self) -> None:
        assert self._parts.engine is not None
        self._follow_media()
        self._parts.engine.close(self.media)

    def _sound(self) -> Sound:
        return self.media

    def _has_consent(self, now_s: float) -> bool:
        return True  # the engine counts, and says when it is over

    def _keep_alive(self, now_s: float) -> None:
        pass  # the engine reports

    def _on_keys(self) -> None:
        assert self._dtls.srtp_keys is not None
        self.media.set_keys(self._dtls.srtp_keys)

    def _transmit(self, datagram: bytes) -> bool:
        return self.media.send(datagram)

    def tick(self, now_s: float) -> None:
        """Does what is due. Call every 50 ms."""
        super().tick(now_s)
        if self.state is CallState.CONNECTED:
            self._follow_media()

    def on_sound(self, pcm: bytes) -> None:
        """The client's next samples."""
        self._conversation.on_sound(pcm)

    def on_digit(self, digit: str) -> None:
        """The client pressed a key."""
        self._conversation.on_digit(digit)

    def _follow_media(self) -> None:
        first_in_s, first_out_s, packets_in, packets_out = self.media.marks()
        if first_in_s is not None:
            self.mark("first_audio_in", first_in_s)
        if first_out_s is not None:
            self.mark("first_audio_out", first_out_s)
        traffic = self._parts.traffic
        traffic.packets_in += packets_in - self._carried_in
        traffic.packets_out += packets_out - self._carried_out
        self._carried_in = self.packets_in = packets_in
        self._carried_out = self.packets_out = packets_out

    def stats(self) -> dict[str, object]:
        """See Call.stats; more about the sound when there is PCM."""
        numbers = self.media.stats()
        received = numbers["packets_in"] + numbers["lost_in"]
        flow = self.media.path() or self._last_flow
        self._last_flow = flow
        return {
            **super().stats(),
            "packets_in": numbers["packets_in"],
            "packets_out": numbers["packets_out"],
            "bytes_in": numbers["bytes_in"],
            "bytes_out": numbers["bytes_out"],
            "flow": flow and {"client": str(flow.client), "proxy": str(flow.proxy)},
            "rtt_ms": round(numbers["round_trip_ns"] / 1e6, 3) or None,
            "loss": round(numbers["lost_in"] / received, 4) if received else None,
            "loss_out": numbers["fraction_lost_out"] if numbers["reports_in"] else None,
            "jitter_ms": round(numbers["jitter_in_ms"], 3) if received else None,
            "sound": None if not numbers["samples"] else _sound(numbers),
        }


def _sound(numbers: dict[str, int | float]) -> dict[str, object]:
    """What became of the client's sound, as shares of its time."""
    samples = numbers["samples"]
    return {
        "playout_target_ms": numbers["target_ms"],
        "concealed": round(numbers["concealed_samples"] / samples, 4),
        "recovered": round(numbers["recovered_samples"] / samples, 4),
        "silence": round(numbers["silence_samples"] / samples, 4),
    }


class _Ear:
    """The MediaHandler of one call."""

    __slots__ = ("_call",)

    def __init__(self, call: EngineCall) -> None:
        self._call = call

    def on_check(self, now_s: float) -> None:
        """See MediaHandler.on_check."""
        self._call.on_validated(now_s)

    def on_dtls(self, datagram: bytes, on_authentic: Callable[[], None], now_s: float) -> None:
        """See MediaHandler.on_dtls."""
        self._call.on_dtls_datagram(datagram, on_authentic, now_s)

    def on_sound(self, pcm: bytes) -> None:
        """See MediaHandler.on_sound."""
        self._call.on_sound(pcm)

    def on_digit(self, digit: str) -> None:
        """See MediaHandler.on_digit."""
        self._call.on_digit(digit)

    def on_expired(self) -> None:
        """See MediaHandler.on_expired."""
        self._call.close("consent_expired")
