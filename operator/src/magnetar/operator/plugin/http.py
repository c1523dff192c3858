"""`Kubernetes` over HTTP and websockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from magnetar.operator.kubernetes.client import MERGE_PATCH, KubernetesClient
from magnetar.operator.kubernetes.errors import KindMissing, NotFound, users_failure
from magnetar.operator.kubernetes.kinds import Manifest, path
from magnetar.operator.kubernetes.login import Login
from magnetar.operator.kubernetes.pods import LogOptions, PodStream
from magnetar.operator.kubernetes.streams import log_lines, port_forward

FIELD_MANAGER: Final = "kubectl-pulsar"


class HttpKubernetes(KubernetesClient):
    """The API server that a login leads to. `close` it."""

    def __init__(self, login: Login, namespace: str | None = None) -> None:
        """`namespace`: another one than the context's."""
        super().__init__(login, failure_of=users_failure)
        self.namespace = namespace or login.namespace
        self.context = f" -n {namespace}" if namespace else ""

    async def list(self, kind: str, namespace: str | None, selector: str = "") -> Sequence[Manifest]:
        """All objects of a kind; None: of all namespaces. `KindMissing`."""
        try:
            return await super().list(kind, namespace, selector)
        except NotFound:
            raise KindMissing(f"the Kubernetes cluster does not know {kind}") from None

    async def patch(self, kind: str, namespace: str, name: str, patch: Mapping[str, Any]) -> Manifest:
        """JSON merge patch (RFC 7396). `NotFound`."""
        query = {"fieldManager": FIELD_MANAGER}
        where = path(kind, namespace, name)
        return await self.ask("patch", kind, where, query=query, body=patch, content_type=MERGE_PATCH)

    async def version(self) -> str:
        """The version of the API server."""
        found: str = (await self.ask("get", "the version", "/version"))["gitVersion"]
        return found

    def log(self, options: LogOptions) -> AsyncIterator[bytes]:
        """Lines without their ends. `NotFound`."""
        return log_lines(self, options)

    def connect(self, namespace: str, pod: str, port: int) -> AbstractAsyncContextManager[PodStream]:
        """A connection to a port of a pod, by the API server. `NotFound`."""
        return port_forward(self, namespace, pod, port)
