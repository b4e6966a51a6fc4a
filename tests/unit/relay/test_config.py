"""Options that are not addresses: workers, prefixes, limits, the keyring, TOML, the run directory."""

import ipaddress
from pathlib import Path

import pytest

from relay import config
from relay.errors import ConfigError
from relay.serve_command import LIMIT_NAMES
from relay.wire.keyring import generate_line

LIMITS = {"token_new_flows_per_s": 20, "source_unanswered": 64}


@pytest.mark.parametrize("text", ["1", "64", "128"])
def test_workers(text: str) -> None:
    assert config.parse_workers("--workers", text) == int(text)


def test_workers_auto_is_at_least_one() -> None:
    assert config.parse_workers("--workers", "auto") >= 1


@pytest.mark.parametrize("text", ["0", "-1", "129", "many", "", "1.5", "²"])
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


@pytest.mark.parametrize("text", ["nonsense=1", "source_unanswered", "source_unanswered=0"])
def test_limits_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--limit"):
        config.parse_limits("--limit", [text], LIMITS)


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


def test_toml_becomes_strings(tmp_path: Path) -> None:
    path = tmp_path / "relay.toml"
    path.write_text(
        'listen = ["0.0.0.0:1", "[::]:1"]\nworkers = 2\nallow_transceiver = "10.0.0.0/8"\n'
        "idle_timeout = 1.5\n[limit]\nsource_unanswered = 9\n"
    )
    known = {
        "listen": True,
        "workers": False,
        "allow_transceiver": True,
        "idle_timeout": False,
        "limit": True,
    }
    assert config.load_toml("--config", str(path), known) == {
        "listen": ["0.0.0.0:1", "[::]:1"],
        "workers": "2",
        "allow_transceiver": ["10.0.0.0/8"],
        "idle_timeout": "1.5",
        "limit": ["source_unanswered=9"],
    }


@pytest.mark.parametrize(
    "content",
    ["wrokers = 2", "workers = [2]", "workers =", "listen = [true]", "workers = 1970-01-01"],
)
def test_toml_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "relay.toml"
    path.write_text(content)
    with pytest.raises(ConfigError, match="--config") as raised:
        config.load_toml("--config", str(path), {"workers": False, "listen": True})
    assert str(path) in str(raised.value)


def test_run_dir_of_systemd_wins() -> None:
    environ = {"RUNTIME_DIRECTORY": "/run/a:/run/b", "XDG_RUNTIME_DIR": "/run/user/1"}
    assert config.default_run_dir(environ) == Path("/run/a")
