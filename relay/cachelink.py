"""What connects the workers to the flow cache: shared desks, a bell, and an eventfd for each slot.

1. It belongs to one supervisor: a successor makes its own. What lies on an old desk is only cache.
2. The Redis URL may hold a password: it goes to the control process and nowhere else.
"""

import os
from dataclasses import dataclass, field

from relay._dataplane import create_desks


@dataclass(frozen=True)
class CacheLink:
    """The descriptors, open for the supervisor's life."""

    url: str = field(repr=False)
    lookups_per_s: int
    desks_fd: int
    bell_fd: int
    answer_fds: tuple[int, ...]
    """One for each slot."""

    @property
    def fds(self) -> list[int]:
        """All of them, for a child."""
        return [self.desks_fd, self.bell_fd, *self.answer_fds]


def open_cache_link(url: str, lookups_per_s: int, slots: int) -> CacheLink:
    """Empty desks and silent bells. Raises OSError."""
    flags = os.EFD_CLOEXEC | os.EFD_NONBLOCK
    answer_fds = tuple(os.eventfd(0, flags) for _ in range(slots))
    return CacheLink(url, lookups_per_s, create_desks(slots), os.eventfd(0, flags), answer_fds)
