"""What a call between regions is like: set-up, round trip, jitter and loss of one way to the transceiver."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

from tests.support.caller import Caller
from tests.support.lab import PORT, Host, TransceiverHost

STAGES = ("answer", "ice", "dtls", "sound")
LAST_ECHO_S = 0.5


@dataclass(frozen=True)
class CallFigures:
    """One call."""

    stages_s: dict[str, float]
    """From placing it until each of STAGES."""
    round_trips_s: list[float]
    """Of each packet that came back, in the order of sending."""
    sent: int
    lost: int

    @property
    def jitter_s(self) -> float:
        """Mean difference of neighbours' transit times, as RFC 3550 6.4.1 has it without its smoothing."""
        pairs = itertools.pairwise(self.round_trips_s)
        return sum(abs(later - earlier) for earlier, later in pairs) / (len(self.round_trips_s) - 1)


def measure(
    signaling: TransceiverHost, client: Host, entry: str | None, seconds: float
) -> CallFigures:
    """Place a call, through an entry or the one that the answer names, and talk for some seconds."""
    remotes = [(entry, PORT)] if entry else []
    with Caller(client, signaling, remotes=remotes) as caller:
        caller.wait_connected()
        time.sleep(seconds)
        talked = len(caller.sent_s)
        time.sleep(LAST_ECHO_S)
        sent_s, heard_s = caller.sent_s[:talked], dict(caller.heard_s)
        began_s = caller.timeline_s["placed"]
        stages_s = {stage: caller.timeline_s[stage] - began_s for stage in STAGES}
    # What is sent before the server has the keys is nobody's loss on the way.
    first = min(heard_s)
    trips_s = [heard_s[n] - at_s for n, at_s in enumerate(sent_s) if n in heard_s]
    return CallFigures(stages_s, trips_s, talked - first, talked - first - len(trips_s))
