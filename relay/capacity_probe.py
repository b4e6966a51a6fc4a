"""What a packet costs a worker of this machine: a forked worker on loopback, filled and drained.

1. The worker is stopped, its socket filled with a mix of voice packets of many clients, and continued;
   what its CPU clock has moved by when it sleeps again is what these packets cost.
2. On loopback the receiver's half of the network stack is in it, a network card's driver is not.
3. Nothing leaves 127.0.0.1, and the worker ends with the probe.
"""

import os
import signal
import socket
import time
from collections.abc import Callable
from statistics import median
from typing import NoReturn

from relay._dataplane import LIMITS, ForwardConfig, PublicSocket, Worker, create_stats, create_table
from relay.capacity import Cost
from relay.errors import StartError
from relay.wire._codec import StunClass
from relay.wire.address import Endpoint
from relay.wire.keyring import Keyring, generate_line
from relay.wire.spp import FlowKey, unwrap, wrap
from relay.wire.stun import USERNAME, Message, encode, success
from relay.wire.token import TokenCodec, TransceiverAddress

CLIENTS = 64
ROUNDS = 9
MOST_PACKETS = 4096
PACKET_MEMORY_BYTES = 1280
"""Of one voice packet, as the kernel counts it in a receive buffer."""

_SO_RCVBUFFORCE = 33
_PASSWORD = b"of no consequence in a probe"


def measure() -> Cost:
    """About three seconds of work. Raises StartError when packets are lost on the way."""
    keyring = Keyring.parse(generate_line())
    public, internal, transceiver = (_socket() for _ in range(3))
    clients = [_socket() for _ in range(CLIENTS)]
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        _work(keyring, public, internal, reading)
    try:
        os.close(reading)
        ufrag = TokenCodec(keyring).seal(
            TransceiverAddress(0, Endpoint.of(*transceiver.getsockname()).ip, _port(transceiver))
        )
        keys = [_establish(client, public, transceiver, ufrag) for client in clients]
        packets = min(MOST_PACKETS, _room(public), _room(internal), _room(transceiver))
        packets = min(packets, CLIENTS * _room(clients[0]))
        sizes = [62 + (i * 37) % 81 for i in range(packets)]

        def fill_up() -> None:
            for i, size in enumerate(sizes):
                clients[i % CLIENTS].sendto(b"\x80" + bytes(size), public.getsockname())

        def fill_down() -> None:
            for i, size in enumerate(sizes):
                datagram = wrap(keys[i % CLIENTS], b"\x80" + bytes(size))
                transceiver.sendto(datagram, internal.getsockname())

        up_us = _cost_us(pid, fill_up, [transceiver], packets)
        down_us = _cost_us(pid, fill_down, clients, packets)
        return Cost(up_us, down_us)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(writing)
        for sock in (public, internal, transceiver, *clients):
            sock.close()


def _work(
    keyring: Keyring, public: socket.socket, internal: socket.socket, life_fd: int
) -> NoReturn:
    """The worker's whole life, in the child."""
    try:
        Worker(
            slot=0,
            public=[PublicSocket(public.fileno(), 0)],
            internal_fd=internal.fileno(),
            table_fd=create_table(1024),
            stats_fd=create_stats(1),
            stop_fd=os.eventfd(0),
            life_fd=life_fd,
            config=ForwardConfig(
                cluster_id=0,
                keys=[(key.id, key.secret) for key in keyring.keys],
                allow_transceiver=[("127.0.0.0/8", 0, 65535)],
                limits=dict.fromkeys(LIMITS, 1 << 31),
            ),
        ).run()
    finally:
        os._exit(1)


def _socket() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for option in (_SO_RCVBUFFORCE, socket.SO_RCVBUF):
        try:
            sock.setsockopt(socket.SOL_SOCKET, option, MOST_PACKETS * PACKET_MEMORY_BYTES)
            break
        except PermissionError:
            continue
    sock.bind(("127.0.0.1", 0))
    sock.settimeout(2.0)
    return sock


def _port(sock: socket.socket) -> int:
    port: int = sock.getsockname()[1]
    return port


def _room(sock: socket.socket) -> int:
    """Packets that fit the receive buffer."""
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // PACKET_MEMORY_BYTES


def _establish(
    client: socket.socket, public: socket.socket, transceiver: socket.socket, ufrag: str
) -> FlowKey:
    check = encode(StunClass.REQUEST, os.urandom(12), [(USERNAME, f"{ufrag}:probe".encode())])
    try:
        client.sendto(check, public.getsockname())
        datagram, internal = transceiver.recvfrom(2048)
        unwrapped = unwrap(datagram)
        assert unwrapped is not None
        key, payload = unwrapped
        answer = success(Message.read(payload), key.client, _PASSWORD)
        transceiver.sendto(wrap(key, answer), internal)
        client.recv(2048)
    except TimeoutError:
        raise StartError("the probe's worker does not forward on loopback") from None
    return key


def _cost_us(
    pid: int, fill: Callable[[], None], receivers: list[socket.socket], packets: int
) -> float:
    """CPU microseconds of the worker for each packet; the median of some rounds."""
    clock = ~pid << 3 | 2  # clock_getcpuclockid(3)
    costs = []
    for _ in range(ROUNDS):
        os.kill(pid, signal.SIGSTOP)
        _await_state(pid, "T")
        fill()
        before_s = time.clock_gettime(clock)
        os.kill(pid, signal.SIGCONT)
        _await_state(pid, "S")
        costs.append((time.clock_gettime(clock) - before_s) * 1e6 / packets)
        if sum(_empty(sock) for sock in receivers) != packets:
            raise StartError("the probe lost packets on loopback: raise net.core.rmem_max")
    return median(costs)


def _await_state(pid: int, state: str) -> None:
    seen = 0
    while seen < 3:
        time.sleep(0.002)
        with open(f"/proc/{pid}/stat") as stat:
            now = stat.read().rpartition(")")[2].split()[0]
        if now in ("Z", "X"):
            raise StartError("the probe's worker died")
        seen = seen + 1 if now == state else 0


def _empty(sock: socket.socket) -> int:
    received = 0
    sock.setblocking(False)
    try:
        while True:
            sock.recv(2048)
            received += 1
    except BlockingIOError:
        return received
    finally:
        sock.settimeout(2.0)
