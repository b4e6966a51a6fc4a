"""Keys pressed in Chromium (RTCDTMFSender) reach the backend and come back as events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.interop.demo import Demo
from tests.interop.page_call import CONNECTED
from tests.support.browser import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

LISTEN = """() => {
  window.digits = "";
  voiceRelay.call.addEventListener("message", ({ detail }) => {
    const text = String(detail.data);
    if (text.includes("dtmf_event_received")) window.digits += JSON.parse(text).event;
  });
}"""
PRESS = """() => voiceRelay.call.connection.getSenders()[0].dtmf.insertDTMF("12#A", 100, 70)"""


def test_pressed_keys_are_events(page: Page, demo: Demo) -> None:
    page.goto(demo.url)
    page.click("#talk")
    wait_until(page, CONNECTED)
    assert page.evaluate("voiceRelay.call.connection.getSenders()[0].dtmf.canInsertDTMF")
    page.evaluate(LISTEN)
    page.evaluate(PRESS)
    wait_until(page, "window.digits === '12#A'")
