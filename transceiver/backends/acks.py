"""Whose `session.update` a `session.updated` answers: the client's, or one that the bridge sent by itself.

1. Backends answer in the order of asking; an `error` that names an update takes that update's place.
2. The answer to the bridge's own update stays here; that it is refused, the client is told.
3. A client whose update is not answered within ACK_WAIT_S gets an answer from here: some backends never send one, and stock
   clients wait 5 s for it.
"""

from __future__ import annotations

import secrets
from collections import deque
from dataclasses import dataclass
from typing import Final

from .dialect import Event

ACK_WAIT_S: Final = 3.0
PENDING_MAX: Final = 64
_SECRET: Final = secrets.token_hex(4)
"""So that no client's event id begins as one of ours by chance."""
OWN_EVENT_PREFIX: Final = f"bridge_{_SECRET}_"
"""Event ids of what the bridge sends by itself."""
NAMED_EVENT_PREFIX: Final = f"named_{_SECRET}_"
"""Event ids given to client events that came without one."""


@dataclass(frozen=True)
class _Pending:
    event_id: str
    asked_s: float | None
    """None until the clock is known: `due` sets it."""


class UpdateAcks:
    """The unanswered session updates of one backend connection."""

    def __init__(self) -> None:
        self._pending: deque[_Pending] = deque(maxlen=PENDING_MAX)

    @property
    def own_pending(self) -> bool:
        """Whether an update of the bridge's own is unanswered."""
        return any(is_own(pending.event_id) for pending in self._pending)

    def asked(self, update_id: str) -> None:
        """A client's `session.update` with this event id is to go up, or to wait for the connection."""
        self._pending.append(_Pending(update_id, None))

    def asked_first(self, update_id: str) -> None:
        """One of the bridge's own is to go up, ahead of what a quick client has asked for already."""
        self._pending.appendleft(_Pending(update_id, None))

    def answered(self) -> str | None:
        """A `session.updated` came: the event id of the update that it answers. None: the backend changed
        something by itself, or answers what was answered from here.
        """
        return self._pending.popleft().event_id if self._pending else None

    def refused(self, update_id: str | None) -> bool:
        """An `error` that names this event came. Whether that is an unanswered update."""
        others = [pending for pending in self._pending if pending.event_id != update_id]
        was_pending = len(others) < len(self._pending)
        self._pending = deque(others, maxlen=PENDING_MAX)
        return was_pending

    def reconnected(self, unsent: frozenset[str]) -> list[str]:
        """The connection broke: only updates of `unsent` still get an answer of the backend, behind the
        bridge's own first one. The event ids of the others.
        """
        lost = [p.event_id for p in self._pending if p.event_id not in unsent]
        self._pending = deque(
            (p for p in self._pending if p.event_id in unsent), maxlen=PENDING_MAX
        )
        return lost

    def due(self, now_s: float) -> list[str]:
        """The event ids of the updates that no answer is awaited for any more."""
        overdue = []
        self._pending = deque(
            (p if p.asked_s is not None else _Pending(p.event_id, now_s) for p in self._pending),
            maxlen=PENDING_MAX,
        )
        while self._pending and now_s - (self._pending[0].asked_s or now_s) >= ACK_WAIT_S:
            overdue.append(self._pending.popleft().event_id)
        return overdue


def is_own(name: str | None) -> bool:
    """Whether an event id is of something that the bridge sent by itself."""
    return name is not None and name.startswith(OWN_EVENT_PREFIX)


def cause_of(event: Event) -> str | None:
    """The event id that an `error` names."""
    error = event.get("error")
    cause = error.get("event_id") if isinstance(error, dict) else None
    return cause if isinstance(cause, str) else None


def without_given_name(event: Event) -> Event:
    """An `error` as the client may see it: an event id that it never gave is taken out."""
    if not (cause_of(event) or "").startswith((NAMED_EVENT_PREFIX, OWN_EVENT_PREFIX)):
        return event
    return {**event, "error": {**event["error"], "event_id": None}}
