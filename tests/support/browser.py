"""The machine's browsers, and how tests start Chromium.

1. A browser is the machine's own; nothing is ever downloaded. $CHROMIUM and $FIREFOX override.
2. What is missing is a sentence for pytest.skip, not an error.
"""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.async_api import Page as AsyncPage
    from playwright.sync_api import Browser, Page, Playwright

_CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_FIREFOX_NAMES = ("firefox-esr", "firefox")

# No sandbox: tests run as root too. The rest keeps the browser off the network by itself, and off the caller's proxy.
_QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
)
POLL_MS = 50
FAKE_MICROPHONE = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
"""A microphone that beeps, and nobody to ask for it."""


class BrowserMissingError(RuntimeError):
    """There is no such browser here; the text says what was looked for."""


def chromium_path() -> str:
    """The Chromium to use; BrowserMissingError when there is none."""
    return _find("CHROMIUM", _CHROMIUM_NAMES)


def firefox_path() -> str:
    """The Firefox to use; BrowserMissingError when there is none."""
    return _find("FIREFOX", _FIREFOX_NAMES)


@functools.cache
def _find(variable: str, names: tuple[str, ...]) -> str:
    wanted = os.environ.get(variable)
    found = [path for name in ([wanted] if wanted else names) if (path := shutil.which(name))]
    for path in found:
        # Ubuntu's packages are scripts that only ask for the snap: they do not tell a version.
        with_version = subprocess.run(
            [path, "--version"], capture_output=True, timeout=60, check=False
        )
        if with_version.returncode == 0:
            return path
    tried = wanted or ", ".join(names)
    state = "does not start" if found else "is not installed"
    raise BrowserMissingError(
        f"{variable.capitalize()} {state} (tried {tried}; ${variable} names one)"
    )


@contextmanager
def driver() -> Iterator[Playwright]:
    """Playwright, which starts browsers; one at a time, and no asyncio loop may run beside it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as running:
        yield running


@contextmanager
def chromium(
    playwright: Playwright, *flags: str, executable: str | None = None
) -> Iterator[Browser]:
    """A headless Chromium with these flags besides the quiet ones.

    `executable` may be a script that starts `chromium_path()` with its arguments, elsewhere.
    """
    browser = playwright.chromium.launch(
        executable_path=executable or chromium_path(), args=[*_QUIET, *flags], headless=True
    )
    try:
        yield browser
    finally:
        browser.close()


def wait_until(page: Page, condition: str, timeout_ms: float = 30_000) -> None:
    """Wait until a JavaScript expression, which may be a promise, is truthy in the page.

    Not by wait_for_function: it takes a promise itself for truthy. As a function, because the page's policy
    forbids the eval that a bare expression needs.
    """
    deadline_s = time.monotonic() + timeout_ms / 1_000
    while not page.evaluate(f"async () => ({condition})"):
        if time.monotonic() > deadline_s:
            text = page.evaluate("() => document.body.innerText")
            raise AssertionError(
                f"{timeout_ms} ms passed without {condition}; the page says:\n{text}"
            )
        page.wait_for_timeout(POLL_MS)


class ChromiumTab:
    """A tab with the methods of bidi.Tab, for tests that are coroutines."""

    def __init__(self, page: AsyncPage) -> None:
        self._page = page

    async def goto(self, url: str) -> None:
        """Open a page and wait until it is loaded."""
        await self._page.goto(url)

    async def evaluate(self, expression: str) -> Any:
        """The JSON value of a JavaScript expression, which may be a promise."""
        return await self._page.evaluate(f"async () => (await ({expression})) ?? null")

    async def wait_for(self, expression: str, timeout_s: float = 30.0) -> Any:
        """Wait until an expression is truthy and return it."""
        deadline_s = time.monotonic() + timeout_s
        while not (value := await self.evaluate(expression)):
            if time.monotonic() > deadline_s:
                text = await self.evaluate("document.body.innerText")
                raise AssertionError(
                    f"{timeout_s} s passed without {expression}; the page says:\n{text}"
                )
            await asyncio.sleep(POLL_MS / 1_000)
        return value

    async def another(self) -> ChromiumTab:
        """A second tab of the same browser."""
        return ChromiumTab(await self._page.context.new_page())


@asynccontextmanager
async def async_chromium(*flags: str) -> AsyncIterator[ChromiumTab]:
    """A headless Chromium with a microphone that beeps, and one tab of it."""
    from playwright.async_api import async_playwright

    async with async_playwright() as running:
        browser = await running.chromium.launch(
            executable_path=chromium_path(),
            args=[*_QUIET, *FAKE_MICROPHONE, "--autoplay-policy=no-user-gesture-required", *flags],
            headless=True,
        )
        try:
            yield ChromiumTab(await (await browser.new_context()).new_page())
        finally:
            await browser.close()
