"""How many cores, hosts and bytes a number of concurrent voice sessions asks of relays.

1. What a packet costs is measured on this machine (capacity_probe.py) or given; all else is counted.
2. Headroom is part of the plan, never of the figures: a host runs at `Site.load` of what it can do, and
   `Site.spare` of them, at least one, may be lost before that is exceeded.
3. Only relays are counted: what transceivers and backends need depends on what they do with the sound.
"""

import math
from dataclasses import dataclass

from relay._dataplane import table_bytes

SPP_BYTES = 38
UDP_IP_BYTES = 28
ETHERNET_BYTES = 38
"""Of a frame: header, checksum, preamble and gap."""

FLOWS_PER_SESSION = 1.5
"""A client checks from several addresses; those it does not use live for the idle timeout."""

CHECKS_PER_S = 0.4
"""One connectivity check each 2.5 s (Chromium), answered."""

WORKER_BYTES = 40 << 20
"""A worker process without its table: interpreter, slots, caps, socket buffers as configured."""


@dataclass(frozen=True)
class Voice:
    """What one session sends, each way."""

    packets_per_s: float = 50.0
    payload_bytes: int = 102
    """SRTP of 20 ms of Opus at about 32 kbit/s."""


@dataclass(frozen=True)
class Cost:
    """CPU microseconds that a packet takes of a worker."""

    up_us: float
    down_us: float


@dataclass(frozen=True)
class Site:
    """What hosts are like, and how full they may be."""

    cores: int = 16
    """That workers may have, of each host."""
    nic_gbit_s: float = 10.0
    load: float = 0.5
    """Of cores and network, on a day without a failure."""
    spare: float = 0.05
    """Hosts beside those that are needed, as a share of them; at least one."""
    redis_refresh_s: float = 15.0
    moves_per_session_hour: float = 2.0
    """Client addresses that change, or are sent to another relay host: each is a lookup."""


@dataclass(frozen=True)
class Plan:
    """What it takes."""

    sessions: int
    packets_per_s: float
    """Of all relays, both ways, counted once as they come in."""
    busy_cores: float
    hosts_by_cpu: int
    hosts_by_network: int
    hosts: int
    """With the spare ones."""
    spare_hosts: int
    sessions_per_host: int
    """When all hosts are there."""
    public_gbit_s: float
    """One way; on the wire."""
    internal_gbit_s: float
    flows_per_host: int
    memory_bytes_per_host: int
    redis_writes_per_s: float
    redis_reads_per_s: float
    redis_keys: int
    redis_bytes: int


REDIS_KEY_BYTES = 220
"""Of a flow's key and value in Redis, its expiry included."""


def plan(sessions: int, cost: Cost, voice: Voice | None = None, site: Site | None = None) -> Plan:
    """Counts. Raises ValueError for a site without cores, network or load."""
    voice, site = voice or Voice(), site or Site()
    if site.cores < 1 or site.nic_gbit_s <= 0 or not 0 < site.load <= 1 or sessions < 1:
        raise ValueError(f"nothing to plan for: {sessions} sessions, {site}")
    each_way_s = sessions * (voice.packets_per_s + CHECKS_PER_S)
    busy_cores = each_way_s * (cost.up_us + cost.down_us) / 1e6
    wire_bytes = voice.payload_bytes + UDP_IP_BYTES + ETHERNET_BYTES
    public_gbit_s = each_way_s * wire_bytes * 8 / 1e9
    internal_gbit_s = each_way_s * (wire_bytes + SPP_BYTES) * 8 / 1e9
    by_cpu = math.ceil(busy_cores / (site.cores * site.load))
    by_network = math.ceil((public_gbit_s + internal_gbit_s) / (site.nic_gbit_s * site.load))
    working = max(by_cpu, by_network)
    spare_hosts = max(1, math.ceil(working * site.spare))
    hosts = working + spare_hosts
    # As many flows must fit when the spare hosts are the ones that are lost.
    flows_per_host = math.ceil(sessions * FLOWS_PER_SESSION / working)
    per_worker = math.ceil(flows_per_host / site.cores)
    return Plan(
        sessions=sessions,
        packets_per_s=2 * each_way_s,
        busy_cores=busy_cores,
        hosts_by_cpu=by_cpu,
        hosts_by_network=by_network,
        hosts=hosts,
        spare_hosts=spare_hosts,
        sessions_per_host=math.ceil(sessions / hosts),
        public_gbit_s=public_gbit_s,
        internal_gbit_s=internal_gbit_s,
        flows_per_host=flows_per_host,
        memory_bytes_per_host=site.cores * (table_bytes(per_worker) + WORKER_BYTES),
        redis_writes_per_s=sessions / site.redis_refresh_s,
        redis_reads_per_s=sessions * site.moves_per_session_hour / 3600,
        redis_keys=sessions,
        redis_bytes=sessions * REDIS_KEY_BYTES,
    )


def describe(result: Plan, cost: Cost, site: Site, how: str) -> str:
    """The plan for people, one fact a line."""
    public, internal = f"{result.public_gbit_s:,.2f}", f"{result.internal_gbit_s:,.2f}"
    host = f"{site.cores} cores and {site.nic_gbit_s:g} Gbit/s at {site.load:.0%}"
    redis = f"{result.redis_writes_per_s:,.0f} writes and {result.redis_reads_per_s:,.1f} reads"
    lines = {
        "sessions": f"{result.sessions:,}",
        "a packet takes": f"{cost.up_us:.2f} µs up, {cost.down_us:.2f} µs down ({how})",
        "packets a second": f"{result.packets_per_s:,.0f}",
        "busy cores": f"{result.busy_cores:,.1f}",
        "hosts": f"{result.hosts:,} of {host}, {result.spare_hosts:,} of them to spare",
        "hosts by need": f"{result.hosts_by_cpu:,} for CPU, {result.hosts_by_network:,} for network",
        "sessions a host": f"{result.sessions_per_host:,}",
        "network, each way": f"{public} Gbit/s public, {internal} Gbit/s internal",
        "memory a host": f"{result.memory_bytes_per_host / 2**20:,.0f} MiB for workers with "
        f"{result.flows_per_host:,} flows",
        "Redis": f"{redis} a second, {result.redis_bytes / 2**20:,.0f} MiB",
    }
    return "\n".join(f"{name:<18} {text}" for name, text in lines.items())
