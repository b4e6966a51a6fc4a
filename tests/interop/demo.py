"""`relay demo` as tests use it: started on free ports, its page's URL, its relay's counters.

1. What is read is what a user reads: the line with the URL, and the admin HTTP.
2. With a namespace, program and connections are inside it.
"""

from __future__ import annotations

import http.client
import re
import time
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.support.netns import Namespace
from tests.support.process import Process, ProcessError, Processes

READY_TIMEOUT_S = 90.0
HTTP_TIMEOUT_S = 30.0
"""The relay's control process runs at nice 19: beside others' work it gets a hundredth of a CPU."""
_READY = re.compile(r"open (https?://\S+)\s+\(relay at (\S+) over UDP")


@dataclass(frozen=True)
class Demo:
    """A running demo."""

    url: str
    """The page's, without a slash at its end."""
    relay: str
    """The relay's public "HOST:PORT"."""
    admin: str
    """The relay's admin HTTP, "HOST:PORT"."""
    process: Process
    namespace: Namespace | None = None

    def metrics(self) -> dict[str, float]:
        """The relay's samples now: 'relay_flows{state="established"}' → value."""
        host, _, port = self.admin.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=HTTP_TIMEOUT_S)
        if self.namespace is not None:
            connection.sock = self.namespace.socket()
            connection.sock.settimeout(HTTP_TIMEOUT_S)
            connection.sock.connect((host, int(port)))
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        return {
            _sample_name(sample.name, sample.labels): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


def _sample_name(name: str, labels: dict[str, Any]) -> str:
    inside = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"{name}{{{inside}}}" if inside else name


def start_demo(processes: Processes, *arguments: str, namespace: Namespace | None = None) -> Demo:
    """Start `relay demo` and wait until it says that it is ready.

    In a namespace it has the addresses and ports that a user gets; else free ports of loopback.
    """
    free = (
        *("--listen", "127.0.0.1:0"),
        *("--http", "127.0.0.1:0"),
        *("--admin", "127.0.0.1:0"),
    )
    process = processes.relay(
        "demo",
        *(() if namespace else free),
        *("--log-format", "json", "--log-level", "info"),
        *arguments,
        prefix=namespace.prefix if namespace else (),
    )
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not (ready := _READY.search(process.output())):
        if process.returncode is not None or time.monotonic() > deadline:
            raise ProcessError(f"the demo does not get ready\n{process.tail()}")
        time.sleep(0.02)
    return Demo(
        url=ready[1].rstrip("/"),
        relay=ready[2],
        admin=process.listening("admin")[0],
        process=process,
        namespace=namespace,
    )
