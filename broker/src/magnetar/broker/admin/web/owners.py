"""Sends a request to the broker that owns what it is about (Pulsar `PulsarWebResource.validateTopicOwnership`)."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from magnetar.broker.admin.web.responses import PRECONDITION_FAILED, AdminError, flag
from magnetar.broker.bundles.lookup_answers import Answer, Connect
from magnetar.broker.bundles.namespace_bundles import BundleNotFound
from magnetar.broker.context import BrokerContext
from magnetar.core.bundle import BundleName, BundleRange
from magnetar.core.topic_name import InvalidTopicName, NamespaceName, TopicName
from yarl import URL

AUTHORITATIVE: Final = "authoritative"
"""The query parameter by which the leader tells a broker to take what nobody owns."""


DESTINATION: Final = "destinationBroker"
"""The query parameter that says who is to have a bundle which its owner lets go of."""


def redirect(
    request: web.Request, owner_url: str, *, authoritative: bool, without: str | None = None
) -> web.HTTPTemporaryRedirect:
    """The redirect (307) of a request to a bundle's owner: path and query as they came, `authoritative` replaced,
    `without` left out."""
    owner = urlsplit(owner_url)
    path, _, query = request.raw_path.partition("?")
    kept = [part for part in query.split("&") if part and part.partition("=")[0] not in (AUTHORITATIVE, without)]
    kept.append(f"{AUTHORITATIVE}={str(authoritative).lower()}")
    location = f"{owner.scheme}://{owner.netloc}{path}?{'&'.join(kept)}"
    return web.HTTPTemporaryRedirect(URL(location, encoded=True))


def url_for(request: web.Request, plain: str | None, tls: str | None) -> str:
    """The address of a broker that answers over what the request came over. Raises 412 when it has none."""
    url = tls if request.secure else plain
    if not url:
        raise AdminError(PRECONDITION_FAILED, "Redirected broker's service url is not configured.")
    return url


def is_authoritative(request: web.Request) -> bool:
    """Whether the leader sent the request here."""
    return flag(request, AUTHORITATIVE)


async def require_topic_owner(context: BrokerContext, request: web.Request, topic: TopicName) -> None:
    """Returns when this broker serves the topic; takes its bundle when this broker is to.

    Raises the redirect to whoever serves it, 404 when the namespace does not exist, 412 when it is another cluster's,
    503 while the bundle moves or no broker may serve it."""
    if request.method == "DELETE":
        answer = await _find_to_delete(context, request, topic)
    else:
        answer = await context.lookup.find(
            topic, authoritative=is_authoritative(request), decide=AUTHORITATIVE in request.query
        )
    _require_here(context, request, answer)


async def bundle_in(context: BrokerContext, namespace: NamespaceName, range_text: str) -> BundleName:
    """The bundle that a path names. Raises 412 unless the namespace is cut so."""
    if "_" not in range_text:
        raise AdminError(PRECONDITION_FAILED, f"Invalid bundle range: {range_text}")
    try:
        bundle = BundleName(namespace, BundleRange.parse(range_text))
    except InvalidTopicName as problem:
        raise AdminError(PRECONDITION_FAILED, str(problem)) from None
    bundles = await context.bundles.of_namespace(namespace)
    if bundle not in bundles:
        real = bundles.bundle_at(bundle.range.low)
        side = "upper" if real.range.low == bundle.range.low else "lower"
        raise AdminError(
            PRECONDITION_FAILED, f"Invalid {side} boundary for bundle {bundle}. Expected {side} boundary of {real}"
        )
    return bundle


async def require_bundle_owner(
    context: BrokerContext, request: web.Request, bundle: BundleName, *, take: bool = True, unloading: bool = False
) -> bool:
    """True when this broker owns the bundle; with `take` it (or whom the leader chooses) takes what nobody owns. With
    `unloading` also one that its owner is about to let go of.

    False, only without `take`, when nobody owns it. Raises the redirect to whoever does, and as
    `require_topic_owner`."""
    owner = await context.ownership.owner(bundle)
    if owner is None and not take:
        return False
    if unloading and owner is not None and owner.disabled and (not owner.ours or context.moves.unloading(bundle)):
        _require_here(context, request, owner.answer)
        return True
    try:
        answer = await context.lookup.find_bundle(
            bundle, authoritative=is_authoritative(request), decide=AUTHORITATIVE in request.query
        )
    except BundleNotFound as problem:
        raise AdminError(PRECONDITION_FAILED, str(problem)) from None
    _require_here(context, request, answer)
    return True


async def require_owned_bundle(context: BrokerContext, request: web.Request, bundle: BundleName) -> None:
    """Return if this broker owns the bundle; 412 if nobody does. Raises the redirect to its owner, and what
    `require_bundle_owner` raises."""
    if not await require_bundle_owner(context, request, bundle, take=False):
        raise AdminError(PRECONDITION_FAILED, f"Failed to find ownership for ServiceUnit:{bundle}")


async def _find_to_delete(context: BrokerContext, request: web.Request, topic: TopicName) -> Answer:
    """Also in a namespace that is being deleted, which takes its topics with it."""
    policies = await context.service.resources.policies(topic.namespace_name)
    if policies is None or not policies.get("deleted"):
        return await context.lookup.find(
            topic, authoritative=is_authoritative(request), decide=AUTHORITATIVE in request.query
        )
    bundle = await context.bundles.bundle_of(topic)
    return await context.lookup.find_bundle(bundle, authoritative=is_authoritative(request))


def _require_here(context: BrokerContext, request: web.Request, answer: Answer) -> None:
    if isinstance(answer, Connect):
        if answer.ours:
            return
        authoritative = context.load.leading
    else:
        authoritative = answer.authoritative
    url = url_for(request, answer.addresses.web_service_url, answer.addresses.web_service_url_tls)
    # Apache's owners would send the request back to the leader, which has taken note of the destination.
    noted = context.load.leading and not context.load.transfers(answer.addresses.broker_id)
    raise redirect(request, url, authoritative=authoritative, without=DESTINATION if noted else None)
