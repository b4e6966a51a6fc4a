"""The options of two tiers: what is taken, and what is refused with the option and the value."""

import ipaddress
from pathlib import Path

import pytest
from click.testing import CliRunner

from relay.addresses import HostPort
from relay.backbones import (
    Backbone,
    load_backbone_keys,
    parse_backbone,
    parse_cluster_routes,
)
from relay.cli import main
from relay.errors import ConfigError


def at(ip: str, port: int) -> HostPort:
    return HostPort(ipaddress.ip_address(ip), port)


def routes(*texts: str, internal: str = "10.0.0.1") -> dict[int, tuple[HostPort, ...]]:
    return parse_cluster_routes("--cluster-route", texts, 1, at(internal, 4000))


def test_no_backbone() -> None:
    assert parse_backbone(None, []) is None


def test_backbone() -> None:
    networks = (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("192.0.2.1/32"))
    expected = Backbone(at("10.0.0.1", 4500), networks)
    assert parse_backbone("10.0.0.1:4500", ["10.0.0.0/8", "192.0.2.1"]) == expected


@pytest.mark.parametrize(
    ("where", "allow", "named"),
    [
        ("10.0.0.1:1", [], "--backbone 10.0.0.1:1: it needs --backbone-allow"),
        (None, ["10.0.0.0/8"], "--backbone-allow 10.0.0.0/8: it needs --backbone"),
        ("0.0.0.0:1", ["10.0.0.0/8"], "--backbone 0.0.0.0:1: name the one address"),
        ("[::]:1", ["10.0.0.0/8"], "name the one address"),
        ("10.0.0.1", ["10.0.0.0/8"], "--backbone 10.0.0.1: expected ADDRESS:PORT"),
        ("10.0.0.1:1", ["10.0.0.1/8"], "--backbone-allow 10.0.0.1/8: .*host bits"),
    ],
)
def test_backbone_refused(where: str | None, allow: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse_backbone(where, allow)


def test_routes_are_in_order_however_they_are_written() -> None:
    expected = {
        7: (at("10.0.0.2", 1), at("10.0.0.2", 2), at("10.0.1.0", 1)),
        65535: (at("192.0.2.1", 1),),
    }
    assert routes("7=10.0.1.0:1,10.0.0.2:2,10.0.0.2:1", "65535=192.0.2.1:1") == expected
    assert routes("65535=192.0.2.1:1", "7=10.0.0.2:2,10.0.0.2:1,10.0.1.0:1") == expected


def test_an_internal_socket_of_both_families_reaches_both() -> None:
    expected = {7: (at("10.0.0.2", 1), at("fd00::1", 1))}
    assert routes("7=[fd00::1]:1,10.0.0.2:1", internal="::") == expected


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("10.0.0.2:1", "expected ID="),
        ("x=10.0.0.2:1", "expected ID="),
        ("65536=10.0.0.2:1", "expected ID="),
        ("²=10.0.0.2:1", "expected ID="),
        ("1=10.0.0.2:1", "own --cluster"),
        ("7=", "expected ADDRESS:PORT"),
        ("7=10.0.0.2:1,", "expected ADDRESS:PORT"),
        ("7=10.0.0.2:0", "not an address that can be sent to"),
        ("7=0.0.0.0:1", "not an address that can be sent to"),
        ("7=[fd00::1]:1", "--internal 10.0.0.1:4000 is of the other address family"),
        ("7=10.0.0.2:1,10.0.0.2:1", "an address is given twice"),
        ("7=" + ",".join(f"10.0.0.2:{port}" for port in range(1, 10)), "more than 8 addresses"),
    ],
)
def test_routes_refused(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=f"^--cluster-route .*{named}"):
        routes(text)


def test_a_cluster_has_one_route() -> None:
    with pytest.raises(ConfigError, match="cluster 7 is given twice"):
        routes("7=10.0.0.2:1", "7=10.0.0.3:1")


def keys_of(path: Path) -> tuple[bytes, ...]:
    return load_backbone_keys("--backbone-key", str(path), is_used=True)


def test_backbone_keys(tmp_path: Path) -> None:
    assert load_backbone_keys("--backbone-key", None, is_used=False) == ()
    file = tmp_path / "key"
    file.write_text(f"# new\n{'00' * 15}fF\n\n{'ab' * 16}  # old\n")
    assert keys_of(file) == (bytes(15) + b"\xff", b"\xab" * 16)


def test_a_generated_backbone_key_is_one(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(CliRunner().invoke(main.commands["keygen"], ["--backbone"]).output)
    assert len(keys_of(file)) == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no key in it"),
        ("# nothing\n", "no key in it"),
        ("ab" * 15, "line 1: not 32 hex digits"),
        ("ab" * 32, "line 1: not 32 hex digits"),
        (f"{'ab' * 16}\n\nsecret", "line 3: not 32 hex digits"),
        (f"{'ab' * 16}\n{'AB' * 16}", "line 2: the key occurs twice"),
        ("\n".join(f"{i:032x}" for i in range(5)), "more than 4 keys"),
        ("\udcff", "not a text file"),
    ],
)
def test_a_bad_file_of_backbone_keys(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "key"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=f"^--backbone-key {file}: {reason}") as raised:
        keys_of(file)
    assert "secret" not in str(raised.value)


def test_a_backbone_key_needs_its_file_and_a_use(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        keys_of(tmp_path / "none")
    with pytest.raises(ConfigError, match="it needs --backbone or --cluster-route"):
        load_backbone_keys("--backbone-key", "key", is_used=False)
