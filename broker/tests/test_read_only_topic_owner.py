"""Subscriptions that are held at the broker that writes their topic, and what that broker has of them afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from magnetar.broker.admin.topics import internals
from magnetar.broker.read_only.kept_position import PositionMoved
from magnetar.broker.read_only.topic_owner import RemoteTopicOwner
from magnetar.broker.session.acknowledge import HOLD_KEY
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.client.hold import SubscriptionHold
from magnetar.core.errors import MagnetarError, PeerError, Unavailable
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.managed.cursors.internal_properties import INTERNAL_PREFIX
from magnetar.managed.errors import CursorClosed
from magnetar.managed.paths import cursor_path
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import BaseCommand, Schema

from broker.tests.kept_stage import TOPIC, World, acknowledge, stage


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with MemoryBroker(BrokerSettings(cluster_name="memory")) as broker, stage(broker) as made:
        yield made


# --- taken, acknowledged, given back


async def test_the_owner_knows_who_holds_a_subscription_and_by_which_schema_it_is_read(world: World) -> None:
    schemas: list[str] = []

    def schema_of(subscription: str) -> Schema:
        schemas.append(subscription)
        return Schema(name="", type=Schema.Type.String, schema_data=b"")

    owner = RemoteTopicOwner(TOPIC, world.parts, lambda *_: None, schema_of)
    await owner.keep("s", EARLIEST, {})
    (holder,) = world.broker.service.topics[str(TOPIC)].subscriptions["s"].consumers
    assert holder.identity.metadata == {HOLD_KEY: "reader:1"}
    assert schemas == ["s"]
    client = await world.broker.connect()
    answer = await client.request(BaseCommand.GET_SCHEMA, topic=str(TOPIC))
    assert answer.body.schema.type == Schema.Type.String
    await owner.close()


async def test_what_was_acknowledged_here_does_not_come_again_at_the_owner(world: World) -> None:
    kept, acks = await world.take()
    positions = await world.publish(10)
    await acknowledge(kept, acks, positions[0], positions[1], positions[4], positions[5], positions[8])
    subscription = world.broker.service.topics[str(TOPIC)].subscriptions["s"]
    assert subscription.cursor.mark_delete == positions[1]
    assert not kept.dirty
    acks.acknowledge([positions[2]])
    kept.changed()
    await kept.close()
    assert not subscription.consumers
    assert await world.rest() == [b"3.0", b"6.0", b"7.0", b"9.0"]


async def test_a_subscription_comes_with_its_mark_and_what_lies_behind_holes(world: World) -> None:
    consumer = await world.consumer(kind=SubscriptionType.SHARED, from_earliest=True)
    positions = await world.publish(8)
    got = [await consumer.receive() for _ in range(8)]
    await consumer.acknowledge([got[number].id for number in (0, 1, 3, 6)])
    await consumer.close()
    kept, acks = await world.take()
    assert kept.mark_delete == positions[1]
    assert [number for number in range(8) if acks.is_acknowledged(positions[number])] == [0, 1, 3, 6]
    await acknowledge(kept, acks, positions[4])
    await kept.close()
    assert await world.rest() == [b"2.0", b"5.0", b"7.0"]


async def test_a_part_of_a_batch_is_told(world: World) -> None:
    await (await world.consumer(from_earliest=True)).close()
    positions = await world.publish(3, size=4)
    kept, acks = await world.take()
    acks.acknowledge_batch_indexes(positions[1], [0b0110], 4)
    kept.changed()
    await kept.close()
    assert await world.rest() == [b"0.0", b"0.1", b"0.2", b"0.3", b"1.1", b"1.2", b"2.0", b"2.1", b"2.2", b"2.3"]


async def test_a_new_subscription_begins_where_it_was_asked_to(world: World) -> None:
    positions = await world.publish(2)
    first, _ = await world.take("first")
    last = await world.owner.keep("last", LATEST, {"a": "b"})
    assert first.mark_delete == (positions[0][0], -1)
    assert last.mark_delete == positions[1]
    assert last.cursor_properties == {"a": "b"}
    assert world.admin.calls == []
    await last.abandon()
    again = await world.owner.keep("last", LATEST, {})
    assert again.cursor_properties == {"a": "b"}
    assert len(world.admin.calls) == 1


async def test_an_empty_topic_has_a_mark_before_its_first_entry(world: World) -> None:
    kept, acks = await world.take()
    assert kept.mark_delete[1] == -1
    (position,) = await world.publish(1)
    await acknowledge(kept, acks, position)
    assert world.broker.service.topics[str(TOPIC)].subscriptions["s"].cursor.mark_delete == position


async def test_properties_are_kept_by_the_owner(world: World) -> None:
    kept, _ = await world.take()
    kept.cursor_properties["who"] = "me"
    await kept.rewrite_node()
    assert world.broker.service.topics[str(TOPIC)].subscriptions["s"].cursor.cursor_properties == {"who": "me"}
    await kept.close()
    with pytest.raises(CursorClosed):
        await kept.rewrite_node()


async def test_what_brokers_note_for_themselves_is_no_property_of_a_subscription(world: World) -> None:
    await (await world.consumer()).close()
    cursor = world.broker.service.topics[str(TOPIC)].subscriptions["s"].cursor
    await cursor.set_cursor_properties({"a": "b", f"{INTERNAL_PREFIX}note": "1"})
    kept, _ = await world.take()
    assert kept.cursor_properties == {"a": "b"}


async def test_one_request_tells_of_all_whose_hold_stood_before(world: World) -> None:
    names = [f"s{number}" for number in range(6)]
    for name in names:
        await (await world.consumer(name)).close()
    world.admin.goes_on.clear()
    first = asyncio.create_task(world.take(names[0]))
    await until(lambda: len(world.admin.calls) == 1)
    others = [asyncio.create_task(world.take(name)) for name in names[1:]]
    subscriptions = world.broker.service.topics[str(TOPIC)].subscriptions
    await until(lambda: all(subscriptions[name].consumers for name in names))
    world.admin.goes_on.set()
    await asyncio.gather(first, *others)
    # How many of the others were there in time is the network's affair; they are never asked for one by one.
    assert 2 <= len(world.admin.calls) <= 3


@pytest.mark.parametrize(
    "answer",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"cursors": []}',
        b'{"cursors": {}}',
        b'{"cursors": {"s": 5}}',
        b'{"cursors": {"s": {"individuallyDeletedMessages": 5}}}',
        b'{"cursors": {"s": {"individuallyDeletedMessages": "[(1:2]"}}}',
    ],
)
async def test_an_answer_that_makes_no_sense_is_not_guessed_at(world: World, answer: bytes) -> None:
    await (await world.consumer()).close()
    world.admin.instead = answer
    with pytest.raises(PeerError, match="persistent://public/default/read"):
        await world.take()
    assert not world.broker.service.topics[str(TOPIC)].subscriptions["s"].consumers
    world.admin.instead = None
    await world.take()


async def test_what_others_consume_is_not_taken(world: World) -> None:
    consumer = await world.consumer()
    with pytest.raises(PulsarError) as caught:
        await world.take()
    assert caught.value.code == ServerError.CONSUMER_BUSY
    await consumer.close()
    kept, _ = await world.take()
    with pytest.raises(PulsarError) as caught:
        await world.consumer(kind=SubscriptionType.SHARED)
    assert caught.value.code == ServerError.CONSUMER_BUSY
    await kept.close()
    await world.consumer()


async def test_what_is_held_here_is_not_taken_twice(world: World) -> None:
    kept, acks = await world.take()
    with pytest.raises(Unavailable, match="s is held"):
        await world.take()
    (position,) = await world.publish(1)
    await acknowledge(kept, acks, position)
    assert world.lost == []


async def test_an_owner_that_does_not_say_where_a_subscription_stands_is_not_guessed_at(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def says_nothing(hold: SubscriptionHold) -> Position:
        return (-1, -1)

    with monkeypatch.context() as patched:
        patched.setattr(SubscriptionHold, "mark_delete", says_nothing)
        with pytest.raises(PeerError, match="does not say where s stands"):
            await world.take()
    await world.take()


async def test_a_cursor_of_which_nothing_sensible_is_told_is_none(world: World) -> None:
    await (await world.consumer()).close()
    told = await world.owner.cursor("s")
    assert told is not None
    assert "individuallyDeletedMessages" in told
    assert await world.owner.cursor("other") is None
    world.admin.instead = b'{"cursors": {"s": 5}}'
    assert await world.owner.cursor("s") is None


async def test_an_owner_that_answers_nothing_is_told_as_away(world: World) -> None:
    parts = replace(world.parts, settings=replace(world.parts.settings, patience_seconds=0.01))
    other = RemoteTopicOwner(TOPIC, parts, lambda *_: None)
    world.admin.goes_on.clear()
    with pytest.raises(Unavailable, match="does not tell of its cursors"):
        await other.cursor("s")
    world.admin.goes_on.set()
    await other.close()


async def test_nothing_is_sent_to_who_holds(world: World) -> None:
    await world.take()
    await world.publish(3)
    (consumer,) = world.broker.service.topics[str(TOPIC)].subscriptions["s"].consumers
    assert (consumer.permits, consumer.identity.name) == (0, "read-only broker reader:1")


async def test_any_name_of_a_subscription_will_do(world: World) -> None:
    name = "a/b c?*~ü%2F"
    consumer = await world.consumer(name, kind=SubscriptionType.SHARED, from_earliest=True)
    positions = await world.publish(4)
    got = [await consumer.receive() for _ in range(4)]
    await consumer.acknowledge([got[2].id])
    await consumer.close()
    kept, acks = await world.take(name)
    assert [acks.is_acknowledged(each) for each in positions] == [False, False, True, False]
    kept.cursor_properties["a"] = "b"
    await kept.rewrite_node()
    await acknowledge(kept, acks, positions[0])
    await unload(world)
    await acknowledge(kept, acks, positions[1])
    await kept.delete()
    assert world.lost == []
    assert not await world.broker.store.exists(cursor_path(TOPIC.persistence_name, name))


async def test_of_very_many_stretches_the_first_are_taken_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "STRETCHES_MAX", 3)
    await (await world.consumer(from_earliest=True)).close()
    positions = await world.publish(12)
    kept, acks = await world.take()
    await acknowledge(kept, acks, *positions[1::2])
    await kept.close()
    kept, acks = await world.take()
    assert [positions.index(high) for _, high in kept.acknowledged] == [1, 3, 5]
    await acknowledge(kept, acks, positions[0])
    await kept.close()
    assert await world.rest() == [b"2.0", b"4.0", b"6.0", b"8.0", b"10.0"]


async def test_the_stretches_of_all_subscriptions_together_are_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(internals, "STRETCHES_OF_TOPIC_MAX", 5)
    monkeypatch.setattr(internals, "STRETCHES_MIN", 1)
    names = ["a", "b", "c"]
    for name in names:
        await (await world.consumer(name, from_earliest=True)).close()
    positions = await world.publish(8)
    for name in names:
        kept, acks = await world.take(name)
        await acknowledge(kept, acks, *positions[1::2])
        await kept.close()
    found = [len((await world.owner.keep(name, LATEST, {})).acknowledged) for name in names]
    assert found == [4, 1, 1]


# --- seeks, deletion


async def test_a_seek_back_and_one_forward_are_told(world: World) -> None:
    await (await world.consumer(from_earliest=True)).close()
    positions = await world.publish(6)
    kept, acks = await world.take()
    cursor = world.broker.service.topics[str(TOPIC)].subscriptions["s"].cursor
    await acknowledge(kept, acks, *positions[:3], positions[4])
    acks.reset(positions[0])
    kept.changed()
    await kept.flush()
    assert (cursor.mark_delete, cursor.individually_acknowledged()) == (positions[0], [])
    await acknowledge(kept, acks, positions[5])
    acks.reset(positions[3])
    kept.changed()
    await kept.flush()
    assert (cursor.mark_delete, cursor.individually_acknowledged()) == (positions[3], [])
    await acknowledge(kept, acks, positions[4])
    await kept.close()
    assert world.lost == []
    assert await world.rest() == [b"5.0"]


async def test_a_seek_into_a_batch_is_told(world: World) -> None:
    await (await world.consumer(from_earliest=True)).close()
    positions = await world.publish(3, size=2)
    kept, acks = await world.take()
    await acknowledge(kept, acks, *positions)
    acks.reset(positions[0])
    acks.acknowledge_batch_indexes(positions[1], [0b10], 2)
    kept.changed()
    await kept.close()
    assert await world.rest() == [b"1.1", b"2.0", b"2.1"]


async def test_to_delete_it_is_to_unsubscribe(world: World) -> None:
    kept, acks = await world.take()
    (position,) = await world.publish(1)
    acks.acknowledge([position])
    kept.changed()
    await kept.delete()
    assert "s" not in world.broker.service.topics[str(TOPIC)].subscriptions
    assert not await world.broker.store.exists(cursor_path(TOPIC.persistence_name, "s"))
    assert kept.deleting
    assert world.lost == []
    await world.take()


# --- the owner moves, goes, or lets others in


async def unload(world: World) -> None:
    await world.broker.running.context.peers.call("PUT", f"/admin/v2/{TOPIC_PATH}/unload")


TOPIC_PATH = "persistent/public/default/read"


async def test_a_topic_that_moves_is_told_all_again(world: World) -> None:
    await (await world.consumer(from_earliest=True)).close()
    positions = await world.publish(6)
    kept, acks = await world.take()
    await acknowledge(kept, acks, positions[0], positions[2])
    acks.acknowledge([positions[4]])
    kept.changed()
    await unload(world)
    await kept.flush()
    cursor = world.broker.service.topics[str(TOPIC)].subscriptions["s"].cursor
    assert cursor.mark_delete == positions[0]
    assert [cursor.is_acknowledged(each) for each in positions] == [True, False, True, False, True, False]
    await acknowledge(kept, acks, positions[1])
    await kept.close()
    assert world.lost == []
    assert await world.rest() == [b"3.0", b"5.0"]


@pytest.mark.slow
async def test_a_topic_that_moves_to_another_broker_is_told_all_again() -> None:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(MemoryCluster(2))
        bundle = await cluster.take(cluster[0], str(TOPIC))
        world = await stack.enter_async_context(stage(cluster[0]))
        await (await world.consumer(from_earliest=True)).close()
        positions = await world.publish(6)
        kept, acks = await world.take()
        await acknowledge(kept, acks, positions[1], positions[3])
        there = cluster[1].running.settings.broker_id
        await cluster[0].running.context.moves.unload(bundle, destination=there)
        await acknowledge(kept, acks, positions[0])
        assert await world.owner.last_confirmed() == positions[-1]
        cursor = cluster[1].service.topics[str(TOPIC)].subscriptions["s"].cursor
        assert [cursor.is_acknowledged(each) for each in positions] == [True, True, False, True, False, False]
        await kept.close()
        kept = await world.owner.keep("s", LATEST, {})
        assert (kept.mark_delete, kept.acknowledged) == (positions[1], [(positions[2], positions[3])])
        assert world.lost == []


async def test_a_broker_that_stops_and_comes_back_is_told_all_again(world: World) -> None:
    await (await world.consumer(from_earliest=True)).close()
    positions = await world.publish(4)
    kept, acks = await world.take()
    await acknowledge(kept, acks, positions[0])
    await world.broker.stop()
    acks.acknowledge([positions[2]])
    kept.changed()
    done: list[MagnetarError | None] = []
    kept.persist(done.append)
    await asyncio.sleep(0.1)
    assert done == []
    await world.broker.start()
    await until(lambda: done)
    assert done == [None]
    await kept.close()
    assert await world.rest() == [b"1.0", b"3.0"]


async def test_who_finds_its_subscription_taken_says_so(world: World) -> None:
    kept, acks = await world.take()
    positions = await world.publish(2)
    world.store.goes_on.clear()
    world.broker.service.topics[str(TOPIC)].subscriptions["s"].disconnect_all()
    await world.consumer(kind=SubscriptionType.SHARED)
    world.store.goes_on.set()
    await until(lambda: world.lost)
    assert {(name, getattr(error, "code", None)) for name, error in world.lost} == {("s", ServerError.CONSUMER_BUSY)}
    acks.acknowledge(positions)
    kept.changed()
    with pytest.raises(PulsarError):
        await kept.flush()
    await kept.close()


async def test_who_finds_its_subscription_deleted_says_so(world: World) -> None:
    kept, _ = await world.take()
    await world.broker.running.context.peers.call(
        "DELETE", f"/admin/v2/{TOPIC_PATH}/subscription/s", query={"force": "true"}
    )
    await until(lambda: world.lost)
    assert getattr(world.lost[0][1], "code", None) == ServerError.SUBSCRIPTION_NOT_FOUND
    assert "s" not in world.broker.service.topics[str(TOPIC)].subscriptions
    await kept.delete()


async def test_a_position_that_an_administrator_moves_is_given_up(world: World) -> None:
    await (await world.consumer(from_earliest=True)).close()
    positions = await world.publish(4)
    kept, acks = await world.take()
    await acknowledge(kept, acks, *positions[:3])
    await world.broker.running.context.peers.call(
        "POST",
        f"/admin/v2/{TOPIC_PATH}/subscription/s/resetcursor",
        body={"ledgerId": positions[1][0], "entryId": positions[1][1]},
    )
    await until(lambda: world.lost)
    assert isinstance(world.lost[0][1], PositionMoved)
    await kept.close()
    assert await world.rest() == [b"1.0", b"2.0", b"3.0"]


async def test_what_is_left_at_the_end_is_told_or_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    kept, acks = await world.take()
    (position,) = await world.publish(1)
    kept._parts = replace(kept._parts, settings=replace(kept._parts.settings, close_seconds=0.05))
    await world.broker.stop()
    acks.acknowledge([position])
    kept.changed()
    await kept.close()
    (logged,) = [record.getMessage() for record in caplog.records if "was not told" in record.getMessage()]
    assert f"{TOPIC} s:" in logged
    assert f"{position[0]}:{position[1]}" in logged
    await world.broker.start()


async def test_who_waits_for_an_owner_that_is_away_is_told_so(world: World) -> None:
    kept, acks = await world.take()
    (position,) = await world.publish(1)
    kept._parts = replace(kept._parts, settings=replace(kept._parts.settings, patience_seconds=0.1))
    await world.broker.stop()
    acks.acknowledge([position])
    kept.changed()
    with pytest.raises(Unavailable, match="owner does not take the position"):
        await kept.flush()
    kept._parts = replace(kept._parts, settings=replace(kept._parts.settings, patience_seconds=60.0))
    await world.broker.start()
    await until(lambda: not kept.dirty and not kept._returned)
    await kept.close()
    assert await world.rest() == []


async def test_to_abandon_it_is_to_tell_nothing(world: World) -> None:
    kept, acks = await world.take()
    (position,) = await world.publish(1)
    acks.acknowledge([position])
    done: list[MagnetarError | None] = []
    kept.dirty = True
    kept.persist(done.append)
    await kept.abandon()
    assert isinstance(done[0], CursorClosed)
    assert await world.rest() == [b"0.0"]


async def test_an_owner_that_is_closed_lets_all_go(world: World) -> None:
    await world.take("a")
    kept, _ = await world.take("b")
    await world.owner.close()
    assert world.lost == []
    assert not any(each.consumers for each in world.broker.service.topics[str(TOPIC)].subscriptions.values())
    with pytest.raises(CursorClosed):
        await kept.flush()
    with pytest.raises(Unavailable):
        await world.owner.keep("c", LATEST, {})


async def test_thousands_of_subscriptions_are_told_of_less_often(world: World) -> None:
    kept = await world.owner.keep("s", EARLIEST, {})
    now_seconds = world.parts.clock.monotonic_seconds()
    assert world.owner._wait_seconds(now_seconds) <= 1.1
    crowd = {f"s{number}": kept for number in range(999)}
    world.owner._kept |= crowd
    assert 11.5 < world.owner._wait_seconds(now_seconds) <= 12.6
    for name in crowd:
        del world.owner._kept[name]
