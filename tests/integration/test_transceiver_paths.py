"""A call whose packets come another way than before: a NAT that forgets, a network that loses."""

from __future__ import annotations

import asyncio
import random
import re
import time
from typing import Any

import aiohttp
import pytest

from tests.integration.test_transceiver_calls import stats_of
from tests.support.calls import CALLS_PATH, stock_call
from tests.support.offers import CHROMIUM
from tests.support.process import Processes

pytestmark = pytest.mark.timeout(120)


class Nat(asyncio.DatagramProtocol):
    """Forwards one client's datagrams from an outer port that can change; may lose some, seeded."""

    def __init__(self, server: tuple[str, int], loss: float = 0.0) -> None:
        self._server = server
        self._loss = loss
        self._random = random.Random(1)
        self._inner: asyncio.DatagramTransport | None = None
        self._outer: asyncio.DatagramTransport | None = None
        self._client: Any = None

    async def open(self) -> int:
        """Returns the port that clients send to."""
        loop = asyncio.get_running_loop()
        self._inner, _ = await loop.create_datagram_endpoint(
            lambda: self, local_addr=("127.0.0.1", 0)
        )
        await self.forget()
        return int(self._inner.get_extra_info("sockname")[1])

    async def forget(self) -> None:
        """From now on another outer port."""
        nat = self

        class Outer(asyncio.DatagramProtocol):
            def datagram_received(self, data: bytes, addr: Any) -> None:
                if nat._inner is not None and nat._client is not None and nat._keeps():
                    nat._inner.sendto(data, nat._client)

        if self._outer is not None:
            self._outer.close()
        loop = asyncio.get_running_loop()
        self._outer, _ = await loop.create_datagram_endpoint(
            Outer, local_addr=("127.0.0.1", 0), remote_addr=self._server
        )

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._client = addr
        if self._outer is not None and self._keeps():
            self._outer.sendto(data)

    def close(self) -> None:
        for transport in (self._inner, self._outer):
            if transport is not None:
                transport.close()

    def _keeps(self) -> bool:
        return self._random.random() >= self._loss


@pytest.fixture(scope="module")
def base(module_processes: Processes) -> str:
    server = module_processes.transceiver(
        "serve", "--backend=loopback", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--workers=1", "--direct",
        "--drain-timeout=0", "--log-format=json",
    )  # fmt: skip
    return f"http://{server.listening('http')[0]}"


async def behind(base: str, loss: float = 0.0) -> tuple[Nat, int]:
    """A NAT before the media port of the only process."""
    async with (
        aiohttp.ClientSession(base) as http,
        http.post(
            CALLS_PATH,
            data=CHROMIUM.encode(),
            headers={"Content-Type": "application/sdp"},
        ) as response,
    ):
        stats = await stats_of(http, response.headers["Location"])
        await (await http.delete(response.headers["Location"])).read()
    host, _, port = stats["transceiver"]["media"].rpartition(":")
    nat = Nat((host, int(port)), loss)
    return nat, await nat.open()


def through(port: int) -> Any:
    """Puts the NAT's port into the answer's candidate."""
    return lambda answer: re.sub(r"(a=candidate:1 1 udp \d+ \S+) \d+", rf"\1 {port}", answer)


@pytest.mark.slow
async def test_b01_a_new_port_of_the_nat_heals_with_the_next_check(base: str) -> None:
    nat, port = await behind(base)
    async with (
        aiohttp.ClientSession(base) as http,
        stock_call(base, change_answer=through(port)) as call,
    ):
        await call.wait()
        for _ in range(2):
            flow = (await stats_of(http, call.location))["flow"]
            await nat.forget()
            started_s, before = time.monotonic(), call.frames
            while call.frames < before + 25:
                await asyncio.sleep(0.05)
                assert time.monotonic() - started_s < 15, "6 s and a busy machine"
            stats = await stats_of(http, call.location)
            assert stats["state"] == "connected"
            assert stats["flow"]["client"] != flow["client"]
    nat.close()


@pytest.mark.slow
async def test_a_call_connects_and_lasts_over_a_lossy_path(base: str) -> None:
    nat, port = await behind(base, loss=0.2)
    async with (
        aiohttp.ClientSession(base) as http,
        stock_call(base, change_answer=through(port)) as call,
    ):
        await call.wait()
        assert (await call.ask({"type": "response.create"}))["type"] == "response.created"
        await asyncio.sleep(12)
        stats = await stats_of(http, call.location)
        assert stats["state"] == "connected"
        assert 0.05 < stats["loss"] < 0.4
    nat.close()
