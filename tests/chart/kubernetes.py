"""A real Kubernetes API server of a test's own, with its etcd: on loopback, in a directory that goes.

Nothing runs pods there: there are no controllers and no nodes. What is real is everything that an object
goes through before it is stored: defaults, validation, unknown fields, admission, field ownership.
"""

from __future__ import annotations

import json
import secrets
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.process import Processes

Manifest = dict[str, Any]

START_LIMIT_S = 120.0
OWNER = "chart-tests"


class ApiServer:
    """Starts when it is made; ends with `processes`."""

    def __init__(self, processes: Processes, etcd: Path, program: Path, home: Path) -> None:
        self._home = home
        self._token = secrets.token_hex(16)
        self._kinds: dict[str, dict[str, tuple[str, bool]]] = {}
        store, store_peer, self._port = (processes.reserve_port() for _ in range(3))
        processes.start(
            etcd, f"--data-dir={home / 'etcd'}", "--unsafe-no-fsync", "--log-level=warn",
            f"--listen-client-urls=http://127.0.0.1:{store}", f"--advertise-client-urls=http://127.0.0.1:{store}",
            f"--listen-peer-urls=http://127.0.0.1:{store_peer}",
        )  # fmt: skip
        key = home / "service-accounts.pem"
        key.write_bytes(_private_key())
        tokens = home / "tokens.csv"
        tokens.write_text(f"{self._token},admin,admin,system:masters\n")
        server = processes.start(
            program, f"--etcd-servers=http://127.0.0.1:{store}", f"--cert-dir={home}", "--bind-address=127.0.0.1",
            f"--secure-port={self._port}", "--advertise-address=127.0.0.1", "--service-cluster-ip-range=10.96.0.0/16",
            f"--token-auth-file={tokens}", "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}", "--allow-privileged=true", "--endpoint-reconciler-type=none",
            # The controller that makes each namespace's account does not run.
            "--disable-admission-plugins=ServiceAccount",
        )  # fmt: skip
        self._trust: ssl.SSLContext | None = None
        deadline_s = time.monotonic() + START_LIMIT_S
        while self._status_of("/readyz") != 200:
            assert time.monotonic() < deadline_s, server.tail()
            time.sleep(0.1)

    @property
    def kubeconfig(self) -> Path:
        """For helm, as an administrator."""
        cluster = {
            "server": f"https://127.0.0.1:{self._port}",
            "certificate-authority": str(self._home / "apiserver.crt"),
        }
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": self._token}}],
            "current-context": "c",
        }
        file = self._home / "kubeconfig"
        file.write_text(json.dumps(content))
        return file

    def request(
        self, method: str, path: str, body: Manifest | None = None, kind: str = "application/json"
    ) -> tuple[int, Manifest]:
        """Status and parsed answer; a refusal is an answer, too."""
        if self._trust is None:
            self._trust = ssl.create_default_context(cafile=self._home / "apiserver.crt")
        request = urllib.request.Request(
            f"https://127.0.0.1:{self._port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": kind},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=30, context=self._trust) as response:
                return response.status, _parsed(response.read())
        except urllib.error.HTTPError as error:
            return error.code, _parsed(error.read())

    def make_namespace(self, name: str, pod_security: str = "privileged") -> None:
        """`pod_security` is the level of the Pod Security Standards that is enforced."""
        labels = {"pod-security.kubernetes.io/enforce": pod_security}
        body = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": labels},
        }
        status, answer = self.request("POST", "/api/v1/namespaces", body)
        assert status == 201, answer

    def define(self, definition: Manifest) -> None:
        """A CustomResourceDefinition, usable when this returns."""
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        status, answer = self.request("POST", path, definition)
        assert status == 201, answer
        version = definition["spec"]["versions"][0]["name"]
        served = (
            f"/apis/{definition['spec']['group']}/{version}/{definition['spec']['names']['plural']}"
        )
        deadline_s = time.monotonic() + 30
        while self.request("GET", served)[0] != 200:
            assert time.monotonic() < deadline_s, definition["metadata"]["name"]
            time.sleep(0.05)

    def dry_run(self, manifest: Manifest, namespace: str | None = None) -> str:
        """A server-side apply that stores nothing: "" when it is taken, else why not."""
        metadata = dict(manifest["metadata"])
        if namespace is not None:
            metadata["namespace"] = namespace
        path = self._path(manifest["apiVersion"], manifest["kind"], metadata.get("namespace"))
        status, answer = self.request(
            "PATCH",
            f"{path}/{metadata['name']}?dryRun=All&force=true&fieldManager={OWNER}&fieldValidation=Strict",
            {**manifest, "metadata": metadata},
            "application/apply-patch+yaml",
        )
        return "" if status in (200, 201) else str(answer.get("message", answer))

    def read(self, version: str, kind: str, namespace: str) -> list[Manifest]:
        """What is stored of a kind."""
        status, answer = self.request("GET", self._path(version, kind, namespace))
        assert status == 200, answer
        items: list[Manifest] = answer["items"]
        return items

    def _path(self, version: str, kind: str, namespace: str | None) -> str:
        root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
        if version not in self._kinds:
            status, answer = self.request("GET", root)
            assert status == 200, f"{version}: {answer}"
            self._kinds[version] = {
                one["kind"]: (one["name"], one["namespaced"])
                for one in answer["resources"]
                if "/" not in one["name"]
            }
        plural, namespaced = self._kinds[version][kind]
        return f"{root}/namespaces/{namespace}/{plural}" if namespaced else f"{root}/{plural}"

    def _status_of(self, path: str) -> int:
        try:
            return self.request("GET", path)[0]
        except OSError:
            return 0


def _parsed(text: bytes) -> Manifest:
    try:
        found = json.loads(text)
    except ValueError:
        return {"message": text.decode(errors="replace")}
    return found if isinstance(found, dict) else {"message": str(found)}


def _private_key() -> bytes:
    return rsa.generate_private_key(public_exponent=65_537, key_size=2_048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
