"""Cloudflare's Simple Proxy Protocol: 38 bytes before each datagram between relay and transceiver.

    0x56EC | client address 16 | proxy address 16 | client port 2 | proxy port 2 | payload

1. A flow key *is* its header, so that a reply echoes it without building anything, and
   comparing and hashing are those of bytes.
2. Addresses are decoded only when somebody asks for them: in the transceiver this runs per packet.
"""

from typing import Self

from relay.wire.address import Endpoint, pack_ip, unpack_ip

MAGIC = b"\x56\xec"
HEADER_BYTES = 38


class FlowKey(bytes):
    """(client, proxy) of a flow: the real client, and the relay's public address as advertised."""

    __slots__ = ()

    def __new__(cls, client: Endpoint, proxy: Endpoint) -> Self:
        """Raises OverflowError for a port that is none."""
        return super().__new__(
            cls,
            MAGIC
            + pack_ip(client.ip)
            + pack_ip(proxy.ip)
            + client.port.to_bytes(2, "big")
            + proxy.port.to_bytes(2, "big"),
        )

    @property
    def client(self) -> Endpoint:
        """The client's address."""
        return Endpoint(unpack_ip(self[2:18]), int.from_bytes(self[34:36], "big"))

    @property
    def proxy(self) -> Endpoint:
        """The relay's address."""
        return Endpoint(unpack_ip(self[18:34]), int.from_bytes(self[36:38], "big"))

    @property
    def packed(self) -> bytes:
        """36 bytes, as in tables and Redis: client address and port, proxy address and port."""
        return self[2:18] + self[34:36] + self[18:34] + self[36:38]

    def __repr__(self) -> str:
        return f"FlowKey(client={self.client}, proxy={self.proxy})"

    __str__ = __repr__


def wrap(key: FlowKey, payload: bytes) -> bytes:
    """The datagram that carries `payload` under the header of `key`."""
    return key + payload


def unwrap(datagram: bytes) -> tuple[FlowKey, bytes] | None:
    """The flow key and the payload, which may be empty; None when this is no SPP datagram."""
    if len(datagram) < HEADER_BYTES or not datagram.startswith(MAGIC):
        return None
    return bytes.__new__(FlowKey, datagram[:HEADER_BYTES]), datagram[HEADER_BYTES:]
