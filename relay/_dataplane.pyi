"""The relay's data plane in C: shared tables, shared counters, and a worker's whole life.

1. Everything here is declarations and lifetimes; the algorithms are csrc/relay.
2. Addresses and networks are text and numbers, as they lie in a JSON file, so that a worker imports
   nothing to describe them; a wrong one raises ValueError with the offending value.
3. File descriptors are borrowed: the caller keeps them open and closes them.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

DROP_REASONS: tuple[tuple[str, str], ...]
"""(label, one sentence) of every reason to drop, in the order of the counters."""

PUBLIC_SOCKETS_MAX: int
LIMITS: Mapping[str, int]
"""Names and default values of the caps of design rule 3 (per worker)."""

class FlowOwner(TypedDict):
    cluster: int
    address: str
    port: int
    token: str | None
    success_age_s: float

class Flow(TypedDict):
    client: tuple[str, int]
    proxy: tuple[str, int]
    state: Literal["half_open", "provisional", "established"]
    owners: list[FlowOwner]
    packets_up: int
    bytes_up: int
    packets_down: int
    bytes_down: int
    age_s: float
    idle_s: float

class SideCounters(TypedDict):
    rx_packets: int
    rx_bytes: int
    tx_packets: int
    tx_bytes: int
    tx_fragmented: int

class Counters(TypedDict):
    progress: int
    progress_ns: int
    worker_pid: int
    public: SideCounters
    internal: SideCounters
    backbone: SideCounters
    drop: dict[str, int]
    kernel_drops: int
    flows_half_open: int
    flows_established: int
    flows_created: int
    flows_promoted: int
    flows_expired: int
    half_open_displaced: int
    probes_sent: int
    probes_answered: int
    probes_echoed: int
    route_falls: int
    route_digest: int
    """Which cluster routes the next one is about (`route_digest`); another worker may have others."""
    route_down: int
    """Bit i: the i-th address of all cluster routes, in their order, is down."""

def table_bytes(max_flows: int) -> int:
    """Bytes of shared memory that a table of `max_flows` flows takes."""

def create_table(max_flows: int) -> int:
    """A new empty flow table: the descriptor of a memfd sealed against resizing.

    Raises OSError when memory is not to be had, ValueError when `max_flows` is out of range.
    """

class Table:
    """A read-only view of a worker's flow table; the worker goes on writing.

    Packets are counted modulo 2^32. `idle_s` counts from the last packet of an owner.
    """

    def __init__(self, fd: int) -> None:
        """Maps the table. Raises OSError, or ValueError for a table of another layout."""
    @property
    def header(self) -> dict[str, int]:
        """Layout version and sizes."""
    def counts(self) -> tuple[int, int]:
        """(half-open, established) flows, recounted from the tags."""
    def flows(self, limit: int = 1000) -> list[Flow]:
        """Up to `limit` flows as they are at this moment, in no order."""
    def audit(self) -> list[str]:
        """One sentence for each entry that contradicts itself; empty when the table is sound."""

def create_stats(slots: int) -> int:
    """Zeroed counters for `slots` workers: the descriptor of a sealed memfd. Raises OSError."""

class Stats:
    """A read-only view of the counters of all workers (csrc/relay/stats.h)."""

    def __init__(self, fd: int, slots: int) -> None:
        """Maps the counters. Raises OSError."""
    def read(self, slot: int) -> Counters:
        """The counters of one worker; each is whole, but they may be of different moments.

        Raises IndexError for an unknown slot.
        """

class PublicSocket:
    """One socket that clients send to."""

    fd: int
    index: int
    public_address: tuple[str, int] | None

    def __init__(self, fd: int, index: int, public_address: tuple[str, int] | None = None) -> None:
        """`index` (0..255) tells the worker's public sockets apart and is the same in every generation
        of workers: flows remember it. `public_address` is what is advertised, if not the local one.
        """

class ForwardConfig:
    """What the forwarder needs to know; JSON-friendly on purpose."""

    def __init__(
        self,
        *,
        cluster_id: int,
        keys: Sequence[tuple[int, bytes]],
        allow_transceiver: Sequence[tuple[str, int, int]],
        ipv6_prefixes: Mapping[int, str] = {},
        backbone_allow: Sequence[str] = (),
        cluster_routes: Mapping[int, Sequence[tuple[str, int]]] = {},
        backbone_keys: Sequence[bytes] = (),
        limits: Mapping[str, int] = {},
        idle_timeout_s: float = 60.0,
        park: bool = False,
    ) -> None:
        """`keys`: (id 0..6, 32 bytes). `allow_transceiver`: (network, first port, last port), 0 and
        65535 for any port. `ipv6_prefixes`: index 0..15 to a /64. `cluster_routes`: cluster id to at
        most 8 addresses. `backbone_keys`: at most 4 of 16 bytes, the signing one first. `limits`: what differs from LIMITS. `park`: a cache can be asked.

        Raises ValueError for a wrong value, MemoryError.
        """

def route_digest(cluster_routes: Mapping[int, Sequence[tuple[str, int]]]) -> int:
    """What the counters of a worker with these routes show as `route_digest`; 0 for none. Raises as ForwardConfig does."""

def create_desks(slots: int) -> int:
    """Empty desks between `slots` workers and the cache: the descriptor of a sealed memfd."""

class Desks:
    """The cache's side of all desks (csrc/relay/desk.h): one process reads notices, writes answers."""

    def __init__(self, fd: int, slots: int) -> None:
        """Maps the desks. Raises OSError."""
    def take(self, slot: int, limit: int = 256) -> list[tuple[bytes, tuple[bytes, ...] | None]]:
        """Up to `limit` notices of a worker: (flow key, None) asks who owns the flow, (flow key, tokens)
        tells it. A key has 36 bytes, a token is sealed, 21 bytes.
        """
    def answer(self, slot: int, key: bytes, tokens: Sequence[bytes]) -> bool:
        """Tells a worker the owners' tokens, 28 characters each and at most two; none: not found. The
        caller then adds 1 to the worker's answers eventfd. False when its mailbox is full.

        Raises ValueError for a wrong length.
        """
    def lost(self, slot: int) -> int:
        """Notices for which a worker found no room, ever."""

class Worker:
    """The relay's loop over one slot's sockets, table and counters. One per process and thread."""

    def __init__(
        self,
        *,
        slot: int,
        public: Sequence[PublicSocket],
        internal_fd: int,
        table_fd: int,
        stats_fd: int,
        stop_fd: int,
        life_fd: int,
        config: ForwardConfig,
        backbone_fd: int = -1,
        desks_fd: int = -1,
        answers_fd: int = -1,
        bell_fd: int = -1,
        batch_max: int = 256,
        coalesce_us: int = 0,
        busy_poll_us: int = 0,
    ) -> None:
        """Maps, checks and prepares everything, so that `run` starts within microseconds.
        `coalesce_us` (at most 10,000): sleep so long after a batch that was not full. With a
        cache: `desks_fd` of create_desks, and two eventfds, this slot's for answers and everybody's
        bell; `config` then has `park`.

        Raises OSError, or ValueError for a table of another layout or a slot that the counters lack.
        """
    def run(self) -> str:
        """Forwards until it is told to stop, without the GIL and without a Python object.

        Returns "stopped" (stop_fd is readable; it is not read), "orphaned" (life_fd is readable or
        hung up) or "failed: TEXT" (the kernel refuses the loop's own descriptors).
        """
