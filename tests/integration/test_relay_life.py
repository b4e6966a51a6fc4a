"""How `relay serve` starts, what it refuses, what dies under it, and how it ends: from outside, with real processes."""

from __future__ import annotations

import contextlib
import http.client
import os
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from relay.admin import CONNECTION_LIMIT, IDLE_LIMIT_S
from relay.wire.keyring import Keyring, generate_line
from tests.support import deny
from tests.support.process import Processes, session_members
from tests.support.relayed import (
    CLUSTER,
    RTP,
    Client,
    Relay,
    Transceiver,
    bind_udp,
    is_running,
    parse_address,
    wait_until,
)

can_deny = pytest.mark.skipif(deny.why_not() is not None, reason=str(deny.why_not()))


@pytest.fixture(scope="module")
def relay(module_processes: Processes, tmp_path_factory: pytest.TempPathFactory) -> Relay:
    return Relay(module_processes, tmp_path_factory.mktemp("relay"))


# --- starting -------------------------------------------------------------------------------------


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


@pytest.mark.parametrize("mine", ["{host}:{port}", "0.0.0.0:{port}"])
def test_e02_a_second_relay_on_the_port_is_an_error(
    relay: Relay, processes: Processes, tmp_path: Path, mine: str
) -> None:
    host, port = relay.public[0]
    second = Relay(processes, tmp_path, listen=(mine.format(host=host, port=port),), ready=False)
    assert second.process.wait() == 1
    assert f"UDP port {port} is in use" in last_line(second.process.output())


def test_e02_a_foreign_socket_on_the_port_is_an_error(processes: Processes, tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as foreign:
        foreign.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        foreign.bind(("0.0.0.0", 0))
        port = foreign.getsockname()[1]
        second = Relay(processes, tmp_path, listen=(f"127.0.0.1:{port}",), ready=False)
        assert second.process.wait() == 1
        assert f"UDP port {port} is in use" in last_line(second.process.output())


def test_one_relay_per_run_directory(processes: Processes, tmp_path: Path) -> None:
    first = Relay(processes, tmp_path)
    second = Relay(processes, tmp_path, ready=False)
    assert second.process.wait() == 1
    line = last_line(second.process.output())
    assert f"pid {first.process.pid}" in line
    assert "--run-dir" in line


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--listen", "nonsense"), "--listen nonsense"),
        (("--keyring", "/nonexistent"), "/nonexistent"),
        (("--allow-transceiver", "10.0.0.1/8"), "host bits"),
        (("--workers", "0"), "--workers 0"),
        (("--limit", "x=1"), "unknown limit"),
        (("--idle-timeout", "soon"), "--idle-timeout"),
        (("--backbone", "127.0.0.1:0"), "it needs --backbone-allow"),
        (("--cluster-route", "7=127.0.0.1:1"), "own --cluster"),
        (("--admin", "a..b:1"), "--admin a..b:1"),
        (("--listen", "127.0.0.1:9", "--listen", "127.0.0.1:9"), "port is that of --listen"),
        (("--config", "/nonexistent.toml"), "/nonexistent.toml"),
        (("--no-such-option",), "--no-such-option"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    processes: Processes, tmp_path: Path, arguments: tuple[str, ...], named: str
) -> None:
    wrong = Relay(processes, tmp_path, *arguments, ready=False)
    assert wrong.process.wait() == 2
    output = wrong.process.output().strip()
    assert len(output.splitlines()) == 1
    assert named in output


def test_without_a_command_it_prints_its_help() -> None:
    bare = subprocess.run([sys.executable, "-m", "relay"], capture_output=True, text=True)
    assert bare.returncode == 2
    assert "\n  serve " in bare.stderr


def test_options_from_environment_and_file_and_flags_win(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    keyring = tmp_path / "keyring"
    keyring.write_text(generate_line(2) + "\n")
    (tmp_path / "relay.toml").write_text(
        f'listen = ["127.0.0.1:0"]\nkeyring = "{keyring}"\ninternal = "127.0.0.1:0"\n'
        f'allow_transceiver = ["127.0.0.0/8"]\nadmin = "127.0.0.1:0"\nworkers = 5\ncluster = 1\n'
        f'run_dir = "{tmp_path}/run"\ndrain_timeout = 0\nlog_format = "json"\n[limit]\nflow_checks_per_s = 9\n'
    )
    process = processes.relay(
        *("serve", "--workers", "1"),
        env={
            "RELAY_CONFIG": str(tmp_path / "relay.toml"),
            "RELAY_LISTEN": "127.0.0.1:0 127.0.0.2:0",
            "RELAY_CLUSTER": str(CLUSTER),
        },
    )
    assert process.wait_event("serving")["workers"] == 1
    publics = [parse_address(text) for text in process.listening("public", count=2)]
    assert [host for host, _ in publics] == ["127.0.0.1", "127.0.0.2"]
    client.establish(transceiver.ufrag(Keyring.load(keyring)), publics[0], transceiver)


@can_deny
def test_e16_workers_that_cannot_be_pinned_run(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    prefix = (sys.executable, "-m", "tests.support.deny", "sched_setaffinity:EPERM", "--")
    relay = Relay(processes, tmp_path, "--pin", "always", prefix=prefix)
    client.establish(transceiver.ufrag(relay.keyring), relay.public[0], transceiver)
    assert len(relay.process.events("worker_not_pinned", level="warning")) == 1


def test_e16_e17_more_workers_than_allowed_cpus(processes: Processes, tmp_path: Path) -> None:
    """Pinned round-robin within the affinity that was inherited, never outside."""
    allowed = max(os.sched_getaffinity(0))
    prefix = (
        sys.executable,
        "-c",
        f"import os, sys; os.sched_setaffinity(0, {{{allowed}}}); os.execvp(sys.argv[1], sys.argv[1:])",
    )
    relay = Relay(processes, tmp_path, "--pin", "always", workers=5, prefix=prefix)
    for pid in relay.worker_pids().values():
        assert os.sched_getaffinity(pid) == {allowed}


@pytest.mark.slow
def test_e17_sixty_four_workers_serve_on_few_cpus(
    processes: Processes, tmp_path: Path, transceiver: Transceiver
) -> None:
    relay = Relay(processes, tmp_path, workers=64)
    pids = relay.worker_pids()
    assert len(pids) == 64
    for _ in range(20):
        with Client() as client:
            client.establish(transceiver.ufrag(relay.keyring), relay.public[0], transceiver)
    own_kib = sum(private_kib(pid) for pid in pids.values())
    assert own_kib < 64 * 20_000


def private_kib(pid: int) -> int:
    """Memory that a process shares with nobody."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_"))


def test_e25_what_a_small_buffer_loses_is_counted(
    processes: Processes, tmp_path: Path, client: Client
) -> None:
    relay = Relay(processes, tmp_path, "--receive-buffer", "8192", workers=1)
    worker = relay.worker_pids()[0]
    os.kill(worker, 19)
    for _ in range(500):
        client.send(RTP, relay.public[0])
    os.kill(worker, 18)
    wait_until(lambda: relay.metrics()["relay_kernel_drops_total"] > 400, "kernel drops")
    assert not relay.process.events("worker_hung")


# --- dying and ending -----------------------------------------------------------------------------


def test_e26_a_killed_worker_is_replaced_and_its_flows_go_on(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    relay = Relay(processes, tmp_path, workers=1)
    public = relay.public[0]
    key = client.establish(transceiver.ufrag(relay.keyring), public, transceiver)
    for generation in range(1, 4):
        os.kill(relay.worker_pids()[0], 9)
        client.send(RTP, public)  # waits in the socket, which the supervisor holds
        heard, payload, internal = transceiver.receive()
        assert (heard, payload) == (key, RTP)
        transceiver.send(key, RTP, internal)
        assert client.receive() == (RTP, public)
        relay.process.wait_events("worker_serving", count=generation + 1)
    assert relay.metrics()["relay_worker_restarts_total"] == 3


def test_a_hung_worker_is_killed_and_replaced(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    relay = Relay(processes, tmp_path, workers=1)
    key = client.establish(transceiver.ufrag(relay.keyring), relay.public[0], transceiver)
    hung = relay.worker_pids()[0]
    os.kill(hung, 19)
    client.send(RTP, relay.public[0])
    assert transceiver.receive()[:2] == (key, RTP)
    assert not is_running(hung)
    wait_until(lambda: relay.metrics()["relay_worker_hangs_total"] == 1, "hang counted")


def test_workers_end_with_their_supervisor(processes: Processes, tmp_path: Path) -> None:
    relay = Relay(processes, tmp_path)
    workers = relay.worker_pids().values()
    os.kill(relay.process.pid, 9)
    wait_until(lambda: not any(is_running(pid) for pid in workers), "workers end")
    wait_until(lambda: relay.get("/healthz")[0] == 0, "control ends")
    wait_until(lambda: not session_members(relay.process.pid), "the standby ends")
    host, port = relay.public[0]
    again = Relay(processes, tmp_path, listen=(f"{host}:{port}",))
    assert again.public == relay.public


def test_even_a_hung_child_leaves_its_ports_to_the_next_relay(
    processes: Processes, tmp_path: Path
) -> None:
    relay = Relay(processes, tmp_path)
    hung = [
        relay.worker_pids()[0],
        relay.process.wait_event("control_started")["pid"],
    ]
    for pid in hung:
        os.kill(pid, signal.SIGSTOP)
    os.kill(relay.process.pid, signal.SIGKILL)
    wait_until(lambda: not session_members(relay.process.pid), "they and all others end")
    host, port = relay.public[0]
    admin = "{}:{}".format(*relay.admin)
    again = Relay(processes, tmp_path, "--admin", admin, listen=(f"{host}:{port}",))
    assert (again.public, again.admin) == (relay.public, relay.admin)


def test_control_is_replaced_and_packets_pass_meanwhile(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    relay = Relay(processes, tmp_path)
    key = client.establish(transceiver.ufrag(relay.keyring), relay.public[0], transceiver)
    control = relay.process.wait_event("control_started")["pid"]
    os.kill(control, 9)
    relay.process.wait_event("control_died")
    client.send(RTP, relay.public[0])
    assert transceiver.receive()[:2] == (key, RTP)
    wait_until(lambda: relay.get("/healthz")[0] == 200, "control is back")
    assert relay.metrics()["relay_control_restarts_total"] == 1


def test_e09_an_idle_relay_ends_at_once_with_status_0(processes: Processes, tmp_path: Path) -> None:
    relay = Relay(processes, tmp_path)
    workers = relay.worker_pids().values()
    assert relay.process.stop(timeout_s=10) == 0
    assert not any(is_running(pid) for pid in workers)


def test_signals_to_the_whole_group_drain_too(processes: Processes, tmp_path: Path) -> None:
    """A Ctrl-C reaches workers and control as well: they leave it to the supervisor."""
    relay = Relay(processes, tmp_path)
    for pid in relay.worker_pids().values():
        os.kill(pid, 15)
        os.kill(pid, 2)
    os.kill(relay.process.wait_event("control_started")["pid"], 2)
    assert relay.get("/readyz")[0] == 200
    os.killpg(relay.process.pid, 2)
    assert relay.process.wait(10) == 0
    assert not relay.process.events("worker_died")


def test_ports_of_the_internal_side_count_up(processes: Processes, tmp_path: Path) -> None:
    for _ in range(10):
        with bind_udp() as probe:
            port = probe.getsockname()[1]
        relay = Relay(
            processes, tmp_path / secrets.token_hex(4), internal=f"127.0.0.1:{port}", ready=False
        )
        try:
            relay.wait_ready()
        except AssertionError:  # a neighbour was taken
            continue
        assert relay.internal == [("127.0.0.1", port), ("127.0.0.1", port + 1)]
        return
    pytest.fail("no two free ports in a row")


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_it_serves_without_standard_streams(
    processes: Processes, tmp_path: Path, closed: str
) -> None:
    """As some supervisors and `nohup … 2>&-` start programs: a socket must not become descriptor 2."""
    deaf = Relay(processes, tmp_path, prefix=("sh", "-c", f'exec "$@" {closed}', "sh"), ready=False)
    takeover = tmp_path / "run" / "takeover.sock"
    wait_until(takeover.exists, "the relay has started")
    links = [os.readlink(f"/proc/{deaf.process.pid}/fd/{number}") for number in range(3)]
    assert links[2] == os.devnull
    assert not any("socket" in link for link in links)
    assert deaf.process.stop() == 0


@pytest.mark.parametrize("descriptors", [12, 16, 20, 24])
def test_too_few_descriptors_are_said_in_words(
    processes: Processes, tmp_path: Path, descriptors: int
) -> None:
    prefix = ("prlimit", f"--nofile={descriptors}:{descriptors}")
    poor = Relay(processes, tmp_path, prefix=prefix, ready=False)
    assert poor.process.wait() == 1
    assert "Too many open files" in poor.process.output()
    assert "Traceback" not in poor.process.output()
    assert last_line(poor.process.output()).startswith("relay: ")


def test_connections_that_owe_a_request_keep_no_probe_out(
    processes: Processes, tmp_path: Path
) -> None:
    relay = Relay(processes, tmp_path)
    with contextlib.ExitStack() as held:
        slow = [
            held.enter_context(socket.create_connection(relay.admin))
            for _ in range(2 * CONNECTION_LIMIT)
        ]
        for each in slow:
            with contextlib.suppress(OSError):  # an earlier one may have given way already
                each.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow")
        assert relay.get("/healthz")[0] == 200
        assert relay.get("/metrics")[0] == 200


def test_connections_that_take_no_answer_keep_no_probe_out(
    processes: Processes, tmp_path: Path
) -> None:
    relay = Relay(processes, tmp_path)
    with contextlib.ExitStack() as held:
        for _ in range(CONNECTION_LIMIT):
            deaf = held.enter_context(socket.socket())
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(relay.admin)
            deaf.settimeout(0.1)
            with contextlib.suppress(TimeoutError):  # once its answers find no room, it is not read
                while True:
                    deaf.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
        assert relay.get("/healthz")[0] == 200
        assert relay.get("/metrics")[0] == 200


def test_a_request_that_comes_in_drops_ends(processes: Processes, tmp_path: Path) -> None:
    relay = Relay(processes, tmp_path)
    with socket.create_connection(relay.admin) as slow:
        slow.settimeout(IDLE_LIMIT_S / 20)
        slow.sendall(b"GET /healthz HTTP/1.1\r\n")

        def is_over() -> bool:
            try:
                slow.sendall(b"X")
                return slow.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        wait_until(is_over, "the connection's end", timeout_s=3 * IDLE_LIMIT_S)


def test_an_accept_header_that_makes_no_sense_gets_the_plain_format(relay: Relay) -> None:
    connection = http.client.HTTPConnection(*relay.admin, timeout=10)
    accept = "application/openmetrics-text; version=abc"
    connection.request("GET", "/metrics", headers={"Accept": accept})
    response = connection.getresponse()
    assert response.status == 200
    assert response.read().startswith(b"# HELP")
    connection.close()


@pytest.mark.parametrize(
    "head",
    ["Content-Length: 35", "Transfer-Encoding: chunked", "Content-Length: +35",
     "Content-Length: 0\r\nContent-Length: 35", "no field\r\nContent-Length: 35"],
)  # fmt: skip
def test_the_body_of_a_request_is_no_request(relay: Relay, head: str) -> None:
    with socket.create_connection(relay.admin) as client:
        client.settimeout(10)
        client.sendall(f"GET /healthz HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode())
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while received := client.recv(65_536):
                answer += received
    assert answer.count(b"HTTP/1.1 200") == 1
    assert answer.endswith(b"\r\n\r\nok\n")
    assert b"Connection: close" in answer


def test_a_whole_url_is_taken_for_its_path(relay: Relay) -> None:
    for url in ("http://relay.example/healthz", "http://relay.example:9478/readyz?verbose"):
        assert relay.get(url) == (200, "ok\n")
    assert relay.get("http://relay.example")[0] == 404
    assert relay.get("*")[0] == 404


@pytest.mark.parametrize("inherited", ["--ignore-signal=CHLD", "--block-signal=TERM"])
def test_signals_of_a_parent_that_did_away_with_them_count(
    processes: Processes, tmp_path: Path, inherited: str
) -> None:
    relay = Relay(processes, tmp_path, prefix=("env", inherited))
    os.kill(relay.worker_pids()[0], signal.SIGKILL)
    assert relay.process.wait_event("worker_died")["how"] == "SIGKILL"
    relay.process.wait_events("worker_serving", slot=0, count=2)
    assert relay.process.stop() == 0
