"""The stock OpenAI agents SDK, in a page of another origin, calls through the relay.

1. The SDK is bundled from npm into a cache outside the repository; without npm the test skips.
2. Its only setting is the URL: what it sends and expects is what its users' pages do.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.interop.demo import Demo
from tests.interop.page_call import SoundCheck
from tests.support.browser import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SOURCE = Path(__file__).parent / "sdk"
NPM_TIMEOUT_S = 300


def build_bundle() -> Path:
    """The folder with page.html and bundle.js, made once per state of `sdk/`; skips when npm cannot."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed: the stock SDK cannot be fetched")
    content = b"".join(file.read_bytes() for file in sorted(SOURCE.iterdir()))
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "voice-relay-tests" / f"sdk-{hashlib.sha256(content).hexdigest()[:16]}"
    if (folder / "bundle.js").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    for file in SOURCE.iterdir():
        shutil.copy(file, folder)
    flags = ["--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
    for command in (
        [npm, "install", *flags],
        [
            npm,
            "exec",
            "--offline",
            "--",
            "esbuild",
            "main.js",
            "--bundle",
            "--format=esm",
            "--outfile=made.js",
        ],
    ):
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=NPM_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            pytest.skip(f"{' '.join(command[1:3])} failed: {done.stderr.strip()[-300:]}")
    (folder / "made.js").rename(folder / "bundle.js")
    return folder


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Requests are of no interest."""


@pytest.fixture(scope="module")
def sdk_origin(browser: Browser) -> Iterator[str]:
    """Another origin than the demo's, with the bundled SDK on page.html."""
    handler = functools.partial(_QuietHandler, directory=str(build_bundle()))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.timeout(NPM_TIMEOUT_S + 120)
def test_the_stock_sdk_talks_cross_origin(page: Page, sdk_origin: str, demo: Demo) -> None:
    page.goto(f"{sdk_origin}/page.html")
    wait_until(page, "globalThis.sdk !== undefined")
    connected = page.evaluate("(url) => sdk.connect(url)", f"{demo.url}/v1/realtime/calls")
    assert connected["status"] == "connected"
    assert connected["callId"].startswith("rtc_")
    wait_until(page, "sdk.events.includes('session.created')")
    wait_until(page, "sdk.playing()")
    sound = SoundCheck(page.evaluate("sdk.reading()"))
    while not sound.over:
        page.wait_for_timeout(sound.SPAN_S * 1000)
        sound.add(page.evaluate("sdk.reading()"))
    sound.check()
    page.evaluate("sdk.transport.close()")
