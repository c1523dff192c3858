"""A Kubernetes for the plugin's tests: objects in memory, logs as lists, pods' ports as ports of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from magnetar.operator.kubernetes.errors import KindMissing, NotFound, NotPermitted, PodPortRefused
from magnetar.operator.kubernetes.kinds import KINDS, Manifest
from magnetar.operator.kubernetes.pods import LogOptions, PodStream

NAMESPACE = "messaging"
CREATED = "2026-11-21T10:00:00Z"
CREATED_SECONDS = 1795255200.0


def cluster_manifest(name: str = "demo", **parts: Any) -> Manifest:
    """A PulsarCluster."""
    return {
        "apiVersion": KINDS["PulsarCluster"].api_version,
        "kind": "PulsarCluster",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{name}",
            "generation": 3,
            "creationTimestamp": CREATED,
        },
        "spec": {},
        **parts,
    }


def pool_manifest(name: str = "demo", cluster: str = "demo", **parts: Any) -> Manifest:
    """A Bookie."""
    return {
        "apiVersion": KINDS["Bookie"].api_version,
        "kind": "Bookie",
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": f"uid-pool-{name}", "generation": 1},
        "spec": {"clusterName": cluster, "replicas": 3},
        **parts,
    }


def pod_manifest(
    name: str,
    component: str,
    *,
    cluster: str = "demo",
    pool: str = "",
    ready: bool = True,
    address: str = "",
    status: Mapping[str, Any] | None = None,
) -> Manifest:
    """A pod of a cluster."""
    labels = {
        "app.kubernetes.io/name": "magnetar",
        "app.kubernetes.io/instance": cluster,
        "app.kubernetes.io/component": component,
    }
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    found: dict[str, Any] = {"phase": "Running", "podIP": address, "conditions": conditions, **(status or {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{name}",
            "labels": labels | ({"pulsar.magnetar.dev/pool": pool} if pool else {}),
            "annotations": {},
            "creationTimestamp": CREATED,
        },
        "spec": {"containers": [{"name": component, "image": f"magnetar/{component}:1"}]},
        "status": found,
    }


def crashing(exit_code: int = 3, message: str = "", *, restarts: int = 4) -> dict[str, Any]:
    """The status of a pod whose container ends again and again."""
    ended = {"exitCode": exit_code, "reason": "Error", "message": message, "finishedAt": "2026-11-21T10:59:00Z"}
    container = {
        "restartCount": restarts,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}},
        "lastState": {"terminated": ended},
    }
    return {"containerStatuses": [container]}


def condition(type_: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    """As resources have them."""
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": CREATED,
        "observedGeneration": 3,
    }


class FakeKubernetes:
    """`Kubernetes` in memory."""

    def __init__(self, *manifests: Manifest) -> None:
        self.namespace = NAMESPACE
        self.context = ""
        self.objects: dict[tuple[str, str, str], Manifest] = {}
        self.logs: dict[str, list[bytes]] = {}
        self.ports: dict[tuple[str, int], int] = {}
        """Pod and port: the port of this machine that stands for it."""
        self.forbidden: set[str] = set()
        self.missing_kinds: set[str] = set()
        self.patches: list[tuple[str, str, Mapping[str, Any]]] = []
        self.log_options: list[LogOptions] = []
        self.connected: list[str] = []
        for manifest in manifests:
            self.put(manifest)

    def put(self, manifest: Manifest) -> None:
        """Make or replace an object."""
        metadata = manifest["metadata"]
        self.objects[manifest["kind"], metadata.get("namespace", ""), metadata["name"]] = manifest

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        self._check(kind)
        return copy.deepcopy(self.objects.get((kind, namespace, name)))

    async def list(self, kind: str, namespace: str | None, selector: str = "") -> Sequence[Manifest]:
        self._check(kind)
        found = [one for (its, space, _), one in self.objects.items() if its == kind and namespace in (None, space)]
        return [copy.deepcopy(one) for one in found if _selected(one, selector)]

    async def patch(self, kind: str, namespace: str, name: str, patch: Mapping[str, Any]) -> Manifest:
        self._check(f"patch {kind}")
        found = self.objects.get((kind, namespace, name))
        if found is None:
            raise NotFound(f"{kind} {name}")
        self.patches.append((kind, name, patch))
        _merge(found, patch)
        return copy.deepcopy(found)

    async def version(self) -> str:
        return "v1.34.4"

    async def log(self, options: LogOptions) -> AsyncIterator[bytes]:
        self.log_options.append(options)
        if options.pod not in self.logs:
            raise NotFound(f"pods {options.pod} not found")
        for line in self.logs[options.pod]:
            yield line
        if options.follow:
            await asyncio.Event().wait()

    @contextlib.asynccontextmanager
    async def connect(self, namespace: str, pod: str, port: int) -> AsyncIterator[PodStream]:
        assert namespace == self.namespace
        self.connected.append(pod)
        local = self.ports.get((pod, port))
        if local is None:
            yield _Refusing(port)
            return
        reader, writer = await asyncio.open_connection("127.0.0.1", local)
        try:
            yield _Piped(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def _check(self, what: str) -> None:
        if what in self.forbidden:
            raise NotPermitted(f"{what} is forbidden")
        if what in self.missing_kinds:
            raise KindMissing(f"no {what}")


class _Refusing:
    def __init__(self, port: int) -> None:
        self._port = port

    async def send(self, data: bytes) -> None:
        del data

    async def receive(self) -> bytes:
        await asyncio.sleep(0.01)
        raise PodPortRefused(f"nothing listens at port {self._port}")


class _Piped:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def receive(self) -> bytes:
        return await self._reader.read(1 << 16)


def _selected(manifest: Manifest, selector: str) -> bool:
    labels = manifest["metadata"].get("labels", {})
    for part in filter(None, selector.split(",")):
        name, equals, value = part.partition("=")
        if labels.get(name) is None or (equals and labels[name] != value):
            return False
    return True


def _merge(into: dict[str, Any], patch: Mapping[str, Any]) -> None:
    for name, value in patch.items():
        if value is None:
            into.pop(name, None)
        elif isinstance(value, dict):
            _merge(into.setdefault(name, {}), value)
        else:
            into[name] = value
