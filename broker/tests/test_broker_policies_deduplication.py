"""What a producer sends twice is stored once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.policies import PolicySettings
from magnetar.broker.testing.sessions import (
    MemoryBroker,
    ProtocolClient,
    Received,
    ShiftedClock,
    batch_message,
    message,
)
from magnetar.broker.topics.deduplication import CURSOR_NAME, DuplicateStatus
from magnetar.broker.topics.producer import Producer, ProducerIdentity, PublishBatch
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.managed.testing import append
from magnetar.wire.pulsar.errors import ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

Command = pb.BaseCommand
TOPIC = "persistent://public/default/topic"
NAME = TopicName.parse(TOPIC)
NOTHING_STORED = (2**64 - 1, 2**64 - 1)


@asynccontextmanager
async def broker_with(**settings: Any) -> AsyncIterator[tuple[MemoryBroker, ProtocolClient]]:
    policies = PolicySettings(**{"deduplication": True, **settings})
    async with MemoryBroker(BrokerSettings(policies=policies), clock=ShiftedClock()) as broker:
        yield broker, await broker.connect()


async def opened(client: ProtocolClient, producer_id: int = 1, name: str = "p") -> int:
    """Open a producer of this name; the last sequence id that it is told."""
    body = await client.producer(TOPIC, producer_id, producer_name=name)
    last: int = body.last_sequence_id
    return last


async def send(client: ProtocolClient, *numbers: int, producer_id: int = 1, **fields: Any) -> list[Received]:
    """Send messages of these sequence ids in one write; the answers in the order they came."""
    for number in numbers:
        content = message(b"m%d" % number, **{"producer_name": "p", "sequence_id": number, **fields})
        client.send(Command.SEND, content, producer_id=producer_id, sequence_id=number)
    answers = [await client._take(lambda one: one.name in ("SEND_RECEIPT", "SEND_ERROR")) for _ in numbers]
    assert [answer.body.sequence_id for answer in answers] == list(numbers)
    return answers


def stored(answer: Received) -> bool:
    """Whether a receipt tells where the message is now; a duplicate's does not."""
    assert answer.name == "SEND_RECEIPT", answer
    message_id = answer.body.message_id
    return (message_id.ledgerId, message_id.entryId) != NOTHING_STORED


def state(broker: MemoryBroker) -> Any:
    return broker.service.topics[TOPIC].deduplication


async def test_duplicates_get_receipts_in_their_turn_and_are_not_stored() -> None:
    async with broker_with() as (broker, client):
        assert await opened(client) == -1
        assert [stored(one) for one in await send(client, 0, 1, 2)] == [True] * 3
        assert [stored(one) for one in await send(client, 1, 3, 2, 4, 5)] == [False, True, False, True, True]
        assert broker.service.topics[TOPIC].number_of_entries == 6
        assert broker.service.topics[TOPIC].messages_in == 6
        await opened(client, 2, "other")
        assert [stored(one) for one in await send(client, 0, producer_id=2, producer_name="other")] == [True]


async def test_a_producer_that_comes_back_hears_what_is_stored() -> None:
    async with broker_with() as (_, client):
        await opened(client)
        await send(client, 0, 7)
        await client.request(Command.CLOSE_PRODUCER, producer_id=1)
        assert await opened(client) == 7


async def test_a_batch_counts_by_its_highest_sequence_id() -> None:
    async with broker_with() as (_, client):
        await opened(client)
        content = batch_message(b"a", b"b", b"c", producer_name="p", sequence_id=0)
        fields = {"producer_id": 1, "sequence_id": 0, "highest_sequence_id": 2, "num_messages": 3}
        client.send(Command.SEND, content, **fields)
        assert stored(await client.expect(Command.SEND_RECEIPT))
        assert [stored(one) for one in await send(client, 1, 2, 3)] == [False, False, True]
        client.send(Command.SEND, content, **fields)
        assert not stored(await client.expect(Command.SEND_RECEIPT))


async def test_sequence_ids_are_signed_in_snapshots_and_comparisons() -> None:
    """As Apache's broker has them. Else one of a client's could not be written into any snapshot, and the topic would
    not even be unloaded."""
    minus_one, lowest = (1 << 64) - 1, 1 << 63
    async with broker_with(deduplication_snapshot_entries=1) as (broker, client), asyncio.timeout(60):
        assert await opened(client) == -1
        assert [stored(one) for one in await send(client, lowest, minus_one)] == [True, True]
        assert [stored(one) for one in await send(client, minus_one)] == [False]
        assert state(broker).stored == {"p": -1}
        await broker.service.unload(NAME)
        await client.expect(Command.CLOSE_PRODUCER)
        assert await opened(client) == -1
        assert [stored(one) for one in await send(client, minus_one, 0, lowest)] == [False, True, False]
        assert state(broker).stored == {"p": 0}


async def test_negative_sequence_ids_are_replayed_as_they_were_stored() -> None:
    """A message alone says nothing of a highest sequence id. Taken for -1, it would make duplicates of all that its
    producer sends next: they would have receipts, and be lost."""
    lowest = 1 << 63
    async with broker_with() as (broker, client), asyncio.timeout(60):
        await opened(client)
        assert [stored(one) for one in await send(client, lowest, lowest + 1)] == [True, True]
        await broker.service.unload(NAME)
        await client.expect(Command.CLOSE_PRODUCER)
        await opened(client)
        assert [stored(one) for one in await send(client, lowest + 1, lowest + 2)] == [False, True]


async def test_chunks_of_one_message_share_its_sequence_id() -> None:
    async with broker_with() as (broker, client):
        await opened(client)

        async def chunks() -> list[bool]:
            for chunk_id in range(3):
                content = message(b"part", sequence_id=4, chunk_id=chunk_id, num_chunks_from_msg=3, uuid="u")
                client.send(Command.SEND, content, producer_id=1, sequence_id=4, is_chunk=True)
            return [stored(await client.expect(Command.SEND_RECEIPT)) for _ in range(3)]

        assert await chunks() == [True, True, True]
        assert await chunks() == [True, True, False]
        assert state(broker).stored == {"p": 4}


async def test_each_snapshot_comes_after_as_many_entries_as_the_one_before() -> None:
    async with broker_with(deduplication_snapshot_entries=3) as (broker, client):
        await opened(client)
        held = []
        for number in range(7):
            await send(client, number)
            held.append(broker.service.topics[TOPIC].ledger.cursors[CURSOR_NAME].properties.get("p", -1))
        assert held == [-1, -1, 2, 2, 2, 5, 5]


async def test_a_topic_that_is_loaded_again_knows_what_came_after_the_snapshot() -> None:
    async with broker_with(deduplication_snapshot_entries=3) as (broker, client):
        await opened(client)
        await send(client, 0, 1, 2, 3)
        cursor = broker.service.topics[TOPIC].ledger.cursors[CURSOR_NAME]
        assert cursor.properties in ({"p": 2}, {"p": 3})
        await send(client, 4, 5)
        await broker.service.unload(NAME)
        await client.expect(Command.CLOSE_PRODUCER)
        assert await opened(client) == 5
        assert [stored(one) for one in await send(client, 5, 6)] == [False, True]


async def test_a_restarted_broker_knows_it_too() -> None:
    async with broker_with() as (broker, client):
        await opened(client)
        await send(client, 0, 1, 2)
        await broker.stop()
        await broker.start()
        client = await broker.connect()
        assert await opened(client) == 2


async def test_snapshots_by_time_and_producers_that_are_forgotten() -> None:
    async with broker_with(deduplication_forget_seconds=1_000) as (broker, client):
        await opened(client)
        await send(client, 0, 1)
        ledger = broker.service.topics[TOPIC].ledger
        cursor = ledger.cursors[CURSOR_NAME]
        assert cursor.properties == {}
        clock = broker.service.clock
        clock.advance(121)
        await broker.service.upkeep.check_now("deduplication")
        assert cursor.properties == {"p": 1}
        assert cursor.mark_delete == ledger.last_confirmed
        await client.request(Command.CLOSE_PRODUCER, producer_id=1)
        clock.advance(999)
        await broker.service.upkeep.check_now("deduplication")
        assert state(broker).stored == {"p": 1}
        clock.advance(2)
        await broker.service.upkeep.check_now("deduplication")
        assert state(broker).stored == {}
        assert cursor.properties == {}


async def test_snapshots_by_time_go_over_what_no_producer_sent() -> None:
    """Such as the ends of transactions: a ledger that ends with them would be kept for ever."""
    async with broker_with() as (broker, client):
        await opened(client)
        await send(client, 0, 1)
        ledger = broker.service.topics[TOPIC].ledger
        clock = broker.service.clock
        clock.advance(121)
        await broker.service.upkeep.check_now("deduplication")
        await append(ledger, [message(b"", producer_name="broker", sequence_id=0, marker_type=21)])
        (before,) = ledger.ledgers.ids
        await ledger.roll()
        clock.advance(121)
        await broker.service.upkeep.check_now("deduplication")
        assert ledger.cursors[CURSOR_NAME].mark_delete >= ledger.last_confirmed
        assert ledger.cursors[CURSOR_NAME].properties == {"p": 1}
        async with asyncio.timeout(60):
            while before in ledger.ledgers.ids:
                await asyncio.sleep(0.01)


async def test_a_topic_that_is_truncated_knows_what_its_producers_have_sent() -> None:
    """Who comes back and asks would be told to send all of it once more."""
    async with broker_with() as (broker, client):
        await opened(client)
        await send(client, 0, 1)
        path = "/admin/v2/persistent/public/default/topic/truncate"
        async with aiohttp.ClientSession(broker.running.settings.web_service_url) as http, http.delete(path) as answer:
            assert answer.status == 204
        assert broker.service.topics[TOPIC].number_of_entries == 0
        await broker.service.unload(NAME)
        await client.expect(Command.CLOSE_PRODUCER)
        assert await opened(client) == 1


async def test_a_producer_that_came_back_is_not_forgotten_while_it_is_connected() -> None:
    async with broker_with(deduplication_forget_seconds=1_000) as (broker, client):
        await opened(client)
        await send(client, 0, 1)
        await client.request(Command.CLOSE_PRODUCER, producer_id=1)
        assert await opened(client) == 1
        broker.service.clock.advance(2_000)
        await broker.service.upkeep.check_now("deduplication")
        assert [stored(one) for one in await send(client, 1, 2)] == [False, True]


async def test_a_producer_whose_old_connection_ends_late_is_not_forgotten_while_it_is_connected() -> None:
    async with broker_with(deduplication_forget_seconds=1_000) as (broker, client):
        await opened(client)
        later = await broker.connect()
        body = await later.producer(TOPIC, 1, producer_name="p", user_provided_producer_name=False, epoch=1)
        assert body.last_sequence_id == -1
        await send(later, 0, 1)
        await client.close()
        while broker.service.limits.connections.total > 1:
            await later.round_trip()
        broker.service.clock.advance(2_000)
        await broker.service.upkeep.check_now("deduplication")
        assert [stored(one) for one in await send(later, 1, 2)] == [False, True]


async def test_namespaces_and_topics_switch_it_on_and_off() -> None:
    async with broker_with(deduplication=False) as (broker, client):
        await opened(client)
        await send(client, 0, 0)
        assert broker.service.topics[TOPIC].number_of_entries == 2
        resources = broker.service.resources
        namespace = NamespaceName("public", "default")
        await resources.documents.update(
            resources.namespace_path(namespace), lambda document: {**document, "deduplicationEnabled": True}
        )
        await broker.service.policies_changed(namespace)
        while state(broker) is None:
            await client.round_trip()
        assert [stored(one) for one in [*await send(client, 1), *await send(client, 1)]] == [True, False]
        await broker.running.context.topic_policies.update(NAME, lambda _: {"deduplicationEnabled": False})
        while CURSOR_NAME in broker.service.topics[TOPIC].ledger.cursors:
            await client.round_trip()
        assert [stored(one) for one in await send(client, 1)] == [True]
        assert CURSOR_NAME not in broker.service.topics[TOPIC].subscriptions


class Connection:
    """Keeps what a producer's client is sent."""

    def __init__(self) -> None:
        self.answers: list[pb.BaseCommand] = []

    def write(self, data: bytes) -> None:
        while data:
            end = 4 + int.from_bytes(data[:4], "big")
            self.answers.append(pb.BaseCommand.FromString(data[8:end]))
            data = data[end:]

    def publish_finished(self, size_bytes: int) -> None:
        del size_bytes

    def producer_disconnected(self, producer: Producer) -> None:
        del producer

    async def alive(self) -> bool:
        return True


def batch(producer: Producer, *numbers: int) -> PublishBatch:
    made = PublishBatch(producer)
    for number in numbers:
        made.add(message(sequence_id=number), number, 0, 1)
    producer.batches_pending += 1
    return made


async def test_a_copy_of_what_is_on_its_way_cannot_be_judged() -> None:
    async with broker_with() as (broker, _):
        topic = await broker.service.topic(NAME, create=True)
        connection = Connection()
        producer = Producer(ProducerIdentity(1, "p"), connection, 0)
        topic.publish(batch(producer, 0, 1))
        topic.publish(batch(producer, 1))
        assert not connection.answers
        while producer.batches_pending:
            await topic.ledger.set_property("wait", "x")
        assert [answer.type for answer in connection.answers] == [Command.SEND_RECEIPT] * 2 + [Command.SEND_ERROR]
        error = connection.answers[-1].send_error
        assert int(error.error) == ServerError.PERSISTENCE_ERROR
        assert error.message == f"[{TOPIC}][p]Cannot determine whether the message is a duplicate at this time"
        topic.publish(batch(producer, 1))
        assert connection.answers[-1].send_receipt.message_id.ledgerId == NOTHING_STORED[0]


async def test_a_snapshot_holds_nothing_that_is_not_stored() -> None:
    async with broker_with(deduplication_snapshot_entries=2) as (broker, client):
        await opened(client)
        await send(client, 0, 1)
        topic = broker.service.topics[TOPIC]
        deduplication, cursor = state(broker), topic.ledger.cursors[CURSOR_NAME]
        assert deduplication.check(batch(Producer(ProducerIdentity(1, "p"), Connection(), 0), 2, 3), ()) is None
        assert deduplication.last_sequence_id("p") == 3
        deduplication.maintain(0)
        deduplication.snapshot(topic.ledger.last_confirmed)
        assert cursor.properties == {"p": 1}
        # The broker dies before it stores what it took: the next one must take it again.
        await broker.service.unload(NAME)
        await client.expect(Command.CLOSE_PRODUCER)
        assert await opened(client) == 1
        assert [stored(one) for one in await send(client, 1, 2, 3)] == [False, True, True]


async def test_each_snapshot_between_confirmations_holds_what_is_confirmed_by_then() -> None:
    async with broker_with(deduplication_snapshot_entries=1) as (broker, _):
        topic = await broker.service.topic(NAME, create=True)
        producer = Producer(ProducerIdentity(1, "p"), Connection(), 0)
        deduplication, cursor = state(broker), topic.ledger.cursors[CURSOR_NAME]
        taken: list[tuple[Any, dict[str, int]]] = []
        deduplication._cursor = Recording(cursor, lambda: taken.append((cursor.mark_delete, dict(cursor.properties))))
        for number in range(5):
            topic.publish(batch(producer, number))
        while producer.batches_pending:
            await topic.ledger.set_property("wait", "x")
        first = topic.ledger.ledgers.first_position()[1]
        assert [(mark[1] - first, held["p"]) for mark, held in taken] == [(number, number) for number in range(5)]


class Recording:
    """A cursor that tells when it is asked to store what it holds."""

    def __init__(self, cursor: Any, asked: Callable[[], None]) -> None:
        self.properties = cursor.properties
        self.acknowledge_cumulative = cursor.acknowledge_cumulative
        self._cursor = cursor
        self._asked = asked

    def persist(self, done: Callable[[Any], None]) -> None:
        self._asked()
        self._cursor.persist(done)


async def test_what_was_not_stored_may_come_again() -> None:
    async with broker_with() as (broker, _):
        topic = await broker.service.topic(NAME, create=True)
        producer = Producer(ProducerIdentity(1, "p"), Connection(), 0)
        deduplication = state(broker)
        assert deduplication.check(batch(producer, 5), ()) is None
        assert deduplication.last_sequence_id("p") == 5
        deduplication.append_failed()
        assert deduplication.last_sequence_id("p") == -1
        assert deduplication.check(batch(producer, 5), {0: None}) is None
        assert topic.deduplication.last_sequence_id("p") == -1


async def test_what_was_stored_while_something_else_failed_is_no_news() -> None:
    """Appends that fail without having been begun say nothing of those that are under way, whose receipts nobody may
    hear any more."""
    async with broker_with() as (broker, _):
        topic = await broker.service.topic(NAME, create=True)
        connection = Connection()
        producer = Producer(ProducerIdentity(1, "p"), connection, 0)
        topic.publish(batch(producer, 0, 1))
        state(broker).append_failed()
        while producer.batches_pending:
            await topic.ledger.set_property("wait", "x")
        assert topic.last_sequence_id("p") == 1
        topic.publish(batch(producer, 1))
        assert connection.answers[-1].send_receipt.message_id.ledgerId == NOTHING_STORED[0]
        assert topic.number_of_entries == 2


async def test_a_refusal_that_nobody_heard_is_given_again() -> None:
    """And not for ever that it is not known whether the message is stored; what is on its way or stored is still told
    apart from what the end of its transaction keeps out."""
    async with broker_with() as (broker, _):
        await broker.service.topic(NAME, create=True)
        deduplication = state(broker)
        producer = Producer(ProducerIdentity(1, "p"), Connection(), 0)
        for _ in range(2):
            assert deduplication.check(batch(producer, 5, 6), (), {0: None, 1: None}) is None
            assert deduplication.last_sequence_id("p") == -1
        assert deduplication.check(batch(producer, 5), ()) is None
        assert deduplication.check(batch(producer, 5, 6), (), {0: None, 1: None}) == [
            DuplicateStatus.UNKNOWN,
            DuplicateStatus.NEW,
        ]
        deduplication.batch_stored(batch(producer, 5), (0, 0))
        assert deduplication.check(batch(producer, 5), (), {0: None}) == [DuplicateStatus.STORED]


async def test_a_snapshot_holds_what_is_stored_and_not_what_is_on_its_way() -> None:
    """Else the append could fail, a new owner would read the snapshot, and the producer's copy would be dropped."""
    async with broker_with() as (broker, client):
        await opened(client)
        await send(client, 0, 1)
        topic = broker.service.topics[TOPIC]
        cursor = topic.ledger.cursors[CURSOR_NAME]
        producer = Producer(ProducerIdentity(1, "p"), Connection(), 0)
        assert state(broker).check(batch(producer, 5), ()) is None
        state(broker).snapshot(topic.ledger.last_confirmed)
        assert cursor.properties == {"p": 1}


async def test_a_snapshot_stands_where_it_was_taken() -> None:
    """What is behind that is read again by the next owner, for the snapshot does not hold it."""
    async with broker_with() as (broker, client):
        await opened(client)
        await send(client, 0, 1, 2)
        topic = broker.service.topics[TOPIC]
        cursor = topic.ledger.cursors[CURSOR_NAME]
        ledger_id, last_entry_id = topic.ledger.last_confirmed
        state(broker).snapshot((ledger_id, last_entry_id - 1))
        assert cursor.mark_delete == (ledger_id, last_entry_id - 1)


async def test_a_new_owner_counts_a_chunked_message_by_its_last_chunk() -> None:
    async with broker_with() as (broker, client):
        for sent, last in ((2, -1), (3, 4)):
            await opened(client)
            for chunk_id in range(sent):
                content = message(
                    b"part", producer_name="p", sequence_id=4, chunk_id=chunk_id, num_chunks_from_msg=3, uuid="u"
                )
                client.send(Command.SEND, content, producer_id=1, sequence_id=4, is_chunk=True)
                assert stored(await client.expect(Command.SEND_RECEIPT))
            await broker.service.unload(NAME)
            await client.expect(Command.CLOSE_PRODUCER)
            assert await opened(client) == last
            await client.request(Command.CLOSE_PRODUCER, producer_id=1)


def test_a_producer_is_drained_when_its_last_batch_is_answered() -> None:
    producer = Producer(ProducerIdentity(1, "p"), Connection(), 0)
    first, second = batch(producer, 0), batch(producer, 1)
    drained: list[int] = []
    producer.when_drained(lambda: drained.append(producer.batches_pending))
    producer.stored(first, 1, 0)
    assert drained == []
    producer.stored(second, 1, 1)
    assert drained == [0]
