"""What the HTTP side of one process works with: made once by the worker, read by app.py and reception.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .auth import Authenticator
from .backends.base import Backend
from .board import Board
from .callid import CallIds, Owner
from .calls import Calls
from .clusters import Clusters
from .entry import Steering
from .fleetboard import FleetBoard
from .limits import KeyLimits, Span
from .peers import Peers
from .siblings import Siblings


@dataclass(frozen=True, slots=True)
class AppParts:
    """See the module."""

    calls: Calls
    call_ids: CallIds
    owner: Owner
    board: Board
    row: int
    siblings: Siblings
    peers: Peers | None
    """None: calls on other hosts are not reached."""
    clusters: Clusters | None
    """None: there is only this one."""
    auth: Authenticator
    steering: Steering
    fleet: FleetBoard
    key_limits: KeyLimits
    backends: Mapping[str, Backend]
    """By name, the default first."""
    span: Span
    """How long any call may last."""
    max_sessions: int
    demo_dir: Path | None
    """Where the demo page lies; None without it."""
    about: dict[str, object]
    """What /demo/config.json says besides the address of the calls."""
