"""DTLS and SRTP of one call, both ends in memory: handshakes, losses, refusals, ends."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import pytest
from aiortc.rtcdtlstransport import certificate_digest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from OpenSSL import SSL

from tests.support.dtls_pair import CLIENT_SIDE, SERVER_SIDE, Pair, connected, fingerprint
from tests.support.rtp import RtpPacket, write_rtp
from transceiver.dtls import (
    EARLY_RESEND_S,
    HANDSHAKE_DEADLINE_S,
    Dtls,
    Identity,
    Phase,
)
from transceiver.records import MAX_DATAGRAM_BYTES, split_records

PROFILES = {
    "AES128_CM_SHA1_80": b"SRTP_AES128_CM_SHA1_80",
    "AEAD_AES_128_GCM": b"SRTP_AEAD_AES_128_GCM",
    "AEAD_AES_256_GCM": b"SRTP_AEAD_AES_256_GCM",
}
RTP = write_rtp(RtpPacket(111, False, 1, 2, 3, b"opus"))


# Handshake


def test_the_client_hello_is_one_small_datagram() -> None:
    sent: list[bytes] = []
    client = Dtls(CLIENT_SIDE, "client", [fingerprint(SERVER_SIDE)], sent.append)
    client.begin(0.0)
    assert len(sent) == 1
    assert len(sent[0]) < 300
    assert sent[0][0] == 22
    assert sent[0][13] == 1, "a handshake record with a ClientHello"


def test_a_handshake_connects_and_no_datagram_is_too_large() -> None:
    assert max(connected().sizes) <= MAX_DATAGRAM_BYTES


def losing(pair: Pair, times: int, is_hit: Callable[[str, bytes], bool]) -> list[int]:
    losses: list[int] = []

    def lose(to: str, datagram: bytes) -> bool:
        if is_hit(to, datagram) and len(losses) < times:
            losses.append(1)
            return True
        return False

    pair.lost = lose
    return losses


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(
    ("to", "kind"), [("server", 1), ("client", 2), ("server", 11)],
    ids=["ClientHello", "ServerHello", "Finished"],
)  # fmt: skip
def test_c04_a_lost_flight_is_sent_again(to: str, kind: int, times: int) -> None:
    pair = Pair()
    losses = losing(
        pair, times, lambda towards, datagram: towards == to and datagram[13:14] == bytes([kind])
    )
    pair.begin()
    pair.pass_time(9.5)
    assert len(losses) == times
    assert pair.phases == (Phase.CONNECTED, Phase.CONNECTED)
    assert pair.now_s <= 1.2


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_c04_the_lost_last_flight_of_the_server_is_asked_for_again(times: int) -> None:
    pair = Pair()
    losses = losing(
        pair, times, lambda to, datagram: to == "client" and b"\x14\xfe\xfd" in datagram
    )
    pair.begin()
    assert pair.phases == (Phase.HANDSHAKING, Phase.CONNECTED)
    pair.pass_time(9.5, really=True)
    assert len(losses) == times
    assert pair.phases == (Phase.CONNECTED, Phase.CONNECTED)


def test_an_unanswered_client_hello_is_repeated_early_and_then_given_up() -> None:
    sent: list[tuple[float, bytes]] = []
    now_s = 0.0
    client = Dtls(
        CLIENT_SIDE,
        "client",
        [fingerprint(SERVER_SIDE)],
        lambda datagram: sent.append((now_s, datagram)),
    )
    client.begin(now_s)
    while client.phase is Phase.HANDSHAKING:
        now_s += 0.05
        client.poll(now_s)
    assert 0.1 <= sent[1][0] <= 0.2
    assert sent[1][1] == sent[0][1]
    assert len(sent) <= 8
    assert now_s == pytest.approx(HANDSHAKE_DEADLINE_S, abs=0.1)
    assert (client.phase, client.failure) == (Phase.FAILED, "handshake deadline")


def test_the_resend_clock_starts_anew_with_each_flight() -> None:
    pair = Pair()
    pair.lost = lambda to, datagram: to == "client"
    pair.begin()
    pair.pass_time(EARLY_RESEND_S * 3)
    before = len(pair.sizes)
    pair.lost = lambda to, datagram: False
    pair.pass_time(1.5)
    assert pair.phases == (Phase.CONNECTED, Phase.CONNECTED)
    assert len(pair.sizes) - before < 12


def test_c08_a_wrong_fingerprint_fails() -> None:
    pair = Pair(expected=[fingerprint(CLIENT_SIDE)])
    pair.begin()
    assert (pair.client.phase, pair.client.failure) == (Phase.FAILED, "fingerprint mismatch")
    assert pair.client.unprotect(RTP) is None
    assert pair.client.protect(RTP) is None


def test_c08_one_right_fingerprint_of_two_is_enough() -> None:
    pair = Pair(expected=[fingerprint(CLIENT_SIDE), fingerprint(SERVER_SIDE)])
    pair.begin()
    assert pair.client.phase is Phase.CONNECTED


def rsa_identity() -> Identity:
    """RSA-4096 under two intermediates: several kB of certificates."""
    key = rsa.generate_private_key(public_exponent=65_537, key_size=4_096)
    chain = [_certificate(key, name) for name in ("leaf", "first", "second")]
    context = SSL.Context(SSL.DTLS_METHOD)
    context.set_verify(SSL.VERIFY_PEER, lambda *_: True)
    context.use_certificate(chain[0])
    context.use_privatekey(key)
    for certificate in chain[1:]:
        context.add_extra_chain_cert(certificate)
    context.set_options(SSL.OP_NO_QUERY_MTU)
    context.set_tlsext_use_srtp(PROFILES["AEAD_AES_128_GCM"])
    digest = certificate_digest(chain[0], "sha-256")
    return Identity(CLIENT_SIDE.certificate, context, digest)


def _certificate(key: rsa.RSAPrivateKey, name: str) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name * 8)])
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )


@pytest.mark.parametrize("role", ["client", "server"])
def test_c07_a_big_rsa_certificate_of_the_client_is_taken(role: str) -> None:
    rsa_peer, ours_sizes = rsa_identity(), []
    ends: dict[str, Dtls] = {}
    queue: list[tuple[str, bytes]] = []

    def send_as(name: str) -> Callable[[bytes], None]:
        def send(datagram: bytes) -> None:
            if name == "ours":
                ours_sizes.append(len(datagram))
            queue.append((name, datagram))

        return send

    ours_role = "server" if role == "client" else "client"
    ends["ours"] = Dtls(SERVER_SIDE, ours_role, [fingerprint(rsa_peer)], send_as("ours"))
    ends["peer"] = Dtls(rsa_peer, role, [fingerprint(SERVER_SIDE)], send_as("peer"))
    for end in sorted(ends.values(), key=lambda end: end._role, reverse=True):
        end.begin(0.0)
    while queue:
        sender, datagram = queue.pop(0)
        ends["peer" if sender == "ours" else "ours"].receive(datagram, 0.0)
    assert [end.phase for end in ends.values()] == [Phase.CONNECTED] * 2
    assert max(ours_sizes) <= MAX_DATAGRAM_BYTES


def test_c01_a_client_hello_in_two_fragments_is_joined() -> None:
    """As browsers with a post-quantum key share send it (RFC 6347 4.2.3)."""
    pair = Pair()
    pair.server.begin(0.0)
    hello: list[bytes] = []
    pair.client._send = hello.append
    pair.client.begin(0.0)
    pair.client._send = pair._to("server")
    header, body = hello[0][13:25], hello[0][25:]
    # Record 9 leaves 1 to 8 to the client, which does not know of the second record.
    for number, offset, part in [(0, 0, body[:70]), (9, 70, body[70:])]:
        fragment = header[:6] + offset.to_bytes(3) + len(part).to_bytes(3) + part
        record = hello[0][:5] + number.to_bytes(6) + len(fragment).to_bytes(2) + fragment
        pair.server.receive(record, 0.0)
    pair.deliver()
    assert pair.phases == (Phase.CONNECTED, Phase.CONNECTED)


def peer_with_profiles(profiles: bytes | None) -> Identity:
    peer = Identity.generate()
    context = SSL.Context(SSL.DTLS_METHOD)
    context.set_verify(SSL.VERIFY_PEER, lambda *_: True)
    context.use_certificate(peer.certificate._cert)
    context.use_privatekey(peer.certificate._key)
    if profiles is not None:
        context.set_tlsext_use_srtp(profiles)
    return Identity(peer.certificate, context, peer.fingerprint_sha256)


@pytest.mark.parametrize("name", PROFILES)
def test_c10_each_profile_of_ours_carries_media_both_ways(name: str) -> None:
    pair = Pair(server_identity=peer_with_profiles(PROFILES[name]))
    pair.begin()
    assert pair.phases == (Phase.CONNECTED, Phase.CONNECTED)
    for here, there in ((pair.client, pair.server), (pair.server, pair.client)):
        protected = here.protect(RTP)
        assert protected is not None
        assert there.unprotect(protected) == RTP
        assert there.unprotect(protected) is None, "a replay"


@pytest.mark.parametrize("profiles", [b"SRTP_AES128_CM_SHA1_32", None], ids=["sha1_32", "none"])
def test_c10_other_profiles_are_refused_cleanly(profiles: bytes | None) -> None:
    pair = Pair(server_identity=peer_with_profiles(profiles))
    pair.begin()
    assert pair.client.phase is Phase.FAILED
    assert pair.client.failure == "no common SRTP profile"
    pair.client.close()


# Hostile datagrams


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_b20_foreign_datagrams_change_nothing(when: str) -> None:
    hello: list[bytes] = []
    Dtls(CLIENT_SIDE, "client", [fingerprint(SERVER_SIDE)], hello.append).begin(0.0)
    foreign = [
        *hello,
        b"\x16" + bytes(60),
        b"\x14\xfe\xfd" + bytes(20),
        b"\x17\xfe\xfd\0\1" + bytes(6) + b"\xff\xff" + bytes(30),
        b"\x3f",
        bytes([20]) * 1_500,
    ]
    pair = Pair()
    if when == "before":
        assert not any(pair.client.receive(datagram, 0.0) for datagram in foreign)
    if when == "during":
        pair.server.begin(0.0)
        pair.client.begin(0.0)
        for datagram in foreign[1:]:
            pair.server.receive(datagram, 0.0)
        pair.deliver()
        pair.pass_time(3)
    else:
        pair.begin()
    if when == "after":
        for datagram in foreign:
            assert not pair.server.receive(datagram, 0.0)
            assert not pair.client.receive(datagram, 0.0)
    assert pair.phases == (Phase.CONNECTED, Phase.CONNECTED)


# The end


def test_close_notify_is_heard_once() -> None:
    pair = connected()
    pair.client.close()
    pair.client.close()
    pair.deliver()
    assert pair.phases == (Phase.CLOSED, Phase.CLOSED)
    pair.server.close()
    assert pair.server.protect(RTP) is None


@pytest.mark.parametrize("begin", [False, True])
def test_close_is_possible_at_any_time(begin: bool) -> None:
    client = Dtls(CLIENT_SIDE, "client", [fingerprint(SERVER_SIDE)], lambda datagram: None)
    if begin:
        client.begin(0.0)
    client.close()
    client.close()
    client.poll(100.0)
    assert client.receive(b"\x16" * 60, 0.0) is False
    assert client.phase in (Phase.NEW, Phase.CLOSED)


# Records


def test_records_are_cut_at_their_borders() -> None:
    def record(size: int) -> bytes:
        return b"\x16\xfe\xfd" + bytes(8) + size.to_bytes(2) + bytes(size)

    flight = record(500) + record(600) + record(100) + record(1_100)
    assert [len(datagram) for datagram in split_records(flight)] == [513 + 613, 113, 1_113]
    assert b"".join(split_records(flight)) == flight
    assert split_records(b"") == []
    assert split_records(b"\x16short") == [b"\x16short"]
