"""Helm for the chart's tests: from the path, or as `./run chart` has built it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.apiserver import RELEASE
from tests.chart.values_doc import CHART

Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]

TOOLS = CHART.parent / "build" / "tools"
KUBE_VERSION = "1.34.0"
NAMESPACE = "voice"


def find_tool(name: str) -> Path:
    """A program of that name; skips the test when there is none."""
    if (TOOLS / name).exists():
        return TOOLS / name
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name}; `./run chart` builds it where there is Go")
    return Path(found)


class Helm:
    """Runs helm in a home of its own."""

    def __init__(self, program: Path, home: Path) -> None:
        self._program = program
        self.home = home

    def run(
        self, *arguments: str, values: Mapping[str, Any] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """The finished program; `values` become a file."""
        command = [str(self._program), *arguments]
        if values is not None:
            # JSON is YAML, and a mapping is written down as it is.
            file = self.home / "values.json"
            file.write_text(json.dumps(values))
            command += ["--values", str(file)]
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "KUBECONFIG": str(self.home / "none"),
        }
        return subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=60, check=False
        )

    def template(self, values: Mapping[str, Any], *arguments: str) -> list[Manifest]:
        """What the chart makes of these values."""
        done = self.run(
            "template", RELEASE, str(CHART), "--namespace", NAMESPACE,
            *(arguments or ("--kube-version", KUBE_VERSION)), values=values,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm, or a skip that says how to get it."""
    return Helm(find_tool("helm"), tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def rendered(helm: Helm) -> Callable[[str], list[Manifest]]:
    """The manifests of a case of the matrix, rendered once."""
    from tests.chart.matrix import CASES

    done: dict[str, list[Manifest]] = {}

    def render(case: str) -> list[Manifest]:
        if case not in done:
            done[case] = helm.template(CASES[case])
        return done[case]

    return render
