"""What only non-persistent topics have: their list by bundle, which only the bundle's owner knows."""

from __future__ import annotations

from typing import Final

from aiohttp import web
from magnetar.broker.admin.web.described import takes
from magnetar.broker.admin.web.handlers import Handlers
from magnetar.broker.admin.web.owners import require_bundle_owner
from magnetar.broker.admin.web.responses import NOT_FOUND, PRECONDITION_FAILED, AdminError, json, namespace_of
from magnetar.broker.context import BrokerContext
from magnetar.core.bundle import BundleName, BundleRange
from magnetar.core.hashing import bundle_hash
from magnetar.core.topic_name import NON_PERSISTENT, InvalidTopicName

OF_BUNDLE: Final = "/admin/v2/{domain:non-persistent}/{tenant}/{namespace}/{bundle}"
"""The domain as a choice of one word, so that the lists of all bundles, which are of both domains, are tried before."""


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    return [web.get(OF_BUNDLE, NonPersistentHandlers(context).names_of_bundle)]


class NonPersistentHandlers(Handlers):
    """The handlers, over one broker."""

    @takes("authoritative")
    async def names_of_bundle(self, request: web.Request) -> web.Response:
        """Non-persistent topics of a bundle; nothing when nobody owns it."""
        namespace = namespace_of(request)
        if await self._context.service.resources.policies(namespace) is None:
            raise AdminError(NOT_FOUND, "Namespace does not exist")
        try:
            bundle = BundleName(namespace, BundleRange.parse(request.match_info["bundle"]))
        except InvalidTopicName:
            raise AdminError(PRECONDITION_FAILED, f"Invalid bundle range: {request.match_info['bundle']}") from None
        bundles = await self._context.bundles.of_namespace(namespace)
        if bundle not in bundles.bundles:
            expected = bundles.bundle_at(bundle.range.low)
            raise AdminError(
                PRECONDITION_FAILED,
                f"Invalid upper boundary for bundle {bundle}. Expected upper boundary of {expected}",
            )
        if not await require_bundle_owner(self._context, request, bundle, take=False):
            return json([])
        names = await self._context.service.list_topics(namespace, NON_PERSISTENT)
        return json([name for name in names if bundle_hash(name) in bundle.range])
