"""Between one client and one Realtime backend: which event goes where, and what the bridge does itself. Sans-IO.

1. Every event passes through, in order, in GA names, unless a rule below owns it.
2. Audio deltas never reach the client as events; they go to the sound of the call.
3. `output_audio_buffer.*` is made here, and `output_audio_buffer.clear` never goes up.
4. When the user speaks (unless `interrupt_response` is false) or the client clears, the sound stops at once: `cleared` goes
   down, `conversation.item.truncate` goes up with what was really played. A response under way of which no sound has come
   is over with a clear; with speech it is when the backend says that it was cancelled.
5. Upstream audio formats are the bridge's; the client is told the formats that it asked for.
6. Items and responses that a client asked for and no backend has confirmed are asked for again on the next connection.
   What is kept for that is bounded in bytes; a client whose call outgrows it is told.
7. An answer to something the bridge sent by itself stays here, unless it is that the backend does not take the session;
   `session.created` reaches the client exactly once.
8. What a client secret fixes for the call is left out of a client's `session.update` and `response.create`, and said.
9. Nothing that either side sends raises: the client gets an `error` event, the backend's fault is counted, of which
   the client is told by the talk (complaints.py).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from ..nesting import read_json
from .acks import (
    NAMED_EVENT_PREFIX,
    OWN_EVENT_PREFIX,
    UpdateAcks,
    cause_of,
    is_own,
    without_given_name,
)
from .dialect import Dialect, Event
from .journal import NAME_MAX_CHARS
from .kept import Kept
from .made import buffer_event, error_event, event_id, failed_response, fixed_event
from .playout import AudioSink, Playout
from .policy import restrict
from .split_samples import SplitSamples
from .turns import Turns

CLIENT_EVENT_MAX_BYTES: Final = 256 * 1024
EVENT_ID_MAX_CHARS: Final = 512
"""As OpenAI's: it is kept until its event is answered."""
ODD_SHAPE: Final = (AttributeError, KeyError, TypeError, ValueError)
"""What reading an event of an unexpected shape raises."""
OPEN_RESPONSES_MAX: Final = 64
_SESSION: Final[Event] = {"type": "realtime", "object": "realtime.session"}
"""What every session is, should its backend not say so."""


@dataclass
class Outgoing:
    """What to send now, each list in order."""

    to_client: list[Event] = field(default_factory=list)
    to_backend: list[Event] = field(default_factory=list)

    def extend(self, more: Outgoing) -> None:
        """What to send after it."""
        self.to_client += more.to_client
        self.to_backend += more.to_backend


class Bridge:
    """The event logic of one call. One owner, no I/O; `decode` and `encode` turn the backend's audio bytes into PCM and back."""

    def __init__(
        self,
        dialect: Dialect,
        sink: AudioSink,
        *,
        decode: Callable[[bytes], bytes] = bytes,
        encode: Callable[[bytes], bytes] = bytes,
        updatable: Iterable[str] | None = None,
    ) -> None:
        self._dialect = dialect
        self._decode = decode
        self._encode = encode
        self._updatable = None if updatable is None else tuple(updatable)
        self._playout = Playout(sink)
        self._acks = UpdateAcks()
        self._greeted = False
        self._replayed_items: set[str] = set()
        self._open_responses: dict[str, None] = {}
        self._spoken_into: set[str] = set()
        self._turns = Turns()
        self._split_samples = SplitSamples()
        self._kept = Kept()
        self._session = self._kept.session
        self._journal, self._in_flight = self._kept.journal, self._kept.in_flight
        self.backend_garbage = 0
        self.interruptions = 0
        self.refused_sessions = 0
        """Times that the backend did not take a session that the bridge told it by itself: the client knows."""

    @property
    def configured(self) -> bool:
        """Whether every update that the bridge sent by itself is answered."""
        return not self._acks.own_pending

    @property
    def talk_ms(self) -> float:
        """Sound of the model that went out."""
        return self._playout.played_ms

    @property
    def listen_ms(self) -> float:
        """The user's turns."""
        return self._turns.heard_ms

    @property
    def forgotten(self) -> int:
        """Events that a new connection to the backend would not be told of."""
        return self._kept.forgotten

    @property
    def excess_audio_ms(self) -> float:
        """The model's sound that found no room."""
        return self._playout.excess_dropped_ms

    @property
    def late_audio_bytes(self) -> int:
        """Audio that arrived after its response had been cut."""
        return self._playout.late_bytes_dropped

    def from_client(self, message: str | bytes) -> Outgoing:
        """One message of the data channel."""
        if isinstance(message, bytes):
            return Outgoing(
                [error_event("invalid_message", "Events are text messages; this one is binary.")]
            )
        if len(message) > CLIENT_EVENT_MAX_BYTES:
            return Outgoing(
                [error_event("message_too_large", f"Over {CLIENT_EVENT_MAX_BYTES} characters.")]
            )
        try:
            event = read_json(message)
        except ValueError:
            return Outgoing([error_event("invalid_json", "The message is not JSON.")])
        kind = event.get("type") if isinstance(event, dict) else None
        if not isinstance(kind, str):
            cause = _id_of(event) if isinstance(event, dict) else None
            message = "An event is an object with a `type`."
            return Outgoing([error_event("invalid_event", message, cause=cause)])
        if len(_id_of(event) or "") > EVENT_ID_MAX_CHARS:
            message = f"`event_id` has over {EVENT_ID_MAX_CHARS} characters."
            return Outgoing([error_event("invalid_event", message, param="event_id")])
        try:
            return self._bounded(self._act_on_client(kind, event))
        except ODD_SHAPE:
            message = f"`{kind[:100]}` is not well formed."
            return Outgoing([error_event("invalid_event", message, cause=_id_of(event))])

    def _act_on_client(self, kind: str, event: Event) -> Outgoing:
        if kind == "output_audio_buffer.clear":
            return self._interrupt(self._open_responses)
        if kind == "session.update":
            return self._session_update(event)
        if kind.endswith("session.update") and self._updatable is not None:
            return Outgoing(
                [fixed_event([kind], _id_of(event))]
            )  # beta's transcription_session.update
        cause, out = _id_of(event), Outgoing()
        asked_format = self._session.asked_format("input")
        if kind == "input_audio_buffer.append" and not self._dialect.takes(asked_format):
            message = (
                "Sound goes over the call's track: in events the backend takes another format."
            )
            error = error_event("audio_format_mismatch", message, cause=cause, param="audio")
            return Outgoing([error])
        if kind == "response.create" and isinstance(event.get("response"), dict):
            event = {**event, "response": self._allowed(event["response"], cause, out)}
        self._turns.from_client(kind)
        out.to_backend.append(self._dialect.to_backend(self._in_flight.sent(event)))
        return out

    def from_backend(self, message: str | bytes) -> Outgoing:
        """One message of the backend's WebSocket."""
        try:
            event = read_json(message)
        except ValueError:
            event = None
        if not isinstance(event, dict) or not isinstance(event.get("type"), str):
            self.backend_garbage += 1
            return Outgoing()
        return self.from_model(event)

    def from_model(self, event: Event) -> Outgoing:
        """One event of the backend, read."""
        out = Outgoing()
        try:
            for translated in self._dialect.to_client(event):
                self._one_from_backend(translated, out)
        except ODD_SHAPE:
            self.backend_garbage += 1
        return self._bounded(out)

    def _bounded(self, out: Outgoing) -> Outgoing:
        self._tell_limit(self._kept.shrink(), out)
        return out

    def _tell_limit(self, message: str | None, out: Outgoing) -> None:
        if message is not None:
            out.to_client.append(error_event("backend_replay_limit", message))

    def microphone(self, pcm: bytes) -> str:
        """A block of the user's sound as the message that carries it up. There are fifty of them a second
        and call, and nothing in them needs escaping, so no JSON encoder is asked.
        """
        self._turns.sound(self.duration_ms(pcm))
        audio = base64.b64encode(self._encode(pcm)).decode("ascii")
        return f'{{"type": "input_audio_buffer.append", "audio": "{audio}"}}'

    def duration_ms(self, pcm: bytes) -> float:
        """Of sound at the backend's rate."""
        return len(pcm) / 2 * 1_000 / self._dialect.format.rate_hz

    def advance(self, now_s: float) -> Outgoing:
        """Call it on every wake-up of the media path: what became due (`now_s` is monotonic)."""
        out = Outgoing(self._buffer_events())
        out.to_client += self._acknowledged(self._acks.due(now_s))
        return out

    def configure(self, session: Event) -> Event:
        """The first `session.update`, from the server's configuration and the client's `session` part."""
        update = self._own_update(session)
        if session:
            self._session.ask(update["event_id"], session)
        return update

    def reconnected(self, unsent: frozenset[str] = frozenset()) -> Outgoing:
        """The old connection broke and a new one is there: what each side is told before anything else.

        Responses under way end as failed, with the sound that had arrived; the backend gets session and items again, then
        what was on its way. `unsent` are the ids of events that will follow by themselves.
        """
        self._playout.no_more_audio()
        self._split_samples.forget()
        out = Outgoing([failed_response(response_id) for response_id in self._open_responses])
        self._open_responses.clear()
        self._spoken_into.clear()
        self._session.reconnected(unsent)
        out.to_client += self._acknowledged(self._acks.reconnected(unsent))
        self._tell_limit(self._kept.missing(), out)
        self._replayed_items.clear()
        # Even of nothing: it also carries the audio formats.
        out.to_backend.append(self._own_update(self._session.taken))
        self._session.ask(out.to_backend[-1]["event_id"], {})  # the same once more
        for event in self._journal.replay():
            self._replayed_items.add(str(event["item"].get("id")))
            out.to_backend.append(self._dialect.to_backend(self._own(event)))
        again = self._in_flight.unanswered(unsent)
        out.to_backend += [self._dialect.to_backend(event) for event in again]
        return out

    def _acknowledged(self, update_ids: Iterable[str]) -> list[Event]:
        """What tells the client of those updates that are its own; all of them count as taken."""
        events = []
        for update_id in update_ids:
            self._session.answered(update_id)
            if not is_own(update_id):
                session = {**_SESSION, **self._session.taken}
                updated = {"type": "session.updated", "event_id": event_id()}
                events.append({**updated, "session": self._session.view(session)})
        return events

    def _session_update(self, event: Event) -> Outgoing:
        session = event.get("session")
        cause = _id_of(event)
        if not isinstance(session, dict):
            message = "`session.update` needs an object `session`."
            return Outgoing([error_event("invalid_event", message, cause=cause, param="session")])
        out = Outgoing()
        allowed = self._allowed(session, cause, out)
        update_id = cause or event_id(NAMED_EVENT_PREFIX)
        self._session.ask(update_id, allowed)
        self._acks.asked(update_id)
        update = {**event, "event_id": update_id, "session": allowed}
        out.to_backend.append(self._dialect.to_backend(update))
        return out

    def _allowed(self, fields: Event, cause: str | None, out: Outgoing) -> Event:
        """What a client may set of a session, or of one response; the client is told of the rest."""
        allowed, refused = restrict(fields, self._updatable)
        if refused:
            out.to_client.append(fixed_event(refused, cause))
        return allowed

    def _one_from_backend(self, event: Event, out: Outgoing) -> None:
        kind = event["type"]
        if not self._greeted and kind != "session.created":
            self._greet({**_SESSION, **self._session.hoped}, out)
        if kind == "response.output_audio.delta":
            self._audio(event, out)
        elif kind == "session.created":
            if not self._greeted:
                self._greet(event.get("session"), out)
        elif self._is_for_client(event):
            self._pass_down(event, out)

    def _greet(self, session: object, out: Outgoing) -> None:
        self._greeted = True
        session = session if isinstance(session, dict) else {}
        self._session.told(session)
        created = {"type": "session.created", "event_id": event_id()}
        out.to_client.append({**created, "session": self._session.view(session)})

    def _is_for_client(self, event: Event) -> bool:
        kind = event["type"]
        if kind == "session.updated":
            update_id = self._acks.answered()
            self._session.answered(update_id)
            if isinstance(event.get("session"), dict):
                self._session.told(event["session"])
            return not is_own(update_id)
        if kind == "error":
            return self._refused(cause_of(event))
        if kind in ("conversation.item.added", "conversation.item.done"):
            item = event.get("item")
            name = item.get("id") if isinstance(item, dict) else None
            is_replayed = name in self._replayed_items
            if kind == "conversation.item.done":
                self._replayed_items.discard(name)  # a client may delete it, and make it anew
            return not is_replayed
        if kind == "conversation.item.deleted":
            self._replayed_items.discard(event.get("item_id"))
        return True

    def _refused(self, cause: str | None) -> bool:
        """The backend does not do what this names. Whether the client is told."""
        is_update = self._acks.refused(cause)
        session = self._session.refused(cause)
        if not is_own(cause):
            return True
        if not is_update:
            return False
        self.refused_sessions += session is not None
        return True

    def _pass_down(self, event: Event, out: Outgoing) -> None:
        kind = event["type"]
        if kind == "session.updated" and isinstance(event.get("session"), dict):
            event = {**event, "session": self._session.view(event["session"])}
        elif kind == "error":
            self._in_flight.refused(cause_of(event))
            event = without_given_name(event)
        elif kind == "response.output_audio.done" and (where := _where(event)) is not None:
            self._playout.part_done(*where)
        self._journal.observe(event)
        self._turns.from_backend(event)
        self._in_flight.answered(event)
        if not isinstance(event.get("event_id"), str):
            event = {**event, "event_id": event_id()}  # clients' parsers drop an event without one
        out.to_client.append(event)
        if kind == "input_audio_buffer.speech_started" and self._session.interrupt_response:
            self._spoken_into.update(self._open_responses)
            out.extend(self._interrupt())
        elif kind == "response.done" and isinstance(event.get("response"), dict):
            self._response_done(event["response"], out)
        elif kind == "response.created" and isinstance(event.get("response"), dict):
            response_id = event["response"].get("id")
            if not isinstance(response_id, str) or len(response_id) > NAME_MAX_CHARS:
                return
            self._open_responses[response_id] = None
            if len(self._open_responses) > OPEN_RESPONSES_MAX:
                oldest = next(iter(self._open_responses))
                del self._open_responses[oldest]
                self._spoken_into.discard(oldest)
                self.backend_garbage += 1

    def _response_done(self, response: Event, out: Outgoing) -> None:
        response_id = str(response.get("id"))
        self._open_responses.pop(response_id, None)
        if response_id in self._spoken_into:
            self._spoken_into.discard(response_id)
            if response.get("status") == "cancelled" and self._playout.is_sounding(response_id):
                out.extend(self._interrupt())
        self._playout.response_done(response_id)
        out.to_client += self._buffer_events()

    def _audio(self, event: Event, out: Outgoing) -> None:
        where = _where(event)
        try:
            raw = base64.b64decode(event["delta"], validate=True)
        except (KeyError, TypeError, ValueError):
            where = None
        if where is None:
            self.backend_garbage += 1
            return
        if self._playout.is_cut(where[0]):
            self._journal.unheard(where[1])
        audio_format = self._dialect.format
        raw = self._split_samples.join(where, raw, audio_format.sample_bytes)
        if not raw:
            return
        duration_ms = len(raw) / audio_format.sample_bytes * 1000 / audio_format.rate_hz
        if self._playout.audio(*where, self._decode(raw), duration_ms):
            out.to_client.append(buffer_event("started", where[0]))

    def _interrupt(self, under_way: Iterable[str] = ()) -> Outgoing:
        self.interruptions += self._playout.speaking
        interrupted = self._playout.interrupt(under_way)
        for item_id in interrupted.unheard_item_ids:
            self._journal.unheard(item_id)
        for cut in interrupted.cuts:
            self._journal.cut(cut.item_id, cut.audio_end_ms / cut.made_ms)
        return Outgoing(
            [
                buffer_event("cleared", response_id)
                for response_id in interrupted.cleared_response_ids
            ],
            [
                self._own(
                    {
                        "type": "conversation.item.truncate",
                        "item_id": cut.item_id,
                        "content_index": cut.content_index,
                        "audio_end_ms": cut.audio_end_ms,
                    }
                )
                for cut in interrupted.cuts
            ],
        )

    def _own(self, event: Event) -> Event:
        return {**event, "event_id": event_id(OWN_EVENT_PREFIX)}

    def _own_update(self, session: Event) -> Event:
        update = self._own({"type": "session.update", "session": session})
        self._acks.asked_first(update["event_id"])
        return self._dialect.to_backend(update)

    def _buffer_events(self) -> list[Event]:
        return [buffer_event(name, response) for name, response in self._playout.advance()]


def _where(event: Event) -> tuple[str, str, int] | None:
    """(response id, item id, content index) of an audio event, or None where it has none."""
    response_id, item_id = event.get("response_id"), event.get("item_id")
    content_index = event.get("content_index", 0)
    if not isinstance(response_id, str) or not isinstance(item_id, str):
        return None
    if len(response_id) > NAME_MAX_CHARS or len(item_id) > NAME_MAX_CHARS:
        return None
    if type(content_index) is not int or content_index < 0:
        return None
    return response_id, item_id, content_index


def _id_of(event: Event) -> str | None:
    """The id that a client gave its event."""
    given = event.get("event_id")
    return given if isinstance(given, str) else None
