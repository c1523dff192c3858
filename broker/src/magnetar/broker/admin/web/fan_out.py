"""Work on a whole namespace: each bundle's owner is asked to do its part (Apache: its own admin client)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from magnetar.admin_client.client import AdminAnswer
from magnetar.admin_client.errors import AdminRefused, AdminUnreachable
from magnetar.broker.admin.web.responses import UNAVAILABLE, AdminError
from magnetar.broker.context import BrokerContext
from magnetar.core.topic_name import NamespaceName


async def call(context: BrokerContext, method: str, path: str, query: Mapping[str, str] | None = None) -> AdminAnswer:
    """Ask whoever is responsible; what it refuses is refused here with the same status and reason."""
    try:
        return await context.peers.call(method, path, query=query)
    except AdminRefused as refused:
        raise AdminError(refused.status, str(refused)) from None
    except AdminUnreachable as unreachable:
        raise AdminError(UNAVAILABLE, str(unreachable)) from None


async def call_all(
    context: BrokerContext,
    method: str,
    paths: Sequence[str],
    query: Mapping[str, str] | None = None,
    *,
    tolerated: Sequence[int] = (),
) -> list[AdminAnswer]:
    """Ask whoever is responsible for each path, side by side (the client limits how many at once). All are tried before
    the first error is raised. Refusals with a status that is tolerated count as done, without an answer."""
    results = await asyncio.gather(*(call(context, method, path, query) for path in paths), return_exceptions=True)
    answers = []
    for result in results:
        if isinstance(result, AdminAnswer):
            answers.append(result)
        elif not isinstance(result, AdminError) or result.status not in tolerated:
            raise result
    return answers


async def on_bundles(
    context: BrokerContext,
    namespace: NamespaceName,
    method: str,
    path: str,
    query: Mapping[str, str] | None = None,
) -> list[AdminAnswer]:
    """One request for each bundle; the path says `{namespace}` and `{bundle}` where they belong."""
    bundles = (await context.bundles.of_namespace(namespace)).bundles
    paths = [path.format(namespace=namespace, bundle=bundle.range) for bundle in bundles]
    return await call_all(context, method, paths, query)
