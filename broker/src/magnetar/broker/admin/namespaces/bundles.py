"""Bundles of a namespace: unloaded, moved, split, deleted, looked into; their backlogs and subscriptions.

What is asked of a bundle is done by its owner; what is asked of a namespace is asked of each of its bundles.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import quote

from aiohttp import web
from magnetar.broker.admin.namespaces.clusters import require_local_cluster
from magnetar.broker.admin.namespaces.policies import ONE
from magnetar.broker.admin.namespaces.topics import topics_of_bundle
from magnetar.broker.admin.web.documents import policies_of, require_writable
from magnetar.broker.admin.web.fan_out import on_bundles
from magnetar.broker.admin.web.handlers import Handlers
from magnetar.broker.admin.web.owners import bundle_in, require_bundle_owner, require_owned_bundle
from magnetar.broker.admin.web.responses import (
    CONFLICT,
    NOT_FOUND,
    PRECONDITION_FAILED,
    AdminError,
    flag,
    json,
    namespace_of,
    no_content,
)
from magnetar.broker.admin.web.shapes import body_of, list_of, long
from magnetar.broker.bundles.moves import BundleNotOwned
from magnetar.broker.context import BrokerContext
from magnetar.broker.policies.system_topics import is_system_topic
from magnetar.broker.replicator_names import REPLICATOR_PREFIX
from magnetar.broker.slices import TimeSlice, in_slices
from magnetar.broker.subscriptions.reset import skip
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.bundle import BundleName
from magnetar.core.errors import MagnetarError
from magnetar.core.topic_name import TopicName
from magnetar.managed.compaction import COMPACTION_CURSOR
from magnetar.wire.pulsar.errors import PulsarError, ServerError

BUNDLE: Final = ONE + "/{bundle}"

LARGEST: Final = "LARGEST"
HOT: Final = "HOT"

TOPICS_AT_ONCE_MAX: Final = 32
"""Topics worked on side by side: loading one costs a few reads from the store."""

Work = Callable[[PersistentTopic], Awaitable[None]]


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves. Names of policies come first: other modules' routes must be added before these."""
    moving, content = BundleMoveHandlers(context), BundleContentHandlers(context)
    return [
        web.put(ONE + "/unload", moving.unload_all),
        web.put(BUNDLE + "/unload", moving.unload),
        web.put(BUNDLE + "/split", moving.split),
        web.get(BUNDLE + "/topicHashPositions", content.positions),
        web.post(ONE + "/clearBacklog", content.clear_all),
        web.post(ONE + "/clearBacklog/{subscription}", content.clear_all),
        web.post(ONE + "/unsubscribe/{subscription}", content.unsubscribe_all),
        web.post(BUNDLE + "/clearBacklog", content.clear),
        web.post(BUNDLE + "/clearBacklog/{subscription}", content.clear),
        web.post(BUNDLE + "/unsubscribe/{subscription}", content.unsubscribe),
        web.delete(BUNDLE, moving.delete),
    ]


class BundleMoveHandlers(Handlers):
    """Who serves a bundle."""

    async def unload_all(self, request: web.Request) -> web.Response:
        """Unload every bundle of a namespace."""
        namespace = namespace_of(request)
        await require_local_cluster(self._context, request, namespace)
        await on_bundles(self._context, namespace, "PUT", "/admin/v2/namespaces/{namespace}/{bundle}/unload")
        return no_content()

    async def unload(self, request: web.Request) -> web.Response:
        """Let go of a bundle; with `destinationBroker` that one takes it. What nobody owns is no error."""
        destination = destination_of(request)
        if destination is not None and destination not in self._context.load.brokers():
            raise AdminError(CONFLICT, "Not allowed unload namespace bundle to inactive destination broker")
        bundle = await self._bundle(request)
        if destination is not None and self._context.load.leading:
            # Apache's owners send such a request to the leader, which then places the bundle accordingly.
            self._context.load.set_affinity(bundle, destination)
        if await require_bundle_owner(self._context, request, bundle, take=False, unloading=True):
            try:
                # Whoever asks for the same meanwhile waits for the same end.
                await self._context.moves.unload(bundle, destination=destination)
            except BundleNotOwned:
                if bundle in self._context.ownership.owned():
                    raise
        return no_content()

    async def split(self, request: web.Request) -> web.Response:
        """Cut a bundle in two, or at the boundaries of the body."""
        algorithm = request.query.get("splitAlgorithmName") or None
        boundaries = await body_of(request, list_of(long))
        check_split(algorithm, boundaries, self._context.load.balance_settings.split.algorithms)
        if request.match_info["bundle"] in (LARGEST, HOT):
            bundle = await self._described_bundle(request)
        else:
            bundle = await self._bundle(request)
        await require_bundle_owner(self._context, request, bundle)
        await self._context.moves.split(bundle, algorithm or "", boundaries=boundaries, unload=flag(request, "unload"))
        return no_content()

    async def delete(self, request: web.Request) -> web.Response:
        """Let go of a bundle without topics for good; with `force` also of one that has some."""
        namespace = namespace_of(request)
        await require_writable(self._context)
        await policies_of(self._context, namespace)
        bundle = await bundle_in(self._context, namespace, request.match_info["bundle"])
        await require_owned_bundle(self._context, request, bundle)
        if not flag(request, "force") and await topics_of_bundle(self._context, bundle):
            raise AdminError(CONFLICT, "Cannot delete non empty bundle")
        await self._context.moves.unload(bundle)
        return no_content()

    async def _bundle(self, request: web.Request) -> BundleName:
        namespace = namespace_of(request)
        await require_local_cluster(self._context, request, namespace)
        await require_writable(self._context)
        return await bundle_in(self._context, namespace, request.match_info["bundle"])

    async def _described_bundle(self, request: web.Request) -> BundleName:
        """The bundle with most topics, or with most traffic as the brokers reported it. Raises 404."""
        namespace, wanted = namespace_of(request), request.match_info["bundle"]
        await require_local_cluster(self._context, request, namespace)
        await require_writable(self._context)
        bundles = await self._context.bundles.of_namespace(namespace)
        if wanted == LARGEST:
            topics = await self._context.service.resources.persistent_topics(namespace)
            sizes: dict[BundleName, float] = {}
            turn = TimeSlice()
            for name in topics:
                if turn.over:
                    await turn.pause()
                bundle = bundles.bundle_of(TopicName.parse(name))
                sizes[bundle] = sizes.get(bundle, 0) + 1
        else:
            sizes = {bundle: await self._throughput(bundle) for bundle in bundles.bundles}
        largest = max(sizes, key=lambda bundle: sizes[bundle], default=None)
        if largest is None or not sizes[largest]:
            raise AdminError(NOT_FOUND, f"Bundle range {wanted} not found")
        return largest

    async def _throughput(self, bundle: BundleName) -> float:
        """Bytes per second of late, as load management keeps them (Pulsar `BundleData`)."""
        documents = self._context.service.resources.local_documents
        data = await documents.get(f"/loadbalance/bundle-data/{bundle}") or {}
        recent = data.get("shortTermData") or {}
        return float(recent.get("msgThroughputIn") or 0) + float(recent.get("msgThroughputOut") or 0)


class BundleContentHandlers(Handlers):
    """What is in a bundle."""

    async def positions(self, request: web.Request) -> web.Response:
        """The hashes of the topics of a bundle, all or those that are asked for with `topics`."""
        bundle = await self._bundle(request)
        await require_owned_bundle(self._context, request, bundle)
        topics = await topics_of_bundle(self._context, bundle)
        wanted = {str(TopicName.parse(name)) for name in request.query.getall("topics", [])}
        found = {
            str(topic): topic.bundle_hash()
            for topic in topics
            if not wanted or str(topic) in wanted or str(topic.partitioned_name()) in wanted
        }
        return json({"namespace": str(bundle.namespace), "bundle": str(bundle.range), "topicHashPositions": found})

    async def clear_all(self, request: web.Request) -> web.Response:
        """Acknowledge everything in a namespace, for one subscription or for all."""
        return await self._on_all(request, "clearBacklog")

    async def unsubscribe_all(self, request: web.Request) -> web.Response:
        """Remove a subscription from all topics of a namespace."""
        refuse_replicator(request.match_info["subscription"])
        return await self._on_all(request, "unsubscribe")

    async def clear(self, request: web.Request) -> web.Response:
        """Acknowledge everything in a bundle, for one subscription or for all."""
        name = request.match_info.get("subscription")

        async def work(topic: PersistentTopic) -> None:
            for subscription in list(topic.subscriptions.values()):
                if subscription.name == COMPACTION_CURSOR:
                    continue  # Who reads compacted would lose what no compaction has gone through.
                if name is None or subscription.name == name:
                    await skip(subscription)

        return await self._on_topics(request, work)

    async def unsubscribe(self, request: web.Request) -> web.Response:
        """Remove a subscription from all topics of a bundle."""
        name = request.match_info["subscription"]
        refuse_replicator(name)

        async def work(topic: PersistentTopic) -> None:
            if name in topic.subscriptions:
                await topic.delete_subscription(name, force=False)

        return await self._on_topics(request, work)

    async def _on_all(self, request: web.Request, operation: str) -> web.Response:
        namespace = namespace_of(request)
        await policies_of(self._context, namespace)
        path = "/admin/v2/namespaces/{namespace}/{bundle}/" + operation
        subscription = request.match_info.get("subscription")
        if subscription is not None:
            # Braces would be taken for those of the path.
            path += "/" + quote(subscription, safe="")
        await on_bundles(self._context, namespace, "POST", path)
        return no_content()

    async def _on_topics(self, request: web.Request, work: Work) -> web.Response:
        bundle = await self._bundle(request)
        await require_bundle_owner(self._context, request, bundle)

        async def on_topic(name: TopicName) -> MagnetarError | None:
            """What was in the way; the other topics are not to wait for it."""
            try:
                topic = await self._service.topic(name, create=False)
                if isinstance(topic, PersistentTopic):
                    await work(topic)
            except MagnetarError as problem:
                missing = isinstance(problem, PulsarError) and problem.code == ServerError.TOPIC_NOT_FOUND
                return None if missing else problem
            return None

        names = [name for name in await topics_of_bundle(self._context, bundle) if not is_system_topic(str(name))]
        for result in await in_slices(on_topic, names, TOPICS_AT_ONCE_MAX):
            if result is not None:
                raise result
        return no_content()

    async def _bundle(self, request: web.Request) -> BundleName:
        namespace = namespace_of(request)
        await policies_of(self._context, namespace)
        return await bundle_in(self._context, namespace, request.match_info["bundle"])


def destination_of(request: web.Request) -> str | None:
    """The broker that `destinationBroker` names; old clients send its address."""
    text = request.query.get("destinationBroker", "").strip()
    for scheme in ("http://", "https://"):
        text = text.removeprefix(scheme)
    return text or None


def check_split(algorithm: str | None, boundaries: list[int] | None, supported: tuple[str, ...]) -> None:
    """Raises 412 for an algorithm that is not supported, or that lacks its boundaries."""
    if algorithm is None:
        return
    if algorithm not in supported:
        raise AdminError(
            PRECONDITION_FAILED,
            f"Unsupported namespace bundle split algorithm, supported algorithms are [{', '.join(supported)}]",
        )
    if algorithm == "specified_positions_divide" and not boundaries:
        raise AdminError(
            PRECONDITION_FAILED,
            "With specified_positions_divide split algorithm, splitBoundaries must not be empty",
        )


def refuse_replicator(subscription: str) -> None:
    """Raises 412 for the cursors of replication, which go when replication is switched off."""
    if subscription.startswith(REPLICATOR_PREFIX):
        raise AdminError(PRECONDITION_FAILED, "Cannot unsubscribe a replication cursor")
