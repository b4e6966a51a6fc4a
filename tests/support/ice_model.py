"""The rules of csrc/media/ice.h once more, slowly and in Python: the model that its tests hold it against.

*Authenticated* means: a check whose MESSAGE-INTEGRITY holds and whose transaction id is new,
unreplayed SRTP or SRTCP, or a decrypted DTLS record.

1. Up to 4 sessions share a flow key; every packet that is not STUN is offered to each of them. A
   newcomer removes nobody; a session leaves after 30 s without an authenticated packet there, and
   a fifth takes the place of the one silent longest.
2. A check is answered only when its USERNAME is exactly ours and its MESSAGE-INTEGRITY holds;
   everything else gets silence. A transaction id of the last 60 s that comes back from another
   flow key is dropped; from its own it is answered again, but proves nothing. At most 16 live flow
   keys a session are answered. What is left and has an attribute that must be understood and is
   not gets 420, what says ICE-CONTROLLED 487, and neither a path.
3. A reply goes to its request's source; everything else to the source of the last authenticated
   packet of the session on that flow key.
4. Media goes to the flow key of the newest authenticated SRTP, SRTCP or DTLS, else of the latest
   USE-CANDIDATE, else of the first check; never to one without an authenticated packet in the
   last 10 s.
5. Consent is time (RFC 7675): 30 s without an authenticated packet.

RFC 8445 7.3 and 6.1.1 (lite), RFC 8489.
"""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from relay.wire import stun
from relay.wire._codec import StunClass
from relay.wire.spp import FlowKey

SECOND_NS = 1_000_000_000
SESSIONS_PER_FLOW_KEY = 4
FLOW_KEYS_PER_SESSION = 16
SILENT_FLOW_KEY_NS = 30 * SECOND_NS
CONSENT_NS = 30 * SECOND_NS
MEDIA_SILENCE_NS = 10 * SECOND_NS
TRANSACTION_MEMORY_NS = 60 * SECOND_NS
TRANSACTIONS_PER_SESSION = 1_024

_NEVER_NS = 0

UNDERSTOOD = {
    *(0x0001, 0x0006, 0x0008, 0x0009, 0x000A, 0x0014, 0x0015, 0x001C, 0x001D, 0x001E, 0x0020),
    *(0x0024, 0x0025),
}
"""RFC 8489 18.3.1, RFC 8445 20.2"""
NAMED_MAX = 8
"""In one refusal."""


Source = int
"""Where a datagram came from: the number of a relay."""


class Path:
    """One session on one flow key."""

    __slots__ = ("authenticated_ns", "first_check_ns", "key", "media_ns", "nominated_ns", "session",
                 "source")  # fmt: skip

    def __init__(self, session: IceSession, key: FlowKey, source: Source, now_ns: int) -> None:
        self.session = session
        self.key = key
        self.source = source
        self.first_check_ns = now_ns
        self.authenticated_ns = now_ns
        self.nominated_ns = _NEVER_NS
        self.media_ns = _NEVER_NS

    def is_live(self, now_ns: int) -> bool:
        """Whether the session is still on this flow key (rule 1)."""
        return now_ns - self.authenticated_ns < SILENT_FLOW_KEY_NS


class IceSession:
    """One session's credentials, paths and recent transaction ids. Made by IceAgent.open."""

    __slots__ = ("authenticated_ns", "paths", "pwd", "transactions", "ufrag", "username")

    def __init__(self, ufrag: str, pwd: str, remote_ufrag: str, now_ns: int) -> None:
        self.ufrag = ufrag.encode()
        self.pwd = pwd.encode()
        self.username = f"{ufrag}:{remote_ufrag}".encode()
        self.authenticated_ns = now_ns
        self.paths: dict[FlowKey, Path] = {}
        self.transactions: OrderedDict[bytes, tuple[int, FlowKey]] = OrderedDict()

    def has_consent(self, now_ns: int) -> bool:
        """Rule 5; before the first check the time counts from `open`."""
        return now_ns - self.authenticated_ns < CONSENT_NS

    def media_path(self, now_ns: int) -> Path | None:
        """Where to send now (rule 4); None while the call is paused."""
        best: Path | None = None
        for path in self.paths.values():
            if now_ns - path.authenticated_ns < MEDIA_SILENCE_NS and (
                best is None or rank(path) > rank(best)
            ):
                best = path
        return best


def rank(path: Path) -> tuple[int, int, int]:
    """The greatest gets the media (rule 4)."""
    return path.media_ns, path.nominated_ns, -path.first_check_ns


def unknown_attributes(message: stun.Message) -> list[int]:
    """The types of those before MESSAGE-INTEGRITY that must be understood and are not."""
    found = []
    at = 20
    while at < message.integrity_offset:
        number, size = struct.unpack_from("!HH", message.datagram, at)
        if number < 0x8000 and number not in UNDERSTOOD:
            found.append(number)
        at += 4 + size + -size % 4
    return found


def refusal_of(unknown: Sequence[int], request: stun.Message, pwd: bytes) -> bytes:
    """The error response 420 (RFC 8489 6.3.1)."""
    types = b"".join(number.to_bytes(2) for number in unknown)
    attributes = [(stun.ERROR_CODE, b"\0\0\4\x14Unknown Attribute"), (0x000A, types)]
    return stun.encode(StunClass.ERROR, request.transaction_id, attributes, key=pwd)


class Checked(NamedTuple):
    """What to do about a check: send `reply` to its source; `path` is the validated path, None
    for an error reply.
    """

    reply: bytes
    path: Path | None


class IceAgent:
    """All sessions of one process."""

    def __init__(self) -> None:
        self._sessions: dict[bytes, IceSession] = {}
        self._flows: dict[FlowKey, list[Path]] = {}
        self.drops: Counter[str] = Counter()
        """Checks that got silence, by reason."""

    def open(self, ufrag: str, pwd: str, remote_ufrag: str, now_ns: int) -> IceSession:
        """A new session. `ufrag` must be unused."""
        session = IceSession(ufrag, pwd, remote_ufrag, now_ns)
        self._sessions[session.ufrag] = session
        return session

    def close(self, session: IceSession) -> None:
        """Forgets the session and all its paths."""
        self._sessions.pop(session.ufrag, None)
        for path in list(session.paths.values()):
            self._leave(path)
        session.transactions.clear()

    def check(self, datagram: bytes, key: FlowKey, source: Source, now_ns: int) -> Checked | None:
        """Takes a STUN datagram; None means silence, and `drops` has the reason."""
        try:
            message = stun.Message.read(datagram)
        except stun.StunError:
            return self._dropped("malformed")
        if not message.is_binding_request:
            return self._dropped("no_check")
        session = self._sessions.get(message.local_ufrag)
        if session is None:
            return self._dropped("unknown_ufrag")
        if message.username != session.username:
            return self._dropped("wrong_username")
        if not message.verify(session.pwd):
            return self._dropped("wrong_integrity")
        for old in [path for path in session.paths.values() if not path.is_live(now_ns)]:
            self._leave(old)
        seen = session.transactions.get(message.transaction_id)
        if seen is not None and now_ns - seen[0] >= TRANSACTION_MEMORY_NS:
            seen = None
        if seen is not None and seen[1] != key:
            return self._dropped("replayed_check")
        path = session.paths.get(key)
        if path is None and len(session.paths) >= FLOW_KEYS_PER_SESSION:
            return self._dropped("flow_key_limit")
        if seen is None:
            self._remember(session, message.transaction_id, key, now_ns)
        if unknown := unknown_attributes(message)[:NAMED_MAX]:
            return Checked(refusal_of(unknown, message, session.pwd), None)
        if message.ice_controlled:
            reason = stun.error(message, stun.ROLE_CONFLICT, "Role Conflict", session.pwd)
            return Checked(reason, None)
        if seen is not None and path is None:
            return self._dropped("replayed_check")
        if seen is None:
            if path is None:
                path = self._join(session, key, source, now_ns)
            if message.use_candidate:
                path.nominated_ns = now_ns
            self.authenticated(path, source, now_ns)
        return Checked(stun.success(message, key.client, session.pwd), path)

    def members(self, key: FlowKey, now_ns: int) -> Sequence[Path]:
        """The sessions to which a packet of this flow key is offered, at most 4."""
        paths = self._flows.get(key)
        if paths is None:
            return ()
        return [path for path in paths if path.is_live(now_ns)]

    def authenticated(
        self, path: Path, source: Source, now_ns: int, *, media: bool = False
    ) -> None:
        """Notes an authenticated packet; `media` for SRTP, SRTCP and DTLS."""
        path.source = source
        path.authenticated_ns = now_ns
        path.session.authenticated_ns = now_ns
        if media:
            path.media_ns = now_ns

    def expire(self, now_ns: int) -> None:
        """Lets sessions leave silent flow keys and forgets old transaction ids. Call each second."""
        for paths in list(self._flows.values()):
            for path in [path for path in paths if not path.is_live(now_ns)]:
                self._leave(path)
        for session in self._sessions.values():
            while session.transactions:
                transaction_id, (seen_ns, _) = next(iter(session.transactions.items()))
                if now_ns - seen_ns < TRANSACTION_MEMORY_NS:
                    break
                del session.transactions[transaction_id]

    def _join(self, session: IceSession, key: FlowKey, source: Source, now_ns: int) -> Path:
        sharing = self._flows.setdefault(key, [])
        if len(sharing) >= SESSIONS_PER_FLOW_KEY:
            self._leave(min(sharing, key=lambda path: path.authenticated_ns))
            sharing = self._flows.setdefault(key, [])
        path = Path(session, key, source, now_ns)
        sharing.append(path)
        session.paths[key] = path
        return path

    def _leave(self, path: Path) -> None:
        path.session.paths.pop(path.key, None)
        sharing = self._flows.get(path.key)
        if sharing is not None:
            sharing.remove(path)
            if not sharing:
                del self._flows[path.key]

    def _remember(
        self, session: IceSession, transaction_id: bytes, key: FlowKey, now_ns: int
    ) -> None:
        session.transactions.pop(transaction_id, None)
        if len(session.transactions) >= TRANSACTIONS_PER_SESSION:
            session.transactions.popitem(last=False)
        session.transactions[transaction_id] = (now_ns, key)

    def _dropped(self, reason: str) -> Checked | None:
        self.drops[reason] += 1
        return None
