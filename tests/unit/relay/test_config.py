"""Options that are not addresses: workers, prefixes, limits, the keyring, TOML, the run directory."""

import ipaddress
import re
from pathlib import Path

import pytest

from relay import config
from relay.addresses import parse_endpoint, parse_listen
from relay.backbones import parse_backbone
from relay.errors import ConfigError
from relay.serve_command import LIMIT_NAMES
from relay.wire.keyring import generate_line
from relay.wire.redis_url import place_of_redis

LIMITS = {"token_new_flows_per_s": 20, "source_unanswered": 64}


@pytest.mark.parametrize("text", ["1", "64", "128"])
def test_workers(text: str) -> None:
    assert config.parse_workers("--workers", text) == int(text)


def test_workers_auto_is_at_least_one() -> None:
    assert config.parse_workers("--workers", "auto") >= 1


@pytest.mark.parametrize("text", ["0", "-1", "129", "many", "", "1.5", "²", "9" * 5000])
def test_workers_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--workers"):
        config.parse_workers("--workers", text)


def test_ipv6_prefixes() -> None:
    assert config.parse_ipv6_prefixes("--ipv6-prefix", ["0=fd00::/64", "15=fd01::/64"]) == {
        0: ipaddress.ip_network("fd00::/64"),
        15: ipaddress.ip_network("fd01::/64"),
    }


@pytest.mark.parametrize(
    "texts",
    [
        ["fd00::/64"],
        ["16=fd00::/64"],
        ["0=fd00::/63"],
        ["0=10.0.0.0/8"],
        ["0=fd00::1/64"],
        ["0=fd00::/64", "0=fd01::/64"],
    ],
)
def test_ipv6_prefixes_refused(texts: list[str]) -> None:
    with pytest.raises(ConfigError, match="--ipv6-prefix"):
        config.parse_ipv6_prefixes("--ipv6-prefix", texts)


def test_help_names_every_limit() -> None:
    assert {name.replace("-", "_") for name in LIMIT_NAMES} == set(config.LIMITS)


def test_limits_take_dashes_and_underscores() -> None:
    texts = ["token-new-flows-per-s=7", "source_unanswered=1"]
    expected = {"token_new_flows_per_s": 7, "source_unanswered": 1}
    assert config.parse_limits("--limit", texts, LIMITS) == expected


@pytest.mark.parametrize(
    "text",
    ["nonsense=1", "source_unanswered", "source_unanswered=0", f"source_unanswered={'9' * 5000}"],
)
def test_limits_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--limit"):
        config.parse_limits("--limit", [text], LIMITS)


def test_a_limit_is_given_once() -> None:
    with pytest.raises(ConfigError, match="twice"):
        config.parse_limits("--limit", ["source-unanswered=1", "source_unanswered=2"], LIMITS)


def test_keyring_faults_name_the_file_and_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "keyring"
    with pytest.raises(ConfigError, match="No such file"):
        config.load_keyring("--keyring", str(path))
    secret = generate_line().partition(":")[2]
    path.write_text(f"9:{secret}\n")
    with pytest.raises(ConfigError, match="line 1") as raised:
        config.load_keyring("--keyring", str(path))
    assert secret not in str(raised.value)
    assert str(raised.value).count(str(path)) == 1


@pytest.mark.parametrize(
    ("listen", "internal", "backbone", "named"),
    [
        (["127.0.0.1:5", "127.0.0.1:5"], "127.0.0.1:0", None, "--listen 127.0.0.1:5"),
        (["0.0.0.0:5", "127.0.0.1:5"], "127.0.0.1:0", None, "--listen 127.0.0.1:5"),
        (["*:5", "[::1]:5"], "127.0.0.1:0", None, "--listen [::1]:5"),
        (["127.0.0.1:6"], "127.0.0.1:5", None, "--internal 127.0.0.1:5"),
        (["127.0.0.1:6"], "127.0.0.1:65535", None, "--internal 127.0.0.1:65535"),
        (["127.0.0.1:9"], "127.0.0.1:5", "127.0.0.1:6", "--backbone 127.0.0.1:6"),
    ],
)
def test_two_options_cannot_have_one_port(
    listen: list[str], internal: str, backbone: str | None, named: str
) -> None:
    across = parse_backbone(backbone, ["10.0.0.0/8"] if backbone else [])
    with pytest.raises(ConfigError, match=re.escape(named)):
        config.check_apart(
            [parse_listen("--listen", text) for text in listen],
            parse_endpoint("--internal", internal),
            2,
            across,
        )


def test_ports_that_only_look_alike_are_apart() -> None:
    listen = [parse_listen("--listen", text) for text in ("*:5", "127.0.0.1:0", "127.0.0.1:0")]
    config.check_apart(listen, parse_endpoint("--internal", "127.0.0.1:6"), 2, None)


@pytest.mark.parametrize("url", ["redis://h", "redis://h/", "rediss://u:p@h:1/3", "unix:///r.sock"])
def test_redis_urls(url: str) -> None:
    assert config.parse_redis("--redis", url + "\n") == url


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://h", "h:6379"),
        ("redis://", "localhost:6379"),
        ("rediss://user:secret@10.0.0.9:1/3", "10.0.0.9:1"),
        ("unix:///run/r.sock?password=secret", "/run/r.sock"),
    ],
)
def test_a_redis_is_named_without_its_password(url: str, place: str) -> None:
    assert place_of_redis(url) == place


@pytest.mark.parametrize("url", ["redis://h/zero", "redis://h/-1", "http://h", "redis://h:99999/0"])
def test_redis_urls_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--redis"):
        config.parse_redis("--redis", url)


def test_run_dir_of_systemd_wins() -> None:
    environ = {"RUNTIME_DIRECTORY": "/run/a:/run/b", "XDG_RUNTIME_DIR": "/run/user/1"}
    assert config.default_run_dir(environ) == Path("/run/a")
