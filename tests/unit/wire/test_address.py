"""Which addresses and networks both programs take, and as what."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from relay.wire.address import host_ip, read_network


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("169.254.0.1", "169.254.0.1"),
        ("0.0.0.0", "0.0.0.0"),
        ("::", "::"),
        ("2001:db8::1", "2001:db8::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
    ],
)
def test_the_address_of_a_host(text: str, expected: str) -> None:
    assert host_ip(ip_address(text)) == ip_address(expected)


@pytest.mark.parametrize(
    "text",
    [
        *("fe80::1", "fe80::1%lo", "2001:db8::1%lo", "224.0.0.1", "ff02::1", "255.255.255.255"),
        *("::ffff:224.0.0.1", "::ffff:255.255.255.255"),
    ],
)
def test_no_address_of_a_host(text: str) -> None:
    with pytest.raises(ValueError, match="address"):
        host_ip(ip_address(text))


@pytest.mark.parametrize("text", ["10.0.0.0/8", "::/0", "2001:db8::/32", "fe80::/10", "10.0.0.1"])
def test_a_network(text: str) -> None:
    assert read_network(text) == ip_network(text)


@pytest.mark.parametrize(
    "text", ["10.0.0.1/8", "::ffff:10.0.0.0/104", "fe80::1%lo", "10.0.0.0/33", "host"]
)
def test_no_network(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_network(text)
