"""What an operator may set: read from flags, environment and TOML, checked before anything is bound.

1. Every fault is one ConfigError whose text names the option and the value.
2. Nothing here opens a socket; the only file read is the one that was named.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from relay.wire.address import Endpoint, read_network
from relay.wire.keyring import Keyring, KeyringError, generate_line
from relay.wire.redis_url import check_redis_url

from .auth import ApiKey, AuthFileError, load_api_keys, load_auth_secret
from .backend_config import BackendOptions
from .errors import ConfigError
from .geoip import Finder
from .limits import Span
from .sites import Cluster, Ingress, read_endpoint, read_host

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

LOOPBACK: tuple[IpNetwork, ...] = (
    ipaddress.ip_network("127.0.0.0/8"),
    ipaddress.ip_network("::1/128"),
)
MAX_WORKERS = 256
MAX_SESSIONS = 1_000_000


@dataclass(frozen=True, slots=True)
class TransceiverConfig:
    """A checked configuration."""

    http: Endpoint
    media: Endpoint
    """Of process 0; process i adds i to the port, unless it is 0."""
    media_advertise: IpAddress
    """What routing tokens carry."""
    workers: int
    cluster_id: int
    keyring: Keyring
    ingresses: tuple[Ingress, ...]
    """Empty only with `direct`: then answers carry the media address itself."""
    second_ingress: bool
    """Answers name the second-best ingress, too."""
    cluster: Cluster
    """This one. Callers of whom nothing is known count as being where it is."""
    other_clusters: tuple[Cluster, ...]
    trusted_proxies: tuple[IpNetwork, ...]
    """Whose headers say where a caller is."""
    geoip: Finder | None
    allowed_relays: tuple[IpNetwork, ...]
    direct: bool
    ipv6_prefixes: Mapping[int, ipaddress.IPv6Network]
    backends: BackendOptions
    api_keys: tuple[ApiKey, ...]
    auth_secret: bytes | None
    redis: tuple[str, ...] = field(repr=False)
    """Where the fleet is told of this pool, and tells of itself; URLs, which may hold passwords."""
    peer: Endpoint | None
    """Where process 0 takes other hosts' requests; process i adds i to the port, unless it is 0."""
    peer_advertise: IpAddress | None
    """What call ids carry; None without `peer`."""
    is_open: bool
    """Anybody may call."""
    span: Span
    """How long a call may last."""
    max_sessions: int
    demo_page: bool
    record_dir: Path | None
    """Where every call's sound is kept; None: nowhere."""
    tls_cert: Path | None
    tls_key: Path | None
    drain_timeout_s: float


def read_networks(option: str, texts: Iterable[str]) -> tuple[IpNetwork, ...]:
    """CIDRs; a bare address is a network of one."""
    networks = []
    for text in texts:
        try:
            networks.append(read_network(text))
        except ValueError as error:
            raise ConfigError(f"{option}: {text!r} is no CIDR: {error}") from None
    return tuple(networks)


def read_prefixes(texts: Iterable[str]) -> dict[int, ipaddress.IPv6Network]:
    """INDEX=PREFIX/64, each index once."""
    prefixes: dict[int, ipaddress.IPv6Network] = {}
    for text in texts:
        index, _, prefix = text.partition("=")
        try:
            network = ipaddress.IPv6Network(prefix)
        except ValueError:
            network = None
        if network is None or network.prefixlen != 64 or not re.fullmatch(r"[0-9]|1[0-5]", index):
            raise ConfigError(f"--ipv6-prefix: {text!r} must be INDEX=PREFIX/64, INDEX 0..15")
        if int(index) in prefixes:
            raise ConfigError(f"--ipv6-prefix: index {index} is given twice")
        prefixes[int(index)] = network
    return prefixes


def read_workers(text: str) -> int:
    """A number or `auto`: the CPUs this process may use, by affinity and cgroup quota."""
    if text == "auto":
        return max(1, min(len(os.sched_getaffinity(0)), _cgroup_cpus(), MAX_WORKERS))
    if not re.fullmatch(r"[0-9]{1,4}", text) or not 1 <= int(text) <= MAX_WORKERS:
        raise ConfigError(f"--workers: {text!r} must be `auto` or 1..{MAX_WORKERS}")
    return int(text)


def _cgroup_cpus() -> int:
    """ceil(cpu.max) of this process's cgroup (v2); a large number without a quota."""
    unlimited = 1 << 20
    try:
        group = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2]
        quota, period = (Path("/sys/fs/cgroup" + group) / "cpu.max").read_text().split()
        return unlimited if quota == "max" else math.ceil(int(quota) / int(period))
    except (OSError, ValueError):
        return unlimited


def read_keyring(path: str | None, *, direct: bool) -> Keyring:
    """The ring that seals ufrags. Without relays (`direct`) nobody opens them: any key will do."""
    if path is None:
        if not direct:
            raise ConfigError("--keyring: is required (`relay keygen` prints a line for it)")
        return Keyring.parse(generate_line())
    try:
        return Keyring.load(path)
    except KeyringError as error:
        raise ConfigError(f"--keyring: {error}") from None


def read_auth(
    api_keys: str | None, auth_secret: str | None
) -> tuple[tuple[ApiKey, ...], bytes | None]:
    """The server keys and the secret that seals client secrets; empty and None where not given."""
    keys: tuple[ApiKey, ...] = ()
    secret = None
    if api_keys is not None:
        try:
            keys = load_api_keys(Path(api_keys))
        except AuthFileError as error:
            raise ConfigError(f"--api-keys: {error}") from None
    if auth_secret is not None:
        try:
            secret = load_auth_secret(Path(auth_secret))
        except AuthFileError as error:
            raise ConfigError(f"--auth-secret: {error}") from None
    return keys, secret


def read_peer(
    peer: str | None, advertise: str | None, secret: bytes | None
) -> tuple[Endpoint | None, IpAddress | None]:
    """Where other hosts forward requests to, and the address that call ids carry."""
    if peer is None:
        if advertise is not None:
            raise ConfigError("--peer-advertise: is of no use without --peer")
        return None, None
    if secret is None:
        raise ConfigError("--peer: needs --auth-secret, by which hosts know each other")
    at = read_endpoint("--peer", peer)
    if advertise is None:
        if at.ip.is_unspecified:
            raise ConfigError("--peer-advertise: is required with a wildcard --peer address")
        return at, at.ip
    try:
        address = read_host(advertise)
    except ValueError:
        raise ConfigError(f"--peer-advertise: {advertise!r} is no IP address") from None
    if address.is_unspecified:
        raise ConfigError(f"--peer-advertise: {advertise!r} is nowhere")
    return at, address


def read_redis(urls: Iterable[str]) -> tuple[str, ...]:
    """Redis URLs, without the line end that files and secrets have; an error repeats none of it."""
    read = tuple(url.strip() for url in urls)
    for url in read:
        try:
            check_redis_url(url)
        except ValueError as error:
            raise ConfigError(f"--redis: {error}") from None
    return read


def check_exposure(http: Endpoint, *, guarded: bool, insecure_open: bool) -> None:
    """Without keys everybody may call, so only this machine may ask (design 3.7)."""
    if not http.ip.is_loopback and not guarded and not insecure_open:
        raise ConfigError(
            f"--http: {http} is not loopback and no API keys are set: anybody could place calls. "
            "Use --api-keys or --auth-secret, a loopback address, or --insecure-open if that is meant"
        )


def check_media(
    media: Endpoint, advertise: str | None, networks: tuple[IpNetwork, ...], *, direct: bool
) -> tuple[IpAddress, tuple[IpNetwork, ...]]:
    """The address for tokens and the relays that are believed."""
    if advertise is None:
        if media.ip.is_unspecified:
            raise ConfigError("--media-advertise: is required with a wildcard --media address")
        address: IpAddress = media.ip
    else:
        try:
            address = read_host(advertise)
        except ValueError:
            raise ConfigError(f"--media-advertise: {advertise!r} is no IP address") from None
        if address.is_unspecified:
            raise ConfigError(f"--media-advertise: {advertise!r} is nowhere")
    if not networks:
        if media.ip.is_loopback:
            networks = LOOPBACK
        elif not direct:
            raise ConfigError("--allow-relay: is required unless --media is on loopback")
    return address, networks


def check_sealable(address: IpAddress, prefixes: Mapping[int, ipaddress.IPv6Network]) -> None:
    """An IPv6 address must lie under a known prefix to fit into a token (design 3.1)."""
    if isinstance(address, ipaddress.IPv6Address) and not any(
        address in network for network in prefixes.values()
    ):
        raise ConfigError(f"--ipv6-prefix: none of the prefixes covers the media address {address}")


def check_record_dir(directory: str | None) -> Path | None:
    """A directory that we can make files in."""
    if directory is None:
        return None
    path = Path(directory)
    try:
        tempfile.TemporaryFile(dir=path).close()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"--record-dir: cannot write into {directory}: {reason}") from None
    return path


def check_tls(cert: str | None, key: str | None) -> tuple[Path | None, Path | None]:
    """Both or neither, readable and fitting."""
    if cert is None and key is None:
        return None, None
    if cert is None or key is None:
        raise ConfigError("--tls-cert and --tls-key: need each other")
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--tls-cert: {cert!r} with --tls-key {key!r}: {error}") from None
    return Path(cert), Path(key)
