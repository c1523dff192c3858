"""What the replicators of other clusters send: receipts by position, duplicates, markers, restarts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.policies import PolicySettings
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, Received, ShiftedClock, message
from magnetar.broker.topics.deduplication import CURSOR_NAME
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.conftest import Admin

Command = pb.BaseCommand
TOPIC: Final = "persistent://public/default/topic"
NAME: Final = TopicName.parse(TOPIC)
REPLICATOR: Final = "pulsar.repl.east-->standalone"
PROPERTY: Final = "__MSG_PROP_REPL_SOURCE_POSITION"
NOWHERE: Final = (2**64 - 1, 2**64 - 1)
MARKER: Final = 2**63


@asynccontextmanager
async def broker_with(*, deduplication: bool = True, **settings: Any) -> AsyncIterator[MemoryBroker]:
    policies = PolicySettings(deduplication=deduplication, **settings)
    async with MemoryBroker(BrokerSettings(policies=policies), clock=ShiftedClock()) as broker:
        yield broker


async def connected(broker: MemoryBroker, *, positions: bool = True) -> ProtocolClient:
    """A client as a replicator's: with `positions`, it matches receipts by them."""
    client = await ProtocolClient.open(broker.port)
    flags = pb.FeatureFlags(supports_repl_dedup_by_lid_and_eid=positions)
    client.send(Command.CONNECT, client_version="test", protocol_version=21, feature_flags=flags)
    answer = await client.expect(Command.CONNECTED)
    assert answer.body.feature_flags.supports_repl_dedup_by_lid_and_eid
    broker._clients.append(client)
    return client


async def replicator(broker: MemoryBroker, *, positions: bool = True, name: str = REPLICATOR) -> ProtocolClient:
    client = await connected(broker, positions=positions)
    await client.producer(TOPIC, producer_name=name)
    return client


def replicated(sequence_id: int, position: str | None = None, **fields: Any) -> bytes:
    """headersAndPayload of a message of producer `p` in cluster `east`."""
    properties = [] if position is None else [pb.KeyValue(key=PROPERTY, value=position)]
    return message(
        b"m%d" % sequence_id, sequence_id=sequence_id, replicated_from="east", properties=properties, **fields
    )


async def send(client: ProtocolClient, *messages: tuple[int, str | None], **fields: Any) -> list[Received]:
    """Messages of these sequence ids and source positions, in one write; the answers in the order they came."""
    for sequence_id, position in messages:
        client.send(Command.SEND, replicated(sequence_id, position, **fields), producer_id=1, sequence_id=sequence_id)
    return [await client._take(lambda one: one.name in ("SEND_RECEIPT", "SEND_ERROR")) for _ in messages]


def receipts(answers: list[Received]) -> list[tuple[int, int, bool]]:
    """Of each receipt: both sequence ids, and whether it says that something was stored."""
    assert {answer.name for answer in answers} == {"SEND_RECEIPT"}, answers
    bodies = [answer.body for answer in answers]
    return [
        (
            body.sequence_id,
            body.highest_sequence_id,
            (body.message_id.ledgerId, body.message_id.entryId) != NOWHERE,
        )
        for body in bodies
    ]


def entries(broker: MemoryBroker) -> int:
    count: int = broker.service.topics[TOPIC].number_of_entries
    return count


@pytest.mark.parametrize("deduplication", [False, True])
async def test_receipts_have_the_position_at_the_source(*, deduplication: bool) -> None:
    async with broker_with(deduplication=deduplication) as broker:
        client = await replicator(broker)
        answers = receipts(await send(client, (40, "7:3"), (2, "7:4"), (41, "9:0")))
        assert answers == [(7, 3, True), (7, 4, True), (9, 0, True)]
        assert entries(broker) == 3


async def test_what_is_sent_again_is_stored_once_and_answered_with_the_same_position() -> None:
    async with broker_with() as broker:
        client = await replicator(broker)
        await send(client, (0, "7:8"), (1, "7:9"), (2, "8:0"))
        again = receipts(await send(client, (0, "7:8"), (3, "8:1"), (2, "8:0"), (9, "7:10"), (4, "8:2")))
        assert again == [(7, 8, False), (8, 1, True), (8, 0, False), (7, 10, False), (8, 2, True)]
        assert entries(broker) == 5


async def test_without_deduplication_what_is_sent_again_is_stored_again() -> None:
    async with broker_with(deduplication=False) as broker:
        client = await replicator(broker)
        assert receipts(await send(client, (0, "7:8"), (0, "7:8"), (0, "7:1"))) == [
            (7, 8, True),
            (7, 8, True),
            (7, 1, True),
        ]
        assert entries(broker) == 3


@pytest.mark.parametrize("deduplication", [False, True])
@pytest.mark.parametrize(
    "position", [None, "", "7", "7:", ":7", "7:8:9", "-1:3", "a:b", "7:٣", "9223372036854775808:0", "1" * 500 + ":0"]
)
async def test_a_message_without_a_position_is_an_error_and_not_stored(
    position: str | None, *, deduplication: bool
) -> None:
    async with broker_with(deduplication=deduplication) as broker:
        client = await replicator(broker)
        good, bad, next_one = await send(client, (5, "7:8"), (6, position), (7, "7:9"))
        assert (bad.name, bad.body.sequence_id, bad.body.error) == ("SEND_ERROR", 6, pb.PersistenceError)
        assert PROPERTY in bad.body.message
        assert receipts([good, next_one]) == [(7, 8, True), (7, 9, True)]
        assert entries(broker) == 2


async def test_markers_are_stored_are_no_duplicates_and_have_receipts_of_their_own() -> None:
    async with broker_with() as broker:
        client = await replicator(broker)
        for sequence_id, position in ((0, "7:8"), (0, "7:8"), (4, None)):
            content = replicated(sequence_id, position, marker_type=10)
            client.send(Command.SEND, content, producer_id=1, sequence_id=sequence_id, marker=True)
        answers = [await client.expect(Command.SEND_RECEIPT) for _ in range(3)]
        assert receipts(answers) == [(0, MARKER, True), (0, MARKER, True), (4, MARKER, True)]
        assert receipts(await send(client, (1, "7:8"))) == [(7, 8, True)]
        reader = await broker.connect()
        await reader.consumer(TOPIC, initialPosition=1)
        assert [(await reader.messages(1, permits=10))[0].payload.endswith(b"m1")] == [True]


async def test_a_client_without_the_flag_is_answered_by_sequence_ids_and_known_by_its_first_producer() -> None:
    async with broker_with() as broker:
        client = await replicator(broker, positions=False)
        assert receipts(await send(client, (0, "7:8"), (1, None))) == [(0, 0, True), (1, 0, True)]
        assert receipts(await send(client, (1, "9:9"), (0, None))) == [(1, 0, False), (0, 0, False)]
        assert receipts(await send(client, (0, None), producer_name="other")) == [(0, 0, True)]
        # The SEND's own number counts, whatever the message says.
        answers = []
        for in_metadata in (0, 7):
            client.send(Command.SEND, replicated(in_metadata), producer_id=1, sequence_id=2)
            answers.append(await client.expect(Command.SEND_RECEIPT))
        assert receipts(answers) == [(2, 0, True), (2, 0, False)]


async def test_chunks_count_by_the_last_one_without_positions_and_one_by_one_with_them() -> None:
    async with broker_with() as broker:
        for positions, wanted in ((False, [True, True, False]), (True, [False, False, False])):
            client = await replicator(broker, positions=positions)
            for stored_before in (False, True):
                found = []
                for chunk in range(3):
                    fields = {"chunk_id": chunk, "num_chunks_from_msg": 3, "uuid": "u"}
                    content = replicated(4, f"3:{chunk}", **fields)
                    client.send(Command.SEND, content, producer_id=1, sequence_id=4, is_chunk=True)
                    found += receipts([await client.expect(Command.SEND_RECEIPT)])
                assert [one[2] for one in found] == (wanted if stored_before else [True] * 3)
            await client.close()
            await broker.service.delete(NAME, force=True)


@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("snapshot_entries", [1, 2, 1_000])
@pytest.mark.parametrize("kill", [False, True])
async def test_the_next_owner_knows_what_is_stored(*, positions: bool, snapshot_entries: int, kill: bool) -> None:
    async with broker_with(deduplication_snapshot_entries=snapshot_entries) as broker:
        client = await replicator(broker, positions=positions)
        messages = [(number, f"{7 + number // 3}:{number % 3}") for number in range(5)]
        await send(client, *messages)
        if kill:
            await broker.service.topics[TOPIC].abandon()
            broker.service._forget(broker.service.topics[TOPIC])
        await broker.stop()
        await broker.start()
        client = await replicator(broker, positions=positions)
        answers = receipts(await send(client, *messages, (5, "8:2")))
        assert [one[2] for one in answers] == [False] * 5 + [True]
        assert broker.service.topics[TOPIC].messages_in == 1


async def test_a_snapshot_has_apaches_keys_and_one_of_apaches_is_taken() -> None:
    async with broker_with(deduplication_snapshot_entries=1) as broker:
        client = await replicator(broker)
        await send(client, (0, "7:8"))
        cursor = broker.service.topics[TOPIC].ledger.cursors[CURSOR_NAME]
        assert cursor.properties == {f"{REPLICATOR}_LID": 7, f"{REPLICATOR}_EID": 8}
        cursor.properties.update({f"{REPLICATOR}_LID": 70, "pulsar.repl.lost-->standalone_LID": 1, "x_LID": 3})
        await broker.service.topics[TOPIC].ledger.cursors[CURSOR_NAME].close()
        await broker.service.unload(NAME)
        client = await replicator(broker)
        assert receipts(await send(client, (0, "70:8"), (1, "70:9"))) == [(70, 8, False), (70, 9, True)]
        assert broker.service.topics[TOPIC].deduplication.stored == {"x_LID": 3}


async def test_a_local_producer_is_not_taken_for_its_namesake_elsewhere() -> None:
    async with broker_with() as broker:
        client = await replicator(broker)
        await send(client, (0, "7:0"), (9, "7:1"))
        await broker.service.unload(NAME)
        local = await broker.connect()
        body = await local.producer(TOPIC, producer_name="p")
        assert body.last_sequence_id == -1
        assert len(await local.publish(2)) == 2
        assert entries(broker) == 4


async def test_what_was_not_stored_may_come_again() -> None:
    async with broker_with() as broker:
        client = await replicator(broker)
        await send(client, (0, "7:0"))
        deduplication = broker.service.topics[TOPIC].deduplication
        assert deduplication._sources.take(deduplication._sources.key_of(REPLICATOR), (7, 1))
        (answer,) = await send(client, (1, "7:1"))
        assert (answer.name, answer.body.error) == ("SEND_ERROR", pb.PersistenceError)
        deduplication.append_failed()
        assert receipts(await send(client, (1, "7:1"))) == [(7, 1, True)]


async def test_replicators_of_several_clusters_do_not_mix() -> None:
    async with broker_with() as broker:
        east = await replicator(broker)
        west = await replicator(broker, name="pulsar.repl.west-->standalone")
        assert receipts(await send(east, (0, "7:0"))) == [(7, 0, True)]
        assert receipts(await send(west, (0, "7:0"))) == [(7, 0, True)]


async def test_replicators_are_hidden_from_publishers_and_count_for_no_limit(
    memory_broker: MemoryBroker, admin: Admin
) -> None:
    await admin.check(("POST", "/admin/v2/namespaces/public/default/maxProducersPerTopic", 1, 204, None))
    client = await replicator(memory_broker)
    await send(client, (0, "7:0"), (1, "7:1"))
    local = await memory_broker.connect()
    await local.producer(TOPIC, producer_name="p")
    await replicator(memory_broker, name="pulsar.repl.west")
    status, stats = await admin("GET", "/admin/v2/persistent/public/default/topic/stats")
    assert status == 200
    assert [one["producerName"] for one in stats["publishers"]] == ["p"]
    inbound = stats["replication"]
    assert set(inbound) == {"east", "west"}
    assert (inbound["east"]["msgInCount"], inbound["east"]["connected"]) == (2, False)
    assert inbound["east"]["inboundConnection"].endswith(client._writer.get_extra_info("sockname")[1].__str__())
    assert inbound["east"]["inboundConnectedSince"].endswith("Z")
    refused = await local.request(Command.PRODUCER, topic=TOPIC, producer_id=2, producer_name="q")
    assert refused.body.error == pb.ProducerBusy


async def test_where_encryption_is_required_a_replicators_messages_are_looked_at_one_by_one(
    memory_broker: MemoryBroker, admin: Admin
) -> None:
    client = await replicator(memory_broker)
    await admin.check(("POST", "/admin/v2/namespaces/public/default/encryptionRequired", True, 204, None))
    keys = [pb.EncryptionKeys(key="k", value=b"v")]
    client.send(Command.SEND, replicated(0, "7:0", encryption_keys=keys), producer_id=1, sequence_id=0)
    assert receipts([await client.expect(Command.SEND_RECEIPT)]) == [(7, 0, True)]
    (answer,) = await send(client, (1, "7:1"))
    assert (answer.name, answer.body.error, answer.body.sequence_id) == ("SEND_ERROR", pb.MetadataError, 1)


async def test_what_came_after_a_refused_message_waits_for_it_and_the_refused_one_is_not_taken_for_a_duplicate(
    memory_broker: MemoryBroker, admin: Admin
) -> None:
    policy = "/admin/v2/namespaces/public/default/"
    await admin.check(("POST", policy + "deduplication", True, 204, None))
    client = await replicator(memory_broker)
    await admin.check(("POST", policy + "encryptionRequired", True, 204, None))
    keys = [pb.EncryptionKeys(key="k", value=b"v")]
    client.send(Command.SEND, replicated(0, "7:0"), producer_id=1, sequence_id=0)
    client.send(Command.SEND, replicated(1, "7:1", encryption_keys=keys), producer_id=1, sequence_id=1)
    refused = [await client.expect(Command.SEND_ERROR) for _ in range(2)]
    assert [answer.body.error for answer in refused] == [pb.MetadataError, pb.PersistenceError]
    await admin.check(("POST", policy + "encryptionRequired", False, 204, None))
    assert receipts(await send(client, (0, "7:0"), (1, "7:1"))) == [(7, 0, True), (7, 1, True)]
    assert entries(memory_broker) == 2


async def test_a_replicator_that_connects_anew_may_go_on_without_a_refused_message(
    memory_broker: MemoryBroker, admin: Admin
) -> None:
    policy = "/admin/v2/namespaces/public/default/"
    await admin.check(("POST", policy + "deduplication", True, 204, None))
    client = await replicator(memory_broker)
    await admin.check(("POST", policy + "encryptionRequired", True, 204, None))
    (answer,) = await send(client, (0, "7:0"))
    assert answer.body.error == pb.MetadataError
    await client.request(Command.CLOSE_PRODUCER, producer_id=1)
    client = await replicator(memory_broker)
    keys = [pb.EncryptionKeys(key="k", value=b"v")]
    client.send(Command.SEND, replicated(1, "7:1", encryption_keys=keys), producer_id=1, sequence_id=1)
    assert receipts([await client.expect(Command.SEND_RECEIPT)]) == [(7, 1, True)]


async def test_what_came_after_a_damaged_message_is_not_stored_until_the_replicator_connects_anew() -> None:
    async with broker_with() as broker:
        client = await replicator(broker)
        damaged = bytearray(replicated(0, "7:0"))
        damaged[-1] ^= 1
        client.send(Command.SEND, bytes(damaged), producer_id=1, sequence_id=0)
        (first,) = await send(client, (1, "7:1"))
        second = await client.expect(Command.SEND_ERROR)
        assert {first.body.error, second.body.error} == {pb.ChecksumError, pb.PersistenceError}
        assert entries(broker) == 0
        await client.request(Command.CLOSE_PRODUCER, producer_id=1)
        client = await replicator(broker)
        assert receipts(await send(client, (0, "7:0"), (1, "7:1"))) == [(7, 0, True), (7, 1, True)]
