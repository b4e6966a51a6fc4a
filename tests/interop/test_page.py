"""What the demo page says and does when something is missing, refused or broken, in Chromium.

The server's answers are the browser's own (routed), so that every error can be shown; its files are
the demo's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import pytest

from tests.interop import from_npm
from tests.interop.demo import Demo
from tests.interop.page_call import HEARD, check_marks
from tests.support.browser import chromium, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import APIResponse, Browser, Page, Playwright, Route, ViewportSize

pytestmark = [pytest.mark.browser, pytest.mark.slow]

Scheme = Literal["light", "dark"]
CALLS = "**/v1/realtime/calls"
PHONE: ViewportSize = {"width": 360, "height": 740}


def answer_calls(page: Page, status: int, body: str, **headers: str) -> None:
    """The server answers every offer like this."""

    def fulfill(route: Route) -> None:
        kind = "application/json" if body.startswith("{") else "text/html"
        route.fulfill(status=status, body=body, headers={"Content-Type": kind, **headers})

    page.route(CALLS, fulfill)


def notice_after(page: Page, button: str) -> str:
    """Press a button and return what the page then complains about."""
    page.click(button)
    page.wait_for_selector("#notice:not([hidden])")
    return page.inner_text("#notice")


@pytest.fixture(scope="module")
def refusing_browser(playwright: Playwright) -> Iterator[Browser]:
    """A Chromium that has a microphone and never lets a page have it."""
    with chromium(
        playwright, "--use-fake-device-for-media-stream", "--deny-permission-prompts"
    ) as running:
        yield running


@pytest.fixture(scope="module")
def deaf_browser(playwright: Playwright) -> Iterator[Browser]:
    """A Chromium that would let a page have a microphone, but has none."""
    with chromium(
        playwright,
        "--disable-audio-input",
        "--use-fake-ui-for-media-stream",
    ) as running:
        yield running


def test_a_refused_microphone_is_said_and_the_tone_still_talks(
    refusing_browser: Browser, demo: Demo
) -> None:
    page = refusing_browser.new_page()
    page.goto(demo.url)
    assert "The microphone was refused" in notice_after(page, "#talk")
    assert page.inner_text("#status-text") == "Ready"
    page.click("#tone")
    wait_until(page, "document.body.dataset.state === 'connected'")
    assert page.is_hidden("#notice")
    page.close()


def test_an_absent_microphone_is_said(deaf_browser: Browser, demo: Demo) -> None:
    page = deaf_browser.new_page()
    page.goto(demo.url)
    assert "No microphone found" in notice_after(page, "#talk")
    page.close()


def test_a_microphone_in_use_is_said(page: Page, demo: Demo) -> None:
    page.goto(demo.url)
    page.evaluate(
        "() => { navigator.mediaDevices.getUserMedia = async () => {"
        " throw new DOMException('Could not start audio source', 'NotReadableError'); }; }"
    )
    assert "The microphone does not answer" in notice_after(page, "#talk")


def test_an_insecure_page_says_how_to_get_a_microphone(page: Page, demo: Demo) -> None:
    page.add_init_script("Object.defineProperty(window, 'isSecureContext', {value: false})")
    page.goto(demo.url)
    assert "https://" in page.inner_text("#notice")
    assert "No microphone on this address" in notice_after(page, "#talk")


def test_a_browser_without_webrtc_is_told(page: Page, demo: Demo) -> None:
    page.add_init_script("delete window.RTCPeerConnection")
    page.goto(demo.url)
    page.wait_for_selector("#notice:not([hidden])")
    assert "no WebRTC" in page.inner_text("#notice")
    assert page.is_disabled("#talk")
    assert page.is_disabled("#tone")


def test_a_browser_without_web_audio_talks_and_offers_no_tone(page: Page, demo: Demo) -> None:
    page.add_init_script("delete window.AudioContext")
    page.goto(demo.url)
    assert page.is_hidden("#tone")
    page.click("#talk")
    wait_until(page, "document.body.dataset.state === 'connected'")
    wait_until(page, "/meters stay still/.test(document.getElementById('hint').innerText)")
    page.click("#talk")
    wait_until(page, "document.body.dataset.state === 'ended'")
    assert page.is_hidden("#tone")


def test_sound_that_cannot_be_tapped_is_a_call_without_meters(page: Page, demo: Demo) -> None:
    """Firefox refuses a stream of another sample rate like this."""
    page.add_init_script(
        "MediaStreamAudioSourceNode = class {"
        " constructor() { throw new DOMException('sample rate', 'NotSupportedError'); } }"
    )
    page.goto(demo.url)
    page.click("#talk")
    wait_until(page, "document.body.dataset.state === 'connected'")
    assert "meters stay still" in page.inner_text("#hint")
    page.click("#talk")
    wait_until(page, "document.body.dataset.state === 'ended'")


def test_sound_that_is_held_back_comes_by_a_tap(browser: Browser, demo: Demo) -> None:
    context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.add_init_script(
        "const play = HTMLMediaElement.prototype.play;"
        "HTMLMediaElement.prototype.play = async function () {"
        " if (globalThis.deaf || !event?.isTrusted) throw new DOMException('', 'NotAllowedError');"
        " globalThis.playedOn = event.type; return play.call(this); }"
    )
    page.goto(demo.url)
    page.tap("#tone")
    wait_until(page, "/Tap anywhere/.test(document.getElementById('notice').innerText)")
    page.evaluate("() => { globalThis.deaf = true; }")
    page.tap("#call-title")  # one that does not help, and is not the last
    page.evaluate("() => { globalThis.deaf = false; }")
    assert page.is_visible("#notice")
    page.tap("#call-title")
    page.wait_for_selector("#notice", state="hidden")
    assert page.evaluate("playedOn") == "pointerup"  # the start of a touch is no user activation
    context.close()


@pytest.mark.parametrize("late", ["connectionstatechange", "statechange"])
def test_moments_are_in_order_though_the_browser_tells_them_late(
    page: Page, demo: Demo, late: str
) -> None:
    """As a busy one does: of the path after the keys, of the keys after what came by them."""
    page.add_init_script(
        "const listen = EventTarget.prototype.addEventListener;"
        "EventTarget.prototype.addEventListener = function (type, listener, options) {"
        f" const late = type.endsWith('{late}');"
        " const told = late ? (event) => setTimeout(() => listener(event), 500) : listener;"
        " return listen.call(this, type, told, options); }"
    )
    page.goto(demo.url)
    page.click("#tone")
    wait_until(page, f"{HEARD} && 'channel' in voiceRelay.call.marks")
    check_marks(page.evaluate("voiceRelay.call.marks"))


def test_a_server_that_takes_too_long_is_said(page: Page, demo: Demo) -> None:
    """Chromium before 124 names a timeout AbortError."""
    page.add_init_script(
        "AbortSignal.timeout = () => { const it = new AbortController();"
        " setTimeout(() => it.abort(), 100); return it.signal; }"
    )
    page.route(CALLS, lambda route: None)
    page.goto(demo.url)
    assert "took too long" in notice_after(page, "#talk")
    page.unroute_all(behavior="ignoreErrors")


def test_the_servers_own_words_are_shown(page: Page, demo: Demo) -> None:
    message = "All 200 calls of this server are taken."
    error = {"error": {"message": message, "type": "server_error", "code": "full", "param": None}}
    answer_calls(page, 503, json.dumps(error), **{"Retry-After": "7"})
    page.goto(demo.url)
    notice = notice_after(page, "#talk")
    assert message in notice
    assert "Try again in 7 s" in notice
    assert "HTTP 503" in notice
    assert page.inner_text("#talk") == "Talk"


def test_words_of_the_server_are_never_markup(page: Page, demo: Demo) -> None:
    message = "<img src=x onerror=alert(1)>"
    answer_calls(page, 400, json.dumps({"error": {"message": message}}))
    page.goto(demo.url)
    assert message in notice_after(page, "#talk")
    assert page.locator("#notice img").count() == 0


def test_an_error_page_of_a_proxy_is_not_dumped(page: Page, demo: Demo) -> None:
    answer_calls(page, 502, "<html><body>Bad gateway</body></html>")
    page.goto(demo.url)
    notice = notice_after(page, "#talk")
    assert "502" in notice
    assert "<html>" not in notice


def test_a_server_out_of_reach_is_said(page: Page, demo: Demo) -> None:
    page.route(CALLS, lambda route: route.abort("connectionrefused"))
    page.goto(demo.url)
    assert "could not be reached" in notice_after(page, "#talk")


def test_an_answer_that_is_no_sdp_is_said(page: Page, demo: Demo) -> None:
    answer_calls(page, 201, "<p>hello</p>", Location="/v1/realtime/calls/rtc_x")
    page.goto(demo.url)
    assert "could not be set up" in notice_after(page, "#talk")
    assert page.evaluate("document.body.dataset.state") == "idle"


def test_a_relay_that_never_answers_is_said_with_its_address(page: Page, demo: Demo) -> None:
    def silent_relay(route: Route) -> None:
        response = route.fetch()
        answer = response.text().replace(demo.relay.replace(":", " "), "127.0.0.1 9")
        route.fulfill(response=response, body=answer)

    page.route(CALLS, silent_relay)
    page.goto(demo.url)
    page.click("#talk")
    page.wait_for_selector("#notice:not([hidden])", timeout=40_000)
    assert "No media path" in page.inner_text("#notice")
    assert "127.0.0.1:9" in page.inner_text("#notice")


def test_cancelling_while_calling_leaves_nothing_behind(page: Page, demo: Demo) -> None:
    held: list[tuple[Route, APIResponse]] = []
    page.route(CALLS, lambda route: held.append((route, route.fetch())))
    page.goto(demo.url)
    page.click("#tone")
    wait_until(page, "document.body.dataset.state === 'offering'")
    assert page.inner_text("#talk") == "Cancel"
    while not held:
        page.wait_for_timeout(20)
    page.click("#talk")
    wait_until(page, "document.body.dataset.state === 'idle'")
    assert page.is_hidden("#notice")
    # The answer that nobody waits for tells the page which call to end.
    [(route, answer)] = held
    route.fulfill(response=answer)
    stats_url = f"{answer.headers['location']}/stats"
    wait_until(page, f"(await (await fetch('{stats_url}')).json()).state === 'closed'")


def test_the_chosen_entry_is_asked_for(page: Page, demo: Demo) -> None:
    """`./run soak` has the same with regions (test_page_regions.py)."""
    asked: list[str] = []

    def configure(route: Route) -> None:
        response = route.fetch()
        config = response.json()
        config["ingresses"]["elsewhere"] = ["192.0.2.1:3478"]
        route.fulfill(response=response, json=config)

    def refuse(route: Route) -> None:
        asked.append(route.request.url)
        route.abort()

    page.route("**/demo/config.json", configure)
    page.route("**/v1/realtime/calls*", refuse)
    page.goto(f"{demo.url}/?ingress=elsewhere")
    page.click("#settings summary")
    wait_until(page, "document.getElementById('entry').value === 'elsewhere'")
    assert page.locator("#entry option").all_inner_texts() == ["The nearest", "demo", "elsewhere"]
    notice_after(page, "#tone")
    page.select_option("#entry", "")
    notice_after(page, "#tone")
    assert [url.partition("?")[2] for url in asked] == ["ingress=elsewhere", ""]


def test_mute_sends_silence(page: Page, demo: Demo) -> None:
    page.goto(demo.url)
    page.click("#tone")
    wait_until(page, "voiceRelay?.levels?.backDb > -40")
    page.click("#mute")
    assert page.get_attribute("#mute", "aria-pressed") == "true"
    wait_until(page, "voiceRelay.levels.outDb <= -58 && voiceRelay.levels.backDb <= -50")
    page.click("#mute")
    wait_until(page, "voiceRelay.levels.backDb > -40")


def test_every_control_is_reached_by_keyboard(page: Page, demo: Demo) -> None:
    page.goto(demo.url)
    page.select_option("#backend", "echo", force=True)  # Settings stay closed
    page.focus("body")
    reached = []
    for _ in range(5):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "document.activeElement.id || document.activeElement.className"
                " || document.activeElement.parentElement.id"
            )
        )
    assert reached == ["talk", "tone", "settings", "turns-frame", "log-frame"]
    page.focus("#tone")
    page.keyboard.press("Enter")
    wait_until(page, "document.body.dataset.state === 'connected'")
    assert page.evaluate("document.activeElement.id") == "talk"
    page.keyboard.press("Space")
    wait_until(page, "document.body.dataset.state === 'ended'")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_overflows_on_a_phone(browser: Browser, demo: Demo, scheme: Scheme) -> None:
    context = browser.new_context(
        viewport=PHONE, has_touch=True, is_mobile=True, device_scale_factor=2, color_scheme=scheme
    )
    page = context.new_page()
    page.goto(demo.url)
    page.tap("#settings summary")
    page.select_option("#backend", "echo")
    page.tap("#tone")
    wait_until(page, "document.body.dataset.state === 'connected'")
    wait_until(page, "voiceRelay.sample?.remote && document.querySelector('.entry.in')")
    page.tap(".entry.in summary")
    wide = page.evaluate(
        "[...document.querySelectorAll('body *')].filter((node) => !node.closest('pre, .visually-hidden')"
        " && node.getBoundingClientRect().right > innerWidth + 0.5).map((node) => node.outerHTML.slice(0, 80))"
    )
    assert wide == []
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    small = page.evaluate(
        "[...document.querySelectorAll('button, select, #settings summary, .field > input, .taking')].filter((node) => node.checkVisibility()"
        " && node.getBoundingClientRect().height < 44).map((node) => node.id)"
    )
    assert small == []
    context.close()


def test_loads_nothing_from_elsewhere_and_obeys_its_own_policy(page: Page, demo: Demo) -> None:
    requested: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(demo.url)
    page.click("#tone")
    wait_until(page, "document.body.dataset.state === 'connected'")
    assert [url for url in requested if not url.startswith(demo.url)] == []
    assert [text for text in complaints if "Content Security Policy" in text] == []


@pytest.mark.timeout(from_npm.TIMEOUT_S + 120)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_meets_wcag(browser: Browser, demo: Demo, scheme: Scheme) -> None:
    axe = (from_npm.folder() / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")
    context = browser.new_context(color_scheme=scheme, reduced_motion="reduce")
    page = context.new_page()
    page.goto(demo.url)
    page.click("#settings summary")
    page.select_option("#backend", "echo")
    page.evaluate(axe)
    rules = "{runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa', 'best-practice']}"
    violations = (
        f"axe.run(document, {rules}).then((found) => found.violations.map("
        "(one) => [one.id, one.nodes.map((node) => node.failureSummary + node.html)]))"
    )
    assert page.evaluate(violations) == []
    page.click("#tone")
    wait_until(page, "document.body.dataset.state === 'connected'")
    wait_until(page, "document.querySelector('.turn.cut')")
    page.check("#push-to-talk")
    assert page.evaluate(violations) == []
    context.close()
