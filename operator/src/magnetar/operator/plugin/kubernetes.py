"""Kubernetes' API server, as the plugin uses it: with its user's own rights."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.kubernetes.pods import LogOptions, PodStream


class Kubernetes(Protocol):
    """All calls of the plugin. Each may raise `NotPermitted`, `Refused`, `ServerUnavailable`."""

    @property
    def namespace(self) -> str:
        """The namespace of the options or of the context."""
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
        """The version of the API server."""
        ...

    def log(self, options: LogOptions) -> AsyncIterator[bytes]:
        """Lines without their ends. `NotFound`."""
        ...

    def connect(self, namespace: str, pod: str, port: int) -> AbstractAsyncContextManager[PodStream]:
        """A connection to a port of a pod, by the API server. `NotFound`."""
        ...
