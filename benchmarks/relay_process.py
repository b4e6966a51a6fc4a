"""One worker of the relay and nothing else: `relay_process.py LISTEN_IP PORT BATCH COALESCE_US`.

It prints its public and its internal UDP port, forwards for cluster 1 under KEY to any transceiver on
loopback with the caps of design rule 3 out of the way, and ends with its input. PORT 0 is any port;
another worker that is given the port of the first one shares it.
"""

import os
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from relay._dataplane import LIMITS, ForwardConfig, PublicSocket, Worker, create_stats, create_table

KEY = bytes(range(32))
MAX_FLOWS = 1 << 20
RECEIVE_BUFFER_BYTES = 32 << 20
SO_RCVBUFFORCE = 33


def _open_socket(host: str, port: int = 0) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    for option in (SO_RCVBUFFORCE, socket.SO_RCVBUF):
        try:
            sock.setsockopt(socket.SOL_SOCKET, option, RECEIVE_BUFFER_BYTES)
            break
        except PermissionError:
            continue
    sock.bind((host, port))
    return sock


def main(listen: str, port: int, batch: int, coalesce_us: int) -> None:
    """Serve until standard input ends."""
    public, internal = _open_socket(listen, port), _open_socket("127.0.0.1")
    worker = Worker(
        slot=0,
        public=[PublicSocket(public.fileno(), 0)],
        internal_fd=internal.fileno(),
        table_fd=create_table(MAX_FLOWS),
        stats_fd=create_stats(1),
        stop_fd=os.eventfd(0),
        life_fd=sys.stdin.fileno(),
        config=ForwardConfig(
            cluster_id=1,
            keys=[(0, KEY)],
            allow_transceiver=[("127.0.0.0/8", 0, 65535)],
            limits=dict.fromkeys(LIMITS, 1 << 31),
            idle_timeout_s=3600,
        ),
        batch_max=batch,
        coalesce_us=coalesce_us,
    )
    print(public.getsockname()[1], internal.getsockname()[1], flush=True)
    worker.run()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
