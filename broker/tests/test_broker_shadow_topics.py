"""The source of shadow topics: what these are told, and what no topic that is none takes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

from magnetar.broker.admin.brokers.replication_metrics import REPLICATION_METRICS, replication_values
from magnetar.broker.replicator_names import SOURCE_POSITION_PROPERTY
from magnetar.broker.testing.clusters import until
from magnetar.broker.testing.sessions import MemoryBroker, command_frame, message
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.metadata import checksum_ok, full_metadata, metadata_bounds

from broker.tests.conftest import Admin
from broker.tests.two_clusters import name_cluster, replicate

SOURCE: Final = "persistent://public/default/source"
SHADOW: Final = "persistent://public/default/shadow"
Command = pb.BaseCommand


class ShadowBroker:
    """A broker that says yes to all, and keeps what producers ask and send."""

    def __init__(self) -> None:
        self.producers: list[Any] = []
        self.sends: list[tuple[Any, bytes]] = []
        self.url = ""
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                size = int.from_bytes(frame[:4], "big")
                writer.write(self.answer(Command.FromString(frame[4 : 4 + size]), frame[4 + size :]))
        writer.close()

    def answer(self, command: Any, payload: bytes) -> bytes:
        if command.type == Command.CONNECT:
            flags = pb.FeatureFlags(supports_repl_dedup_by_lid_and_eid=True)
            return command_frame(Command.CONNECTED, server_version="shadow", protocol_version=21, feature_flags=flags)
        if command.type == Command.LOOKUP:
            return command_frame(
                Command.LOOKUP_RESPONSE,
                request_id=command.lookupTopic.request_id,
                brokerServiceUrl=self.url,
                response=pb.CommandLookupTopicResponse.Connect,
                authoritative=True,
            )
        if command.type == Command.PRODUCER:
            self.producers.append(command.producer)
            return command_frame(
                Command.PRODUCER_SUCCESS,
                request_id=command.producer.request_id,
                producer_name=command.producer.producer_name,
                producer_ready=True,
            )
        if command.type == Command.SEND:
            self.sends.append((command.send, payload))
            place = command.send.message_id
            return command_frame(
                Command.SEND_RECEIPT,
                producer_id=command.send.producer_id,
                sequence_id=place.ledgerId,
                highest_sequence_id=place.entryId,
                message_id=place,
            )
        if command.type == Command.CLOSE_PRODUCER:
            return command_frame(Command.SUCCESS, request_id=command.close_producer.request_id)
        return b""

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@contextlib.asynccontextmanager
async def shadowed(memory_broker: MemoryBroker) -> AsyncIterator[ShadowBroker]:
    """What the broker takes for its own cluster is one that serves shadow topics."""
    shadow = ShadowBroker()
    server = await asyncio.start_server(shadow.serve, "127.0.0.1", 0)
    shadow.url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await name_cluster(memory_broker, memory_broker.running.settings.cluster_name, shadow.url)
    try:
        yield shadow
    finally:
        server.close()
        shadow.close()


async def have_shadows(broker: MemoryBroker, *shadows: str) -> None:
    policies = broker.running.context.topic_policies
    await policies.update(TopicName.parse(SOURCE), lambda own: {**own, "shadowTopics": list(shadows)})


async def test_a_shadow_is_told_of_each_entry_and_gets_no_payload(memory_broker: MemoryBroker) -> None:
    async with shadowed(memory_broker) as shadow:
        client = await memory_broker.connect()
        await client.producer(SOURCE, producer_name="p")
        await client.publish(1)
        await have_shadows(memory_broker, SHADOW)
        await until(lambda: shadow.producers)
        (asked,) = shadow.producers
        assert (asked.topic, asked.producer_name) == (SHADOW, f"pulsar.repl-{SOURCE}-->{SHADOW}")
        await client.publish(2, first=1)
        await until(lambda: len(shadow.sends) == 2)
        topic = await memory_broker.service.topic(TopicName.parse(SOURCE), create=False)
        ledger_id, entry_id = topic.ledger.last_confirmed
        for index, (send, payload) in enumerate(shadow.sends):
            place = (ledger_id, entry_id - 1 + index)
            assert (send.message_id.ledgerId, send.message_id.entryId) == place
            metadata = full_metadata(payload)
            assert checksum_ok(payload, 0, len(payload))
            assert metadata_bounds(payload)[1] == len(payload)
            assert (metadata.producer_name, metadata.sequence_id) == ("p", 1 + index)
            assert metadata.replicated_from == memory_broker.running.settings.cluster_name
            assert {one.key: one.value for one in metadata.properties} == {
                SOURCE_POSITION_PROPERTY: f"{place[0]}:{place[1]}"
            }
        replicator = topic.shadow_replicators.running[SHADOW]
        await until(lambda: replicator.backlog == 0)
        # Nothing of it is stored, and nothing is held back.
        assert list(topic.ledger.cursors) == []
        assert topic.replicators is None
        await have_shadows(memory_broker)
        await until(lambda: not topic.shadow_replicators.running)


async def test_shadows_are_in_statistics_and_metrics_as_other_replicators_are(
    memory_broker: MemoryBroker, admin: Admin
) -> None:
    async with shadowed(memory_broker) as shadow:
        client = await memory_broker.connect()
        await client.producer(SOURCE, producer_name="p")
        await have_shadows(memory_broker, SHADOW)
        await until(lambda: shadow.producers)
        await client.publish(3)
        topic = await memory_broker.service.topic(TopicName.parse(SOURCE), create=False)
        await until(lambda: len(shadow.sends) == 3 and not topic.shadow_replicators.running[SHADOW].backlog)
        memory_broker.service.upkeep._update_rates(topic)
        status, stats = await admin("GET", "/admin/v2/persistent/public/default/source/stats")
        told = stats["replication"][SHADOW]
        assert (status, told["connected"], told["state"], told["msgOutCount"]) == (200, True, "Started", 3)
        assert (told["replicationBacklog"], told["outboundConnection"]) == (0, shadow.url.removeprefix("pulsar://"))
        assert told["msgRateOut"] > 0
        status, by_namespace = await admin("GET", "/admin/v2/broker-stats/topics")
        bundles = [one for one in by_namespace["public/default"].values() if SOURCE in one.get("persistent", {})]
        assert bundles[0]["persistent"][SOURCE]["replication"][SHADOW]["connected"]
        status, dump = await admin("GET", "/admin/v2/broker-stats/metrics")
        (of_namespace,) = [one for one in dump if one["dimensions"].get("namespace") == "public/default"]
        assert of_namespace["metrics"]["brk_no_of_replicators"] == 1
        ((remote, values),) = replication_values(topic)
        assert remote == SHADOW
        assert dict(zip([name for name, _, _ in REPLICATION_METRICS], values, strict=True)) == {
            "pulsar_replication_rate_in": 0,
            "pulsar_replication_rate_out": told["msgRateOut"],
            "pulsar_replication_throughput_in": 0,
            "pulsar_replication_throughput_out": told["msgThroughputOut"],
            "pulsar_replication_backlog": 0,
            "pulsar_replication_rate_expired": 0,
            "pulsar_replication_connected_count": 1,
            "pulsar_replication_disconnected_count": 0,
            "pulsar_replication_delay_in_seconds": 0,
        }


async def test_a_partition_tells_the_partition_of_the_same_number(memory_broker: MemoryBroker) -> None:
    async with shadowed(memory_broker) as shadow:
        await memory_broker.service.partitioned.create(TopicName.parse(SOURCE), 2)
        await have_shadows(memory_broker, SHADOW)
        client = await memory_broker.connect()
        await client.producer(f"{SOURCE}-partition-1", producer_name="p")
        await until(lambda: shadow.producers)
        assert [one.topic for one in shadow.producers] == [f"{SHADOW}-partition-1"]


async def test_no_topic_that_is_no_shadow_takes_a_message_by_its_position(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await memory_broker.service.topic(TopicName.parse(SHADOW), create=True)
    await client.producer(SHADOW, producer_name="pulsar.repl-x")
    place = pb.MessageIdData(ledgerId=1, entryId=2)
    client.send(Command.SEND, message(b""), producer_id=1, sequence_id=7, message_id=place)
    refused: Any = (await client.expect(Command.SEND_ERROR)).body
    assert (refused.sequence_id, refused.error) == (7, pb.NotAllowedError)
    await client.publish(1)


async def test_topics_without_shadows_have_nothing_to_do_with_them(memory_broker: MemoryBroker) -> None:
    await replicate(memory_broker, memory_broker.running.settings.cluster_name)
    topic = await memory_broker.service.topic(TopicName.parse(SOURCE), create=True)
    assert topic.shadow_replicators is None
