"""A NAT between a client and the router of a lab, made of the kernel's own, that can forget its mappings."""

from __future__ import annotations

import socket
import struct

from tests.support.lab import Host, Lab, run
from tests.support.netns import Namespace

NETLINK_NETFILTER = 12
CT_DELETE = 1 << 8 | 2
"""NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_DELETE: without a filter, all of them."""
NLM_F_REQUEST_ACK = 5
_HEADER = struct.Struct("=IHHIIBBH")

_RULES = """
flush ruleset
table ip nat {{
  chain out {{
    type nat hook postrouting priority 100;
    oifname "{device}" meta l4proto udp snat to {address}:{ports}
    oifname "{device}" masquerade
  }}
}}
"""


class Nat:
    """A NAT and the client behind it (`client`)."""

    def __init__(self, lab: Lab) -> None:
        self.outside = lab.host()
        run(*self.outside.namespace.prefix, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        namespace = Namespace()
        lab.keep(namespace)
        gateway, address = self.outside.namespace.connect(namespace)
        device = f"cable{address.split('.')[2]}"
        self.client = Host(namespace, address, "", gateway, "", device)
        self.client.ip("route", "replace", "default", "via", gateway, "dev", device)
        self._base_port = 20_000
        self._write_rules()

    def rebind(self) -> None:
        """Forget every mapping; the next packets leave from other ports."""
        self._base_port += 100
        self._write_rules()
        with self.outside.namespace.socket(
            socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER
        ) as netlink:
            netlink.send(
                _HEADER.pack(
                    _HEADER.size, CT_DELETE, NLM_F_REQUEST_ACK, 1, 0, socket.AF_UNSPEC, 0, 0
                )
            )
            error = struct.unpack_from("=i", netlink.recv(4096), 16)[0]
            assert error == 0, error

    def _write_rules(self) -> None:
        text = _RULES.format(
            device=self.outside.device,
            address=self.outside.address,
            ports=f"{self._base_port}-{self._base_port + 99}",
        )
        run(*self.outside.namespace.prefix, "nft", "-f", "-", text=text)
