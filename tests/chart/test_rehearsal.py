"""What the chart would start, started without a cluster, and updated in the middle of calls.

Two nodes run the DaemonSet's relays behind one address, two pods the Deployment's transceivers behind one
Service. Calls are placed by the very pod of `helm test`. Then every relay is replaced, then every
transceiver. No call may be cut, and each ends by a request that reaches its old pod through a new one.
What was lost is printed and put into the report.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chart.conftest import Helm, Manifest
from tests.chart.pods import LoadBalancer, Pod, Service, service_of
from tests.support.lab import CACHE, VIP, CacheHost, Host, Lab
from tests.support.netns import missing_for_namespaces
from tests.support.process import Process, Processes
from tests.support.redis_server import missing_for_redis
from tests.support.relayed import wait_until

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.timeout(400)]

SERVICE_ADDRESS = "198.19.0.80"
CALLS = 4
CALL_S = 75
STARVED_MS = 400
"""The stock client takes no answer of consent that is later than 500 ms; here the way is microseconds."""
NETWORKS = ["198.18.0.0/16"]
VALUES: dict[str, Any] = {
    "network": {"podCIDRs": NETWORKS, "nodeCIDRs": NETWORKS},
    "relay": {"publicAddresses": [VIP], "workers": 1, "drainTimeoutSeconds": 5},
    "transceiver": {"workers": 1, "drainTimeoutSeconds": 90, "preStopSeconds": 2},
    "test": {"calls": CALLS, "seconds": CALL_S},
}


@pytest.fixture
def lab(processes: Processes, tmp_path: Path) -> Iterator[Lab]:
    if os.environ.get("CHART_MATRIX") != "full":
        pytest.skip("the rehearsal takes two minutes; `./run chart` runs it")
    if why := missing_for_namespaces():
        pytest.skip(why)
    with Lab(processes, tmp_path) as made:
        yield made
        processes.stop_all()


class Cluster:
    """The rendered objects, running."""

    def __init__(self, lab: Lab, manifests: list[Manifest], nodes: int = 2) -> None:
        self.lab = lab
        self.manifests = manifests
        self._ending: list[threading.Thread] = []
        relay, transceiver = (self._workload(kind) for kind in ("DaemonSet", "Deployment"))
        self._relay, self._transceiver = relay, transceiver
        hosts = [lab.host() for _ in range(nodes)]
        for host in hosts:
            host.adopt(VIP)
        self.relays = [self._start(host, relay) for host in hosts]
        self.transceivers = [
            self._start(lab.host(), transceiver) for _ in range(transceiver["spec"]["replicas"])
        ]
        self.gone: list[Pod] = []
        for pod in (*self.relays, *self.transceivers):
            pod.wait_ready()
        self.balancer = LoadBalancer(lab, VIP, lambda: list(self.relays))
        entry = lab.host()
        entry.adopt(SERVICE_ADDRESS)
        lab.lead(SERVICE_ADDRESS, entry)
        self._port = self._service_port()
        self.service = Service(entry, SERVICE_ADDRESS, self._port, lambda: list(self.transceivers))

    def place_calls(self, host: Host) -> Any:
        """The test's pod; its cluster-internal name is the Service's address."""
        (pod,) = (one for one in self.manifests if one["kind"] == "Pod")
        container = pod["spec"]["containers"][0]
        url = container["args"][-1]
        name, port = service_of(url)
        assert (name, port) == ("voice-relay-transceiver.voice.svc", self._port)
        (secret,) = (
            one
            for one in self.manifests
            if one["kind"] == "Secret" and "api-key" in one["stringData"]
        )
        return self.lab.processes.start(
            *(*host.namespace.prefix, sys.executable, "-m", *container["command"]),
            *container["args"][:-1], "--json", "--max-loss=100", url.replace(name, SERVICE_ADDRESS),
            env={"RELAY_CALL_KEY": secret["stringData"]["api-key"]},
        )  # fmt: skip

    def update_relays(self) -> None:
        """A DaemonSet's rolling update: node by node, the old pod ends before the new one starts."""
        for index, old in enumerate(self.relays):
            old.delete()
            self.gone.append(old)
            self.relays[index] = self._start(old.host, self._relay)
            self.relays[index].wait_ready()
            time.sleep(self._relay["spec"]["minReadySeconds"])

    def update_transceivers(self) -> None:
        """A Deployment's rolling update: a new pod first, then an old one drains while this goes on."""
        for old in list(self.transceivers):
            new = self._start(self.lab.host(), self._transceiver)
            new.wait_ready()
            self.transceivers.append(new)
            self.transceivers.remove(old)
            self.gone.append(old)
            self._ending.append(threading.Thread(target=old.delete))
            self._ending[-1].start()

    def close(self) -> None:
        """Waits until old pods are gone."""
        for thread in self._ending:
            thread.join()
        self.service.close()
        self.balancer.close()

    def _start(self, host: Host, workload: Manifest) -> Pod:
        return Pod(self.lab, host, workload["spec"]["template"], self.manifests)

    def _workload(self, kind: str) -> Manifest:
        (found,) = (one for one in self.manifests if one["kind"] == kind)
        return found

    def _service_port(self) -> int:
        (found,) = (
            one["spec"]["ports"][0]["port"]
            for one in self.manifests
            if one["kind"] == "Service" and one["metadata"]["name"].endswith("-transceiver")
        )
        return int(found)


def connected(cluster: Cluster) -> int:
    total = 0.0
    for pod in cluster.transceivers:
        _, text, _ = pod.host.request((pod.host.address, pod.port("http")), "GET", "/metrics")
        for line in text.splitlines():
            if line.startswith('transceiver_sessions{state="connected"}'):
                total += float(line.split()[1])
    return int(total)


def reports_of(caller: Process) -> list[dict[str, Any]]:
    return [json.loads(line) for line in caller.output().splitlines() if line.startswith("{")]


def summary_of(reports: list[dict[str, Any]], cluster: Cluster) -> dict[str, Any]:
    """What a person wants to know, for the report and on the screen."""
    names = ("lost_in", "lost_out", "packets_in", "longest_gap_ms", "rtt_ms")
    summary: dict[str, Any] = {
        "calls": len(reports),
        "cut": [report["trouble"] for report in reports if report["trouble"] is not None],
        **{name: [report[name] for report in reports] for name in names},
        "pods_ended_s": [round(pod.ended_s or 0, 1) for pod in cluster.gone],
    }
    print("rehearsal:", json.dumps(summary))
    if summary["cut"] and max(rtt_ms or 0 for rtt_ms in summary["rtt_ms"]) > STARVED_MS:
        pytest.skip(f"the machine was too busy for a verdict: {summary}")
    return summary


def check_ended_well(cluster: Cluster, pods: int) -> None:
    assert len(cluster.gone) == pods
    assert not any(pod.killed for pod in cluster.gone), "the grace was too short"
    assert all(pod.process.returncode == 0 for pod in cluster.gone)


def test_an_update_of_everything_cuts_no_call(
    lab: Lab, helm: Helm, record_property: Callable[[str, object], None]
) -> None:
    values = dict(VALUES)
    cached = missing_for_redis() is None
    if cached:
        CacheHost(lab)
        values["redis"] = {"url": f"redis://{CACHE}:6379"}
    cluster = Cluster(lab, helm.template(values))
    caller = cluster.place_calls(lab.host())
    wait_until(lambda: connected(cluster) == CALLS, "connected calls", 60)
    began_s = time.monotonic()
    cluster.update_relays()
    cluster.update_transceivers()
    assert time.monotonic() - began_s < CALL_S, "the calls ended before the update did"
    status = caller.wait(CALL_S + 60)
    cluster.close()
    summary = summary_of(reports_of(caller), cluster)
    record_property("rehearsal", summary)
    assert (status, summary["calls"], summary["cut"]) == (0, CALLS, [])
    check_ended_well(cluster, 4)
    # A moved client is routed by its next packet with the cache, by its next check (5 s) without.
    assert max(summary["longest_gap_ms"]) < (3_000 if cached else 8_000)


def test_with_one_node_calls_wait_for_the_new_relay(
    lab: Lab, helm: Helm, record_property: Callable[[str, object], None]
) -> None:
    """Nobody takes the old relay's port meanwhile; consent lasts 30 s, and that is long enough."""
    short = {**VALUES, "test": {"calls": CALLS, "seconds": 35}}
    cluster = Cluster(lab, helm.template(short), nodes=1)
    caller = cluster.place_calls(lab.host())
    wait_until(lambda: connected(cluster) == CALLS, "connected calls", 60)
    cluster.update_relays()
    status = caller.wait(100)
    cluster.close()
    summary = summary_of(reports_of(caller), cluster)
    record_property("rehearsal", summary)
    assert (status, summary["calls"], summary["cut"]) == (0, CALLS, [])
    check_ended_well(cluster, 1)
    assert max(summary["longest_gap_ms"]) < 20_000
