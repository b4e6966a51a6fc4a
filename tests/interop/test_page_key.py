"""The demo page of a server that wants a key: it says so, takes one, and its calls are whole with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from relay.addresses import format_endpoint
from tests.support.browser import wait_until
from tests.support.process import Processes
from tests.support.relayed import Relay

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.slow]

KEY = "k" * 32


def test_a_key_typed_into_the_page_places_watches_and_ends_the_call(
    page: Page, processes: Processes, tmp_path: Path
) -> None:
    relay = Relay(processes, tmp_path, workers=1)
    keys = tmp_path / "api-keys"
    keys.write_text(f"web {KEY}\n")
    keys.chmod(0o600)
    server = processes.transceiver(
        "serve", "--backend=loopback", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--workers=1",
        f"--keyring={tmp_path / 'keyring'}", "--cluster=7", "--demo-page", f"--api-keys={keys}",
        f"--ingress=main={format_endpoint(*relay.public[0])}", "--log-format=json",
    )  # fmt: skip
    page.goto(f"http://{server.listening('http')[0]}")
    page.wait_for_selector("#key")  # it is not to be looked for

    page.click("#tone")
    page.wait_for_selector("#notice:not([hidden])")
    assert "Not signed in" in page.inner_text("#notice")
    assert "Settings" in page.inner_text("#notice")
    page.fill("#key", "wrong")
    page.click("#tone")
    wait_until(page, "document.getElementById('notice').innerText.includes('wrong or expired')")

    page.fill("#key", f" {KEY} ")
    page.click("#tone")
    wait_until(page, "voiceRelay?.call?.server?.state === 'connected'")
    assert page.is_disabled("#key")
    with page.expect_response(lambda response: response.request.method == "DELETE") as ended:
        page.click("#talk")
    assert ended.value.ok
    assert page.is_hidden("#notice")
