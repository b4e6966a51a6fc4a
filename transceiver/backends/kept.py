"""What one call keeps, in bytes, to tell its backend again after a connection that broke. Sans-IO.

1. One bound, KEPT_MAX_BYTES, for the session (session_record.py), the conversation (journal.py) and what is unanswered (in_flight.py).
2. Beyond it the oldest of the conversation goes first, then the oldest that is unanswered; each is counted.
3. The client is told once when this begins, and at each new connection how much that one will not know.
"""

from __future__ import annotations

from typing import Final

from .in_flight import InFlight
from .journal import Journal
from .session_record import SessionRecord

KEPT_MAX_BYTES: Final = 1_048_576


class Kept:
    """See the module; one a call."""

    def __init__(self) -> None:
        self.session = SessionRecord()
        self.journal = Journal()
        self.in_flight = InFlight()
        self._evicted = 0
        self._told = False

    @property
    def size_bytes(self) -> int:
        """Of everything that is kept."""
        return self.session.size_bytes + self.journal.size_bytes + self.in_flight.size_bytes

    @property
    def forgotten(self) -> int:
        """Events that a new connection will not be told of."""
        return self._evicted + self.session.outgrown + self.journal.refused

    def shrink(self) -> str | None:
        """Forgets what is too much; what to tell the client, if it is time to."""
        while self.size_bytes > KEPT_MAX_BYTES:
            if not self.journal.forget_oldest() and not self.in_flight.forget_oldest():
                break
            self._evicted += 1
        if self._told or not self.forgotten:
            return None
        self._told = True
        return (
            f"The conversation has outgrown the {KEPT_MAX_BYTES} bytes that are kept of it: should the "
            "backend's connection break, a new one will not know all of it."
        )

    def missing(self) -> str | None:
        """What to tell the client when a new connection was told what is kept."""
        if not self.forgotten:
            return None
        return (
            f"A new connection to the backend does not know {self.forgotten} events of this call."
        )
