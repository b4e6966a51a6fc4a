"""The files of the demo page: those there are, and nothing else of the machine's."""

from __future__ import annotations

import asyncio
from importlib import resources

import aiohttp
import pytest
from yarl import URL

from tests.support.process import Process, Processes

FILES = sorted(file.name for file in resources.files("transceiver.web").iterdir())


@pytest.fixture(scope="module")
def server(module_processes: Processes) -> Process:
    return module_processes.transceiver(
        "serve", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--direct", "--demo-page",
        "--log-format=json",
    )  # fmt: skip


async def get(server: Process, path: str) -> tuple[int, str, bytes]:
    """Status, type and body."""
    address = (await asyncio.to_thread(server.listening, "http"))[0]
    url = URL(f"http://{address}{path}", encoded=True)
    async with aiohttp.ClientSession() as http, http.get(url) as response:
        return response.status, response.content_type, await response.read()


async def test_every_file_of_the_page_is_served(server: Process) -> None:
    assert "app.js" in FILES
    for name in FILES:
        status, kind, body = await get(server, f"/demo/{name}")
        assert (status, body) == (
            200,
            resources.files("transceiver.web").joinpath(name).read_bytes(),
        )
        assert kind != "application/octet-stream", name
    assert await get(server, "/") == await get(server, "/demo/index.html")


@pytest.mark.parametrize(
    "name",
    ["", "x" * 3_000, "app.js%20", "app.js%00", "%ff", "..%2fapp.py", "%2e%2e/app.py", "%2fetc%2fpasswd",
     "nope.js", "app.js/", "APP.JS"],
    ids=range(11),
)  # fmt: skip
async def test_what_is_no_file_of_the_page_is_404_and_no_log_line(
    server: Process, name: str
) -> None:
    await get(server, "/healthz")
    before = server.output()
    status, kind, _ = await get(server, f"/demo/{name}")
    assert (status, kind) == (404, "application/json")
    assert server.output() == before
