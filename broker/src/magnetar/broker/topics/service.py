"""The topics of this broker: loaded on demand, kept while in use, unloaded and deleted on request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any, ClassVar, Final

from magnetar.broker.bundles.close_notices import CloseNotices
from magnetar.broker.bundles.loaded_topic import LoadedTopic
from magnetar.broker.bundles.lookup import Lookup
from magnetar.broker.bundles.lookup_answers import Connect
from magnetar.broker.bundles.namespace_bundles import named_broker
from magnetar.broker.bundles.owned_bundles import OwnedBundle
from magnetar.broker.compaction.topic_compaction import RUNS_AT_ONCE, CompactionWorld, TopicCompaction, is_unsettled
from magnetar.broker.policies.broker_limits import BrokerLimits
from magnetar.broker.policies.effective import BrokerLevel
from magnetar.broker.policies.model import EffectivePolicies
from magnetar.broker.policies.policies import Policies
from magnetar.broker.policies.system_topics import belongs_to_brokers, is_bare_ledger, is_pending_ack_log
from magnetar.broker.resource_groups.groups import ResourceGroups
from magnetar.broker.schema.registry import SchemaRegistry
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime
from magnetar.broker.topics.following.shadows import Shadows
from magnetar.broker.topics.limits import check_topic_count
from magnetar.broker.topics.non_persistent_topic import NonPersistentTopic
from magnetar.broker.topics.partitioned_creation import PartitionedCreation
from magnetar.broker.topics.schemas import TopicSchemas
from magnetar.broker.topics.topic import PersistentTopic, Topic
from magnetar.broker.topics.upkeep import Upkeep
from magnetar.broker.transactions.topic_parts import TopicParts
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError
from magnetar.core.limits import MIB
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.managed.errors import ManagedLedgerIsShadow, ManagedLedgerNotFound
from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.metadata.coordination import NameGenerator
from magnetar.metadata.store import MetadataStore, VersionConflict
from magnetar.wire.pulsar.errors import PulsarError, ServerError

logger: Final = logging.getLogger(__name__)

PRODUCER_NAMES_PATH: Final = "/counters/producer-name"
"""Where brokers of a cluster keep the names they generate apart (Pulsar `DistributedIdGenerator`)."""

CREATING: Final = "creating"
"""Name of the tasks that load a topic and make it if need be."""

CLOSING_LOOK_SECONDS: Final = 0.005
"""How often who wants to close a topic looks whether it is closed that another is closing."""

CACHE_STEP_BYTES: Final = 16 * MIB
"""Of entries that leave the cache in one turn of the event loop when it is made smaller."""

TOPICS_PER_TURN: Final = 100
"""Topics that are let go of before others get a turn on the event loop: some milliseconds."""


class BrokerService:
    """Finds, loads and lets go of topics. Everything that needs a topic asks here."""

    upkeep_class: ClassVar[type[Upkeep]] = Upkeep

    def __init__(
        self,
        settings: BrokerSettings,
        store: MetadataStore,
        ledgers: ManagedLedgerFactory,
        schemas: SchemaRegistry,
        clock: Clock,
        lookup: Lookup,
    ) -> None:
        self.settings = settings
        self.store = store
        self.lookup = lookup
        self.ownership = lookup.ownership
        self.resources = lookup.resources
        self.ledgers = ledgers
        self.partitioned = PartitionedCreation(self.resources, ledgers)
        self.schemas = schemas
        self.topic_schemas = TopicSchemas(schemas)
        self.clock = clock
        self.topics: dict[str, Topic] = {}
        self._loading: dict[str, asyncio.Task[Topic]] = {}
        call_later = asyncio.get_running_loop().call_later
        self.limits = BrokerLimits(settings.policies, clock, call_later)
        self.policies = Policies(
            BrokerLevel(settings, ledgers.settings), self.resources, self.spawn, self.namespaces_in_use
        )
        self.groups = ResourceGroups(self.resources, clock, call_later, self.spawn)
        self._runtime = SubscriptionRuntime(clock, self.spawn, call_later, self.limits, self.groups)
        self._runtime.cluster_name = settings.cluster_name
        self.publish_latencies = self._runtime.publish_latencies
        self.transactions = TopicParts(ledgers, settings.transactions, self._runtime)
        self.shadows = Shadows(self.resources, ledgers, self.policies, self.topics, self.transactions)
        self.upkeep = self.upkeep_class(self, call_later)
        self.groups.on_changed = self.upkeep.groups_changed
        self._compactions = CompactionWorld(
            clock, self.spawn, asyncio.Semaphore(RUNS_AT_ONCE), lambda: self.limits.settings, ledgers.settings
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._producer_names: NameGenerator | None = None
        self._closing = False

    def namespaces_in_use(self) -> set[NamespaceName]:
        """The namespaces of topics that are loaded or being loaded."""
        loading = {TopicName.parse(key).namespace_name for key in self._loading}
        return loading.union(topic.name.namespace_name for topic in self.topics.values())

    def start(self) -> None:
        """Begin the periodic work."""
        self.groups.start()
        self.upkeep.start()

    def use_settings(self, settings: BrokerSettings) -> None:
        """Go on with other settings, of which only those differ that may change while a broker runs."""
        before, self.settings = self.settings, settings
        self.lookup.use_settings(settings)
        self.limits.use_settings(settings.policies)
        self.upkeep.use_settings(settings.policies)
        self.transactions.use_settings(settings.transactions)
        self.ledgers.keep_cached(settings.managed_ledger_cache_seconds_max)
        self.ledgers.tiered_idle_seconds_max = settings.offload.idle_seconds_max
        if settings.managed_ledger_cache_bytes_max != before.managed_ledger_cache_bytes_max:
            self.spawn(self._resize_cache())
        self.policies.use_broker(BrokerLevel(settings, self.ledgers.settings))

    def use_ledger_settings(self, settings: ManagedLedgerSettings) -> None:
        """Use other settings of managed ledgers from now on, also in topics that are loaded."""
        self.ledgers.settings = settings
        self.policies.use_broker(BrokerLevel(self.settings, settings))

    async def _resize_cache(self) -> None:
        """In steps: letting go of a large cache's entries takes its time."""
        cache = self.ledgers.cache
        while cache.size_bytes_max != (wanted := self.settings.managed_ledger_cache_bytes_max):
            cache.resize(max(wanted, min(cache.size_bytes, cache.size_bytes_max) - CACHE_STEP_BYTES))
            await asyncio.sleep(0)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something on the side; the service waits for it when it closes, and logs what fails."""
        task = asyncio.get_running_loop().create_task(work)
        self.wait_for_at_close(task)
        task.add_done_callback(self._finished)

    def wait_for_at_close(self, task: asyncio.Task[None]) -> None:
        """Whoever runs the task looks at how it ends; the service only closes after it."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _finished(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("background work failed: %s", error, exc_info=error)

    async def new_producer_name(self) -> str:
        """A name that no other producer of this cluster has."""
        if self._producer_names is None:
            self._producer_names = await NameGenerator.open(self.store, PRODUCER_NAMES_PATH, self.settings.cluster_name)
        return self._producer_names.next_name()

    async def topic(self, name: TopicName, *, create: bool) -> Topic:
        """The topic, loaded when it is not yet. Raises `PulsarError` when it does not exist and may not be made."""
        key = str(name)
        while True:
            loaded = self.topics.get(key)
            if loaded is not None:
                return loaded
            if self._closing:
                raise PulsarError(ServerError.SERVICE_NOT_READY, "The broker is shutting down")
            loading = self._loading.get(key)
            if loading is None:
                owned = self.ownership.serving(name)
                if owned is None:
                    await self._take_bundle(name)
                    continue
                return await self._start_loading(name, owned, create=create)
            try:
                return await asyncio.shield(loading)
            except PulsarError as error:
                # Whoever began this load may not have wanted the topic to be made.
                if not create or error.code != ServerError.TOPIC_NOT_FOUND or loading.get_name() == CREATING:
                    raise
                # A load that has just ended raises at once, and is forgotten only in the loop's next turn.
                await asyncio.sleep(0)

    async def _take_bundle(self, name: TopicName) -> None:
        """Returns when this broker owns a topic's bundle: when nobody did and it is this one's turn."""
        answer = await self.lookup.find(name)
        if not isinstance(answer, Connect) or not answer.ours:
            raise self._not_served(name)

    def _not_served(self, name: TopicName) -> PulsarError:
        return PulsarError(
            ServerError.SERVICE_NOT_READY,
            f"Namespace bundle for topic ({name}) not served by this instance:{self.settings.broker_id}. "
            f"Please redo the lookup. Request is denied: namespace={name.namespace_name}",
        )

    async def _start_loading(self, name: TopicName, owned: OwnedBundle, *, create: bool) -> Topic:
        if not owned.active:
            raise self._not_served(name)
        if len(self._loading) >= self.settings.topic_loads_max:
            raise PulsarError(ServerError.SERVICE_NOT_READY, "Too many topics are being loaded, try again")
        loading = asyncio.get_running_loop().create_task(
            self._load(name, owned.tenure, create=create), name=CREATING if create else None
        )
        self._loading[str(name)] = owned.loading[str(name)] = loading
        loading.add_done_callback(lambda task: self._loaded(name, task))
        # A client that gives up must not take the load away from the others that wait for it.
        return await asyncio.shield(loading)

    def _loaded(self, name: TopicName, loading: asyncio.Task[Topic]) -> None:
        del self._loading[str(name)]
        owned = self.ownership.serving(name)
        if owned is not None and owned.loading.get(str(name)) is loading:
            del owned.loading[str(name)]
        if not loading.cancelled():
            loading.exception()  # Looked at: nobody may be left to wait for it.

    async def _load(self, name: TopicName, tenure: object, *, create: bool) -> Topic:
        topic = await self._open(name, create=create)
        owned = self.ownership.serving(name)
        if owned is None or owned.tenure is not tenure:
            await topic.abandon()  # Somebody else may own it by now.
            raise self._not_served(name)
        if not owned.active or topic.closing:  # It may show what was lost meanwhile.
            await topic.close()
            raise self._not_served(name)
        # They may have changed while it was opened, when nobody could tell the topic.
        policies = self.policies.of(name)
        topic.follow(policies)
        self.upkeep.replication.follow(topic, policies)
        self.topics[str(name)] = owned.topics[str(name)] = topic
        if isinstance(topic, PersistentTopic) and is_unsettled(topic.ledger):
            self.compaction(topic).settle_later()
        return topic

    def compaction(self, topic: PersistentTopic) -> TopicCompaction:
        """What compacts a topic; made when it is asked for, as few topics ever are compacted."""
        if topic.compaction is None:
            topic.compaction = TopicCompaction(topic, self._compactions)
        return topic.compaction

    async def _open(self, name: TopicName, *, create: bool) -> Topic:
        if is_bare_ledger(name):
            raise PulsarError(ServerError.NOT_ALLOWED_ERROR, f"Can not create transaction system topic {name}")
        policies = await self._check_may_exist(name, create=create)
        await self.upkeep.migration.check_load(name, policies)
        if name.domain == "non-persistent":
            return NonPersistentTopic(name, policies, self._runtime)
        topic = await self._open_persistent(name, policies, create=create)
        try:
            await topic.prepare()
            await self.upkeep.prepare(topic)
        except BaseException:
            # Also when the load is cancelled, and once more while it closes: the ledger is nobody else's to close.
            await asyncio.shield(topic.close())
            raise
        return topic

    async def _open_persistent(self, name: TopicName, policies: EffectivePolicies, *, create: bool) -> PersistentTopic:
        source = await self.shadows.source_of_partition(name)
        try:
            if source is None:
                ledger = await self.ledgers.open(name.persistence_name, policies.ledger_of(name), create=create)
                # Again from memory: what it is opened with may be outdated by now.
                topic = PersistentTopic(name, ledger, self.policies.of(name), self._runtime, self._lost)
                self.transactions.equip(topic)
                return topic
        except ManagedLedgerNotFound:
            raise PulsarError(ServerError.TOPIC_NOT_FOUND, f"Topic {name} does not exist") from None
        except ManagedLedgerIsShadow as shadow:
            source = self.shadows.source_named(name, shadow.source)
        return await self.shadows.load(name, source, policies, self._runtime, self._lost)

    async def _check_may_exist(self, name: TopicName, *, create: bool) -> EffectivePolicies:
        namespace = name.namespace_name
        policies = await self.policies.load(name)
        if policies is None:
            # Topics of a namespace that is being deleted may still be loaded, to be deleted with it.
            gone = create or await self.resources.policies(namespace) is None
            if gone and named_broker(namespace) is None:
                raise PulsarError(ServerError.TOPIC_NOT_FOUND, f"Namespace {namespace} does not exist")
            policies = self.policies.defaults
        if name.partition_index >= 0:
            partitions = await self.resources.partitions(name.partitioned_name())
            # One that stands already is being added: its subscriptions are made before the record counts it.
            if (
                partitions is not None
                and name.partition_index >= partitions
                and (name.domain != "persistent" or not await self.ledgers.exists(name.persistence_name))
            ):
                raise PulsarError(
                    ServerError.TOPIC_NOT_FOUND, f"Illegal topic partition name {name}: there are {partitions}"
                )
            if (
                create
                and partitions is not None
                and not await self.exists(name)
                and await self.resources.is_being_deleted(name.partitioned_name())
            ):
                raise PulsarError(ServerError.TOPIC_NOT_FOUND, f"Topic {name} is being deleted")
        elif await self.resources.partitions(name) is not None and name.domain == "persistent":
            raise PulsarError(ServerError.NOT_ALLOWED_ERROR, f"{name} is a partitioned topic, use its partitions")
        if name.domain == "non-persistent" and not create:
            raise PulsarError(ServerError.TOPIC_NOT_FOUND, f"Topic {name} does not exist")
        if create and policies.topics_per_namespace_max > 0 and not await self.exists(name):
            await self.check_topics_max(name, [name])
        return policies

    async def check_topics_max(self, name: TopicName, wanted: Iterable[TopicName]) -> None:
        """Raises PulsarError(NOT_ALLOWED_ERROR) when a namespace may not have these topics (partitions) too. Those that
        are there already, as of a request that had no answer, do not count twice."""
        policies = await self.policies.namespace(name.namespace_name)
        limit = policies.topics_per_namespace_max if policies is not None else 0
        if limit <= 0 or name.domain != "persistent" or belongs_to_brokers(name):
            return
        check_topic_count(await self.resources.persistent_topics(name.namespace_name), wanted, limit)

    async def policies_changed(self, namespace: NamespaceName) -> None:
        """Return once a namespace's policies, which were just written, hold for its topics that are loaded."""
        await self.policies.refresh(namespace)

    def _lost(self, topic: PersistentTopic, error: MagnetarError) -> None:
        logger.warning("topic %s has another owner now, letting go of it: %s", topic.name, error)
        self.spawn(self._let_go(topic))

    async def _let_go(self, topic: PersistentTopic) -> None:
        """Another process opened the topic: either it owns the bundle now, or it does not know yet that it lost it."""
        owned = self.ownership.serving(topic.name)
        try:
            if owned is not None and not await self.ownership.still_ours(owned):
                return  # All its topics are let go of.
        finally:
            await self.close_topic(topic)

    async def exists(self, name: TopicName) -> bool:
        """Whether there is such a topic (one partition, or one that is not partitioned)."""
        if str(name) in self.topics:
            return True
        return name.domain == "persistent" and await self.ledgers.exists(name.persistence_name)

    def partitions_now(self, name: TopicName) -> int | None:
        """How many partitions a topic has, 0 when it is not partitioned, from memory alone; None: ask `partitions`."""
        known, count = self.resources.peek_partitions(name)
        if not known or count is not None:
            return count
        return 0 if name.partition_index >= 0 or str(name) in self.topics else None

    async def partitions(self, name: TopicName, *, create: bool) -> int:
        """How many partitions a topic has, 0 when it is not partitioned; makes it if told and allowed to."""
        count = await self.resources.partitions(name)
        if count is not None:
            return count
        if name.partition_index >= 0 or await self.exists(name):
            return 0
        policies = await self.policies.namespace(name.namespace_name)
        if policies is None:
            raise PulsarError(ServerError.TOPIC_NOT_FOUND, f"Namespace {name.namespace_name} not found")
        creation = policies.auto_topic_creation
        if not create or not (creation.allowed or belongs_to_brokers(name)):
            raise PulsarError(ServerError.TOPIC_NOT_FOUND, f"Topic {name} not found")
        partitions = creation.partitions
        if partitions == 0 or belongs_to_brokers(name):
            return 0
        try:
            await self.partitioned.create(name, partitions)
        except VersionConflict:
            # Another broker was quicker, which what is kept in memory may not know yet.
            record = await self.resources.documents.get(self.resources.partitioned_topic_path(name))
            return int(record["partitions"]) if record else 0
        return partitions

    async def may_create_topics(self, namespace: NamespaceName) -> bool:
        """Whether a topic of this namespace may be made by its first client."""
        policies = await self.policies.namespace(namespace)
        return (policies if policies is not None else self.policies.defaults).auto_topic_creation.allowed

    async def may_create(self, name: TopicName) -> bool:
        """Whether this topic may be made by its first client: a partition of a recorded topic always, for it may have
        been deleted because nobody used it."""
        if belongs_to_brokers(name) or await self.may_create_topics(name.namespace_name):
            return True
        return name.partition_index >= 0 and await self.resources.partitions(name.partitioned_name()) is not None

    def check_may_create_subscription(self, topic: Topic, subscription: str) -> None:
        """Raises when a new subscription may not be made by its first consumer."""
        if not topic.policies.auto_subscription_creation and not topic.of_broker:
            raise PulsarError(ServerError.SUBSCRIPTION_NOT_FOUND, f"Subscription {subscription} does not exist")

    async def unload(self, name: TopicName) -> None:
        """Let go of a topic; its clients look it up again. Nothing loaded is no error."""
        topic = await self._settled(name)
        if topic is not None:
            await self.close_topic(topic)

    async def close_topic(self, topic: LoadedTopic, close_notices: CloseNotices | None = None) -> None:
        """Let go of a topic that is loaded; its clients hear of it at once, or when `close_notices` are sent."""
        if topic.closing:
            # Somebody is at it, or deletes it: only then may another broker have it.
            while self.topics.get(str(topic.name)) is topic:  # noqa: ASYNC110  (rare, and over in milliseconds)
                await asyncio.sleep(CLOSING_LOOK_SECONDS)
            return
        topic.close_notices = close_notices
        try:
            await topic.close()
        except BaseException:
            # It took too long, or nobody thought of this: its clients must not stay with what serves nobody.
            await topic.abandon()
            raise
        finally:
            self._forget(topic)

    async def abandon(self, topics: Iterable[LoadedTopic]) -> None:
        """Let go of topics that may have another owner, without writing anything; their clients look them up again.

        None waits for another one, which may have a read under way."""
        letting_go: list[asyncio.Future[None]] = []
        for index, topic in enumerate(list(topics)):
            self._forget(topic)
            if not topic.closing:
                letting_go.append(asyncio.ensure_future(topic.abandon()))
            if index % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
        for outcome in await asyncio.gather(*letting_go, return_exceptions=True):
            if isinstance(outcome, BaseException):
                logger.error("a topic is not let go of in good order", exc_info=outcome)

    async def _settled(self, name: TopicName) -> Topic | None:
        """The topic if it is loaded, or is being loaded just now."""
        if (loading := self._loading.get(str(name))) is not None:
            await asyncio.wait([loading])
        return self.topics.get(str(name))

    def _forget(self, topic: LoadedTopic) -> None:
        key = str(topic.name)
        if self.topics.get(key) is topic:
            del self.topics[key]
        owned = self.ownership.serving(topic.name)
        if owned is not None and owned.topics.get(key) is topic:
            del owned.topics[key]

    async def delete(self, name: TopicName, *, force: bool) -> None:
        """Remove a topic with its messages, subscriptions and (when it is not a partition) schema."""
        loaded = await self._settled(name)
        if is_pending_ack_log(name) and await self.exists(name):
            # Left over by a deletion that was cut short; its namespace can only be deleted without it.
            await self.ledgers.delete(name.persistence_name)
            return
        if loaded is None and not await self.exists(name):
            if not self.topic_schemas.left_of(name) or await self.resources.partitions(name) is not None:
                raise PulsarError(ServerError.TOPIC_NOT_FOUND, f"Topic {name} not found")
            await self.topic_schemas.delete_for(name)
            return
        try:
            topic = loaded if loaded is not None else await self.topic(name, create=False)
        except PulsarError:
            if not await self.shadows.delete_unservable(name):
                raise
            return
        if topic.closing:
            raise PulsarError(ServerError.SERVICE_NOT_READY, f"Topic {name} is being unloaded or deleted")
        if not force and (topic.producers.by_name or any(s.consumers for s in topic.subscriptions.values())):
            raise PulsarError(ServerError.PRODUCER_BUSY, "Topic has active producers/subscriptions")
        try:
            await topic.delete()
            if name.partition_index < 0:
                await self.topic_schemas.delete_for(name)
        finally:
            self._forget(topic)  # Only now may the name be used again: clients were told to come back until here.

    async def list_topics(self, namespace: NamespaceName, domain: str) -> list[str]:
        """Full names of the topics of a namespace, partitions one by one, sorted. Domain: one of the two or "all"."""
        names: list[str] = []
        if domain in ("persistent", "all"):
            names += await self.resources.persistent_topics(namespace)
        if domain in ("non-persistent", "all"):
            names += [name for name in self.topics if name.startswith(f"non-persistent://{namespace}/")]
        return sorted(names)

    async def close(self) -> None:
        """Unload every topic; positions are persisted."""
        self._closing = True
        self.upkeep.stop()
        self.groups.close()
        self.policies.close()
        if self._loading:
            await asyncio.wait(list(self._loading.values()))
        closing = list(self.topics.values())  # Some may be let go of meanwhile by whoever lost or deletes them.
        results = await asyncio.gather(*(topic.close() for topic in closing), return_exceptions=True)
        for topic, result in zip(closing, results, strict=True):
            if isinstance(result, BaseException):
                logger.warning("closing %s failed, its next owner recovers it: %s", topic.name, result)
        self.topics.clear()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
