"""The media engine through its Python seam, over a loopback socket: checks, SRTP, sound, ends."""

from __future__ import annotations

import asyncio
import gc
import itertools
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import pytest

from relay.wire import stun
from relay.wire.spp import HEADER_BYTES as SPP_BYTES
from tests.support.generated import calls_without_gil
from tests.support.media_bench import KEY_BYTES, PWD, RATE, Bench, Handler, loudness, tone, until
from transceiver.media import EngineFullError, MediaConfig, MediaEngine
from transceiver.sockets import open_media


async def test_a_check_is_answered_and_a_stranger_gets_silence(bench: Bench) -> None:
    _, handler, ufrag = bench.open()
    client, stranger = bench.client(), bench.client()
    stranger.check(ufrag, pwd="x" * 24)
    stranger.check("nobody")
    client.check(ufrag)
    await until(lambda: handler.checks == 1)
    await bench.came_round()
    [reply] = client.receive()
    answer = stun.Message.read(reply)
    assert answer.stun_class == 2
    assert answer.verify(PWD.encode())
    assert stranger.receive() == []
    checks = bench.engine.counts()["checks"]
    assert (checks["ok"], checks["wrong_integrity"], checks["unknown_ufrag"]) == (1, 1, 1)


async def test_checks_are_answered_while_python_is_busy(bench: Bench) -> None:
    _, _, ufrag = bench.open()
    client = bench.client()
    await asyncio.sleep(0.1)
    for _ in range(20):
        client.check(ufrag)
        end = time.monotonic() + 0.05
        while time.monotonic() < end:  # busy, with the GIL
            pass
    assert len(client.receive()) >= 19


async def test_dtls_reaches_validated_sessions_only(bench: Bench) -> None:
    client, stranger = bench.client(), bench.client()
    session, handler = await bench.connected(client)
    stranger.send(b"\x16stranger")
    client.send(b"\x16hello")
    await until(lambda: handler.dtls == [b"\x16hello"])
    assert session.send(b"\x16reply")
    await until(lambda: b"\x16reply" in client.receive())
    assert bench.engine.counts()["drops"]["no_member"] == 1


@pytest.mark.parametrize("profile", KEY_BYTES)
async def test_sound_crosses_both_ways_against_libsrtp(bench: Bench, profile: int) -> None:
    client = bench.client(profile)
    session, handler = await bench.connected(client, start_ms=0)
    session.write(1, tone(RATE))
    heard, packets = bytearray(), 0
    silence = bytes([0xFF]) * 160
    loud = bytes([0x20]) * 160
    for i in range(40):
        client.rtp(loud if i % 2 else silence)
        await asyncio.sleep(0.02)
        for datagram in client.receive():
            if 192 <= datagram[1] <= 223:
                client.srtp.rx.unprotect_rtcp(datagram)
            else:
                packet = client.srtp.rx.unprotect(datagram)
                packets += 1
                heard += packet[12:]
    await until(lambda: session.stats()["packets_in"] == 40)
    await until(lambda: session.played_ms(1) >= 600)
    assert packets >= 30
    assert len(heard) == 160 * packets
    assert loudness(bytes(handler.sound)) > 1_000
    stats = session.stats()
    assert stats["receive"]["ok"] == 40
    assert stats["lost_in"] == 0
    assert session.path() == client.key


async def test_forged_and_replayed_media_moves_nothing(bench: Bench) -> None:
    client, attacker = bench.client(), bench.client()
    session, _ = await bench.connected(client)
    attacker.key = client.key
    attacker.rtp(b"\x20" * 160)  # foreign keys, the victim's flow key, another source
    captured = client.srtp.tx.protect(struct.pack("!BBHII", 0x80, 0, 1, 1, 7) + b"\x20" * 160)
    client.send(captured)
    attacker.send(captured)
    await until(lambda: session.stats()["packets_in"] == 1)
    await until(lambda: bench.engine.counts()["drops"]["replayed"] == 1)
    assert bench.engine.counts()["drops"]["not_authentic"] == 1
    session.write(1, tone(RATE))
    await until(lambda: client.receive())
    assert attacker.receive() == []


async def test_a_flush_is_heard_within_a_frame_and_the_clock_stops(bench: Bench) -> None:
    client = bench.client()
    session, _ = await bench.connected(client, start_ms=0)
    session.write(1, tone(10 * RATE))
    await until(lambda: session.played_ms(1) >= 200)
    session.flush()
    at_flush = session.played_ms(1)
    assert session.write(1, tone(160)) == 320  # late sound is swallowed
    await asyncio.sleep(0.2)
    assert session.played_ms(1) <= at_flush + 28
    assert session.queued_ms() == 0
    session.write(2, tone(RATE))
    await until(lambda: session.played_ms(2) > 0)


async def test_echo_returns_packets_without_a_codec(bench: Bench) -> None:
    client = bench.client()
    session, handler = await bench.connected(client, echo=True)
    for i in range(10):
        client.rtp(bytes([i]) * 50)
    await until(lambda: session.stats()["packets_out"] == 10)
    await bench.came_round()
    packets = [client.srtp.rx.unprotect(d) for d in client.receive() if not 192 <= d[1] <= 223]
    assert [packet[12:] for packet in packets] == [bytes([i]) * 50 for i in range(10)]
    assert {packet[8:12] for packet in packets} == {(99).to_bytes(4)}
    assert handler.sound == b""


async def test_a_packet_touches_no_python_object() -> None:
    """While thousands of packets pass, the engine's thread runs no Python, wakes none and allocates nothing."""
    events: list[str] = []

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if threading.current_thread().name == "media":
            events.append(f"{event} {getattr(argument, '__name__', frame.f_code.co_name)}")

    threading.setprofile(profile)
    try:
        bench = Bench()
    finally:
        threading.setprofile(None)
    try:
        client = bench.client()
        session, handler = await bench.connected(client, echo=True)
        client.socket.settimeout(10)
        came = bytearray(2_048)
        payload = bytes([0x20]) * 160

        def exchange(packets: int) -> int:
            for _ in range(packets):
                client.rtp(payload)
                while client.socket.recv_into(came) < SPP_BYTES + 12 + 160:
                    pass  # a report
            return sys.getallocatedblocks()

        exchange(100)
        gc.collect()  # what other tests have left must not be freed in between
        began, wakeups = len(events), bench.engine.counts()["wakeups"]
        blocks = exchange(100)
        # What the test's own loop keeps is a handful of blocks, whatever the number of packets.
        assert abs(exchange(5_000) - blocks) < 50
        assert events[began:] == []
        assert "call _run" in events, "the profile sees the thread"
        # The loop has had no turn: what the engine had told would wait for it.
        assert bench.engine._engine.next_event() is None
        assert bench.engine.counts()["wakeups"] == wakeups
        assert session.stats()["packets_out"] == 5_200
        assert (handler.reads, handler.frames) == (0, [])
    finally:
        bench.close()


def test_the_generated_thread_calls_nothing_but_c(root: Path, tmp_path: Path) -> None:
    """Between giving up the GIL and taking it again there is one statement: the call of vr_engine_run."""
    calls = calls_without_gil(root, "transceiver/_engine.pyx", "vr_engine_run", tmp_path)
    assert calls == ["vr_engine_run"]


@pytest.mark.parametrize("wake_ms", [20, 100])
async def test_python_wakes_once_for_all_sessions_and_reads_once_a_wakeup(wake_ms: int) -> None:
    """Eight sessions whose packets are 5 ms long: neither their number nor that of packets wakes Python."""
    bench = Bench(wake_ms=wake_ms)
    try:
        clients = [bench.client() for _ in range(8)]
        calls = [await bench.connected(client) for client in clients]
        payload = bytes([0x20]) * 40
        began_s, before = time.monotonic(), bench.engine.counts()
        for i in range(240):
            for client in clients:
                client.rtp(payload)
            if i % 4 == 3:
                await asyncio.sleep(began_s + 0.005 * i - time.monotonic())
        await until(lambda: all(len(handler.sound) >= 2 * RATE for _, handler in calls))
        await until(lambda: bench.engine.counts()["rtp_in"] - before["rtp_in"] == 8 * 240)
        counts = bench.engine.counts()
        elapsed_ms = 1_000 * (time.monotonic() - began_s)
        most = elapsed_ms / wake_ms + 2
        assert counts["wakeups"] - before["wakeups"] <= most
        for _, handler in calls:
            # A late engine catches up by 100 ms at most, which may be a read more for each wake-up of it.
            assert handler.reads <= most + 100 / wake_ms
            assert handler.reads >= 3
    finally:
        bench.close()


async def test_frames_go_to_the_handler_and_back_as_they_are(bench: Bench) -> None:
    client = bench.client()
    session, handler = await bench.connected(client, frames=True, start_ms=0)
    client.sequence, client.timestamp = 65_530, 2**32 - 800  # both wrap
    said = [bytes([i]) * 160 for i in range(1, 21)]
    back: list[bytes] = []
    for payload in said:
        if payload[0] == 10:
            client.protected(payload)  # lost
            continue
        client.rtp(payload)
        await asyncio.sleep(0.02)
    await until(lambda: len(handler.frames) == 19)
    assert [frame.payload for frame in handler.frames] == [s for s in said if s[0] != 10]
    assert [frame.sequence for frame in handler.frames] == [i for i in range(20) if i != 9]
    assert all(frame.timestamp == 160 * frame.sequence for frame in handler.frames)
    assert {frame.duration for frame in handler.frames} == {160}
    assert bytes(handler.sound) == b""
    written_s = time.monotonic()
    assert session.write_frames([*said[:3], b"", *said[3:5]]) == 6
    assert session.queued_ms() > 60 - 1_000 * (time.monotonic() - written_s)

    def all_back() -> bool:
        back.extend(packet for packet in client.opened())
        return len(back) == 5

    await until(all_back)
    assert [packet[12:] for packet in back] == said[:5]
    stamps = [struct.unpack_from("!I", packet, 4)[0] for packet in back]
    assert [(b - a) % 2**32 for a, b in itertools.pairwise(stamps)] == [
        160,
        160,
        320,
        160,
    ]
    session.write_frames(said * 10)
    session.flush()
    await asyncio.sleep(0.1)
    assert len(client.opened()) <= 2
    assert session.queued_ms() == 0
    with pytest.raises(ValueError, match="frame of 10 ms"):
        session.write_frames([bytes(80)])
    with pytest.raises(ValueError, match="not both"):
        bench.open(frames=True, echo=True)
    assert session.write(1, tone(160)) == 0


async def test_a_frame_that_no_packet_takes_is_refused(bench: Bench) -> None:
    """120 ms of Opus at 128 kbit/s are 1,920 bytes; csrc/media/session.h has the most."""
    client = bench.client()
    opus = {"codec": "opus", "payload_types": {"opus": 111}, "rate_hz": 48_000}
    session, _ = await bench.connected(client, frames=True, start_ms=0, **opus)
    # RFC 6716 3.2.5: three equal frames of 20 ms, without padding and with a byte of it
    longest, longer = b"\x6b\x43\0" + bytes(1_461), b"\x6b\x43\1" + bytes(1_462)
    with pytest.raises(ValueError, match="1465 bytes is over 1464"):
        session.write_frames([longest, longer])
    back: list[bytes] = []

    def came() -> bool:
        back.extend(client.opened())
        return bool(back)

    await until(came)
    assert [packet[12:] for packet in back] == [longest]
    assert session.queued_ms() == 0
    assert session.stats()["echo_dropped"] == 0


async def test_more_frames_than_there_is_room_for_are_refused(bench: Bench) -> None:
    client = bench.client()
    session, _ = await bench.connected(client, frames=True)
    taken = session.write_frames([bytes(160)] * 3_000)
    assert 500 < taken < 3_000
    assert session.write_frames([bytes(160)] * 3) <= 2  # but for those that have left


async def test_a_telephone_event_is_a_digit(bench: Bench) -> None:
    client = bench.client()
    _, handler = await bench.connected(client)
    for _ in range(3):
        header = struct.pack("!BBHII", 0x80, 101, client.sequence, 5_000, 7)
        client.sequence += 1
        client.send(client.srtp.tx.protect(header + b"\x0b\x0a\x00\xa0"))
    await until(lambda: handler.digits == "#")


async def test_places_are_given_back(bench: Bench) -> None:
    for _ in range(5):
        opened = [bench.open()[0] for _ in range(8)]
        with pytest.raises(EngineFullError):
            bench.open()
        for session in opened:
            bench.engine.close(session)
            assert session.write(1, b"\0\0") == 0
            assert session.read() == b""
        await until(lambda: bench.engine.counts()["sessions"] == 0)
        await until(lambda: len(bench.engine._free) == 8)


async def test_a_call_ends_although_the_engine_has_no_room_for_commands() -> None:
    with open_media("127.0.0.1", 0) as media:
        engine = MediaEngine(
            media, max_sessions=1, allowed_relays=[], direct=True
        )  # not started: nothing is fetched
        config = MediaConfig("pcmu", {"pcmu": 0}, ssrc=1, cname="c", rate_hz=RATE)
        session = engine.open("u" * 28, PWD, "them", config, Handler())
        while session.send(bytes(1_400)):
            pass
        engine.close(session)
        engine.start(asyncio.get_running_loop(), yield_cpu=False)
        try:
            await until(lambda: engine.counts()["sessions"] == 0)
            await until(lambda: len(engine._free) == 1)
        finally:
            engine.stop()


async def test_foreign_relays_and_bare_packets_are_dropped(bench: Bench) -> None:
    closed = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    closed.bind(("127.0.0.1", 0))
    closed.sendto(b"\x80bare", bench.socket.getsockname())
    await until(lambda: bench.engine.counts()["drops"]["not_wrapped"] == 1)
    client = bench.client()
    client.send(b"")
    client.send(b"\x50noise")
    await until(lambda: bench.engine.counts()["drops"]["unknown_protocol"] == 1)
    assert bench.engine.counts()["drops"]["empty"] == 1
    closed.close()


def test_bad_arguments_are_told() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.bind(("127.0.0.1", 0))
        with pytest.raises(ValueError, match="max_sessions"):
            MediaEngine(opened, max_sessions=0, allowed_relays=[], direct=False)
        engine = MediaEngine(opened, max_sessions=1, allowed_relays=[], direct=False)
        config = MediaConfig("opus", {"opus": 111}, 1, "x", rate_hz=44_100)
        with pytest.raises(ValueError, match="44100"):
            engine.open("a", "b", "c", config, Handler())
