"""A browser on another host talks to `relay demo --public-address`.

Two network namespaces and a cable: the demo in one, Chromium in the other. The page comes over HTTPS
with the demo's own certificate, so the browser gives it the microphone; relay and page are bound
to the wildcard, so replies must leave from the address that was asked.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.interop.demo import Demo, start_demo
from tests.interop.page_call import (
    CONNECTED,
    FIGURES_SHOWN,
    HEARD,
    READING,
    SERVER_COMPLETE,
    SHOWN,
    SoundCheck,
    check_relay,
    check_shown,
)
from tests.support.browser import FAKE_MICROPHONE, chromium, chromium_path, wait_until
from tests.support.netns import Namespace, missing_for_namespaces
from tests.support.process import Processes

if TYPE_CHECKING:
    from playwright.sync_api import Playwright

pytestmark = [pytest.mark.browser, pytest.mark.netns, pytest.mark.alone]


@pytest.fixture
def hosts() -> Iterator[tuple[Namespace, Namespace]]:
    """The demo's host and the visitor's."""
    if why := missing_for_namespaces():
        pytest.skip(why)
    with Namespace() as server, Namespace() as visitor:
        yield server, visitor


def start_public_demo(processes: Processes, host: Namespace, address: str) -> Demo:
    """A demo that others may reach."""
    return start_demo(processes, "--public-address", address, namespace=host)


def test_a_visitor_talks_over_https(
    playwright: Playwright,
    hosts: tuple[Namespace, Namespace],
    processes: Processes,
    tmp_path: Path,
) -> None:
    server, visitor = hosts
    address, _ = server.connect(visitor)
    demo = start_public_demo(processes, server, address)
    assert demo.url.startswith(f"https://{address}:")
    script = tmp_path / "chromium-there"
    script.write_text(f'#!/bin/sh\nexec {shlex.join([*visitor.prefix, chromium_path()])} "$@"\n')
    script.chmod(0o755)
    before = demo.metrics()
    with chromium(playwright, *FAKE_MICROPHONE, executable=str(script)) as browser:
        page = browser.new_context(ignore_https_errors=True).new_page()
        page.goto(demo.url)
        assert page.is_hidden("#notice")
        page.click("#talk")
        wait_until(page, CONNECTED)
        wait_until(page, HEARD)
        wait_until(page, SERVER_COMPLETE)
        sound = SoundCheck(page.evaluate(READING))
        while not sound.over:
            page.wait_for_timeout(sound.SPAN_S * 1000)
            sound.add(page.evaluate(READING))
        wait_until(page, FIGURES_SHOWN)
        shown = page.evaluate(SHOWN)
        during = demo.metrics()
        page.click("#talk")
        wait_until(page, "document.body.dataset.state === 'ended'")
    sound.check()
    check_shown(shown, demo)
    check_relay(before, during)
