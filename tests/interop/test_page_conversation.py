"""The demo page's conversations, with the echo that takes turns: who speaks, what is chosen, push to talk, in Chromium."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.interop.demo import Demo
from tests.support.browser import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.alone]

SENT = "(type) => [...document.querySelectorAll('.entry.out')].filter((entry) => entry.dataset.type === type).map((entry) => JSON.parse(entry.querySelector('pre').textContent))"


def open_with(page: Page, demo: Demo, backend: str) -> None:
    page.goto(demo.url)
    page.click("#settings summary")
    page.select_option("#backend", backend)


def sent(page: Page, kind: str) -> list[dict[str, Any]]:
    """The events of this type that the page has sent."""
    return list(page.evaluate(SENT, kind))


def begin(page: Page, button: str = "#talk") -> None:
    page.click(button)
    wait_until(page, "document.body.dataset.state === 'connected'")
    wait_until(page, f"{count(page, 'session.created')} === 1")


def count(page: Page, kind: str) -> str:
    """An expression: how many events of this type have come."""
    return f"document.querySelectorAll('.entry.in[data-type=\"{kind}\"]').length"


def test_both_sides_are_written_down_and_an_interruption_is_seen(page: Page, demo: Demo) -> None:
    open_with(page, demo, "echo")
    assert "backend echo" in page.inner_text("#facts")
    page.click("#tone")  # a melody that pauses, and goes on while the echo answers
    wait_until(page, "document.querySelector('.turn.you')")
    wait_until(page, "document.getElementById('floor').dataset.floor === 'model'")
    wait_until(page, "document.querySelector('.turn.model.cut')")
    wait_until(
        page,
        "/interrupted after [0-9.]+ s/.test(document.querySelector('.turn.model.cut').innerText)",
    )
    assert "echo of" in page.inner_text(".turn.model.cut .turn-text")
    assert sent(page, "session.update") == []  # what nobody chose is the server's
    # Seen and hung up in one go: the melody pauses after two seconds.
    speaking = "document.querySelector('.turn.you:last-child .turn-note')?.innerText === 'speaking'"
    wait_until(page, f"{speaking} && (document.getElementById('talk').click(), true)")
    wait_until(page, "document.body.dataset.state === 'ended'")
    assert page.inner_text(".turn.you:last-child .turn-note") == "call ended"


def test_the_loopback_has_no_turns_to_choose(page: Page, demo: Demo) -> None:
    open_with(page, demo, "loopback")
    for field in ("voice", "taking", "silence"):
        assert page.is_hidden(f"#{field}-field")
    assert page.is_hidden("#talk-title")
    above = "document.querySelector('.timeline').offsetTop < document.querySelector('.quality').offsetTop"
    assert page.evaluate(f"() => {above}")  # where the conversation would be
    page.select_option("#backend", "echo")
    assert page.is_visible("#talk-title")
    page.select_option("#backend", "loopback")
    begin_loopback = "document.body.dataset.state === 'connected'"
    page.click("#tone")
    wait_until(page, begin_loopback)
    wait_until(page, "voiceRelay.levels.backDb > -40")
    assert page.is_disabled("#backend")


def test_voice_and_pause_go_to_the_server_at_once(page: Page, demo: Demo) -> None:
    open_with(page, demo, "echo")
    page.fill("#voice", "marin")
    page.press("#voice", "Tab")
    begin(page)
    (first,) = sent(page, "session.update")
    assert first["session"]["audio"] == {"output": {"voice": "marin"}}
    page.fill("#silence", "1200")
    assert page.inner_text("#silence-value") == "1.2 s"
    wait_until(page, f"{count(page, 'session.updated')} === 2")
    turn_detection = sent(page, "session.update")[1]["session"]["audio"]["input"]["turn_detection"]
    assert turn_detection == {"type": "server_vad", "silence_duration_ms": 1_200}


def test_with_push_to_talk_nothing_is_heard_before_the_session_begins(
    page: Page, demo: Demo
) -> None:
    """The server's first word is late: until then it knows nothing of the key, and takes what it hears for a turn."""
    page.add_init_script(
        "const listen = EventTarget.prototype.addEventListener;"
        "EventTarget.prototype.addEventListener = function (type, listener, options) {"
        " const late = this instanceof RTCDataChannel && type === 'message';"
        " const told = late ? (event) => setTimeout(() => listener(event), 3_000) : listener;"
        " return listen.call(this, type, told, options); }"
    )
    open_with(page, demo, "echo")
    page.check("#push-to-talk")
    begin(page)
    wait_until(page, f"{count(page, 'session.updated')} === 1")
    kinds = page.eval_on_selector_all(".entry.in", "all => all.map((one) => one.dataset.type)")
    assert kinds == ["session.created", "session.updated"]


@pytest.mark.parametrize("by", ["pointer", "keyboard"])
def test_push_to_talk(page: Page, demo: Demo, by: str) -> None:
    open_with(page, demo, "echo")
    page.check("#push-to-talk")
    assert page.is_hidden("#silence-field")
    begin(page)
    assert sent(page, "session.update")[0]["session"]["audio"]["input"] == {"turn_detection": None}
    assert page.is_hidden("#mute")
    wait_until(page, "voiceRelay.levels.outDb <= -58")  # the microphone beeps, and is closed

    def hold(ms: int) -> None:
        if by == "pointer":
            page.hover("#hold")
            page.mouse.down()
        else:
            page.focus("#hold")
            page.keyboard.down("Space")
        assert page.get_attribute("#hold", "aria-pressed") == "true"
        page.wait_for_timeout(ms)
        page.mouse.up() if by == "pointer" else page.keyboard.up("Space")
        assert page.get_attribute("#hold", "aria-pressed") == "false"

    hold(5_000)  # the echo is to speak long enough to be interrupted
    wait_until(page, f"{count(page, 'output_audio_buffer.started')} === 1")
    wait_until(page, "voiceRelay.levels.backDb > -40")
    wait_until(page, "voiceRelay.levels.outDb <= -58")
    hold(600)  # while the echo speaks: it stops
    wait_until(page, f"{count(page, 'output_audio_buffer.cleared')} === 1")
    wait_until(page, f"{count(page, 'output_audio_buffer.started')} === 2")
    wait_until(page, "document.querySelector('.turn.model.cut')")
    # hands free again: the microphone is open, and nothing is held
    page.check("#hands-free")
    assert page.is_hidden("#hold")
    wait_until(page, "voiceRelay.levels.outDb > -40")


def test_devices_are_listed_once_known_and_used(browser: Browser, demo: Demo) -> None:
    context = browser.new_context(permissions=["microphone"])
    page = context.new_page()
    open_with(page, demo, "loopback")
    begin = "document.body.dataset.state === 'connected'"
    page.click("#talk")
    wait_until(page, begin)
    wait_until(page, "document.querySelectorAll('#microphone option').length > 2")
    page.click("#talk")
    wait_until(page, "document.body.dataset.state === 'ended'")
    names = page.eval_on_selector_all("#microphone option", "nodes => nodes.map((n) => n.value)")
    page.select_option("#microphone", names[-1])
    page.click("#talk")
    wait_until(page, begin)
    used = page.evaluate("voiceRelay.source.stream.getAudioTracks()[0].getSettings().deviceId")
    assert used == names[-1]
    context.close()


def test_the_loudspeaker_is_chosen_before_and_during_a_call(browser: Browser, demo: Demo) -> None:
    context = browser.new_context(permissions=["microphone"])
    page = context.new_page()
    open_with(page, demo, "loopback")
    begin = "document.body.dataset.state === 'connected'"
    page.click("#talk")
    wait_until(page, begin)
    wait_until(page, "document.querySelectorAll('#loudspeaker option').length > 2")
    assert page.is_visible("#loudspeaker-field")
    names = page.eval_on_selector_all("#loudspeaker option", "nodes => nodes.map((n) => n.value)")
    sink = "document.getElementById('speaker').sinkId"
    assert page.evaluate(sink) == names[0] == ""
    page.select_option("#loudspeaker", names[1])  # while it plays
    wait_until(page, f"{sink} === '{names[1]}'")
    page.click("#talk")
    wait_until(page, "document.body.dataset.state === 'ended'")
    page.select_option("#loudspeaker", names[2])
    page.click("#talk")
    wait_until(page, begin)
    wait_until(page, f"{sink} === '{names[2]}'")
    wait_until(page, "voiceRelay.levels.backDb > -40")
    context.close()


def test_errors_of_the_server_stand_in_the_conversation(page: Page, demo: Demo) -> None:
    open_with(page, demo, "echo")
    begin(page)
    page.evaluate("voiceRelay.send({type: 'no.such.thing'})")
    wait_until(page, "document.querySelector('.turn.server')")
    assert "no.such.thing" in page.inner_text(".turn.server")
