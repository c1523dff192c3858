"""What topics of either kind have: who publishes, how much came, and the limits that hold for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from magnetar.broker.bundles.close_notices import CloseNotices
from magnetar.broker.migrated_topics import Destination, TopicMigrated
from magnetar.broker.policies.broker_limits import BrokerLimits
from magnetar.broker.policies.limiter import NO_LIMITERS, RateLimiter, limiter_for
from magnetar.broker.policies.model import EffectivePolicies
from magnetar.broker.policies.system_topics import belongs_to_brokers
from magnetar.broker.resource_groups.group import ResourceGroup
from magnetar.broker.states import TOPIC_TRANSITIONS, LoadedTopicState
from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime
from magnetar.broker.topics.limits import check_new_subscription, check_producer
from magnetar.broker.topics.producer import Producer
from magnetar.broker.topics.producer_admission import Admitted, ProducerAdmission
from magnetar.broker.topics.producers import Producers
from magnetar.core.clock import Clock
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.errors import PulsarError, ServerError

if TYPE_CHECKING:
    from magnetar.broker.replicated_subscriptions.topic_subscriptions import ReplicatedSubscriptions
    from magnetar.broker.replication.non_persistent_replicators import NonPersistentReplicators
    from magnetar.broker.replication.remote_link import RemoteLink
    from magnetar.broker.replication.shadow_replicators import ShadowReplicators
    from magnetar.broker.replication.topic_replicators import TopicReplicators


class TopicBase:
    """Who publishes to one topic, its counters and its state; each kind adds how it stores and delivers."""

    __slots__ = (
        "_clock",
        "_runtime",
        "admission",
        "bytes_in",
        "close_notices",
        "created_ms",
        "destination",
        "dispatch_limiters",
        "groups",
        "last_active_seconds",
        "last_publish_ms",
        "messages_in",
        "name",
        "of_broker",
        "policies",
        "publish_limiter",
        "publish_limiters",
        "redirects",
        "replicated_subscriptions",
        "replicators",
        "shadow_replicators",
        "state",
    )

    def __init__(
        self, name: TopicName, policies: EffectivePolicies, runtime: SubscriptionRuntime, admission: ProducerAdmission
    ) -> None:
        clock = runtime.clock
        self.name = name
        self.admission = admission
        self.created_ms = clock.now_ms()
        self.last_active_seconds = clock.monotonic_seconds()
        self.last_publish_ms = 0
        self.state = LoadedTopicState.OPEN
        self.close_notices: CloseNotices | None = None
        """Set before `close` when the clients are to be told later."""
        self.messages_in = 0
        self.bytes_in = 0
        self.of_broker = belongs_to_brokers(name)
        """No client's: limits and inactivity do not concern it."""
        self.policies = policies
        self.publish_limiter: RateLimiter | None = None
        self.groups: tuple[ResourceGroup, ...] = ()
        """The resource groups that it is in."""
        self.publish_limiters: tuple[RateLimiter, ...] = NO_LIMITERS
        """Those of its groups."""
        self.dispatch_limiters: tuple[RateLimiter, ...] = NO_LIMITERS
        self.replicators: TopicReplicators | NonPersistentReplicators | None = None
        """What brings its messages to other clusters; None: nothing does."""
        self.shadow_replicators: ShadowReplicators | None = None
        """What tells its shadow topics of its entries; None: it has had none."""
        self.replicated_subscriptions: ReplicatedSubscriptions | None = None
        """Those whose positions other clusters know; None: the topic is not replicated, or positions are not."""
        self.destination: Destination | None = None
        """The cluster that its clients are to go on in; None: this one."""
        self.redirects = False
        """Whether all is ready there."""
        self._runtime = runtime
        self._clock = clock

    @property
    def all_replicators(self) -> dict[str, RemoteLink]:
        """Those that run: by cluster, and by the name of the shadow topic."""
        found: dict[str, RemoteLink] = {}
        for some in (self.replicators, self.shadow_replicators):
            if some is not None:
                found.update(some.running)
        return found

    @property
    def clock(self) -> Clock:
        """What time it is."""
        return self._clock

    @property
    def closing(self) -> bool:
        """Whether it is on its way out: it takes nothing more."""
        return self.state is not LoadedTopicState.OPEN

    @property
    def limits(self) -> BrokerLimits:
        """The limits that hold for the whole broker."""
        return self._runtime.limits

    @property
    def producers(self) -> Producers:
        """Who publishes."""
        return self.admission.producers

    @property
    def source(self) -> TopicName | None:
        """The topic whose entries it shows, as a shadow of that; None: it shows its own."""
        return None

    @property
    def schema_name(self) -> str:
        """By which name its schemas are kept."""
        return (self.source or self.name).schema_name

    async def learn_end(self, wanted: Position = EARLIEST) -> bool:
        """Know everything that was published by now, an entry that is wanted above all: an owner always does. False:
        nobody could tell."""
        return True

    def leaving(self, subscription: str) -> asyncio.Future[None] | None:
        """Done when a subscription that leaves this broker has left; None: it does not leave."""
        return None

    async def _let_in(self, producer: Producer, admitted: Admitted) -> bool:
        """Let a producer in that nothing keeps out; True when it has to wait. A client's has the ways to other clusters
        open, if they rest."""
        waits = await self.admission.add(producer, admitted)
        self._refuse_when_closing()
        if self.replicators is not None and not producer.is_replicator:
            self.replicators.rouse()
        return waits

    def disconnect_producers(self) -> None:
        """Have those that publish look the topic up again."""
        for producer in list(self.producers.by_name.values()):
            self.disconnect_producer(producer)

    def disconnect_producer(self, producer: Producer) -> None:
        """Have one that publishes look the topic up again."""
        producer.disconnect()
        self.remove_producer(producer)

    def remove_producer(self, producer: Producer) -> None:
        """The producer is gone; the next one that waits may come in."""
        self.admission.remove(producer)
        self.last_active_seconds = self._clock.monotonic_seconds()

    def _follow_publish_rate(self) -> None:
        rate, call_later = self.policies.publish_rate, self._runtime.call_later
        text = f"publish rate of {self.name}"
        self.publish_limiter = limiter_for(rate, self.publish_limiter, self._clock, call_later, text)
        self._join_groups()

    def follow_groups(self) -> None:
        """There are other resource groups than before."""
        if not self.closing and self._join_groups():
            self._limit_dispatch()

    def _join_groups(self) -> bool:
        """Be in the groups that there are for it. True when these are others than before."""
        known = self._runtime.groups
        groups = () if known is None else known.of(self.name, self.policies.resource_group)
        if groups == self.groups:
            return False
        self.groups = groups
        self.publish_limiters = tuple([group.publish.limiter for group in groups]) or NO_LIMITERS
        self.dispatch_limiters = tuple([group.dispatch.limiter for group in groups]) or NO_LIMITERS
        return True

    def _limit_dispatch(self) -> None:
        """Have the subscriptions go by the limiters of dispatch that there are now; each kind of topic has its own."""

    def _disconnect_unencrypted(self) -> None:
        if self.policies.encryption_required and not self.of_broker:
            present = list(self.producers.by_name.values())
            for producer in [one for one in present if not (one.identity.encrypted or one.is_replicator)]:
                self.disconnect_producer(producer)

    def replicated_changed(self, subscription: str) -> None:
        """A subscription is made, gone, replicated since now or not any more."""
        if self.replicated_subscriptions is not None:
            self.replicated_subscriptions.changed(subscription)

    def _check_limits(self, producer: Producer) -> None:
        if not self.of_broker:
            present = self.producers.by_name.values()
            check_producer(self.name, self.policies, self._runtime.limits.settings, producer, present)

    def _check_new_subscription(self, name: str, present: int) -> None:
        if not self.of_broker:
            check_new_subscription(self.name, self.policies, self._runtime.limits.settings, name, present)

    def _become(self, state: LoadedTopicState) -> None:
        self.state = TOPIC_TRANSITIONS.step(self.state, state)
        if self.closing and self.replicated_subscriptions is not None:
            self.replicated_subscriptions.close()
            self.replicated_subscriptions = None  # Each refers to the other.
        if self.closing and self.replicators is not None:
            self.replicators.close()
        if self.closing and self.shadow_replicators is not None:
            self.shadow_replicators.close()

    @property
    def redirected_to(self) -> Destination | None:
        """Where those who publish are sent now."""
        waits = not self.redirects or (self.replicators is not None and self.replicators.behind)
        return None if waits else self.destination

    def refuse_when_migrated(self) -> None:
        """Raises `TopicMigrated` for whoever would publish to a topic that goes on in another cluster, and
        SERVICE_NOT_READY while it may not go there yet."""
        if self.destination is not None:
            if self.redirected_to is None:
                raise PulsarError(ServerError.SERVICE_NOT_READY, f"Topic {self.name} was already migrated, wait for it")
            raise TopicMigrated(str(self.name), self.destination)

    def _refuse_when_closing(self) -> None:
        if self.closing:
            raise PulsarError(ServerError.SERVICE_NOT_READY, f"Topic {self.name} is being unloaded, look it up again")
