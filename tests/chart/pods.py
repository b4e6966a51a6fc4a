"""As much of a kubelet, a Service and two rollout controllers as a rehearsal of the chart needs.

1. A pod runs the very command, arguments, environment and files that were rendered, in a namespace; only
   the directories of its mounts lie elsewhere, and its root file system is this machine's.
2. Readiness is the rendered probe; ending is the rendered preStop, SIGTERM, and SIGKILL after the
   rendered grace.
3. A pod that is ending gets no new connections, as endpoints have it.
"""

from __future__ import annotations

import contextlib
import random
import re
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

from tests.chart.conftest import Manifest
from tests.support.lab import Host, Lab
from tests.support.process import Process

POLL_S = 0.2
_VARIABLE = re.compile(r"\$\(([A-Z_]+)\)")


class Pod:
    """One pod of one container on a host of the lab."""

    def __init__(self, lab: Lab, host: Host, template: Manifest, manifests: list[Manifest]) -> None:
        self.host = host
        self.ending = False
        self.killed = False
        self.ended_s: float | None = None
        self._spec: dict[str, Any] = template["spec"]
        self._container: dict[str, Any] = self._spec["containers"][0]
        self._manifests = manifests
        self._directory = lab.directory / f"pod-{len(lab.processes.started)}"
        self._mounts = dict(self._mount())
        environment = dict(self._environment())
        command: list[str] = [*self._container["command"], *self._container.get("args", ())]
        program, words = command[0], command[1:]
        arguments = [self._place(_expand(word, environment)) for word in words]
        self.process: Process = lab.processes.start(
            *host.namespace.prefix, sys.executable, "-m", program, *arguments,
            name=program, env=environment,
        )  # fmt: skip

    def port(self, name: str) -> int:
        """A container port by its name."""
        (found,) = (p["containerPort"] for p in self._container["ports"] if p["name"] == name)
        return int(found)

    def is_ready(self) -> bool:
        """What the readiness probe says now, whether the pod is ending or not."""
        probe = self._container["readinessProbe"]["httpGet"]
        at = (self.host.address, self.port(probe["port"]))
        return (
            self.process.returncode is None
            and self.host.request(at, "GET", probe["path"])[0] == 200
        )

    def wait_ready(self, timeout_s: float = 90.0) -> None:
        """Until the probe says so."""
        deadline = time.monotonic() + timeout_s
        while not self.is_ready():
            assert time.monotonic() < deadline, f"never ready:\n{self.process.tail()}"
            assert self.process.returncode is None, self.process.tail()
            time.sleep(POLL_S)

    def delete(self) -> None:
        """End it as a kubelet does."""
        self.ending = True
        began_s = time.monotonic()
        hook = self._container.get("lifecycle", {}).get("preStop")
        if hook:
            command, seconds = hook["exec"]["command"]
            assert command == "sleep"
            time.sleep(float(seconds))
        self.process.signal(SIGTERM)
        left_s = self._spec["terminationGracePeriodSeconds"] - (time.monotonic() - began_s)
        try:
            self.process.wait(left_s)
        except AssertionError:
            self.killed = True
            self.process.signal(SIGKILL)
        self.ended_s = time.monotonic() - began_s

    def _mount(self) -> Iterator[tuple[str, Path]]:
        for mount in self._container["volumeMounts"]:
            (volume,) = (v for v in self._spec["volumes"] if v["name"] == mount["name"])
            directory = self._directory / mount["name"]
            directory.mkdir(parents=True)
            if "secret" in volume:
                for name, text in self._secret(volume["secret"]["secretName"]).items():
                    (directory / name).write_text(text)
            yield mount["mountPath"], directory

    def _environment(self) -> Iterator[tuple[str, str]]:
        for variable in self._container.get("env", ()):
            source = variable["valueFrom"]
            if "fieldRef" in source:
                assert source["fieldRef"]["fieldPath"] == "status.podIP"
                yield variable["name"], self.host.address
            else:
                reference = source["secretKeyRef"]
                yield variable["name"], self._secret(reference["name"])[reference["key"]]

    def _secret(self, name: str) -> Mapping[str, str]:
        (found,) = (
            one
            for one in self._manifests
            if one["kind"] == "Secret" and one["metadata"]["name"] == name
        )
        texts: Mapping[str, str] = found["stringData"]
        return texts

    def _place(self, word: str) -> str:
        option, equals, value = word.partition("=")
        for mount, directory in self._mounts.items():
            if value == mount or value.startswith(mount + "/"):
                return f"{option}{equals}{directory}{value.removeprefix(mount)}"
        return word


def _expand(word: str, environment: Mapping[str, str]) -> str:
    """$(NAME), as Kubernetes expands it in arguments."""
    return _VARIABLE.sub(lambda match: environment[match[1]], word)


class Service:
    """A virtual address for TCP: each connection goes to some pod that is ready and not ending."""

    def __init__(self, host: Host, address: str, port: int, pods: Callable[[], list[Pod]]) -> None:
        self._host = host
        self._pods = pods
        self._listener = host.namespace.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((address, port))
        self._listener.listen(64)
        self._closing = False
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Takes no more connections."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, self._host.namespace.socket() as server:
            ready = [pod for pod in self._pods() if not pod.ending and pod.is_ready()]
            if not ready:
                return
            pod = random.choice(ready)
            server.connect((pod.host.address, pod.port("http")))
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            _pump(client, server)
            back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


class LoadBalancer:
    """The router in front of relays: the public address leads to those whose probe says ready."""

    def __init__(self, lab: Lab, address: str, relays: Callable[[], list[Pod]]) -> None:
        self._lab = lab
        self._address = address
        self._relays = relays
        self._led: list[Host] = []
        self._stop = threading.Event()
        self.look()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def look(self) -> None:
        """One round of probes."""
        hosts = [pod.host for pod in self._relays() if pod.is_ready()]
        if hosts and hosts != self._led:
            self._lab.lead(self._address, *hosts)
            self._led = hosts

    def close(self) -> None:
        """Leave the routes as they are."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(POLL_S):
            self.look()


def service_of(url: str) -> tuple[str, int]:
    """The host name and the port of the test's URL."""
    parts = urllib.parse.urlsplit(url)
    assert parts.hostname is not None
    return parts.hostname, parts.port or 80
