"""A subscription that is held and not consumed, against a broker that does what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from magnetar.client.client import PulsarClient
from magnetar.client.consumer import ConsumerOptions
from magnetar.client.errors import ConnectionFailed
from magnetar.client.hold import HeldSubscription, PartOfBatch, SubscriptionHold
from magnetar.core.clock import SystemClock
from magnetar.core.errors import MagnetarError
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from lib.tests.test_client_protocol import QUICK, TOPIC, FakeBroker

MINUS_ONE = 2**64 - 1


class Keeper:
    """Notes what it is told, and says whether the subscription is there."""

    def __init__(self) -> None:
        self.again: list[bool] = []
        self.ended: list[MagnetarError] = []
        self.there = True
        self.asked = 0

    def held_again(self, *, let_go: bool) -> None:
        self.again.append(let_go)

    def hold_ended(self, error: MagnetarError) -> None:
        self.ended.append(error)

    async def is_there(self) -> bool:
        self.asked += 1
        return self.there


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    broker = FakeBroker()
    await broker.start()
    yield broker
    await broker.stop()


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[PulsarClient]:
    made = PulsarClient(lambda: broker.url, SystemClock(), QUICK)
    yield made
    await made.close()


async def hold(client: PulsarClient, keeper: Keeper, **options: Any) -> SubscriptionHold:
    held = HeldSubscription(
        options=ConsumerOptions(subscription="s", receives=False, **options), keeper=keeper, is_there=keeper.is_there
    )
    return await client.attach(lambda parts: SubscriptionHold(parts, TOPIC, held))


def acknowledged(command: pb.BaseCommand) -> list[bytes]:
    return [messages.ack_response(command.ack.consumer_id, command.ack.request_id)]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


async def test_what_a_hold_asks_for(broker: FakeBroker, client: PulsarClient) -> None:
    broker.answers[pb.BaseCommand.ACK] = acknowledged
    broker.answers[pb.BaseCommand.SEEK] = lambda command: [messages.success(command.seek.request_id)]
    broker.answers[pb.BaseCommand.GET_LAST_MESSAGE_ID] = lambda command: [
        messages.get_last_message_id_response(command.getLastMessageId.request_id, (9, 9), -1, -1, (5, -1))
    ]
    held = await hold(client, Keeper(), from_earliest=True, properties={"a": "b"}, create_topic=False)
    (subscribe,) = broker.bodies(pb.BaseCommand.SUBSCRIBE)
    assert (subscribe.subType, subscribe.durable) == (pb.CommandSubscribe.Exclusive, True)
    assert (subscribe.initialPosition, subscribe.force_topic_creation) == (pb.CommandSubscribe.Earliest, False)
    assert [(pair.key, pair.value) for pair in subscribe.subscription_properties] == [("a", "b")]
    assert not subscribe.HasField("start_message_id")
    assert await held.mark_delete() == (5, -1)
    await held.acknowledge_up_to((7, -1))
    await held.acknowledge_each([(7, 3), (8, 0)], [PartOfBatch((8, 1), [-1, 5])])
    await held.seek((7, 4))
    first, second = broker.bodies(pb.BaseCommand.ACK)
    assert (first.ack_type, first.message_id[0].entryId) == (pb.CommandAck.Cumulative, MINUS_ONE)
    assert second.ack_type == pb.CommandAck.Individual
    assert [(one.ledgerId, one.entryId, list(one.ack_set)) for one in second.message_id] == [
        (7, 3, []),
        (8, 0, []),
        (8, 1, [-1, 5]),
    ]
    (seek,) = broker.bodies(pb.BaseCommand.SEEK)
    assert (seek.message_id.ledgerId, seek.message_id.entryId) == (7, 4)
    assert broker.count(pb.BaseCommand.FLOW) == 0


async def test_a_mark_that_is_not_told(broker: FakeBroker, client: PulsarClient) -> None:
    body = pb.CommandGetLastMessageIdResponse(last_message_id=pb.MessageIdData(ledgerId=1, entryId=1))

    def answer(command: pb.BaseCommand) -> list[bytes]:
        body.request_id = command.getLastMessageId.request_id
        kind = pb.BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE
        return [messages.encode_command(pb.BaseCommand(type=kind, getLastMessageIdResponse=body))]

    broker.answers[pb.BaseCommand.GET_LAST_MESSAGE_ID] = answer
    assert await (await hold(client, Keeper())).mark_delete() == (-1, -1)


async def test_one_that_goes_with_its_consumer_begins_at_the_end(broker: FakeBroker, client: PulsarClient) -> None:
    await client.consumer(TOPIC, ConsumerOptions(subscription="s", receives=False, durable=False))
    (subscribe,) = broker.bodies(pb.BaseCommand.SUBSCRIBE)
    assert not subscribe.durable
    assert subscribe.start_message_id.ledgerId == subscribe.start_message_id.entryId == 2**63 - 1
    assert broker.count(pb.BaseCommand.FLOW) == 0


async def let_go(broker: FakeBroker) -> None:
    """CLOSE_CONSUMER from the broker."""
    subscribe = broker.bodies(pb.BaseCommand.SUBSCRIBE)[-1]
    broker.writers[-1].write(messages.close_consumer(subscribe.consumer_id))


async def test_what_is_not_answered_fails_when_the_broker_lets_go(broker: FakeBroker, client: PulsarClient) -> None:
    keeper = Keeper()
    held = await hold(client, keeper)
    waiting = [asyncio.ensure_future(held.acknowledge_up_to((1, entry))) for entry in range(2)]
    await until(lambda: broker.count(pb.BaseCommand.ACK) == 2)
    await let_go(broker)
    with pytest.raises(ConnectionFailed):
        await waiting[0]
    with pytest.raises(ConnectionFailed):
        await waiting[1]
    await until(lambda: keeper.again)
    assert (keeper.again, keeper.asked) == ([True], 1)
    broker.writers[-1].close()
    await until(lambda: len(keeper.again) == 2)
    assert keeper.again == [True, False]
    assert keeper.ended == []


async def test_nothing_is_asked_of_nobody(broker: FakeBroker, client: PulsarClient) -> None:
    keeper = Keeper()
    held = await hold(client, keeper)
    broker.answers[pb.BaseCommand.SUBSCRIBE] = lambda command: []
    await let_go(broker)
    await until(lambda: broker.count(pb.BaseCommand.SUBSCRIBE) == 2)
    for asked in (held.acknowledge_up_to((1, 1)), held.acknowledge_each([(1, 1)]), held.seek((1, 1))):
        with pytest.raises(ConnectionFailed):
            await asked


@pytest.mark.parametrize("code", [ServerError.CONSUMER_BUSY, ServerError.TOPIC_NOT_FOUND])
async def test_a_hold_that_another_one_has_ends(broker: FakeBroker, client: PulsarClient, code: ServerError) -> None:
    keeper = Keeper()
    held = await hold(client, keeper)
    broker.answers[pb.BaseCommand.SUBSCRIBE] = lambda command: [messages.error(command.subscribe.request_id, code, "")]
    await let_go(broker)
    await until(lambda: keeper.ended)
    (error,) = keeper.ended
    assert isinstance(error, PulsarError)
    assert error.code == code
    assert held.failure is error
    with pytest.raises(PulsarError):
        await held.wait_until_held()


async def test_a_subscription_that_is_gone_is_not_made_again(broker: FakeBroker, client: PulsarClient) -> None:
    keeper = Keeper()
    await hold(client, keeper)
    keeper.there = False
    await let_go(broker)
    await until(lambda: keeper.ended)
    assert getattr(keeper.ended[0], "code", None) == ServerError.SUBSCRIPTION_NOT_FOUND
    assert broker.count(pb.BaseCommand.SUBSCRIBE) == 1
