"""As much of a Kubernetes API server as `helm install --dry-run=server` asks: versions, kinds, Secrets.

It stores nothing and checks nothing; it is for `lookup` and for the notes.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

GROUPS = {
    "apps/v1": {"Deployment": "deployments", "DaemonSet": "daemonsets"},
    "networking.k8s.io/v1": {"NetworkPolicy": "networkpolicies", "Ingress": "ingresses"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
    "autoscaling/v2": {"HorizontalPodAutoscaler": "horizontalpodautoscalers"},
}
CORE = {"Secret": "secrets", "Service": "services", "ConfigMap": "configmaps", "Pod": "pods"}

RELEASE = "voice-relay"

Secrets = Mapping[str, Mapping[str, str]]


@contextmanager
def api_server(home: Path, secrets: Secrets) -> Iterator[Path]:
    """Serves these Secrets' plain texts; yields the kubeconfig file."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(secrets))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        config = home / "kubeconfig"
        cluster = {"server": f"http://127.0.0.1:{server.server_address[1]}"}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {}}],
            "current-context": "c",
        }
        config.write_text(json.dumps(content))
        yield config
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(secrets: Secrets) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = _answer(self.path.partition("?")[0], secrets)
            body = json.dumps(found or _NOT_FOUND).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


_NOT_FOUND = {
    "kind": "Status",
    "apiVersion": "v1",
    "status": "Failure",
    "reason": "NotFound",
    "code": 404,
}


def _answer(path: str, secrets: Secrets) -> dict[str, Any] | None:
    if path == "/version":
        return {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        return {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [_group(version) for version in GROUPS],
        }
    if path == "/api/v1":
        return _resources("v1", CORE)
    if path.startswith("/apis/") and path.removeprefix("/apis/") in GROUPS:
        version = path.removeprefix("/apis/")
        return _resources(version, GROUPS[version])
    parts = path.strip("/").split("/")
    if parts[:2] == ["api", "v1"] and parts[4:5] == ["secrets"]:
        if len(parts) == 5:
            return {"kind": "SecretList", "apiVersion": "v1", "metadata": {}, "items": []}
        if parts[5] in secrets:
            return _secret(parts[3], parts[5], secrets[parts[5]])
    return None


def _group(version: str) -> dict[str, Any]:
    entry = {"groupVersion": version, "version": version.partition("/")[2]}
    return {"name": version.partition("/")[0], "versions": [entry], "preferredVersion": entry}


def _resources(version: str, kinds: Mapping[str, str]) -> dict[str, Any]:
    entries = [
        {
            "name": name,
            "kind": kind,
            "namespaced": True,
            "singularName": "",
            "verbs": ["get", "list"],
        }
        for kind, name in kinds.items()
    ]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": version,
        "resources": entries,
    }


def _secret(namespace: str, name: str, texts: Mapping[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "namespace": namespace,
            "name": name,
            # Without these helm refuses to touch an object that it did not make.
            "labels": {"app.kubernetes.io/managed-by": "Helm"},
            "annotations": {
                "meta.helm.sh/release-name": RELEASE,
                "meta.helm.sh/release-namespace": namespace,
            },
        },
        "type": "Opaque",
        "data": {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()},
    }
