"""The session of one call: what its backend has taken, and what the client is told of it. Sans-IO.

1. What was asked for counts once the backend has answered, or no answer is awaited any more; what it refuses never
   does: a new connection that were asked for it again would refuse all that comes with it.
2. The client is told the audio formats that it asked for: those upstream are the bridge's.
3. What would make the session grow beyond SESSION_MAX_BYTES is not kept, and counted (`outgrown`).
"""

from __future__ import annotations

from typing import Final

from .dialect import Event, session_format, with_formats
from .sized import SizedEvents, size_of

SESSION_MAX_BYTES: Final = 262_144
ASKED_MAX: Final = 64
"""Updates without an answer; the oldest then counts as taken."""
_IDENTITY: Final = ("type", "id")
"""Fields by which an object says what it is."""


class SessionRecord:
    """Of one call, in GA fields."""

    def __init__(self) -> None:
        self._taken: Event = {}
        self._taken_bytes = 0
        self._asked = SizedEvents()
        self._formats: dict[str, Event] = {}
        self._interrupts = True
        self.outgrown = 0
        """Updates that were too large to keep."""

    @property
    def size_bytes(self) -> int:
        """Of what is kept."""
        return self._taken_bytes + self._asked.size_bytes

    @property
    def taken(self) -> Event:
        """What the backend has taken."""
        return self._taken

    @property
    def hoped(self) -> Event:
        """What it will be when the backend takes all that was asked for."""
        session = self._taken
        for asked in self._asked.events():
            session = merge(session, asked)
        return session

    @property
    def interrupt_response(self) -> bool:
        """Whether the user's voice ends the model's sound."""
        interrupts = self._interrupts
        for asked in self._asked.events():
            interrupts = _interrupts(asked, interrupts)
        return interrupts

    def ask(self, name: str, session: Event) -> None:
        """An update of this event id is on its way up."""
        self.answered(name)  # a client may give all its events one id
        size_bytes = size_of(session)
        fits = (
            self.size_bytes + size_bytes <= SESSION_MAX_BYTES
        )  # of what surely does, nothing is merged
        if not fits and size_of(merge(self.hoped, session)) > SESSION_MAX_BYTES:
            self.outgrown += 1
            return
        self._asked.put(name, session, size_bytes)
        while self._asked.size_bytes > SESSION_MAX_BYTES or len(self._asked) > ASKED_MAX:
            self.answered(next(iter(self._asked)))

    def answered(self, name: str | None) -> None:
        """The backend has taken the update of this event id, or leaves it without an answer."""
        session = self._asked.remove(name)
        if session is None:
            return
        taken = merge(self._taken, session)
        size_bytes = size_of(taken)
        if size_bytes > SESSION_MAX_BYTES:
            self.outgrown += 1
            return
        self._taken, self._taken_bytes = taken, size_bytes
        self.told(session)
        for side in ("input", "output"):
            if (wanted := session_format(session, side)) is not None:
                self._formats[side] = wanted

    def reconnected(self, unsent: frozenset[str]) -> None:
        """Only updates of `unsent` still get an answer; the others count as taken."""
        for name in [name for name in self._asked if name not in unsent]:
            self.answered(name)

    def refused(self, name: str | None) -> Event | None:
        """The backend does not take the update of this event id, which is returned if it was kept."""
        return self._asked.remove(name)

    def told(self, session: Event) -> None:
        """The backend says what its session is, or is taken at its word that it took this."""
        self._interrupts = _interrupts(session, self._interrupts)

    def asked_format(self, side: str) -> Event | None:
        """The audio format that the client asked for, for `input` or `output`."""
        return self._formats.get(side)

    def view(self, session: Event) -> Event:
        """A session as the client is told it."""
        formats = [
            self._formats.get(side) or session_format(session, side) for side in ("input", "output")
        ]
        return with_formats(session, *formats)


def merge(old: Event, new: Event) -> Event:
    """`old` with the fields of `new`: objects merged, unless the new one says that it is something else
    (another `type` of turn detection, another prompt's `id`), everything else replaced.
    """
    merged = dict(old)
    for name, value in new.items():
        before = merged.get(name)
        if isinstance(value, dict) and isinstance(before, dict) and _is_same(before, value):
            value = merge(before, value)
        merged[name] = value
    return merged


def _interrupts(session: Event, otherwise: bool) -> bool:
    audio = session.get("audio")
    side = audio.get("input") if isinstance(audio, dict) else None
    if isinstance(side, dict) and isinstance(side.get("turn_detection"), dict):
        return side["turn_detection"].get("interrupt_response") is not False
    return otherwise


def _is_same(before: Event, value: Event) -> bool:
    return all(
        before[name] == value[name] for name in _IDENTITY if name in before and name in value
    )
