"""Firefox opens the demo page, talks, and hears itself through the relay.

Firefox never checks a loopback candidate, so browser and demo share a network namespace with an
interface and a default route; the page is at localhost, for the microphone's sake.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from tests.interop.demo import Demo, start_demo
from tests.interop.page_call import (
    APART,
    CONNECTED,
    ENERGY,
    FIGURES_SHOWN,
    HEARD,
    READING,
    SERVER_COMPLETE,
    SHOWN,
    SoundCheck,
    check_relay,
    check_shown,
)
from tests.support.bidi import Tab, firefox, missing_for_sound
from tests.support.browser import BrowserMissingError, firefox_path
from tests.support.netns import Namespace, missing_for_namespaces
from tests.support.process import Processes

CHOOSE_ECHO = """(() => {
  const backend = document.getElementById("backend");
  backend.value = "echo";
  backend.dispatchEvent(new Event("input", {bubbles: true}));
  backend.dispatchEvent(new Event("change", {bubbles: true}));
  return true;
})()"""

pytestmark = [pytest.mark.browser, pytest.mark.netns, pytest.mark.alone]


@pytest.fixture(scope="module")
def executable() -> str:
    """The Firefox to drive; skips without one."""
    try:
        return firefox_path()
    except BrowserMissingError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def sound(executable: str) -> None:
    """Skips where this Firefox starts no sound engine, and so neither tone nor meters."""
    if why := missing_for_sound(executable):
        pytest.skip(why)


@pytest.fixture(scope="module")
def namespace(executable: str) -> Iterator[Namespace]:
    """The host that browser and demo share."""
    if why := missing_for_namespaces():
        pytest.skip(why)
    with Namespace() as made:
        yield made


@pytest.fixture(scope="module")
def demo(namespace: Namespace, module_processes: Processes) -> Demo:
    """A demo that picks the namespace's own address for its relay."""
    return start_demo(module_processes, namespace=namespace)


OpenFirefox = Callable[..., AbstractAsyncContextManager[Tab]]


@pytest.fixture
def open_firefox(
    executable: str, namespace: Namespace, processes: Processes, tmp_path: Path
) -> OpenFirefox:
    """Starts a Firefox with a fresh profile in the namespace; takes further prefs."""
    profile = tmp_path / "profile"
    profile.mkdir()
    return partial(
        firefox,
        processes,
        executable,
        profile,
        prefix=namespace.prefix,
        socket_factory=namespace.socket,
    )


async def test_talks_through_the_relay(
    open_firefox: OpenFirefox, namespace: Namespace, demo: Demo
) -> None:
    assert demo.relay.startswith(f"{namespace.address}:")
    before = demo.metrics()
    async with open_firefox() as tab:
        await tab.goto(demo.url)
        await tab.click("#talk")
        await tab.wait_for(CONNECTED)
        await tab.wait_for(HEARD)
        await tab.wait_for(SERVER_COMPLETE)
        sound = SoundCheck(await tab.evaluate(READING))
        while not sound.over:
            await asyncio.sleep(sound.SPAN_S)
            sound.add(await tab.evaluate(READING))
        await tab.wait_for(FIGURES_SHOWN)
        shown = await tab.evaluate(SHOWN)
        during = demo.metrics()
        await tab.click("#talk")
        await tab.wait_for("document.body.dataset.state === 'ended'")
    sound.check()
    check_shown(shown, demo)
    check_relay(before, during)


@pytest.mark.usefixtures("sound")
async def test_the_echo_that_decodes_and_encodes_is_understood(
    open_firefox: OpenFirefox, demo: Demo
) -> None:
    """Firefox's own Opus is heard to be speech, and what the echo says is heard by Firefox."""
    async with open_firefox() as tab:
        await tab.goto(demo.url)
        await tab.wait_for("document.querySelector('#backend option[value=echo]') !== null")
        await tab.evaluate(CHOOSE_ECHO)
        await tab.click("#tone")  # a melody that pauses, and goes on while the echo answers
        await tab.wait_for(CONNECTED)
        await tab.wait_for("document.querySelector('.turn.you') !== null")
        await tab.wait_for("voiceRelay.levels.backDb > -40")
        await tab.wait_for("document.querySelector('.turn.model') !== null")
        await tab.wait_for(ENERGY)
        await tab.click("#talk")
        await tab.wait_for("document.body.dataset.state === 'ended'")


@pytest.mark.parametrize("ways", [["recvonly", "sendonly"], ["sendonly", "recvonly"]])
async def test_hears_itself_when_each_way_has_a_section_of_its_own(
    open_firefox: OpenFirefox, demo: Demo, ways: list[str]
) -> None:
    async with open_firefox() as tab:
        await tab.goto(demo.url)
        assert await tab.evaluate(f"({APART})({ways})") == str(ways.index("recvonly"))


@pytest.mark.usefixtures("sound")
async def test_a_refused_microphone_is_said_and_the_tone_still_talks(
    open_firefox: OpenFirefox, demo: Demo
) -> None:
    never_ask_never_give = {
        "media.navigator.permission.disabled": False,
        "permissions.default.microphone": 2,
    }
    async with open_firefox(prefs=never_ask_never_give) as tab:
        await tab.goto(demo.url)
        await tab.click("#talk")
        await tab.wait_for("!document.getElementById('notice').hidden")
        assert "The microphone was refused" in await tab.evaluate("document.body.innerText")
        await tab.click("#tone")
        await tab.wait_for(CONNECTED)
        await tab.wait_for("voiceRelay.levels.backDb > -40")
