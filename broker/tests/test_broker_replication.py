"""Two clusters with a configuration store each: what is published in one arrives in the other."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from magnetar.broker.admin.brokers.replication_metrics import REPLICATION_METRICS, replication_values
from magnetar.broker.replication.replicator import Replicator
from magnetar.broker.replication.topic_replicators import TopicReplicators
from magnetar.broker.schema.wire import version_bytes
from magnetar.broker.testing.clusters import until
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.two_clusters import (
    TOPIC,
    caught_up,
    name_cluster,
    numbers,
    publish,
    replicate,
    stored,
    topic_of,
    two_clusters,
)

COUNT = 300


def record_schema(field: str) -> pb.Schema:
    """A record with one field that has no default: incompatible with every other one."""
    text = f'{{"type":"record","name":"R","fields":[{{"name":"{field}","type":"string"}}]}}'
    return pb.Schema(name="R", type=pb.Schema.Avro, schema_data=text.encode())


async def register(at: MemoryBroker, schema: pb.Schema) -> bytes:
    """Register it as the topic's next version, which is returned."""
    await topic_of(at)
    client = await at.connect()
    answer: Any = await client.request(pb.BaseCommand.GET_OR_CREATE_SCHEMA, topic=TOPIC, schema=schema)
    version: bytes = answer.body.schema_version
    return version


async def test_all_arrives_in_order_and_says_where_it_comes_from() -> None:
    async with two_clusters() as (east, west):
        await name_cluster(east[0], "west", west[0].running.settings.service_url)
        await publish(east[0], 0, COUNT)
        await replicate(east[0], "east", "west")
        await caught_up(east[0])
        arrived = await stored(west[0])
        assert numbers(arrived) == list(range(COUNT))
        assert {entry.replicated_from for entry in arrived} == {"east"}
        topic = await topic_of(east[0])
        assert list(topic.subscriptions) == []
        assert topic.replicators is not None
        stats = topic.replicators.stats()["west"]
        assert (stats["connected"], stats["state"], stats["reason"]) == (True, "Started", "")
        assert (stats["msgOutCount"], stats["replicationBacklog"]) == (COUNT, 0)
        assert stats["outboundConnection"] == west[0].running.settings.service_url.removeprefix("pulsar://")
        since = datetime.fromisoformat(stats["outboundConnectedSince"])
        assert abs(datetime.now(UTC) - since) < timedelta(minutes=10)
        ((cluster, values),) = replication_values(topic)
        told = dict(zip([name for name, _, _ in REPLICATION_METRICS], values, strict=True))
        assert (cluster, told["pulsar_replication_connected_count"], told["pulsar_replication_backlog"]) == (
            "west",
            1,
            0,
        )


async def test_a_topic_that_was_replicated_when_it_was_loaded_follows_later_policies() -> None:
    async with two_clusters() as (east, west):
        await name_cluster(east[0], "west", west[0].running.settings.service_url)
        await replicate(east[0], "east", "west")
        topic = await topic_of(east[0])
        replicators = topic.replicators
        assert replicators is not None
        assert list(replicators.running) == ["west"]
        await replicate(east[0], "east")
        await until(lambda: not replicators.running)


async def test_a_schema_is_registered_there_under_that_clusters_version_and_a_refused_one_is_told() -> None:
    async with two_clusters() as (east, west):
        await name_cluster(east[0], "west", west[0].running.settings.service_url)
        # Another schema takes the first version there, so that versions differ.
        first, second = (record_schema(name) for name in ("a", "b"))
        await register(west[0], first)
        version = await register(east[0], second)
        await publish(east[0], 0, 3, schema_version=version)
        await replicate(east[0], "east", "west")
        topic = await topic_of(east[0])
        await until(lambda: topic.replicators and (one := topic.replicators.running.get("west")) and one.detail)
        assert topic.replicators is not None
        stats = topic.replicators.stats()["west"]
        assert (stats["reason"], stats["replicationBacklog"], stats["connected"]) == ("refused schema", 3, True)
        assert "field a of record R" in stats["reasonDetail"]
        resources = west[0].running.context.service.resources
        await resources.documents.update(
            resources.namespace_path(TopicName.parse(TOPIC).namespace_name),
            lambda document: {**document, "schema_compatibility_strategy": "ALWAYS_COMPATIBLE"},
        )
        await caught_up(east[0])
        arrived = await stored(west[0])
        assert numbers(arrived) == [0, 1, 2]
        assert {entry.schema_version for entry in arrived} == {version_bytes(1)}
        assert version == version_bytes(0)


@pytest.mark.parametrize("version", ["deleted", "never there", "too short"])
async def test_a_message_whose_schema_is_gone_does_not_hold_back_the_topic_for_good(version: str) -> None:
    async with two_clusters() as (east, west):
        await name_cluster(east[0], "west", west[0].running.settings.service_url)
        named = {"never there": version_bytes(7), "too short": b"odd"}.get(version, b"")
        if version == "deleted":
            named = await register(east[0], record_schema("a"))
            await publish(east[0], 0, 2, schema_version=named)
            await east[0].service.schemas.delete(TopicName.parse(TOPIC).schema_name, force=False)
        else:
            await publish(east[0], 0, 2, schema_version=named)
        await publish(east[0], 2, 2)
        await replicate(east[0], "east", "west")
        await caught_up(east[0])
        arrived = await stored(west[0])
        assert numbers(arrived) == [0, 1, 2, 3]
        assert [entry.HasField("schema_version") for entry in arrived] == [False] * 4
        assert [entry.schema_version for entry in await stored(east[0])] == [named, named, b"", b""]


async def test_another_bound_of_what_is_under_way_holds_at_once_in_replicators_that_run() -> None:
    async with two_clusters() as (east, west):
        await name_cluster(east[0], "west", west[0].running.settings.service_url)
        await replicate(east[0], "east", "west")
        await publish(east[0], 0, 1)
        await caught_up(east[0])
        replicators = (await topic_of(east[0])).replicators
        assert replicators is not None
        replicator, dynamic = replicators.running["west"], east[0].running.context.dynamic
        before, _ = replicator._allowance()
        await dynamic.set("replicationProducerQueueSize", "3")
        assert replicator._allowance()[0] == 3
        await publish(east[0], 1, COUNT)
        await caught_up(east[0])
        assert numbers(await stored(west[0])) == list(range(COUNT + 1))
        await dynamic.remove("replicationProducerQueueSize")
        assert replicator._allowance()[0] == before


async def test_what_comes_from_there_does_not_go_back() -> None:
    async with two_clusters() as (east, west):
        await name_cluster(east[0], "west", west[0].running.settings.service_url)
        await name_cluster(west[0], "east", east[0].running.settings.service_url)
        for cluster in (east, west):
            await topic_of(cluster[0])
            await replicate(cluster[0], "east", "west")
        await publish(east[0], 0, 20, "e")
        await publish(west[0], 0, 20, "w")
        for cluster in (east, west):
            await caught_up(cluster[0])
        for cluster in (east, west):
            await caught_up(cluster[0])
            entries = await stored(cluster[0])
            assert numbers(entries, "e") == numbers(entries, "w") == list(range(20))


async def test_a_cluster_without_a_record_is_told_and_reached_once_it_has_one() -> None:
    async with two_clusters() as (east, west):
        await publish(east[0], 0, 5)
        await replicate(east[0], "east", "west")
        topic = await topic_of(east[0])
        await until(lambda: topic.replicators and (one := topic.replicators.running.get("west")) and one.detail)
        assert topic.replicators is not None
        stats = topic.replicators.stats()["west"]
        assert (stats["connected"], stats["reason"], stats["replicationBacklog"]) == (False, "no remote", 5)
        await name_cluster(east[0], "west", west[0].running.settings.service_url)
        await caught_up(east[0])
        assert numbers(await stored(west[0])) == list(range(5))


async def test_nothing_is_lost_when_the_topic_is_unloaded_on_either_side_under_way() -> None:
    async with two_clusters() as (east, west):
        await name_cluster(east[0], "west", west[0].running.settings.service_url)
        await topic_of(east[0])
        await replicate(east[0], "east", "west")
        name = TopicName.parse(TOPIC)
        for round_ in range(4):
            await publish(east[0], round_ * 50, 50)
            await (east if round_ % 2 else west)[0].running.context.service.unload(name)
        await caught_up(east[0])
        arrived = numbers(await stored(west[0]))
        firsts = list(dict.fromkeys(arrived))
        assert firsts == list(range(200))


async def test_a_removed_cluster_has_no_cursor_and_a_returned_one_begins_anew() -> None:
    async with two_clusters("latest") as (east, west):
        await name_cluster(east[0], "west", west[0].running.settings.service_url)
        topic = await topic_of(east[0])
        await replicate(east[0], "east", "west")
        await until(lambda: topic.replicators and topic.replicators.running)
        await publish(east[0], 0, 5)
        await caught_up(east[0])
        await replicate(east[0], "east")
        await until(lambda: "pulsar.repl.west" not in topic.ledger.cursors)
        await publish(east[0], 5, 5)
        await replicate(east[0], "east", "west")
        await until(lambda: topic.replicators and topic.replicators.running)
        await publish(east[0], 10, 5)
        await caught_up(east[0])
        assert numbers(await stored(west[0])) == [*range(5), *range(10, 15)]


async def test_a_cluster_that_returns_while_its_replicator_ends_keeps_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait_until_idle, ending, may_go_on = Replicator.wait_until_idle, asyncio.Event(), asyncio.Event()

    async def wait_slowly(self: Replicator) -> None:
        ending.set()
        await may_go_on.wait()
        await wait_until_idle(self)

    async with two_clusters("latest") as (east, west):
        await name_cluster(east[0], "west", west[0].running.settings.service_url)
        topic = await topic_of(east[0])
        await replicate(east[0], "east", "west")
        await publish(east[0], 0, 5)
        await caught_up(east[0])
        monkeypatch.setattr(Replicator, "wait_until_idle", wait_slowly)
        await replicate(east[0], "east")
        await ending.wait()
        await publish(east[0], 5, 5)
        await replicate(east[0], "east", "west")
        await until(lambda: topic.policies.remote_clusters)
        may_go_on.set()
        await publish(east[0], 10, 5)
        await caught_up(east[0])
        assert numbers(await stored(west[0])) == list(range(15))


async def test_what_is_published_as_soon_as_a_topic_is_there_is_replicated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though replication begins at the end of topics that were there before: nobody gets it before the cursor is."""
    settle_once, may_go_on = TopicReplicators._settle_once, asyncio.Event()

    async def settle_slowly(self: TopicReplicators) -> None:
        await may_go_on.wait()
        await settle_once(self)

    monkeypatch.setattr(TopicReplicators, "_settle_once", settle_slowly)
    async with two_clusters("latest") as (east, west):
        await name_cluster(east[0], "west", west[0].running.settings.service_url)
        await replicate(east[0], "east", "west")
        publishing = asyncio.ensure_future(publish(east[0], 0, 20))
        await asyncio.sleep(0.05)
        assert not publishing.done()
        may_go_on.set()
        await publishing
        await caught_up(east[0])
        assert numbers(await stored(west[0])) == list(range(20))
