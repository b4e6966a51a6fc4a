"""What the namespace tests share: a lab for one test or for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lab import Lab
from tests.support.netns import missing_for_namespaces
from tests.support.process import Processes


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Skips what needs namespaces where there are none."""
    if why := missing_for_namespaces():
        pytest.skip(why)


@pytest.fixture
def lab(namespaces: None, processes: Processes, tmp_path: Path) -> Iterator[Lab]:
    """A router without hosts; it ends after the programs on it."""
    with Lab(processes, tmp_path) as made:
        yield made
        processes.stop_all()


@pytest.fixture(scope="module")
def module_lab(
    namespaces: None, module_processes: Processes, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lab]:
    """A lab that all tests of a module share."""
    with Lab(module_processes, tmp_path_factory.mktemp("lab")) as made:
        yield made
        module_processes.stop_all()
