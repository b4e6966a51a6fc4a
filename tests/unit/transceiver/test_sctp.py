"""SCTP and the data channel of one call over DTLS, both ends in memory: messages, hostile chunks, ends."""

from __future__ import annotations

import asyncio
import struct
import time

import google_crc32c
import pytest
from aiortc.rtcdatachannel import RTCDataChannel, RTCDataChannelParameters

from tests.support.dtls_pair import Pair, connected
from transceiver.dtls import (
    Dtls,
    Sctp,
)
from transceiver.records import MAX_DATAGRAM_BYTES


class Ears:
    """One end of an association and what it heard."""

    def __init__(self, dtls: Dtls) -> None:
        self.opened = 0
        self.heard: list[str | bytes] = []
        self.ended: list[str] = []
        self.sctp = Sctp(
            dtls, on_channel=self._open, on_message=self.heard.append, on_end=self.ended.append
        )

    def _open(self) -> None:
        self.opened += 1


async def associated() -> tuple[Pair, Ears, Ears]:
    pair = connected()
    here, there = Ears(pair.client), Ears(pair.server)
    here.sctp.begin(5_000, 65_536)
    there.sctp.begin(5_000, 65_536)
    pair.deliver()
    assert here.sctp.established
    assert there.sctp.established
    return pair, here, there


async def test_a_negotiated_channel_carries_text_both_ways() -> None:
    pair, here, there = await associated()
    here.sctp.negotiate_channel()
    there.sctp.negotiate_channel()
    assert (here.opened, there.opened) == (1, 1)
    assert here.sctp.send_text("hello")
    await settle(pair)
    assert there.heard == ["hello"]


async def test_a_message_on_stream_0_reveals_a_negotiated_channel() -> None:
    pair, here, there = await associated()
    here.sctp.negotiate_channel()
    assert not there.sctp.channel_open
    here.sctp.send_text("hello")
    await settle(pair)
    assert there.opened == 1
    assert there.heard == ["hello"]


async def test_a_channel_that_opens_where_a_negotiated_one_was_guessed_is_acknowledged() -> None:
    """Its opener, the client of DTLS, may wait for the word before it sends anything."""
    pair, here, there = await associated()
    there.sctp.negotiate_channel()
    assert there.sctp.send_text("early")
    heard: list[str] = []
    channel = RTCDataChannel(here.sctp, RTCDataChannelParameters(label="oai-events"))
    channel.on("message", heard.append)
    await settle(pair)
    assert (channel.id, channel.readyState) == (0, "open")
    assert there.sctp.send_text("late")
    channel.send("hello")
    await settle(pair)
    assert (heard, there.heard, there.opened) == (["early", "late"], ["hello"], 1)


async def test_large_messages_arrive_in_small_datagrams() -> None:
    pair, here, there = await associated()
    here.sctp.negotiate_channel()
    pair.sizes.clear()
    here.sctp.send_text("x" * 60_000)
    await settle(pair)
    assert there.heard == ["x" * 60_000]
    assert max(pair.sizes) <= MAX_DATAGRAM_BYTES


async def test_an_abort_is_heard() -> None:
    pair, here, there = await associated()
    here.sctp.close()
    here.sctp.close()
    pair.deliver()
    assert there.ended == ["sctp_abort"]
    assert here.ended == []


HOSTILE_CHUNKS = {
    "parameter of length 0": bytes([4, 0, 0, 8]) + bytes(4),
    "cause of length 0": bytes([9, 0, 0, 8]) + bytes(4),
    "INIT parameter of length 0": bytes([1, 0, 0, 24]) + bytes(20),
    "RECONFIG parameter of length 0": bytes([130, 0, 0, 8]) + bytes(4),
    "gap blocks over everything": bytes([3, 0, *(16 + 4 * 200).to_bytes(2)])
    + bytes(8)
    + (200).to_bytes(2)
    + bytes(2)
    + b"\0\1\xff\xff" * 200,
    "gap block backwards": bytes([3, 0, 0, 20]) + bytes(8) + b"\0\1\0\0" + b"\0\5\0\1",
    "SACK with more blocks than bytes": bytes([3, 0, 0, 16]) + bytes(8) + b"\xff\xff\xff\xff",
    "chunk of length 0": bytes(4),
    "DATA without data": bytes([0, 3, 0, 4]),
    "two INITs": (bytes([1, 0, 0, 20]) + bytes(16)) * 2,
}


@pytest.mark.parametrize("chunk", HOSTILE_CHUNKS.values(), ids=HOSTILE_CHUNKS)
async def test_chunks_that_no_honest_peer_sends_cost_nothing(chunk: bytes) -> None:
    pair, here, there = await associated()
    here.sctp.negotiate_channel()
    started_s = time.thread_time()
    for _ in range(20):
        await send_chunk(here, chunk)
    pair.deliver()
    assert time.thread_time() - started_s < 0.5
    here.sctp.send_text("still here")
    await settle(pair)
    assert there.ended == []
    assert there.heard == ["still here"]


async def test_every_kind_of_chunk_with_odd_bodies_ends_nothing() -> None:
    pair, here, there = await associated()
    ends = (6, 7, 8, 14)  # ABORT and the SHUTDOWNs are meant
    for kind in range(256):
        for body in (b"", bytes(4), b"\xff" * 40):
            if kind not in ends:
                await send_chunk(here, bytes([kind, 3]) + (4 + len(body)).to_bytes(2) + body)
    pair.deliver()
    assert there.ended == []


@pytest.mark.parametrize(
    ("flags", "bytes_each"), [(3, 1_000), (2, 1)], ids=["out of order", "crumbs"]
)
async def test_a_peer_that_ignores_the_window_is_cut_off(flags: int, bytes_each: int) -> None:
    pair, here, there = await associated()
    first = here.sctp._local_tsn + (1 if flags == 3 else 0)  # a hole that is never filled
    for index in range(2_000):
        tsn = (first + index & 0xFFFFFFFF).to_bytes(4)
        body = tsn + bytes(4) + (51).to_bytes(4) + bytes(bytes_each)
        first_only = flags if index == 0 or flags == 3 else 0
        await send_chunk(here, bytes([0, first_only]) + (4 + len(body)).to_bytes(2) + body)
        pair.deliver()
        if there.ended:
            break
    assert there.ended == ["sctp_overrun"]
    assert index < 1_100


async def test_a_peer_that_opens_ever_more_channels_is_cut_off() -> None:
    pair, here, there = await associated()
    for _ in range(40):
        RTCDataChannel(here.sctp, RTCDataChannelParameters(label="x"))
    await settle(pair)
    assert there.ended == ["sctp_overrun"]


async def send_chunk(ears: Ears, chunk: bytes) -> None:
    head = struct.pack("!HHI", 5_000, 5_000, ears.sctp._remote_verification_tag)
    chunk += bytes(-len(chunk) % 4)
    checksum = google_crc32c.value(head + bytes(4) + chunk)
    await ears.sctp.transport._send_data(head + struct.pack("<I", checksum) + chunk)


async def settle(pair: Pair) -> None:
    """Lets aiortc's scheduled sends run, and delivers until nothing moves."""
    for _ in range(200):
        await asyncio.sleep(0)
        pair.deliver()
