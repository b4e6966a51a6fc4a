"""Two DTLS ends of one call in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tests.support.rtp import SrtpDtls
from transceiver.dtls import (
    Dtls,
    Identity,
    Phase,
)
from transceiver.offer import Fingerprint

SERVER_SIDE, CLIENT_SIDE = Identity.generate(), Identity.generate()


def fingerprint(identity: Identity) -> Fingerprint:
    return Fingerprint("sha-256", identity.fingerprint_sha256)


class Pair:
    """Two ends and the datagrams between them, which a test may lose; time is set by hand."""

    def __init__(
        self,
        *,
        server_identity: Identity = SERVER_SIDE,
        expected: Sequence[Fingerprint] | None = None,
    ) -> None:
        self.now_s = 0.0
        self.sizes: list[int] = []
        self.lost: Callable[[str, bytes], bool] = lambda _to, _datagram: False
        self._queue: list[tuple[Dtls, bytes]] = []
        self.client = SrtpDtls(
            CLIENT_SIDE, "client", expected or [fingerprint(server_identity)], self._to("server")
        )
        self.server = SrtpDtls(
            server_identity, "server", [fingerprint(CLIENT_SIDE)], self._to("client")
        )

    def _to(self, name: str) -> Callable[[bytes], None]:
        def send(datagram: bytes) -> None:
            self.sizes.append(len(datagram))
            if not self.lost(name, datagram):
                self._queue.append((getattr(self, name), datagram))

        return send

    def deliver(self) -> None:
        while self._queue:
            end, datagram = self._queue.pop(0)
            end.receive(datagram, self.now_s)

    def begin(self) -> None:
        self.server.begin(self.now_s)
        self.client.begin(self.now_s)
        self.deliver()

    def pass_time(self, seconds: float, *, really: bool = False) -> None:
        """`really` for OpenSSL's own timer, which reads the clock of the system."""
        for _ in range(round(seconds / 0.05)):
            if self.phases == (Phase.CONNECTED, Phase.CONNECTED):
                return
            if really:
                time.sleep(0.05)
            self.now_s += 0.05
            self.client.poll(self.now_s)
            self.server.poll(self.now_s)
            self.deliver()

    @property
    def phases(self) -> tuple[Phase, Phase]:
        return self.client.phase, self.server.phase


def connected() -> Pair:
    pair = Pair()
    pair.begin()
    assert pair.phases == (Phase.CONNECTED, Phase.CONNECTED)
    return pair
