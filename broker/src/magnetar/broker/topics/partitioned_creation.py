"""The making of partitioned topics: the record first, then an empty managed ledger for each partition, which whoever
owns it opens later. A request that got no further is finished by the one that asks again."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from magnetar.broker.resources import Document, Resources
from magnetar.core.topic_name import TopicName
from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.metadata.store import NodeNotFound, VersionConflict
from magnetar.wire.pulsar.errors import PulsarError, ServerError

NODES_AT_ONCE: Final = 100
"""Partitions made side by side: enough to hide the store's latency, few beside what it serves."""


class PartitionedCreation:
    """Makes partitioned topics and their partitions; other brokers may own these."""

    def __init__(self, resources: Resources, ledgers: ManagedLedgerFactory) -> None:
        self._resources = resources
        self._ledgers = ledgers
        self._creating: set[str] = set()
        """Records whose partitions are being made."""

    async def create(self, name: TopicName, partitions: int, properties: dict[str, str] | None = None) -> None:
        """Record a partitioned topic and make its partitions; go on with what a request began that had no answer.

        `VersionConflict` when there is one, unless it is recorded just so and lacks partitions. `PulsarError`
        TOPIC_NOT_FOUND when its namespace is deleted meanwhile."""
        path = self._resources.partitioned_topic_path(name)
        noted = {} if properties is None else {"properties": properties}
        document = {"partitions": partitions, "deleted": False, **noted}
        recorded = await self._record(path, document)
        self._creating.add(path)
        try:
            made = await self.create_partitions(name, partitions)
            stands = await self._resources.stands(name.namespace_name)
            if not stands:
                await self._take_back(name, partitions)
        except BaseException:
            if recorded:
                self._resources.documents.note_begun(path, document)
            raise
        finally:
            self._creating.discard(path)
        if not stands:
            raise PulsarError(ServerError.TOPIC_NOT_FOUND, f"Namespace {name.namespace_name} does not exist")
        if not made and not recorded:
            raise VersionConflict(f"{name} is there already")

    async def _record(self, path: str, document: Document) -> bool:
        """Whether this request has recorded it; not, when it is recorded just so and nobody here is at it."""
        try:
            await self._resources.documents.create(path, document)
        except VersionConflict:
            if path in self._creating or await self._resources.documents.get(path) != document:
                raise
            return False
        return True

    async def _take_back(self, name: TopicName, partitions: int) -> None:
        """Who deletes the namespace may have looked for topics before these were there."""
        if name.domain == "persistent":
            for index in range(partitions):
                await self._ledgers.delete(name.partition(index).persistence_name)
        with contextlib.suppress(NodeNotFound):
            await self._resources.documents.delete(self._resources.partitioned_topic_path(name))

    async def create_partitions(self, name: TopicName, count: int) -> int:
        """Make those of its partitions that are not there, before anybody uses them; other brokers may own them.
        Returns how many were made."""
        made = 0
        if name.domain == "persistent":
            for first in range(0, count, NODES_AT_ONCE):
                some = range(first, min(first + NODES_AT_ONCE, count))
                names = [name.partition(index).persistence_name for index in some]
                made += sum(await asyncio.gather(*map(self._ledgers.create, names)))
        return made
