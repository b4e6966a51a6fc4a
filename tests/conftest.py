"""What every test may use: started programs whose logs are shown when the test fails."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.process import OF_A_SERVICE, Processes

ROOT = Path(__file__).resolve().parent.parent

# The machine's speed is no property of the code: no deadlines.
settings.register_profile(
    "default", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("default")

# Under nohup the tests ignore a hang-up, and programs would inherit that; a handler they do not.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

# What the caller's shell has for programs of his is not for those of the tests; nor does a proxy lead to loopback.
for variable in [*os.environ]:
    if variable.startswith(("RELAY_", "TRANSCEIVER_")) or variable in OF_A_SERVICE:
        del os.environ[variable]
for variable in ("no_proxy", "NO_PROXY"):
    os.environ[variable] = ",".join(
        filter(None, (os.environ.get(variable), "localhost,127.0.0.1,::1"))
    )

_PROCESSES = pytest.StashKey[list[Processes]]()


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture
def processes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Processes]:
    """Starts programs for this test; they end with it, and their logs are shown if it fails."""
    with Processes(tmp_path) as started:
        request.node.stash.setdefault(_PROCESSES, []).append(started)
        yield started


@pytest.fixture(scope="module")
def module_processes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Processes]:
    """Like `processes`, for programs that all tests of a module share."""
    with Processes(tmp_path_factory.mktemp("module")) as started:
        request.node.stash.setdefault(_PROCESSES, []).append(started)
        yield started


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Adds the logs of the programs to the report of a test that failed."""
    report: pytest.TestReport = yield  # type: ignore[assignment]
    if report.failed:
        for node in item.listchain():
            for started in node.stash.get(_PROCESSES, []):
                report.sections.append(("logs of started programs", started.report()))
    return report  # type: ignore[return-value]
