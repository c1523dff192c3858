"""Which dispatcher a subscription gets."""

from __future__ import annotations

from magnetar.broker.dispatch.consumer import Consumer, KeySharedPolicy
from magnetar.broker.dispatch.entry_batch import Dispatcher
from magnetar.broker.dispatch.exclusive import ExclusiveDispatcher
from magnetar.broker.dispatch.failover import FailoverDispatcher
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.wire.pulsar.enums import SubscriptionType


def new_dispatcher(topic_name: str, consumer: Consumer, round_robin_messages_max: int) -> Dispatcher:
    """The dispatcher of the type that a subscription's first consumer asks for."""
    kind = consumer.identity.subscription_type
    if kind is SubscriptionType.EXCLUSIVE:
        return ExclusiveDispatcher()
    if kind is SubscriptionType.FAILOVER:
        return FailoverDispatcher(topic_name, consumer.partition_index)
    if kind is SubscriptionType.SHARED:
        return SharedDispatcher(round_robin_messages_max)
    return KeySharedDispatcher(consumer.identity.key_shared or KeySharedPolicy())
