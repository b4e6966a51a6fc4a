"""The chart against a real API server: what it takes, what it keeps, what it refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import yaml

from tests.chart.apiserver import RELEASE
from tests.chart.conftest import NAMESPACE, TOOLS, Helm, Manifest, find_tool
from tests.chart.kubernetes import ApiServer
from tests.chart.matrix import ACTIVE, PUBLIC
from tests.chart.values_doc import CHART
from tests.support.process import Processes

Rendered = Callable[[str], list[Manifest]]

LIVED_IN = "lived-in"
LEVELS = ("privileged", "restricted")


@pytest.fixture(scope="module")
def cluster(module_processes: Processes, tmp_path_factory: pytest.TempPathFactory) -> ApiServer:
    etcd, program = find_tool("etcd"), find_tool("kube-apiserver")
    server = ApiServer(module_processes, etcd, program, tmp_path_factory.mktemp("kubernetes"))
    for name in (NAMESPACE, LIVED_IN):
        server.make_namespace(name)
    for level in LEVELS:
        server.make_namespace(f"at-{level}", level)
    for definition in TOOLS.glob("crds/*.yaml"):
        server.define(yaml.safe_load(definition.read_text()))
    return server


@pytest.mark.parametrize("case", ACTIVE)
def test_every_object_is_taken(cluster: ApiServer, rendered: Rendered, case: str) -> None:
    operator = any(TOOLS.glob("crds/*.yaml"))
    for manifest in rendered(case):
        if operator or not manifest["apiVersion"].startswith("monitoring.coreos.com"):
            assert not cluster.dry_run(manifest), manifest["metadata"]["name"]


def test_an_unknown_field_is_refused(cluster: ApiServer, rendered: Rendered) -> None:
    """Else the test above could not fail."""
    (relay,) = (one for one in rendered("default") if one["kind"] == "DaemonSet")
    relay["spec"]["template"]["spec"]["hostNetworks"] = True
    assert "hostNetworks" in cluster.dry_run(relay)
    del relay["spec"]["template"]["spec"]["hostNetworks"]


@pytest.mark.parametrize(
    ("mode", "component", "level"),
    [
        ("hostNetwork", "relay", "privileged"),
        ("hostNetwork", "transceiver", "restricted"),
        ("hostPort", "relay", "privileged"),
        ("loadBalancer", "relay", "restricted"),
        ("loadBalancer", "redis", "restricted"),
        ("loadBalancer", "test", "restricted"),
    ],
)
def test_pods_need_no_more_than_the_readme_says(
    cluster: ApiServer, helm: Helm, mode: str, component: str, level: str
) -> None:
    values = {
        "relay": {"mode": mode, "publicAddresses": ["198.51.100.7"]},
        "redis": {"bundled": {"enabled": True}},
    }
    (template,) = (
        one if one["kind"] == "Pod" else one["spec"]["template"]
        for one in helm.template(values)
        if one["kind"] in ("DaemonSet", "Deployment", "Pod")
        and (one["metadata"]["labels"]["app.kubernetes.io/component"] == component)
    )
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": component, "labels": template["metadata"]["labels"]},
        "spec": template["spec"],
    }
    refusals = {at: cluster.dry_run(pod, f"at-{at}") for at in LEVELS}
    assert not refusals[level]
    if level == "privileged":
        assert "violates PodSecurity" in refusals["restricted"]


def test_install_upgrade_and_removal(cluster: ApiServer, helm: Helm) -> None:
    def run(*arguments: str, **values: object) -> str:
        done = helm.run(
            *arguments, RELEASE, *((str(CHART),) if values else ()), f"--namespace={LIVED_IN}",
            f"--kubeconfig={cluster.kubeconfig}", values={**PUBLIC, **values} if values else None,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def secrets() -> dict[str, dict[str, str]]:
        return {
            one["metadata"]["name"]: one["data"]
            for one in cluster.read("v1", "Secret", LIVED_IN)
            if one["type"] == "Opaque"
        }

    assert "helm -n lived-in test" in run("install", logLevel="debug")
    before = secrets()
    assert set(before) == {f"{RELEASE}-keyring", f"{RELEASE}-auth"}
    assert len(cluster.read("apps/v1", "DaemonSet", LIVED_IN)) == 1
    run("upgrade", logLevel="info", redis={"bundled": {"enabled": True}})
    after = secrets()
    assert {name: after[name] for name in before} == before, "calls in progress keep their keys"
    (relay,) = cluster.read("apps/v1", "DaemonSet", LIVED_IN)
    assert "--log-level=info" in relay["spec"]["template"]["spec"]["containers"][0]["args"]
    run("uninstall")
    assert secrets() == before, "a new install goes on with the keys of the old one"
    assert not cluster.read("apps/v1", "DaemonSet", LIVED_IN)
    run("install", logLevel="info")
    assert secrets() == before
