"""A cluster's report: what people who help need to see, as files."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
import time
from collections.abc import Awaitable, Sequence
from typing import Any, Final

import yaml
from magnetar.core.errors import MagnetarError
from magnetar.operator.children.naming import NAME_LABEL
from magnetar.operator.kubernetes.kinds import BOOKIE_POOL, Manifest
from magnetar.operator.kubernetes.pods import LogOptions
from magnetar.operator.plugin.collect import cluster_selector
from magnetar.operator.plugin.drawing import UNICODE
from magnetar.operator.plugin.kubernetes import Kubernetes
from magnetar.operator.plugin.redaction import redacted
from magnetar.operator.plugin.status_view import Drawing, draw_status
from magnetar.operator.plugin.views import ClusterSummary, PodView, plain

CHILDREN: Final = (
    "Pod",
    "StatefulSet",
    "Deployment",
    "ReplicaSet",
    "Job",
    "Service",
    "ConfigMap",
    "PersistentVolumeClaim",
    "PodDisruptionBudget",
    "NetworkPolicy",
    "ServiceAccount",
)
"""No Secrets: not even their names' values are of use to who helps."""
OPERATOR_SELECTOR: Final = f"{NAME_LABEL}=magnetar-operator"
LOG_LINES_MAX: Final = 20_000
LOG_BYTES_MAX: Final = 8 << 20
"""Bytes of each container's log: a report should fit into an issue."""
LOGS_AT_ONCE_MAX: Final = 4


class Report:
    """Files by name, and what could not be had."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.missing: list[str] = []

    def add(self, name: str, content: str | bytes) -> None:
        """Put a file into the report."""
        self.files[name] = content.encode() if isinstance(content, str) else content

    def add_objects(self, name: str, objects: Sequence[Manifest]) -> None:
        """Put objects into the report as YAML, without what may be secret; nothing for none."""
        if objects:
            documents = [redacted(one) for one in objects]
            self.add(f"{name}.yaml", yaml.safe_dump_all(documents, sort_keys=False, width=120))

    async def attempt(self, what: str, work: Awaitable[None]) -> None:
        """Do without what may not be read."""
        try:
            await work
        except MagnetarError as error:
            self.missing.append(f"{what}: {error}")

    def packed(self, folder: str) -> bytes:
        """A .tar.gz with one folder."""
        if self.missing:
            self.add("missing.txt", "\n".join(self.missing) + "\n")
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for name, content in sorted(self.files.items()):
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size = len(content)
                entry.mtime = int(time.time())
                archive.addfile(entry, io.BytesIO(content))
        return buffer.getvalue()


async def collect_report(kubernetes: Kubernetes, view: ClusterSummary, cluster: Manifest, *, logs: bool) -> Report:
    """Everything that may be read of the cluster."""
    report = Report()
    report.add_objects("cluster", [cluster])
    report.add("status.txt", status_text(view))
    report.add("status.json", json.dumps(redacted(plain(view)), indent=2))
    ours = cluster_selector(view.name)

    async def listed(name: str, kind: str, namespace: str | None, selector: str = "") -> None:
        report.add_objects(name, await kubernetes.list(kind, namespace, selector))

    await asyncio.gather(
        report.attempt("versions", _versions(kubernetes, report)),
        report.attempt("pools", _pools(kubernetes, view, report)),
        report.attempt("events", listed("events", "Event", view.namespace)),
        report.attempt("nodes", listed("node", "Node", None)),
        report.attempt("storage classes", listed("storageclass", "StorageClass", None)),
        report.attempt("the operator", _operator(kubernetes, report, logs=logs)),
        *(report.attempt(kind, listed(f"objects/{kind.lower()}", kind, view.namespace, ours)) for kind in CHILDREN),
        *([_logs(kubernetes, view.namespace, view.pods, "logs", report)] if logs else []),
    )
    return report


def status_text(view: ClusterSummary) -> str:
    """What `status` shows."""
    from rich.console import Console

    buffer = io.StringIO()
    Console(file=buffer, width=160, no_color=True, highlight=False).print(
        draw_status(view, Drawing(now_seconds=time.time(), signs=UNICODE))
    )
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


async def _versions(kubernetes: Kubernetes, report: Report) -> None:
    import importlib.metadata

    found: dict[str, Any] = {
        "kubectl-pulsar": importlib.metadata.version("magnetar-operator"),
        "kubernetes": await kubernetes.version(),
    }
    report.add("versions.yaml", yaml.safe_dump(found))


async def _pools(kubernetes: Kubernetes, view: ClusterSummary, report: Report) -> None:
    found = await kubernetes.list(BOOKIE_POOL, view.namespace)
    report.add_objects("pools", [pool for pool in found if pool["spec"].get("clusterName") == view.name])


async def _operator(kubernetes: Kubernetes, report: Report, *, logs: bool) -> None:
    from magnetar.operator.plugin.parse import pod_view

    pods = await kubernetes.list("Pod", None, OPERATOR_SELECTOR)
    report.add_objects("operator/pod", pods)
    report.add_objects("operator/deployment", await kubernetes.list("Deployment", None, OPERATOR_SELECTOR))
    for manifest in pods if logs else ():
        await _logs(kubernetes, manifest["metadata"]["namespace"], [pod_view(manifest)], "operator/logs", report)


async def _logs(kubernetes: Kubernetes, namespace: str, pods: Sequence[PodView], folder: str, report: Report) -> None:
    places = asyncio.Semaphore(LOGS_AT_ONCE_MAX)

    async def one(pod: PodView, container: str, *, previous: bool) -> None:
        suffix = ".previous" if previous else ""
        name = pod.name if container == pod.containers[0] else f"{pod.name}.{container}"
        options = LogOptions(
            namespace=namespace,
            pod=pod.name,
            container=container,
            previous=previous,
            tail_lines=LOG_LINES_MAX,
            size_bytes_max=LOG_BYTES_MAX,
        )
        async with places:
            lines = [line async for line in kubernetes.log(options)]
        if lines:
            report.add(f"{folder}/{name}{suffix}.log", b"\n".join(lines) + b"\n")

    await asyncio.gather(
        *(
            report.attempt(f"log of {pod.name}", one(pod, container, previous=previous))
            for pod in pods
            for container in pod.containers
            for previous in ((False, True) if pod.restarts else (False,))
        )
    )
