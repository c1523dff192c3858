"""Consumers whose connection has ended: how it lets go of them, and who comes before they are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from magnetar.wire.pulsar.errors import PulsarError, ServerError

if TYPE_CHECKING:
    from magnetar.broker.dispatch.consumer import Consumer
    from magnetar.broker.session.acknowledge import Attachment
    from magnetar.broker.subscriptions.non_persistent_subscription import NonPersistentSubscription
    from magnetar.broker.subscriptions.subscription import Subscription
    from magnetar.broker.topics.topic import Topic
    from magnetar.core.ids import Position

LEAVING_AT_ONCE: Final = 500
"""Consumers of one subscription that leave in one turn: some ten milliseconds. After each turn those that stay are
given what they held, and keys have other owners. That costs as much for one that left as for hundreds."""

IN_THE_WAY: Final = (ServerError.CONSUMER_BUSY, ServerError.CONSUMER_ASSIGN_ERROR)
"""How a subscription refuses a consumer because of those that it has."""


def steps_of(consumers: Mapping[int, Attachment]) -> list[list[int]]:
    """The ids of a connection's consumers, those of each turn together. Subscriptions that had few of them go first:
    one may have been the only receiver, whom others succeed."""
    of_subscriptions: dict[object, list[int]] = {}
    for consumer_id, attachment in consumers.items():
        of_subscriptions.setdefault(attachment.subscription, []).append(consumer_id)
    return [
        ids[at : at + LEAVING_AT_ONCE]
        for ids in sorted(of_subscriptions.values(), key=len)
        for at in range(0, len(ids), LEAVING_AT_ONCE)
    ]


async def subscribed(
    topic: Topic, consumer: Consumer, name: str, start: Position, properties: dict[str, str]
) -> Subscription | NonPersistentSubscription:
    """The subscription that the consumer has joined. Raises what the topic's `subscribe` raises. A client that comes
    back is not refused because of the consumers of its former connection."""
    try:
        return await topic.subscribe(consumer, name, start, properties)
    except PulsarError as refusal:
        if refusal.code not in IN_THE_WAY or not await _let_go_of_ended(topic, name):
            raise
    return await topic.subscribe(consumer, name, start, properties)


async def check_alone(attachment: Attachment) -> None:
    """Raises PulsarError(METADATA_ERROR) unless it is its subscription's only consumer. Those that have ended are let
    go of first: mostly its client had them on its former connection."""
    alone, subscription = [attachment.consumer], attachment.subscription
    if subscription.consumers != alone:
        await _let_go_of_ended(attachment.topic, subscription.name)
    if subscription.consumers != alone:
        raise PulsarError(ServerError.METADATA_ERROR, "Unconnected or shared consumer attempting to unsubscribe")


async def _let_go_of_ended(topic: Topic, name: str) -> bool:
    """Take out those of a subscription's consumers that have ended, so many in each turn, for somebody whom they are in
    the way of. Returns whether there were any."""
    found = False
    while True:
        subscription = topic.subscriptions.get(name)
        gone = [] if subscription is None else [each for each in subscription.consumers if each.connection.ended]
        if not gone:
            return found
        found = True
        for consumer in gone[:LEAVING_AT_ONCE]:
            topic.remove_consumer(consumer, name)
        await asyncio.sleep(0)
