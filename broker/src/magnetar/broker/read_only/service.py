"""The topics of a broker that only reads: each follows what the topic's owner writes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import ClassVar, Final

from magnetar.broker.bundles.lookup import Lookup
from magnetar.broker.peers.internal_client import InternalClient
from magnetar.broker.peers.peer_client import PeerClient
from magnetar.broker.policies.system_topics import is_bare_ledger
from magnetar.broker.read_only.bindings import Bindings
from magnetar.broker.read_only.followed_topic import FollowedTopic
from magnetar.broker.read_only.keep_settings import KeepSettings
from magnetar.broker.read_only.paths import ROOT
from magnetar.broker.read_only.schemas import ReadOnlyTopicSchemas
from magnetar.broker.read_only.topic_owner import OwnerParts, RemoteTopicOwner
from magnetar.broker.read_only.upkeep import ReadOnlyUpkeep
from magnetar.broker.schema.registry import SchemaRegistry
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.topics.service import BrokerService
from magnetar.broker.topics.topic import Topic
from magnetar.broker.topics.upkeep import Upkeep
from magnetar.broker.transactions.buffers.snapshot_store import SnapshotStore
from magnetar.broker.transactions.names import COORDINATORS_TOPIC
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.managed.errors import ManagedLedgerIsShadow, ManagedLedgerNotFound
from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.managed.following.settings import FollowSettings
from magnetar.metadata.store import MetadataStore, NodeNotFound
from magnetar.wire.pulsar.errors import PulsarError, ServerError

LOOKS_PER_SECOND: Final = 1_000.0
"""At silent topics, all together: a tenth of a core."""

LOOKS_PER_SECOND_MAX: Final = 4_000.0
"""The same where the pause of the settings would ask for more: with very many topics it is longer."""

PAUSE_SECONDS_MIN: Final = 0.01
"""Between two looks at a silent topic, of however few."""


class ReadOnlyService(BrokerService):
    """Makes no topic, no partition, no schema and no ledger. `use_owners` before it serves anybody."""

    upkeep_class: ClassVar[type[Upkeep]] = ReadOnlyUpkeep

    def __init__(
        self,
        settings: BrokerSettings,
        store: MetadataStore,
        ledgers: ManagedLedgerFactory,
        schemas: SchemaRegistry,
        clock: Clock,
        lookup: Lookup,
    ) -> None:
        super().__init__(settings, store, ledgers, schemas, clock, lookup)
        self.topic_schemas = ReadOnlyTopicSchemas(schemas)
        self._bindings = Bindings(store, lookup.ownership.own)
        self._own_id = lookup.ownership.own.broker_id
        self._client: InternalClient | None = None
        self._owners: OwnerParts | None = None
        self._snapshots: SnapshotStore | None = None
        self._following = FollowSettings(
            look_pause_seconds_min=settings.read_only.tail_interval_ms_min / 1000,
            look_pause_seconds_max=settings.read_only.tail_interval_ms_max / 1000,
            longest_pause_seconds=self._longest_pause_seconds,
            wants_notices=True,
        )

    def _longest_pause_seconds(self) -> float:
        """Few topics are looked at more often than many, for the same cost."""
        count = len(self.topics)
        most = max(self._following.look_pause_seconds_max, count / LOOKS_PER_SECOND_MAX)
        return min(most, max(PAUSE_SECONDS_MIN, count / LOOKS_PER_SECOND))

    def use_owners(self, client: InternalClient, peers: PeerClient) -> None:
        """How the owners of topics are reached; the service closes the client, after its topics."""
        self._client = client
        self._owners = OwnerParts(
            client=client.get,
            admin=peers,
            store=self.store,
            clock=self.clock,
            broker_id=self._own_id,
            settings=KeepSettings(rate_seconds=self.settings.read_only.position_interval_ms / 1000),
        )

    async def partitions(self, name: TopicName, *, create: bool) -> int:
        """How many partitions a topic has, 0 when it is not partitioned. Makes nothing."""
        return await super().partitions(name, create=False)

    async def may_create_topics(self, namespace: NamespaceName) -> bool:
        """Whether clients may make topics of a namespace here: no, whatever the policies say."""
        return False

    async def may_create(self, name: TopicName) -> bool:
        """Whether a client may make this topic here: no, whatever the policies say."""
        return False

    def check_may_create_subscription(self, topic: Topic, subscription: str) -> None:
        """Nothing: which subscriptions there are the owner knows, and refuses others where the policies say so."""

    async def _open(self, name: TopicName, *, create: bool) -> Topic:
        if name.domain != "persistent" or is_bare_ledger(name):
            raise PulsarError(ServerError.NOT_ALLOWED_ERROR, f"A read-only broker does not serve {name}")
        policies = await self._check_may_exist(name, create=False)
        assert self._owners is not None
        topics: list[FollowedTopic] = []

        def subscription_lost(subscription: str, error: MagnetarError) -> None:
            for topic in topics:
                topic.subscription_lost(subscription, error)

        owner = RemoteTopicOwner(name, self._owners, subscription_lost)
        try:
            ledger = await self.ledgers.follow(name.persistence_name, owner, policies.ledger_of(name), self._following)
        except ManagedLedgerNotFound:
            await owner.close()
            raise PulsarError(
                ServerError.TOPIC_NOT_FOUND,
                f"Topic {name} does not exist, and a read-only broker makes none: a producer of it does",
            ) from None
        except ManagedLedgerIsShadow as shadow:
            await owner.close()
            raise PulsarError(
                ServerError.NOT_ALLOWED_ERROR,
                f"Topic {name} is a shadow of {shadow.source}. Read-only brokers serve none: read that topic here",
            ) from None
        topic = FollowedTopic(name, ledger, self.policies.of(name), self._runtime, self._lost, self._bindings, owner)
        topics.append(topic)
        try:
            if not topic.of_broker and await self.resources.partitions(COORDINATORS_TOPIC) is not None:
                topic.follow_transactions(self._transaction_snapshots())
            await topic.prepare()
        except BaseException:
            await asyncio.shield(topic.close())
            raise
        return topic

    def _transaction_snapshots(self) -> SnapshotStore:
        """The owners' snapshots; loaded by the first topic of a cluster with transactions."""
        if self._snapshots is None:
            from magnetar.broker.transactions.buffers.segments import SegmentedSnapshots
            from magnetar.broker.transactions.buffers.snapshot_topic import SnapshotParts

            assert self._owners is not None
            call_later = asyncio.get_running_loop().call_later
            parts = SnapshotParts(
                client=self._owners.client,
                existing=self._existing,
                spawn=self.spawn,
                call_later=call_later,
                clock=self.clock,
            )
            self._snapshots = SegmentedSnapshots(parts, self.settings.transactions.segment_bytes)
        return self._snapshots

    async def _existing(self, name: TopicName) -> list[TopicName]:
        """A topic or its partitions, as far as it is there."""
        return await self._seen(name) or await self._seen_for_sure(name)

    async def _seen_for_sure(self, name: TopicName) -> list[TopicName]:
        """Also if it was made just now: what this session has read may be older than what bookies told of the topic's
        last entries. A write brings it up to date, also one that is refused."""
        with contextlib.suppress(NodeNotFound):
            await self.store.delete(f"{ROOT}/nothing")
        return await self._seen(name)

    async def _seen(self, name: TopicName) -> list[TopicName]:
        if count := await self.resources.partitions(name):
            return [name.partition(index) for index in range(count)]
        return [name] if await self.exists(name) else []

    async def close(self) -> None:
        """Let go of every topic; positions are stored at their owners."""
        await super().close()
        if self._snapshots is not None:
            await self._snapshots.close()
        if self._client is not None:
            await self._client.close()
