"""Addresses, networks and port ranges as they are written on a command line.

1. Every function takes the option's name and raises ConfigError with it and the offending value.
2. Hosts are literals, names that resolve now, or `*` for every address of both families.
3. IPv4-mapped IPv6 addresses become IPv4 at once: nothing behind this file sees one.
4. An address is one host's, and the same wherever it stands: no multicast, no broadcast, no `%zone` and nothing
   that needs one, since what it is written into (SPP, tokens, flow keys) has no room for it.
"""

import ipaddress
import re
import socket
from dataclasses import dataclass

from relay.errors import ConfigError
from relay.wire.address import host_ip, read_network

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

WILDCARDS: tuple[IPAddress, ...] = (
    ipaddress.IPv4Address("0.0.0.0"),
    ipaddress.IPv6Address("::"),
)


@dataclass(frozen=True)
class HostPort:
    """One address and port; port 0 means any free one."""

    ip: IPAddress
    port: int

    def __str__(self) -> str:
        return format_endpoint(str(self.ip), self.port)


@dataclass(frozen=True)
class Listen:
    """One `--listen`: the addresses to bind and what clients are told instead."""

    binds: tuple[IPAddress, ...]
    port: int
    public: HostPort | None
    """What is advertised; None: the address that the packet was sent to. Port 0: the bound port."""


@dataclass(frozen=True)
class AllowedNetwork:
    """Transceivers that the relay may reach."""

    network: IPNetwork
    port_min: int
    port_max: int


def format_endpoint(host: str, port: int) -> str:
    """`1.2.3.4:5` or `[::1]:5`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_endpoint(option: str, text: str) -> HostPort:
    """HOST:PORT with a literal or a name that resolves to one address (the first one counts)."""
    host, port = _split(option, text)
    if host in ("", "*"):
        raise ConfigError(option, text, "an address is needed before the port")
    return HostPort(_resolve(option, text, host)[0], port)


def parse_listen(option: str, text: str) -> Listen:
    """ADDR:PORT[=PUBLIC:PORT]; ADDR may be `*`, which binds IPv4 and IPv6."""
    local, has_public, advertised = text.partition("=")
    host, port = _split(option, local)
    binds = WILDCARDS if host in ("", "*") else _resolve(option, text, host)
    if not has_public:
        return Listen(binds, port, None)
    public = parse_endpoint(option, advertised)
    binds = tuple(ip for ip in binds if ip.version == public.ip.version)
    if not binds:
        raise ConfigError(option, text, "the public address is of another family")
    if public.ip.is_unspecified:
        raise ConfigError(option, text, "a wildcard cannot be advertised")
    return Listen(binds, port, public)


def parse_allowed_network(option: str, text: str) -> AllowedNetwork:
    """CIDR[:PORT[-PORT]], such as `10.0.0.0/8:40000-50000` or `[fd00::/8]:40000-50000`."""
    network, ports = text, ""
    if text.startswith("["):
        network, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ConfigError(option, text, "expected [CIDR]:PORT-PORT")
        ports = rest[1:]
    elif "/" in text:
        address, _, rest = text.partition("/")
        bits, _, ports = rest.partition(":")
        network = f"{address}/{bits}"
    elif text.count(":") == 1:
        network, _, ports = text.partition(":")
    port_min, port_max = 0, 65535
    if not ports and text.endswith(":") and not text.endswith("::"):
        raise ConfigError(option, text, "a port or a range is needed after the colon")
    if ports:
        first, dash, last = ports.partition("-")
        port_min = _port(option, text, first)
        port_max = _port(option, text, last) if dash else port_min
    if port_min > port_max:
        raise ConfigError(option, text, "the port range is upside down")
    return AllowedNetwork(parse_network(option, network, text), port_min, port_max)


def parse_network(option: str, network: str, text: str | None = None) -> IPNetwork:
    """A CIDR without host bits; `text` is the value to name in an error."""
    try:
        return read_network(network)
    except ValueError as error:
        raise ConfigError(option, text or network, str(error)) from None


def _split(option: str, text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon:
        raise ConfigError(option, text, "expected ADDRESS:PORT")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(option, text, "an IPv6 address needs brackets, as in [::1]:3478")
    return host, _port(option, text, port)


def read_number(text: str, most: int) -> int | None:
    """A decimal number from 0 to `most` (under 10^10); None when the text is anything else, however long."""
    if not re.fullmatch(r"[0-9]{1,10}", text) or int(text) > most:
        return None
    return int(text)


def overlap(one: IPAddress, other: IPAddress) -> bool:
    """Whether two sockets with one port and these addresses would be in each other's way."""
    return one.version == other.version and (
        one == other or one.is_unspecified or other.is_unspecified
    )


def _port(option: str, text: str, port: str) -> int:
    number = read_number(port, 65535)
    if number is None:
        raise ConfigError(option, text, "the port is not a number from 0 to 65535")
    return number


def _resolve(option: str, text: str, host: str) -> tuple[IPAddress, ...]:
    """The distinct addresses of `host`, in the resolver's order."""
    try:
        literal = ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return (_one_host(option, text, literal),)
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(option, text, f"{host} does not resolve ({reason})") from None
    except UnicodeError:  # a label that is empty, too long, or no name at all
        raise ConfigError(option, text, f"{host!r} is no host name") from None
    ips = [ipaddress.ip_address(entry[4][0]) for entry in found]
    usable = [ip for ip in ips if not ip.is_link_local or ip.version == 4] or ips
    return tuple(dict.fromkeys(_one_host(option, text, ip) for ip in usable))


def _one_host(option: str, text: str, ip: IPAddress) -> IPAddress:
    try:
        return host_ip(ip)
    except ValueError as error:
        raise ConfigError(option, text, str(error)) from None
