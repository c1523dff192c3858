"""Which topics are shadows, and how they are made and loaded.

A topic says whose shadow it is by the property `PULSAR.SHADOW_SOURCE`, which it has from its creation on: in its
managed ledger's node, or, for all partitions, in the partitioned topic's record. Apache's brokers leave it out of the
nodes of partitions, so the record is asked first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from magnetar.core.errors import MagnetarError
from magnetar.core.topic_name import PERSISTENT, InvalidTopicName, TopicName
from magnetar.managed.errors import ManagedLedgerIsShadow, ManagedLedgerNotFound
from magnetar.managed.following.settings import FollowSettings
from magnetar.managed.info_codec import SHADOW_SOURCE_PROPERTY
from magnetar.wire.pulsar.errors import PulsarError, ServerError

if TYPE_CHECKING:
    from magnetar.broker.policies.model import EffectivePolicies
    from magnetar.broker.policies.policies import Policies
    from magnetar.broker.resources import Resources
    from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime
    from magnetar.broker.topics.following.shadow_topic import ShadowTopic
    from magnetar.broker.topics.topic import PersistentTopic, Topic
    from magnetar.broker.transactions.topic_parts import TopicParts
    from magnetar.managed.factory import ManagedLedgerFactory
    from magnetar.managed.following.api import EndTeller

logger: Final = logging.getLogger(__name__)

LOOK_SECONDS_MIN: Final = 0.25
LOOK_SECONDS_MAX: Final = 1.0
"""Between two looks at the bookies of a source from which nothing comes: what it tells is looked for at once, and looks
only find what nobody told of."""

LOOKS_PER_SECOND: Final = 100.0
"""Of one broker at the sources of all its shadows together: a hundredth of a core."""


class Shadows:
    """Those of one broker."""

    def __init__(
        self,
        resources: Resources,
        ledgers: ManagedLedgerFactory,
        policies: Policies,
        topics: Mapping[str, Topic],
        transactions: TopicParts,
    ) -> None:
        """`topics` are those that are loaded."""
        self._resources = resources
        self._ledgers = ledgers
        self._policies = policies
        self._topics = topics
        self._transactions = transactions
        self._elsewhere: Callable[[TopicName, TopicName], EndTeller] | None = None
        self._followed = 0
        """How many shadows are loaded."""
        self._following = replace(
            FollowSettings(),
            look_pause_seconds_min=LOOK_SECONDS_MIN,
            look_pause_seconds_max=LOOK_SECONDS_MAX,
            longest_pause_seconds=lambda: max(LOOK_SECONDS_MAX, self._followed / LOOKS_PER_SECOND),
        )

    def use_owners(self, elsewhere: Callable[[TopicName, TopicName], EndTeller]) -> None:
        """How the owner of a source is asked that another broker has, for a shadow; before topics are loaded."""
        self._elsewhere = elsewhere

    # --- which they are

    async def source_of_partition(self, name: TopicName) -> TopicName | None:
        """Whose shadow a partition is, by the record of its topic; None: the record does not say so."""
        if name.partition_index < 0 or name.domain != PERSISTENT:
            return None
        text = await self._resources.partitioned_property(name.partitioned_name(), SHADOW_SOURCE_PROPERTY)
        return None if text is None else _source_of(name, text).partition(name.partition_index)

    def schema_name(self, name: TopicName) -> str:
        """By which name the schemas of a topic are kept: a shadow has those of its source."""
        topic = self._topics.get(str(name))
        if topic is not None:
            return topic.schema_name
        if name.partition_index < 0:
            text = self._resources.peek_partitioned_property(name, SHADOW_SOURCE_PROPERTY)
            if text is not None:
                return _source_of(name, text).schema_name
        return name.schema_name

    async def schema_name_elsewhere(self, name: TopicName) -> str:
        """By which name the store says that the schemas of a topic are kept that another broker serves: clients ask any
        broker for schemas."""
        if name.domain != PERSISTENT:
            return name.schema_name
        text = await self._resources.partitioned_property(name.partitioned_name(), SHADOW_SOURCE_PROPERTY)
        if text is None:
            text = (await self._ledgers.properties(name.persistence_name) or {}).get(SHADOW_SOURCE_PROPERTY)
        return name.schema_name if text is None else _source_of(name, text).schema_name

    async def check_source(self, name: TopicName, text: object, partitions: int = 0) -> TopicName:
        """The source of a shadow that is to be made with so many partitions. Raises `PulsarError`."""
        if name.domain != PERSISTENT or not isinstance(text, str):
            raise PulsarError(ServerError.NOT_ALLOWED_ERROR, "Only a persistent topic can be a shadow of another one")
        source = _source_of(name, text)
        if source.domain != PERSISTENT or source.partitioned_name() == name.partitioned_name():
            raise PulsarError(
                ServerError.NOT_ALLOWED_ERROR,
                f"{name} cannot be a shadow of {source}: only of another persistent topic",
            )
        count = await self._resources.partitions(source)
        if (count or 0) < partitions or (count and not partitions):
            raise PulsarError(
                ServerError.NOT_ALLOWED_ERROR,
                f"{name} cannot be a shadow of {source}, which has {count or 0} partitions, with {partitions}",
            )
        if not count and not await self._ledgers.exists(source.persistence_name):
            raise PulsarError(ServerError.TOPIC_NOT_FOUND, f"{source}, of which {name} is to be a shadow, is not there")
        await self._check_no_shadow(source)
        return source

    async def check_growth(self, name: TopicName, partitions: int) -> None:
        """A partitioned topic is to have so many. Raises `PulsarError` for a shadow whose source has fewer: nobody
        could load the others."""
        text = await self._resources.partitioned_property(name, SHADOW_SOURCE_PROPERTY)
        if text is None:
            return
        source = _source_of(name, text)
        count = await self._resources.partitions(source) or 0
        if count < partitions:
            raise PulsarError(
                ServerError.NOT_ALLOWED_ERROR,
                f"{name} is a shadow of {source}, which has {count} partitions: it cannot have {partitions}",
            )

    async def _check_no_shadow(self, source: TopicName) -> None:
        record = source.partitioned_name()
        text = await self._resources.partitioned_property(record, SHADOW_SOURCE_PROPERTY)
        if text is None:
            text = (await self._ledgers.properties(source.persistence_name) or {}).get(SHADOW_SOURCE_PROPERTY)
        if text is not None:
            raise PulsarError(ServerError.NOT_ALLOWED_ERROR, f"{source} is a shadow of {text}: be one of that, too")

    # --- making and loading them

    async def create(self, name: TopicName, properties: Mapping[str, str]) -> bool:
        """Make a shadow that is not partitioned; whoever loads it knows it by its properties. False: there is a topic
        of this name."""
        return await self._ledgers.create(name.persistence_name, properties)

    async def load(
        self,
        name: TopicName,
        source: TopicName,
        policies: EffectivePolicies,
        runtime: SubscriptionRuntime,
        on_lost: Callable[[PersistentTopic, MagnetarError], None],
    ) -> ShadowTopic:
        """Load a shadow; it is to be prepared. `PulsarError` TOPIC_NOT_FOUND when its source is not there; what the
        ledger raises."""
        # Here, not above: a broker without shadows does not pay for them.
        from magnetar.broker.topics.following.shadow_topic import ShadowTopic
        from magnetar.broker.topics.following.source_end import SourceEnd

        if source == name:
            raise PulsarError(ServerError.NOT_ALLOWED_ERROR, f"Topic {name} is a shadow of itself")
        elsewhere = None if self._elsewhere is None else partial(self._elsewhere, name)
        end = SourceEnd(source, self._topics, elsewhere, self._let_go)
        self._followed += 1
        try:
            ledger = await self._ledgers.open_shadow(
                name.persistence_name,
                source.persistence_name,
                end,
                self._following,
                {SHADOW_SOURCE_PROPERTY: str(source)},
                policies.ledger_of(name),
            )
        except ManagedLedgerNotFound:
            await end.close()
            raise PulsarError(
                ServerError.TOPIC_NOT_FOUND, f"Topic {name} is a shadow of {source}, which does not exist"
            ) from None
        except ManagedLedgerIsShadow as other:
            await end.close()
            raise PulsarError(
                ServerError.NOT_ALLOWED_ERROR,
                f"Topic {name} is a shadow of {source}, a shadow of {other.source} itself",
            ) from None
        except BaseException:
            await end.close()
            raise
        topic = ShadowTopic(name, ledger, self._policies.of(name), runtime, on_lost, source)
        self._transactions.follow(topic)
        return topic

    async def delete_unservable(self, name: TopicName) -> bool:
        """Delete a shadow that cannot be loaded: its source is gone, is a shadow, is itself, or is no topic at all.
        False: it is no shadow, or can be loaded."""
        if name.domain != PERSISTENT:
            return False
        try:
            source = await self.source_of_partition(name)
            if source is None:
                text = (await self._ledgers.properties(name.persistence_name) or {}).get(SHADOW_SOURCE_PROPERTY)
                if text is None:
                    return False
                source = _source_of(name, text)
            servable = await self._is_servable(name, source)
        except PulsarError as error:
            logger.warning("%s; it is deleted", error.message)
            servable = False
        if servable:
            return False
        # What its node lists may be its source's, also where the record alone says that it is a shadow.
        await self._ledgers.delete(name.persistence_name, with_ledgers=False)
        return True

    async def _is_servable(self, name: TopicName, source: TopicName) -> bool:
        properties = await self._ledgers.properties(source.persistence_name)
        return properties is not None and source != name and SHADOW_SOURCE_PROPERTY not in properties

    def source_named(self, name: TopicName, text: str) -> TopicName:
        """The source that a node names. `PulsarError` when that is none."""
        return _source_of(name, text)

    def _let_go(self) -> None:
        self._followed -= 1


def _source_of(name: TopicName, text: Any) -> TopicName:
    try:
        return TopicName.parse(str(text))
    except InvalidTopicName as error:
        raise PulsarError(
            ServerError.NOT_ALLOWED_ERROR, f"{name} cannot be a shadow of {text}, which is no topic: {error}"
        ) from None
