"""`transceiver serve` with stock aiortc clients, directly: sound, events, HTTP, ends."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.calls import CALLS_PATH, bare, hears, make_call, post_offer, stock_call, until
from tests.support.offers import CHROMIUM, changed, split, without
from tests.support.process import Process, Processes

OPEN = "transceiver_sessions"
SDPFRAG = "application/trickle-ice-sdpfrag"
CANDIDATE = (
    "m=audio 9 UDP/TLS/RTP/SAVPF 0\r\na=mid:0\r\na=candidate:1 1 udp 1 192.0.2.7 5000 typ host\r\n"
)


@pytest.fixture(scope="module")
def server(module_processes: Processes) -> Process:
    """Two processes that take packets without a relay."""
    return module_processes.transceiver(
        "serve", "--backend=loopback", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--workers=2", "--direct",
        "--log-format=json", "--drain-timeout=0.5",
    )  # fmt: skip


@pytest.fixture
def base(server: Process) -> str:
    return f"http://{server.listening('http')[0]}"


@pytest.fixture
async def http(base: str) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(base) as session:
        yield session


async def stats_of(http: aiohttp.ClientSession, location: str) -> dict[str, Any]:
    async with http.get(f"{location}/stats") as response:
        body: dict[str, Any] = await response.json()
        assert response.status == 200, body
        return body


async def closed(http: aiohttp.ClientSession, location: str, timeout_s: float = 30.0) -> str:
    """The recorded reason, once the call has ended."""

    async def reason() -> object:
        return (await stats_of(http, location))["close_reason"]

    return str(await until(reason, timeout_s))


async def metrics_of(http: aiohttp.ClientSession) -> dict[tuple[str, str], float]:
    async with http.get("/metrics") as response:
        text = await response.text()
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


# Sound and events


async def test_a_stock_client_hears_itself_and_gets_session_created(
    base: str, http: aiohttp.ClientSession
) -> None:
    async with stock_call(base) as call:
        await call.wait()
        assert call.events[0]["type"] == "session.created"
        updated = await call.ask(
            {"type": "session.update", "session": {"type": "realtime", "instructions": "hi"}}
        )
        assert updated["type"] == "session.updated"

        async def a_second_of_it() -> Any:
            stats = await stats_of(http, call.location)
            packets = min(stats["packets_in"], stats["packets_out"])
            # Its numbers are read while packets pass, and what came in has not gone out for a moment.
            passed = packets >= 45 and stats["bytes_in"] == stats["bytes_out"]
            return stats if passed and call.loud_frames >= 40 else None

        stats = await until(a_second_of_it)
    assert stats["state"] == "connected"
    assert stats["close_reason"] is None
    assert stats["codec"] == "opus"
    assert list(stats["timeline_ms"]) == [
        "answer", "ice", "dtls", "channel", "first_audio_in", "first_audio_out",
    ]  # fmt: skip
    at = stats["timeline_ms"]
    assert 0 < at["answer"] < at["ice"] < at["dtls"] < at["channel"]
    assert at["dtls"] < at["first_audio_in"] <= at["first_audio_out"]
    assert stats["bytes_out"] > 1_000
    assert stats["flow"]["proxy"] == stats["transceiver"]["media"]
    assert stats["ingress"]["addresses"] == [stats["transceiver"]["media"]]
    assert stats["loss"] == 0
    assert await closed(http, call.location) in ("sctp_abort", "dtls_close_notify")


async def test_rtt_and_loss_are_known_at_both_ends(base: str, http: aiohttp.ClientSession) -> None:
    counted = ("transceiver_call_rtt_seconds_count", "")
    before = (await metrics_of(http))[counted]
    async with stock_call(base) as call:
        await call.wait()

        async def ours() -> Any:
            stats = await stats_of(http, call.location)
            return stats if stats["rtt_ms"] is not None else None

        async def theirs() -> list[Any]:
            reports = (await call.connection.getStats()).values()
            return [
                report
                for report in reports
                if report.type == "remote-inbound-rtp" and report.roundTripTime is not None
            ]

        stats, remote = await until(ours), await until(theirs)
    assert 0 <= stats["rtt_ms"] < 1_000
    assert stats["loss_out"] == 0
    assert 0 <= remote[0].roundTripTime < 1
    await closed(http, call.location)
    assert (await metrics_of(http))[counted] > before


@pytest.mark.parametrize(("payload_type", "codec"), [("0", "PCMU"), ("8", "PCMA")])
async def test_g711_clients_echo_too(
    base: str, http: aiohttp.ClientSession, payload_type: str, codec: str
) -> None:
    async with stock_call(base, codec=payload_type) as call:
        await call.wait()
        assert (await stats_of(http, call.location))["codec"] == codec


@pytest.mark.parametrize("query", ["?dcid=0", ""])
async def test_a_negotiated_channel(base: str, query: str) -> None:
    async with stock_call(base, channel="negotiated", query=query) as call:
        await call.wait()
        assert call.events[0]["type"] == "session.created"
        assert (await call.ask({"type": "response.create"}))["type"] == "response.created"


async def test_an_offer_of_audio_only(base: str, http: aiohttp.ClientSession) -> None:
    async with stock_call(base, channel=None) as call:
        await call.wait(events=False)
        assert (await stats_of(http, call.location))["timeline_ms"]["channel"] is None


async def test_a_listener_gets_reports_but_no_sound(base: str, http: aiohttp.ClientSession) -> None:
    async with stock_call(base, audio=False) as call:
        await call.wait(audio=False)
        before, began_s = call.packets_received(), time.monotonic()

        async def five_more() -> bool:
            return call.packets_received() >= before + 5

        await until(five_more)
        assert time.monotonic() - began_s < 20, "one every 400 ms, ten times that on a busy machine"
        assert (await stats_of(http, call.location))["packets_out"] == 0


# Ends


@pytest.mark.parametrize(("end", "reason"), [("delete", "client_close"), ("hangup", "hangup")])
async def test_http_ends_a_call_and_the_client_is_told(
    base: str, http: aiohttp.ClientSession, end: str, reason: str
) -> None:
    async with stock_call(base) as call:
        await call.wait()
        ask = (
            http.delete(call.location) if end == "delete" else http.post(f"{call.location}/hangup")
        )
        async with ask as response:
            assert response.status == 200
            assert await response.read() == b""

        async def told() -> bool:
            return call.connection.connectionState == "closed"

        await until(told)
    assert await closed(http, call.location) == reason
    async with http.delete(call.location) as response:
        assert response.status == 404


async def test_closing_the_channel_ends_the_call(base: str, http: aiohttp.ClientSession) -> None:
    async with stock_call(base) as call:
        await call.wait()
        assert call.channel is not None
        call.channel.close()
        assert await closed(http, call.location) == "channel_closed"


async def test_a_call_can_be_ended_before_anything_happened(http: aiohttp.ClientSession) -> None:
    _, _, location = await post_offer(http, CHROMIUM)
    assert (await stats_of(http, location))["state"] == "new"
    async with http.delete(location) as response:
        assert response.status == 200
    assert await closed(http, location) == "client_close"


# The HTTP side


async def test_siblings_serve_each_others_calls(base: str, http: aiohttp.ClientSession) -> None:
    """One keep-alive connection reaches calls of both processes."""
    locations = []
    for _ in range(24):
        async with aiohttp.ClientSession(base) as fresh:
            locations.append((await post_offer(fresh, CHROMIUM))[2])
    owners = {(await stats_of(http, one))["transceiver"]["process"] for one in locations}
    assert owners == {0, 1}
    for one in locations:
        async with http.patch(
            one, data=b"", headers={"Content-Type": "application/trickle-ice-sdpfrag"}
        ) as response:
            assert response.status == 204
        async with http.delete(one) as response:
            assert response.status == 200
    assert {await closed(http, one) for one in locations} == {"client_close"}


async def test_d20_candidates_are_taken_a_restart_is_refused_and_unknown_calls_are_404(
    base: str, http: aiohttp.ClientSession
) -> None:
    own = re.search(r"a=ice-ufrag:(\S+)", CHROMIUM)
    assert own is not None

    async def patch(path: str, ufrag: str, kind: str = SDPFRAG, **headers: str) -> tuple[int, str]:
        fragment = f"a=ice-ufrag:{ufrag}\r\na=ice-pwd:0123456789012345678901\r\n{CANDIDATE}"
        async with aiohttp.ClientSession(base) as fresh:  # of either process
            headers = {"Content-Type": kind, **headers}
            async with fresh.patch(path, data=fragment.encode(), headers=headers) as response:
                assert response.headers.getall("Access-Control-Allow-Origin") == ["*"]
                body = await response.text()
                return response.status, json.loads(body)["error"]["code"] if body else ""

    _, _, location = await post_offer(http, CHROMIUM)
    any_version = {"If-Match": "*"}
    for _ in range(4):
        assert await patch(location, own[1], **{"If-Match": '"1"'}) == (204, "")
        refused = (422, "ice_restart_unsupported")
        assert await patch(location, "another", **any_version) == refused
    assert await patch(location, "another") == refused
    assert await patch(location, own[1], SDP) == (415, "unsupported_media_type")
    for unknown in (f"{CALLS_PATH}/rtc_{'a' * 80}", f"{CALLS_PATH}/rtc_forged"):
        assert await patch(unknown, own[1], **any_version) == (404, "call_id_not_found")
    assert await patch(location, "x" * 20_000) == (413, "offer_too_large")
    assert await patch(location, f"{own[1]}\r\n<html>") == (400, "invalid_fragment")
    assert (await stats_of(http, location))["state"] == "new", "a refused restart ends nothing"
    await (await http.delete(location)).read()
    assert await patch(location, own[1]) == (404, "call_id_not_found")


async def test_the_response_to_an_offer(http: aiohttp.ClientSession) -> None:
    async with http.post(
        CALLS_PATH, data=CHROMIUM, headers={"Content-Type": "application/sdp; charset=utf-8"}
    ) as response:
        assert response.status == 201
        assert response.content_type == "application/sdp"
        assert response.headers["Location"].startswith(f"{CALLS_PATH}/rtc_")
        assert response.headers["Server-Timing"].startswith("answer;dur=")
        assert response.headers["Access-Control-Allow-Origin"] == "*"
        assert "Location" in response.headers["Access-Control-Expose-Headers"]
        assert (await response.text()).startswith("v=0\r\n")
    async with http.delete(response.headers["Location"]) as response:
        assert response.status == 200


@pytest.mark.parametrize("path", [CALLS_PATH, "/v1/realtime", "/v1/realtime?model=gpt-realtime"])
async def test_all_paths_take_an_offer(http: aiohttp.ClientSession, path: str) -> None:
    status, _, location = await post_offer(http, CHROMIUM, path=path)
    assert (status, location[:18]) == (201, CALLS_PATH)
    await (await http.delete(location)).read()


async def test_offers_in_forms_and_json(http: aiohttp.ClientSession) -> None:
    form = aiohttp.FormData()
    form.add_field("sdp", CHROMIUM, content_type="application/sdp")
    form.add_field("session", '{"type": "realtime"}', content_type="application/json")
    with aiohttp.MultipartWriter("form-data") as named:
        part = named.append(CHROMIUM, {"Content-Type": "application/sdp"})
        part.set_content_disposition("form-data", name="sdp", filename="sdp")
    for body in ({"data": form}, {"data": named}, {"json": {"sdp": CHROMIUM, "session": {}}}):
        async with http.post(CALLS_PATH, **body) as response:
            assert response.status == 201, await response.text()
            await (await http.delete(response.headers["Location"])).read()


async def test_the_preflight_of_a_stock_sdk(http: aiohttp.ClientSession) -> None:
    async with http.options(
        CALLS_PATH,
        headers={
            "Origin": "https://app.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type,x-openai-agents-sdk",
        },
    ) as response:
        assert response.status == 204
        allowed = response.headers["Access-Control-Allow-Headers"].replace(" ", "").split(",")
        assert {"authorization", "content-type", "x-openai-agents-sdk"} <= set(allowed)
        assert "DELETE" in response.headers["Access-Control-Allow-Methods"]
        assert int(response.headers["Access-Control-Max-Age"]) > 0
        assert response.headers["Accept-Post"] == "application/sdp"


SESSION, AUDIO, DATA = split(CHROMIUM)
SDP = "application/sdp"
BAD: dict[str, tuple[str, bytes, int]] = {
    "empty": (SDP, b"", 400),
    "truncated": (SDP, CHROMIUM[:300].encode(), 422),
    "1 MB": (SDP, b"v=0\r\n" + b"a=x\r\n" * 200_000, 413),
    "1 MB line": (SDP, b"v=0\r\ns=" + b"x" * 1_000_000, 413),
    "just under the limit": (SDP, b"v=0\r\n" + b"m=audio 9 RTP/SAVPF 0\r\n" * 2_500, 400),
    "long lines under the limit": (SDP, (CHROMIUM + "a=" + "x:" * 30_000).encode(), 400),
    "not SDP": (SDP, b"<html></html>", 400),
    "binary": (SDP, bytes(range(256)), 400),
    "no audio": (SDP, (changed(SESSION, "BUNDLE 0 1", "BUNDLE 1") + DATA).encode(), 422),
    "no fingerprint": (SDP, without(CHROMIUM, "a=fingerprint").encode(), 400),
    "sha-1 only": (SDP, changed(CHROMIUM, "fingerprint:sha-256", "fingerprint:sha-1").encode(), 422),
    "holdconn": (SDP, changed(CHROMIUM, "setup:actpass", "setup:holdconn").encode(), 422),
    "ice-lite": (SDP, (SESSION + "a=ice-lite\r\n" + AUDIO + DATA).encode(), 422),
    "short ufrag": (SDP, changed(CHROMIUM, "ufrag:jbUj", "ufrag:7ia").encode(), 400),
    "wrong type": ("text/plain", CHROMIUM.encode(), 415),
    "no type": ("", CHROMIUM.encode(), 415),
    "an answer as JSON": (
        "application/json", json.dumps({"type": "answer", "sdp": CHROMIUM}).encode(), 400,
    ),
    "odd JSON": ("application/json", b"[" * 100_000, 400),
    "JSON without sdp": ("application/json", b'{"sdp": 1}', 400),
    "a form that is none": ("multipart/form-data; boundary=x", b"--y\r\n", 400),
    "a form without boundary": ("multipart/form-data", b"--y\r\n", 400),
    "a form with an unknown part": (
        "multipart/form-data; boundary=x",
        b'--x\r\nContent-Disposition: form-data; name="evil"\r\n\r\n1\r\n--x--\r\n', 400,
    ),
    "a form without an end": (
        "multipart/form-data; boundary=x",
        b'--x\r\nContent-Disposition: form-data; name="sdp"\r\n\r\n' + CHROMIUM.encode(), 400,
    ),
    "a form of many parts": (
        "multipart/form-data; boundary=x",
        b'--x\r\nContent-Disposition: form-data; name="sdp"\r\n\r\nv=0\r\n' * 2_000 + b"--x--",
        400,
    ),
    "a form with an encoded part": (
        "multipart/form-data; boundary=x",
        b'--x\r\nContent-Disposition: form-data; name="sdp"\r\nContent-Encoding: gzip\r\n\r\n1\r\n--x--',
        400,
    ),
    "a form without sdp": (
        "multipart/form-data; boundary=x",
        b'--x\r\nContent-Disposition: form-data; name="session"\r\n\r\n{}\r\n--x--\r\n', 400,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "body", "status"), BAD.values(), ids=BAD)
async def test_bad_offers_get_a_clear_error_at_once(
    http: aiohttp.ClientSession, kind: str, body: bytes, status: int
) -> None:
    before = await metrics_of(http)
    headers = {"Content-Type": kind} if kind else {}
    started_s = time.perf_counter()
    async with http.post(
        CALLS_PATH, data=body, headers=headers, skip_auto_headers=["Content-Type"]
    ) as response:
        error = (await response.json())["error"]
        elapsed_s = time.perf_counter() - started_s
    assert response.status == status, error
    assert set(error) == {"message", "type", "code", "param"}
    assert error["type"] == "invalid_request_error"
    assert 10 < len(error["message"]) < 200
    assert response.headers["Access-Control-Allow-Origin"] == "*"
    assert elapsed_s < 5, "50 ms, with room for a busy machine"
    after = await metrics_of(http)
    assert after[("transceiver_calls_total", "")] == before[("transceiver_calls_total", "")]
    refused = [
        value - before[key]
        for key, value in after.items()
        if key[0] == "transceiver_offers_refused_total"
    ]
    assert sum(refused) == 1


@pytest.mark.alone
async def test_bad_offers_are_refused_within_50_ms(http: aiohttp.ClientSession) -> None:
    best_ms: dict[str, float] = {}
    for name, (kind, body, _) in BAD.items():
        headers = {"Content-Type": kind} if kind else {}
        for _ in range(5):
            started_s = time.perf_counter()
            async with http.post(
                CALLS_PATH, data=body, headers=headers, skip_auto_headers=["Content-Type"]
            ) as response:
                await response.read()
            elapsed_ms = 1_000 * (time.perf_counter() - started_s)
            best_ms[name] = min(elapsed_ms, best_ms.get(name, elapsed_ms))
    assert {name: ms for name, ms in best_ms.items() if ms > 50} == {}


async def test_a_client_that_goes_away_in_its_body_is_no_fault(server: Process, base: str) -> None:
    host, _, port = server.listening("http")[0].rpartition(":")
    head = b"POST /v1/realtime/calls HTTP/1.1\r\nHost: x\r\nContent-Type: application/sdp\r\n"
    for rest in (
        b"Content-Length: 900\r\n\r\nv=0",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nv=0\r\n\r\nzz\r\n",
    ):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(head + rest)
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.close()
    await asyncio.sleep(0.2)
    assert not server.events("request_failed")


@pytest.mark.parametrize(
    "request_bytes",
    [b"\x16\x03\x01" + bytes(100), b"GET / HTTP/9.9\r\n\r\n", b"POST / HTTP/1.1\r\nX: " + b"y" * 99_999,
     b"POST /v1/realtime/calls HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n"],
    ids=["TLS", "version", "long header", "chunk"],
)  # fmt: skip
async def test_what_is_no_http_causes_no_log_line(
    server: Process, base: str, request_bytes: bytes
) -> None:
    before = len(server.output())
    host, _, port = server.listening("http")[0].rpartition(":")
    for _ in range(5):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request_bytes)
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(10):
                await reader.read()
        writer.close()
    assert len(server.output()) == before


async def test_a_compressed_body_is_not_inflated(http: aiohttp.ClientSession) -> None:
    bomb = gzip.compress(b"v=0\r\n" + bytes(50_000_000))
    async with http.post(
        CALLS_PATH, data=bomb, headers={"Content-Type": SDP, "Content-Encoding": "gzip"}
    ) as response:
        assert response.status == 415


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("GET", f"/{'n' * 4_000}", 404),
        ("GET", "/v1/realtime", 404),
        ("POST", f"{CALLS_PATH}/rtc_forged/accept", 400),
        ("POST", f"{CALLS_PATH}/rtc_forged/reject", 400),
        ("POST", f"{CALLS_PATH}/rtc_forged/refer", 400),
        ("PUT", CALLS_PATH, 405),
        ("DELETE", f"{CALLS_PATH}/rtc_forged", 404),
        ("POST", f"{CALLS_PATH}/{'x' * 84}/hangup", 404),
        ("GET", f"{CALLS_PATH}/rtc_{'a' * 80}/stats", 404),
        ("GET", f"{CALLS_PATH}/rtc_{'a' * 80}", 404),
        ("PATCH", f"{CALLS_PATH}/rtc_{'a' * 80}", 415),
        ("GET", CALLS_PATH, 204),
        ("GET", "/healthz", 200),
        ("GET", "/readyz", 200),
        ("GET", "/", 404),
    ],
)
async def test_other_requests(
    http: aiohttp.ClientSession, method: str, path: str, status: int
) -> None:
    async with http.request(method, path) as response:
        assert response.status == status
        assert response.headers.getall("Access-Control-Allow-Origin") == ["*"]
        if status >= 400:
            assert 10 < len((await response.json())["error"]["message"]) < 300


async def test_bad_offers_leave_other_calls_alone(base: str, http: aiohttp.ClientSession) -> None:
    async with stock_call(base) as call:
        await call.wait()
        async with asyncio.timeout(30):
            for _ in range(3):
                await asyncio.gather(
                    *(
                        post_offer(http, body.decode("latin-1"))
                        for kind, body, _ in BAD.values()
                        if kind == SDP
                    )
                )
        await hears(call, 20)
        assert call.connection.connectionState == "connected"


async def test_metrics_speak_for_the_pool(base: str, http: aiohttp.ClientSession) -> None:
    stages = ("answer", "ice", "dtls", "channel", "first_audio_in", "first_audio_out")

    async def all_stages() -> bool:
        metrics = await metrics_of(http)
        return all(metrics["transceiver_setup_seconds_count", stage] >= 1 for stage in stages)

    async with stock_call(base) as call:
        await call.wait()
        # What was heard first is known to Python 50 ms later.
        await until(all_stages)
        seen = [await metrics_of(http) for _ in range(2)]
        async with aiohttp.ClientSession(base) as other:
            seen.append(await metrics_of(other))
    for metrics in seen:
        assert metrics[("transceiver_sessions", "connected")] >= 1
        assert metrics[("transceiver_processes", "")] == 2


async def test_how_late_the_media_clock_runs_is_seen(
    http: aiohttp.ClientSession, base: str
) -> None:
    late = "transceiver_media_clock_late_seconds"
    before = await metrics_of(http)
    assert ("transceiver_media_ticks_skipped_total", "") in before
    async with stock_call(base) as call:
        await call.wait()

        async def a_second_of_it() -> Any:
            metrics = await metrics_of(http)
            ticks = metrics[f"{late}_count", ""] - before[f"{late}_count", ""]
            return metrics if ticks >= 50 else None

        after = await until(a_second_of_it)
    assert after[f"{late}_sum", ""] > before[f"{late}_sum", ""]
    buckets = [value for (name, _), value in after.items() if name == f"{late}_bucket"]
    assert buckets == sorted(buckets)
    assert buckets[-1] == after[f"{late}_count", ""]


async def test_nothing_is_left_behind(base: str, http: aiohttp.ClientSession) -> None:
    async def place() -> None:
        call = make_call()
        await call.connection.setLocalDescription(await call.connection.createOffer())
        _, _, location = await post_offer(http, bare(call.connection.localDescription.sdp))
        await (await http.delete(location)).read()
        await call.connection.close()

    await asyncio.gather(*(place() for _ in range(10)))

    async def none_open() -> bool:
        metrics = await metrics_of(http)
        return not any(value for (name, _), value in metrics.items() if name == OPEN)

    await until(none_open)
