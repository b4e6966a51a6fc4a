"""Settings of the chart that together reach every branch of its templates."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from tests.chart.values_doc import CHART

Values = dict[str, Any]

PUBLIC: Values = {"relay": {"publicAddresses": ["198.51.100.7"]}}
ALL_MONITORING: Values = {
    name: {"enabled": True, "labels": {"release": "prometheus"}}
    for name in ("serviceMonitor", "prometheusRule", "dashboard")
}


def example(name: str) -> Values:
    """One of helm/examples."""
    loaded: Values = yaml.safe_load(Path(CHART / "examples" / name).read_text("utf-8"))
    return loaded


CASES: dict[str, Values] = {
    "default": PUBLIC,
    "host-port": {"relay": {"mode": "hostPort", "publicAddresses": ["198.51.100.7"]}},
    "load-balancer": {
        "relay": {
            "mode": "loadBalancer",
            "publicAddresses": ["198.51.100.7", "2001:db8::7"],
            "publicPort": 443,
            "workers": 3,
            "preStopSeconds": 5,
            "service": {
                "annotations": {"example.com/a": "b"},
                "loadBalancerClass": "example.com/lb",
                "loadBalancerIP": "198.51.100.7",
                "loadBalancerSourceRanges": ["203.0.113.0/24"],
            },
        },
        "redis": {"bundled": {"enabled": True}},
    },
    "ipv6": {
        "network": {
            "ipFamily": "IPv6",
            "podCIDRs": ["2001:db8:1::/48"],
            "nodeCIDRs": ["2001:db8:2::/48"],
            "ipv6Prefixes": {"0": "2001:db8:1:1::/64", "3": "2001:db8:1:3::/64"},
        },
        "relay": {"publicAddresses": ["2001:db8::7"]},
    },
    "bundled-redis-on-host": {**PUBLIC, "redis": {"bundled": {"enabled": True}}},
    "redis-url": {
        **PUBLIC,
        "redis": {"url": "rediss://:secret@redis.example.com:6379"},
        "caBundle": {"existingSecret": "authorities", "key": "bundle.pem"},
    },
    "monitoring": {
        "relay": {**PUBLIC["relay"], "clusterRoutes": {"7": ["10.9.0.4:4500"]}},
        "keyring": {"existingSecret": "k"},
        "monitoring": ALL_MONITORING,
        "redis": {"existingSecret": "r"},
    },
    "autoscaled-by-sessions": {
        **PUBLIC,
        "transceiver": {"autoscaling": {"enabled": True, "metric": "sessions"}},
    },
    "autoscaled-by-cpu": {**PUBLIC, "transceiver": {"autoscaling": {"enabled": True}}},
    "open-with-page": {
        **PUBLIC,
        "auth": {"insecureOpen": True},
        "networkPolicy": {"enabled": False},
        "transceiver": {
            "demoPage": True,
            "podDisruptionBudget": {"enabled": False},
            "ingress": {"enabled": True, "host": "voice.example.com"},
        },
    },
    "realtime-backend": {
        **PUBLIC,
        "backend": {
            "targets": ["model=wss://inference.example.com/v1/realtime", "echo"],
            "model": "gpt-realtime",
            "dialect": "beta",
            "audio": "pcmu",
            "headers": ["X-Team: voice, and more"],
            "session": {"instructions": 'Say "hello": briefly.'},
            "existingSecret": "inference",
            "existingSecretKey": "token",
        },
        "caBundle": {"existingConfigMap": "authorities"},
        "auth": {"callsAtOnce": 10, "callsPerMinute": 60},
        "transceiver": {"maxCallSeconds": 3600, "idleSeconds": 300},
        "test": {"loopback": False},
    },
    "everything-about-pods": {
        "nameOverride": "voice",
        "fullnameOverride": "v",
        "commonLabels": {"team": "telephony"},
        "imagePullSecrets": [{"name": "login"}],
        "image": {"registry": "registry.example.com", "digest": "sha256:" + "4" * 64},
        "clusterId": 65535,
        "relay": {
            "publicAddresses": ["198.51.100.7"],
            "location": "50.11,8.68",
            "bufferInit": {"enabled": True},
            "limits": {"source-unanswered": 128},
            "maxFlows": 4000000,
            "priorityClassName": "system-node-critical",
            "nodeSelector": {"edge": "yes"},
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "podAnnotations": {"a": "b"},
            "maxUnavailable": "10%",
        },
        "transceiver": {
            "ingresses": [
                {"name": "pdx", "addresses": ["203.0.113.9:3478"], "location": "45.84,-119.70"}
            ],
            "priorityClassName": "high",
            "nodeSelector": {"voice": "yes"},
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"podAntiAffinity": {}},
            "podAnnotations": {"a": "b"},
            "terminationGracePeriodSeconds": 900,
        },
        "networkPolicy": {
            "httpFrom": [{"namespaceSelector": {}}],
            "adminFrom": [{"podSelector": {}}],
        },
        "redis": {"bundled": {"enabled": True}},
        "monitoring": ALL_MONITORING,
    },
    "entry-of-pods": {
        "keyring": {"existingSecret": "k"},
        "relay": {
            "mode": "hostPort",
            "publicAddresses": ["198.51.100.7"],
            "location": "-33.9,151.2",
            "ingressWeight": 0.5,
            "backbone": {
                "enabled": True,
                "port": 4600,
                "allow": ["10.9.0.0/16", "10.8.0.0/16"],
                "existingSecret": "b",
            },
            "clusterRoutes": {"7": ["10.9.0.4:4500"], "65535": ["10.8.0.4:4500", "10.8.0.5:4500"]},
        },
        "transceiver": {
            "trustedProxies": ["10.0.0.0/8"],
            "geoip": {"file": "places.mmdb", "volume": {"emptyDir": {}}},
        },
    },
    "frankfurt": example("cluster-frankfurt.yaml"),
    "oregon": example("cluster-oregon.yaml"),
}

ACTIVE = [
    case
    for case in CASES
    if case in ("default", "oregon") or os.environ.get("CHART_MATRIX") == "full"
]
"""What is rendered; all of it by `./run chart`, which is not in the way of `./run test`."""

REFUSED: dict[str, tuple[Values, str]] = {
    "no public address": ({}, "relay.publicAddresses is empty"),
    "an unknown key": ({**PUBLIC, "relays": {}}, "relays"),
    "an unknown key deep inside": (
        {"relay": {**PUBLIC["relay"], "service": {"annotation": {}}}},
        "annotation",
    ),
    "a port as text": ({"relay": {**PUBLIC["relay"], "port": "3478"}}, "port"),
    "an unknown mode": ({"relay": {**PUBLIC["relay"], "mode": "nodePort"}}, "mode"),
    "a name for an address": (
        {"relay": {"publicAddresses": ["relay.example.com"]}},
        "publicAddresses",
    ),
    "too little time for a relay's drain": (
        {
            "relay": {
                **PUBLIC["relay"],
                "drainTimeoutSeconds": 60,
                "terminationGracePeriodSeconds": 65,
            }
        },
        "relay.terminationGracePeriodSeconds is 65",
    ),
    "too little time for a transceiver's drain": (
        {
            **PUBLIC,
            "transceiver": {"drainTimeoutSeconds": 600, "terminationGracePeriodSeconds": 600},
        },
        "transceiver.terminationGracePeriodSeconds is 600",
    ),
    "buffers of a pod": (
        {"relay": {**PUBLIC["relay"], "mode": "hostPort", "bufferInit": {"enabled": True}}},
        "relay.bufferInit.enabled needs",
    ),
    "two caches": (
        {**PUBLIC, "redis": {"url": "redis://r", "bundled": {"enabled": True}}},
        "redis: one of",
    ),
    "authorities from two places": (
        {**PUBLIC, "caBundle": {"existingConfigMap": "a", "existingSecret": "a"}},
        "caBundle: one of",
    ),
    "other regions' caches in a Secret of the chart": (
        {**PUBLIC, "redis": {"url": "redis://r", "fleetKey": "all"}},
        "redis.fleetKey needs",
    ),
    "IPv6 without prefixes": ({**PUBLIC, "network": {"ipFamily": "IPv6"}}, "ipv6Prefixes"),
    "an Ingress for nobody": (
        {**PUBLIC, "transceiver": {"ingress": {"enabled": True}}},
        "transceiver.ingress.host",
    ),
    "a backbone for everybody": (
        {
            "relay": {**PUBLIC["relay"], "backbone": {"enabled": True}},
            "keyring": {"existingSecret": "k"},
        },
        "relay.backbone.allow",
    ),
    "a route to a cluster with another keyring": (
        {"relay": {**PUBLIC["relay"], "clusterRoutes": {"7": ["10.9.0.4:4500"]}}},
        "keyring.existingSecret",
    ),
    "a key for nothing": (
        {"relay": {**PUBLIC["relay"], "backbone": {"existingSecret": "b"}}},
        "relay.backbone.existingSecret is a key for nothing",
    ),
    "a route to itself": (
        {
            "relay": {**PUBLIC["relay"], "clusterRoutes": {"0": ["10.9.0.4:4500"]}},
            "keyring": {"existingSecret": "k"},
        },
        "this cluster's own clusterId",
    ),
    "clusters that do not know each other": (
        {
            **PUBLIC,
            "transceiver": {"clusterPeers": [{"id": 7, "url": "https://v", "location": "1,1"}]},
        },
        "auth.existingSecret",
    ),
    "a place without a database": (
        {**PUBLIC, "transceiver": {"geoip": {"file": "places.mmdb"}}},
        "transceiver.geoip needs both",
    ),
    "an unknown limit": ({"relay": {**PUBLIC["relay"], "limits": {"flows": 1}}}, "limits"),
}
