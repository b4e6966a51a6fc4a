"""RTP and RTCP: bounds, reports against hand-made numbers, and one stream out of many in."""

from __future__ import annotations

import pytest
from aiortc.rtp import RtcpPacket, RtcpRrPacket, RtcpSdesPacket, RtcpSrPacket
from aiortc.rtp import RtpPacket as StockPacket

from transceiver.rtp import (
    NTP_EPOCH_S,
    AudioFrame,
    Outgoing,
    Received,
    ReceptionReport,
    RtpPacket,
    SenderReport,
    Sent,
    is_rtcp,
    read_rtcp,
    read_rtp,
    write_rtp,
)

WALL_S = 1_700_000_000.25


def packet(sequence: int, timestamp: int = 0, ssrc: int = 7, payload: bytes = b"x") -> RtpPacket:
    return RtpPacket(111, False, sequence & 0xFFFF, timestamp & 0xFFFFFFFF, ssrc, payload)


# Packets


def test_what_is_written_is_read_by_us_and_by_others() -> None:
    written = RtpPacket(111, True, 65_535, 2**32 - 1, 2**32 - 1, b"payload")
    assert read_rtp(write_rtp(written)) == written
    stock = StockPacket.parse(write_rtp(written))
    assert (stock.payload_type, stock.marker, stock.sequence_number) == (111, 1, 65_535)
    assert (stock.timestamp, stock.ssrc, stock.payload) == (2**32 - 1, 2**32 - 1, b"payload")


HEADER = write_rtp(packet(1, 2, 3, b""))


@pytest.mark.parametrize(
    ("datagram", "payload"),
    [
        (HEADER, b""),
        (bytes([0x82]) + HEADER[1:] + bytes(8) + b"pay", b"pay"),
        (bytes([0x90]) + HEADER[1:] + b"\xbe\xde\0\1" + bytes(4) + b"pay", b"pay"),
        (bytes([0xA0]) + HEADER[1:] + b"pay" + b"\0\0\3", b"pay"),
        (bytes([0xA0]) + HEADER[1:] + b"\1", b""),
    ],
    ids=["bare", "csrcs", "extension", "padding", "padding only"],
)
def test_optional_parts_are_skipped(datagram: bytes, payload: bytes) -> None:
    read = read_rtp(datagram)
    assert read is not None
    assert read.payload == payload


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        HEADER[:11],
        bytes([0x40]) + HEADER[1:],
        bytes([0x8F]) + HEADER[1:],
        bytes([0x90]) + HEADER[1:] + b"\xbe\xde",
        bytes([0x90]) + HEADER[1:] + b"\xbe\xde\xff\xff",
        bytes([0xA0]) + HEADER[1:] + b"\0",
        bytes([0xA0]) + HEADER[1:] + b"\2",
    ],
    ids=["empty", "short", "version", "csrcs", "no ext", "ext overrun", "padding 0", "padding"],
)
def test_malformed_packets_are_none(datagram: bytes) -> None:
    assert read_rtp(datagram) is None


def test_rtcp_is_told_by_its_type() -> None:
    assert [is_rtcp(bytes([0x80, kind])) for kind in (191, 192, 200, 207, 223, 224)] == [
        False, True, True, True, True, False,
    ]  # fmt: skip
    assert not is_rtcp(b"\x80")


# Reports


def test_loss_jitter_and_sequence_go_into_a_report_block() -> None:
    received = Received(packet(65_534), 48_000)
    now_s = 10.0
    for index, sequence in enumerate((65_534, 65_535, 0, 2)):
        received.add(packet(sequence, 960 * index), now_s + 0.02 * index)
    sent = Sent(99, "cname", 48_000)
    report, sdes = RtcpPacket.parse(sent.write_report(received, 11.0, WALL_S))
    assert isinstance(report, RtcpRrPacket)
    assert isinstance(sdes, RtcpSdesPacket)
    assert report.ssrc == 99
    block = report.reports[0]
    assert (block.ssrc, block.packets_lost, block.fraction_lost) == (7, 1, 256 // 5)
    assert block.highest_sequence == 0x1_0002
    assert block.jitter <= 1
    assert received.loss == pytest.approx(0.2)
    assert sdes.chunks[0].items == [(1, b"cname")]
    again = RtcpPacket.parse(sent.write_report(received, 12.0, WALL_S))[0]
    assert isinstance(again, RtcpRrPacket)
    assert again.reports[0].fraction_lost == 0, "of the new interval"


def test_late_packets_fill_their_hole_and_a_restart_starts_anew() -> None:
    received = Received(packet(10), 48_000)
    for sequence in (10, 12, 11, 13):
        received.add(packet(sequence), 0.0)
    assert (received.expected, received.packets, received.loss) == (4, 4, 0.0)
    received.add(packet(40_000), 0.0)
    assert (received.expected, received.packets) == (1, 1)


def test_jitter_is_that_of_rfc_3550() -> None:
    received = Received(packet(0), 48_000)
    jitter = 0.0
    arrivals_ms = [0, 25, 40, 65, 80]
    for index, arrival_ms in enumerate(arrivals_ms):
        received.add(packet(index, 960 * index), arrival_ms / 1_000)
        if index:
            spacing = abs(arrival_ms - arrivals_ms[index - 1] - 20)
            jitter += (spacing - jitter) / 16
    assert received.jitter_ms == pytest.approx(jitter)


def test_a_sender_report_carries_the_stream_and_the_time() -> None:
    sent = Sent(99, "cname", 48_000)
    sent.add(packet(1, 5_000, 99, b"12345"), 10.0)
    report = RtcpPacket.parse(sent.write_report(None, 10.5, WALL_S))[0]
    assert isinstance(report, RtcpSrPacket)
    info = report.sender_info
    assert (info.packet_count, info.octet_count) == (1, 5)
    assert info.rtp_timestamp == 5_000 + 24_000
    assert info.ntp_timestamp / 2**32 == pytest.approx(WALL_S + NTP_EPOCH_S, abs=1e-3)


@pytest.mark.parametrize("rtt_ms", [0, 1, 80, 3_000])
def test_the_round_trip_is_what_is_left_of_the_time(rtt_ms: int) -> None:
    """We report at WALL_S; the peer holds it 500 ms; its report is back after rtt more."""
    ours = Sent(99, "us", 48_000)
    ours.add(packet(1, 0, 99), 0.0)
    (our_report,) = [
        item
        for item in read_rtcp(ours.write_report(None, 0.0, WALL_S))
        if isinstance(item, SenderReport)
    ]
    theirs = Received(packet(1, 0, 99), 48_000)
    theirs.add(packet(1, 0, 99), 0.0)
    theirs.note_sender_report(our_report.ntp_middle, 100.0)
    their_report = Sent(7, "they", 48_000).write_report(theirs, 100.5, WALL_S)
    (block,) = [item for item in read_rtcp(their_report) if isinstance(item, ReceptionReport)]
    ours.note_reception(block, WALL_S + 0.5 + rtt_ms / 1_000)
    assert ours.rtt_ms == pytest.approx(rtt_ms, abs=0.1)


def test_a_round_trip_from_the_future_is_not_believed() -> None:
    ours = Sent(99, "us", 48_000)
    ours.note_reception(ReceptionReport(99, 0.25, 0, 0xFFFFFFFF, 0xFFFFFFFF), WALL_S)
    assert (ours.rtt_ms, ours.loss) == (None, 0.25)


@pytest.mark.parametrize("length", range(0, 60, 3))
def test_a_cut_compound_packet_yields_what_is_whole(length: int) -> None:
    received = Received(packet(1), 48_000)
    whole = Sent(99, "c", 48_000).write_report(received, 0.0, WALL_S)
    assert len(list(read_rtcp(whole[:length]))) == (1 if length >= 32 else 0)


def test_a_report_that_counts_more_blocks_than_it_has_is_harmless() -> None:
    assert list(read_rtcp(bytes([0x9F, 201, 0, 1]) + bytes(4))) == []
    assert list(read_rtcp(bytes([0x9F, 200, 0, 1]) + bytes(4))) == []
    assert list(read_rtcp(bytes([0x9F, 201, 0xFF, 0xFF]) + bytes(4))) == []


# One outgoing stream


def frame(sequence: int, timestamp: int, stream: int = 1) -> AudioFrame:
    return AudioFrame(b"x", timestamp & 0xFFFFFFFF, sequence & 0xFFFF, False, stream)


def test_gaps_and_reordering_are_kept() -> None:
    outgoing = Outgoing(99, 96, 48_000)
    out = [outgoing.packet(frame(65_533 + i, 960 * i), 0.02 * i) for i in (0, 1, 3, 2, 5)]
    first = out[0]
    steps = [packet.sequence - first.sequence & 0xFFFF for packet in out]
    assert steps == [0, 1, 3, 2, 5]
    assert [packet.timestamp - first.timestamp & 0xFFFFFFFF for packet in out] == [
        960 * step for step in steps
    ]
    assert {packet.ssrc for packet in out} == {99}
    assert {packet.payload_type for packet in out} == {96}


@pytest.mark.parametrize(("jump", "stream"), [(20_000, 1), (-20_000, 1), (0, 2), (-20_000, 2)])
def test_c12_another_origin_continues_the_stream(jump: int, stream: int) -> None:
    outgoing = Outgoing(99, 96, 48_000)
    last = outgoing.packet(frame(30_000, 0), 0.0)
    first = outgoing.packet(frame(30_001 + jump, 123_456, stream), 1.0)
    assert first.sequence == last.sequence + 1 & 0xFFFF
    assert first.timestamp - last.timestamp & 0xFFFFFFFF == 48_000, "a second has passed"
    second = outgoing.packet(frame(30_002 + jump, 123_456 + 960, stream), 1.02)
    assert second.sequence - first.sequence & 0xFFFF == 1
    assert second.timestamp - first.timestamp & 0xFFFFFFFF == 960
