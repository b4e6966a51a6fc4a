"""A small WebDriver BiDi client: enough to open a page in Firefox, click, and ask it things.

1. One browser, one session; no driver program in between.
2. The browser is a program like any other (tests.support.process): its log is shown on failure.
3. Answers cross as JSON text, so the protocol's own value encoding stays out of the tests.
4. `socket_factory` lets the connection be made in the browser's network namespace.

W3C WebDriver BiDi, https://www.w3.org/TR/webdriver-bidi/
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.process import Process, Processes

COMMAND_TIMEOUT_S = 60.0
START_TIMEOUT_S = 90.0

# A microphone and an output without devices, no questions, no visits of the browser's own, nor to the caller's proxy.
FIREFOX_PREFS: Mapping[str, bool | int | str] = {
    "app.normandy.enabled": False,
    "app.update.enabled": False,
    "browser.safebrowsing.update.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "extensions.systemAddon.update.enabled": False,
    "media.autoplay.default": 0,
    "media.cubeb.force_mock_context": True,
    "media.gmp-manager.updateEnabled": False,
    "media.navigator.permission.disabled": True,
    "media.navigator.streams.fake": True,
    "media.peerconnection.ice.obfuscate_host_addresses": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "network.manage-offline-status": False,
    "network.proxy.type": 0,
    "network.trr.mode": 5,
    "services.settings.server": "data:,",
    "toolkit.telemetry.enabled": False,
}

_ENDPOINT = re.compile(r"WebDriver BiDi listening on (ws://\S+)")


_MOCK_OUTPUT_SINCE = 153
"""The first ESR that knows media.cubeb.force_mock_context; 140 does not."""


def missing_for_sound(executable: str) -> str | None:
    """Why this Firefox starts no sound engine here, or None when it does.

    Without an output, which older ones cannot make up, an AudioContext stays suspended. $PULSE_SERVER names a real one.
    """
    told = subprocess.run(
        [executable, "--version"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    version = re.search(r"(\d+)\.\d", told)
    if version is None or int(version[1]) >= _MOCK_OUTPUT_SINCE or "PULSE_SERVER" in os.environ:
        return None
    return f"Firefox {version[1]} makes no sound without an output ($PULSE_SERVER names one)"


class BidiError(AssertionError):
    """The browser refused a command, or a script of the test threw; the text is the browser's."""


class Tab:
    """A tab of a BiDi session."""

    def __init__(self, connection: _Connection, context: str) -> None:
        self._connection = connection
        self._context = context

    async def goto(self, url: str) -> None:
        """Open a page and wait until it is loaded."""
        await self._command("browsingContext.navigate", url=url, wait="complete")

    async def evaluate(self, expression: str) -> Any:
        """The JSON value of a JavaScript expression, which may be a promise.

        Raises BidiError with the page's exception.
        """
        result = await self._connection.command(
            "script.evaluate",
            expression=f"(async () => JSON.stringify((await ({expression})) ?? null))()",
            target={"context": self._context},
            awaitPromise=True,
        )
        if result["type"] == "exception":
            raise BidiError(result["exceptionDetails"]["text"])
        return json.loads(result["result"]["value"])

    async def click(self, selector: str) -> None:
        """Click the middle of an element with a pointer, as a user does: a covered one is missed."""
        found = await self._command(
            "browsingContext.locateNodes", locator={"type": "css", "value": selector}
        )
        if not found["nodes"]:
            raise BidiError(f"nothing matches {selector}")
        element = {"type": "element", "element": {"sharedId": found["nodes"][0]["sharedId"]}}
        await self.evaluate(f"document.querySelector({json.dumps(selector)}).scrollIntoView()")
        press = [
            {"type": "pointerMove", "x": 0, "y": 0, "origin": element},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerUp", "button": 0},
        ]
        await self._command(
            "input.performActions", actions=[{"type": "pointer", "id": "mouse", "actions": press}]
        )

    async def wait_for(self, expression: str, timeout_s: float = 30.0) -> Any:
        """Wait until an expression is truthy and return it; BidiError with the page's text when late."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not (value := await self.evaluate(expression)):
            if asyncio.get_running_loop().time() > deadline:
                text = await self.evaluate("document.body.innerText")
                raise BidiError(
                    f"{timeout_s} s passed without {expression}; the page says:\n{text}"
                )
            await asyncio.sleep(0.05)
        return value

    async def another(self) -> Tab:
        """A second window of the same browser: a tab in the background would sleep."""
        made = await self._connection.command("browsingContext.create", type="window")
        return Tab(self._connection, made["context"])

    async def _command(self, method: str, **params: Any) -> Any:
        return await self._connection.command(method, context=self._context, **params)


class _Connection:
    """Commands and their answers over one WebSocket; events are not subscribed to."""

    def __init__(self, websocket: aiohttp.ClientWebSocketResponse) -> None:
        self._websocket = websocket
        self._ids = itertools.count(1)

    async def command(self, method: str, **params: Any) -> Any:
        number = next(self._ids)
        await self._websocket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(COMMAND_TIMEOUT_S):
            while True:
                message = await self._websocket.receive()
                if message.type is not aiohttp.WSMsgType.TEXT:
                    raise BidiError(f"{method}: the browser closed the connection ({message})")
                answer = message.json()
                if answer.get("id") == number:
                    break
        if answer["type"] == "error":
            raise BidiError(f"{method}: {answer['error']}: {answer['message']}")
        return answer["result"]


@asynccontextmanager
async def firefox(
    processes: Processes,
    executable: str,
    profile: Path,
    *,
    prefix: tuple[str, ...] = (),
    prefs: Mapping[str, bool | int | str] | None = None,
    socket_factory: Callable[[int, int, int], socket.socket] | None = None,
) -> AsyncIterator[Tab]:
    """Start a headless Firefox with a fake microphone and open a session with it.

    `profile` is an empty directory; `prefix` and `socket_factory` put browser and connection
    into a namespace.
    """
    lines = [
        f"user_pref({json.dumps(name)}, {json.dumps(value)});"
        for name, value in {**FIREFOX_PREFS, **(prefs or {})}.items()
    ]
    (profile / "user.js").write_text("\n".join(lines) + "\n", encoding="utf-8")
    browser = processes.start(
        *prefix,
        executable,
        "--headless",
        "--no-remote",
        "--profile",
        profile,
        "--remote-debugging-port=0",
        "about:blank",
        name="firefox",
        env={"MOZ_CRASHREPORTER_DISABLE": "1", "HOME": str(profile)},
    )
    endpoint = await _endpoint(browser)

    def make_socket(info: Any) -> socket.socket:
        family, kind, protocol, _, _ = info
        return (socket_factory or socket.socket)(family, kind, protocol)

    connector = aiohttp.TCPConnector(socket_factory=make_socket)
    async with (
        aiohttp.ClientSession(connector=connector) as http,
        http.ws_connect(f"{endpoint}/session", max_msg_size=0) as websocket,
    ):
        connection = _Connection(websocket)
        await connection.command("session.new", capabilities={})
        tree = await connection.command("browsingContext.getTree")
        yield Tab(connection, tree["contexts"][0]["context"])
        with contextlib.suppress(BidiError):  # it may be gone before it has answered
            await connection.command("browser.close")


async def _endpoint(browser: Process) -> str:
    deadline = asyncio.get_running_loop().time() + START_TIMEOUT_S
    while not (found := _ENDPOINT.search(browser.output())):
        if browser.returncode is not None or asyncio.get_running_loop().time() > deadline:
            raise BidiError(f"Firefox offers no BiDi endpoint\n{browser.tail()}")
        await asyncio.sleep(0.05)
    return found[1]
