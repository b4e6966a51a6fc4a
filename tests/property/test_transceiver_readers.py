"""Bytes of a peer: the readers of SCTP and DTLS records end, in bounds, whatever comes."""

from __future__ import annotations

import struct
import time

import google_crc32c
from aiortc.rtcsctptransport import parse_packet
from hypothesis import given
from hypothesis import strategies as st

from transceiver.records import MAX_DATAGRAM_BYTES, split_records
from transceiver.sctp_check import is_readable

chunks = st.lists(
    st.builds(
        lambda kind, body, lie: bytes([kind, 0]) + max(0, len(body) + 4 + lie).to_bytes(2) + body,
        st.sampled_from([0, 1, 2, 3, 4, 5, 6, 9, 10, 130, 192, 255]),
        st.one_of(
            st.binary(max_size=60), st.binary(max_size=60).map(lambda body: bytes(len(body)))
        ),
        st.sampled_from([0, 0, 0, 0, 4, -4, 1]),
    ),
    min_size=1,
    max_size=6,
)


@given(chunks)
def test_what_is_readable_is_read_to_its_end(parts: list[bytes]) -> None:
    body = b"".join(part + bytes(-len(part) % 4) for part in parts)
    head = struct.pack("!HHI", 5_000, 5_000, 1)
    packet = head + struct.pack("<I", google_crc32c.value(head + bytes(4) + body)) + body
    if not is_readable(packet):
        return
    started_s = time.thread_time()
    try:
        parse_packet(packet)
    except (ValueError, struct.error):
        pass
    assert time.thread_time() - started_s < 1


@given(st.binary(max_size=4_000))
def test_records_are_cut_without_loss(data: bytes) -> None:
    datagrams = split_records(data)
    assert b"".join(datagrams) == data
    for datagram in datagrams:
        one_record = 13 + int.from_bytes(datagram[11:13]) >= len(datagram)
        assert len(datagram) <= MAX_DATAGRAM_BYTES or one_record
