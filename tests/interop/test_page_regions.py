"""The page of a demo with regions: an entry is chosen, and the page names it and the cluster that has the call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.interop.demo import Demo, start_demo
from tests.support.browser import wait_until
from tests.support.process import Processes

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.soak, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def regions(module_processes: Processes) -> Demo:
    return start_demo(module_processes, "--regions", "2")


def test_the_page_names_the_entry_that_was_chosen_and_the_cluster(
    page: Page, regions: Demo
) -> None:
    page.goto(f"{regions.url}/?ingress=oregon")
    page.click("#settings summary")
    wait_until(page, "document.getElementById('entry').value === 'oregon'")
    options = page.locator("#entry option").all_inner_texts()
    assert options == ["The nearest", "frankfurt", "oregon"]
    for chosen, named in (("oregon", "oregon"), ("", "frankfurt")):
        page.select_option("#entry", chosen)
        page.click("#tone")
        wait_until(page, f"document.getElementById('hop-relay').innerText.includes('{named}')")
        wait_until(page, "document.getElementById('hop-transceiver').innerText.includes('cluster')")
        assert page.is_disabled("#entry")
        assert "cluster\u00a01" in page.inner_text("#hop-transceiver")
        page.click("#talk")
        wait_until(page, "document.body.dataset.state === 'ended'")
    relay = page.inner_text("#hop-relay .hop-name")
    assert relay == regions.relay, "the nearest is the page's own region"
