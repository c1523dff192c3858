"""Resource quotas: what a bundle is expected to need, until it has been seen for a while (Pulsar `ResourceQuotas`)."""

from __future__ import annotations

from typing import Final

from aiohttp import web
from magnetar.broker.admin.web.documents import policies_of, require_writable
from magnetar.broker.admin.web.handlers import Handlers
from magnetar.broker.admin.web.owners import bundle_in
from magnetar.broker.admin.web.responses import NOT_FOUND, AdminError, json, namespace_of, no_content
from magnetar.broker.admin.web.shapes import Shape, boolean, number, required_body
from magnetar.broker.context import BrokerContext
from magnetar.metadata.store import NodeNotFound

BASE: Final = "/admin/v2/resource-quotas"
ONE: Final = BASE + "/{tenant}/{namespace}/{bundle}"
ROOT: Final = "/loadbalance/resource-quota"
DEFAULT_PATH: Final = ROOT + "/default"

RESOURCE_QUOTA: Final = Shape(
    {
        "msgRateIn": (number, 0.0),
        "msgRateOut": (number, 0.0),
        "bandwidthIn": (number, 0.0),
        "bandwidthOut": (number, 0.0),
        "memory": (number, 0.0),
        "dynamic": (boolean, False),
    }
)
DEFAULT_QUOTA: Final = {
    "msgRateIn": 40.0,
    "msgRateOut": 120.0,
    "bandwidthIn": 100_000.0,
    "bandwidthOut": 300_000.0,
    "memory": 80.0,
    "dynamic": True,
}
"""The quota of bundles for which nobody has set one (Pulsar `BundlesQuotas.INITIAL_QUOTA`)."""


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = ResourceQuotaHandlers(context)
    return [
        web.get(BASE, handlers.default),
        web.post(BASE, handlers.set_default),
        web.get(ONE, handlers.get),
        web.post(ONE, handlers.set),
        web.delete(ONE, handlers.remove),
    ]


class ResourceQuotaHandlers(Handlers):
    """The handlers, over one broker."""

    async def default(self, _: web.Request) -> web.Response:
        """What a bundle is expected to need."""
        return json(await self._local_documents.get(DEFAULT_PATH) or DEFAULT_QUOTA)

    async def set_default(self, request: web.Request) -> web.Response:
        """Change what a bundle is expected to need."""
        quota = await required_body(request, RESOURCE_QUOTA)
        await require_writable(self._context)
        await self._local_documents.put(DEFAULT_PATH, quota)
        return no_content()

    async def get(self, request: web.Request) -> web.Response:
        """What one bundle is expected to need."""
        found = await self._local_documents.get(await self._path(request))
        return json(found or await self._local_documents.get(DEFAULT_PATH) or DEFAULT_QUOTA)

    async def set(self, request: web.Request) -> web.Response:
        """Change what one bundle is expected to need."""
        quota = await required_body(request, RESOURCE_QUOTA)
        await require_writable(self._context)
        await self._local_documents.put(await self._path(request), quota)
        return no_content()

    async def remove(self, request: web.Request) -> web.Response:
        """Go back to what is expected of all."""
        await require_writable(self._context)
        path = await self._path(request)
        try:
            await self._local_documents.delete(path)
        except NodeNotFound:
            raise AdminError(NOT_FOUND, f"path {path} not found.") from None
        return no_content()

    async def _path(self, request: web.Request) -> str:
        namespace = namespace_of(request)
        await policies_of(self._context, namespace)
        return f"{ROOT}/{await bundle_in(self._context, namespace, request.match_info['bundle'])}"
