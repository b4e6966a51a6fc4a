"""The C decoders of csrc/wire over the caller's buffers: the same functions that the loop calls.

The rules, and what each thing means, are in _codec.pyi.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EINVAL
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from enum import IntEnum


cdef extern from "wire/crc32.h" nogil:
    uint32_t vr_crc32(const uint8_t *data, size_t bytes)


cdef extern from "wire/demux.h" nogil:
    enum vr_protocol:
        VR_PROTOCOL_STUN
        VR_PROTOCOL_DTLS
        VR_PROTOCOL_MEDIA
        VR_PROTOCOL_OTHER
    vr_protocol vr_demux(uint8_t first_byte)


cdef extern from "wire/stun.h" nogil:
    enum vr_stun_class:
        VR_STUN_REQUEST
        VR_STUN_INDICATION
        VR_STUN_SUCCESS
        VR_STUN_ERROR
    enum vr_stun_status:
        VR_STUN_OK
        VR_STUN_SHORT
        VR_STUN_NOT_STUN
        VR_STUN_LENGTH
        VR_STUN_ATTRIBUTE
        VR_STUN_USERNAME
        VR_STUN_FINGERPRINT
    enum:
        VR_STUN_TID_BYTES
    struct vr_stun:
        const uint8_t *tid
        const uint8_t *username
        uint64_t tie_breaker
        uint32_t priority
        uint16_t method
        uint16_t username_bytes
        uint16_t integrity_offset
        vr_stun_class class_
        bint has_fingerprint
        bint has_use_candidate
        bint has_ice_controlling
        bint has_ice_controlled
        bint has_priority
    vr_stun_status vr_stun_read(const uint8_t *data, size_t bytes, vr_stun *out)
    size_t vr_stun_local_ufrag(const vr_stun *message)


cdef extern from "wire/token.h" nogil:
    enum:
        VR_TOKEN_CHARS
        VR_TOKEN_KEY_BYTES
        VR_TOKEN_KEY_ID_MAX
        VR_TOKEN_RANDOM_BYTES
    enum vr_token_status:
        VR_TOKEN_OK
        VR_TOKEN_LENGTH
        VR_TOKEN_ALPHABET
        VR_TOKEN_NO_HINT
        VR_TOKEN_FORMAT
        VR_TOKEN_UNKNOWN_KEY
        VR_TOKEN_FORGED
        VR_TOKEN_KIND
        VR_TOKEN_NO_KEY
    struct vr_token:
        uint8_t key_id
        uint8_t kind
        uint8_t prefix_index
        uint16_t cluster_id
        uint16_t port_be
        uint8_t ipv4[4]
        uint8_t interface_id[8]
    struct vr_keyring:
        pass
    vr_keyring *vr_keyring_new()
    void vr_keyring_free(vr_keyring *ring)
    int vr_keyring_add(vr_keyring *ring, unsigned id, const uint8_t *key)
    vr_token_status vr_token_open(vr_keyring *ring, const uint8_t *ufrag, size_t chars,
                                  vr_token *out)
    vr_token_status vr_token_seal(vr_keyring *ring, const vr_token *token, const uint8_t *random,
                                  char *ufrag)


cdef extern from "<arpa/inet.h>" nogil:
    uint16_t htons(uint16_t)
    uint16_t ntohs(uint16_t)


class Protocol(IntEnum):
    """What a datagram is, by its first byte (RFC 7983 7)."""

    STUN = VR_PROTOCOL_STUN
    DTLS = VR_PROTOCOL_DTLS
    MEDIA = VR_PROTOCOL_MEDIA
    OTHER = VR_PROTOCOL_OTHER


class StunClass(IntEnum):
    """The class of a STUN message (RFC 8489 5)."""

    REQUEST = VR_STUN_REQUEST
    INDICATION = VR_STUN_INDICATION
    SUCCESS = VR_STUN_SUCCESS
    ERROR = VR_STUN_ERROR


class StunStatus(IntEnum):
    """What is wrong with a message; the meanings are in csrc/wire/stun.h."""

    OK = VR_STUN_OK
    SHORT = VR_STUN_SHORT
    NOT_STUN = VR_STUN_NOT_STUN
    LENGTH = VR_STUN_LENGTH
    ATTRIBUTE = VR_STUN_ATTRIBUTE
    USERNAME = VR_STUN_USERNAME
    FINGERPRINT = VR_STUN_FINGERPRINT


class TokenStatus(IntEnum):
    """Why a token does not open or seal; the meanings are in csrc/wire/token.h."""

    OK = VR_TOKEN_OK
    LENGTH = VR_TOKEN_LENGTH
    ALPHABET = VR_TOKEN_ALPHABET
    NO_HINT = VR_TOKEN_NO_HINT
    FORMAT = VR_TOKEN_FORMAT
    UNKNOWN_KEY = VR_TOKEN_UNKNOWN_KEY
    FORGED = VR_TOKEN_FORGED
    KIND = VR_TOKEN_KIND
    NO_KEY = VR_TOKEN_NO_KEY


cdef tuple STUN_STATUSES = tuple(StunStatus)
cdef tuple STUN_CLASSES = tuple(StunClass)
cdef tuple TOKEN_STATUSES = tuple(TokenStatus)
cdef tuple PROTOCOLS = tuple(Protocol)


cdef class StunReader:
    """A view of the message that lies at the start of `buffer`."""

    cdef Py_buffer view
    cdef vr_stun message
    cdef bint valid

    def __cinit__(self, buffer):
        PyObject_GetBuffer(buffer, &self.view, PyBUF_SIMPLE)

    def __dealloc__(self):
        PyBuffer_Release(&self.view)

    def read(self, Py_ssize_t datagram_bytes):
        if not 0 <= datagram_bytes <= self.view.len:
            raise ValueError(f"{datagram_bytes} bytes in a buffer of {self.view.len}")
        cdef vr_stun_status status = vr_stun_read(
            <const uint8_t *>self.view.buf, datagram_bytes, &self.message)
        self.valid = status == VR_STUN_OK
        return STUN_STATUSES[<int>status]

    cdef vr_stun *current(self) except NULL:
        if not self.valid:
            raise ValueError("no message has been read")
        return &self.message

    @property
    def method(self):
        return self.current().method

    @property
    def stun_class(self):
        return STUN_CLASSES[<int>self.current().class_]

    @property
    def transaction_id(self):
        return (<const char *>self.current().tid)[:VR_STUN_TID_BYTES]

    @property
    def username(self):
        cdef vr_stun *message = self.current()
        if message.username is NULL:
            return None
        return (<const char *>message.username)[:message.username_bytes]

    @property
    def local_ufrag(self):
        cdef vr_stun *message = self.current()
        cdef size_t chars = vr_stun_local_ufrag(message)
        return (<const char *>message.username)[:chars] if chars else b""

    @property
    def integrity_offset(self):
        return self.current().integrity_offset

    @property
    def has_fingerprint(self):
        return self.current().has_fingerprint

    @property
    def has_use_candidate(self):
        return self.current().has_use_candidate

    @property
    def has_ice_controlling(self):
        return self.current().has_ice_controlling

    @property
    def has_ice_controlled(self):
        return self.current().has_ice_controlled

    @property
    def tie_breaker(self):
        return self.current().tie_breaker

    @property
    def priority(self):
        cdef vr_stun *message = self.current()
        return message.priority if message.has_priority else None


cdef class TokenCipher:
    """The keys of a ring, scheduled once; the first one added seals."""

    cdef vr_keyring *ring

    def __cinit__(self):
        self.ring = vr_keyring_new()
        if self.ring is NULL:
            raise MemoryError("no memory or no AES-128-ECB in libcrypto")

    def __dealloc__(self):
        vr_keyring_free(self.ring)

    def add(self, unsigned key_id, bytes secret not None):
        if len(secret) != VR_TOKEN_KEY_BYTES:
            raise ValueError(f"a ring key has {VR_TOKEN_KEY_BYTES} bytes, not {len(secret)}")
        cdef int error = vr_keyring_add(self.ring, key_id, <const uint8_t *><const char *>secret)
        if error == -EINVAL:
            raise ValueError(f"key id {key_id} is not in 0..{VR_TOKEN_KEY_ID_MAX}")
        if error:
            raise MemoryError("no memory for a ring key")

    cdef object opened(self, const uint8_t *ufrag, size_t chars):
        cdef vr_token token
        cdef vr_token_status status = vr_token_open(self.ring, ufrag, chars, &token)
        if status != VR_TOKEN_OK:
            return TOKEN_STATUSES[<int>status]
        cdef bytes address = (
            (<const char *>token.ipv4)[:4] if token.kind == 4
            else (<const char *>token.interface_id)[:8])
        return (token.key_id, token.kind, token.prefix_index, token.cluster_id,
                ntohs(token.port_be), address)

    def open(self, bytes ufrag not None):
        return self.opened(<const uint8_t *><const char *>ufrag, len(ufrag))

    def open_check(self, StunReader check not None):
        cdef vr_stun *message = check.current()
        return self.opened(message.username, vr_stun_local_ufrag(message))

    def seal(self, uint8_t kind, uint8_t prefix_index, uint16_t cluster_id, uint16_t port,
             bytes address not None, bytes random not None):
        cdef vr_token token
        cdef char ufrag[VR_TOKEN_CHARS]
        if len(address) != (4 if kind == 4 else 8):
            raise ValueError(f"kind {kind} with an address of {len(address)} bytes")
        if len(random) != VR_TOKEN_RANDOM_BYTES:
            raise ValueError(f"{VR_TOKEN_RANDOM_BYTES} random bytes wanted, not {len(random)}")
        memset(&token, 0, sizeof(token))
        token.kind = kind
        token.prefix_index = prefix_index
        token.cluster_id = cluster_id
        token.port_be = htons(port)
        if kind == 4:
            memcpy(token.ipv4, <const char *>address, 4)
        else:
            memcpy(token.interface_id, <const char *>address, 8)
        cdef vr_token_status status = vr_token_seal(
            self.ring, &token, <const uint8_t *><const char *>random, ufrag)
        if status != VR_TOKEN_OK:
            return TOKEN_STATUSES[<int>status]
        return ufrag[:VR_TOKEN_CHARS]


def crc32(bytes data not None):
    return vr_crc32(<const uint8_t *><const char *>data, len(data))


def demux(uint8_t first_byte):
    return PROTOCOLS[<int>vr_demux(first_byte)]
