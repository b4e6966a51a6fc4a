"""How addresses, networks and ports are written on the command line, and what is refused."""

import ipaddress

import pytest

from relay.addresses import (
    AllowedNetwork,
    HostPort,
    Listen,
    parse_allowed_network,
    parse_endpoint,
    parse_listen,
)
from relay.errors import ConfigError


def at(ip: str, port: int) -> HostPort:
    return HostPort(ipaddress.ip_address(ip), port)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:3478", at("127.0.0.1", 3478)),
        ("127.0.0.1:0", at("127.0.0.1", 0)),
        ("[::1]:65535", at("::1", 65535)),
        ("[::ffff:10.0.0.1]:1", at("10.0.0.1", 1)),
        ("localhost:1", None),
    ],
)
def test_endpoint(text: str, expected: HostPort | None) -> None:
    parsed = parse_endpoint("--x", text)
    assert parsed == expected or (expected is None and parsed.ip.is_loopback)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:65536",
        "127.0.0.1:-1",
        "127.0.0.1:٣",
        "::1:3478",
        ":3478",
        "*:3478",
        "256.0.0.1:1",
        "no.such.host.invalid:1",
        "a..b:1",
        f"{'a' * 70}.example:1",
        "\udcff:1",
        f"127.0.0.1:{'9' * 5000}",
        "[fe80::1%lo]:1",
        "[fe80::1]:1",
        "[::ffff:224.0.0.1]:1",
        "224.0.0.1:1",
        "255.255.255.255:1",
        "[ff02::1]:1",
    ],
)
def test_endpoint_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--x ") as raised:
        parse_endpoint("--x", text)
    assert "\n" not in str(raised.value)
    assert raised.value.exit_status == 2


@pytest.mark.parametrize(
    ("text", "binds", "port", "public"),
    [
        ("0.0.0.0:3478", ["0.0.0.0"], 3478, None),
        ("[::]:3478", ["::"], 3478, None),
        ("*:3478", ["0.0.0.0", "::"], 3478, None),
        (":0", ["0.0.0.0", "::"], 0, None),
        ("10.0.0.5:3478=203.0.113.7:443", ["10.0.0.5"], 3478, ("203.0.113.7", 443)),
        ("*:3478=203.0.113.7:0", ["0.0.0.0"], 3478, ("203.0.113.7", 0)),
        ("[::]:1=[2001:db8::7]:2", ["::"], 1, ("2001:db8::7", 2)),
    ],
)
def test_listen(text: str, binds: list[str], port: int, public: tuple[str, int] | None) -> None:
    expected = Listen(
        tuple(ipaddress.ip_address(ip) for ip in binds), port, at(*public) if public else None
    )
    assert parse_listen("--listen", text) == expected


@pytest.mark.parametrize(
    "text",
    ["3478", "0.0.0.0:3478=", "0.0.0.0:3478=1.2.3.4", "0.0.0.0:1=[2001:db8::7]:1", "*:1=0.0.0.0:1"],
)
def test_listen_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_listen("--listen", text)


@pytest.mark.parametrize(
    ("text", "network", "first", "last"),
    [
        ("10.0.0.0/8", "10.0.0.0/8", 0, 65535),
        ("10.0.0.0/8:40000-50000", "10.0.0.0/8", 40000, 50000),
        ("10.0.0.1", "10.0.0.1/32", 0, 65535),
        ("10.0.0.1:5000", "10.0.0.1/32", 5000, 5000),
        ("fd00::/8", "fd00::/8", 0, 65535),
        ("fd00::/8:1-2", "fd00::/8", 1, 2),
        ("[fd00::/8]:1-2", "fd00::/8", 1, 2),
        ("[fd00::1]", "fd00::1/128", 0, 65535),
        ("fd00::1", "fd00::1/128", 0, 65535),
    ],
)
def test_allowed_network(text: str, network: str, first: int, last: int) -> None:
    expected = AllowedNetwork(ipaddress.ip_network(network), first, last)
    assert parse_allowed_network("--allow-transceiver", text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0.1/8",
        "10.0.0.0/33",
        "10.0.0.0/8:50000-40000",
        "10.0.0.0/8:1-",
        "10.0.0.0/8:70000",
        f"10.0.0.0/8:1-{'9' * 5000}",
        "10.0.0.0/8:",
        "10.0.0.1:",
        "[fd00::/8]:",
        "fd00::/8:",
        "fe80::1%lo/128",
        "[fd00::/8:1-2",
        "[fd00::/8]1-2",
        "::ffff:10.0.0.0/104",
        "everywhere",
    ],
)
def test_allowed_network_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_allowed_network("--x", text)
