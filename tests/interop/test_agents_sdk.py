"""The stock OpenAI agents SDK, in a page of another origin, calls through the relay.

The SDK's only setting is the URL: what it sends and expects is what its users' pages do.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from tests.interop import from_npm
from tests.interop.demo import Demo
from tests.interop.page_call import SoundCheck, reading_of
from tests.support.browser import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.alone]

READING = reading_of("sdk.connection")


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Requests are of no interest."""


@pytest.fixture(scope="module")
def sdk_origin(browser: Browser) -> Iterator[str]:
    """Another origin than the demo's, with the bundled SDK on page.html."""
    handler = functools.partial(_QuietHandler, directory=str(from_npm.folder()))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.timeout(from_npm.TIMEOUT_S + 120)
def test_the_stock_sdk_talks_cross_origin(page: Page, sdk_origin: str, demo: Demo) -> None:
    page.goto(f"{sdk_origin}/page.html")
    wait_until(page, "globalThis.sdk !== undefined")
    connected = page.evaluate("(url) => sdk.connect(url)", f"{demo.url}/v1/realtime/calls")
    assert connected["status"] == "connected"
    assert connected["callId"].startswith("rtc_")
    wait_until(page, "sdk.events.includes('session.created')")
    wait_until(page, "sdk.playing()")
    sound = SoundCheck(page.evaluate(READING))
    while not sound.over:
        page.wait_for_timeout(sound.SPAN_S * 1000)
        sound.add(page.evaluate(READING))
    sound.check()
    page.evaluate("sdk.transport.close()")
