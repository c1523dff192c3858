"""Kubernetes' API server, as the plugin uses it: with its user's own rights."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from magnetar.core.errors import Unavailable
from magnetar.operator.api import KINDS, Refused
from magnetar.operator.children.naming import Manifest

FIELD_MANAGER: Final = "kubectl-pulsar"

API_VERSIONS: Final[Mapping[str, str]] = {
    **KINDS,
    "CustomResourceDefinition": "apiextensions.k8s.io/v1",
    "Node": "v1",
    "ReplicaSet": "apps/v1",
}
"""Every kind that the plugin reads."""

_PLURALS: Final = {"NetworkPolicy": "networkpolicies", "StorageClass": "storageclasses"}

CLUSTER_SCOPED: Final = frozenset({"CustomResourceDefinition", "Node", "StorageClass"})


def plural(kind: str) -> str:
    """As paths and roles name it."""
    return _PLURALS.get(kind, f"{kind.lower()}s")


def path(kind: str, namespace: str | None, name: str = "") -> str:
    """Of a kind's objects, of all namespaces if it is None; or of one object."""
    version = API_VERSIONS[kind]
    base = f"/apis/{version}" if "/" in version else f"/api/{version}"
    within = f"/namespaces/{namespace}" if namespace is not None and kind not in CLUSTER_SCOPED else ""
    return f"{base}{within}/{plural(kind)}" + (f"/{name}" if name else "")


class NotAllowed(Refused):
    """The user lacks a right (403), or is nobody (401). The text is the server's own."""


class KindMissing(Refused):
    """The API server does not know the kind: the operator is not installed."""


class PodPortRefused(Unavailable):
    """Nothing listens at the pod's port, or the pod is gone: no byte has reached it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWish:
    """Which lines of which container."""

    namespace: str
    pod: str
    container: str
    follow: bool = False
    previous: bool = False
    """Of the container before the last restart."""
    tail_lines: int | None = None
    since_seconds: int | None = None
    since_time: str = ""
    """RFC 3339; lines of that second may come again."""
    size_bytes_max: int | None = None

    def parameters(self) -> dict[str, str]:
        """As the API server takes them. Each line comes with its time."""
        found = {"container": self.container, "timestamps": "true"}
        numbers = {
            "tailLines": self.tail_lines,
            "sinceSeconds": self.since_seconds,
            "limitBytes": self.size_bytes_max,
        }
        found |= {name: str(number) for name, number in numbers.items() if number is not None}
        if self.since_time:
            found["sinceTime"] = self.since_time
        return found | {name: "true" for name in ("follow", "previous") if getattr(self, name)}


class PodStream(Protocol):
    """One connection to a port of a pod."""

    async def send(self, data: bytes) -> None:
        """Hand bytes over. Waits while the pod does not take them. `Unavailable`."""
        ...

    async def receive(self) -> bytes:
        """The next bytes; none: the pod has closed. `PodPortRefused`, `Unavailable`."""
        ...


class Kubernetes(Protocol):
    """All calls of the plugin. Each may raise `NotAllowed`, `Refused`, `ServerUnavailable`."""

    @property
    def namespace(self) -> str:
        """Of the options or of the context."""
        ...

    @property
    def context(self) -> str:
        """What commands that are shown to the user need to reach the same namespace: ` -n NAME`, or nothing."""
        ...

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """An object; None if it is not there."""
        ...

    async def list(self, kind: str, namespace: str | None, selector: str = "") -> Sequence[Manifest]:
        """All objects of a kind; None: of all namespaces. `KindMissing`."""
        ...

    async def patch(self, kind: str, namespace: str, name: str, patch: Mapping[str, Any]) -> Manifest:
        """JSON merge patch (RFC 7396). `NotFound`."""
        ...

    async def version(self) -> str:
        """Of the API server."""
        ...

    def log(self, wish: LogWish) -> AsyncIterator[bytes]:
        """Lines without their ends. `NotFound`."""
        ...

    def connect(self, namespace: str, pod: str, port: int) -> AbstractAsyncContextManager[PodStream]:
        """A connection to a port of a pod, by the API server. `NotFound`."""
        ...
