"""Which part of which response has been heard: the account behind `output_audio_buffer.*` and truncation.

1. One generation number per content part, given out in the order in which audio arrives; the media path plays in that order.
2. A response is `started` once, when it is the oldest unfinished one, and then ends once: `stopped` or `cleared`.
3. What nobody heard is cut: never beyond the audio made, never at 0, never when all of it was played.
4. After a cut, audio of that response that still arrives is dropped.
5. Of an answer nothing is dropped to make room. The user's sound is of the present, so its oldest goes first (link.py);
   an answer is heard from its beginning and makes no sense with a hole in it. So a backend that is far ahead is not
   read (talk.py, AHEAD_MAX_MS): TCP holds the rest back, and with it whatever else the backend says meanwhile. Only what
   one message brings beyond the sink's room finds none: the newest, counted (`excess_dropped_ms`), never part of a cut.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final, Protocol

REMEMBERED_CUTS: Final = 64
"""Responses whose late audio is still recognised; older ones ended long ago."""


class AudioSink(Protocol):
    """What the account asks of the media path (one call)."""

    def write(self, generation: int, pcm: bytes) -> int:
        """Queues audio of one generation behind what is queued already; how many bytes were taken."""

    def played_ms(self, generation: int) -> float:
        """Milliseconds of this generation that went out on the wire so far."""

    def flush(self) -> None:
        """Stops within one frame and forgets everything queued."""


@dataclass(frozen=True)
class Cut:
    """A content part that was cut short; becomes `conversation.item.truncate`."""

    item_id: str
    content_index: int
    audio_end_ms: int
    made_ms: float
    """Sound of it that had arrived."""


@dataclass(frozen=True)
class Interrupted:
    """What a flush did."""

    cleared_response_ids: tuple[str, ...]
    """Responses that had started and now end with `output_audio_buffer.cleared`."""
    cuts: tuple[Cut, ...]


@dataclass
class _Part:
    generation: int
    item_id: str
    content_index: int
    made_ms: float = 0.0
    done: bool = False


@dataclass
class _Response:
    response_id: str
    started: bool = False
    done: bool = False
    parts: dict[tuple[str, int], _Part] = field(default_factory=dict)


class Playout:
    """The account of one call. Sans-IO: the sink tells what was played, the caller sends the events."""

    def __init__(self, sink: AudioSink) -> None:
        self._sink = sink
        self._responses: deque[_Response] = deque()
        self._cut: OrderedDict[str, None] = OrderedDict()
        self._last_generation = 0
        self._ended_ms = 0.0
        self.late_bytes_dropped = 0
        self.excess_dropped_ms = 0.0

    @property
    def speaking(self) -> bool:
        """Whether any response has audio that is not heard to its end."""
        return bool(self._responses)

    @property
    def played_ms(self) -> float:
        """Sound of all responses that went out."""
        return self._ended_ms + sum(map(self._played_ms, self._responses))

    def audio(
        self, response_id: str, item_id: str, content_index: int, pcm: bytes, duration_ms: float
    ) -> bool:
        """Audio of one content part. True when this makes its response the one that now `started`."""
        if response_id in self._cut:
            self.late_bytes_dropped += len(pcm)
            return False
        response = self._find(response_id)
        if response is None:
            response = _Response(response_id)
            self._responses.append(response)
        part = response.parts.get((item_id, content_index))
        if part is None:
            self._last_generation += 1
            part = _Part(self._last_generation, item_id, content_index)
            response.parts[item_id, content_index] = part
        taken = self._sink.write(part.generation, pcm)
        part.made_ms += duration_ms * taken / len(pcm)
        self.excess_dropped_ms += duration_ms * (len(pcm) - taken) / len(pcm)
        return self._start_oldest() is not None

    def part_done(self, response_id: str, item_id: str, content_index: int) -> None:
        """No more audio of this content part will come."""
        response = self._find(response_id)
        part = response.parts.get((item_id, content_index)) if response else None
        if part is not None:
            part.done = True

    def response_done(self, response_id: str) -> None:
        """No more audio of this response will come."""
        response = self._find(response_id)
        if response is not None:
            response.done = True

    def no_more_audio(self) -> None:
        """The connection that audio came over is gone: what arrived is all there is."""
        for response in self._responses:
            response.done = True

    def advance(self) -> list[tuple[str, str]]:
        """What became due: ('stopped' | 'started', response_id), in order. Call it on every wake-up."""
        events = []
        while self._responses and self._responses[0].done and self._heard(self._responses[0]):
            self._ended_ms += self._played_ms(self._responses[0])
            events.append(("stopped", self._responses.popleft().response_id))
            if (response_id := self._start_oldest()) is not None:
                events.append(("started", response_id))
        return events

    def interrupt(self) -> Interrupted:
        """The user speaks, or the client clears: stop at once and account for what was heard."""
        cleared, cuts = [], []
        for response in self._responses:
            self._ended_ms += self._played_ms(response)
            if response.started:
                cleared.append(response.response_id)
            cuts += [
                cut for part in response.parts.values() if (cut := self._cut_of(response, part))
            ]
            self._cut[response.response_id] = None
        while len(self._cut) > REMEMBERED_CUTS:
            self._cut.popitem(last=False)
        self._responses.clear()
        self._sink.flush()
        return Interrupted(tuple(cleared), tuple(cuts))

    def _find(self, response_id: str) -> _Response | None:
        return next((r for r in self._responses if r.response_id == response_id), None)

    def _start_oldest(self) -> str | None:
        if not self._responses or self._responses[0].started:
            return None
        self._responses[0].started = True
        return self._responses[0].response_id

    def _played_ms(self, response: _Response) -> float:
        parts = response.parts.values()
        return sum(min(part.made_ms, self._sink.played_ms(part.generation)) for part in parts)

    def _heard(self, response: _Response) -> bool:
        return all(
            self._sink.played_ms(part.generation) >= part.made_ms
            for part in response.parts.values()
        )

    def _cut_of(self, response: _Response, part: _Part) -> Cut | None:
        played_ms = self._sink.played_ms(part.generation)
        whole = (part.done or response.done) and played_ms >= part.made_ms
        audio_end_ms = int(min(played_ms, part.made_ms))
        if whole or audio_end_ms <= 0:
            return None
        return Cut(part.item_id, part.content_index, audio_end_ms, part.made_ms)
