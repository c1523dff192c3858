"""Two clusters that replicate to each other: who acknowledges in one goes on in the other."""

from __future__ import annotations

import asyncio
import gc
from random import Random
from typing import Any, Final

import pytest
from magnetar.broker.admin.brokers.metrics import broker_metrics
from magnetar.broker.replicated_subscriptions.figures import SnapshotFigures
from magnetar.broker.replicated_subscriptions.followed_subscription import FollowedSubscription
from magnetar.broker.replicated_subscriptions.marked import REPLICATED_PROPERTY, is_marked, mark
from magnetar.broker.replicated_subscriptions.topic_subscriptions import ReplicatedSubscriptions
from magnetar.broker.replication.replicator import Replicator
from magnetar.broker.replication.topic_replicators import TopicReplicators
from magnetar.broker.testing.clusters import until
from magnetar.broker.testing.sessions import PATIENCE_SECONDS, MemoryBroker, ProtocolClient, SharedParts
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.core.ids import Position
from magnetar.core.topic_name import TopicName
from magnetar.ledger.testing import MemoryBookies
from magnetar.metadata.faulty import FaultyStore, RequestFate
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.wire.pulsar.batch import build_message
from magnetar.wire.pulsar.enums import SNAPSHOT_MARKER
from magnetar.wire.pulsar.errors import PulsarError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.metadata import full_metadata

from broker.tests.two_clusters import TOPIC, caught_up, linked_clusters, publish, replicate, stored, topic_of

FAST: Final = {"snapshot_interval_ms": 20}
SUBSCRIPTION: Final = "s"


async def subscribe(at: MemoryBroker, *, replicated: bool | None = True, **fields: Any) -> ProtocolClient:
    client = await at.connect()
    await client.request(pb.BaseCommand.LOOKUP, topic=TOPIC, authoritative=False)
    more = {} if replicated is None else {"replicate_subscription_state": replicated}
    await client.consumer(TOPIC, SUBSCRIPTION, **{"initialPosition": 1, **more, **fields})
    return client


async def receive(client: ProtocolClient, count: int, permits: int | None = None) -> list[tuple[int, Position]]:
    """The numbers of so many messages, and where they stand."""
    received = await client.messages(count, permits=permits)
    return [
        (full_metadata(one.payload).sequence_id, (one.body.message_id.ledgerId, one.body.message_id.entryId))
        for one in received
    ]


def acknowledge(client: ProtocolClient, position: Position, *, cumulative: bool = True) -> None:
    ledger_id, entry_id = position
    client.send(
        pb.BaseCommand.ACK,
        consumer_id=1,
        ack_type=pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual,
        message_id=[pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id)],
    )


def figures(at: MemoryBroker) -> SnapshotFigures:
    found: SnapshotFigures = at.service.upkeep.replication.snapshots
    return found


async def snapshot_taken(at: MemoryBroker) -> None:
    """A snapshot that was asked for behind the last message is stored."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            entries = await stored(at)
            markers = [entry.marker_type if entry.HasField("marker_type") else 0 for entry in entries]
            asked = [index for index, entry in enumerate(entries) if markers[index] == 10 and not entry.replicated_from]
            last = max(index for index, marker in enumerate(markers) if marker == 0)
            first = min((index for index in asked if index > last), default=len(markers))
            if SNAPSHOT_MARKER in markers[first:]:
                return
            await asyncio.sleep(0.01)


async def acknowledged_messages(at: MemoryBroker) -> list[int]:
    """The numbers of the messages that the subscription has behind it; none while it is not there."""
    topic = await topic_of(at)
    subscription = topic.subscriptions.get(SUBSCRIPTION)
    if subscription is None:
        return []
    ledgers = topic.ledger.ledgers
    entries = await stored(at)
    count = ledgers.entries_between(
        ledgers.previous_position(ledgers.first_position()), subscription.cursor.mark_delete
    )
    return [entry.sequence_id for entry in entries[:count] if entry.producer_name == "p"]


async def followed(at: MemoryBroker, count: int) -> None:
    """The subscription has so many messages behind it; those before the last one may not be stored any more."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await acknowledged_messages(at))[-1:] != [count - 1]:
            await asyncio.sleep(0.01)


async def test_a_consumer_that_changes_its_cluster_goes_on_where_it_was() -> None:
    async with linked_clusters(**FAST) as (east, west):
        there = await subscribe(east[0])
        await publish(east[0], 0, 60)
        received = await receive(there, 60, permits=70)
        await snapshot_taken(east[0])
        await publish(east[0], 60, 40)
        acknowledge(there, received[-1][1])
        await followed(west[0], 60)
        in_flight = await receive(there, 10, permits=1)
        assert [number for number, _ in in_flight] == list(range(60, 70))
        await there.close()
        await caught_up(east[0])
        here = await subscribe(west[0], replicated=None)
        again = await receive(here, 40)
        assert [number for number, _ in again] == list(range(60, 100))


@pytest.mark.parametrize("unloaded", [0, 1], ids=["east", "west"])
async def test_a_topic_that_is_unloaded_on_either_side_is_followed_on(unloaded: int) -> None:
    async with linked_clusters(**FAST) as clusters:
        east, west = clusters
        there = await subscribe(east[0])
        await publish(east[0], 0, 30)
        received = await receive(there, 30, permits=1_000)
        acknowledge(there, received[-1][1])
        await followed(west[0], 30)
        await clusters[unloaded][0].service.unload(TopicName.parse(TOPIC))
        await topic_of(clusters[unloaded][0])
        await publish(east[0], 30, 30)
        there = await subscribe(east[0], replicated=None) if not unloaded else there
        received = await receive(there, 30, permits=1_000)
        assert [number for number, _ in received] == list(range(30, 60))
        acknowledge(there, received[-1][1])
        await followed(west[0], 60)


async def test_shared_consumers_that_acknowledge_one_by_one_are_followed() -> None:
    async with linked_clusters(**FAST) as (east, west):
        there = await subscribe(east[0], subType=1)
        await publish(east[0], 0, 20)
        for _, position in await receive(there, 20, permits=1_000):
            acknowledge(there, position, cumulative=False)
        await followed(west[0], 20)
        assert is_marked((await topic_of(west[0])).ledger.cursors.get(SUBSCRIPTION))


async def test_a_position_never_goes_back() -> None:
    async with linked_clusters(**FAST) as (_, west):
        await publish(west[0], 0, 20)
        topic = await topic_of(west[0])
        marks = topic.replicated_subscriptions
        assert marks is not None
        first = topic.ledger.ledgers.first_position()
        for entry, wanted in ((9, 10), (4, 10), (14, 15)):
            await marks.follow_subscription(SUBSCRIPTION, (first[0], entry))
            assert len(await acknowledged_messages(west[0])) == wanted
        # No entry has this position: it is another topic's, or of one that was deleted.
        await marks.follow_subscription(SUBSCRIPTION, (first[0] + 1_000, 0))
        assert len(await acknowledged_messages(west[0])) == 15


@pytest.mark.parametrize("name", ["__compaction", "pulsar.repl.east", "pulsar.dedup", "."])
async def test_cursors_of_the_broker_follow_nobody(name: str) -> None:
    async with linked_clusters(**FAST) as (_, west):
        await publish(west[0], 0, 5)
        topic = await topic_of(west[0])
        marks = topic.replicated_subscriptions
        assert marks is not None
        before = {each: cursor.mark_delete for each, cursor in topic.ledger.cursors.items()}
        with pytest.raises(MagnetarError):
            await marks.follow_subscription(name, topic.ledger.last_confirmed)
        assert {each: cursor.mark_delete for each, cursor in topic.ledger.cursors.items()} == before


async def test_a_cluster_without_a_replicated_subscription_only_answers() -> None:
    async with linked_clusters(**FAST) as (east, west):
        await subscribe(east[0])
        await publish(east[0], 0, 5)
        await snapshot_taken(east[0])
        assert (figures(west[0]).finished, figures(west[0]).pending) == (0, 0)


async def test_whoever_is_replicated_since_now_needs_no_message_for_it() -> None:
    async with linked_clusters(**FAST) as (east, west):
        await (await east[0].connect()).consumer(TOPIC, "other", replicate_subscription_state=True)
        there = await subscribe(east[0], replicated=None)
        await publish(east[0], 0, 10)
        acknowledge(there, (await receive(there, 10, permits=1_000))[-1][1])
        await snapshot_taken(east[0])
        topic = await topic_of(east[0])
        await mark(topic, topic.ledger.cursors[SUBSCRIPTION], replicated=True)
        await followed(west[0], 10)


async def test_nothing_is_asked_for_once_the_last_one_is_deleted_or_replicated_no_more() -> None:
    async with linked_clusters(**FAST) as (east, _):
        await subscribe(east[0])
        topic = await topic_of(east[0])
        client = await east[0].connect()
        await client.consumer(TOPIC, "other", replicate_subscription_state=True)
        await publish(east[0], 0, 5)
        await snapshot_taken(east[0])
        await topic.delete_subscription("other", force=True)
        await mark(topic, topic.ledger.cursors[SUBSCRIPTION], replicated=False)
        await publish(east[0], 5, 5)
        before = len(await stored(east[0]))
        await asyncio.sleep(0.2)
        assert len(await stored(east[0])) == before
        assert figures(east[0]).pending == 0
        assert topic.ledger.cursors[SUBSCRIPTION].on_acknowledged is None


async def test_nothing_is_asked_or_answered_where_it_is_off() -> None:
    async with linked_clusters(**FAST, replicated_subscriptions=False) as (east, west):
        await subscribe(east[0])
        topic = await topic_of(east[0])
        assert not is_marked(topic.ledger.cursors[SUBSCRIPTION])
        assert topic.replicated_subscriptions is None
        assert (await topic_of(west[0])).replicated_subscriptions is None
        await publish(east[0], 0, 5)
        await caught_up(east[0])
        assert not any(entry.HasField("marker_type") for entry in await stored(west[0]))


async def test_snapshots_are_counted() -> None:
    async with linked_clusters(**FAST) as (east, _):
        await subscribe(east[0])
        await publish(east[0], 0, 5)
        await snapshot_taken(east[0])
        text = b"".join(await broker_metrics(east[0].running.context)).decode()
        count = figures(east[0]).finished
        assert count
        assert f'pulsar_replicated_subscriptions_snapshot_ms_count{{cluster="east"}} {count}' in text
        assert 'pulsar_replicated_subscriptions_pending_snapshots{cluster="east"} 0' in text
        assert 'pulsar_replicated_subscriptions_timedout_snapshots{cluster="east"} 0' in text


async def test_a_mark_without_an_answer_is_stored_before_the_consumer_hears_of_it() -> None:
    lost: list[str] = []

    def fate(verb: str, path: str) -> RequestFate:
        # The first write makes the node, the second one has the mark.
        if verb == "put" and path.endswith(f"/persistent/t/{SUBSCRIPTION}"):
            lost.append(path)
            if len(lost) in (2, 3):
                return RequestFate.LOST if len(lost) == 2 else RequestFate.REFUSED
        return RequestFate.DONE

    shared = SharedParts(FaultyStore(MemoryMetadataStore(), fate), MemoryBookies())
    async with MemoryBroker(shared=shared) as broker:
        client = await broker.connect()
        await client.request(pb.BaseCommand.LOOKUP, topic=TOPIC, authoritative=False)
        fields: dict[str, Any] = {"topic": TOPIC, "subscription": SUBSCRIPTION, "consumer_id": 1, "subType": 0}
        topic = await topic_of(broker)
        for _ in range(2):
            answer = await client.request(pb.BaseCommand.SUBSCRIBE, **fields, replicate_subscription_state=True)
            assert answer.name == "ERROR"
            assert not topic.subscriptions[SUBSCRIPTION].consumers
        await client.consumer(TOPIC, SUBSCRIPTION, replicate_subscription_state=True)
        assert len(lost) >= 3
        await broker.service.abandon([topic])
        cursor = (await topic_of(broker)).ledger.cursors[SUBSCRIPTION]
        assert cursor.properties == {REPLICATED_PROPERTY: 1}
    await shared.store.close()


async def test_a_damaged_snapshot_and_one_of_another_cluster_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    async with linked_clusters(**FAST, snapshot_timeout_seconds=1) as (east, west):
        there = await subscribe(east[0])
        topic = await topic_of(east[0])
        done: list[object] = []
        for source in (None, "west"):
            metadata = pb.MessageMetadata(producer_name="pulsar.marker", sequence_id=0, publish_time=1)
            metadata.MergeFrom(pb.MessageMetadata(marker_type=SNAPSHOT_MARKER, replicated_from=source))
            entry = build_message(metadata, b"\xff")
            topic.ledger.appends.append([entry], lambda *answer: done.append(answer), None)
        await publish(east[0], 0, 5)
        received = await receive(there, 5, permits=100)
        acknowledge(there, received[-1][1])
        await followed(west[0], 5)
        assert caplog.text.count("passing over a snapshot") == 1


async def test_nobody_looks_while_the_topic_is_not_replicated() -> None:
    async with linked_clusters(**FAST) as (east, west):
        there = await subscribe(east[0])
        await replicate(east[0], "east")
        topic = await topic_of(east[0])
        await until(lambda: topic.replicators is not None and not topic.replicators.running)
        before = len(await stored(east[0]))
        await publish(east[0], 0, 5)
        await asyncio.sleep(0.2)
        assert len(await stored(east[0])) == before + 5
        await replicate(east[0], "east", "west")
        acknowledge(there, (await receive(there, 5, permits=100))[-1][1])
        await followed(west[0], 5)


async def rest_of(at: MemoryBroker) -> list[int]:
    """The numbers of the messages that the subscription has not acknowledged, ascending."""
    topic = await topic_of(at)
    subscription = topic.subscriptions.get(SUBSCRIPTION)
    if subscription is None:
        return [-1]
    reader = topic.ledger.new_non_durable_cursor("look", (-1, -1))
    entries: list[Any] = []
    while read := await reader.read(1_000, 1 << 30):
        entries += [one for one in read if not subscription.cursor.is_acknowledged(one.position)]
    await reader.close()
    found = [full_metadata(one.data) for one in entries]
    return sorted(one.sequence_id for one in found if one.producer_name in ("p", "w"))


async def left(at: MemoryBroker, numbers: list[int]) -> None:
    """These messages are what is left of the subscription."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await rest_of(at) != numbers:
            await asyncio.sleep(0.01)


async def test_what_is_acknowledged_beyond_a_hole_does_not_come_again_in_another_cluster() -> None:
    async with linked_clusters(**FAST) as (east, west):
        there = await subscribe(east[0], subType=1)
        await publish(east[0], 0, 10)
        # Those of the other cluster stand elsewhere here, and are acknowledged there all the same.
        await publish(west[0], 100, 10, "w")
        for cluster in (west, east):
            await caught_up(cluster[0])
        for number, position in await receive(there, 20, permits=1_000):
            if number not in (3, 104):
                acknowledge(there, position, cumulative=False)
        await left(west[0], [3, 104])
        await there.close()
        here = await subscribe(west[0], replicated=None, subType=1)
        assert {number for number, _ in await receive(here, 2, permits=10)} == {3, 104}
        assert not [one for one in await here.round_trip() if one.name == "MESSAGE"]


async def test_a_hole_that_is_told_is_told_once() -> None:
    async with linked_clusters(**FAST) as (east, west):
        there = await subscribe(east[0], subType=1)
        await publish(east[0], 0, 10)
        received = await receive(there, 10, permits=1_000)
        for number, position in received:
            if number != 0:
                acknowledge(there, position, cumulative=False)
        await left(west[0], [0])
        await snapshot_taken(east[0])
        await asyncio.sleep(0.2)
        before = [len(await stored(cluster[0])) for cluster in (east, west)]
        await asyncio.sleep(0.2)
        assert [len(await stored(cluster[0])) for cluster in (east, west)] == before
        acknowledge(there, received[0][1], cumulative=False)
        await followed(west[0], 10)


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_passed_over_there_that_is_not_acknowledged_here(seed: int) -> None:
    """Single acknowledgements in any order, and topics that are unloaded on either side."""
    rng = Random(seed)
    numbers = list(range(60))
    async with linked_clusters(**FAST) as clusters:
        east, west = clusters
        # Without any subscription the other cluster deletes what it has when its topic is unloaded.
        keeper = await west[0].connect()
        await keeper.request(pb.BaseCommand.LOOKUP, topic=TOPIC, authoritative=False)
        await keeper.consumer(TOPIC, "keeper", initialPosition=1)
        await subscribe(east[0], subType=1)
        await publish(east[0], 0, len(numbers))
        acknowledged: set[int] = set()
        for round_ in range(3):
            there = await subscribe(east[0], replicated=None, subType=1)
            positions = dict(await receive(there, len(numbers) - len(acknowledged), permits=1_000))
            for number in rng.sample(sorted(positions), 18):
                acknowledge(there, positions[number], cumulative=False)
                acknowledged.add(number)
            await there.round_trip()
            if rng.random() < 0.7:
                await rng.choice(clusters)[0].service.unload(TopicName.parse(TOPIC))
            await asyncio.sleep(0.1 * rng.random())
            for cluster in clusters:
                await topic_of(cluster[0])
            passed_over = set(numbers) - set(await rest_of(west[0])) if round_ else set()
            assert passed_over <= acknowledged or -1 in await rest_of(west[0])
            await there.close()
        # What is told while the other topic is being unloaded may be lost, and is told again with the next one.
        there = await subscribe(east[0], replicated=None, subType=1)
        number, position = (await receive(there, 6, permits=1_000))[-1]
        acknowledge(there, position, cumulative=False)
        await left(west[0], sorted(set(numbers) - acknowledged - {number}))


async def test_what_another_cluster_tells_is_stored_at_once() -> None:
    async with linked_clusters(**FAST) as (_, west):
        await publish(west[0], 0, 20)
        topic = await topic_of(west[0])
        marks = topic.replicated_subscriptions
        assert marks is not None
        first = topic.ledger.ledgers.first_position()
        await marks.follow_subscription(SUBSCRIPTION, (first[0], 9))
        await west[0].service.abandon([topic])
        assert await rest_of(west[0]) == list(range(10, 20))


class Deleting:
    """Pending acknowledgements whose deletion lasts until it is let go, and fails as often as told."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.goes_on = asyncio.Event()

    async def delete(self, name: str) -> None:
        assert name == SUBSCRIPTION
        await self.goes_on.wait()
        if self.failures:
            self.failures -= 1
            raise Unavailable("the metadata store does not answer")


async def test_what_is_told_of_a_subscription_that_is_being_deleted_makes_a_new_one() -> None:
    async with linked_clusters(**FAST) as (_, west):
        await publish(west[0], 0, 20)
        topic: Any = await topic_of(west[0])
        first = topic.ledger.ledgers.first_position()
        marks = topic.replicated_subscriptions
        await marks.follow_subscription(SUBSCRIPTION, (first[0], 4))
        before, topic.pending_acks = topic.pending_acks, Deleting(0)
        async with asyncio.TaskGroup() as under_way:
            under_way.create_task(topic.delete_subscription(SUBSCRIPTION))
            await until(lambda: SUBSCRIPTION not in topic.subscriptions)
            under_way.create_task(marks.follow_subscription(SUBSCRIPTION, (first[0], 9)))
            await asyncio.sleep(0)
            topic.pending_acks.goes_on.set()
        topic.pending_acks = before
        cursor = topic.subscriptions[SUBSCRIPTION].cursor
        assert not cursor.closed
        assert cursor is topic.ledger.cursors[SUBSCRIPTION]
        assert await rest_of(west[0]) == list(range(10, 20))


async def test_a_deletion_that_failed_under_way_may_be_repeated() -> None:
    async with linked_clusters(**FAST) as (_, west):
        topic: Any = await topic_of(west[0])
        await topic.replicated_subscriptions.follow_subscription(SUBSCRIPTION, (0, 0))
        before, topic.pending_acks = topic.pending_acks, Deleting(1)
        topic.pending_acks.goes_on.set()
        with pytest.raises(Unavailable):
            await topic.delete_subscription(SUBSCRIPTION)
        await topic.delete_subscription(SUBSCRIPTION)
        topic.pending_acks = before
        assert SUBSCRIPTION not in topic.ledger.cursors
        with pytest.raises(PulsarError, match="Subscription not found"):
            await topic.delete_subscription(SUBSCRIPTION)


def kept() -> list[object]:
    kinds = (PersistentTopic, TopicReplicators, Replicator, ReplicatedSubscriptions, FollowedSubscription)
    return [one for one in gc.get_objects() if isinstance(one, kinds)]


async def test_a_topic_that_is_unloaded_is_gone_without_the_collector() -> None:
    async with linked_clusters(**FAST) as (east, west):
        there = await subscribe(east[0], subType=1)
        await publish(east[0], 0, 10)
        for number, position in await receive(there, 10, permits=1_000):
            if number != 0:
                acknowledge(there, position, cumulative=False)
        await left(west[0], [0])
        await there.close()
        gc.collect()
        gc.disable()
        try:
            assert kept()
            for cluster in (east, west):
                await cluster[0].service.unload(TopicName.parse(TOPIC))
            await until(lambda: not kept())
        finally:
            gc.enable()
