"""Thousands of consumers that a seek or an unload ends: all are closed at once, their clients are told in turns."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, Final

import pytest
from magnetar.broker.bundles.close_notices import SENT_AT_ONCE, CloseNotices
from magnetar.broker.dispatch.consumer import Consumer, ConsumerIdentity
from magnetar.broker.settings.broker import DispatchSettings
from magnetar.broker.subscriptions.disconnections import TOLD_AT_ONCE
from magnetar.broker.subscriptions.non_persistent_subscription import NonPersistentSubscription
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.wire.pulsar.command import Ack
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.errors import ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.subscription_stage import Stage, StagedConnection, Timers

Command = pb.BaseCommand
TOPIC: Final = "persistent://public/default/topic"
MANY: Final = 2 * TOLD_AT_ONCE + 10
KINDS: Final = [SubscriptionType.SHARED, SubscriptionType.FAILOVER, SubscriptionType.KEY_SHARED]


def told(stage: Stage) -> int:
    return sum("disconnected" in one.events[-1] for one in stage.connections.values() if one.events)


def turn(timers: Timers) -> None:
    for timer in timers.due():
        timer.callback()


@pytest.mark.parametrize("kind", KINDS)
def test_clients_of_very_many_consumers_are_told_in_turns_and_nobody_is_connected_at_once(
    kind: SubscriptionType,
) -> None:
    stage = Stage(kind)
    for number in range(MANY):
        stage.join(f"c{number}", permits=1)
    stage.publish(10)
    stage.timers.advance(0)
    sent = stage.subscription.totals.messages_out(stage.subscription.consumers)
    assert sent
    stage.timers.advance(0)
    stage.subscription.disconnect_all()
    assert stage.subscription.is_idle
    assert stage.subscription.unacked_messages == 0
    assert stage.subscription.totals.messages_out([]) == sent
    assert all(consumer.closed and not len(consumer.pending) for consumer in stage.consumers.values())
    steps = [told(stage)]
    while steps[-1] < MANY:
        turn(stage.timers)
        steps.append(told(stage))
        assert len(steps) < 10
    assert max(after - before for before, after in itertools.pairwise([0, *steps])) <= TOLD_AT_ONCE
    assert all(sum("disconnected" in event for event in one.events) == 1 for one in stage.connections.values())


def test_a_consumer_that_comes_while_others_are_told_is_not_disconnected() -> None:
    stage = Stage(SubscriptionType.SHARED)
    for number in range(MANY):
        stage.join(f"c{number}")
    stage.publish(3)
    stage.subscription.disconnect_all()
    stage.join("new", permits=10)
    stage.timers.advance(0)
    assert stage.received("new") == [0, 1, 2]
    assert [one.name for one in stage.subscription.consumers] == ["new"]
    stage.redeliver("c0")
    stage.flow("c0", 5)
    stage.validate()
    assert told(stage) == MANY


def test_consumers_of_what_is_not_stored_are_told_in_turns() -> None:
    timers, connection = Timers(), StagedConnection()
    subscription = NonPersistentSubscription("topic", "s", DispatchSettings(), timers, timers.call_later)
    for number in range(MANY):
        subscription.add_consumer(
            Consumer(ConsumerIdentity(number, f"c{number}", SubscriptionType.KEY_SHARED), connection)
        )
    subscription.disconnect_all()
    assert subscription.is_idle
    assert len(connection.events) == TOLD_AT_ONCE
    turn(timers)
    assert len(connection.events) == 2 * TOLD_AT_ONCE
    timers.advance(0)
    assert len(connection.events) == MANY


async def test_close_notices_are_sent_in_turns() -> None:
    sent: list[int] = []
    notices = CloseNotices()
    for number in range(2 * SENT_AT_ONCE + 1):
        notices.add(lambda *_, number=number: sent.append(number))
    notices.send()
    assert len(sent) == SENT_AT_ONCE
    await asyncio.sleep(0)
    assert len(sent) == 2 * SENT_AT_ONCE
    await asyncio.sleep(0)
    assert sent == list(range(2 * SENT_AT_ONCE + 1))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_seek_ends_when_all_are_told_and_nothing_is_taken_of_those_that_are_not(
    memory_broker: MemoryBroker, kind: SubscriptionType
) -> None:
    client, other = await memory_broker.connect(), await memory_broker.connect()
    for number in range(0, MANY, 100):
        asked = [
            client.start(
                Command.SUBSCRIBE, topic=TOPIC, subscription="s", consumer_id=at, subType=kind, consumer_name=f"c{at}"
            )
            for at in range(number, min(number + 100, MANY))
        ]
        for request_id in asked:
            assert (await client.answer(request_id)).name == "SUCCESS"
    await other.producer(TOPIC)
    await other.publish(3)
    topic = memory_broker.service.topics[TOPIC]
    subscription = topic.subscriptions["s"]
    assert isinstance(subscription, Subscription)
    *_, last = subscription.consumers
    commands: Any = last.connection
    first = topic.ledger.ledgers.first_position()
    seek = client.start(Command.SEEK, consumer_id=0, message_id=pb.MessageIdData(ledgerId=first[0], entryId=0))
    while subscription.disconnections is None:
        await asyncio.sleep(0)
    assert not subscription.disconnections.over
    assert commands.requests.consumers[last.consumer_id].consumer is last, "its client has not been told"
    ack = Ack()
    ack.consumer_id, ack.request_id, ack.positions = last.consumer_id, 77, [(first[0], 1)]
    ack.cumulative = kind is SubscriptionType.FAILOVER
    commands.requests._take(ack)
    late = other.start(Command.SUBSCRIBE, topic=TOPIC, subscription="s", consumer_id=1, subType=kind)
    again = client.start(Command.SEEK, consumer_id=last.consumer_id, message_id=pb.MessageIdData(ledgerId=0, entryId=0))
    assert (await client.answer(seek)).name == "SUCCESS"
    assert not commands.requests.consumers, "all are told, or about to be as soon as they can know of their beginning"
    assert (await client.answer(again)).body.error == ServerError.METADATA_ERROR
    assert (await client.answer(77)).body.error == ServerError.CONSUMER_NOT_FOUND
    assert subscription.backlog == 3
    answer = await other.answer(late)
    assert answer.name == "SUCCESS" or answer.body.error == ServerError.SERVICE_NOT_READY
    await other.consumer(TOPIC, consumer_id=2, subType=kind)
