"""Which part of which response has been heard: the account behind `output_audio_buffer.*` and truncation.

1. One generation number per content part, given out in the order in which audio arrives; the media path plays in that order.
2. A response is `started` once, when what came before it has been heard, and then ends once: `stopped` or `cleared`.
   One whose end the backend never says is over when a later one is; more sound of one that ended makes it start again.
3. What nobody heard is cut: never beyond the audio made, never at 0, never when all of it was played.
4. After a cut, audio of that response that still arrives is dropped; so is that of the responses that are said to be under way.
5. Of an answer nothing is dropped to make room. The user's sound is of the present, so its oldest goes first (link.py);
   an answer is heard from its beginning and makes no sense with a hole in it. So a backend that is far ahead is not
   read (talk.py, AHEAD_MAX_MS): TCP holds the rest back, and with it whatever else the backend says meanwhile. Only what
   one message brings beyond the sink's room finds none: the newest, counted (`excess_dropped_ms`), never part of a cut.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

REMEMBERED: Final = 64
"""Responses, cut or ended, whose late audio is still recognised; older ones ended long ago."""
UNFINISHED_MAX: Final = 64
"""Responses whose end is awaited at once."""


class AudioSink(Protocol):
    """What the account asks of the media path (one call)."""

    def write(self, generation: int, pcm: bytes) -> int:
        """Queues audio of one generation behind what is queued already; how many bytes were taken."""

    def played_ms(self, generation: int) -> float:
        """Milliseconds of this generation that went out on the wire so far; of one long past, 0 is said, too."""

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
    unheard_item_ids: tuple[str, ...]
    """Items of which nothing went out; there is nothing to cut of them."""


@dataclass
class _Part:
    generation: int
    item_id: str
    content_index: int
    made_ms: float = 0.0
    heard_ms: float = 0.0
    """The most that the sink said: of a part long past it says nothing any more."""
    done: bool = False


@dataclass
class _Response:
    response_id: str
    started: bool = False
    done: bool = False
    is_past: bool = False
    """Its connection is gone; the next one may give the same name to another."""
    parts: dict[tuple[str, int], _Part] = field(default_factory=dict)


class Playout:
    """The account of one call. Sans-IO: the sink tells what was played, the caller sends the events."""

    def __init__(self, sink: AudioSink) -> None:
        self._sink = sink
        self._responses: deque[_Response] = deque()
        self._cut: OrderedDict[str, None] = OrderedDict()
        self._ended: OrderedDict[str, None] = OrderedDict()
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
            response = _Response(response_id, done=response_id in self._ended)
            self._responses.append(response)
            if len(self._responses) > UNFINISHED_MAX:
                self._responses[-UNFINISHED_MAX - 1].done = True
        part = response.parts.get((item_id, content_index))
        if part is None:
            self._last_generation += 1
            part = _Part(self._last_generation, item_id, content_index)
            response.parts[item_id, content_index] = part
        taken = self._sink.write(part.generation, pcm)
        part.made_ms += duration_ms * taken / len(pcm)
        self.excess_dropped_ms += duration_ms * (len(pcm) - taken) / len(pcm)
        return response is self._responses[0] and self._start(response)

    def is_sounding(self, response_id: str) -> bool:
        """Whether audio of this response has come and has not been heard to its end."""
        return self._find(response_id) is not None

    def is_cut(self, response_id: str) -> bool:
        """Whether audio of this response is dropped."""
        return response_id in self._cut

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
        """The connection that audio came over is gone: what arrived is all there is, and names begin anew."""
        for response in self._responses:
            response.done = response.is_past = True
        self._cut.clear()
        self._ended.clear()

    def advance(self) -> list[tuple[str, str]]:
        """What became due: ('stopped' | 'started', response_id), in order. Call it on every wake-up."""
        events = []
        while self._responses:
            response = self._responses[0]
            if self._start(response):
                events.append(("started", response.response_id))
            if not self._is_over(response):
                break
            self._responses.popleft()
            self._ended_ms += self._played_ms(response)
            if response.done and not response.is_past:
                _remember(self._ended, response.response_id)
            events.append(("stopped", response.response_id))
        for response in self._responses:
            if self._start(response):
                events.append(("started", response.response_id))
            if not self._heard(response):
                break
        return events

    def interrupt(self, under_way: Iterable[str] = ()) -> Interrupted:
        """The user speaks, or the client clears: stop at once and account for what was heard.

        `under_way` are further responses whose audio is not wanted any more, although none has come.
        """
        cleared, cuts, unheard = [], [], []
        for response in self._responses:
            self._ended_ms += self._played_ms(response)
            if response.started:
                cleared.append(response.response_id)
            cuts += [
                cut for part in response.parts.values() if (cut := self._cut_of(response, part))
            ]
            unheard += self._unheard_items(response)
            if not response.is_past:
                _remember(self._cut, response.response_id)
        for response_id in under_way:
            _remember(self._cut, response_id)
        if self._responses:
            self._responses.clear()
            self._sink.flush()
        return Interrupted(tuple(cleared), tuple(cuts), tuple(unheard))

    def _find(self, response_id: str) -> _Response | None:
        named = (r for r in self._responses if r.response_id == response_id and not r.is_past)
        return next(named, None)

    @staticmethod
    def _start(response: _Response) -> bool:
        """Whether it had not started before."""
        is_first = not response.started
        response.started = True
        return is_first

    def _is_over(self, response: _Response) -> bool:
        is_superseded = any(later.done and self._heard(later) for later in self._responses)
        return (response.done or is_superseded) and self._heard(response)

    def _unheard_items(self, response: _Response) -> list[str]:
        parts = response.parts.values()
        heard = {part.item_id for part in parts if self._heard_of(part) >= 1}
        return list({part.item_id: None for part in parts if part.item_id not in heard})

    def _heard_of(self, part: _Part) -> float:
        if part.heard_ms < part.made_ms:
            part.heard_ms = max(part.heard_ms, self._sink.played_ms(part.generation))
        return part.heard_ms

    def _played_ms(self, response: _Response) -> float:
        parts = response.parts.values()
        return sum(min(part.made_ms, self._heard_of(part)) for part in parts)

    def _heard(self, response: _Response) -> bool:
        return all(self._heard_of(part) >= part.made_ms for part in response.parts.values())

    def _cut_of(self, response: _Response, part: _Part) -> Cut | None:
        played_ms = self._heard_of(part)
        whole = (part.done or response.done) and played_ms >= part.made_ms
        audio_end_ms = int(min(played_ms, part.made_ms))
        if whole or audio_end_ms <= 0:
            return None
        return Cut(part.item_id, part.content_index, audio_end_ms, part.made_ms)


def _remember(ids: OrderedDict[str, None], response_id: str) -> None:
    ids[response_id] = None
    if len(ids) > REMEMBERED:
        ids.popitem(last=False)
