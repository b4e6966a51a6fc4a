"""`transceiver serve` between stock aiortc clients and a scripted Realtime server: sound, events, ends."""

from __future__ import annotations

import asyncio
import json
import time
from array import array
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.calls import StockCall, post_offer, stock_call
from tests.support.offers import CHROMIUM
from tests.support.process import Process, Processes
from tests.support.realtime_server import Connection, RealtimeServer, realtime_server, tone

KEY = "sk-web-0123456789abcdef"
OTHER_KEY = "sk-cron-0123456789abcdef"
BACKEND_KEY = "sk-backend-0123456789"


@pytest.fixture
async def model() -> AsyncIterator[RealtimeServer]:
    async with realtime_server() as server:
        yield server


@pytest.fixture
def serve(processes: Processes, model: RealtimeServer) -> Callable[..., Process]:
    def start(*arguments: str) -> Process:
        key = processes.directory / "backend-key"
        key.write_text(BACKEND_KEY + "\n")
        return processes.transceiver(
            "serve", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--workers=2", "--direct",
            "--log-format=json", "--drain-timeout=0.5", f"--backend={model.url}", "--backend-model=m1",
            f"--backend-key-file={key}", *arguments,
        )  # fmt: skip

    return start


@pytest.fixture
async def base(serve: Callable[..., Process]) -> str:
    return await origin(serve())


async def origin(server: Process) -> str:
    return f"http://{(await asyncio.to_thread(server.listening, 'http'))[0]}"


async def until(condition: Callable[[], Any], timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what is waited for lies in another process
            await asyncio.sleep(0.01)


def types(call: StockCall) -> list[str]:
    return [event["type"] for event in call.events]


def errors(call: StockCall) -> dict[str, Any]:
    """The `error` events so far, by code; each code once."""
    told = [event["error"] for event in call.events if event["type"] == "error"]
    by_code = {error["code"]: error for error in told}
    assert len(by_code) == len(told), told
    return by_code


def send(call: StockCall, **event: Any) -> None:
    assert call.channel is not None
    call.channel.send(json.dumps(event))


async def stats(base: str, call: StockCall, key: str = "ek_test") -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession(base, headers=headers) as http,
        http.get(f"{call.location}/stats") as response,
    ):
        return dict(await response.json())


async def metrics(base: str) -> dict[str, float]:
    """The samples without labels."""
    async with aiohttp.ClientSession(base) as http, http.get("/metrics") as response:
        text = await response.text()
    families = text_string_to_metric_families(text)
    return {one.name: one.value for family in families for one in family.samples if not one.labels}


async def close_reason(base: str, call: StockCall, key: str = "ek_test") -> str:
    """The recorded reason, once the call has ended."""
    async with asyncio.timeout(20):
        while True:
            if reason := (await stats(base, call, key))["close_reason"]:
                return str(reason)
            await asyncio.sleep(0.05)


async def heard_in_all(call: StockCall) -> int:
    """Loud frames, once none has come for a second: what is under way arrives before."""
    async with asyncio.timeout(30):
        while True:
            heard = call.loud_frames
            await asyncio.sleep(1.0)
            if call.loud_frames == heard:
                return heard


def loudness(pcm: bytes | bytearray) -> int:
    return max(array("h", bytes(pcm[: len(pcm) // 2 * 2])), default=0)


async def test_sound_and_events_both_ways(base: str, model: RealtimeServer) -> None:
    async with stock_call(base) as call:
        await call.wait(audio=False)
        assert types(call)[0] == "session.created"
        (connection,) = model.connections
        assert connection.headers["Authorization"] == f"Bearer {BACKEND_KEY}"
        assert connection.query["model"] == "m1"
        send(call, type="session.update", session={"type": "realtime", "instructions": "brief"})
        await until(lambda: "session.updated" in types(call))
        await until(lambda: loudness(connection.audio) > 5_000)
        await connection.say(tone(400))
        await until(lambda: "output_audio_buffer.stopped" in types(call))
        await until(lambda: call.loud_frames >= 10)
        order = [kind for kind in types(call) if not kind.startswith("response.output_audio")]
        assert order[-4:] == [
            "response.created",
            "output_audio_buffer.started",
            "response.done",
            "output_audio_buffer.stopped",
        ]
        assert "response.output_audio.delta" not in types(call)
        tool = {"type": "function_call", "name": "f", "call_id": "c1", "arguments": "{}"}
        await connection.send("response.output_item.done", item=tool, response_id="resp_1")
        await until(lambda: "response.output_item.done" in types(call))
        output = {"type": "function_call_output", "call_id": "c1", "output": "42"}
        send(call, type="conversation.item.create", item=output)
        await until(lambda: connection.of("conversation.item.create"))


@pytest.mark.parametrize("by", ["speech", "client"])
async def test_barge_in_stops_the_sound_and_truncates_at_what_was_played(
    base: str, model: RealtimeServer, by: str
) -> None:
    async with stock_call(base) as call:
        await call.wait(audio=False)
        (connection,) = model.connections
        await connection.say(tone(10_000))
        await until(lambda: call.loud_frames >= 50)
        if by == "speech":
            await connection.send(
                "input_audio_buffer.speech_started", item_id="u", audio_start_ms=1
            )
        else:
            send(call, type="output_audio_buffer.clear")
        await until(lambda: "output_audio_buffer.cleared" in types(call))
        await connection.say(tone(2_000))  # late sound of the cut response
        heard = await heard_in_all(call)
        await until(lambda: connection.of("conversation.item.truncate"))
        (truncate,) = connection.of("conversation.item.truncate")
        assert truncate["item_id"] == "item_1"
        # The client's own buffer holds some of what was sent: never more than that much apart.
        assert 20 * heard - 100 <= truncate["audio_end_ms"] <= 20 * heard + 600
        assert types(call).count("output_audio_buffer.cleared") == 1


@pytest.mark.parametrize("how", [1000, 1001, 1011, "abort"])
async def test_a_backend_that_breaks_is_replaced_and_told_everything_again(
    base: str, model: RealtimeServer, how: int | str
) -> None:
    async with stock_call(base) as call:
        await call.wait(audio=False)
        first = model.connections[0]
        send(call, type="session.update", session={"type": "realtime", "instructions": "brief"})
        await until(lambda: "session.updated" in types(call))
        item = {"id": "u1", "type": "message", "role": "user"}
        item["content"] = [{"type": "input_text", "text": "hello"}]  # type: ignore[assignment]
        await first.send("conversation.item.added", item=item, previous_item_id=None)
        await first.send("response.created", response={"id": "resp_9", "status": "in_progress"})
        await until(lambda: "response.created" in types(call))
        if isinstance(how, int):
            await first.websocket.close(code=how)
        else:
            first.abort()
        await until(lambda: len(model.connections) == 2 and model.connections[1].events)
        second = model.connections[1]
        await until(lambda: len(second.events) >= 2)
        assert second.events[0]["session"]["instructions"] == "brief"
        assert second.events[1]["item"]["content"] == [{"type": "input_text", "text": "hello"}]
        await until(lambda: "response.done" in types(call))  # the one under way ends as failed
        await second.say(tone(400), response="resp_10", item="item_10")
        await until(lambda: call.loud_frames >= 10)
        assert types(call).count("session.created") == 1


async def test_a_refused_key_is_said_and_ends_the_call(base: str, model: RealtimeServer) -> None:
    model.status = 401
    async with stock_call(base) as call:
        await until(
            lambda: any(e.get("error", {}).get("code") == "backend_lost" for e in call.events)
        )
        assert await close_reason(base, call) == "backend"


async def test_garbage_and_huge_events_of_a_backend_are_told_and_cost_no_call(
    base: str, model: RealtimeServer
) -> None:
    async def misbehave(connection: Connection) -> None:
        for text in ("", "nonsense", "[]", '{"type":5}', '{"type":"response.output_audio.delta"}'):
            await connection.websocket.send_str(text)
        await connection.websocket.send_bytes(b"\xff\x00")
        await connection.send("huge", blob="x" * 1_000_000)
        await connection.send("after")

    model.script = misbehave
    async with stock_call(base) as call, stock_call(base) as other:
        await until(lambda: "after" in types(call) and "after" in types(other))
        await until(lambda: "backend_garbage" in errors(call))
        await until(lambda: "backend_garbage" in errors(other))
        for told in (call, other):
            assert sorted(errors(told)) == ["backend_garbage", "event_too_large"]
            assert "huge" in errors(told)["event_too_large"]["message"]
        numbers = await stats(base, call)
        assert (numbers["state"], numbers["backend_garbage"]) == ("connected", 6)


async def test_an_event_of_sixty_kilobytes_passes_whole(base: str, model: RealtimeServer) -> None:
    async with stock_call(base) as call:
        await call.wait(audio=False)
        await model.connections[0].send("large", blob="x" * 60_000)
        await until(lambda: "large" in types(call))
        blob = "y" * 60_000
        send(call, type="conversation.item.create", item={"id": "big", "blob": blob})
        await until(lambda: model.connections[0].of("conversation.item.create"))
        assert model.connections[0].of("conversation.item.create")[0]["item"]["blob"] == blob


async def test_hangup_closes_the_backend(base: str, model: RealtimeServer) -> None:
    async with stock_call(base) as call:
        await call.wait(audio=False)
        async with (
            aiohttp.ClientSession(base) as http,
            http.post(f"{call.location}/hangup") as response,
        ):
            assert response.status == 200
        await asyncio.wait_for(model.connections[0].closed.wait(), 10)


async def test_another_backend_by_name(
    serve: Callable[..., Process], model: RealtimeServer
) -> None:
    base = await origin(serve("--backend=echo", "--backend=loopback"))
    async with stock_call(base, query="?backend=loopback") as call:
        await call.wait()
    assert model.connections == []
    async with aiohttp.ClientSession(base) as http:
        status, body, _ = await post_offer(http, CHROMIUM, path="/v1/realtime/calls?backend=none")
        assert (status, json.loads(body)["error"]["code"]) == (400, "unknown_backend")


async def test_the_echo_takes_turns(serve: Callable[..., Process]) -> None:
    base = await origin(serve("--backend=echo"))
    async with stock_call(base, query="?backend=echo") as call:
        await call.wait(audio=False)
        await until(lambda: "input_audio_buffer.speech_started" in types(call))
        await asyncio.sleep(0.5)
        assert call.loud_frames == 0
        assert call.tone is not None
        call.tone.silent = True
        await until(lambda: "output_audio_buffer.stopped" in types(call))
        await until(lambda: call.loud_frames >= 20)
        assert "response.output_audio.delta" not in types(call)
    await close_reason(base, call)
    ended = await stats(base, call)
    assert ended["talk_ms"] >= 400
    assert ended["listen_ms"] >= 400
    samples = await metrics(base)
    for name in ("talk", "listen", "jitter", "playout_delay"):
        counted_s = samples[f"transceiver_call_{name}_seconds_sum"]
        assert samples[f"transceiver_call_{name}_seconds_count"] == 1, name
        assert counted_s == pytest.approx(ended[f"{name}_ms"] / 1_000, abs=1e-5), name


# Identity and limits


@pytest.fixture
async def guarded(serve: Callable[..., Process], tmp_path: Path) -> str:
    keys, secret = tmp_path / "keys", tmp_path / "secret"
    keys.write_text(f"web {KEY} calls=2 per_minute=5\ncron {OTHER_KEY}\n")
    secret.write_text("a secret of the pool 0123456789")
    return await origin(serve(f"--api-keys={keys}", f"--auth-secret={secret}"))


async def client_secret(http: aiohttp.ClientSession, key: str = KEY, **body: Any) -> Any:
    headers = {"Authorization": f"Bearer {key}"}
    async with http.post("/v1/realtime/client_secrets", json=body, headers=headers) as response:
        return response.status, await response.json()


async def test_who_may_call(guarded: str) -> None:
    async with aiohttp.ClientSession(guarded) as http:
        for bearer in ("", "nonsense", "ek_forged", KEY + "x"):
            status, body, _ = await post_offer(http, CHROMIUM, bearer=bearer)
            assert status == 401, body
            assert json.loads(body)["error"]["type"] == "authentication_error"
        status, made = await client_secret(http)
        assert status == 200
        status, answer = await client_secret(http, made["value"])
        assert (status, answer["error"]["code"]) == (403, "secret_cannot_make_secrets")
        status, answer = await client_secret(http, expires_after={"seconds": 1})
        assert status == 400
        # until it expires a secret places as many calls as its key may (test_auth.py: not after)
        for _ in range(2):
            status, body, _ = await post_offer(http, CHROMIUM, bearer=made["value"])
            assert status == 201, body
        status, body, _ = await post_offer(http, CHROMIUM, bearer=made["value"])
        assert (status, json.loads(body)["error"]["code"]) == (429, "too_many_calls")


async def test_a_client_secret_carries_the_session_and_its_limits(
    guarded: str, model: RealtimeServer
) -> None:
    async with aiohttp.ClientSession(guarded) as http:
        limits = {"max_call_seconds": 8, "updatable": ["tools"]}
        session = {"type": "realtime", "instructions": "sealed"}
        _, made = await client_secret(http, session=session, limits=limits)
        began_s = time.monotonic()
        async with stock_call(guarded, bearer=made["value"]) as call:
            await call.wait(audio=False)
            (connection,) = model.connections
            await until(lambda: connection.of("session.update"))
            assert connection.events[0]["session"]["instructions"] == "sealed"
            update = {"type": "realtime", "instructions": "mine", "tools": []}
            send(call, type="session.update", event_id="e1", session=update)
            await until(lambda: len(connection.of("session.update")) == 2)
            assert "instructions" not in connection.of("session.update")[1]["session"]
            await until(lambda: "session.expiring" in types(call))
            await until(
                lambda: any(
                    e.get("error", {}).get("code") == "session_expired" for e in call.events
                )
            )
            assert time.monotonic() - began_s >= 7.9
            other = {"Authorization": f"Bearer {OTHER_KEY}"}
            async with http.get(f"{call.location}/stats", headers=other) as response:
                assert response.status == 404
            assert await close_reason(guarded, call, KEY) == "max_duration"


async def test_what_comes_with_an_offer_changes_no_more_than_a_client_secret_leaves_open(
    guarded: str, model: RealtimeServer
) -> None:
    async with aiohttp.ClientSession(guarded) as http:
        session = {"type": "transcription", "include": ["x"]}
        _, made = await client_secret(http, session=session, limits={"updatable": ["tracing"]})
        mine = {"type": "realtime", "include": [], "tracing": "auto"}
        bearer = {"Authorization": f"Bearer {made['value']}"}
        offer = {"sdp": CHROMIUM, "session": mine}
        async with http.post("/v1/realtime/calls", json=offer, headers=bearer) as response:
            assert response.status == 201
        await until(lambda: model.connections and model.connections[0].of("session.update"))
        told = model.connections[0].events[0]["session"]
        assert {**session, "tracing": "auto"}.items() <= told.items()


async def test_a_client_secret_ends_its_call_after_its_own_end(guarded: str) -> None:
    async with aiohttp.ClientSession(guarded) as http:
        _, made = await client_secret(http, expires_after={"seconds": 10})
        async with stock_call(guarded, bearer=made["value"]) as call:
            await call.wait(audio=False)
            await asyncio.sleep(max(0.0, made["expires_at"] - time.time()))
            status, body, _ = await post_offer(http, CHROMIUM, bearer=made["value"])
            assert (status, json.loads(body)["error"]["code"]) == (401, "invalid_api_key")
            mine = {"Authorization": f"Bearer {made['value']}"}
            async with http.get(f"{call.location}/stats", headers=mine) as response:
                assert response.status == 200
            async with http.delete(call.location, headers=mine) as response:
                assert response.status == 200
            assert await close_reason(guarded, call, KEY) == "client_close"


async def test_a_key_has_its_limits(guarded: str) -> None:
    async with aiohttp.ClientSession(guarded) as http:
        locations = []
        for _ in range(2):
            status, _, location = await post_offer(http, CHROMIUM, bearer=KEY)
            assert status == 201
            locations.append(location)
        status, body, _ = await post_offer(http, CHROMIUM, bearer=KEY)
        assert (status, json.loads(body)["error"]["code"]) == (429, "too_many_calls")
        assert (await post_offer(http, CHROMIUM, bearer=OTHER_KEY))[0] == 201
        own = {"Authorization": f"Bearer {KEY}"}
        for _ in range(3):
            async with http.delete(locations.pop(), headers=own) as response:
                assert response.status == 200
            status, body, location = await post_offer(http, CHROMIUM, bearer=KEY)
            assert status == 201, body
            locations.append(location)
        async with http.delete(locations.pop(), headers=own):
            pass
        headers = {**own, "Content-Type": "application/sdp"}
        async with http.post("/v1/realtime/calls", data=CHROMIUM, headers=headers) as response:
            assert response.status == 429
            assert (await response.json())["error"]["code"] == "rate_limit_exceeded"
            assert int(response.headers["Retry-After"]) >= 1


async def test_no_secret_is_logged(guarded: str, processes: Processes) -> None:
    async with aiohttp.ClientSession(guarded) as http:
        _, made = await client_secret(http)
        await post_offer(http, CHROMIUM, bearer=made["value"])
        await post_offer(http, CHROMIUM, bearer=KEY)
    text = "".join(path.read_text() for path in processes.directory.glob("*.log"))
    assert "call_opened" in text
    for secret in (made["value"], KEY, BACKEND_KEY):
        assert secret not in text
