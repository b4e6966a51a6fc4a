"""Who gets in, how long he may take, and what he is told (transceiver/listener.py, connection.py)."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
import structlog
from aiohttp import web

from relay.certificate import write_self_signed
from relay.wire.address import Endpoint
from transceiver import connection, listener
from transceiver.board import Board, Serving
from transceiver.connection import Phase
from transceiver.listener import Listener
from transceiver.metrics import HTTP_CUTS, board_names
from transceiver.sockets import open_http

Reader: TypeAlias = asyncio.StreamReader
Writer: TypeAlias = asyncio.StreamWriter

GET = b"GET / HTTP/1.1\r\nHost: t\r\n\r\n"


class _Door:
    """A listener of a pool of two, before an app that says hello."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self.let_go = asyncio.Event()
        """Until then nobody has an answer from /late."""
        self.kept = asyncio.Semaphore(0)
        """One for each request that waits there."""
        self.sockets = open_http(Endpoint.of("127.0.0.1", 0), 2)
        self.board = Board(2, board_names())
        for row in range(2):
            self.serving(row)

    def cuts(self) -> dict[str, int]:
        """Connections that were cut, by reason; those that were not are left out."""
        counts = {reason: self.board.get(0, f"http_cut.{reason}") for reason in HTTP_CUTS}
        return {reason: count for reason, count in counts.items() if count}

    def serving(self, row: int) -> None:
        self.board.set(row, "serving", Serving.SERVING)
        self.board.set(row, "heartbeat_ns", time.monotonic_ns() + 10**12)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Listener]:
        app = web.Application()
        app.router.add_get("/", _hello)
        app.router.add_post("/", _hello)
        app.router.add_get("/late", self._late)
        runner = web.AppRunner(app)
        await runner.setup()
        assert runner.server is not None
        made = Listener(self.sockets, runner.server, self.board, 0, self.tls)
        made.start()
        try:
            yield made
        finally:
            await made.close()
            await runner.cleanup()
            for one in self.sockets:
                one.close()

    async def connect(self) -> tuple[Reader, Writer]:
        return await asyncio.open_connection(*self.sockets[0].getsockname())

    async def _late(self, _request: web.Request) -> web.Response:
        self.kept.release()
        await self.let_go.wait()
        return web.Response(text="late")


async def _hello(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(text="hello")


@pytest.fixture(autouse=True)
def _no_last_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "LAST_CALLS_S", 0.02)
    monkeypatch.setattr(listener, "LAST_ANSWERS_S", 0.2)


async def ask(door: _Door, sent: bytes, *, half_close: bool = False) -> tuple[int, str, bytes]:
    """Status, head and body of the answer."""
    reader, writer = await door.connect()
    writer.write(sent)
    if half_close:
        writer.write_eof()
    async with asyncio.timeout(10):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            int(line.split(":")[1])
            for line in head.splitlines()
            if line.lower().startswith("content-length:")
        )
        body = await reader.readexactly(length)
    writer.close()
    return int(head.split()[1]), head, body


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400, "invalid_request", id="TLS"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "invalid_request", id="HTTP/2"),
        pytest.param(GET.replace(b"t\r\n\r\n", b"t\r\nX\r\n\r\n"), 400, "invalid_request", id="header"),
        pytest.param(
            b"GET / HTTP/1.1\r\nX: " + b"a" * 9_000 + b"\r\n\r\n", 431, "headers_too_large", id="long header"
        ),
        pytest.param(b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\n\r\n", 431, "headers_too_large", id="long line"),
        pytest.param(
            GET.replace(b"\r\n\r\n", b"\r\nExpect: more\r\n\r\n"), 417, "invalid_request", id="Expect"
        ),
        pytest.param(
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
            400, "invalid_request", id="two lengths",
        ),
    ],
)  # fmt: skip
async def test_what_no_handler_sees_is_refused_in_openais_shape(
    sent: bytes, status: int, code: str
) -> None:
    door = _Door()
    async with door.opened():
        answered, head, body = await ask(door, sent)
    assert answered == status
    assert json.loads(body)["error"]["code"] == code
    assert "Access-Control-Allow-Origin: *" in head


async def test_a_client_that_half_closes_its_connection_is_answered() -> None:
    door = _Door()
    sent = b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\nhi"
    async with door.opened():
        status, head, body = await ask(door, sent, half_close=True)
    assert (status, body) == (200, b"hello")
    assert "Connection: close" in head


@pytest.mark.parametrize(
    ("phase", "sent"), [(Phase.NEW, b""), (Phase.HEAD, b"GET / HTTP/1.1\r\nX: "), (Phase.IDLE, GET)]
)
async def test_who_takes_too_long_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, phase: Phase, sent: bytes
) -> None:
    monkeypatch.setattr(listener, "WATCH_S", 0.01)
    monkeypatch.setitem(connection._LIMIT_S, phase, 0.05)
    door = _Door()
    async with door.opened(), asyncio.timeout(10):
        reader, writer = await door.connect()
        writer.write(sent)
        await reader.read()
        writer.close()
    assert door.cuts() == ({} if phase is Phase.IDLE else {"overdue": 1})


async def test_a_newcomer_beyond_the_bound_takes_the_place_of_who_waited_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _bound(monkeypatch, 4)
    door = _Door()
    async with door.opened(), asyncio.timeout(10):
        idle = []
        for _ in range(4):
            idle.append(await door.connect())
            await asyncio.sleep(0.01)
        assert (await ask(door, GET))[0] == 200
        assert await idle[0][0].read() == b""
        idle[3][1].write(GET)
        assert (await idle[3][0].readline()).split()[1] == b"200"
        for _, writer in idle:
            writer.close()
    assert door.cuts() == {"displaced": 1}


def _bound(monkeypatch: pytest.MonkeyPatch, connections: int) -> None:
    monkeypatch.setattr(listener, "CONNECTIONS_MIN", connections)
    monkeypatch.setattr(listener, "CONNECTIONS_MAX", connections)


def _contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server and of its clients."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    write_self_signed(certificate, key, ipaddress.ip_address("127.0.0.1"))
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(certificate, key)
    return served, ssl.create_default_context(cafile=str(certificate))


async def _tls_status(door: _Door, client: ssl.SSLContext) -> bytes:
    reader, writer = await asyncio.open_connection(
        *door.sockets[0].getsockname(), ssl=client, server_hostname="localhost"
    )
    writer.write(GET)
    status = (await reader.readline()).split()[1]
    writer.close()
    return status


async def _is_over(reader: Reader) -> bool:
    """Whether the server has ended a connection that it has sent nothing on."""
    try:
        return not await asyncio.wait_for(reader.read(1), 5)
    except ConnectionResetError:
        return True


async def test_the_bound_holds_for_those_who_never_begin_their_tls(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _bound(monkeypatch, 4)
    served, client = _contexts(tmp_path)
    door = _Door(served)
    async with door.opened(), asyncio.timeout(20):
        silent = []
        for _ in range(12):
            silent.append(await door.connect())
            await asyncio.sleep(0.01)
        for reader, _ in silent[:8]:
            assert await _is_over(reader)
        assert not any(reader.at_eof() for reader, _ in silent[8:]), "the last four may still begin"
        assert await _tls_status(door, client) == b"200"
        for _, writer in silent:
            writer.close()


async def test_who_takes_too_long_to_begin_his_tls_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(listener, "WATCH_S", 0.01)
    monkeypatch.setitem(connection._LIMIT_S, Phase.NEW, 0.05)
    door = _Door(_contexts(tmp_path)[0])
    async with door.opened(), asyncio.timeout(10):
        reader, writer = await door.connect()
        assert await _is_over(reader)
        writer.close()


async def test_a_newcomer_takes_the_place_of_a_slow_body(monkeypatch: pytest.MonkeyPatch) -> None:
    _bound(monkeypatch, 4)
    door = _Door()
    async with door.opened(), asyncio.timeout(10):
        slow = []
        for _ in range(4):
            slow.append(await door.connect())
            slow[-1][1].write(b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\nh")
            await asyncio.sleep(0.01)
        newcomers = [await door.connect() for _ in range(2)]
        assert [await _is_over(reader) for reader, _ in slow[:2]] == [True, True]
        for reader, writer in newcomers:
            writer.write(GET)
            assert (await reader.readline()).split()[1] == b"200"
        for reader, writer in slow[2:]:
            writer.write(b"i")
            assert (await reader.readline()).split()[1] == b"200"
        for _, writer in (*slow, *newcomers):
            writer.close()


async def test_no_request_that_has_come_whole_makes_way(monkeypatch: pytest.MonkeyPatch) -> None:
    _bound(monkeypatch, 4)
    door = _Door()
    async with door.opened(), asyncio.timeout(10):
        late = [await door.connect() for _ in range(4)]
        for _, writer in late:
            writer.write(GET.replace(b"GET /", b"GET /late"))
        for _ in late:
            await door.kept.acquire()
        reader, writer = await door.connect()
        assert await _is_over(reader)
        writer.close()
        door.let_go.set()
        for reader, writer in late:
            assert (await reader.readline()).split()[1] == b"200"
            writer.close()
    assert door.cuts() == {"refused": 1}


class _Short(socket.socket):
    """A listening socket that the process has no descriptors for."""

    failures = 3

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def test_a_want_of_descriptors_is_said_once_and_overcome() -> None:
    door = _Door()
    door.sockets[0] = _Short(fileno=door.sockets[0].detach())
    with structlog.testing.capture_logs() as lines:
        async with door.opened():
            assert (await ask(door, GET))[0] == 200
    assert [line["reason"] for line in lines if line["event"] == "accept_failed"] == [
        "Too many open files"
    ]


@pytest.mark.parametrize(
    "fate",
    [
        pytest.param(lambda board: board.set(1, "serving", Serving.RESTARTING), id="dead"),
        pytest.param(lambda board: board.set(1, "serving", Serving.ENDED), id="drained"),
        pytest.param(lambda board: board.set(1, "heartbeat_ns", 1), id="stuck"),
    ],
)
async def test_a_process_stands_in_for_one_that_does_not_accept(
    monkeypatch: pytest.MonkeyPatch, fate: Callable[[Board], None]
) -> None:
    monkeypatch.setattr(listener, "WATCH_S", 0.01)
    door = _Door()
    async with door.opened():
        door.sockets[1].listen()
        fate(door.board)
        for status, _, _ in await asyncio.gather(*(ask(door, GET) for _ in range(16))):
            assert status == 200
        door.serving(1)
        async with asyncio.timeout(10):
            while await _all_served(door):
                pass  # until the watch has seen it; then the other one's clients are his own again


async def _all_served(door: _Door) -> bool:
    """Whether this process answers all of many clients, which the kernel shares out between two."""

    async def is_served(reader: Reader, writer: Writer) -> bool:
        writer.write(GET)
        try:
            return bool(await asyncio.wait_for(reader.read(1), 0.2))
        except TimeoutError:
            return False
        finally:
            writer.close()

    waiting = [await door.connect() for _ in range(16)]
    return all(await asyncio.gather(*(is_served(*one) for one in waiting)))
