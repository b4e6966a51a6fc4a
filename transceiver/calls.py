"""The calls of one process: opened from an offer, found by id, ticked, remembered for a minute.

1. Only this file creates Call. It draws the ufrag (never one that is alive) and writes the answer.
2. One timer serves all calls: each is ticked every 50 ms, housekeeping runs every second.
3. An ended call leaves its numbers here for 60 s and nothing else.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from relay.wire.log import get_logger
from relay.wire.token import TokenCodec, TransceiverAddress

from .answer import Local, write_answer
from .auth import Principal
from .board import Board
from .callid import CallIds, Owner
from .dtls import Identity
from .entry import Entry
from .errors import RequestError
from .media import EngineFullError, MediaEngine
from .metrics import Meter
from .recording import POLL_S, Recorder
from .session import Call, CallParts, CallRequest, CallState

TICK_S = 0.05
HOUSEKEEPING_S = 1.0
ENDED_KEPT_S = 60.0
ENDED_MAX = 4_096

_ICE_CHARS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
ICE_PWD_CHARS = 24


@dataclass(frozen=True, slots=True)
class Home:
    """Where this process is."""

    owner: Owner
    address: TransceiverAddress
    about: dict[str, object]
    """The parts `transceiver` and `cluster` of a call's stats."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What is left of a call."""

    principal: Principal
    stats: dict[str, object]
    ended_s: float


class Calls:
    """The registry. One event loop, one thread."""

    def __init__(
        self,
        *,
        home: Home,
        codec: TokenCodec,
        call_ids: CallIds,
        identity: Identity,
        engine: MediaEngine,
        board: Board,
        row: int,
        clock: Callable[[], float] = time.monotonic,
        on_ended: Callable[[Call], None] = lambda call: None,
        recorder: Recorder | None = None,
    ) -> None:
        self._home = home
        self._codec = codec
        self._call_ids = call_ids
        self._identity = identity
        self._engine = engine
        self._board = board
        self._row = row
        self._clock = clock
        self._meter = Meter(board, row)
        self._calls: dict[str, Call] = {}
        self._ufrags: set[str] = set()
        self._ended: OrderedDict[str, Ended] = OrderedDict()
        self._housekept_s = 0.0
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._parts = CallParts(
            engine,
            identity,
            clock,
            on_stage=self._meter.reached,
            on_state=self._on_state,
            recorder=recorder,
        )
        self._recorder = recorder
        self._recorded_s = 0.0
        self._on_ended = on_ended

    def __len__(self) -> int:
        """Open calls."""
        return len(self._calls)

    def open(self, request: CallRequest) -> tuple[Call, str]:
        """Makes a call and its answer. The caller has taken a place on the board for it, which is
        given back when the call ends, or at once when this raises. RequestError when the engine
        takes no more.
        """
        try:
            local = self._draw_local(request.entry)
            call_id = self._call_ids.draw(self._home.owner)
            call = Call(self._parts, request, call_id, local)
        except (EngineFullError, BlockingIOError) as error:
            self._board.release(self._row)
            message = "This process can take no more sessions just now."
            raise RequestError(503, "session_limit", message, retry_after_s=1) from error
        except BaseException:
            self._board.release(self._row)
            raise
        self._calls[call_id] = call
        self._ufrags.add(call.ice_ufrag)
        self._emptied.clear()
        self._meter.moved(None, call.state, None)
        answer = write_answer(request.offer, local)
        call.mark("answer", self._clock())
        get_logger().info(
            "call_opened",
            call_id=call_id,
            codec=call.codec.name,
            cluster=self._home.owner.cluster_id,
            ingress=request.entry.ingresses[0].name,
            viewpoint=request.entry.source,
        )
        return call, answer

    def find(self, call_id: str) -> Call | None:
        """An open call."""
        return self._calls.get(call_id)

    def stats(self, call_id: str, principal: Principal) -> dict[str, object] | None:
        """A call's numbers, also for a minute after its end; None unless `principal` owns it."""
        call = self._calls.get(call_id)
        if call is not None:
            owned = principal.owns(call.principal)
            return {**call.stats(), **self._home.about} if owned else None
        ended = self._ended.get(call_id)
        return ended.stats if ended is not None and principal.owns(ended.principal) else None

    def tick(self) -> None:
        """Does what is due for every call."""
        now_s = self._clock()
        self._board.beat(self._row)
        for call in list(self._calls.values()):
            call.tick(now_s)
        if self._recorder is not None and now_s - self._recorded_s >= POLL_S:
            self._recorded_s = now_s
            self._recorder.poll()
        if now_s - self._housekept_s >= HOUSEKEEPING_S:
            self._housekept_s = now_s
            while self._ended and (
                now_s - next(iter(self._ended.values())).ended_s >= ENDED_KEPT_S
            ):
                self._ended.popitem(last=False)
            self.count()

    def count(self) -> None:
        """Brings the board up to date."""
        self._meter.dropped(self._engine.take_drops())
        self._meter.carried(*self._engine.take_packets())
        self._meter.ticked(self._engine.take_clock())

    async def run(self) -> None:
        """Ticks for ever."""
        while True:
            self.tick()
            await asyncio.sleep(TICK_S)

    async def drained(self) -> None:
        """Returns once no call is open."""
        await self._emptied.wait()

    def close_all(self, reason: str) -> None:
        """Ends every call."""
        for call in list(self._calls.values()):
            call.close(reason)

    def _draw_local(self, entry: Entry) -> Local:
        ufrag = self._codec.seal(self._home.address)
        while ufrag in self._ufrags:
            ufrag = self._codec.seal(self._home.address)
        return Local(
            ice_ufrag=ufrag,
            ice_pwd="".join(secrets.choice(_ICE_CHARS) for _ in range(ICE_PWD_CHARS)),
            fingerprint_sha256=self._identity.fingerprint_sha256,
            candidates=entry.candidates,
            ssrc=secrets.randbelow(2**32 - 1) + 1,
            name=f"voice{secrets.token_hex(6)}",
        )

    def _on_state(self, call: Call, before: CallState) -> None:
        self._meter.moved(before, call.state, call.close_reason)
        if call.state is not CallState.CLOSED:
            return
        self._calls.pop(call.call_id, None)
        self._ufrags.discard(call.ice_ufrag)
        self._board.release(self._row)
        self._on_ended(call)
        stats = call.stats()
        self._meter.ended(stats)
        self._ended[call.call_id] = Ended(
            call.principal, {**stats, **self._home.about}, self._clock()
        )
        if len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)
        if not self._calls:
            self._emptied.set()
