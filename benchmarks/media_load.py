"""Places calls of benchmarks/mediaload.c at a server by HTTP, lets them talk, and reads CPU clocks."""

from __future__ import annotations

import http.client
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.programs import BUILD, HERE, Program

ROOT = HERE.parent
PAYLOAD_TYPE = 111

_OFFER = """v=0
o=- 1 2 IN IP4 127.0.0.1
s=-
t=0 0
a=group:BUNDLE 0
m=audio 9 UDP/TLS/RTP/SAVPF {pt}
c=IN IP4 0.0.0.0
a=rtcp:9 IN IP4 0.0.0.0
a=ice-ufrag:{ufrag}
a=ice-pwd:{pwd}
a=fingerprint:sha-256 {fingerprint}
a=setup:actpass
a=mid:0
a=sendrecv
a=rtcp-mux
a=rtpmap:{pt} opus/48000/2
a=fmtp:{pt} minptime=10;useinbandfec=1
a=ssrc:{ssrc} cname:load
a=candidate:1 1 udp 2130706431 127.0.0.1 {port} typ host
a=end-of-candidates
"""


def media_load_program() -> Path:
    """benchmarks/mediaload.c with the parts of csrc that it talks with, compiled when older."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise RuntimeError("no C compiler: install gcc")
    media = ROOT / "csrc" / "media"
    parts = [media / f"{name}.c" for name in ("ice", "rtp", "srtp", "hmac")]
    sources = [HERE / "mediaload.c", *parts, *sorted((ROOT / "csrc" / "wire").glob("*.c"))]
    program = BUILD / "mediaload"
    newest = max(source.stat().st_mtime for source in sources)
    if not program.exists() or program.stat().st_mtime < newest:
        BUILD.mkdir(parents=True, exist_ok=True)
        command = [compiler, "-std=gnu11", "-O2", f"-I{ROOT / 'csrc'}", "-o", program, *sources]
        libraries = ["-lssl", "-lcrypto", "-lopus", "-lm"]
        subprocess.run([*map(str, command), *libraries], check=True)
    return program


@dataclass(frozen=True)
class Talked:
    """What a run of talking clients gave."""

    sessions: int
    seconds: float
    cpu_ms_per_session_s: float
    """CPU time of the server, in ms, per second of one session."""
    sent: int
    received: int
    jitter_p50_ms: float
    jitter_p99_ms: float
    jitter_max_ms: float

    @property
    def sessions_per_core(self) -> float:
        """How many would fill one core."""
        return 1_000 / self.cpu_ms_per_session_s


class Load:
    """Clients of one server."""

    def __init__(self, port: int, pid: int, cpus: list[int]) -> None:
        self.program = Program([media_load_program()], cpus)
        self._fingerprint = self.program.greeting[0]
        self._port = port
        self._pid = pid
        self.sessions = 0

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *error: object) -> None:
        self.program.__exit__()

    def place(self, count: int, at_once: int = 10) -> None:
        """Connects this many more clients; RuntimeError when one does not connect."""
        while count > 0:
            for _ in range(min(count, at_once)):
                self._place_one()
            count -= at_once
            [connected] = self.program.ask("wait", self.sessions, 15_000)
            if connected != self.sessions:
                raise RuntimeError(f"{connected} of {self.sessions} clients connected")

    def talk(self, seconds: float) -> Talked:
        """All clients talk; the server's CPU clock is read around it."""
        before_ms, began_s = cpu_ms(self._pid), time.monotonic()
        sent, received, authentic, p50, p99, most = self.program.ask("run", int(seconds * 1_000))
        spent_ms, elapsed_s = cpu_ms(self._pid) - before_ms, time.monotonic() - began_s
        assert authentic >= received // 16
        return Talked(
            self.sessions,
            elapsed_s,
            spent_ms / elapsed_s / self.sessions,
            sent,
            received,
            p50 / 1_000,
            p99 / 1_000,
            most / 1_000,
        )

    def codecs_ms_per_session_s(self, complexity: int) -> float:
        """CPU ms that decoding and encoding one session for a second takes, and nothing else."""
        encode_ns, decode_ns = self.program.ask("codecs", complexity, self.sessions, 40)
        return 50 * (encode_ns + decode_ns) / 1e6

    def _place_one(self) -> None:
        index, port = self.program.ask("port")
        ufrag, pwd = secrets.token_hex(4), secrets.token_hex(12)
        offer = _OFFER.format(
            pt=PAYLOAD_TYPE,
            ufrag=ufrag,
            pwd=pwd,
            fingerprint=self._fingerprint,
            ssrc=1_000 + index,
            port=port,
        ).replace("\n", "\r\n")
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        connection.request(
            "POST",
            "/v1/realtime/calls",
            offer,
            {"Content-Type": "application/sdp", "Authorization": "Bearer ek_load"},
        )
        response = connection.getresponse()
        answer = response.read().decode()
        connection.close()
        if response.status != 201:
            raise RuntimeError(f"{response.status}: {answer}")
        ip, media_port = re.findall(r"a=candidate:\S+ 1 udp \d+ (127\S+) (\d+)", answer)[0]
        [their_ufrag] = re.findall(r"a=ice-ufrag:(\S+)", answer)
        [their_pwd] = re.findall(r"a=ice-pwd:(\S+)", answer)
        self.program.ask(
            "call", index, ip, media_port, their_ufrag, their_pwd, ufrag, pwd, PAYLOAD_TYPE
        )
        self.sessions += 1


def cpu_ms(pid: int) -> float:
    """CPU time of a process and its children that live, by the kernel's nanosecond clock."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    own_ns = time.clock_gettime_ns(~pid << 3 | 2)
    return own_ns / 1e6 + sum(cpu_ms(int(child)) for child in children)


def resident_kib(pid: int) -> int:
    """Memory of a process and its children that is its own alone (Private_* of smaps_rollup)."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    own = sum(int(kib) for kib in re.findall(r"Private_\w+:\s+(\d+) kB", rollup))
    return own + sum(resident_kib(int(child)) for child in children)


class AiortcServer(Program):
    """benchmarks/aiortc_server.py; its greeting is its port."""

    def __init__(self, cpus: list[int]) -> None:
        super().__init__([sys.executable, HERE / "aiortc_server.py"], cpus)
        self.port = int(self.greeting[0])


class MediaServer:
    """benchmarks/media_server.py with one process."""

    def __init__(self, directory: Path, cpus: list[int], *, mirror: str, complexity: int = 0):
        self.numbers = directory / "numbers.jsonl"
        self.engine_numbers = directory / "engine.json"
        self.log = directory / "server.log"
        environment = {
            **os.environ,
            "MIRROR": mirror,
            "COMPLEXITY": str(complexity),
            "NUMBERS": str(self.numbers),
            "ENGINE_NUMBERS": str(directory / "engine.json"),
            "PYTHONPATH": str(ROOT),
        }
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, HERE / "media_server.py", "serve", "--http=127.0.0.1:0",
                 "--media=127.0.0.1:0", "--workers=1", "--direct", "--log-format=json",
                 "--drain-timeout=0", "--max-sessions=4000"],
                env=environment, stdout=log, stderr=log,
            )  # fmt: skip
        os.sched_setaffinity(self._process.pid, cpus)
        self.pid = self._process.pid
        self.port = self._find_port()

    def __enter__(self) -> MediaServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """Ends it; every call leaves its numbers."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(30)

    def _find_port(self) -> int:
        deadline_s = time.monotonic() + 30
        while time.monotonic() < deadline_s:
            found = re.search(r'"role": "http", "address": "127.0.0.1:(\d+)"', self.log.read_text())
            if found:
                return int(found[1])
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        raise RuntimeError(f"the server did not start:\n{self.log.read_text()}")
