"""The options of two tiers: where other clusters' relays come in, and where their clients are sent.

1. A relay is an entry to the clusters it has a route to, and the relay of its own; it may be both.
2. What came in over a backbone takes no route (csrc/relay/routes.h): these options cannot make a loop.
3. Addresses of a route are put in order, so that relays whose options differ in it alone choose alike.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from relay import addresses
from relay.addresses import HostPort, IPNetwork
from relay.errors import ConfigError
from relay.wire.files import read_small_file

ROUTE_ADDRESSES_MAX = 8
ALL_ADDRESSES_MAX = 512
KEYS_MAX = 4
_KEY = re.compile(r"[0-9A-Fa-f]{32}", re.ASCII)


@dataclass(frozen=True)
class Backbone:
    """Where relays of other clusters hand datagrams over, and which may."""

    where: HostPort
    allow: tuple[IPNetwork, ...]


def parse_backbone(where: str | None, allow: Sequence[str]) -> Backbone | None:
    """--backbone and --backbone-allow, which only go together."""
    if where is None:
        if allow:
            raise ConfigError("--backbone-allow", allow[0], "it needs --backbone")
        return None
    bind = addresses.parse_endpoint("--backbone", where)
    if bind.ip.is_unspecified:
        # Entries take replies only from the addresses of their route.
        raise ConfigError("--backbone", where, "name the one address that routes lead to")
    if not allow:
        raise ConfigError("--backbone", where, "it needs --backbone-allow")
    networks = tuple(addresses.parse_network("--backbone-allow", text) for text in allow)
    return Backbone(bind, networks)


def parse_cluster_routes(
    option: str, texts: Sequence[str], own_cluster: int, internal: HostPort
) -> dict[int, tuple[HostPort, ...]]:
    """ID=HOST:PORT[,HOST:PORT] each; a cluster is given once, and `internal` must reach the addresses."""
    routes: dict[int, tuple[HostPort, ...]] = {}
    for text in texts:
        number, equals, rest = text.partition("=")
        cluster = addresses.read_number(number, 65535)
        if not equals or cluster is None:
            raise ConfigError(option, text, "expected ID=HOST:PORT[,HOST:PORT], ID from 0 to 65535")
        if cluster == own_cluster:
            raise ConfigError(option, text, f"{cluster} is this relay's own --cluster")
        if cluster in routes:
            raise ConfigError(option, text, f"cluster {cluster} is given twice")
        route = {_route_address(option, part, internal) for part in rest.split(",")}
        if len(route) != rest.count(",") + 1:
            raise ConfigError(option, text, "an address is given twice")
        if len(route) > ROUTE_ADDRESSES_MAX:
            raise ConfigError(option, text, f"more than {ROUTE_ADDRESSES_MAX} addresses")
        routes[cluster] = tuple(
            sorted(route, key=lambda at: (at.ip.version, at.ip.packed, at.port))
        )
        if sum(len(addresses) for addresses in routes.values()) > ALL_ADDRESSES_MAX:
            raise ConfigError(option, text, f"more than {ALL_ADDRESSES_MAX} addresses in all")
    return routes


def _route_address(option: str, text: str, internal: HostPort) -> HostPort:
    address = addresses.parse_endpoint(option, text)
    if address.port == 0 or address.ip.is_unspecified:
        raise ConfigError(option, text, "not an address that can be sent to")
    serves_both = internal.ip.version == 6 and internal.ip.is_unspecified
    if address.ip.version != internal.ip.version and not serves_both:
        raise ConfigError(option, text, f"--internal {internal} is of the other address family")
    return address


def load_backbone_keys(option: str, path: str | None, *, is_used: bool) -> tuple[bytes, ...]:
    """The keys of a file, none without one, 16 bytes each: 32 hex digits a line, `#` starts a comment, at most KEYS_MAX.

    The first one signs, all verify. A fault names file and line, and never shows a key.
    """
    if path is None:
        return ()
    if not is_used:
        raise ConfigError(option, path, "it needs --backbone or --cluster-route")
    try:
        text = read_small_file(path).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(option, path, error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise ConfigError(option, path, "not a text file") from None
    keys: list[bytes] = []
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        if not _KEY.fullmatch(content):
            raise ConfigError(option, path, f"line {number}: not 32 hex digits")
        key = bytes.fromhex(content)
        if key in keys:
            raise ConfigError(option, path, f"line {number}: the key occurs twice")
        keys.append(key)
    if not keys:
        raise ConfigError(option, path, "no key in it (`relay keygen --backbone` prints one)")
    if len(keys) > KEYS_MAX:
        raise ConfigError(option, path, f"more than {KEYS_MAX} keys")
    return tuple(keys)
