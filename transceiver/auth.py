"""Who may call: the seam for keys and client secrets.

1. Until keys are configured any bearer passes, also none, and the server listens on loopback
   only (config.py) unless told otherwise.
2. A principal is what a call remembers: hangup and stats of a call need the same one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

ANYONE = "anyone"


class Authenticator(Protocol):
    """Tells who sends a request."""

    def principal(self, headers: Mapping[str, str]) -> str:
        """A name that is stable for one key or secret. Raises RequestError 401 or 403."""


class OpenHouse:
    """Lets everybody in, as one principal."""

    def principal(self, headers: Mapping[str, str]) -> str:
        """See Authenticator.principal."""
        return ANYONE
