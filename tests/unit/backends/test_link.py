"""The WebSocket to a backend against a real server that misbehaves in every way a test can ask for."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from transceiver.backends import link as link_module
from transceiver.backends.link import Link, LinkConfig, refuse_redirects

Handler = Callable[[web.WebSocketResponse, int], Awaitable[None]]


class Owner:
    def __init__(self) -> None:
        self.connected: list[bool] = []
        self.messages: list[str | bytes] = []
        self.gone: list[str] = []
        self.broken: list[str] = []
        self.room_open = asyncio.Event()
        self.room_open.set()

    def on_connected(self, again: bool) -> list[dict[str, Any]]:
        self.connected.append(again)
        return [{"type": "first", "again": again}]

    def on_message(self, message: str | bytes) -> None:
        self.messages.append(message)

    def on_broken(self, reason: str) -> None:
        self.broken.append(reason)

    def on_gone(self, reason: str) -> None:
        self.gone.append(reason)

    async def room(self) -> None:
        await self.room_open.wait()


@asynccontextmanager
async def backend(handler: Handler, status: int = 101) -> Any:
    count = 0

    async def serve(request: web.Request) -> web.StreamResponse:
        nonlocal count
        count += 1
        if status != 101:
            return web.Response(status=status)
        websocket = web.WebSocketResponse()
        await websocket.prepare(request)
        await handler(websocket, count)
        return websocket

    app = web.Application()
    app.router.add_get("/v1/realtime", serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0]
    try:
        yield URL(f"ws://{host}:{port}/v1/realtime?model=m")
    finally:
        await runner.cleanup()


@asynccontextmanager
async def linked(url: URL, owner: Owner, **config: Any) -> Any:
    async with aiohttp.ClientSession(trace_configs=[refuse_redirects()]) as http:
        link = Link(LinkConfig(url, **config), http, owner)
        task = asyncio.create_task(link.run())
        try:
            yield link
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], Any], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what is waited for lies in another task or process
            await asyncio.sleep(0.005)


def open_sockets() -> int:
    """Of this process."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += descriptor.readlink().name.startswith("socket:")
    return found


def note(message: aiohttp.WSMessage, name: str, heard: list[Any]) -> None:
    heard.append(json.loads(message.data)[name])


def run(coroutine: Any) -> None:
    asyncio.run(coroutine)


def test_first_words_go_ahead_and_the_rest_waits_for_release() -> None:
    async def scenario() -> None:
        heard: list[str] = []

        async def listen(websocket: web.WebSocketResponse, _: int) -> None:
            async for message in websocket:
                note(message, "type", heard)

        owner = Owner()
        async with backend(listen) as url, linked(url, owner) as link:
            link.send_audio('{"type": "mic"}', 20.0)
            link.send({"type": "update"})
            await until(lambda: heard)
            await asyncio.sleep(0.05)
            assert heard == ["first"]
            link.release()
            await until(lambda: len(heard) == 3)
            assert heard == ["first", "mic", "update"]

    run(scenario())


@pytest.mark.parametrize("code", [1000, 1001, 1011, None])
def test_a_broken_connection_is_made_again_and_the_owner_knows(code: int | None) -> None:
    async def scenario() -> None:
        async def leave_once(websocket: web.WebSocketResponse, number: int) -> None:
            await websocket.send_str(f'{{"number": {number}}}')
            if number == 1 and code is None:
                websocket._req.transport.abort()  # type: ignore[union-attr]
            elif number == 1:
                await websocket.close(code=code or 1006)
            else:
                await websocket.receive()

        owner = Owner()
        async with backend(leave_once) as url, linked(url, owner) as link:
            await until(lambda: len(owner.messages) == 2)
            assert owner.connected == [False, True]
            assert (link.connections, owner.gone) == (2, [])

    run(scenario())


def test_a_connection_that_breaks_while_a_ping_is_answered_is_made_again() -> None:
    async def scenario() -> None:
        async def ping_and_leave(websocket: web.WebSocketResponse, number: int) -> None:
            if number > 1:
                async for _ in websocket:
                    pass
                return
            transport: Any = websocket._req.transport  # type: ignore[union-attr]
            transport.pause_reading()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    while True:  # until nobody can take any more
                        await websocket.ping(b"x" * 100)
            transport.abort()

        owner = Owner()
        async with backend(ping_and_leave) as url, linked(url, owner):
            await until(lambda: owner.connected == [False, True])
            assert len(owner.broken) == 1

    run(scenario())


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refused_key_is_final_and_says_so(status: int) -> None:
    async def scenario() -> None:
        async def never(_: web.WebSocketResponse, __: int) -> None:
            raise AssertionError

        owner = Owner()
        async with backend(never, status) as url, linked(url, owner):
            await until(lambda: owner.gone)
            assert str(status) in owner.gone[0]
            assert (len(owner.gone), owner.connected) == (1, [])

    run(scenario())


def test_nobody_listening_gives_up_after_its_time() -> None:
    async def scenario() -> None:
        owner = Owner()
        async with linked(URL("ws://127.0.0.1:1/x"), owner, give_up_s=0.5):
            await until(lambda: owner.gone)
            assert "cannot be reached" in owner.gone[0]

    run(scenario())


def test_a_server_that_never_answers_the_upgrade_is_given_up() -> None:
    async def scenario() -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.closing(writer):
                await reader.read()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        owner = Owner()
        url, times = URL(f"ws://{host}:{port}/"), {"connect_timeout_s": 0.2, "give_up_s": 0.5}
        async with server, linked(url, owner, **times):
            await until(lambda: owner.gone)
            assert "TimeoutError" in owner.gone[0]

    run(scenario())


def test_a_server_that_hangs_after_a_first_connection_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A try that takes as long as a steady connection is none."""
    monkeypatch.setattr("transceiver.backends.link.STEADY_S", 0.2)

    async def scenario() -> None:
        hangs = asyncio.Event()

        async def serve(request: web.Request) -> web.StreamResponse:
            if hangs.is_set():
                await asyncio.sleep(60)
            websocket = web.WebSocketResponse()
            await websocket.prepare(request)
            hangs.set()
            await websocket.close()
            return websocket

        app = web.Application()
        app.router.add_get("/", serve)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        owner = Owner()
        url, times = URL(f"ws://{host}:{port}/"), {"connect_timeout_s": 0.3, "give_up_s": 1.0}
        async with linked(url, owner, **times):
            await until(lambda: owner.gone)
            assert owner.connected == [False]
        await runner.cleanup()

    run(scenario())


def test_a_stalled_backend_costs_bounded_memory_and_the_newest_audio_survives() -> None:
    async def scenario() -> None:
        resume = asyncio.Event()
        heard: list[int] = []

        async def stall(websocket: web.WebSocketResponse, _: int) -> None:
            await websocket.receive()
            websocket._req.transport.pause_reading()  # type: ignore[union-attr]
            await resume.wait()
            websocket._req.transport.resume_reading()  # type: ignore[union-attr]
            async for message in websocket:
                note(message, "number", heard)

        owner = Owner()
        async with backend(stall) as url, linked(url, owner) as link:
            await until(lambda: owner.connected)
            link.release()
            for number in range(3_000):  # 100 ms of sound each: 5 minutes
                event = {"type": "mic", "number": number, "audio": "x" * 6_400}
                link.send_audio(json.dumps(event), 100.0)
                if number % 50 == 0:
                    await asyncio.sleep(0)
            assert link._audio_chars <= link_module.AUDIO_MAX_CHARS
            assert link.audio_dropped_ms > 100_000
            resume.set()
            await until(lambda: heard and heard[-1] == 2_999)
            assert heard == sorted(heard)
            assert owner.gone == []

    run(scenario())


def test_control_events_that_pile_up_end_the_link() -> None:
    async def scenario() -> None:
        async def stall(websocket: web.WebSocketResponse, _: int) -> None:
            await websocket.receive()
            websocket._req.transport.pause_reading()  # type: ignore[union-attr]
            await asyncio.sleep(60)

        owner = Owner()
        async with backend(stall) as url, linked(url, owner) as link:
            await until(lambda: owner.connected)
            with_both_ends = open_sockets()
            link.release()
            for _ in range(200):
                link.send({"type": "item", "text": "x" * 60_000})
            await until(lambda: owner.gone)
            assert "does not read" in owner.gone[0]
            await until(lambda: open_sockets() == with_both_ends - 1)

    run(scenario())


def test_the_backend_is_not_read_while_the_owner_has_no_room() -> None:
    async def scenario() -> None:
        async def flood(websocket: web.WebSocketResponse, _: int) -> None:
            for number in range(100):
                await websocket.send_str(str(number))
            await websocket.receive()

        owner = Owner()
        owner.room_open.clear()
        async with backend(flood) as url, linked(url, owner):
            await until(lambda: owner.connected)
            await asyncio.sleep(0.1)
            assert owner.messages == []
            owner.room_open.set()
            await until(lambda: len(owner.messages) == 100)

    run(scenario())


def test_nothing_secret_is_shown() -> None:
    config = LinkConfig(URL("wss://user:pw@host/v1?key=k"), {"Authorization": "Bearer s3cret"})
    assert config.shown == "wss://host/v1"
    assert "s3cret" not in repr(config)


def test_a_redirect_is_refused_and_the_headers_stay_here() -> None:
    async def scenario() -> None:
        caught: list[str] = []

        async def redirect(request: web.Request) -> web.StreamResponse:
            caught.append(request.path)
            raise web.HTTPFound("/elsewhere")

        app = web.Application()
        app.router.add_get("/{name}", redirect)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0]
        owner = Owner()
        async with linked(URL(f"ws://{host}:{port}/first"), owner):
            await until(lambda: owner.gone)
        assert "redirect" in owner.gone[0]
        assert caught == ["/first"]
        await runner.cleanup()

    run(scenario())
