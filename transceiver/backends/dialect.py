"""What one Realtime backend calls things: GA or beta names, audio formats, and how they map to what clients speak.

1. Clients always speak GA (`response.output_audio.delta`, `session.audio.input.format`); only this file knows another dialect.
2. Translating never mutates the event it is given, and keeps every field it does not know.
3. The bridge owns the audio formats upstream; a client sees the formats that it asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

Event = dict[str, Any]

_MISSING: Final = object()

_PREFIXES_TO_GA: Final = (
    ("response.audio_transcript.", "response.output_audio_transcript."),
    ("response.audio.", "response.output_audio."),
    ("response.text.", "response.output_text."),
)
_ASSISTANT_PARTS_TO_GA: Final = {"audio": "output_audio", "text": "output_text"}
_ASSISTANT_PARTS_TO_BETA: Final = {ga: beta for beta, ga in _ASSISTANT_PARTS_TO_GA.items()}

# (path in a GA session, key of a beta session)
_SESSION_FIELDS: Final = (
    (("audio", "input", "format"), "input_audio_format"),
    (("audio", "input", "transcription"), "input_audio_transcription"),
    (("audio", "input", "noise_reduction"), "input_audio_noise_reduction"),
    (("audio", "input", "turn_detection"), "turn_detection"),
    (("audio", "output", "format"), "output_audio_format"),
    (("audio", "output", "voice"), "voice"),
    (("audio", "output", "speed"), "speed"),
    (("output_modalities",), "modalities"),
    (("max_output_tokens",), "max_response_output_tokens"),
)


@dataclass(frozen=True)
class AudioFormat:
    """One audio encoding on the WebSocket, mono."""

    ga_type: str
    """`audio/pcm` (16 bit little-endian), `audio/pcmu` or `audio/pcma`."""
    rate_hz: int
    """Samples a second; 8000 for G.711."""
    beta_name: str
    """`pcm16`, `g711_ulaw` or `g711_alaw`."""

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample on the WebSocket."""
        return 2 if self.ga_type == "audio/pcm" else 1

    def ga(self) -> Event:
        """As a GA session carries it."""
        return (
            {"type": self.ga_type, "rate": self.rate_hz}
            if self.ga_type == "audio/pcm"
            else {"type": self.ga_type}
        )


FORMATS: Final[Mapping[str, AudioFormat]] = {
    "pcm24": AudioFormat("audio/pcm", 24_000, "pcm16"),
    "pcm16": AudioFormat("audio/pcm", 16_000, "pcm16"),
    "pcmu": AudioFormat("audio/pcmu", 8_000, "g711_ulaw"),
    "pcma": AudioFormat("audio/pcma", 8_000, "g711_alaw"),
}


@dataclass(frozen=True)
class Dialect:
    """How one backend speaks."""

    beta: bool = False
    """Beta event and field names."""
    format: AudioFormat = FORMATS["pcm24"]
    """Audio both ways."""

    def to_backend(self, event: Event) -> Event:
        """A GA client event as this backend wants it, with the bridge's audio formats in a `session.update`."""
        kind = event.get("type")
        if kind == "session.update" and isinstance(event.get("session"), dict):
            session = self._with_our_formats(event["session"])
            if self.beta:
                return {**event, "session": self._session_to_beta(session)}
            # GA servers refuse a session that does not say what it is.
            return {**event, "session": {"type": "realtime", **session}}
        if kind == "response.create" and isinstance(event.get("response"), dict):
            response = event["response"]
            if session_format(response, "output") is not None:
                response = _with_format(response, "output", self.format.ga())
            return {
                **event,
                "response": self._response_to_beta(response) if self.beta else response,
            }
        if not self.beta:
            return event
        if kind == "conversation.item.create" and isinstance(event.get("item"), dict):
            return {**event, "item": _rename_parts(event["item"], _ASSISTANT_PARTS_TO_BETA)}
        return event

    def takes(self, asked: Event | None) -> bool:
        """Whether sound in the format that a client asked for (None: in OpenAI's default) is what this backend wants."""
        default = FORMATS["pcm24"]
        asked = asked or default.ga()
        is_as_fast = asked.get("rate", default.rate_hz) == self.format.rate_hz
        is_pcm = self.format.ga_type == "audio/pcm"  # the others have one rate each
        return asked.get("type") == self.format.ga_type and (is_as_fast or not is_pcm)

    def to_client(self, event: Event) -> list[Event]:
        """A backend event in GA names: usually one, two for beta's `conversation.item.created`."""
        kind = event.get("type")
        if not isinstance(kind, str) or not self.beta:
            return [event]
        for beta_prefix, ga_prefix in _PREFIXES_TO_GA:
            if kind.startswith(beta_prefix):
                return [{**event, "type": ga_prefix + kind.removeprefix(beta_prefix)}]
        event = dict(event)
        for name in ("item", "response", "session"):
            if isinstance(event.get(name), dict):
                event[name] = self._object_to_ga(name, event[name])
        if kind == "conversation.item.created":
            return [
                {**event, "type": "conversation.item.added"},
                {**event, "type": "conversation.item.done"},
            ]
        return [event]

    def _with_our_formats(self, session: Event) -> Event:
        session = _with_format(session, "input", self.format.ga())
        if session.get("type") == "transcription":
            return (
                session  # has no sound to give, and GA servers refuse a session that speaks of it
            )
        return _with_format(session, "output", self.format.ga())

    def _object_to_ga(self, name: str, value: Event) -> Event:
        if name == "session":
            return self._session_to_ga(value)
        if name == "item":
            return _rename_parts(value, _ASSISTANT_PARTS_TO_GA)
        output = value.get("output")
        if not isinstance(output, list):
            return value
        return {**value, "output": _rename_all(output, _ASSISTANT_PARTS_TO_GA)}

    def _session_to_beta(self, session: Event) -> Event:
        session = {
            name: value for name, value in session.items() if name not in ("type", "audio")
        } | {
            beta: value
            for path, beta in _SESSION_FIELDS
            if (value := _get(session, path, _MISSING)) is not _MISSING
        }
        session.pop("output_modalities", None)
        session.pop("max_output_tokens", None)
        if session.get("modalities") == ["audio"]:
            session["modalities"] = ["text", "audio"]  # beta refuses audio alone
        for name in ("input_audio_format", "output_audio_format"):
            if isinstance(session.get(name), dict):
                session[name] = _format_name(session[name])
        return session

    def _response_to_beta(self, response: Event) -> Event:
        response = self._session_to_beta(response)
        if isinstance(response.get("input"), list):
            response["input"] = _rename_all(response["input"], _ASSISTANT_PARTS_TO_BETA)
        return response

    def _session_to_ga(self, session: Event) -> Event:
        beta_names = {beta for _, beta in _SESSION_FIELDS}
        ga: Event = {"type": "realtime"} | {k: v for k, v in session.items() if k not in beta_names}
        for path, beta in _SESSION_FIELDS:
            if beta not in session:
                continue
            value = session[beta]
            if beta.endswith("_audio_format"):
                value = self.format.ga()
            target = ga
            for part in path[:-1]:
                target = target.setdefault(part, {})
            target[path[-1]] = value
        return ga


def with_formats(session: Event, input_format: Event | None, output_format: Event | None) -> Event:
    """A copy of a GA session with other audio formats; None removes the field."""
    return _with_format(_with_format(session, "input", input_format), "output", output_format)


def session_format(session: Event, side: str) -> Event | None:
    """The audio format that a GA session names for `input` or `output`, or None."""
    value = _get(session, ("audio", side, "format"), None)
    return value if isinstance(value, dict) else None


def _with_format(session: Event, side: str, value: Event | None) -> Event:
    audio = _copy(session.get("audio"))
    part = _copy(audio.get(side))
    part.pop("format", None)
    if value is not None:
        part["format"] = value
    return {**session, "audio": {**audio, side: part}}


def _copy(value: Any) -> Event:
    return dict(value) if isinstance(value, dict) else {}


def _get(value: Any, path: tuple[str, ...], default: Any) -> Any:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return default
        value = value[name]
    return value


def _format_name(value: Event) -> str:
    for known in FORMATS.values():
        if known.ga_type == value.get("type"):
            return known.beta_name
    return "pcm16"


def _rename_all(items: list[Any], names: Mapping[str, str]) -> list[Any]:
    return [_rename_parts(item, names) if isinstance(item, dict) else item for item in items]


def _rename_parts(item: Event, names: Mapping[str, str]) -> Event:
    """An item with its assistant content parts renamed; other roles keep theirs."""
    content = item.get("content")
    if item.get("role") != "assistant" or not isinstance(content, list):
        return item
    return {
        **item,
        "content": [
            {**part, "type": names.get(part.get("type", ""), part.get("type"))}
            if isinstance(part, dict)
            else part
            for part in content
        ],
    }
