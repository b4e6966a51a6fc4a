"""`relay serve` from outside: real processes, a client on one side, a sink for a transceiver on the other."""

from __future__ import annotations

import os
import secrets
import socket
import struct
import subprocess
import sys
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from relay.wire._codec import StunClass
from relay.wire.keyring import Keyring, generate_line
from relay.wire.stun import USERNAME, encode
from relay.wire.token import TokenCodec, TransceiverAddress
from tests.support import deny
from tests.support.process import Processes
from tests.support.relayed import (
    CLUSTER,
    PASSWORD,
    RTP,
    Client,
    Relay,
    Transceiver,
    bind_udp,
    binding_request,
    is_running,
    parse_address,
    wait_until,
)

HAS_IPV6 = Path("/proc/net/if_inet6").exists() and "00000001" in Path(
    "/proc/net/if_inet6"
).read_text().replace("0" * 24, "")
needs_ipv6 = pytest.mark.skipif(not HAS_IPV6, reason="this host has no IPv6 loopback")
can_deny = pytest.mark.skipif(deny.why_not() is not None, reason=str(deny.why_not()))

V1 = bytes.fromhex(
    "000100582112a442b7e7a701bc34d686fa87dfae802200105354554e207465737420636c69656e740024"
    "00046e0001ff80290008932ff9b151263b36000600096576746a3a68367659202020000800149aeaa70c"
    "bfd8cb56781ef2b5b2d3f249c1b571a280280004e57a3bcf"
)
"""RFC 5769 2.1: a check for the ufrag `evtj`."""


@pytest.fixture(scope="module")
def relay(module_processes: Processes, tmp_path_factory: pytest.TempPathFactory) -> Relay:
    return Relay(module_processes, tmp_path_factory.mktemp("relay"))


# --- a call ---------------------------------------------------------------------------------------


def test_a_check_goes_up_its_success_down_then_media_both_ways(
    relay: Relay, client: Client, transceiver: Transceiver
) -> None:
    public = relay.public[0]
    ufrag = transceiver.ufrag(relay.keyring)
    with relay.changed({"rx public": 1, "tx internal": 1, "created": 1}):
        check = client.check(ufrag, public)
        key, payload, sender = transceiver.receive()
    assert payload == check
    assert (key.client, (str(key.proxy.ip), key.proxy.port)) == (client.address, public)
    assert sender in relay.internal
    with relay.changed({"rx public": 1, "drop half_open": 1}):
        client.send(RTP, public)
    with relay.changed({"rx internal": 1, "drop half_open": 1}):
        transceiver.send(key, RTP, sender)
    with relay.changed(
        {"rx public": 2, "tx internal": 2, "rx internal": 2, "tx public": 2, "promoted": 1}
    ):
        client.establish(ufrag, public, transceiver)
        client.send(RTP, public)
        assert transceiver.receive() == (key, RTP, sender)
        transceiver.send(key, RTP[::-1], sender)
        assert client.receive() == (RTP[::-1], public)
    assert relay.metrics()['relay_flows{state="established"}'] >= 1


def test_an_error_response_passes_and_establishes_nothing(
    relay: Relay, client: Client, transceiver: Transceiver
) -> None:
    with relay.changed(
        {"rx public": 1, "tx internal": 1, "rx internal": 1, "tx public": 1, "created": 1}
    ):
        client.check(transceiver.ufrag(relay.keyring), relay.public[0])
        transceiver.refuse()
        client.receive()


def test_an_ice_restart_from_the_same_port_reaches_the_new_transceiver(
    relay: Relay, client: Client, transceiver: Transceiver
) -> None:
    """Case B03: the new token decides, and both owners get what carries none."""
    public = relay.public[0]
    client.establish(transceiver.ufrag(relay.keyring), public, transceiver)
    with Transceiver() as other:
        client.establish(other.ufrag(relay.keyring), public, other)
        client.send(RTP, public)
        assert transceiver.receive()[1] == other.receive()[1] == RTP


# --- what is dropped (cases.md a), each with the exact counter ------------------------------------


def attribute(number: int, value: bytes) -> bytes:
    return struct.pack("!HH", number, len(value)) + value + bytes(-len(value) % 4)


def named(username: bytes) -> bytes:
    return encode(StunClass.REQUEST, os.urandom(12), [(USERNAME, username)], key=PASSWORD)


GARBAGE = [
    ("A01 a ufrag of somebody else", V1, "token_malformed"),
    ("A05 no attributes", bytes.fromhex("000100002112a442") + bytes(12), "no_flow"),
    ("A05 nineteen bytes", V1[:19], "stun_malformed"),
    ("A05 one byte", V1[:1], "stun_malformed"),
    ("A05 cut in USERNAME", V1[:74], "stun_malformed"),
    ("A07 length not a multiple of 4", V1[:2] + b"\0\x0d" + V1[4:33], "stun_malformed"),
    ("A07 one byte more", V1[:3] + b"\x59" + V1[4:] + b"\0", "stun_malformed"),
    ("A11 no magic cookie", V1[:4] + b"\x12\x34\x56\x78" + V1[8:], "stun_malformed"),
    ("A12 USERNAME of 509 bytes", named(b"a" * 28 + b":" + b"b" * 480), "stun_username"),
    ("A12 USERNAME of 600 bytes", named(b"a" * 28 + b":" + b"b" * 571), "stun_username"),
    ("A12 USERNAME of 0 bytes", named(b""), "stun_username"),
    ("A16 no colon", named(b"a" * 28), "stun_username"),
    ("A16 nothing before the colon", named(b":" + b"a" * 28), "stun_username"),
    ("A16 reversed", named(b"cLnt:" + b"a" * 28), "token_malformed"),
    ("A16 leading space", named(b" " + b"a" * 28 + b":cLnt"), "token_malformed"),
    ("A21 wrong FINGERPRINT", V1[:-1] + b"\0", "stun_fingerprint"),
    ("A23 an answer of a stranger", b"\x01\x01" + V1[2:-8], "stun_malformed"),
    ("A24 TURN Allocate", encode(StunClass.REQUEST, bytes(12), [], method=3), "stun_method"),
    ("A24 TURN channel data", bytes.fromhex("40000008") + bytes(8), "protocol"),
    ("A29 a datagram of 9,000 bytes", b"\x80" + bytes(8999), "truncated"),
    ("A31 an empty datagram", b"", "empty"),
    ("A31 DNS", bytes.fromhex("123401000001000000000000"), "protocol"),
    ("A31 QUIC", b"\xc0\0\0\0\1" + bytes(1195), "protocol"),
    ("a token under no key", named(b"I" + b"A" * 27 + b":cLnt"), "token_unknown_key"),
    ("a token without a hint", named(b"4" + b"A" * 27 + b":cLnt"), "token_no_hint"),
    ("RTP of a stranger", RTP, "no_flow"),
    ("DTLS of a stranger", b"\x16\xfe\xfd" + bytes(60), "no_flow"),
]


@pytest.mark.parametrize(
    ("datagram", "reason"), [case[1:] for case in GARBAGE], ids=[case[0] for case in GARBAGE]
)
def test_garbage_costs_one_counter_and_gets_no_answer(
    relay: Relay, client: Client, datagram: bytes, reason: str
) -> None:
    with relay.changed({"rx public": 1, f"drop {reason}": 1}):
        client.send(datagram, relay.public[0])
    assert client.hears_nothing(0.02)


def test_a25_first_byte_edges_of_a_known_flow(
    relay: Relay, client: Client, transceiver: Transceiver
) -> None:
    public = relay.public[0]
    client.establish(transceiver.ufrag(relay.keyring), public, transceiver)
    passing = [20, 63, 128, 191]
    failing = [4, 15, 16, 19, 64, 79, 80, 127, 192, 255]
    expected = {"rx public": 16, "drop protocol": 10, "drop stun_malformed": 2, "tx internal": 4}
    with relay.changed(expected):
        for first in [2, 3, *passing, *failing]:
            client.send(bytes([first]) + bytes(49), public)
        heard = [transceiver.receive()[1][0] for _ in passing]
    assert heard == passing


def test_tokens_that_may_not_pass(relay: Relay, client: Client, transceiver: Transceiver) -> None:
    public = relay.public[0]
    outside = TokenCodec(relay.keyring).seal(
        TransceiverAddress(CLUSTER, ip_address("192.0.2.1"), 40000)
    )
    cases = [
        (outside, "transceiver_not_allowed"),
        (transceiver.ufrag(relay.keyring, cluster=CLUSTER + 1), "cluster_unknown"),
    ]
    forged = transceiver.ufrag(relay.keyring)
    forged = forged[:8] + ("A" if forged[8] != "A" else "B") + forged[9:]
    cases.append((forged, "token_forged"))
    for ufrag, reason in cases:
        with relay.changed({"rx public": 1, f"drop {reason}": 1}):
            client.check(ufrag, public)
    assert client.hears_nothing(0.02)


def test_a12_a_client_ufrag_of_256_characters_passes(
    relay: Relay, client: Client, transceiver: Transceiver
) -> None:
    name = f"{transceiver.ufrag(relay.keyring)}:{'c' * 256}".encode()
    client.send(binding_request(name), relay.public[0])
    assert transceiver.receive()[1][20:].find(name) == 4


def test_what_no_owner_sent_stays_inside(
    relay: Relay, client: Client, transceiver: Transceiver
) -> None:
    """Rule 6: magic, length, sender and flow; the relay is no reflector."""
    public = relay.public[0]
    key = client.establish(transceiver.ufrag(relay.keyring), public, transceiver)
    client.send(RTP, public)
    internal = transceiver.receive()[2]
    with Transceiver() as stranger, Client() as victim:
        unknown = type(key)(victim.address, key.proxy)
        for datagram, reason in [
            (key + RTP, "sender_not_owner"),
            (key[:30], "spp_malformed"),
            (b"\x57" + key[1:] + RTP, "spp_malformed"),
        ]:
            with relay.changed({"rx internal": 1, f"drop {reason}": 1}):
                stranger.socket.sendto(datagram, internal)
        with relay.changed({"rx internal": 1, "drop no_flow": 1}):
            transceiver.send(unknown, RTP, internal)
        assert victim.hears_nothing(0.02)
    assert client.hears_nothing(0.02)


# --- addresses ------------------------------------------------------------------------------------


def test_a_wildcard_answers_from_the_address_that_was_asked(
    processes: Processes, tmp_path: Path, transceiver: Transceiver
) -> None:
    relay = Relay(processes, tmp_path, listen=("0.0.0.0:0",))
    port = relay.public[0][1]
    ufrag = transceiver.ufrag(relay.keyring)
    for host in ("127.0.0.1", "127.0.0.2", "127.8.9.10"):
        with Client() as client:
            key = client.establish(ufrag, (host, port), transceiver)
            assert (str(key.proxy.ip), key.proxy.port) == (host, port)


def test_the_advertised_address_is_the_proxy(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    relay = Relay(processes, tmp_path, listen=("127.0.0.1:0=203.0.113.7:443",))
    key = client.establish(transceiver.ufrag(relay.keyring), relay.public[0], transceiver)
    assert (str(key.proxy.ip), key.proxy.port) == ("203.0.113.7", 443)
    assert relay.process.events("listening", role="public")[0]["public"] == "203.0.113.7:443"


@needs_ipv6
def test_both_families_and_a_transceiver_on_ipv6(processes: Processes, tmp_path: Path) -> None:
    relay = Relay(
        processes,
        tmp_path,
        *("--ipv6-prefix", "3=::/64"),
        listen=("127.0.0.1:0", "[::1]:0"),
        internal="[::]:0",
    )
    prefixes = {3: ip_network("::/64")}
    for client_host, relay_address in zip(("127.0.0.1", "::1"), relay.public, strict=True):
        for transceiver_host in ("127.0.0.1", "::1"):
            with Client(client_host) as client, Transceiver(transceiver_host) as transceiver:
                ufrag = transceiver.ufrag(relay.keyring, prefixes=prefixes)
                key = client.establish(ufrag, relay_address, transceiver)
                assert key.client == client.address


@can_deny
def test_e18_a_host_without_ipv6_serves_ipv4(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    prefix = (sys.executable, "-m", "tests.support.deny", "socket=10:EAFNOSUPPORT", "--")
    relay = Relay(processes, tmp_path, listen=("*:0",), prefix=prefix)
    assert len(relay.public) == 1
    assert relay.process.events("address_family_absent", level="warning")
    public = ("127.0.0.1", relay.public[0][1])
    client.establish(transceiver.ufrag(relay.keyring), public, transceiver)


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
    host, port = relay.public[0]
    again = Relay(processes, tmp_path, listen=(f"{host}:{port}",))
    assert again.public == relay.public


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
