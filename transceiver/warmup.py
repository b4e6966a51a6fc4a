"""What every call does, done once by a process before it serves, so that its first call answers like others.

Compiled patterns, OpenSSL's algorithms, the interpreter's own caches and the pages that a fork shares
are made or copied here. It costs some 10 ms of CPU time.
"""

from __future__ import annotations

import ipaddress
from collections import deque
from pathlib import Path

import aiohttp

from .answer import Candidate, Local, write_answer
from .callid import KEY_BYTES, CallIds, Owner
from .dtls import Dtls, Identity
from .offer import Fingerprint, read_offer

_OFFER = """v=0
o=- 1 1 IN IP4 127.0.0.1
s=-
t=0 0
a=group:BUNDLE 0 1
m=audio 9 UDP/TLS/RTP/SAVPF 111 0 110
c=IN IP4 0.0.0.0
a=ice-ufrag:warm
a=ice-pwd:warmwarmwarmwarmwarmwarm
a=fingerprint:sha-256 {fingerprint}
a=setup:actpass
a=mid:0
a=sendrecv
a=rtcp-mux
a=rtpmap:111 opus/48000/2
a=fmtp:111 minptime=10;useinbandfec=1
a=rtpmap:0 PCMU/8000
a=rtpmap:110 telephone-event/48000
m=application 9 UDP/DTLS/SCTP webrtc-datachannel
c=IN IP4 0.0.0.0
a=ice-ufrag:warm
a=ice-pwd:warmwarmwarmwarmwarmwarm
a=fingerprint:sha-256 {fingerprint}
a=setup:actpass
a=mid:1
a=sctp-port:5000
a=max-message-size:262144
"""


async def warm_up(identity: Identity, own_http: Path) -> None:
    """Answers an offer and shakes hands with itself, in memory, and asks its own HTTP listener."""
    _answer(identity)
    _shake_hands(identity)
    connector = aiohttp.UnixConnector(str(own_http))
    async with (
        aiohttp.ClientSession(connector=connector) as http,
        http.options("http://self/v1/realtime/calls") as response,
    ):
        await response.read()


def _answer(identity: Identity) -> None:
    offer = read_offer(_OFFER.format(fingerprint=identity.fingerprint_sha256).replace("\n", "\r\n"))
    CallIds(bytes(KEY_BYTES)).draw(Owner(0, 0))
    candidate = Candidate(ipaddress.IPv4Address("127.0.0.1"), 9)
    local = Local("warm" * 7, "warm" * 6, identity.fingerprint_sha256, (candidate,), 1, "warm")
    write_answer(offer, local)


def _shake_hands(identity: Identity) -> None:
    sent: deque[tuple[str, bytes]] = deque()
    known = [Fingerprint("sha-256", identity.fingerprint_sha256)]
    client = Dtls(identity, "client", known, lambda datagram: sent.append(("server", datagram)))
    server = Dtls(identity, "server", known, lambda datagram: sent.append(("client", datagram)))
    server.begin(0.0)
    client.begin(0.0)
    while sent:
        name, datagram = sent.popleft()
        (client if name == "client" else server).receive(datagram, 0.0)
    client.close()
    server.close()
