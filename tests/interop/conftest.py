"""Browsers and the demo for the interop tests; without a browser they skip and say why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.interop.demo import Demo, start_demo
from tests.support.browser import (
    FAKE_MICROPHONE,
    BrowserMissingError,
    chromium,
    chromium_path,
    driver,
)
from tests.support.process import Processes

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Playwright


@pytest.fixture(scope="module")
def demo(module_processes: Processes) -> Demo:
    """One `relay demo` for the tests of a module, as the README starts it but on free ports."""
    return start_demo(module_processes)


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    """What starts Chromium; skips without one that starts. Modules with async tests cannot use it."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    try:
        chromium_path()
    except BrowserMissingError as missing:
        pytest.skip(str(missing))
    with driver() as running:
        yield running


@pytest.fixture(scope="module")
def browser(playwright: Playwright) -> Iterator[Browser]:
    """A Chromium whose microphone beeps and is never asked for."""
    with chromium(playwright, *FAKE_MICROPHONE) as running:
        yield running


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page in a context of its own; a script error in it fails the test."""
    context = browser.new_context()
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert errors == []
