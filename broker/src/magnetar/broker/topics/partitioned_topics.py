"""Partitioned topics: a record of the count, and partitions that may belong to any broker.

Partitions are made as empty managed ledgers in the store, which whoever owns them opens later; what needs the owner
is asked for over the admin API (Apache: `AdminResource.tryCreatePartitionsAsync`, `PersistentTopicsBase`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from magnetar.admin_client.errors import AdminRefused
from magnetar.broker.peers.peer_client import PeerClient
from magnetar.broker.resources import Document
from magnetar.broker.slices import in_slices
from magnetar.broker.topics.service import BrokerService
from magnetar.core.topic_name import PERSISTENT, TopicName, java_url_encode
from magnetar.metadata.store import NodeNotFound
from magnetar.wire.pulsar.errors import PulsarError, ServerError

NOT_FOUND: Final = 404
CONFLICT: Final = 409

EARLIEST_ID: Final = {"ledgerId": -1, "entryId": -1}


def admin_path(topic: TopicName) -> str:
    """Where the admin API has a topic."""
    return f"/admin/v2/{topic.domain}/{topic.namespace_name}/{java_url_encode(topic.local_name)}"


class PartitionedTopics:
    """Makes, enlarges and removes them, over all brokers."""

    def __init__(self, service: BrokerService, peers: PeerClient) -> None:
        self._service = service
        self._resources = service.resources
        self._peers = peers
        self._growing: set[str] = set()

    async def create(self, name: TopicName, partitions: int, properties: dict[str, str] | None) -> None:
        """Record it and make its partitions, or go on with a creation that was begun and not finished.

        `VersionConflict` when there is one, `PulsarError` NOT_ALLOWED_ERROR when the namespace has too many topics."""
        # One that is recorded was counted when it was.
        if await self._resources.partitions(name) is None:
            await self._service.check_topics_max(name, map(name.partition, range(partitions)))
        await self._service.partitioned.create(name, partitions, properties)

    async def grow(self, name: TopicName, partitions: int) -> None:
        """Add partitions; existing subscriptions appear on the new ones, from their beginning.

        Raises `PulsarError`: TOPIC_NOT_FOUND, NOT_ALLOWED_ERROR for fewer partitions, SERVICE_NOT_READY while they are
        being added already."""
        path = self._resources.partitioned_topic_path(name)
        current = counted(name, await self._resources.documents.get(path))
        if partitions < current:
            raise PulsarError(
                ServerError.NOT_ALLOWED_ERROR,
                f"Desired partitions {partitions} can't be less than the current partitions {current}.",
            )
        if str(name) in self._growing:
            raise PulsarError(ServerError.SERVICE_NOT_READY, f"Partitions are being added to {name} already")
        await self._service.shadows.check_growth(name, partitions)
        await self._service.check_topics_max(name, map(name.partition, range(current, partitions)))
        self._growing.add(str(name))
        try:
            # Clients look at the record: subscriptions must stand before they find the new partitions.
            await self._service.partitioned.create_partitions(name, partitions)
            if name.domain == PERSISTENT and partitions > current:
                await self._copy_subscriptions(name, range(current, partitions))
            await self._record_growth(name, current, partitions)
        finally:
            self._growing.discard(str(name))

    async def _record_growth(self, name: TopicName, before: int, partitions: int) -> None:
        """Other brokers may have added more meanwhile, or have begun to delete it."""
        path = self._resources.partitioned_topic_path(name)
        try:
            await self._resources.documents.update(
                path, lambda document: {**document, "partitions": max(partitions, counted(name, document))}
            )
        except (NodeNotFound, PulsarError):
            await self._delete_partitions(name, range(before, partitions), force=True)
            raise PulsarError(ServerError.TOPIC_NOT_FOUND, f"Topic {name} was deleted meanwhile.") from None

    async def _copy_subscriptions(self, name: TopicName, indexes: Iterable[int]) -> None:
        # Loaded late: a start does without msgspec.
        from magnetar.broker.peers.large_json import decoded_in_turns

        answer = await self._peers.call("GET", admin_path(name.partition(0)) + "/stats", query=CHEAP_STATS)
        subscriptions = (await decoded_in_turns(answer.body))["subscriptions"]
        durable = {key: each for key, each in subscriptions.items() if each.get("isDurable")}
        calls = [
            (
                "PUT",
                f"{admin_path(name.partition(index))}/subscription/{java_url_encode(java_url_encode(subscription))}",
                {"replicated": str(bool(each.get("isReplicated"))).lower()},
                {**EARLIEST_ID, "properties": each.get("subscriptionProperties") or {}},
            )
            for index in indexes
            for subscription, each in durable.items()
        ]
        await in_slices(lambda call: self._call(*call, tolerated=CONFLICT), calls)

    async def delete(self, name: TopicName, *, force: bool) -> None:
        """Remove the partitions, then the record. `AdminRefused` when one is in use, and the record stays then.

        Until it goes it is marked, so that no client makes partitions anew and nobody adds some. A mark that a broker
        left when it died keeps nobody from trying again. `NodeNotFound`"""
        partitions, ours = await self._resources.mark_deleted(name)
        try:
            # Whoever was adding some may have died before the record said so.
            while name.domain == PERSISTENT and await self._service.exists(name.partition(partitions)):
                partitions += 1
            await self._delete_partitions(name, range(partitions), force=force)
        except BaseException:
            if ours:
                await asyncio.shield(self._resources.unmark_deleted(name))
            raise
        # The record last: without it nobody would try again.
        await self._service.schemas.delete(name.schema_name, force=True)
        try:
            await self._resources.delete_marked(name)
        except NodeNotFound:
            return  # Somebody else deleted it, too.

    async def _delete_partitions(self, name: TopicName, indexes: range, *, force: bool) -> None:
        query = {"force": str(force).lower()}

        async def delete(index: int) -> None:
            await self._call("DELETE", admin_path(name.partition(index)), query, tolerated=NOT_FOUND)

        await in_slices(delete, indexes)

    async def _call(
        self, method: str, path: str, query: dict[str, str], body: object = None, *, tolerated: int
    ) -> None:
        """One request; a refusal with the status that is tolerated is none."""
        try:
            await self._peers.call(method, path, query=query, body=body)
        except AdminRefused as refusal:
            if refusal.status != tolerated:
                raise


def counted(name: TopicName, record: Document | None) -> int:
    """How many partitions a record says. TOPIC_NOT_FOUND without one, and when it is being deleted."""
    if record is None or record.get("deleted"):
        raise PulsarError(ServerError.TOPIC_NOT_FOUND, f"Topic {name} is not the partitioned topic.")
    return int(record["partitions"])


CHEAP_STATS: Final = {
    "subscriptionBacklogSize": "false",
    "excludePublishers": "true",
    "excludeConsumers": "true",
}
"""Statistics of which only the subscriptions' names and properties are wanted."""
