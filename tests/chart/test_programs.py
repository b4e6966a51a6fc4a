"""The chart against the programs: its flags exist, its alerts and its dashboard read metrics that are there."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from relay.wire.keyring import generate_line
from tests.chart.conftest import Manifest, find_tool
from tests.chart.matrix import ACTIVE
from tests.chart.values_doc import CHART
from tests.support.process import Processes

Rendered = Callable[[str], list[Manifest]]
Samples = dict[str, list[dict[str, str]]]

_METRIC = re.compile(r"\b((?:relay|transceiver)_[a-z_]+)(?:\{([^}]*)\})?")
_LABEL = re.compile(r'(\w+)(=~?)"([^"]*)"')
OF_KUBERNETES = {"namespace", "service", "pod"}
"""Labels that Prometheus adds."""


def commands(manifests: list[Manifest]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Each program of ours that is started, and its arguments."""
    for one in manifests:
        template = one["spec"]["template"] if one["kind"] in ("DaemonSet", "Deployment") else one
        if one["kind"] in ("DaemonSet", "Deployment", "Pod"):
            container = template["spec"]["containers"][0]
            if container["command"][0] in ("relay", "transceiver"):
                yield tuple(container["command"]), container["args"]


def test_every_flag_exists(rendered: Rendered, processes: Processes) -> None:
    used: dict[tuple[str, ...], set[str]] = {}
    for case in ACTIVE:
        for command, arguments in commands(rendered(case)):
            flags = {argument.partition("=")[0] for argument in arguments if argument[:2] == "--"}
            used.setdefault(command, set()).update(flags)
    assert set(used) == {("relay", "serve"), ("transceiver", "serve"), ("relay", "call")}
    for (program, verb), flags in used.items():
        helped = (processes.relay if program == "relay" else processes.transceiver)(verb, "--help")
        assert helped.wait() == 0
        known = set(re.findall(r"^ +(?:-\w, )?(--[a-z0-9-]+)", helped.output(), re.MULTILINE))
        assert flags <= known, f"{program} {verb} does not know {flags - known}"


@pytest.fixture(scope="module")
def live(module_processes: Processes, tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """Labels of every sample of a running relay and a running transceiver, by name."""
    home = tmp_path_factory.mktemp("live")
    keyring = home / "keyring"
    keyring.write_text(generate_line())
    # A cache that is not there has all its metrics.
    relay = module_processes.relay(
        "serve", "--listen=127.0.0.1:0", "--internal=127.0.0.1:0", "--workers=1", "--admin=127.0.0.1:0",
        f"--keyring={keyring}", "--allow-transceiver=127.0.0.1/32", "--redis=redis://127.0.0.1:1",
        f"--run-dir={home / 'run'}", "--log-format=json", "--cluster-route=7=127.0.0.1:9",
    )  # fmt: skip
    transceiver = module_processes.transceiver(
        "serve", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--workers=1", "--direct",
        "--log-format=json",
    )  # fmt: skip
    samples: Samples = {}
    for program, role in ((relay, "admin"), (transceiver, "http")):
        url = f"http://{program.listening(role)[0]}/metrics"
        with urllib.request.urlopen(url) as response:
            for family in text_string_to_metric_families(response.read().decode()):
                for sample in family.samples:
                    samples.setdefault(sample.name, []).append(sample.labels)
    return samples


def expressions(rendered: Rendered) -> Iterator[str]:
    """All PromQL of the chart."""
    for one in rendered("monitoring"):
        if one["kind"] == "PrometheusRule":
            for group in one["spec"]["groups"]:
                yield from (rule["expr"] for rule in group["rules"])
        if one["kind"] == "ConfigMap":
            for text in one["data"].values():
                yield from panel_expressions(json.loads(text)["panels"])


def panel_expressions(panels: list[dict[str, Any]]) -> Iterator[str]:
    for panel in panels:
        yield from (target["expr"] for target in panel.get("targets", ()))


def test_every_metric_of_alerts_and_dashboard_is_there(rendered: Rendered, live: Samples) -> None:
    used = 0
    for expression in expressions(rendered):
        for name, selector in _METRIC.findall(expression):
            used += 1
            assert name in live, f"no {name} in /metrics: {expression}"
            for label, operator, value in _LABEL.findall(selector):
                if label in OF_KUBERNETES:
                    continue
                there = {labels.get(label) for labels in live[name]}
                wanted = set(value.split("|")) if operator == "=~" else {value}
                assert wanted <= there, f'no {name}{{{label}="{value}"}}: {expression}'
    assert used > 40


def test_the_autoscaler_s_metric_is_there(rendered: Rendered, live: Samples) -> None:
    (scaler,) = (
        one
        for one in rendered("autoscaled-by-sessions")
        if one["kind"] == "HorizontalPodAutoscaler"
    )
    metric = scaler["spec"]["metrics"][0]["pods"]["metric"]
    assert metric["selector"]["matchLabels"] in live[metric["name"]]


def test_the_dashboard_is_one() -> None:
    dashboard = json.loads((CHART / "dashboards" / "voice-relay.json").read_text("utf-8"))
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & own, f"{panel['title']} lies over another panel"
        cells |= own
        if panel["type"] != "row":
            assert panel["description"].endswith(".")


def test_every_expression_is_promql(rendered: Rendered) -> None:
    found = list(expressions(rendered))
    assert len(found) > 30
    for expression in found:
        promql_parser.parse(expression.replace("$__rate_interval", "5m"))


def test_promtool_takes_the_alerts(rendered: Rendered, tmp_path: Path) -> None:
    promtool = find_tool("promtool")
    (rule,) = (one for one in rendered("monitoring") if one["kind"] == "PrometheusRule")
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(rule["spec"]))
    done = subprocess.run(
        [promtool, "check", "rules", "--lint=all", "--lint-fatal", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
