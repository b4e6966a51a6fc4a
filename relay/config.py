"""What `relay serve` was told, parsed and checked once, before anything is bound.

1. Strings come in, dataclasses go out; behind this file nobody parses an option again.
2. Every fault is a ConfigError that names the option and the value.
3. The same names serve the command line (--drain-timeout), the environment (RELAY_DRAIN_TIMEOUT)
   and the TOML file (drain_timeout).
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv6Network
from pathlib import Path

from relay import _dataplane as dataplane
from relay import addresses, cpus
from relay.addresses import AllowedNetwork, HostPort, Listen, read_number
from relay.backbones import Backbone
from relay.cache_policy import LOOKUPS_PER_S
from relay.errors import ConfigError
from relay.tuning import SteerMode
from relay.wire.fleet import NAME
from relay.wire.keyring import Keyring, KeyringError
from relay.wire.log import LogFormat
from relay.wire.redis_url import check_redis_url

MAX_WORKERS = 128

CACHE_LIMIT = "cache_lookups_per_s"
LIMITS: Mapping[str, int] = {**dataplane.LIMITS, CACHE_LIMIT: LOOKUPS_PER_S}
"""What --limit may change, and the defaults. The cache's is the host's, all others are each worker's."""


@dataclass(frozen=True)
class ServeConfig:
    """A checked configuration of one relay host."""

    listen: tuple[Listen, ...]
    workers: int
    cluster: int
    keyring: Keyring
    internal: HostPort
    """Worker `slot` binds port + slot, or any port when it is 0."""
    allow_transceiver: tuple[AllowedNetwork, ...]
    ipv6_prefixes: Mapping[int, IPv6Network]
    backbone: Backbone | None
    """Where other clusters' relays hand datagrams over; None: nowhere."""
    cluster_routes: Mapping[int, tuple[HostPort, ...]]
    """Where to hand over what is for another cluster."""
    backbone_keys: tuple[bytes, ...] = field(repr=False)
    """Of --backbone-key, the signing one first; none: relays of other clusters need no trailer."""
    limits: Mapping[str, int]
    """Caps that differ from the defaults of the data plane."""
    idle_timeout_s: float
    max_flows: int
    """Established flows of the whole host, shared out evenly to the workers."""
    receive_buffer_bytes: int
    drain_timeout_s: float
    drain_min_flows: int
    """Draining ends early once fewer established flows are left."""
    redis: str | None = field(repr=False)
    """The flow cache's URL, which may hold a password."""
    ingress_name: str | None
    """The ingress that this relay announces to the fleet in Redis; None: none."""
    admin: HostPort
    run_dir: Path
    takeover: bool
    """Take sockets and tables over from the relay that runs in `run_dir`."""
    pins: tuple[int, ...] | None
    """The CPU of each worker; None: not pinned."""
    coalesce_us: int
    """How long a worker sleeps after a batch that was not full."""
    steer: SteerMode
    """Which worker's socket gets a datagram: by the kernel's hash, or by the CPU that received it."""
    busy_poll_us: int
    """How long the kernel may look for packets in the network card before it sleeps; 0: off."""
    cache_lookups_per_s: int
    """Of the whole host."""

    @property
    def max_flows_per_worker(self) -> int:
        """What each worker's table must hold."""
        return -(-self.max_flows // self.workers)

    def forward_description(self) -> dict[str, object]:
        """The arguments of the data plane's ForwardConfig in JSON, keys in hex."""
        return {
            "cluster_id": self.cluster,
            "keys": [(key.id, key.secret.hex()) for key in self.keyring.keys],
            "allow_transceiver": [
                (str(allowed.network), allowed.port_min, allowed.port_max)
                for allowed in self.allow_transceiver
            ],
            "ipv6_prefixes": {str(i): str(prefix) for i, prefix in self.ipv6_prefixes.items()},
            "backbone_allow": [str(peer) for peer in self.backbone.allow] if self.backbone else [],
            "cluster_routes": {
                str(cluster): [(str(address.ip), address.port) for address in route]
                for cluster, route in self.cluster_routes.items()
            },
            "backbone_keys": [key.hex() for key in self.backbone_keys],
            "limits": dict(self.limits),
            "idle_timeout_s": self.idle_timeout_s,
            "park": self.redis is not None,
        }


@dataclass(frozen=True)
class LogConfig:
    """How every process of the relay logs."""

    level: str
    format: LogFormat


def parse_workers(option: str, text: str) -> int:
    """A number of workers, or `auto`: min(affinity, ceil(cpu.max))."""
    if text == "auto":
        return min(MAX_WORKERS, cpus.auto_workers(len(cpus.allowed_cpus()), cpus.cpu_quota()))
    count = read_number(text, MAX_WORKERS)
    if not count:
        raise ConfigError(option, text, f"expected `auto` or a number from 1 to {MAX_WORKERS}")
    return count


def load_keyring(option: str, path: str) -> Keyring:
    """The keyring of a file; a fault names the file and never shows a key."""
    try:
        return Keyring.load(path)
    except KeyringError as error:
        raise ConfigError(option, path, str(error).removeprefix(path).lstrip(":, ")) from None


def parse_ipv6_prefixes(option: str, texts: Sequence[str]) -> dict[int, IPv6Network]:
    """INDEX=PREFIX/64 each; an index from 0 to 15 is given once."""
    prefixes: dict[int, IPv6Network] = {}
    for text in texts:
        index_text, equals, prefix = text.partition("=")
        if not equals:
            raise ConfigError(option, text, "expected INDEX=PREFIX/64")
        index = read_number(index_text, 15)
        if index is None:
            raise ConfigError(option, text, "the index is a number from 0 to 15")
        if index in prefixes:
            raise ConfigError(option, text, f"index {index} is given twice")
        network = addresses.parse_network(option, prefix, text)
        if not isinstance(network, IPv6Network) or network.prefixlen != 64:
            raise ConfigError(option, text, "the prefix is not an IPv6 /64")
        prefixes[index] = network
    return prefixes


def parse_limits(option: str, texts: Sequence[str], known: Mapping[str, int]) -> dict[str, int]:
    """NAME=N each, with a name of `known` (dashes and underscores are the same)."""
    limits: dict[str, int] = {}
    for text in texts:
        name, equals, number_text = text.partition("=")
        name = name.replace("-", "_")
        if not equals:
            raise ConfigError(option, text, "expected NAME=NUMBER")
        if name not in known:
            names = ", ".join(sorted(known)).replace("_", "-")
            raise ConfigError(option, text, f"unknown limit; the limits are {names}")
        number = read_number(number_text, (1 << 32) - 1)
        if not number:
            raise ConfigError(option, text, "expected a number from 1 to 4294967295")
        if name in limits:
            raise ConfigError(option, text, "this limit is given twice")
        limits[name] = number
    return limits


def parse_redis(option: str, url: str | None) -> str | None:
    """A Redis URL without the line end that files and secrets have; the error repeats none of it."""
    if url is None:
        return None
    try:
        check_redis_url(url.strip())
    except ValueError as error:
        raise ConfigError(option, "URL", str(error)) from None
    return url.strip()


def parse_ingress_name(option: str, name: str | None, redis: str | None) -> str | None:
    """The name of an ingress, as transceivers have it in --ingress; it is announced in Redis."""
    if name is None:
        return None
    if not NAME.fullmatch(name):
        raise ConfigError(option, name, "expected up to 64 letters, digits, `.`, `_` and `-`")
    if redis is None:
        raise ConfigError(option, name, "needs --redis, where it is announced")
    return name


def default_run_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """$RUNTIME_DIRECTORY (systemd), else /run/relay, else `relay` under $XDG_RUNTIME_DIR."""
    if environ.get("RUNTIME_DIRECTORY"):
        return Path(environ["RUNTIME_DIRECTORY"].partition(":")[0])
    system = Path("/run/relay")
    usable = system if system.exists() else system.parent
    if environ.get("XDG_RUNTIME_DIR") and not os.access(usable, os.W_OK):
        return Path(environ["XDG_RUNTIME_DIR"]) / "relay"
    return system


def check_number(option: str, listen: Sequence[Listen]) -> None:
    """Raise ConfigError when there are more addresses than a worker can serve."""
    sockets, most = sum(len(each.binds) for each in listen), dataplane.PUBLIC_SOCKETS_MAX
    if sockets > most:
        reason = f"at most {most}, and `*` is one of each family"
        raise ConfigError(option, f"with {sockets} addresses", reason)


def check_apart(
    listen: Sequence[Listen], internal: HostPort, workers: int, backbone: Backbone | None
) -> None:
    """Raise ConfigError when there are too few ports, or two options ask for one: the kernel's refusal would read as if it were a stranger's."""
    if internal.port + workers - 1 > 65535:
        raise ConfigError("--internal", internal, f"no room for {workers} ports above it")
    wanted = [("--listen", HostPort(ip, each.port), 1) for each in listen for ip in each.binds]
    wanted.append(("--internal", internal, workers))
    wanted += [("--backbone", backbone.where, 1)] if backbone else []
    for number, (option, where, ports) in enumerate(wanted):
        for other_option, other, other_ports in wanted[:number]:
            collide = where.port < other.port + other_ports and other.port < where.port + ports
            if where.port and other.port and collide and addresses.overlap(where.ip, other.ip):
                raise ConfigError(option, where, f"the port is that of {other_option} {other}")
