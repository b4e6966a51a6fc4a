"""What a live run of the load generator reports, and how to ask for one."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.programs import Program


class Live(NamedTuple):
    """One run: both directions, delays from before sending to the receiving socket, an attack."""

    up_sent: int
    up_received: int
    up_astray: int
    up_p50_ns: int
    up_p99_ns: int
    up_p999_ns: int
    down_sent: int
    down_received: int
    down_astray: int
    down_p50_ns: int
    down_p99_ns: int
    down_p999_ns: int
    attack_sent: int
    checks_answered: int
    responses: int

    @property
    def sent(self) -> int:
        """Packets of calls, both ways."""
        return self.up_sent + self.down_sent

    @property
    def kept(self) -> float:
        """The share of the calls' packets that arrived, of the worse direction."""
        return min(
            received / sent
            for received, sent in (
                (self.up_received, self.up_sent),
                (self.down_received, self.down_sent),
            )
            if sent
        )


def run_live(
    generator: Program,
    ms: int,
    *,
    up: tuple[int, int],
    down: tuple[int, int] = (0, 0),
    sizes: object = "mix",
    attack: tuple[str, int, str] = ("none", 0, ""),
) -> Live:
    """Offers (port, packets a second) each way and (name, packets a second, token) for so long."""
    words = ("live", ms, *up, *down, sizes, *attack[:2], *filter(None, attack[2:]))
    return Live(*generator.ask(*words))
