"""What a topic's policies say to those who want to come in. Errors and texts are Apache's, which clients act on."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final, Protocol

from magnetar.broker.policies.limiter import TokenBucket
from magnetar.broker.policies.system_topics import belongs_to_brokers
from magnetar.broker.replicator_names import REPLICATOR_PREFIX
from magnetar.broker.topics.deduplication import CURSOR_NAME as DEDUPLICATION_CURSOR
from magnetar.core.topic_name import TopicName
from magnetar.net.refused_connections import host_of
from magnetar.wire.pulsar.errors import PulsarError, ServerError

if TYPE_CHECKING:
    from magnetar.broker.dispatch.consumer import Consumer
    from magnetar.broker.policies.model import EffectivePolicies, Rate
    from magnetar.broker.settings.policies import PolicySettings
    from magnetar.broker.topics.producer import Producer
    from magnetar.core.clock import Clock
    from magnetar.wire.pulsar.enums import SubscriptionType

SUBSCRIBERS_REMEMBERED_MAX: Final = 10_000
"""Consumers whose subscribe rate is known; the ones that are full again are forgotten first."""

RESERVED_SUBSCRIPTIONS: Final = (REPLICATOR_PREFIX, DEDUPLICATION_CURSOR)
"""Names of cursors that belong to the broker itself; subscriptions may not begin like them."""

NO_NODE_NAMES: Final = (".", "..")
"""What no cursor's node can be called: in paths of a metadata store these are steps."""

_STRICT_NAME: Final = re.compile(r"[-=:.\w]*", re.ASCII)


class HasConsumers(Protocol):
    """A subscription of either kind of topic."""

    @property
    def consumers(self) -> list[Consumer]:
        """Who is connected, or was and is not let go of yet."""
        ...


def check_durable_subscription(name: str) -> None:
    """Raises PulsarError for a name that no cursor of a client can have. PRODUCER_BUSY is what Apache's broker calls
    every error about names."""
    if name.startswith(RESERVED_SUBSCRIPTIONS):
        raise PulsarError(ServerError.PRODUCER_BUSY, "Subscription with reserved subscription name attempted")
    if name in NO_NODE_NAMES:
        raise PulsarError(ServerError.PRODUCER_BUSY, f"No subscription can be called {name!r}")


def check_producer(
    topic: TopicName,
    policies: EffectivePolicies,
    settings: PolicySettings,
    producer: Producer,
    present: Collection[Producer],
) -> None:
    """Raises PulsarError(PRODUCER_BUSY) for one too many, METADATA_ERROR for one that does not encrypt but has to."""
    if producer.is_replicator:
        return  # Its messages are looked at one by one: those that are not encrypted are refused.
    if policies.encryption_required and not producer.identity.encrypted:
        raise PulsarError(ServerError.METADATA_ERROR, f"Encryption is required in {topic}")
    same_address_max = settings.same_address_producers_max
    if policies.producers_max <= 0 and same_address_max <= 0:
        return
    others = [one for one in present if one.name != producer.name and not one.is_replicator]
    if 0 < policies.producers_max <= len(others):
        raise PulsarError(ServerError.PRODUCER_BUSY, f"Topic '{topic}' reached max producers limit")
    if same_address_max > 0:
        host = host_of(producer.identity.address)
        if sum(host_of(one.identity.address) == host for one in others) >= same_address_max:
            raise PulsarError(ServerError.PRODUCER_BUSY, f"Topic '{topic}' reached max same address producers limit")


def check_subscription_type(topic: TopicName, policies: EffectivePolicies, kind: SubscriptionType) -> None:
    """Raises PulsarError(NOT_ALLOWED_ERROR) for a type that is not enabled."""
    if kind.display_name not in policies.subscription_types:
        raise PulsarError(
            ServerError.NOT_ALLOWED_ERROR, f"Topic[{{{topic}}}] doesn't support {kind.display_name} sub type!"
        )


def refusal_of_name(settings: PolicySettings, subscription: str) -> str:
    """Why a new subscription may not be called so (Pulsar: `NamedEntity.isAllowed`); empty: it may."""
    if not settings.strict_subscription_names or _STRICT_NAME.fullmatch(subscription):
        return ""
    return f"Please let the subscription only contains '/w(a-zA-Z_0-9)' or '_', the current value is {subscription}"


def check_new_subscription(
    topic: TopicName, policies: EffectivePolicies, settings: PolicySettings, name: str, count: int
) -> None:
    """Raises PulsarError(NOT_ALLOWED_ERROR) when `count` subscriptions are all that there may be, PRODUCER_BUSY for a
    name that is refused: so does Apache's broker (`BrokerServiceException.getClientErrorCode`)."""
    if refusal := refusal_of_name(settings, name):
        raise PulsarError(ServerError.PRODUCER_BUSY, refusal)
    if 0 < policies.subscriptions_max <= count:
        raise PulsarError(
            ServerError.NOT_ALLOWED_ERROR, f"Exceed the maximum number of subscriptions of the topic: {topic}"
        )


def check_consumer(
    policies: EffectivePolicies,
    settings: PolicySettings,
    consumer: Consumer,
    subscriptions: Iterable[HasConsumers],
    subscription: HasConsumers | None,
) -> None:
    """Raises PulsarError(CONSUMER_BUSY) for one too many on the topic, from its address, or on its subscription. Those
    whose connection has ended do not count: the broker lets go of them, and their client may be back already."""
    same_address_max = settings.same_address_consumers_max
    if policies.consumers_max > 0 or same_address_max > 0:
        present = [one for each in subscriptions for one in _connected(each)]
        if 0 < policies.consumers_max <= len(present):
            raise PulsarError(ServerError.CONSUMER_BUSY, "Topic reached max consumers limit")
        host = host_of(consumer.identity.address)
        if 0 < same_address_max <= sum(host_of(one.identity.address) == host for one in present):
            raise PulsarError(ServerError.CONSUMER_BUSY, "Topic reached max same address consumers limit")
    limit = policies.consumers_per_subscription_max
    if limit > 0 and subscription is not None and len(_connected(subscription)) >= limit:
        raise PulsarError(ServerError.CONSUMER_BUSY, "Subscription reached max consumers limit")


def _connected(subscription: HasConsumers) -> list[Consumer]:
    return [one for one in subscription.consumers if not one.connection.ended]


def check_durability(durable: bool, consumer: Consumer) -> None:
    """Raises PulsarError(NOT_ALLOWED_ERROR) for a consumer that wants a subscription otherwise than it is."""
    if durable != consumer.durable:
        present = "Durable" if durable else "NonDurable"
        raise PulsarError(ServerError.NOT_ALLOWED_ERROR, f"{present} subscription with the same name already exists.")


def subscribe_limiter_for(rate: Rate | None, former: SubscribeLimiter | None, clock: Clock) -> SubscribeLimiter | None:
    """The limiter of a rate: the former one while that stays; None for no limit."""
    if rate is None or not rate.limited:
        return None
    return former if former is not None and former.rate == rate else SubscribeLimiter(rate, clock)


class SubscribeLimiter:
    """How often each consumer (address, name and id) may subscribe to one topic."""

    __slots__ = ("_buckets", "_clock", "rate")

    def __init__(self, rate: Rate, clock: Clock) -> None:
        self.rate = rate
        self._clock = clock
        self._buckets: dict[tuple[str, str, int], TokenBucket] = {}

    def check(self, consumer: Consumer) -> None:
        """Count one. Raises PulsarError(NOT_ALLOWED_ERROR) for one too many."""
        key = (host_of(consumer.identity.address), consumer.name, consumer.consumer_id)
        now = self._clock.monotonic_seconds()
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= SUBSCRIBERS_REMEMBERED_MAX:
                self._forget(now)
            bucket = self._buckets[key] = TokenBucket(self.rate.messages, self.rate.period_seconds, now)
        if bucket.take(0, now) < 1:
            raise PulsarError(ServerError.NOT_ALLOWED_ERROR, "Subscribe limited by subscribe rate limit per consumer.")
        bucket.take(1, now)

    def _forget(self, now: float) -> None:
        kept = {key: one for key, one in self._buckets.items() if one.take(0, now) < self.rate.messages}
        while len(kept) >= SUBSCRIBERS_REMEMBERED_MAX:
            del kept[next(iter(kept))]
        self._buckets = kept


def check_topic_count(present: Iterable[str], wanted: Iterable[TopicName], limit: int) -> None:
    """Raises PulsarError(NOT_ALLOWED_ERROR) when a namespace would have more topics than it may, those of brokers not
    counted, and those that are there already not twice."""
    counted = {one for one in present if not belongs_to_brokers(TopicName.parse(one))}
    if len(counted.union(map(str, wanted))) > limit:
        raise PulsarError(ServerError.NOT_ALLOWED_ERROR, "Exceed maximum number of topics in namespace.")
