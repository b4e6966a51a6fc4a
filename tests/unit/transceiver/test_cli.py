"""The command line: each wrong input is one clear line and exit status 2; flags win over the rest."""

from __future__ import annotations

import ipaddress
import re
import socket
from pathlib import Path
from typing import Any

import pytest
import structlog
from click.testing import CliRunner, Result

from relay.wire.keyring import generate_line
from tests.support.mmdb import write_mmdb
from transceiver import cli, log
from transceiver.config import TransceiverConfig, read_workers
from transceiver.errors import ConfigError
from transceiver.sites import Cluster, read_ingress
from transceiver.steering import Place


class FakePool:
    """Keeps the configuration instead of serving."""

    config: TransceiverConfig | None = None

    def __init__(self, config: TransceiverConfig) -> None:
        FakePool.config = config

    def run(self) -> int:
        return 0


@pytest.fixture
def keyring(tmp_path: Path) -> str:
    path = tmp_path / "keys"
    path.write_text(generate_line() + "\n")
    return str(path)


@pytest.fixture(autouse=True)
def fake_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    FakePool.config = None
    monkeypatch.setattr(cli, "Pool", FakePool)
    monkeypatch.setattr(log, "configure", lambda *_: None)


def invoke(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(cli.main, ["serve", *arguments], env=env or {})


def good(ring: str, **changes: str | None) -> list[str]:
    options: dict[str, str | None] = {
        "http": "127.0.0.1:8080",
        "media": "127.0.0.1:0",
        "keyring": ring,
        "ingress": "local=192.0.2.1:3478",
        "workers": "2",
        **changes,
    }
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value]


def served(*arguments: str, env: dict[str, str] | None = None) -> TransceiverConfig:
    result = invoke(*arguments, env=env)
    assert result.exit_code == 0, result.output
    assert FakePool.config is not None
    return FakePool.config


def test_a_good_command_line(keyring: str) -> None:
    config = served(
        *good(keyring), "--ingress=b=192.0.2.2:1,[2001:db8::2]:2@48.1,-11.5", "--direct"
    )
    assert str(config.http) == "127.0.0.1:8080"
    assert (config.workers, config.cluster_id, config.max_sessions) == (2, 0, 1_000)
    assert [ingress.name for ingress in config.ingresses] == ["local", "b"]
    assert config.ingresses[1].place == Place(48.1, -11.5)
    assert config.ingresses[1].weight == 1
    assert [str(item.host) for item in config.ingresses[1].candidates] == [
        "192.0.2.2",
        "2001:db8::2",
    ]
    assert [str(network) for network in config.allowed_relays] == ["127.0.0.0/8", "::1/128"]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"http": None}, "--http"),
    ({"http": "8080"}, "--http"),
    ({"http": "127.0.0.1"}, "--http"),
    ({"http": "127.0.0.1:http"}, "--http"),
    ({"http": "127.0.0.1:70000"}, "--http"),
    ({"http": "example.org:80"}, "--http"),
    ({"http": "::1:80"}, "--http"),
    ({"http": "0.0.0.0:8080"}, "--insecure-open"),
    ({"http": "192.0.2.1:8080"}, "--insecure-open"),
    ({"http": "[::]:8080"}, "--insecure-open"),
    ({"media": None}, "--media"),
    ({"media": "0.0.0.0:4000"}, "--media-advertise"),
    ({"media": "0.0.0.0:4000", "media_advertise": "10.0.0.1"}, "--allow-relay"),
    ({"media": "10.0.0.1:4000"}, "--allow-relay"),
    ({"media": "127.0.0.1:65535"}, "--media"),
    ({"media_advertise": "host"}, "--media-advertise"),
    ({"media_advertise": "0.0.0.0"}, "--media-advertise"),
    ({"media": "[::1]:0"}, "--ipv6-prefix"),
    ({"workers": "0"}, "--workers"),
    ({"workers": "many"}, "--workers"),
    ({"workers": "9999"}, "--workers"),
    ({"cluster": "65536"}, "--cluster"),
    ({"keyring": None}, "--keyring"),
    ({"keyring": "/nonexistent"}, "--keyring"),
    ({"ingress": None}, "--ingress"),
    ({"ingress": "192.0.2.1:3478"}, "--ingress"),
    ({"ingress": "a=192.0.2.1"}, "--ingress"),
    ({"ingress": "a=192.0.2.1:0"}, "--ingress"),
    ({"ingress": "a=0.0.0.0:1"}, "--ingress"),
    ({"ingress": "a=192.0.2.1:1,192.0.2.2:1"}, "--ingress"),
    ({"ingress": "a=192.0.2.1:1@north"}, "--ingress"),
    ({"ingress": "a=192.0.2.1:1@91,0"}, "--ingress"),
    ({"ingress": "a=192.0.2.1:1@nan,0"}, "--ingress"),
    ({"ingress": "a=192.0.2.1:1@1"}, "--ingress"),
    ({"ingress": "a=192.0.2.1:1@1,2,3,4"}, "--ingress"),
    ({"ingress": "a=192.0.2.1:1@1,2,-1"}, "--ingress"),
    ({"ingress": "a=192.0.2.1:1@1,2,nan"}, "--ingress"),
    ({"place": "48"}, "--place"),
    ({"place": "48,11,1"}, "--place"),
    ({"place": "91,0"}, "--place"),
    ({"trusted_proxy": "10.0.0.1/8"}, "--trusted-proxy"),
    ({"geoip": "/nonexistent"}, "--geoip"),
    ({"geoip": "/dev/zero"}, "--geoip"),
    ({"redis": "http://user:hunter2@example.org"}, "--redis"),
    ({"redis": "redis://:hunter2@example.org:port"}, "--redis"),
    ({"geoip": "/proc/self/status"}, "--geoip"),
    ({"redis": "redis://example.org/zero"}, "--redis"),
    ({"allow_relay": "10.0.0.0/99"}, "--allow-relay"),
    ({"allow_relay": "fe80::1%lo"}, "--allow-relay"),
    ({"allow_relay": "::ffff:10.0.0.0/104"}, "--allow-relay"),
    ({"ingress": "a=[fe80::1%lo]:1"}, "--ingress"),
    ({"ingress": "a=[fe80::1]:1"}, "--ingress"),
    ({"ingress": "a=[::ffff:192.0.2.1]:1,192.0.2.2:1"}, "two addresses of one family"),
    ({"ingress": "a=224.0.0.1:1"}, "--ingress"),
    ({"media": "255.255.255.255:1"}, "--media"),
    ({"media_advertise": "224.0.0.1"}, "--media-advertise"),
    ({"allow_relay": "10.0.0.1/8"}, "--allow-relay"),
    ({"ipv6_prefix": "2001:db8::/64"}, "--ipv6-prefix"),
    ({"ipv6_prefix": "16=2001:db8::/64"}, "--ipv6-prefix"),
    ({"ipv6_prefix": "0=2001:db8::/48"}, "--ipv6-prefix"),
    ({"max_sessions": "0"}, "--max-sessions"),
    ({"backend": "https://user:hunter2@example.org"}, "--backend"),
    ({"backend": "echo=wss://example.org"}, "--backend"),
    ({"backend": "wss://"}, "--backend"),
    ({"backend": "wss://a..b/"}, "--backend"),
    ({"backend": f"wss://{'a' * 70}.example"}, "--backend"),
    ({"backend_key_file": "/nonexistent"}, "--backend-key-file"),
    ({"backend_header": "no colon"}, "--backend-header"),
    ({"backend_dialect": "klingon"}, "--backend-dialect"),
    ({"backend_audio": "pcm48"}, "--backend-audio"),
    ({"backend_session": "/nonexistent"}, "--backend-session"),
    ({"backend_session": "/dev/zero"}, "--backend-session"),
    ({"api_keys": "/nonexistent"}, "--api-keys: /nonexistent"),
    ({"api_keys": "/dev/zero"}, "--api-keys: /dev/zero"),
    ({"auth_secret": "/nonexistent"}, "--auth-secret: /nonexistent"),
    ({"auth_secret": "/dev/zero"}, "--auth-secret: /dev/zero"),
    ({"keyring": "/dev/zero"}, "--keyring: /dev/zero"),
    ({"config": "/dev/zero"}, "--config /dev/zero: "),
    ({"record_dir": "/nonexistent"}, "--record-dir"),
    ({"record_dir": "/proc"}, "--record-dir"),
    ({"max_sessions": "1000001"}, "--max-sessions"),
    ({"max_sessions": "9" * 400}, "--max-sessions"),
    ({"max_call_seconds": "0"}, "--max-call-seconds"),
    ({"max_call_seconds": "nan"}, "--max-call-seconds"),
    ({"drain_timeout": "nan"}, "--drain-timeout"),
    ({"idle_seconds": "-1"}, "--idle-seconds"),
    ({"tls_cert": "cert.pem"}, "--tls-key"),
    ({"tls_cert": "/nonexistent", "tls_key": "/nonexistent"}, "--tls-cert"),
    ({"drain_timeout": "-1"}, "--drain-timeout"),
    ({"log_level": "loud"}, "--log-level"),
    ({"config": "/nonexistent.toml"}, "--config"),
    ({"no_such": "1"}, "--no-such"),
]


@pytest.mark.parametrize(("changes", "named"), WRONG, ids=[str(item[0]) for item in WRONG])
def test_wrong_input_is_one_line_and_status_2(
    keyring: str, changes: dict[str, Any], named: str
) -> None:
    result = invoke(*good(keyring, **changes))
    assert result.exit_code == 2
    assert re.fullmatch(r"transceiver: [^\n]+\n", result.stderr), result.stderr
    assert named in result.stderr
    assert "hunter2" not in result.stderr
    assert FakePool.config is None, "nothing was bound"


def test_places_proxies_and_several_ingresses(keyring: str, tmp_path: Path) -> None:
    file = tmp_path / "places.mmdb"
    write_mmdb(file, {"192.0.2.0/24": {"location": {"latitude": 1.0, "longitude": 2.0}}})
    config = served(
        *good(keyring, ingress="a=192.0.2.1:3478@50.1,8.7,2.5"), "--ingress=b=192.0.2.2:1@-1,-2",
        "--place=45.6,-121.2", "--trusted-proxy=10.0.0.0/8", "--trusted-proxy=2001:db8::1",
        f"--geoip={file}", "--second-ingress",
    )  # fmt: skip
    assert [(item.place, item.weight) for item in config.ingresses] == [
        (Place(50.1, 8.7), 2.5), (Place(-1, -2), 1),
    ]  # fmt: skip
    assert config.cluster.place == Place(45.6, -121.2)
    assert [str(item) for item in config.trusted_proxies] == ["10.0.0.0/8", "2001:db8::1/128"]
    assert config.second_ingress
    assert config.geoip is not None
    assert config.geoip(ipaddress.ip_address("192.0.2.7")) == Place(1, 2)


def test_clusters(keyring: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of at least sixteen bytes")
    entries = ["--cluster-peer=2=https://tokyo.example/@35,139,2", "--cluster-peer=1=http://a@50,8"]
    known = [*good(keyring), f"--auth-secret={secret}", "--cluster=1"]
    config = served(*known, *entries)
    assert config.cluster == Cluster(1, "http://a", Place(50, 8))
    assert config.other_clusters == (Cluster(2, "https://tokyo.example", Place(35, 139), 2),)
    assert served(*known, *entries, "--place=1,2").cluster.place == Place(1, 2)
    alone = served(*good(keyring), "--cluster-peer=0=http://a@50,8")
    assert (alone.cluster.place, alone.other_clusters) == (Place(50, 8), ())
    assert "needs --auth-secret" in invoke(*good(keyring), "--cluster=1", *entries).stderr
    assert "--place" in invoke(*known, entries[0]).stderr
    assert "is given twice" in invoke(*known, *entries, entries[0]).stderr


@pytest.mark.parametrize(
    "text",
    [
        "2", "2=http://a", "http://a@1,2", "x=http://a@1,2", "70000=http://a@1,2", "2=a@1,2",
        "2=ftp://a@1,2", "2=http://@1,2", "2=http://u:hunter2@a@1,2", "2=http://a:x@1,2",
        "2=http://a..b@1,2", "2=http://a?b@1,2", "2=http://a b@1,2", "2=http://a@91,2", "2=http://a@1,2,-1",
    ],
)  # fmt: skip
def test_a_wrong_cluster_is_one_line(keyring: str, text: str) -> None:
    result = invoke(*good(keyring), f"--cluster-peer={text}")
    assert result.exit_code == 2
    assert re.fullmatch(r"transceiver: --cluster-peer: [^\n]+\n", result.stderr), result.stderr
    assert "hunter2" not in result.stderr


def test_an_ingress_is_named_once(keyring: str) -> None:
    result = invoke(*good(keyring), "--ingress=local=192.0.2.9:1")
    assert result.exit_code == 2
    assert "'local' is given twice" in result.stderr


def test_insecure_open_and_direct_lift_what_they_say(keyring: str) -> None:
    assert served(*good(keyring, http="0.0.0.0:8080"), "--insecure-open").http.port == 8080
    config = served(*good("", keyring=None, ingress=None, media="192.0.2.9:4000"), "--direct")
    assert config.direct
    assert config.allowed_relays == ()


def test_an_ipv6_media_address_needs_its_prefix(keyring: str) -> None:
    config = served(*good(keyring, media="[::1]:0", ipv6_prefix="3=::/64"))
    assert config.media_advertise.version == 6


def test_environment_then_file_then_default(keyring: str, tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text(
        'ingress = ["a=192.0.2.1:1", "b=192.0.2.2:2"]\nworkers = 3\ncluster = 5\n'
        'max_sessions = 7\nallow_relay = "10.0.0.0/8"\ndirect = true\n'
    )
    base = good(keyring, ingress=None, workers=None)
    env = {"TRANSCEIVER_CLUSTER": "6", "TRANSCEIVER_MAX_SESSIONS": "8"}
    config = served(*base, f"--config={file}", "--max-sessions=9", env=env)
    assert [ingress.name for ingress in config.ingresses] == ["a", "b"]
    assert (config.workers, config.cluster_id, config.max_sessions) == (3, 6, 9)
    assert [str(item) for item in config.allowed_relays] == ["10.0.0.0/8"]
    assert config.direct


def test_everything_from_the_environment(keyring: str) -> None:
    config = served(
        env={
            "TRANSCEIVER_HTTP": "127.0.0.1:1",
            "TRANSCEIVER_MEDIA": "127.0.0.1:2",
            "TRANSCEIVER_KEYRING": keyring,
            "TRANSCEIVER_INGRESS": "a=192.0.2.1:1 b=192.0.2.2:2",
            "TRANSCEIVER_WORKERS": "1",
            "TRANSCEIVER_BACKEND_HEADER": "X-One: a b\nX-Two: c",
        }
    )
    assert [ingress.name for ingress in config.ingresses] == ["a", "b"]
    assert config.backends.headers == {"X-One": "a b", "X-Two": "c"}


@pytest.mark.parametrize(
    "text", ["nonsense", "workers = [1]", "no_such = 1", "config = 'x'", "ingress = [[1]]",
             "media = {a=1}", "cluster = true", "workers = true", "ingress = true",
             'http = "a\\u0000:1"', f"cluster = {'9' * 5000}", f"ingress = {'[' * 5000}"]
)  # fmt: skip
def test_a_wrong_file_is_one_line(keyring: str, tmp_path: Path, text: str) -> None:
    file = tmp_path / "t.toml"
    file.write_text(text)
    result = invoke(*good(keyring), f"--config={file}")
    assert result.exit_code == 2
    assert re.fullmatch(r"transceiver: --config [^\n]+: [^\n]+\n", result.stderr), result.stderr


@pytest.mark.parametrize(
    ("variable", "option"),
    [("KEYRING", "keyring"), ("INGRESS", "ingress"), ("MAX_SESSIONS", "max_sessions")],
)
def test_an_error_says_where_its_value_came_from(
    keyring: str, tmp_path: Path, variable: str, option: str
) -> None:
    given = good(keyring, **({} if option == "max_sessions" else {option: None}))
    result = invoke(*given, env={f"TRANSCEIVER_{variable}": "nonsense"})
    assert f"--{option.replace('_', '-')}" in result.stderr
    assert result.stderr.endswith(f" (from TRANSCEIVER_{variable})\n")
    file = tmp_path / "t.toml"
    file.write_text(f"{option} = {['nonsense'] if option == 'ingress' else 'nonsense'!r}")
    result = invoke(*given, f"--config={file}")
    assert result.stderr.endswith(f" (from {file})\n")
    result = invoke(*given, f"--{option.replace('_', '-')}=nonsense")
    assert "(from" not in result.stderr


def test_secrets_that_everybody_may_read_are_warned_of(keyring: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x" * 64)
    Path(keyring).chmod(0o600)
    for mode, warned in ((0o644, ["--auth-secret"]), (0o640, [])):
        secret.chmod(mode)
        with structlog.testing.capture_logs() as lines:
            served(*good(keyring, auth_secret=str(secret)))
        assert [line["option"] for line in lines] == warned


@pytest.mark.parametrize(
    ("urls", "warned"),
    [
        (["redis://h", "redis://:hidden@h"], ["--config"]),
        (["redis://h", "redis://h:1/2", "redis://[h"], []),
    ],
)
def test_a_password_in_a_file_that_everybody_may_read_is_warned_of(
    keyring: str, tmp_path: Path, urls: list[str], warned: list[str]
) -> None:
    file = tmp_path / "t.toml"
    file.write_text(f"redis = {urls[:2]!r}\nbackend_header = ['X: {urls[-1]}']\n")
    Path(keyring).chmod(0o600)
    for mode, expected in ((0o644, warned), (0o640, [])):
        file.chmod(mode)
        with structlog.testing.capture_logs() as lines:
            served(*good(keyring, config=str(file)))
        assert [line["option"] for line in lines] == expected


def test_auto_workers_are_at_least_one() -> None:
    assert read_workers("auto") >= 1


def test_an_address_in_use_is_one_line(keyring: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(log, "configure", lambda *_: None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = invoke(*good(keyring, http=f"127.0.0.1:{port}"))
    assert result.exit_code == 1
    assert result.stderr == f"transceiver: --http: 127.0.0.1:{port}: Address already in use\n"
    with socket.socket(type=socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        result = invoke(*good(keyring, http="127.0.0.1:0", media=f"127.0.0.1:{port}"))
    assert result.exit_code == 1
    assert result.stderr == f"transceiver: --media: 127.0.0.1:{port}: Address already in use\n"


def test_help_tells_of_each_option_how_a_variable_holds_several() -> None:
    shown = CliRunner().invoke(cli.main, ["serve", "--help"])
    assert shown.exit_code == 0
    assert cli.serve.epilog
    spaced = set(re.findall(r"--[a-z-]+", cli.serve.epilog.partition("(")[2].partition(")")[0]))
    assert {"--ingress", "--redis"} <= spaced
    assert "--backend-header" not in spaced, "its values have spaces in them"


def test_ingress_errors_name_their_value() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        read_ingress("x=192.0.2.1")
