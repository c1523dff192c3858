"""Which dispatcher a subscription gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.broker.dispatch.consumer import Consumer, KeySharedPolicy
from magnetar.broker.dispatch.entry_batch import Dispatcher
from magnetar.broker.dispatch.exclusive import ExclusiveDispatcher
from magnetar.broker.dispatch.failover import NO_PARTITION, FailoverDispatcher
from magnetar.broker.dispatch.hash_ring import ConsistentHashSelector
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher, Selector
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.broker.dispatch.split_ranges import SplitRangeSelector
from magnetar.broker.dispatch.sticky_ranges import StickyRangeSelector
from magnetar.wire.pulsar.enums import SubscriptionType

if TYPE_CHECKING:
    from magnetar.broker.settings.broker import DispatchSettings


def new_dispatcher(topic_name: str, consumer: Consumer, settings: DispatchSettings) -> Dispatcher:
    """The dispatcher of the type that a subscription's first consumer asks for."""
    kind = consumer.identity.subscription_type
    if kind is SubscriptionType.EXCLUSIVE:
        return ExclusiveDispatcher()
    if kind is SubscriptionType.FAILOVER:
        by_partition = consumer.partition_index >= 0 and not settings.failover_consistent_hashing
        return FailoverDispatcher(topic_name, consumer.partition_index if by_partition else NO_PARTITION)
    if kind is SubscriptionType.SHARED:
        return SharedDispatcher(settings.round_robin_messages_max)
    policy = consumer.identity.key_shared or KeySharedPolicy()
    dispatcher = KeySharedDispatcher(policy, _selector(policy, settings))
    dispatcher.limit(settings.look_ahead_per_consumer_max, settings.look_ahead_max)
    return dispatcher


def _selector(policy: KeySharedPolicy, settings: DispatchSettings) -> Selector:
    if policy.sticky:
        return StickyRangeSelector()
    if settings.key_shared_consistent_hashing:
        return ConsistentHashSelector(settings.key_shared_points_per_consumer)
    return SplitRangeSelector()
