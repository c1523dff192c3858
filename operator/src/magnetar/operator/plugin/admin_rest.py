"""Brokers' admin API, reached through the API server; redirects are followed to the pod that they mean."""

from __future__ import annotations

import base64
import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence
from typing import Final
from urllib.parse import urlsplit

from magnetar.admin_client.client import AdminAnswer, AdminClient, AdminLimits
from magnetar.admin_client.errors import AdminRefused, AdminUnreachable
from magnetar.auth.credentials import METHOD_TOKEN
from magnetar.auth.plugin import ClientCredentials
from magnetar.core.errors import Unavailable
from magnetar.operator.children.access import BROKER_TOKEN_KEY
from magnetar.operator.children.context import WEB_PORT, WEB_PORT_TLS
from magnetar.operator.kubernetes.errors import NotPermitted
from magnetar.operator.plugin.kubernetes import Kubernetes
from magnetar.operator.plugin.port_forward import LOCALHOST, forwarded_to
from magnetar.operator.plugin.views import ClusterSummary, PodView

REDIRECTS_MAX: Final = 3
"""To the owner, whom a move may have changed meanwhile."""
LIMITS: Final = AdminLimits(connections_max=1, connect_seconds=30.0, read_seconds=30.0)


class AdminRest:
    """The admin API of one cluster's brokers."""

    def __init__(self, kubernetes: Kubernetes, view: ClusterSummary, token: str = "") -> None:
        """`token`: a user's; else the brokers' own is taken where there is one and it may be read."""
        self._kubernetes = kubernetes
        self._view = view
        self._token = token

    async def call(self, method: str, path: str) -> None:
        """Ask any broker that is ready. `AdminRefused`, `Unavailable`."""
        pods = [pod for pod in self._view.of("broker") if pod.ready and not pod.deleting]
        if not pods:
            raise Unavailable(f"no broker of {self._view.name} is ready")
        token = await self._credentials()
        shown = ClientCredentials(METHOD_TOKEN, token) if token else None
        pod, target = pods[0], path
        for _ in range(REDIRECTS_MAX):
            async with self._client(pod, shown) as (client, base):
                try:
                    found = await client.send(method, base + target)
                except AdminUnreachable as error:
                    raise Unavailable(f"{pod.name} does not answer: {error}") from None
            if isinstance(found, AdminAnswer):
                _require_success(pod, found)
                return
            where = urlsplit(found)
            pod = self._pod_at(where.hostname or "", pods)
            target = f"{where.path}?{where.query}" if where.query else where.path
        raise Unavailable("the brokers do not agree who serves it: it is being moved")

    def _pod_at(self, host: str, pods: Sequence[PodView]) -> PodView:
        found = next((pod for pod in pods if pod.address == host or pod.name == host.partition(".")[0]), None)
        if found is None:
            raise Unavailable(f"{host} serves it, which is no broker's pod that is ready")
        return found

    async def _credentials(self) -> str:
        """`NotPermitted` if there are some that may not be read, `Unavailable` if there should be some."""
        authentication = self._view.spec.authentication
        if self._token or authentication is None:
            return self._token
        try:
            secret = await self._kubernetes.get("Secret", self._view.namespace, authentication.token.secret_name)
        except NotPermitted as error:
            raise NotPermitted(f"{error}; or give a token of your own with --token") from None
        name = authentication.token.secret_name
        if secret is None or not (found := (secret.get("data") or {}).get(BROKER_TOKEN_KEY)):
            raise Unavailable(f"the Secret {name} has no {BROKER_TOKEN_KEY}: give a token of your own with --token")
        return base64.b64decode(found).decode().strip()

    @contextlib.asynccontextmanager
    async def _client(self, pod: PodView, shown: ClientCredentials | None) -> AsyncIterator[tuple[AdminClient, str]]:
        """For one pod, and what its URLs begin with."""
        tls = self._view.spec.tls is not None and not self._view.spec.tls.plain_ports
        port = WEB_PORT_TLS if tls else WEB_PORT
        async with forwarded_to(self._kubernetes, self._view.namespace, pod.name, port) as way:
            client = AdminClient(LIMITS, shown, Unnamed() if tls else None)
            try:
                yield client, f"{'https' if tls else 'http'}://{LOCALHOST}:{way.port}"
            finally:
                await client.close()


class Unnamed:
    """The API server, which is verified, leads to the pod itself: its certificate tells nothing more."""

    def __init__(self) -> None:
        self.context = ssl.create_default_context()
        self.context.check_hostname = False
        self.context.verify_mode = ssl.CERT_NONE


def _require_success(pod: PodView, answer: AdminAnswer) -> None:
    if answer.status >= 300:
        reason = answer.reason.strip()
        told = answer.phrase if not reason or reason.startswith("<") else reason
        raise AdminRefused(answer.status, f"{pod.name} answers {answer.status}: {told}")
