"""What the chart renders: valid for Kubernetes, consistent in itself, and as safe as it says."""

from __future__ import annotations

import base64
import ipaddress
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from relay.wire.keyring import Keyring
from tests.chart.apiserver import RELEASE, Secrets, api_server
from tests.chart.conftest import NAMESPACE, Helm, Manifest
from tests.chart.matrix import ACTIVE, CASES, PUBLIC, REFUSED, Values
from tests.chart.values_doc import CHART
from transceiver.auth import load_api_keys, load_auth_secret

Rendered = Callable[[str], list[Manifest]]

OLDEST, NEWEST = "1.27", "1.34"
CRDS = ("ServiceMonitor", "PrometheusRule")
WORKLOADS = ("DaemonSet", "Deployment")

each_case = pytest.mark.parametrize("case", ACTIVE)


def of_kind(manifests: list[Manifest], *kinds: str) -> list[Manifest]:
    return [one for one in manifests if one["kind"] in kinds]


def named(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    (found,) = (one for one in of_kind(manifests, kind) if one["metadata"]["name"] == name)
    return found


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """The name and the pod template of everything that runs."""
    for one in manifests:
        if one["kind"] in WORKLOADS:
            yield one["metadata"]["name"], one["spec"]["template"]
        elif one["kind"] == "Pod":
            yield one["metadata"]["name"], one


def pod_of(manifests: list[Manifest], component: str) -> Manifest:
    """The pod template of relay, transceiver, redis or test."""
    (found,) = (
        pod
        for _, pod in pods(manifests)
        if pod["metadata"]["labels"]["app.kubernetes.io/component"] == component
    )
    return found


def arguments(pod: Manifest) -> list[str]:
    found: list[str] = pod["spec"]["containers"][0]["args"]
    return found


def selects(selector: dict[str, str], pod: Manifest) -> bool:
    labels: dict[str, str] = pod["metadata"]["labels"]
    return selector.items() <= labels.items()


def test_lint_has_nothing_to_say(helm: Helm) -> None:
    done = helm.run("lint", str(CHART), "--strict", "--kube-version", "1.34.0", values=PUBLIC)
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


@each_case
def test_every_object_is_valid(rendered: Rendered, case: str) -> None:
    for manifest in rendered(case):
        assert manifest["metadata"]["namespace"] == NAMESPACE
        assert len(manifest["metadata"]["name"]) <= 63
        if manifest["kind"] not in CRDS:
            for version in (OLDEST, NEWEST):
                kubernetes_validate.validate(manifest, version, strict=True)


def test_the_whole_matrix_is_rendered() -> None:
    if len(ACTIVE) < len(CASES):
        pytest.skip(f"{len(ACTIVE)} of {len(CASES)} settings; `./run chart` renders them all")


@each_case
def test_names_are_used_once(rendered: Rendered, case: str) -> None:
    names = [(one["kind"], one["metadata"]["name"]) for one in rendered(case)]
    assert len(names) == len(set(names))


@each_case
def test_selectors_find_their_pods(rendered: Rendered, case: str) -> None:
    manifests = rendered(case)
    running = [pod for _, pod in pods(manifests)]
    for one in manifests:
        selector = None
        if one["kind"] == "Service":
            selector = one["spec"]["selector"]
        elif one["kind"] in (*WORKLOADS, "PodDisruptionBudget"):
            selector = one["spec"]["selector"]["matchLabels"]
        elif one["kind"] == "NetworkPolicy":
            selector = one["spec"]["podSelector"]["matchLabels"]
        if selector is not None:
            assert sum(selects(selector, pod) for pod in running) == 1, one["metadata"]["name"]


@each_case
def test_ports_by_name_are_there(rendered: Rendered, case: str) -> None:
    manifests = rendered(case)
    for service in of_kind(manifests, "Service"):
        (pod,) = (pod for _, pod in pods(manifests) if selects(service["spec"]["selector"], pod))
        names = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= names
    for policy in of_kind(manifests, "NetworkPolicy"):
        selector = policy["spec"]["podSelector"]["matchLabels"]
        (pod,) = (pod for _, pod in pods(manifests) if selects(selector, pod))
        names = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
        for rule in policy["spec"]["ingress"]:
            assert {p["port"] for p in rule["ports"] if isinstance(p["port"], str)} <= names
    for monitor in of_kind(manifests, "ServiceMonitor"):
        matching = [
            service
            for service in of_kind(manifests, "Service")
            if monitor["spec"]["selector"]["matchLabels"].items()
            <= service["metadata"]["labels"].items()
            and {port["name"] for port in service["spec"]["ports"]}
            >= {end["port"] for end in monitor["spec"]["endpoints"]}
        ]
        assert len(matching) == 1


@each_case
def test_volumes_secrets_and_maps_are_there(rendered: Rendered, case: str) -> None:
    manifests = rendered(case)
    made = {
        (kind, one["metadata"]["name"]): one.get("stringData") or one.get("data") or {}
        for kind in ("Secret", "ConfigMap")
        for one in of_kind(manifests, kind)
    }
    existing = {
        (kind, text)
        for section in ("keyring", "auth", "redis", "backend", "caBundle")
        for kind in ("Secret", "ConfigMap")
        if (text := CASES[case].get(section, {}).get(f"existing{kind}"))
    }
    existing.add(("Secret", CASES[case]["relay"].get("backbone", {}).get("existingSecret", "")))
    for name, pod in pods(manifests):
        spec = pod["spec"]
        container = spec["containers"][0]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes), name
        for volume in volumes.values():
            if "secret" in volume:
                assert ("Secret", volume["secret"]["secretName"]) in {*made, *existing}
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in {*made, *existing}
        for variable in container.get("env", []):
            reference = variable.get("valueFrom", {}).get("secretKeyRef")
            if reference and ("Secret", reference["name"]) not in existing:
                assert reference["key"] in made["Secret", reference["name"]]
        mounted = [mount["mountPath"] for mount in container["volumeMounts"]]
        for argument in container.get("args", []):
            path = argument.partition("=")[2]
            if path.startswith("/") and argument.startswith("--"):
                assert any(path.startswith(mount) for mount in mounted), argument


@each_case
def test_every_container_is_locked_up(rendered: Rendered, case: str) -> None:
    for name, pod in pods(rendered(case)):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["enableServiceLinks"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert "memory" in container["resources"]["limits"]
            assert "requests" in container["resources"]
        for container in spec.get("initContainers", []):
            assert container["name"] == "buffers"
            assert CASES[case]["relay"]["bufferInit"]["enabled"]
        assert spec.get("hostNetwork", False) == (
            pod["metadata"]["labels"]["app.kubernetes.io/component"] == "relay"
            and CASES[case]["relay"].get("mode", "hostNetwork") == "hostNetwork"
        )


@each_case
def test_a_pod_has_time_for_its_drain(rendered: Rendered, case: str) -> None:
    for component in ("relay", "transceiver"):
        pod = pod_of(rendered(case), component)
        (drain,) = (a for a in arguments(pod) if a.startswith("--drain-timeout="))
        stop = pod["spec"]["containers"][0].get("lifecycle", {}).get("preStop")
        before = int(stop["exec"]["command"][1]) if stop else 0
        grace = pod["spec"]["terminationGracePeriodSeconds"]
        assert grace >= int(drain.partition("=")[2]) + before + 10


@each_case
def test_internal_ports_are_open_to_each_other_only(rendered: Rendered, case: str) -> None:
    manifests = rendered(case)
    policies = of_kind(manifests, "NetworkPolicy")
    if not CASES[case].get("networkPolicy", {}).get("enabled", True):
        assert not policies
        return
    on_host = CASES[case]["relay"].get("mode", "hostNetwork") == "hostNetwork"
    relay, transceiver = (pod_of(manifests, name) for name in ("relay", "transceiver"))
    policy = named(
        manifests, "NetworkPolicy", next(n for n, p in pods(manifests) if p is transceiver)
    )
    media, peer = policy["spec"]["ingress"][:2]
    workers = int(flag(transceiver, "--workers"))
    for rule, option in ((media, "--media"), (peer, "--peer")):
        (ports,) = rule["ports"]
        first = int(flag(transceiver, option).rpartition(":")[2])
        assert (ports["port"], ports["endPort"]) == (first, first + workers - 1)
    (peers,) = peer["from"]
    assert selects(peers["podSelector"]["matchLabels"], transceiver)
    relays = [item.partition("=")[2] for item in arguments(transceiver) if "--allow-relay" in item]
    if on_host:
        assert [item["ipBlock"]["cidr"] for item in media["from"]] == relays
    else:
        (relays_pods,) = media["from"]
        assert selects(relays_pods["podSelector"]["matchLabels"], relay)
        internal = named(
            manifests, "NetworkPolicy", next(n for n, p in pods(manifests) if p is relay)
        )["spec"]["ingress"][1]
        assert internal["ports"][0]["port"] == int(flag(relay, "--internal").rpartition(":")[2])
        assert selects(internal["from"][0]["podSelector"]["matchLabels"], transceiver)


def flag(pod: Manifest, option: str) -> str:
    (found,) = (a.partition("=")[2] for a in arguments(pod) if a.startswith(option + "="))
    return found


@each_case
def test_relays_and_transceivers_agree(rendered: Rendered, case: str) -> None:
    manifests = rendered(case)
    relay, transceiver = (pod_of(manifests, name) for name in ("relay", "transceiver"))
    assert flag(relay, "--cluster") == flag(transceiver, "--cluster")
    public = [a.rpartition("=")[2] for a in arguments(relay) if a.startswith("--listen=")]
    (own, *_) = (a for a in arguments(transceiver) if a.startswith("--ingress="))
    assert own.split("=")[2].partition("@")[0].split(",") == public
    last = int(flag(transceiver, "--media").rpartition(":")[2]) + int(
        flag(transceiver, "--workers")
    )
    for item in arguments(relay):
        if item.startswith("--allow-transceiver="):
            network, _, ports = item.partition("=")[2].rpartition(":")
            ipaddress.ip_network(network)
            assert int(ports.partition("-")[2]) == last - 1
    prefixes = [[a for a in arguments(pod) if "--ipv6-prefix" in a] for pod in (relay, transceiver)]
    assert prefixes[0] == prefixes[1]


def all_of(pod: Manifest, option: str) -> list[str]:
    return [a.partition("=")[2] for a in arguments(pod) if a.startswith(option + "=")]


def test_the_backbone_is_open_to_other_clusters_relays_only(rendered: Rendered) -> None:
    for case in ("entry-of-pods", "oregon"):
        manifests = rendered(case)
        relay = pod_of(manifests, "relay")
        policy = named(
            manifests, "NetworkPolicy", next(n for n, p in pods(manifests) if p is relay)
        )
        (rule,) = (r for r in policy["spec"]["ingress"] if r["ports"][0]["port"] == "backbone")
        (port,) = (p for p in relay["spec"]["containers"][0]["ports"] if p["name"] == "backbone")
        assert flag(relay, "--backbone") == f"$(POD_IP):{port['containerPort']}"
        assert [peer["ipBlock"]["cidr"] for peer in rule["from"]] == all_of(
            relay, "--backbone-allow"
        )
    (service,) = (
        one
        for one in of_kind(rendered("oregon"), "Service")
        if one["metadata"]["name"].endswith("-backbone")
    )
    assert service["spec"]["loadBalancerSourceRanges"] == ["10.101.0.0/20"]


def test_redis_tells_transceivers_which_relays_are_well(rendered: Rendered) -> None:
    for case, key in (("frankfurt", "all"), ("bundled-redis-on-host", "url")):
        relay, transceiver = (pod_of(rendered(case), name) for name in ("relay", "transceiver"))
        assert (
            flag(relay, "--ingress-name") == all_of(transceiver, "--ingress")[0].partition("=")[0]
        )
        (told,) = (
            variable["valueFrom"]["secretKeyRef"]
            for variable in transceiver["spec"]["containers"][0]["env"]
            if variable["name"] == "TRANSCEIVER_REDIS"
        )
        (cached,) = (
            variable["valueFrom"]["secretKeyRef"]
            for variable in relay["spec"]["containers"][0]["env"]
            if variable["name"] == "RELAY_REDIS"
        )
        assert (told["name"], told["key"], cached["key"]) == (cached["name"], key, "url")
    (policy,) = (
        one
        for one in of_kind(rendered("bundled-redis-on-host"), "NetworkPolicy")
        if one["metadata"]["name"].endswith("-redis")
    )
    admitted = policy["spec"]["ingress"][0]["from"]
    assert any(
        selects(peer["podSelector"]["matchLabels"], transceiver)
        for peer in admitted
        if "podSelector" in peer
    )


def test_the_two_clusters_of_the_examples_find_each_other(rendered: Rendered) -> None:
    found = {}
    for case in ("frankfurt", "oregon"):
        relay, transceiver = (pod_of(rendered(case), name) for name in ("relay", "transceiver"))
        own = CASES[case]["clusterId"]
        assert flag(relay, "--cluster") == flag(transceiver, "--cluster") == str(own)
        ingresses = dict(item.split("=", 1) for item in all_of(transceiver, "--ingress"))
        (peer,) = all_of(transceiver, "--cluster-peer")
        (route,) = all_of(relay, "--cluster-route")
        found[case] = (own, ingresses, peer, route, flag(transceiver, "--place"))
    for here, there in (("frankfurt", "oregon"), ("oregon", "frankfurt")):
        own, ingresses, peer, route, _ = found[here]
        other, others_ingresses, _, _, place = found[there]
        assert own != other
        assert ingresses == others_ingresses, "either names the entries of both"
        host = CASES[there]["transceiver"]["ingress"]["host"]
        assert peer == f"{other}=https://{host}@{place}"
        cluster, _, addresses = route.partition("=")
        assert cluster == str(other)
        inside = ipaddress.ip_network(CASES[there]["network"]["nodeCIDRs"][0])
        for address in addresses.split(","):
            assert ipaddress.ip_address(address.rpartition(":")[0]) in inside
        sources = "nodeCIDRs" if CASES[here]["relay"]["mode"] == "hostNetwork" else "podCIDRs"
        allowed = CASES[there]["relay"]["backbone"]["allow"]
        assert CASES[here]["network"][sources] == allowed


@pytest.mark.parametrize("wrong", REFUSED if len(ACTIVE) == len(CASES) else list(REFUSED)[:2])
def test_wrong_values_are_refused_with_a_reason(helm: Helm, wrong: str) -> None:
    values, reason = REFUSED[wrong]
    done = helm.run("template", RELEASE, str(CHART), "--kube-version", f"{NEWEST}.0", values=values)
    assert done.returncode != 0
    assert reason in done.stderr


def test_generated_secrets_are_what_the_programs_read(rendered: Rendered, tmp_path: Path) -> None:
    keyring = named(rendered("default"), "Secret", f"{RELEASE}-keyring")
    assert len(Keyring.parse(keyring["stringData"]["keyring"]).keys) == 1
    auth = named(rendered("realtime-backend"), "Secret", f"{RELEASE}-auth")["stringData"]
    for name in auth:
        (tmp_path / name).write_text(auth[name])
    (key,) = load_api_keys(tmp_path / "api-keys")
    assert (key.name, key.calls, key.calls_per_minute) == ("default", 10, 60)
    assert len(load_auth_secret(tmp_path / "auth-secret")) >= 32
    assert auth["api-keys"].split()[1] == auth["api-key"]


def test_each_install_has_secrets_of_its_own(helm: Helm) -> None:
    first, second = (helm.template(PUBLIC) for _ in range(2))
    for name in ("keyring", "auth"):
        made = [named(one, "Secret", f"{RELEASE}-{name}")["stringData"] for one in (first, second)]
        assert not set(made[0].values()) & set(made[1].values())


def test_an_existing_secret_is_not_made_again(rendered: Rendered) -> None:
    assert not of_kind(rendered("frankfurt"), "Secret")


def test_a_backend_session_arrives_as_json(rendered: Rendered) -> None:
    made = named(rendered("realtime-backend"), "ConfigMap", f"{RELEASE}-session")
    assert json.loads(made["data"]["session.json"]) == {"instructions": 'Say "hello": briefly.'}


@pytest.mark.parametrize(
    ("case", "holder", "key"),
    [
        ("redis-url", {"secretName": "authorities", "defaultMode": 0o440}, "bundle.pem"),
        ("realtime-backend", {"name": "authorities"}, "ca.crt"),
    ],
)
def test_both_programs_read_the_authorities(
    rendered: Rendered, case: str, holder: dict[str, Any], key: str
) -> None:
    for program in ("relay", "transceiver"):
        pod = pod_of(rendered(case), program)
        container = pod["spec"]["containers"][0]
        (file,) = (one["value"] for one in container["env"] if one["name"] == "SSL_CERT_FILE")
        (mount,) = (one for one in container["volumeMounts"] if one["name"] == "ca")
        (volume,) = (one for one in pod["spec"]["volumes"] if one["name"] == "ca")
        (source,) = (source for kind, source in volume.items() if kind != "name")
        path = file.removeprefix(mount["mountPath"] + "/")
        assert source == {**holder, "items": [{"key": key, "path": path}]}


def test_an_ingress_leads_to_calls_and_page_only(rendered: Rendered) -> None:
    (ingress,) = of_kind(rendered("open-with-page"), "Ingress")
    (rule,) = ingress["spec"]["rules"]
    paths = {(path["path"], path["pathType"]) for path in rule["http"]["paths"]}
    assert paths == {("/v1/realtime", "Prefix"), ("/", "Exact"), ("/demo", "Prefix")}
    (alone,) = of_kind(rendered("frankfurt"), "Ingress")
    assert len(alone["spec"]["rules"][0]["http"]["paths"]) == 1


def test_the_autoscaler_owns_the_replicas(rendered: Rendered) -> None:
    for case, kind in (("autoscaled-by-sessions", "Pods"), ("autoscaled-by-cpu", "Resource")):
        (scaler,) = of_kind(rendered(case), "HorizontalPodAutoscaler")
        target = named(rendered(case), "Deployment", scaler["spec"]["scaleTargetRef"]["name"])
        assert "replicas" not in target["spec"]
        assert scaler["spec"]["metrics"][0]["type"] == kind


def installed(helm: Helm, secrets: Secrets, values: Values) -> tuple[list[Manifest], str]:
    """What an install would send to a cluster that has these Secrets, and the notes."""
    with api_server(helm.home, secrets) as kubeconfig:
        done = helm.run(
            "install", RELEASE, str(CHART), "--namespace", NAMESPACE, "--dry-run=server", "--output=json",
            "--disable-openapi-validation", f"--kubeconfig={kubeconfig}", values=values,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    release = json.loads(done.stdout)
    return [one for one in yaml.safe_load_all(release["manifest"]) if one], release["info"]["notes"]


def test_notes_say_what_to_do_next(helm: Helm) -> None:
    _, notes = installed(helm, {}, PUBLIC)
    for text in (
        "helm -n voice test voice-relay --logs",
        "198.51.100.7",
        "port-forward",
        "Narrow them",
    ):
        assert text in notes


def test_what_was_generated_is_kept(helm: Helm) -> None:
    values = {**PUBLIC, "redis": {"bundled": {"enabled": True}}, "auth": {"callsAtOnce": 7}}
    manifests, _ = installed(helm, {}, values)
    before = {one["metadata"]["name"]: one["stringData"] for one in of_kind(manifests, "Secret")}
    assert len(before) == 3
    again, _ = installed(helm, before, {**values, "auth": {"callsAtOnce": 8}})
    for one in of_kind(again, "Secret"):
        texts = one.get("stringData") or {
            name: base64.b64decode(text).decode() for name, text in one["data"].items()
        }
        expected = dict(before[one["metadata"]["name"]])
        if "api-keys" in expected:
            expected["api-keys"] = expected["api-keys"].replace("calls=7", "calls=8")
        assert texts == expected
    for name in ("keyring", "auth"):
        annotations = named(again, "Secret", f"{RELEASE}-{name}")["metadata"]["annotations"]
        assert annotations["helm.sh/resource-policy"] == "keep"
