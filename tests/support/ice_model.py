"""The rules of csrc/media/ice.h once more, slowly and in Python: the model that its tests hold it against.

*Authenticated* means: a check whose MESSAGE-INTEGRITY holds and whose transaction id is new,
unreplayed SRTP or SRTCP, or a decrypted DTLS record.

1. Up to 4 sessions share a flow key; every packet that is not STUN is offered to each of them. A
   newcomer removes nobody; a session leaves after 30 s without an authenticated packet there, and
   a fifth takes the place of the one silent longest.
2. A check is answered only when its USERNAME is exactly ours and its MESSAGE-INTEGRITY holds;
   everything else gets silence. A transaction id of the last 60 s that comes back from another
   flow key is dropped; from its own it is answered again, but proves nothing. At most 16 live flow
   keys a session are answered. What is left and says ICE-CONTROLLED gets 487, and no path.
3. A reply goes to its request's source; everything else to the source of the last authenticated
   packet of the session on that flow key.
4. Media goes to the flow key of the newest authenticated SRTP, SRTCP or DTLS, else of the latest
   USE-CANDIDATE, else of the first check; never to one without an authenticated packet in the
   last 10 s.
5. Consent is time (RFC 7675): 30 s without an authenticated packet.

RFC 8445 7.3 and 6.1.1 (lite), RFC 8489.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

from relay.wire import stun
from relay.wire.spp import FlowKey

SESSIONS_PER_FLOW_KEY = 4
FLOW_KEYS_PER_SESSION = 16
SILENT_FLOW_KEY_S = 30.0
CONSENT_S = 30.0
MEDIA_SILENCE_S = 10.0
TRANSACTION_MEMORY_S = 60.0
TRANSACTIONS_PER_SESSION = 1_024

_NEVER_S = float("-inf")


class Source(NamedTuple):
    """Where a datagram came from, which is where a reply goes."""

    address: tuple[Any, ...]
    """The peer's socket address."""
    local_ip: bytes | None
    """Packed address that was asked, for sockets bound to a wildcard."""
    direct: bool
    """Came without SPP, from the client itself."""


class Path:
    """One session on one flow key."""

    __slots__ = ("authenticated_s", "first_check_s", "key", "media_s", "nominated_s", "session",
                 "source")  # fmt: skip

    def __init__(self, session: IceSession, key: FlowKey, source: Source, now_s: float) -> None:
        self.session = session
        self.key = key
        self.source = source
        self.first_check_s = now_s
        self.authenticated_s = now_s
        self.nominated_s = _NEVER_S
        self.media_s = _NEVER_S

    def is_live(self, now_s: float) -> bool:
        """Whether the session is still on this flow key (rule 1)."""
        return now_s - self.authenticated_s < SILENT_FLOW_KEY_S


class IceSession:
    """One session's credentials, paths and recent transaction ids. Made by IceAgent.open."""

    __slots__ = ("authenticated_s", "owner", "paths", "pwd", "transactions", "ufrag", "username")

    def __init__(
        self, ufrag: str, pwd: str, remote_ufrag: str, owner: object, now_s: float
    ) -> None:
        self.ufrag = ufrag.encode()
        self.pwd = pwd.encode()
        self.username = f"{ufrag}:{remote_ufrag}".encode()
        self.owner = owner
        self.authenticated_s = now_s
        self.paths: dict[FlowKey, Path] = {}
        self.transactions: OrderedDict[bytes, tuple[float, FlowKey]] = OrderedDict()

    def has_consent(self, now_s: float) -> bool:
        """Rule 5; before the first check the time counts from `open`."""
        return now_s - self.authenticated_s < CONSENT_S

    def media_path(self, now_s: float) -> Path | None:
        """Where to send now (rule 4); None while the call is paused."""
        best: Path | None = None
        for path in self.paths.values():
            if now_s - path.authenticated_s < MEDIA_SILENCE_S and (
                best is None or _rank(path) > _rank(best)
            ):
                best = path
        return best


def _rank(path: Path) -> tuple[float, float, float]:
    return path.media_s, path.nominated_s, -path.first_check_s


class Checked(NamedTuple):
    """What to do about a check: send `reply` to its source; `path` is the validated path, None
    for an error reply.
    """

    reply: bytes
    path: Path | None


class IceAgent:
    """All sessions of one process, found by ufrag and by flow key."""

    def __init__(self) -> None:
        self._sessions: dict[bytes, IceSession] = {}
        self._flows: dict[FlowKey, list[Path]] = {}
        self.drops: Counter[str] = Counter()
        """Checks that got silence, and packets nobody took, by reason."""

    def __len__(self) -> int:
        """Open sessions."""
        return len(self._sessions)

    def has(self, ufrag: str) -> bool:
        """Whether a live session has this ufrag (design: never two)."""
        return ufrag.encode() in self._sessions

    def open(
        self, ufrag: str, pwd: str, remote_ufrag: str, owner: object, now_s: float
    ) -> IceSession:
        """A new session; `owner` is handed back through its paths. `ufrag` must be unused."""
        session = IceSession(ufrag, pwd, remote_ufrag, owner, now_s)
        self._sessions[session.ufrag] = session
        return session

    def close(self, session: IceSession) -> None:
        """Forgets the session and all its paths."""
        self._sessions.pop(session.ufrag, None)
        for path in list(session.paths.values()):
            self._leave(path)
        session.transactions.clear()

    def check(self, datagram: bytes, key: FlowKey, source: Source, now_s: float) -> Checked | None:
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
        for old in [path for path in session.paths.values() if not path.is_live(now_s)]:
            self._leave(old)
        seen = session.transactions.get(message.transaction_id)
        if seen is not None and now_s - seen[0] >= TRANSACTION_MEMORY_S:
            seen = None
        if seen is not None and seen[1] != key:
            return self._dropped("replayed_check")
        path = session.paths.get(key)
        if path is None and len(session.paths) >= FLOW_KEYS_PER_SESSION:
            return self._dropped("flow_key_limit")
        if seen is None:
            self._remember(session, message.transaction_id, key, now_s)
        if message.ice_controlled:
            reason = stun.error(message, stun.ROLE_CONFLICT, "Role Conflict", session.pwd)
            return Checked(reason, None)
        if seen is not None and path is None:
            return self._dropped("replayed_check")
        if seen is None:
            if path is None:
                path = self._join(session, key, source, now_s)
            if message.use_candidate:
                path.nominated_s = now_s
            self.authenticated(path, source, now_s)
        return Checked(stun.success(message, key.client, session.pwd), path)

    def members(self, key: FlowKey, now_s: float) -> Sequence[Path]:
        """The sessions to which a packet of this flow key is offered, at most 4."""
        paths = self._flows.get(key)
        if paths is None:
            return ()
        return [path for path in paths if path.is_live(now_s)]

    def authenticated(
        self, path: Path, source: Source, now_s: float, *, media: bool = False
    ) -> None:
        """Notes an authenticated packet; `media` for SRTP, SRTCP and DTLS."""
        path.source = source
        path.authenticated_s = now_s
        path.session.authenticated_s = now_s
        if media:
            path.media_s = now_s

    def expire(self, now_s: float) -> None:
        """Lets sessions leave silent flow keys and forgets old transaction ids. Call each second."""
        for paths in list(self._flows.values()):
            for path in [path for path in paths if not path.is_live(now_s)]:
                self._leave(path)
        for session in self._sessions.values():
            while session.transactions:
                transaction_id, (seen_s, _) = next(iter(session.transactions.items()))
                if now_s - seen_s < TRANSACTION_MEMORY_S:
                    break
                del session.transactions[transaction_id]

    def _join(self, session: IceSession, key: FlowKey, source: Source, now_s: float) -> Path:
        sharing = self._flows.setdefault(key, [])
        if len(sharing) >= SESSIONS_PER_FLOW_KEY:
            self._leave(min(sharing, key=lambda path: path.authenticated_s))
            sharing = self._flows.setdefault(key, [])
        path = Path(session, key, source, now_s)
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
        self, session: IceSession, transaction_id: bytes, key: FlowKey, now_s: float
    ) -> None:
        session.transactions.pop(transaction_id, None)
        if len(session.transactions) >= TRANSACTIONS_PER_SESSION:
            session.transactions.popitem(last=False)
        session.transactions[transaction_id] = (now_s, key)

    def _dropped(self, reason: str) -> Checked | None:
        self.drops[reason] += 1
        return None
