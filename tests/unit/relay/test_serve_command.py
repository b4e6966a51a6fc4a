"""`relay serve` up to the configuration: which options it wants, and where a wrong one came from."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog
from click.testing import CliRunner, Result

from relay import supervisor
from relay._dataplane import PUBLIC_SOCKETS_MAX
from relay.cli import main
from relay.config import ServeConfig
from relay.errors import ConfigError
from relay.wire import log as relay_log
from relay.wire.keyring import generate_line

SERVE = main.commands["serve"]


class Started:
    """What is run in place of the relay: it keeps its configuration."""

    config: ServeConfig

    def __call__(self, config: ServeConfig, *_: object) -> Started:
        self.config = config
        return self

    def run(self) -> int:
        return 0


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    made = Started()
    monkeypatch.setattr(supervisor, "Supervisor", made)
    monkeypatch.setattr(relay_log, "configure", lambda *_: None)
    return made


def serve(home: Path, *arguments: str, env: dict[str, str] | None = None) -> Result:
    """Run it with what every relay needs, and `arguments`."""
    keyring = home / "keyring"
    keyring.write_text(generate_line() + "\n")
    every = ["--internal=127.0.0.1:0", f"--keyring={keyring}", f"--run-dir={home}"]
    return CliRunner().invoke(SERVE, [*every, *arguments], env=env)


LISTEN = "--listen=127.0.0.1:0"
ROUTE = "--cluster-route=2=127.0.0.1:1"


def test_an_entry_alone_needs_no_transceivers(tmp_path: Path, started: Started) -> None:
    assert serve(tmp_path, LISTEN, ROUTE).exit_code == 0
    assert started.config.allow_transceiver == ()
    assert started.config.forward_description()["allow_transceiver"] == []


@pytest.mark.parametrize(
    "arguments", [(), (ROUTE, "--backbone=127.0.0.1:0", "--backbone-allow=10.0.0.1")]
)
@pytest.mark.usefixtures("started")
def test_a_relay_of_transceivers_says_where_they_are(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    refused = serve(tmp_path, LISTEN, *arguments)
    assert refused.exit_code == 2
    assert "Missing option '--allow-transceiver'" in refused.output
    assert serve(tmp_path, LISTEN, *arguments, "--allow-transceiver=10.0.0.0/8").exit_code == 0


@pytest.mark.usefixtures("started")
def test_more_addresses_than_a_worker_can_serve_are_refused(tmp_path: Path) -> None:
    most = [f"--listen=127.0.0.1:{port}" for port in range(5000, 5000 + PUBLIC_SOCKETS_MAX)]
    assert serve(tmp_path, ROUTE, *most).exit_code == 0
    for more in ([*most, LISTEN], [*most[1:], "--listen=*:4999"]):
        refused = serve(tmp_path, ROUTE, *more)
        assert isinstance(refused.exception, ConfigError)
        assert f"with {PUBLIC_SOCKETS_MAX + 1} addresses: at most" in str(refused.exception)


@pytest.mark.usefixtures("started")
def test_a_list_with_nothing_in_it_is_a_missing_option(tmp_path: Path) -> None:
    (tmp_path / "relay.toml").write_text("listen = []")
    for refused, source in (
        (serve(tmp_path, ROUTE, env={"RELAY_LISTEN": " "}), "RELAY_LISTEN"),
        (serve(tmp_path, ROUTE, f"--config={tmp_path}/relay.toml"), f"{tmp_path}/relay.toml"),
    ):
        assert refused.exit_code == 2
        assert "Missing option '--listen'" in refused.output
        assert f"(from {source})" in refused.output


@pytest.mark.usefixtures("started")
def test_a_password_in_a_file_that_everybody_may_read_is_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "relay.toml"
    file.write_text("redis = 'redis://:hidden@h'")
    for mode, warned in ((0o644, ["--config"]), (0o640, [])):
        file.chmod(mode)
        with structlog.testing.capture_logs() as lines:
            assert serve(tmp_path, LISTEN, ROUTE, f"--config={file}").exit_code == 0
        assert [line["option"] for line in lines if line["option"] != "--keyring"] == warned
