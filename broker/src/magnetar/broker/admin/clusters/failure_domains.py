"""Failure domains: brokers of a cluster that tend to fail together, such as those of one rack."""

from __future__ import annotations

from typing import Final

from aiohttp import web
from magnetar.broker.admin.web.documents import require_cluster, require_writable
from magnetar.broker.admin.web.handlers import Handlers
from magnetar.broker.admin.web.responses import CONFLICT, NOT_FOUND, AdminError, json, no_content, node_name
from magnetar.broker.admin.web.shapes import Shape, body_of, set_of, text
from magnetar.broker.context import BrokerContext
from magnetar.broker.resources import Document, Resources
from magnetar.metadata.store import NodeNotFound

BASE: Final = "/admin/v2/clusters/{cluster}/failureDomains"
ONE: Final = BASE + "/{domain}"

FAILURE_DOMAIN: Final = Shape({"brokers": (set_of(text), None)})


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = FailureDomainHandlers(context)
    return [
        web.get(BASE, handlers.all),
        web.get(ONE, handlers.get),
        web.post(ONE, handlers.set),
        web.delete(ONE, handlers.remove),
    ]


class FailureDomainHandlers(Handlers):
    """The handlers, over one broker."""

    async def all(self, request: web.Request) -> web.Response:
        """All of a cluster, by name; none when there is no such cluster."""
        return json(await self._all(node_name(request, "cluster")))

    async def get(self, request: web.Request) -> web.Response:
        """The brokers of one."""
        cluster, domain = await self._names(request)
        found = await self._documents.get(domain_path(cluster, domain))
        if found is None:
            raise AdminError(NOT_FOUND, f"Domain {domain} for cluster {cluster} does not exist")
        return json(found)

    async def set(self, request: web.Request) -> web.Response:
        """Make one, or replace its brokers; a broker is in one domain at most."""
        wanted: Document = await body_of(request, FAILURE_DOMAIN) or {}
        cluster, domain = await self._names(request)
        await require_writable(self._context)
        for name, other in (await self._all(cluster)).items():
            both = sorted(set(other.get("brokers") or []) & set(wanted.get("brokers") or []))
            if name != domain and both:
                raise AdminError(CONFLICT, f"[{', '.join(both)}] already exists in {name}")
        await self._documents.put(domain_path(cluster, domain), wanted)
        return no_content()

    async def remove(self, request: web.Request) -> web.Response:
        """Remove a failure domain."""
        cluster, domain = await self._names(request)
        await require_writable(self._context)
        try:
            await self._documents.delete(domain_path(cluster, domain))
        except NodeNotFound:
            raise AdminError(NOT_FOUND, f"Domain-name {domain} or cluster {cluster} does not exist") from None
        return web.Response()

    async def _names(self, request: web.Request) -> tuple[str, str]:
        cluster = node_name(request, "cluster")
        await require_cluster(self._context, cluster)
        return cluster, node_name(request, "domain")

    async def _all(self, cluster: str) -> dict[str, Document]:
        found = {}
        for domain in await self._documents.children(f"{Resources.cluster_path(cluster)}/failureDomain"):
            document = await self._documents.get(domain_path(cluster, domain))
            if document is not None:
                found[domain] = document
        return found


def domain_path(cluster: str, domain: str) -> str:
    """Where a failure domain is."""
    return f"{Resources.cluster_path(cluster)}/failureDomain/{domain}"
