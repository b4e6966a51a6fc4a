"""The routing token a second time, on `cryptography`: what csrc/wire/token.c is compared with."""

from __future__ import annotations

import base64
import struct

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.cmac import CMAC

Fields = tuple[int, int, int, int, int, bytes]
"""(key id, kind, prefix index, cluster id, port, address), as relay.wire._codec gives them."""


def mac(secret: bytes, message: bytes) -> bytes:
    """The first 4 bytes of AES-CMAC under k_mac."""
    cmac = CMAC(algorithms.AES(secret[16:]))
    cmac.update(message)
    return cmac.finalize()[:4]


def seal_plaintext(key_id: int, secret: bytes, low_bits: int, plaintext: bytes) -> str:
    """A token around any 16-byte plaintext; `low_bits` are the 5 after the key id."""
    encryptor = Cipher(algorithms.AES(secret[:16]), modes.ECB()).encryptor()
    head = bytes([key_id << 5 | low_bits]) + encryptor.update(plaintext)
    return base64.b64encode(head + mac(secret, head)).decode()


def seal(secret: bytes, fields: Fields, random: bytes) -> str:
    """A token of these fields; `random` is 8 bytes: 3 bits for byte 0, the rest for the nonce."""
    key_id, kind, index, cluster_id, port, address = fields
    plaintext = struct.pack("!BHH", kind << 4 | index, cluster_id, port) + address
    plaintext += random[1:][: 16 - len(plaintext)]
    return seal_plaintext(key_id, secret, random[0] & 7, plaintext)


def open_with(ring: dict[int, bytes], ufrag: bytes) -> Fields | str:
    """The fields of a token, or the name of the first reason against it."""
    if len(ufrag) != 28:
        return "length"
    try:
        raw = base64.b64decode(ufrag, validate=True)
    except ValueError:
        return "alphabet"
    if len(raw) != 21:
        return "alphabet"  # padding is no ice-char
    key_id = raw[0] >> 5
    if key_id == 7:
        return "no_hint"
    if raw[0] & 0x18:
        return "format"
    secret = ring.get(key_id)
    if secret is None:
        return "unknown_key"
    if mac(secret, raw[:17]) != raw[17:]:
        return "forged"
    plaintext = Cipher(algorithms.AES(secret[:16]), modes.ECB()).decryptor().update(raw[1:17])
    first, cluster_id, port = struct.unpack_from("!BHH", plaintext)
    kind, index = divmod(first, 16)
    if port == 0 or kind not in (4, 6) or (kind == 4 and index):
        return "kind"
    address = plaintext[5:9] if kind == 4 else plaintext[5:13]
    return key_id, kind, index, cluster_id, port, address
