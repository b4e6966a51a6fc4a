"""Two tiers of real relays: an entry hands over to the relay of the token's cluster, both ways.

The entry (cluster 0) sends from 127.0.0.2; that is the only peer that the cluster's relay allows, so
the test itself, at 127.0.0.1, is a stranger to it.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest

from relay.addresses import format_endpoint
from relay.wire.address import Endpoint
from relay.wire.keyring import generate_line
from relay.wire.spp import FlowKey, wrap
from tests.integration.test_transceiver_calls import stats_of
from tests.support.calls import stock_call
from tests.support.process import Processes
from tests.support.relayed import (
    CLUSTER,
    RTP,
    Client,
    Relay,
    RouteSink,
    Transceiver,
    binding_request,
    check_both_ways,
    wait_until,
)
from tests.support.stream import Stream

pytestmark = pytest.mark.timeout(180)

ENTRY_IP = "127.0.0.2"
ENTRY_CLUSTER = 0
BATCH_MAX = 256
STREAM_PER_S = 1_000
SMALL_BUFFER = ("--receive-buffer", "212992")


class Tiers(NamedTuple):
    """An entry and the relay it leads to."""

    entry: Relay
    inner: Relay


def start_inner(processes: Processes, directory: Path, *arguments: str, workers: int = 2) -> Relay:
    """A relay of cluster 7 with a backbone for ENTRY_IP."""
    backbone = ("--backbone", "127.0.0.1:0", "--backbone-allow", f"{ENTRY_IP}/32")
    return Relay(processes, directory / "inner", *backbone, *arguments, workers=workers)


def start_entry(
    processes: Processes,
    directory: Path,
    *routes: str,
    name: str = "entry",
    takeover: bool = False,
    **settings: object,
) -> Relay:
    """A relay of cluster 0 with these routes and the keyring of the others."""
    (directory / name).mkdir(exist_ok=True)
    keyring = directory / "inner" / "keyring"
    if keyring.exists():
        shutil.copy(keyring, directory / name / "keyring")
    options = [word for route in routes for word in ("--cluster-route", route)]
    options += ["--cluster", str(ENTRY_CLUSTER), *(["--takeover"] if takeover else [])]
    return Relay(
        processes, directory / name, *options,
        internal=f"{ENTRY_IP}:0", **settings,  # type: ignore[arg-type]
    )  # fmt: skip


def route_to(relay: Relay) -> str:
    """A --cluster-route to cluster 7."""
    return f"{CLUSTER}={format_endpoint(*relay.backbone)}"


@pytest.fixture
def tiers(processes: Processes, tmp_path: Path) -> Tiers:
    inner = start_inner(processes, tmp_path, *SMALL_BUFFER)
    return Tiers(start_entry(processes, tmp_path, route_to(inner), allow=()), inner)


def test_a_check_its_success_and_media_pass_two_tiers(
    tiers: Tiers, client: Client, transceiver: Transceiver
) -> None:
    entry, inner = tiers
    public = entry.public[0]
    up = {"rx public": 1, "tx internal": 1}
    down = {"rx internal": 1, "tx public": 1}
    both = {**up, **down}
    through = {"rx backbone": 1, "tx internal": 1, "rx internal": 1, "tx backbone": 1}
    begun = {"created": 1, "promoted": 1}
    with entry.changed({**both, **begun}), inner.changed({**through, **begun}):
        key = client.establish(transceiver.ufrag(inner.keyring), public, transceiver)
    assert key == FlowKey(client.address, Endpoint.of(*public)), "the entry's header, unchanged"
    with entry.changed(both), inner.changed(through):
        client.send(RTP, public)
        same, payload, sender = transceiver.receive()
        assert (same, payload) == (key, RTP)
        assert sender in inner.internal
        transceiver.send(key, RTP, sender)
        assert client.receive() == (RTP, public)


def test_own_clients_of_the_inner_relay_need_no_entry(
    tiers: Tiers, client: Client, transceiver: Transceiver
) -> None:
    inner = tiers.inner
    client.establish(transceiver.ufrag(inner.keyring), inner.public[0], transceiver)
    check_both_ways(inner, client, transceiver)


def test_a_cluster_without_a_route_is_dropped(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    entry = start_entry(processes, tmp_path, "8=127.0.0.1:9")
    with entry.changed({"rx public": 1, "drop cluster_unknown": 1}):
        client.check(transceiver.ufrag(entry.keyring), entry.public[0])
    assert transceiver.hears_nothing()


def test_an_entry_alone_reaches_no_transceiver_itself(
    tiers: Tiers, client: Client, transceiver: Transceiver
) -> None:
    entry = tiers.entry
    with entry.changed({"rx public": 1, "drop transceiver_not_allowed": 1}):
        client.check(transceiver.ufrag(entry.keyring, cluster=ENTRY_CLUSTER), entry.public[0])
    assert transceiver.hears_nothing()


def test_a_stranger_on_the_backbone_is_dropped(
    tiers: Tiers, client: Client, transceiver: Transceiver
) -> None:
    inner = tiers.inner
    key = FlowKey(client.address, Endpoint.of("192.0.2.1", 3478))
    check = binding_request(f"{transceiver.ufrag(inner.keyring)}:cLnt".encode())
    with inner.changed({"rx backbone": 1, "drop backbone_peer": 1}):
        client.send(wrap(key, check), inner.backbone)
    assert transceiver.hears_nothing()


def test_two_relays_that_lead_to_each_other_make_no_loop(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    """Both send cluster 9 to the other: a datagram passes once and ends at the second."""
    nowhere = 9
    first = start_inner(processes, tmp_path)
    backbone = ("--backbone", f"{ENTRY_IP}:0", "--backbone-allow", "127.0.0.1/32")
    leads = f"{nowhere}={format_endpoint(*first.backbone)}"
    (tmp_path / "entry").mkdir()
    shutil.copy(tmp_path / "inner" / "keyring", tmp_path / "entry" / "keyring")
    entry = Relay(
        processes, tmp_path / "entry", "--cluster", str(ENTRY_CLUSTER), *backbone,
        "--cluster-route", leads, internal=f"{ENTRY_IP}:0",
    )  # fmt: skip
    # Now that the entry's port is known, a successor with a route there.
    inner = start_inner(
        processes, tmp_path, "--takeover",
        "--cluster-route", f"{nowhere}={format_endpoint(*entry.backbone)}",
    )  # fmt: skip
    assert first.process.wait() == 0
    assert inner.backbone == first.backbone
    passes = {"rx public": 1, "tx internal": 1, "created": 1}
    with entry.changed(passes), inner.changed({"rx backbone": 1, "drop backbone_loop": 1}):
        client.check(transceiver.ufrag(inner.keyring, nowhere), entry.public[0])
    assert transceiver.hears_nothing()


def test_entries_choose_the_same_address_of_a_route(processes: Processes, tmp_path: Path) -> None:
    """Behind one public address, whatever the order in which the addresses are written."""
    advertised = ("127.0.0.1:0=192.0.2.1:3478",)
    with ExitStack() as stack:
        sinks = [stack.enter_context(RouteSink()) for _ in range(2)]
        where = [str(sink.address) for sink in sinks]
        (tmp_path / "inner").mkdir()
        (tmp_path / "inner" / "keyring").write_text(generate_line() + "\n")
        entries = [
            start_entry(
                processes, tmp_path, f"{CLUSTER}={','.join(order)}", name=name, listen=advertised
            )
            for name, order in (("one", where), ("two", where[::-1]))
        ]
        chosen = set()
        for _ in range(16):
            client = stack.enter_context(Client())
            ufrag = sinks[0].ufrag(entries[0].keyring)
            taken = []
            for entry in entries:
                client.check(ufrag, entry.public[0])
                wait_until(lambda: any(sink.is_heard_within(0) for sink in sinks), "a check")
                [index] = [i for i, sink in enumerate(sinks) if sink.is_heard_within(0)]
                key, _, _ = sinks[index].receive()
                assert key == FlowKey(client.address, Endpoint.of("192.0.2.1", 3478))
                taken.append(index)
            assert taken[0] == taken[1]
            chosen.add(taken[0])
        assert chosen == {0, 1}


BOTH_TIERS = pytest.mark.parametrize("tier", ["entry", "inner"])


@BOTH_TIERS
def test_kill_9_of_every_worker_of_a_tier(
    tiers: Tiers, client: Client, transceiver: Transceiver, tier: str
) -> None:
    relay: Relay = getattr(tiers, tier)
    client.establish(transceiver.ufrag(relay.keyring), tiers.entry.public[0], transceiver)
    with Stream(client, tiers.entry.public[0], transceiver, STREAM_PER_S) as stream:
        time.sleep(0.3)
        for number, pid in enumerate(relay.worker_pids().values()):
            relay.wait_standby()
            os.kill(pid, signal.SIGKILL)
            relay.process.wait_events("worker_serving", count=relay.workers + number + 1)
        time.sleep(0.3)
    assert stream.outcome.lost <= relay.workers * BATCH_MAX
    assert stream.outcome.duplicates == 0
    check_both_ways(tiers.entry, client, transceiver)


@BOTH_TIERS
def test_a_takeover_of_a_tier_loses_nothing(
    processes: Processes,
    tmp_path: Path,
    tiers: Tiers,
    client: Client,
    transceiver: Transceiver,
    tier: str,
) -> None:
    old: Relay = getattr(tiers, tier)
    client.establish(transceiver.ufrag(old.keyring), tiers.entry.public[0], transceiver)
    with Stream(client, tiers.entry.public[0], transceiver, STREAM_PER_S) as stream:
        if tier == "entry":
            new = start_entry(processes, tmp_path, route_to(tiers.inner), takeover=True)
        else:
            new = start_inner(processes, tmp_path, "--takeover")
            assert new.backbone == old.backbone
        assert old.process.wait() == 0
    assert (stream.outcome.lost, stream.outcome.duplicates) == (0, 0)
    check_both_ways(tiers.entry, client, transceiver)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "also has --backbone 127.0.0.1:"),
        (
            ("--backbone", "127.0.0.1:1", "--backbone-allow", "127.0.0.0/8"),
            "--backbone 127.0.0.1:1: the running relay has 127.0.0.1:",
        ),
    ],
)
def test_a_takeover_with_another_backbone_is_refused(
    processes: Processes, tmp_path: Path, arguments: tuple[str, ...], named: str
) -> None:
    first = start_inner(processes, tmp_path)
    second = Relay(processes, tmp_path / "inner", "--takeover", *arguments, ready=False)
    assert second.process.wait() == 1
    assert named in second.process.output()
    assert first.get("/readyz")[0] == 200


def test_a_takeover_cannot_add_a_backbone(processes: Processes, tmp_path: Path) -> None:
    first = Relay(processes, tmp_path)
    backbone = ("--backbone", "127.0.0.1:0", "--backbone-allow", "127.0.0.0/8")
    second = Relay(processes, tmp_path, "--takeover", *backbone, ready=False)
    assert second.process.wait() == 1
    assert "--backbone 127.0.0.1:0: the running relay has none" in second.process.output()
    assert first.get("/readyz")[0] == 200


def test_a_foreign_socket_on_the_backbone_is_an_error(
    processes: Processes, tmp_path: Path, client: Client
) -> None:
    where = str(client.address)
    backbone = ("--backbone", where, "--backbone-allow", "127.0.0.0/8")
    relay = Relay(processes, tmp_path, *backbone, ready=False)
    assert relay.process.wait() == 1
    assert f"cannot bind {where} (--backbone)" in relay.process.output()


def test_options_from_environment_and_file(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    file = tmp_path / "relay.toml"
    file.write_text(f'backbone = "127.0.0.1:0"\nbackbone_allow = ["{ENTRY_IP}/32"]\n')
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "keyring").write_text(generate_line() + "\n")
    inner = Relay(processes, tmp_path / "inner", "--config", str(file))
    host, port = inner.process.listening("backbone")[0].rsplit(":", 1)
    variables = {"RELAY_CLUSTER_ROUTE": f"{CLUSTER}={host}:{port} 8=127.0.0.1:9"}
    entry = start_entry(processes, tmp_path, env=variables)
    client.establish(transceiver.ufrag(entry.keyring), entry.public[0], transceiver)
    check_both_ways(entry, client, transceiver)


async def test_a_call_behind_two_tiers(processes: Processes, tiers: Tiers, tmp_path: Path) -> None:
    """A stock WebRTC client sees the entry alone; the transceiver, its own cluster's relay."""
    entry = format_endpoint(*tiers.entry.public[0])
    server = processes.transceiver(
        "serve", "--backend=loopback", "--http=127.0.0.1:0", "--media=127.0.0.1:0",
        "--workers=1", f"--cluster={CLUSTER}", f"--keyring={tmp_path / 'inner' / 'keyring'}",
        f"--ingress=near={entry}", "--drain-timeout=0", "--log-format=json",
    )  # fmt: skip
    base = f"http://{server.listening('http')[0]}"
    before = tiers.inner.counters()
    async with stock_call(base) as call, aiohttp.ClientSession(base) as http:
        await call.wait()
        stats = await stats_of(http, call.location)
    assert call.events[0]["type"] == "session.created"
    assert stats["flow"]["proxy"] == entry
    after = tiers.inner.counters()
    assert after["rx public"] == before["rx public"]
    assert after["rx backbone"] > before["rx backbone"]
    assert after["tx backbone"] > before["tx backbone"]
