"""`relay demo` with nothing but the defaults, on a machine of its own."""

from __future__ import annotations

import http.client
import subprocess

import pytest

from tests.interop.demo import start_demo
from tests.support.netns import ADDRESS, Namespace
from tests.support.process import Processes

pytestmark = pytest.mark.netns


@pytest.mark.parametrize(
    ("online", "relay"), [(True, ADDRESS), (False, "127.0.0.1")], ids=["online", "offline"]
)
def test_the_relay_is_at_the_default_routes_address_or_on_loopback(
    namespaces: None, processes: Processes, online: bool, relay: str
) -> None:
    """A laptop without a network has no default route, and yet a demo."""
    with Namespace() as machine:
        if not online:
            subprocess.run(
                ["ip", "-n", machine.name, "route", "delete", "default"], check=True, timeout=10
            )
        demo = start_demo(processes, namespace=machine)
        assert demo.relay == f"{relay}:3478"
        assert demo.url == "http://localhost:8080"
        connection = http.client.HTTPConnection("127.0.0.1", 8080, timeout=10)
        connection.sock = machine.socket()
        connection.sock.connect(("127.0.0.1", 8080))
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
        connection.close()
        processes.stop_all()
