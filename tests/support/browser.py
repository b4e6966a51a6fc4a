"""The machine's browsers, and how tests start Chromium.

1. A browser is the machine's own; nothing is ever downloaded. $CHROMIUM and $FIREFOX override.
2. What is missing is a sentence for pytest.skip, not an error.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Playwright

_CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_FIREFOX_NAMES = ("firefox-esr", "firefox")

# No sandbox: tests run as root too. The rest keeps the browser off the network by itself.
_QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
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

    As a function, because the page's policy forbids the eval that a bare expression needs.
    """
    page.wait_for_function(f"async () => ({condition})", timeout=timeout_ms)
