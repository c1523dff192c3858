"""Consumers that come, leave and unsubscribe at the same time at brokers that only read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from magnetar.broker.read_only.followed_topic import FollowedTopic
from magnetar.broker.read_only.kept_position import KeptPosition
from magnetar.broker.read_only.paths import binding_path
from magnetar.broker.testing.clusters import until
from magnetar.client.hold import SubscriptionHold
from magnetar.core.errors import Unavailable
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.test_broker_read_only import EARLIEST, SHARED, TOPIC, Stage, payloads, quiet


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with Stage() as cluster:
        yield cluster


class Gate:
    """Holds back the attempts to hold a subscription, or to delete it, and may have the next one fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
        self.goes_on = asyncio.Event()
        self.waiting = 0
        self.fails: list[BaseException] = []
        former = getattr(SubscriptionHold, method)
        gate = self

        async def held_back(hold: SubscriptionHold, *args: Any) -> Any:
            gate.waiting += 1
            await gate.goes_on.wait()
            if gate.fails:
                raise gate.fails.pop(0)
            return await former(hold, *args)

        monkeypatch.setattr(SubscriptionHold, method, held_back)


class Counted:
    """Counts the calls of an asynchronous method that have returned."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cls: type, method: str) -> None:
        self.done = 0
        former = getattr(cls, method)
        counted = self

        async def call(one: object, *args: Any) -> Any:
            result = await former(one, *args)
            counted.done += 1
            return result

        monkeypatch.setattr(cls, method, call)


async def bound(stage: Stage, name: str = "s") -> bool:
    found: bool = await stage.writer.store.exists(binding_path(TopicName.parse(TOPIC), name))
    return found


async def test_a_consumer_that_comes_while_another_unsubscribes_is_bound(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.producer()
    reader = await stage.reader()
    client, other = await reader.connect(), await reader.connect()
    await client.consumer(TOPIC, subType=SHARED)
    deleting, opening = Gate(monkeypatch, "unsubscribe"), Gate(monkeypatch, "mark_delete")
    ends = Counted(monkeypatch, FollowedTopic, "learn_end")
    client.send(pb.BaseCommand.UNSUBSCRIBE, consumer_id=1, request_id=100)
    await until(lambda: deleting.waiting)
    other.send(pb.BaseCommand.SUBSCRIBE, topic=TOPIC, subscription="s", consumer_id=1, subType=SHARED, request_id=100)
    await until(lambda: ends.done)
    await other.round_trip()
    deleting.goes_on.set()
    await until(lambda: opening.waiting)
    assert (await client.expect(pb.BaseCommand.SUCCESS)).body.request_id == 100
    opening.goes_on.set()
    await other.expect(pb.BaseCommand.SUCCESS)
    assert await bound(stage)


async def test_one_consumer_that_fails_does_not_unbind_another(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await stage.producer()
    reader = await stage.reader()
    clients = [await reader.connect() for _ in range(3)]
    opening = Gate(monkeypatch, "mark_delete")
    opening.fails.append(Unavailable("the owner went away"))
    ends = Counted(monkeypatch, FollowedTopic, "learn_end")
    wanted = {"topic": TOPIC, "subscription": "s", "consumer_id": 1, "subType": SHARED}
    asked = [client.start(pb.BaseCommand.SUBSCRIBE, **wanted) for client in clients]
    await until(lambda: ends.done == 3 and opening.waiting)
    opening.goes_on.set()
    names = [(await client.answer(each)).name for client, each in zip(clients, asked, strict=True)]
    assert await bound(stage) is ("SUCCESS" in names)
    await (await (await stage.reader()).connect()).consumer(TOPIC, subType=SHARED)  # Served here or sent there.
    assert await bound(stage)


async def test_a_consumer_that_comes_while_the_last_one_leaves_is_served(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for its turn at the topic, as another subscription is being opened."""
    producer = await stage.producer()
    reader = await stage.reader()
    first, second, third = [await reader.connect() for _ in range(3)]
    await first.consumer(TOPIC, subType=SHARED, initialPosition=EARLIEST)
    opening = Gate(monkeypatch, "mark_delete")
    third.send(pb.BaseCommand.SUBSCRIBE, topic=TOPIC, subscription="x", consumer_id=1, subType=SHARED, request_id=100)
    await until(lambda: opening.waiting)
    ends = Counted(monkeypatch, FollowedTopic, "learn_end")
    asked = second.start(pb.BaseCommand.SUBSCRIBE, topic=TOPIC, subscription="s", consumer_id=1, subType=SHARED)
    await until(lambda: ends.done)
    assert (await first.request(pb.BaseCommand.CLOSE_CONSUMER, consumer_id=1)).name == "SUCCESS"
    opening.goes_on.set()
    assert (await second.answer(asked)).name == "SUCCESS"
    await producer.publish(2)
    assert payloads(await second.messages(2, permits=10)) == [b"m0", b"m1"]
    assert await bound(stage)


async def test_subscriptions_of_one_topic_are_opened_side_by_side(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.producer()
    reader = await stage.reader()
    client = await reader.connect()
    opening = Gate(monkeypatch, "mark_delete")
    for number in range(20):
        client.send(
            pb.BaseCommand.SUBSCRIBE,
            topic=TOPIC,
            subscription=f"s{number}",
            consumer_id=number,
            subType=SHARED,
            request_id=100 + number,
        )
    await until(lambda: opening.waiting == 20)
    opening.goes_on.set()


@pytest.mark.parametrize("here", [False, True], ids=["another broker", "the same one"])
async def test_an_unsubscribe_that_failed_keeps_nobody_out(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    producer = await stage.producer()
    first, second = await stage.reader(), await stage.reader()
    client = await first.connect()
    await client.consumer(TOPIC)
    deleting = Gate(monkeypatch, "unsubscribe")
    deleting.fails.append(Unavailable("the owner went away"))
    deleting.goes_on.set()
    answer = await client.request(pb.BaseCommand.UNSUBSCRIBE, consumer_id=1)
    assert answer.name == "ERROR", answer
    await until(lambda: quiet(first))
    assert list(first.service.topics[TOPIC].ledger.cursors) == []
    client = await (first if here else second).connect()
    await client.consumer(TOPIC)
    assert await bound(stage)
    await producer.publish(1)
    assert payloads(await client.messages(1)) == [b"m0"]


async def test_a_stop_while_the_owner_is_away_waits_for_all_subscriptions_at_once(stage: Stage) -> None:
    """Each has so long for its last round, and there may be thousands."""
    producer = await stage.producer()
    await producer.publish(1)
    reader = await stage.reader()
    client = await reader.connect()
    for number in range(5):
        await client.consumer(TOPIC, f"s{number}", number, subType=SHARED, initialPosition=EARLIEST)
    topic = reader.service.topics[TOPIC]
    closing: list[str] = []
    goes_on = asyncio.Event()
    for cursor in topic.ledger.cursors.values():
        storage = cursor.storage
        assert isinstance(storage, KeptPosition)

        async def close(name: str = cursor.name, former: Any = storage.close) -> None:
            closing.append(name)
            await goes_on.wait()
            await former()

        setattr(storage, "close", close)  # noqa: B010, as a test's hands may be there
    unloading = asyncio.create_task(reader.service.unload(topic.name))
    await until(lambda: len(closing) == 5)
    goes_on.set()
    await unloading
    assert not await stage.writer.store.exists("/read-only-brokers/subscriptions/public/default/persistent/t")


@pytest.mark.parametrize("lost", [False, True], ids=["unloaded", "session lost"])
async def test_who_subscribes_while_the_topic_is_let_go_of_has_an_answer(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    await stage.producer()
    reader = await stage.reader()
    client = await reader.connect()
    opening = Gate(monkeypatch, "mark_delete")
    wanted = {"topic": TOPIC, "subscription": "s", "consumer_id": 1, "subType": SHARED}
    asked = client.start(pb.BaseCommand.SUBSCRIBE, **wanted)
    await until(lambda: opening.waiting)
    if lost:
        reader.store.expire_session()
    else:
        await reader.service.unload(TopicName.parse(TOPIC))
    answer = await client.answer(asked)
    assert (answer.name, answer.body.error) == ("ERROR", pb.ServiceNotReady), answer
    opening.goes_on.set()
    # Nothing of it is left at the owner.
    await (await (await stage.reader()).connect()).consumer(TOPIC)
