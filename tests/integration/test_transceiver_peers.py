"""`transceiver serve --peer`: a request for a call that lives on another host reaches it.

Two pools on one machine stand for two hosts; a load balancer gave the request to the wrong one.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from relay.wire.address import Endpoint
from tests.support.calls import post_offer
from tests.support.offers import CHROMIUM
from tests.support.process import Process, Processes
from transceiver.boxes import Ask, PeerSeal
from transceiver.callid import CallIds, Owner, derive_key

SECRET = "a secret of at least thirty-two bytes"
KEYS = "ann key-of-ann-0123456789abcdef\nbob key-of-bob-0123456789abcdef\n"
ANN = {"Authorization": "Bearer key-of-ann-0123456789abcdef"}
BOB = {"Authorization": "Bearer key-of-bob-0123456789abcdef"}

Serve = Callable[..., tuple[Process, str]]


@pytest.fixture
def serve(processes: Processes, tmp_path: Path) -> Serve:
    """Starts a host of one pool; returns it and its origin."""
    keys = tmp_path / "keys"
    keys.write_text(KEYS)

    def start(
        *arguments: str, secret: str = SECRET, peer: str = "127.0.0.1:0"
    ) -> tuple[Process, str]:
        file = tmp_path / f"secret-{len(secret)}"
        file.write_text(secret)
        server = processes.transceiver(
            "serve", "--backend=loopback", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--direct",
            f"--auth-secret={file}", f"--api-keys={keys}", *([f"--peer={peer}"] if peer else []),
            "--log-format=json", "--drain-timeout=0", *(arguments or ("--workers=1",)),
        )  # fmt: skip
        return server, f"http://{server.listening('http')[0]}"

    return start


async def place(base: str) -> str:
    """Ann's call at that host; returns its path."""
    async with aiohttp.ClientSession(base) as http:
        bearer = ANN["Authorization"].removeprefix("Bearer ")
        status, _, location = await post_offer(http, CHROMIUM, bearer=bearer)
        assert status == 201
        return location


async def ask(
    base: str, method: str, path: str, headers: dict[str, str] = ANN
) -> tuple[int, dict[str, object]]:
    async with (
        aiohttp.ClientSession(base, headers=headers) as http,
        http.request(method, path) as response,
    ):
        return response.status, await response.json() if await response.read() else {}


async def test_any_host_answers_for_a_call_of_another(serve: Serve) -> None:
    _, here = serve("--workers=2")
    _, there = serve("--workers=2")
    paths = [await place(there) for _ in range(6)]
    for path in paths:
        status, stats = await ask(here, "GET", path + "/stats")
        assert (status, stats["id"]) == (200, path.rpartition("/")[2])
    assert (await ask(here, "GET", paths[0]))[0] == 204
    assert (await ask(here, "GET", paths[0], BOB))[0] == 404
    assert (await ask(here, "GET", paths[0] + "/stats", BOB))[0] == 404
    assert (await ask(here, "GET", paths[0] + "/stats", {}))[0] == 401
    assert (await ask(here, "DELETE", paths[0]))[0] == 200
    assert (await ask(here, "POST", paths[1] + "/hangup"))[0] == 200
    assert (await ask(there, "GET", paths[0] + "/stats"))[1]["close_reason"] == "client_close"
    assert (await ask(there, "GET", paths[1] + "/stats"))[1]["close_reason"] == "hangup"


async def test_calls_of_an_owner_that_is_gone_are_gone(serve: Serve) -> None:
    _, here = serve()
    owner, there = serve()
    path = await place(there)
    owner.stop()
    status, body = await ask(here, "DELETE", path)
    assert status == 410
    assert body["error"]["code"] == "call_gone"  # type: ignore[index]


async def test_an_address_that_another_pool_has_now_does_not_know_the_call(
    serve: Serve, processes: Processes
) -> None:
    _, here = serve()
    at = f"127.0.0.1:{processes.reserve_port()}"
    owner, there = serve(peer=at)
    path = await place(there)
    owner.stop()
    serve(peer=at)
    assert (await ask(here, "DELETE", path))[0] == 404


async def test_who_does_not_hold_the_secret_is_not_believed(
    serve: Serve, processes: Processes
) -> None:
    _, here = serve()
    at = f"127.0.0.1:{processes.reserve_port()}"
    owner, there = serve(peer=at)
    path = await place(there)
    owner.stop()
    serve(peer=at, secret="another secret, also of thirty-two bytes or more")
    assert (await ask(here, "DELETE", path))[0] == 502


async def test_an_owner_that_does_not_answer_costs_seconds(serve: Serve) -> None:
    _, here = serve()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = Endpoint.of(*silent.getsockname()[:2])
        path = f"/v1/realtime/calls/{CallIds(derive_key(SECRET.encode())).draw(Owner(0, 0, host))}"
        began_s = time.monotonic()
        status, body = await ask(here, "DELETE", path)
        assert status == 502
        assert body["error"]["code"] == "call_unreachable"  # type: ignore[index]
        assert time.monotonic() - began_s < 20


async def test_a_forged_id_causes_no_connection(serve: Serve) -> None:
    _, here = serve()
    with socket.create_server(("127.0.0.1", 0)) as target:
        target.settimeout(0.2)
        host = Endpoint.of(*target.getsockname()[:2])
        forged = CallIds(derive_key(b"another secret" * 3)).draw(Owner(0, 0, host))
        assert (await ask(here, "DELETE", f"/v1/realtime/calls/{forged}"))[0] == 404
        with pytest.raises(TimeoutError):
            target.accept()


async def test_the_peer_port_takes_each_box_once_and_nothing_else(serve: Serve) -> None:
    owner, there = serve()
    path, at = await place(there), f"http://{owner.listening('peer')[0]}"
    seal = PeerSeal(SECRET.encode())
    request = Ask(0, "GET", path + "/stats", ANN, b"")
    box, asked = seal.seal_ask(request, time.time())
    async with aiohttp.ClientSession(at) as http:

        async def post(data: bytes) -> tuple[int, bytes]:
            async with http.post("/peer", data=data) as response:
                return response.status, await response.read()

        status, answer = await post(box)
        assert status == 200
        reply = seal.open_answer(answer, asked)
        assert reply is not None
        assert reply.status == 200
        old, _ = seal.seal_ask(request, time.time() - 3600)
        misled, _ = seal.seal_ask(Ask(1, "GET", path + "/stats", ANN, b""), time.time())
        foreign, _ = PeerSeal(b"another").seal_ask(request, time.time())
        for bad in (box, old, misled, foreign, b"", box[:20], b"\0" * 60_000):
            assert (await post(bad))[0] == 403
        assert (await post(b"\0" * 100_000))[0] == 413
        assert (await http.get(path + "/stats", headers=ANN)).status == 404


async def test_without_peer_a_call_of_another_host_is_not_found(serve: Serve) -> None:
    _, here = serve(peer="")
    _, there = serve()
    assert (await ask(here, "DELETE", await place(there)))[0] == 404


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--peer=127.0.0.1:0"], "--peer: needs --auth-secret"),
        (["--peer-advertise=127.0.0.1"], "--peer-advertise: is of no use without --peer"),
        (["--auth-secret=SECRET", "--peer=0.0.0.0:0"], "required with a wildcard"),
        (["--auth-secret=SECRET", "--peer=127.0.0.1:65535", "--workers=2"], "leaves no ports"),
    ],
)
def test_wrong_options_are_one_line(
    processes: Processes, tmp_path: Path, arguments: list[str], text: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    server = processes.transceiver(
        "serve", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--direct",
        *(argument.replace("SECRET", str(secret)) for argument in arguments),
    )  # fmt: skip
    assert server.wait() == 2
    assert text in server.output()
