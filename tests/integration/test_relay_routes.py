"""Several relays behind one cluster route: who answers probes gets the flows.

Entry (cluster 0) and both relays of cluster 7 are real; a relay that hangs is a stopped process, since
one that ends would also be refused by the kernel.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from relay.addresses import format_endpoint
from tests.integration.test_relay_tiers import route_to, start_entry, start_inner
from tests.support.process import Processes
from tests.support.relayed import (
    CLUSTER,
    RTP,
    Client,
    Relay,
    Transceiver,
    bind_udp,
    check_both_ways,
    wait_until,
)

pytestmark = pytest.mark.timeout(120)

CLIENTS = 8


def up(entry: Relay, relay: Relay) -> float:
    """What the entry says of the relay's address."""
    address = format_endpoint(*relay.backbone)
    return entry.metrics()[f'relay_route_up{{address="{address}",cluster="{CLUSTER}"}}']


def stop(relay: Relay, number: int) -> None:
    """Stop or continue all of a relay; its supervisor must not see its workers hang."""
    pids = [relay.process.pid, *relay.worker_pids().values()]
    for pid in pids if number == signal.SIGSTOP else reversed(pids):
        os.kill(pid, number)


def test_flows_leave_a_relay_that_hangs_and_return_without_loss(
    processes: Processes, tmp_path: Path, transceiver: Transceiver
) -> None:
    first = start_inner(processes, tmp_path, workers=1)
    (tmp_path / "other" / "inner").mkdir(parents=True)
    shutil.copy(tmp_path / "inner" / "keyring", tmp_path / "other" / "inner" / "keyring")
    second = start_inner(processes, tmp_path / "other", workers=1)
    route = f"{route_to(first)},{format_endpoint(*second.backbone)}"
    entry = start_entry(processes, tmp_path, route, workers=1)

    def via(client: Client) -> Relay:
        client.send(RTP, entry.public[0])
        _, payload, sender = transceiver.receive()
        assert payload == RTP
        return first if sender in first.internal else second

    with entry.changed({}), second.changed({}):  # probes are nobody's packets
        wait_until(lambda: entry.metrics()["relay_probes_answered_total"] >= 4, "answers")
    assert entry.metrics()["relay_probes_sent_total"] >= 4
    wait_until(lambda: second.metrics()["relay_probes_echoed_total"] >= 2, "echoes")
    assert up(entry, first) == up(entry, second) == 1
    with ExitStack() as stack:
        clients: dict[Client, Relay] = {}
        while len(clients) < CLIENTS or len(set(clients.values())) < 2:
            client = stack.enter_context(Client())
            client.establish(transceiver.ufrag(entry.keyring), entry.public[0], transceiver)
            clients[client] = via(client)
        stop(second, signal.SIGSTOP)
        wait_until(lambda: up(entry, second) == 0, "the entry finds the relay down")
        assert up(entry, first) == 1
        try:
            for client in clients:
                client.establish(transceiver.ufrag(entry.keyring), entry.public[0], transceiver)
                assert via(client) is first
        finally:
            stop(second, signal.SIGCONT)
        wait_until(lambda: up(entry, second) == 1, "the entry finds the relay up again")
        for client, relay in clients.items():
            assert via(client) is first, "media waits for a success"
            client.establish(transceiver.ufrag(entry.keyring), entry.public[0], transceiver)
            assert via(client) is relay
            check_both_ways(entry, client, transceiver)
    assert entry.metrics()["relay_route_falls_total"] == 1


def test_a_route_that_nobody_answers_is_used_all_the_same(
    processes: Processes, tmp_path: Path, client: Client
) -> None:
    """Fail open: an old relay that does not know probes is still worth a try."""
    with bind_udp() as sink:
        address = format_endpoint(*sink.getsockname())
        entry = start_entry(processes, tmp_path, f"{CLUSTER}={address}", workers=1)
        name = f'relay_route_up{{address="{address}",cluster="{CLUSTER}"}}'
        wait_until(lambda: entry.metrics()[name] == 0, "the address is down")
        entry.process.wait_event("route_down", address=address, workers_down=1)
        with Transceiver() as transceiver:
            check = client.check(transceiver.ufrag(entry.keyring), entry.public[0])
        while not (datagram := sink.recv(2048)).endswith(check):
            assert re.fullmatch(rb"\x56\xec\0{36}.{16}", datagram, re.DOTALL), datagram.hex()


def test_a_keyed_backbone_and_the_change_of_its_key(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    """Takeovers take the file as it is then; a key that only one tier has is seen at both."""
    old_key, new_key = "01" * 16, "02" * 16
    for name in ("inner", "entry"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "backbone-key").write_text(old_key)
    options = {
        name: ("--backbone-key", str(tmp_path / name / "backbone-key"))
        for name in ("inner", "entry")
    }
    inner = start_inner(processes, tmp_path, *options["inner"], workers=1)
    variables = {"RELAY_BACKBONE_KEY": options["entry"][1]}
    entry = start_entry(processes, tmp_path, route_to(inner), workers=1, env=variables)
    wait_until(lambda: entry.metrics()["relay_probes_answered_total"] > 0, "an answer")
    client.establish(transceiver.ufrag(entry.keyring), entry.public[0], transceiver)
    check_both_ways(entry, client, transceiver)

    (tmp_path / "entry" / "backbone-key").write_text(f"{new_key}\n")
    newer = start_entry(
        processes, tmp_path, route_to(inner), workers=1, env=variables, takeover=True
    )
    assert entry.process.wait() == 0
    client.send(RTP, newer.public[0])
    wait_until(lambda: up(newer, inner) == 0, "the entry hears no echo")
    assert transceiver.hears_nothing(for_s=0.01)
    assert inner.metrics()['relay_drop_packets_total{reason="backbone_key"}'] > 1
    assert newer.metrics()['relay_drop_packets_total{reason="backbone_key"}'] == 0

    (tmp_path / "inner" / "backbone-key").write_text(f"{new_key}\n{old_key} # until all have it\n")
    start_inner(processes, tmp_path, "--takeover", *options["inner"], workers=1)
    assert inner.process.wait() == 0
    check_both_ways(newer, client, transceiver)
    wait_until(lambda: up(newer, inner) == 1, "the entry hears echoes again")
