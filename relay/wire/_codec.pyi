"""The C decoders of csrc/wire over the caller's buffers: the same functions that the loop calls.

1. Declarations and lifetimes only; what bytes mean is decided in C.
2. A reader borrows its buffer for its own life; what it has read lies there and changes with it.
   A bytearray cannot be resized meanwhile.
3. Nothing raises for what a peer sent: statuses come back, `relay.wire.stun` and
   `relay.wire.token` turn them into errors. ValueError and OverflowError are the caller's mistakes.
4. A reader or a cipher is used by one thread at a time.
"""

from enum import IntEnum
from typing import TypeAlias

class Protocol(IntEnum):
    """What a datagram is, by its first byte (RFC 7983 7)."""

    STUN = ...
    DTLS = ...
    MEDIA = ...
    OTHER = ...

class StunClass(IntEnum):
    """The class of a STUN message (RFC 8489 5)."""

    REQUEST = ...
    INDICATION = ...
    SUCCESS = ...
    ERROR = ...

class StunStatus(IntEnum):
    """What is wrong with a message (csrc/wire/stun.h)."""

    OK = ...
    SHORT = ...
    NOT_STUN = ...
    LENGTH = ...
    ATTRIBUTE = ...
    USERNAME = ...
    FINGERPRINT = ...

class TokenStatus(IntEnum):
    """Why a token does not open or seal (csrc/wire/token.h)."""

    OK = ...
    LENGTH = ...
    ALPHABET = ...
    NO_HINT = ...
    FORMAT = ...
    UNKNOWN_KEY = ...
    FORGED = ...
    KIND = ...
    NO_KEY = ...

class StunReader:
    """Reads the STUN message at the start of `buffer`, any number of times.

    The properties speak of the last message read and raise ValueError when that was none.
    """

    def __init__(self, buffer: bytes | bytearray | memoryview) -> None: ...
    def read(self, datagram_bytes: int) -> StunStatus:
        """Reads the first `datagram_bytes` bytes of the buffer as one datagram."""

    @property
    def method(self) -> int:
        """12 bits; 1 is Binding."""

    @property
    def stun_class(self) -> StunClass: ...
    @property
    def transaction_id(self) -> bytes:
        """12 bytes."""

    @property
    def username(self) -> bytes | None:
        """1..508 bytes, padding left out; None when absent."""

    @property
    def local_ufrag(self) -> bytes:
        """USERNAME before its first colon; empty unless there is something on both sides of it."""

    @property
    def integrity_offset(self) -> int:
        """Where the MESSAGE-INTEGRITY attribute starts in the message; 0 when absent."""

    @property
    def has_fingerprint(self) -> bool:
        """FINGERPRINT is present, and right."""

    @property
    def has_use_candidate(self) -> bool: ...
    @property
    def has_ice_controlling(self) -> bool: ...
    @property
    def has_ice_controlled(self) -> bool: ...
    @property
    def tie_breaker(self) -> int:
        """64 bits of the ICE role attribute; 0 when there is none."""

    @property
    def priority(self) -> int | None: ...

_Opened: TypeAlias = tuple[int, int, int, int, int, bytes]
"""(key id, kind, prefix index, cluster id, port, IPv4 address of 4 or interface id of 8 bytes)."""

class TokenCipher:
    """The keys of a ring, scheduled once. The first key added seals, each opens."""

    def __init__(self) -> None: ...
    def add(self, key_id: int, secret: bytes) -> None:
        """Adds or replaces a key of 32 bytes; `key_id` is 0..6."""

    def open(self, ufrag: bytes) -> _Opened | TokenStatus:
        """Opens a token; the status says why not."""

    def open_check(self, check: StunReader) -> _Opened | TokenStatus:
        """Opens the token in the USERNAME of the message just read, copying nothing."""

    def seal(
        self,
        kind: int,
        prefix_index: int,
        cluster_id: int,
        port: int,
        address: bytes,
        random: bytes,
    ) -> bytes | TokenStatus:
        """Seals a token into 28 characters; `address` as in `_Opened`, `random` 8 fresh bytes."""

def crc32(data: bytes) -> int:
    """The CRC-32 under STUN's FINGERPRINT, before its XOR."""

def demux(first_byte: int) -> Protocol:
    """What a datagram is that starts with `first_byte` (0..255)."""
