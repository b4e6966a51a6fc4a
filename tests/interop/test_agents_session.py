"""A conversation by the stock OpenAI agents SDK, in pages of another origin, with a scripted Realtime model behind the relay.

1. Page, relay, transceiver and model are on one host; Firefox's is a namespace, for it never checks a loopback candidate.
2. The page is asked through expressions that give JSON; the same tests run in Chromium and in Firefox.
3. A call's wall-clock figures are of a busy machine: the bounds are ten times what a free one shows.
"""

from __future__ import annotations

import asyncio
import functools
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.interop import from_npm
from tests.interop.demo import Demo, start_demo
from tests.support.bidi import firefox, missing_for_sound
from tests.support.browser import BrowserMissingError, async_chromium, chromium_path, firefox_path
from tests.support.netns import Namespace, missing_for_namespaces
from tests.support.process import Processes
from tests.support.realtime_server import Connection, RealtimeServer
from tests.support.scripted_model import HEARD_TEXT, LONG_MS, scripted_models

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(from_npm.TIMEOUT_S + 120)]

INTERRUPTIONS = 3
SILENCE_MAX_MS = 1_000
"""At the client's ear: the browser's own playout delay, up to 100 ms, is in it."""


class Page(Protocol):
    """One tab, whichever browser it is in."""

    async def goto(self, url: str) -> None: ...
    async def evaluate(self, expression: str) -> Any: ...
    async def wait_for(self, expression: str, timeout_s: float = 30.0) -> Any: ...
    async def another(self) -> Page: ...


@dataclass(frozen=True)
class Stage:
    """Everything that a conversation needs besides the browser."""

    demo: Demo
    models: RealtimeServer
    origin: str
    namespace: Namespace | None

    @property
    def calls_url(self) -> str:
        return f"{self.demo.url}/v1/realtime/calls"


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Requests are of no interest."""


@contextmanager
def _served_pages(namespace: Namespace | None) -> Iterator[str]:
    """The origin of the page with the SDK."""
    handler = functools.partial(_QuietHandler, directory=str(from_npm.folder()))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler, bind_and_activate=False)
    if namespace is not None:
        server.socket.close()
        server.socket = namespace.socket()
    with server:
        server.server_bind()
        server.server_activate()
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://localhost:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module", params=["chromium", "firefox"])
def browser_name(request: pytest.FixtureRequest) -> str:
    try:
        chromium_path() if request.param == "chromium" else firefox_path()
    except BrowserMissingError as missing:
        pytest.skip(str(missing))
    return str(request.param)


@pytest.fixture(scope="module")
def sound(browser_name: str) -> None:
    """Skips where the page cannot hear what comes back: that takes the browser's sound engine."""
    if browser_name == "firefox" and (why := missing_for_sound(firefox_path())):
        pytest.skip(why)


@pytest.fixture(scope="module")
def stage(browser_name: str, module_processes: Processes) -> Iterator[Stage]:
    with ExitStack() as stack:
        namespace = None
        listener = None
        if browser_name == "firefox":
            if why := missing_for_namespaces():
                pytest.skip(why)
            namespace = stack.enter_context(Namespace())
            listener = namespace.socket()
            listener.bind(("127.0.0.1", 0))
        models = stack.enter_context(scripted_models(listener))
        origin = stack.enter_context(_served_pages(namespace))
        demo = start_demo(module_processes, f"--backend={models.url}", namespace=namespace)
        yield Stage(demo, models, origin, namespace)


OpenPage = Callable[[], Any]


@pytest.fixture
def open_page(browser_name: str, stage: Stage, processes: Processes, tmp_path: Path) -> OpenPage:
    """Opens the page with the SDK in a browser of its own."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Page]:
        if browser_name == "chromium":
            pytest.importorskip("playwright.async_api", reason="playwright is not installed")
            browser: Any = async_chromium()
        else:
            assert stage.namespace is not None
            profile = tmp_path / "profile"
            profile.mkdir()
            browser = firefox(
                processes,
                firefox_path(),
                profile,
                prefix=stage.namespace.prefix,
                socket_factory=stage.namespace.socket,
            )
        async with browser as page:
            await load(page, stage)
            yield page

    return opened


async def load(page: Page, stage: Stage) -> None:
    await page.goto(f"{stage.origin}/page.html")
    await page.wait_for("globalThis.talk !== undefined")


async def connect(page: Page, stage: Stage) -> Connection:
    """Places a call in the page; the model's end of it."""
    before = len(stage.models.connections)
    connected = await page.evaluate(f"talk.connect({json.dumps(stage.calls_url)})")
    assert connected["status"] == "connected"
    assert connected["callId"].startswith("rtc_")
    return stage.models.connections[before]


async def until(condition: Callable[[], Any], what: str, timeout_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.01)


async def until_closed(connection: Connection) -> None:
    await until(connection.closed.is_set, "the model's connection is closed", 10.0)


@pytest.mark.usefixtures("sound")
async def test_a_conversation_with_a_tool(open_page: OpenPage, stage: Stage) -> None:
    async with open_page() as page:
        connection = await connect(page, stage)
        # session.update: the SDK's own, with its tool, as the bridge passes it on
        updates = [event["session"] for event in connection.of("session.update")]
        update = next(session for session in updates if "tools" in session)
        assert [tool["name"] for tool in update["tools"]] == ["weather"]
        assert update["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24_000}
        assert await page.evaluate("talk.count('session.updated')") >= 1
        assert await page.evaluate("talk.types()[0]") == "session.created"
        # audio up: the browser's microphone beeps
        await until(lambda: max(connection.audio[1::2], default=0) > 0, "sound of the microphone")
        # audio down and transcripts of both sides
        await page.evaluate("talk.say('hello')")
        await page.wait_for("talk.answered()")
        await page.wait_for("talk.count('output_audio_buffer.stopped') === 1")
        assert await page.evaluate("talk.count('response.output_audio.delta')") == 0
        await page.evaluate("talk.send({type: 'test.speak'})")
        await page.evaluate("talk.send({type: 'test.stop'})")
        heard = f"talk.history().some(({{text}}) => text === {json.dumps(HEARD_TEXT)})"
        await page.wait_for(heard)
        history = await page.evaluate("talk.history()")
        spoken = [(item["role"], item["text"]) for item in history]
        assert ("user", "hello") in spoken
        assert ("assistant", "You said hello") in spoken
        # a function call, there and back
        await page.evaluate("talk.say('use the tool')")
        await page.wait_for(
            "talk.history().some(({text}) => text === 'The function said rain in Bonn')"
        )
        assert await page.evaluate("talk.toolCalls") == ["Bonn"]
        assert await page.evaluate("talk.failures") == []
        assert await page.evaluate("talk.count('error')") == 0


@pytest.mark.usefixtures("sound")
@pytest.mark.parametrize("how", ["interrupt", "speakOver"])
async def test_interruptions_mid_sentence(
    open_page: OpenPage, stage: Stage, how: str, record_property: Callable[[str, object], None]
) -> None:
    silent_ms = []
    async with open_page() as page:
        connection = await connect(page, stage)
        for number in range(1, INTERRUPTIONS + 1):
            await page.evaluate("talk.say('talk long')")
            await page.wait_for("talk.answered()")
            await asyncio.sleep(1.5)
            await page.evaluate(f"talk.{how}()")
            await page.wait_for(f"talk.count('output_audio_buffer.cleared') === {number}")
            await asyncio.sleep(2.0)  # deltas of the cut response still come
            assert not await page.evaluate("talk.hears(500)")
            silent_ms.append(await page.evaluate("talk.silenceAfterMs()"))
            # The model ends the response: only then may the next one be asked for.
            await page.wait_for(f"talk.count('response.done') === {number}")
        print(f"silence {[round(ms) for ms in silent_ms]} ms after {how}")
        record_property("silence_onset_ms", min(silent_ms))
        # A busy machine makes the page look late, but not each time.
        assert min(silent_ms) < SILENCE_MAX_MS
        truncates = connection.of("conversation.item.truncate")
        assert len(truncates) == INTERRUPTIONS
        assert all(1_000 <= event["audio_end_ms"] < LONG_MS / 2 for event in truncates)
        if how == "interrupt":
            assert connection.of("response.cancel")
            assert not connection.of("output_audio_buffer.clear")
        # The next answer is heard to its end: nothing of the cut ones stands in its way.
        await page.evaluate("talk.say('and now')")
        await page.wait_for("talk.answered()")
        await page.wait_for("talk.count('output_audio_buffer.stopped') === 1")
        stats = await page.evaluate("talk.stats()")
        assert stats["interruptions"] == INTERRUPTIONS
        assert stats["talk_ms"] > 1_000 * INTERRUPTIONS


async def test_the_client_hangs_up(open_page: OpenPage, stage: Stage) -> None:
    async with open_page() as page:
        connection = await connect(page, stage)
        await page.evaluate("talk.session.close()")
        await until_closed(connection)
        stats = await page.evaluate("talk.stats()")
        assert stats["close_reason"] in ("dtls_close_notify", "sctp_abort", "channel_closed")


async def test_hung_up_over_http(open_page: OpenPage, stage: Stage) -> None:
    async with open_page() as page:
        connection = await connect(page, stage)
        assert await page.evaluate("talk.hangUpByHttp()") == 200
        await page.wait_for("talk.transport.status === 'disconnected'")
        await until_closed(connection)
        assert (await page.evaluate("talk.stats()"))["close_reason"] == "hangup"


@pytest.mark.usefixtures("sound")
async def test_a_reload_ends_the_call_within_ten_seconds_and_the_next_one_works(
    open_page: OpenPage, stage: Stage
) -> None:
    async with open_page() as page:
        first = await connect(page, stage)
        await load(page, stage)
        await until_closed(first)
        second = await connect(page, stage)
        await page.evaluate("talk.say('hello')")
        await page.wait_for("talk.answered()")
        assert not second.closed.is_set()


@pytest.mark.usefixtures("sound")
async def test_two_tabs_talk_apart(open_page: OpenPage, stage: Stage) -> None:
    async with open_page() as page:
        connection = await connect(page, stage)
        other = await page.another()
        await load(other, stage)
        other_connection = await connect(other, stage)
        for tab in (page, other):
            await tab.evaluate("talk.say('talk long')")
        for tab in (page, other):
            await tab.wait_for("talk.answered()")
        await page.evaluate("talk.interrupt()")
        await page.wait_for("talk.count('output_audio_buffer.cleared') === 1")
        await page.wait_for("!talk.hears(1_500)")
        await other.wait_for("talk.hears(2_000)")
        assert await other.evaluate("talk.count('output_audio_buffer.cleared')") == 0
        await other.evaluate("talk.session.close()")
        await until_closed(other_connection)
        assert not connection.closed.is_set()
        await page.evaluate("talk.say('still there')")
        await page.wait_for("talk.answered()")
