"""Chromium opens the demo page, talks, and hears itself through the relay.

Real programs, a real browser, a fake microphone that beeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.interop.demo import Demo
from tests.interop.page_call import (
    APART,
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
from tests.support.browser import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.alone]


def talk(page: Page, demo: Demo, button: str) -> None:
    """Place a call and wait until it is heard on both ends."""
    page.goto(demo.url)
    page.click(button)
    wait_until(page, CONNECTED)
    wait_until(page, HEARD)
    wait_until(page, SERVER_COMPLETE)


NOTICED_MS = 10_000


def closed(stats_url: str) -> str:
    """The expression that the server has closed this call."""
    return f"(await (await fetch('{stats_url}')).json()).state === 'closed'"


@pytest.mark.parametrize("button", ["#talk", "#tone"], ids=["microphone", "test-tone"])
def test_talks_through_the_relay(page: Page, demo: Demo, button: str) -> None:
    before = demo.metrics()
    talk(page, demo, button)
    sound = SoundCheck(page.evaluate(READING))
    while not sound.over:
        page.wait_for_timeout(sound.SPAN_S * 1000)
        sound.add(page.evaluate(READING))
    wait_until(page, FIGURES_SHOWN)
    shown = page.evaluate(SHOWN)
    during = demo.metrics()
    sound.check()
    check_shown(shown, demo)
    check_relay(before, during)


@pytest.mark.parametrize("ways", [["recvonly", "sendonly"], ["sendonly", "recvonly"]])
def test_hears_itself_when_each_way_has_a_section_of_its_own(
    page: Page, demo: Demo, ways: list[str]
) -> None:
    page.goto(demo.url)
    assert page.evaluate(APART, ways) == str(ways.index("recvonly"))


def test_hanging_up_ends_the_call_at_the_server(page: Page, demo: Demo) -> None:
    talk(page, demo, "#talk")
    stats_url = page.evaluate("voiceRelay.call.url") + "/stats"
    page.click("#talk")
    wait_until(page, "document.body.dataset.state === 'ended'")
    assert page.inner_text("#status-text").startswith("Call ended after 0:")
    assert page.is_hidden("#notice")
    assert page.inner_text("#talk") == "Talk"
    wait_until(page, closed(stats_url))
    assert page.request.get(stats_url).json()["close_reason"]


def test_talks_again_after_hanging_up(page: Page, demo: Demo) -> None:
    talk(page, demo, "#talk")
    first = page.evaluate("voiceRelay.call.id")
    page.click("#talk")
    wait_until(page, "document.body.dataset.state === 'ended'")
    page.click("#talk")
    wait_until(page, CONNECTED)
    wait_until(page, HEARD)
    assert page.evaluate("voiceRelay.call.id") != first


def test_closing_the_tab_ends_the_call_at_the_server(page: Page, demo: Demo) -> None:
    talk(page, demo, "#talk")
    stats_url = page.evaluate("voiceRelay.call.url") + "/stats"
    other = page.context.new_page()
    other.goto(demo.url)
    page.close()
    wait_until(other, closed(stats_url), NOTICED_MS)


def test_the_server_ends_the_call_and_the_page_says_why(page: Page, demo: Demo) -> None:
    talk(page, demo, "#talk")
    response = page.request.post(page.evaluate("voiceRelay.call.url") + "/hangup")
    assert response.status == 200
    wait_until(page, "document.body.dataset.state === 'ended'")
    page.wait_for_selector("#notice:not([hidden])")
    assert "The server ended the call" in page.inner_text("#notice")
    assert "hangup" in page.inner_text("#notice")
