"""How a relay passes to a successor without losing a packet: the messages between two supervisors.

The successor connects to takeover.sock (SOCK_SEQPACKET) and both send one JSON object a message:

    successor                                 running relay
    {hello: protocol}                     →
                                          ←   {refused: reason}, or {manifest, fds: n} and then
                                              {more: k} with k descriptors each (SCM_RIGHTS)
    {workers: n} with n pidfds            →   warm workers, which will be the next writers
    {release: slot}                       →   stops that slot's worker and sees its exit
                                          ←   {released: slot}
      … for each slot; the successor's worker takes a slot only after `released` …
    {done: true}                          →   ends; the connection's end says that it has
    {abort: reason}                       →   takes back what it released

1. A slot never has two writers: the running relay reaps its worker before it says `released`, and
   takes a slot back only after every pidfd of the successor's workers says that they are gone.
2. A connection that ends before `done` is an abort. So is one that says nothing for too long: a successor
   that hangs would keep a slot unserved, and every later takeover out.
3. Nothing here blocks the running relay: it reads when its selector says so.
4. Nothing that a successor sends ends the running relay before every slot has passed: nonsense is an abort.
"""

import contextlib
import errno
import json
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from relay.errors import HandoverError
from relay.estate import Estate, describe
from relay.events import Events
from relay.wire.log import Logger

PROTOCOL = 1
FDS_PER_MESSAGE = 200  # SCM_MAX_FD is 253
HELLO_LIMIT_S = 10.0
SILENCE_LIMIT_S = 45.0
"""More than a successor gives itself to warm up (relay/takeover.py)."""
TAKING_LIMIT_S = 15.0
"""Likewise, once it holds a slot."""
_MESSAGE_BYTES = 65536


def send(conn: socket.socket, message: Mapping[str, object], fds: Sequence[int] = ()) -> None:
    """One message. Raises OSError when the other side is gone or does not read."""
    socket.send_fds(conn, [json.dumps(message).encode()], fds)


def receive(conn: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message and its descriptors (close-on-exec); None at the connection's end.

    Raises BlockingIOError or TimeoutError as the socket does, and OSError when this process may not have so
    many descriptors: the kernel then leaves some out.
    """
    try:
        data, fds, flags, _ = socket.recv_fds(conn, _MESSAGE_BYTES, FDS_PER_MESSAGE)
    except ConnectionError:
        return None
    if flags & socket.MSG_CTRUNC:
        for fd in fds:
            os.close(fd)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    for fd in fds:
        os.set_inheritable(fd, False)
    return (dict(json.loads(data)), fds) if data else None


# --- the successor's side -----------------------------------------------------------------------


class Predecessor:
    """The running relay, as its successor sees it."""

    def __init__(self, conn: socket.socket) -> None:
        """Say hello and receive the estate. Raises HandoverError."""
        self.conn = conn
        conn.settimeout(HELLO_LIMIT_S)
        try:
            send(conn, {"hello": PROTOCOL})
            answer = receive(conn)
            if answer is None:
                raise HandoverError("the running relay ended while it was asked")
            if "refused" in answer[0]:
                raise HandoverError(f"the running relay refuses: {answer[0]['refused']}")
            self.manifest: dict[str, Any] = answer[0]["manifest"]
            self.fds: list[int] = []
            while len(self.fds) < answer[0]["fds"]:
                more = receive(conn)
                if more is None:
                    raise HandoverError("the running relay ended while it handed over")
                self.fds += more[1]
        except OSError as error:
            reason = error.strerror or f"nothing came for {HELLO_LIMIT_S:.0f} s"
            raise HandoverError(f"the running relay does not hand over: {reason}") from None
        except (ValueError, KeyError) as error:
            raise HandoverError(f"the running relay does not hand over: {error!r}") from None
        conn.setblocking(False)

    def offer_workers(self, pidfds: Sequence[int]) -> None:
        """Show the processes that will write into released slots."""
        for start in range(0, len(pidfds), FDS_PER_MESSAGE):
            part = pidfds[start : start + FDS_PER_MESSAGE]
            self._send({"workers": len(part)}, part)

    def ask_release(self, slot: int) -> None:
        """Ask for a slot; the answer is awaited with `released`."""
        self._send({"release": slot})

    def released(self) -> int | None:
        """The slot of the message that has arrived; None at the connection's end."""
        message = receive(self.conn)
        return None if message is None else int(message[0]["released"])

    def done(self) -> None:
        """Everything has been taken: the running relay may end."""
        self._send({"done": True})

    def abort(self, reason: str) -> None:
        """Give everything back; all workers have been reaped."""
        try:
            send(self.conn, {"abort": reason})
        except OSError:
            pass
        self.conn.close()

    def _send(self, message: Mapping[str, object], fds: Sequence[int] = ()) -> None:
        try:
            send(self.conn, message, fds)
        except OSError as error:
            raise HandoverError(f"the running relay is gone: {error.strerror}") from None


# --- the running relay's side -------------------------------------------------------------------


class Slots(Protocol):
    """What a handover needs of the worker pool."""

    def release(self, slot: int, then: Callable[[], None]) -> None:
        """Stop a slot's worker; `then` is called once it has been reaped."""

    def hold(self, slot: int) -> None:
        """Serve a slot (again)."""


class Successor:
    """A successor's connection, as the running relay sees it. `ended` tells how it went."""

    def __init__(
        self,
        conn: socket.socket,
        estate: Estate,
        slots: Slots,
        log: Logger,
        events: Events,
        *,
        refusal: str | None,
        ended: Callable[[bool], None],
    ) -> None:
        conn.setblocking(False)
        self._conn = conn
        self._estate = estate
        self._slots = slots
        self._log = log
        self._events = events
        self._refusal = refusal
        self._ended = ended
        self._released: list[int] = []
        self._pidfds: list[int] = []
        self._closed = False
        self._greeted = False
        self._heard_s = time.monotonic()
        events.watch(conn.fileno(), self._on_readable)

    @property
    def pid(self) -> int:
        """The successor's process id."""
        credentials = self._conn.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid: int = struct.unpack("=iII", credentials)[0]
        return pid

    def abort(self, reason: str) -> None:
        """End the connection and take back what was released."""
        if self._closed:
            return
        self._closed = True
        self._events.unwatch(self._conn.fileno())
        self._conn.close()
        self._log.warning("handover_aborted", reason=reason, released=self._released)
        self._take_back()

    def tick(self) -> None:
        """Give up a successor that has been silent for too long."""
        limit_s = HELLO_LIMIT_S
        if self._greeted:
            limit_s = TAKING_LIMIT_S if self._released else SILENCE_LIMIT_S
        if self._closed or time.monotonic() - self._heard_s < limit_s:
            return
        if self._greeted and self.pid > 0:
            # It must not wake up later and think that it is the relay.
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
        self.abort(f"the successor said nothing for {limit_s:.0f} s")

    def _on_readable(self) -> None:
        try:
            message = receive(self._conn)
        except BlockingIOError:
            return
        except OSError as error:
            self.abort(f"the successor cannot be read: {error.strerror}")
            return
        except (ValueError, TypeError, RecursionError) as error:
            self.abort(f"the successor does not speak JSON: {error!r}")
            return
        self._heard_s = time.monotonic()
        try:
            self._handle(*message) if message else self.abort("the successor ended")
        except OSError as error:
            self.abort(f"the successor does not read: {error.strerror}")
        except (ValueError, TypeError) as error:
            self.abort(f"the successor asks for what cannot be: {error}")

    def _handle(self, message: Mapping[str, Any], fds: list[int]) -> None:
        if "hello" in message:
            self._hello(message["hello"])
        elif "workers" in message:
            self._pidfds += fds
        elif "release" in message:
            slot = int(message["release"])
            left = set(range(len(self._estate.tables))) - set(self._released)
            if not self._greeted or slot not in left:
                raise ValueError(f"slot {slot}")
            self._released.append(slot)
            self._slots.release(slot, lambda: self._say_released(slot))
        elif "abort" in message:
            self.abort(str(message["abort"]))
        elif "done" in message:
            if len(self._released) < len(self._estate.tables):
                raise ValueError("an end before it has every slot")
            self._closed = True
            self._events.unwatch(self._conn.fileno())
            self._ended(True)

    def _hello(self, protocol: object) -> None:
        refusal = self._refusal
        if protocol != PROTOCOL:
            refusal = f"it speaks handover protocol {PROTOCOL}, not {protocol}; restart it"
        if refusal is not None:
            send(self._conn, {"refused": refusal})
            self.abort(refusal)
            return
        self._greeted = True
        manifest, fds = describe(self._estate)
        send(self._conn, {"manifest": manifest, "fds": len(fds)})
        for start in range(0, len(fds), FDS_PER_MESSAGE):
            part = fds[start : start + FDS_PER_MESSAGE]
            send(self._conn, {"more": len(part)}, part)
        self._log.info("handover_started", successor=self.pid)

    def _say_released(self, slot: int) -> None:
        if self._closed:
            return
        try:
            send(self._conn, {"released": slot})
        except OSError as error:
            self.abort(f"the successor does not read: {error.strerror}")

    def _take_back(self) -> None:
        """Serve the released slots again, once no worker of the successor is left."""
        for pidfd in self._pidfds:
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self._events.watch(pidfd, lambda pidfd=pidfd: self._on_gone(pidfd))  # type: ignore[misc]
        if not self._pidfds:
            self._resume()

    def _on_gone(self, pidfd: int) -> None:
        self._events.unwatch(pidfd)
        os.close(pidfd)
        self._pidfds.remove(pidfd)
        if not self._pidfds:
            self._resume()

    def _resume(self) -> None:
        for slot in self._released:
            self._slots.hold(slot)
        self._ended(False)
