"""The files of contrib/systemd/two-tiers against the programs, and against each other."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from relay import cli as relay_cli
from relay import supervisor
from relay.config import ServeConfig
from relay.wire import log as relay_log
from relay.wire.keyring import generate_line
from transceiver import cli, log
from transceiver.config import TransceiverConfig

SYSTEMD = Path(__file__).resolve().parents[2] / "contrib" / "systemd"
EXAMPLES = SYSTEMD / "two-tiers"


class Started:
    """What is run in place of a program: it keeps its configuration."""

    def __init__(self) -> None:
        self.configs: list[object] = []

    def __call__(self, config: object, *_: object) -> Started:
        self.configs.append(config)
        return self

    def run(self) -> int:
        return 0


def serve(program: click.Group, file: str, home: Path) -> None:
    """`serve` with an example whose secrets are below `home`."""
    secrets = {
        "keyring": generate_line(),
        "backbone-key": "1" * 32,
        "api-keys": "web " + "k" * 48,
        "auth-secret": "s" * 64,
    }
    for name, text in secrets.items():
        (home / name).write_text(text)
    text = (EXAMPLES / file).read_text()
    for folder in ("/etc/relay", "/etc/transceiver"):
        text = text.replace(f'"{folder}/', f'"{home}/')
    (home / file).write_text(text)
    result = CliRunner().invoke(program.commands["serve"], ["--config", str(home / file)])
    assert result.exit_code == 0, result.output


@pytest.fixture
def relays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ServeConfig, ServeConfig]:
    """The entry's configuration, and that of the cluster's relay."""
    started = Started()
    monkeypatch.setattr(supervisor, "Supervisor", started)
    monkeypatch.setattr(relay_log, "configure", lambda *_: None)
    serve(relay_cli.main, "entry.toml", tmp_path)
    serve(relay_cli.main, "cluster.toml", tmp_path)
    entry, cluster = started.configs
    assert isinstance(entry, ServeConfig)
    assert isinstance(cluster, ServeConfig)
    return entry, cluster


@pytest.fixture
def transceiver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TransceiverConfig:
    """The configuration of the cluster's transceivers."""
    started = Started()
    monkeypatch.setattr(cli, "Pool", started)
    monkeypatch.setattr(log, "configure", lambda *_: None)
    serve(cli.main, "transceiver.toml", tmp_path)
    (config,) = started.configs
    assert isinstance(config, TransceiverConfig)
    return config


def test_the_entry_leads_to_the_cluster(relays: tuple[ServeConfig, ServeConfig]) -> None:
    entry, cluster = relays
    assert cluster.backbone is not None
    assert entry.cluster_routes == {cluster.cluster: (cluster.backbone.where,)}
    assert any(entry.internal.ip in network for network in cluster.backbone.allow)
    assert entry.backbone_keys == cluster.backbone_keys
    assert entry.backbone_keys


def test_callers_are_told_of_both_and_the_cluster_s_relay_is_believed(
    relays: tuple[ServeConfig, ServeConfig], transceiver: TransceiverConfig
) -> None:
    entry, cluster = relays
    assert transceiver.cluster_id == cluster.cluster
    told = {str(address) for ingress in transceiver.ingresses for address in ingress.addresses()}
    assert told == {
        f"{listen.binds[0]}:{listen.port}" for relay in relays for listen in relay.listen
    }
    assert any(cluster.internal.ip in network for network in transceiver.allowed_relays)
    assert not any(entry.internal.ip in network for network in transceiver.allowed_relays)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_understands_the_drop_in(tmp_path: Path) -> None:
    text = (SYSTEMD / "relay.service").read_text()
    text = text.replace("/usr/local/bin/relay", "/bin/true").replace("User=relay", "User=root")
    (tmp_path / "relay.service").write_text(text)
    (tmp_path / "relay.service.d").mkdir()
    drop_in = tmp_path / "relay.service.d" / "backbone.conf"
    drop_in.write_text((EXAMPLES / "backbone.conf").read_text())
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "relay.service")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert str(tmp_path) not in done.stderr, done.stderr
    assert "relay.service" not in done.stderr, done.stderr
