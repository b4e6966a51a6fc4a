"""Which cluster owns a call: offers handed over between real pools, and requests for calls elsewhere.

Cluster 1 is in Frankfurt, 2 in Tokyo and serves HTTPS, 3 in Sydney and gone, 4 in Chile and never answers. Cluster 2
believes the opposite of its own place and of cluster 1's: if it handed anything on, it would come back.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from relay.certificate import write_self_signed
from relay.wire.keyring import Keyring, generate_line
from relay.wire.token import TokenCodec
from tests.integration.test_transceiver_calls import metrics_of, stats_of
from tests.support.calls import stock_call
from tests.support.mmdb import write_mmdb
from tests.support.offers import CHROMIUM
from tests.support.process import Process, Processes
from transceiver.boxes import BETWEEN_CLUSTERS, Ask, PeerSeal
from transceiver.callid import CallIds, Owner, derive_key
from transceiver.clusters import CLUSTER_PATH, HANDED, HANDOVER_TIMEOUT_S

SECRET = "a secret of at least thirty-two bytes"
CALLS = "/v1/realtime/calls"
ANN, BOB = "key-of-ann-0123456789abcdef", "key-of-bob-0123456789abcdef"
KEYS = f"ann {ANN}\nbob {BOB} calls=1\n"
PROXY = "127.0.0.2"
FRANKFURT, TOKYO, SYDNEY, CHILE = "50,8", "35,139", "-33,151", "-33,-70"
IDS = CallIds(derive_key(SECRET.encode()))


class World(NamedTuple):
    """Two pools that run, and where the others would be."""

    first: Process
    second: Process
    base: str
    there: str
    keyring: Keyring


@pytest.fixture(scope="module")
def world(module_processes: Processes) -> Iterator[World]:
    directory = module_processes.directory
    for name, text in (("keys", KEYS), ("secret", SECRET), ("keyring", generate_line() + "\n")):
        (directory / name).write_text(text)
    write_mmdb(
        directory / "places.mmdb",
        {"127.0.0.1/32": {"location": {"latitude": 35.0, "longitude": 139.0}}},
    )
    certificate, key = directory / "cert.pem", directory / "key.pem"
    write_self_signed(certificate, key, ipaddress.ip_address("127.0.0.1"))
    ports = [module_processes.reserve_port() for _ in range(3)]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        gone, deaf = ports[2], silent.getsockname()[1]
        first = serve(
            module_processes, directory, 1, ports[0], FRANKFURT, "--max-sessions=3",
            f"--cluster-peer=2=https://127.0.0.1:{ports[1]}@{TOKYO}",
            f"--cluster-peer=3=http://127.0.0.1:{gone}@{SYDNEY}",
            f"--cluster-peer=4=http://127.0.0.1:{deaf}@{CHILE}",
            f"--geoip={directory / 'places.mmdb'}", env={"SSL_CERT_FILE": str(certificate)},
        )  # fmt: skip
        second = serve(
            module_processes, directory, 2, ports[1], FRANKFURT, "--max-sessions=2",
            f"--cluster-peer=1=http://127.0.0.1:{ports[0]}@{TOKYO}",
            f"--tls-cert={certificate}", f"--tls-key={key}",
        )  # fmt: skip
        first.listening("http")
        second.listening("http")
        keyring = Keyring.load(directory / "keyring")
        origins = f"http://127.0.0.1:{ports[0]}", f"https://127.0.0.1:{ports[1]}"
        yield World(first, second, *origins, keyring)


def serve(
    processes: Processes,
    directory: Path,
    cluster: int,
    port: int,
    place: str,
    *arguments: str,
    env: dict[str, str] | None = None,
) -> Process:
    return processes.transceiver(
        "serve", "--backend=loopback", f"--http=127.0.0.1:{port}", "--media=127.0.0.1:0",
        "--workers=2", "--direct", f"--cluster={cluster}", f"--place={place}",
        f"--auth-secret={directory / 'secret'}", f"--api-keys={directory / 'keys'}",
        f"--keyring={directory / 'keyring'}", f"--trusted-proxy={PROXY}",
        "--ingress=west=192.0.2.1:3478@50,8", "--ingress=east=192.0.2.2:3478@35,139",
        "--log-format=json", "--drain-timeout=0", *arguments, env=env,
    )  # fmt: skip


def at(place: str) -> dict[str, str]:
    latitude, longitude = place.split(",")
    return {"CF-IPLatitude": latitude, "CF-IPLongitude": longitude}


def client(base: str, bearer: str = ANN, **headers: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        base,
        connector=aiohttp.TCPConnector(local_addr=(PROXY, 0), ssl=False),
        headers={"Authorization": f"Bearer {bearer}", **headers},
    )


async def offer(
    http: aiohttp.ClientSession, place: str, query: str = "", **headers: str
) -> tuple[int, str, str]:
    """Status, body, Location."""
    sdp = {"Content-Type": "application/sdp", **at(place), **headers}
    async with http.post(CALLS + query, data=CHROMIUM.encode(), headers=sdp) as response:
        return response.status, await response.text(), response.headers.get("Location", "")


async def offer_to(
    http: aiohttp.ClientSession, cluster: int, place: str, **headers: str
) -> tuple[str, str]:
    """Body and Location of an offer that this cluster takes: on a busy machine the first may be too slow."""
    deadline = time.monotonic() + 30
    while True:
        status, answer, location = await offer(http, place, **headers)
        assert status == 201, answer
        if owner_of(location) == cluster:
            return answer, location
        assert await http.delete(location)
        assert time.monotonic() < deadline, f"cluster {cluster} takes no offer"


async def fill_both(http: aiohttp.ClientSession) -> list[str]:
    """Locations of five offers near the second cluster, of which it takes two. On a busy machine it may be too
    slow for one, and is passed over for a while.
    """
    deadline = time.monotonic() + 60
    while True:
        placed = [await offer(http, TOKYO) for _ in range(5)]
        taken = [location for status, _, location in placed if status == 201]
        if sorted(map(owner_of, taken)) == [1, 1, 1, 2, 2]:
            return taken
        assert time.monotonic() < deadline, placed
        for location in taken:
            await http.delete(location)
        await asyncio.sleep(0.5)


def owner_of(location: str) -> int:
    owner = IDS.open(location.rpartition("/")[2])
    assert owner is not None
    return owner.cluster_id


def ufrag_of(answer: str) -> str:
    return answer.partition("a=ice-ufrag:")[2].partition("\r")[0]


async def handed(http: aiohttp.ClientSession, cluster: int) -> dict[str, float]:
    """What came of offers for that cluster."""
    return {
        labels.partition(",")[2]: value
        for (name, labels), value in (await metrics_of(http)).items()
        if name == "transceiver_handovers_total" and labels.startswith(f"{cluster},") and value
    }


async def test_the_nearest_cluster_owns_the_call_and_every_cluster_answers_for_it(
    world: World,
) -> None:
    async with client(world.base) as http:
        status, answer, here = await offer(http, FRANKFURT)
        assert (status, owner_of(here)) == (201, 1)
        assert "192.0.2.1 3478" in answer
        answer, there = await offer_to(http, 2, TOKYO)
        assert "192.0.2.2 3478" in answer, "the entry near the caller, not near the first node"
        opened = TokenCodec(world.keyring).open(ufrag_of(answer))
        assert opened is not None
        assert opened.cluster_id == 2
        stats = await stats_of(http, there)
        assert stats["cluster"] == 2
        assert stats["ingress"]["name"] == "east"
        assert stats["ingress"]["viewpoint"] == "coordinates"
        assert (await http.get(there)).status == 204
        async with client(world.base, BOB) as bob:
            assert (await bob.get(there + "/stats")).status == 404
            assert (await bob.delete(there)).status == 404
        assert (await http.delete(there)).status == 200
        assert (await stats_of(http, there))["close_reason"] == "client_close"
        async with client(world.there) as second:
            assert (await stats_of(second, here))["cluster"] == 1
            assert (await second.post(here + "/hangup")).status == 200
        assert (await handed(http, 2))["answered"] >= 1
    handed_over = world.first.events("call_handed_over", cluster=2)
    assert there.rpartition("/")[2] in {event["call_id"] for event in handed_over}
    for process in (world.first, world.second):
        assert ANN not in process.output()
        assert SECRET not in process.output()


async def test_a_client_secret_carries_its_session(world: World) -> None:
    """By GeoIP, with a stock client; its media goes straight to the other cluster."""
    session = {"type": "realtime", "instructions": "Speak like a lighthouse keeper."}
    async with (
        client(world.base) as http,
        http.post("/v1/realtime/client_secrets", json={"session": session}) as response,
    ):
        bearer = (await response.json())["value"]

    def straight(answer: str) -> str:
        address = TokenCodec(world.keyring).open(ufrag_of(answer))
        assert address is not None
        return answer.replace("192.0.2.2 3478", f"127.0.0.1 {address.port}")

    async with client(world.base) as http:
        _, location = await offer_to(http, 2, TOKYO)  # the way is warm
        await http.delete(location)
    async with stock_call(world.base, bearer=bearer, change_answer=straight) as call:
        assert owner_of(call.location) == 2
        await call.wait()
        assert call.events[0]["session"]["instructions"] == session["instructions"]
        async with client(world.base, bearer) as http:
            stats = await stats_of(http, call.location)
            assert (stats["cluster"], stats["ingress"]["viewpoint"]) == (2, "geoip")
            assert (await http.delete(call.location)).status == 200
        async with client(world.base) as http:
            assert (await stats_of(http, call.location))["close_reason"] == "client_close"


async def test_a_limit_of_the_callers_own_is_the_answer(world: World) -> None:
    async with client(world.base, BOB) as http:
        _, first = await offer_to(http, 2, TOKYO)
        status, text, _ = await offer(http, TOKYO)
        assert status == 429
        assert '"code": "too_many_calls"' in text
        assert (await handed(http, 2))["limited"] == 1
        assert (await http.delete(first)).status == 200


async def test_a_client_that_claims_to_be_a_cluster_is_none(world: World) -> None:
    """Neither its viewpoint nor its word that the offer was handed over counts."""
    async with client(world.base) as http:
        claim: Any = {HANDED: '{"at": [50, 8], "by": "colo"}'}
        _, location = await offer_to(http, 2, TOKYO, **claim)
        stats = await stats_of(http, location)
        assert stats["ingress"]["viewpoint"] == "coordinates"
        await http.delete(location)


async def test_a_full_cluster_is_passed_over_and_a_full_own_one_hands_over(world: World) -> None:
    async with client(world.base) as http:
        placed = await fill_both(http)
        status, text, _ = await offer(http, TOKYO)
        assert status == 503
        assert '"code": "session_limit"' in text
        assert (await handed(http, 2))["full"] >= 1
        gone = next(location for location in placed if owner_of(location) == 2)
        await http.delete(gone)

        deadline = time.monotonic() + 20
        while (again := await offer(http, FRANKFURT))[0] != 201:
            assert time.monotonic() < deadline, again
        assert owner_of(again[2]) == 2
        for location in {*placed, again[2]} - {gone}:
            assert (await http.delete(location)).status == 200


@pytest.mark.parametrize(("place", "cluster"), [(SYDNEY, 3), (CHILE, 4)])
async def test_a_cluster_that_is_gone_or_silent_costs_one_caller_a_moment(
    world: World, place: str, cluster: int
) -> None:
    async with client(world.base) as http:
        locations = []
        for _ in range(2):
            status, answer, location = await offer(http, place)
            assert status == 201, answer
            assert owner_of(location) != cluster
            locations.append(location)
        assert await handed(http, cluster) == {"failed": 1}, "the second knows"
        metrics = await metrics_of(http)
        assert metrics["transceiver_cluster_healthy", str(cluster)] == 0
        for location in locations:
            await http.delete(location)


async def test_calls_of_clusters_that_are_gone_or_unknown(world: World) -> None:
    async with client(world.base) as http:
        for cluster, status in ((3, 502), (9, 404)):
            assert (await http.delete(f"{CALLS}/{IDS.draw(Owner(cluster, 0))}")).status == status


async def test_only_who_holds_the_secret_hands_over_and_each_box_once(world: World) -> None:
    seal = PeerSeal(SECRET.encode(), BETWEEN_CLUSTERS)
    headers = {"Authorization": f"Bearer {ANN}", HANDED: "{}"}
    async with client(world.there) as http:

        async def post(data: bytes) -> tuple[int, bytes]:
            async with http.post(CLUSTER_PATH, data=data) as response:
                return response.status, await response.read()

        ask = Ask(2, "GET", f"{CALLS}/{IDS.draw(Owner(2, 0))}", headers, b"")
        box, asked = seal.seal_ask(ask, time.time())
        status, answer = await post(box)
        assert status == 200
        reply = seal.open_answer(answer, asked)
        assert reply is not None
        assert reply.status == 404
        old, _ = seal.seal_ask(ask, time.time() - 3600)
        misled, _ = seal.seal_ask(Ask(1, *ask_rest(ask)), time.time())
        foreign, _ = PeerSeal(b"another", BETWEEN_CLUSTERS).seal_ask(ask, time.time())
        between_hosts, _ = PeerSeal(SECRET.encode()).seal_ask(ask, time.time())
        for bad in (box, old, misled, foreign, between_hosts, b"", b"\0" * 60_000):
            assert (await post(bad))[0] == 403
        assert (await post(b"\0" * 1_000_000))[0] == 413


async def test_no_offer_of_a_client_makes_a_cluster_passed_over(world: World) -> None:
    """A session that is as long as one may be, which JSON can write shorter and longer."""
    async with client(world.base) as http:
        for _ in range(10):
            _, ready = await offer_to(http, 2, TOKYO)
            await http.delete(ready)
            before = await handed(http, 2)
            owners = []
            began_s = time.monotonic()
            for fill in ('"' + "\U0001f600" * 60_000 + '"', "[" + "1e9," * 60_000 + "1]"):
                body = f'{{"sdp": {json.dumps(CHROMIUM)}, "session": {{"x": {fill}}}}}'
                json_of = {"Content-Type": "application/json", **at(TOKYO)}
                async with http.post(CALLS, data=body.encode(), headers=json_of) as response:
                    assert response.status == 201
                owners.append(owner_of(response.headers["Location"]))
                await http.delete(response.headers["Location"])
            after = await handed(http, 2)
            if time.monotonic() - began_s < HANDOVER_TIMEOUT_S:  # else this machine may be to blame
                break
        assert owners == [2, 1]
        assert after.get("failed") == before.get("failed")
        assert after["refused"] == before.get("refused", 0) + 1


def ask_rest(ask: Ask) -> tuple[str, str, Mapping[str, str], bytes]:
    return ask.method, ask.path, ask.headers, ask.body
