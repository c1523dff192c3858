"""LOOKUP, PARTITIONED_METADATA, GET_TOPICS_OF_NAMESPACE and WATCH_TOPIC_LIST as clients see them."""

from __future__ import annotations

import threading

import pytest
from magnetar.broker.session import topic_lists as session_topics
from magnetar.broker.settings.broker import AutoCreationSettings, BrokerSettings
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.broker.topics.patterns import brokers_match
from magnetar.core.hashing import topics_hash
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

Command = pb.BaseCommand
NAMESPACE = "persistent://public/default/"
LOOKUPS = [Command.LOOKUP, Command.PARTITIONED_METADATA]


async def test_lookup_names_this_broker(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    answer = (await client.request(Command.LOOKUP, topic=NAMESPACE + "t")).body
    assert answer.response == pb.CommandLookupTopicResponse.Connect
    assert answer.authoritative
    assert answer.brokerServiceUrl == f"pulsar://127.0.0.1:{memory_broker.port}"


@pytest.mark.parametrize("kind", LOOKUPS)
@pytest.mark.parametrize(
    ("topic", "error"),
    [
        ("persistent://a/b", pb.InvalidTopicName),
        ("persistent://a/b/c/d/e", pb.InvalidTopicName),
        ("odd://public/default/t", pb.InvalidTopicName),
        ("persistent://pub lic/default/t", pb.InvalidTopicName),
        ("persistent://public/none/t", pb.TopicNotFound),
        ("", pb.InvalidTopicName),
    ],
)
async def test_lookup_refusals(memory_broker: MemoryBroker, kind: pb.BaseCommand.Type, topic: str, error: int) -> None:
    client = await memory_broker.connect()
    answer = await client.request(kind, topic=topic)
    assert answer.body.error == error, answer
    assert answer.name.endswith("RESPONSE")


@pytest.mark.parametrize("kind", LOOKUPS)
async def test_lookup_throttle(kind: pb.BaseCommand.Type) -> None:
    async with MemoryBroker(BrokerSettings(lookups_max=0)) as broker:
        client = await broker.connect()
        assert (await client.request(kind, topic="t")).body.error == pb.TooManyRequests


async def test_lookup_places_are_given_back() -> None:
    async with MemoryBroker(BrokerSettings(lookups_max=1)) as broker:
        client = await broker.connect()
        for topic in ("t", "persistent://a/b", "persistent://public/none/t", "t"):
            await client.request(Command.LOOKUP, topic=topic)
        assert (await client.request(Command.LOOKUP, topic="t")).body.response == pb.CommandLookupTopicResponse.Connect
        assert broker.running.context.lookup._known.running == 0


async def test_partitioned_metadata(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await memory_broker.service.partitioned.create(TopicName.parse(NAMESPACE + "parts"), 3)
    answer = (await client.request(Command.PARTITIONED_METADATA, topic="parts")).body
    assert (answer.response, answer.partitions) == (pb.CommandPartitionedTopicMetadataResponse.Success, 3)
    assert (await client.request(Command.PARTITIONED_METADATA, topic="new")).body.partitions == 0
    assert (await client.request(Command.PARTITIONED_METADATA, topic="parts-partition-1")).body.partitions == 0


async def test_partitioned_metadata_without_creation(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    kind = Command.PARTITIONED_METADATA
    missing = await client.request(kind, topic="t", metadata_auto_creation_enabled=False)
    assert missing.body.error == pb.TopicNotFound
    await client.producer("t")
    present = await client.request(kind, topic="t", metadata_auto_creation_enabled=False)
    assert present.body.response == pb.CommandPartitionedTopicMetadataResponse.Success
    assert present.body.partitions == 0


async def test_partitioned_metadata_creates_partitions() -> None:
    settings = BrokerSettings(auto_creation=AutoCreationSettings(partitioned=True, default_partitions=4))
    async with MemoryBroker(settings) as broker:
        client = await broker.connect()
        for _ in range(2):
            assert (await client.request(Command.PARTITIONED_METADATA, topic="t")).body.partitions == 4
        await client.producer("t-partition-3")
        refused = await client.request(Command.PRODUCER, topic="t-partition-4", producer_id=2)
        assert refused.body.error == pb.TopicNotFound


async def test_partitioned_metadata_where_nothing_is_created() -> None:
    async with MemoryBroker(BrokerSettings(auto_creation=AutoCreationSettings(topics_allowed=False))) as broker:
        client = await broker.connect()
        assert (await client.request(Command.PARTITIONED_METADATA, topic="t")).body.error == pb.TopicNotFound
        assert (await client.request(Command.PRODUCER, topic="t", producer_id=1)).body.error == pb.TopicNotFound


async def some_topics(broker: MemoryBroker) -> list[str]:
    """Makes topics a, ab, b and two partitions of p; returns their full names."""
    names = [NAMESPACE + name for name in ("a", "ab", "b")]
    for name in names:
        await broker.service.topic(TopicName.parse(name), create=True)
    await broker.service.partitioned.create(TopicName.parse(NAMESPACE + "p"), 2)
    return [*names, NAMESPACE + "p-partition-0", NAMESPACE + "p-partition-1"]


async def test_topics_of_namespace(memory_broker: MemoryBroker) -> None:
    names = await some_topics(memory_broker)
    client = await memory_broker.connect()
    kind = Command.GET_TOPICS_OF_NAMESPACE
    everything = (await client.request(kind, namespace="public/default")).body
    assert (list(everything.topics), everything.filtered, everything.changed) == (names, False, True)
    assert everything.topics_hash == topics_hash(names)
    some = (await client.request(kind, namespace="public/default", topics_pattern=NAMESPACE + "a.*")).body
    assert (list(some.topics), some.filtered) == (names[:2], True)
    parts = (
        await client.request(kind, namespace="public/default", topics_pattern="persistent://public/default/p")
    ).body
    assert list(parts.topics) == names[3:], "a pattern speaks of the partitioned topic"
    unchanged = (await client.request(kind, namespace="public/default", topics_hash=topics_hash(names))).body
    assert (list(unchanged.topics), unchanged.changed) == ([], False)
    long = (await client.request(kind, namespace="public/default", topics_pattern="x" * 51)).body
    assert (list(long.topics), long.filtered) == (names, False), "too long a pattern is left to the client"
    repeats = (await client.request(kind, namespace="public/default", topics_pattern=".*/.*/.*a")).body
    assert (list(repeats.topics), repeats.filtered) == (names[:1], True)
    assert list((await client.request(kind, namespace="public/none")).body.topics) == []


async def test_patterns_are_looked_at_beside_the_event_loop(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One that RE2 does not know is compiled by Python, which takes fifty milliseconds for a few large sets.
    threads: list[int] = []

    def looked_at(pattern: str) -> bool:
        threads.append(threading.get_ident())
        return brokers_match(pattern)

    monkeypatch.setattr(session_topics, "brokers_match", looked_at)
    client = await memory_broker.connect()
    sets = "(?i:(?=)" + "[^\0-\U0010ffff]" * 6 + ")"
    answer = await client.request(Command.GET_TOPICS_OF_NAMESPACE, namespace="public/default", topics_pattern=sets)
    assert not answer.body.filtered
    refused = await client.request(
        Command.WATCH_TOPIC_LIST, watcher_id=7, namespace="public/default", topics_pattern=sets
    )
    assert refused.name == "ERROR"
    assert len(threads) == 2
    assert threading.get_ident() not in threads


async def test_topics_of_namespace_by_domain(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer("stored")
    await client.producer("non-persistent://public/default/passing", producer_id=2)
    stored, passing = NAMESPACE + "stored", "non-persistent://public/default/passing"
    for mode, names in ((0, [stored]), (1, [passing]), (2, [passing, stored])):
        answer = await client.request(Command.GET_TOPICS_OF_NAMESPACE, namespace="public/default", mode=mode)
        assert list(answer.body.topics) == names


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"namespace": "public"}, pb.InvalidTopicName),
        ({"namespace": "public/default", "topics_pattern": "("}, pb.NotAllowedError),
    ],
)
async def test_topics_of_namespace_refusals(memory_broker: MemoryBroker, fields: dict[str, str], error: int) -> None:
    client = await memory_broker.connect()
    answer = await client.request(Command.GET_TOPICS_OF_NAMESPACE, **fields)
    assert (answer.name, answer.body.error) == ("ERROR", error)


async def test_watch_topic_list(memory_broker: MemoryBroker) -> None:
    client, other = await memory_broker.connect(), await memory_broker.connect()
    pattern = NAMESPACE + "seen.*"
    started = await client.request(
        Command.WATCH_TOPIC_LIST, watcher_id=7, namespace="public/default", topics_pattern=pattern
    )
    assert (started.name, started.body.watcher_id, list(started.body.topic)) == ("WATCH_TOPIC_LIST_SUCCESS", 7, [])
    await other.producer("seen-1")
    added = (await client.expect(Command.WATCH_TOPIC_UPDATE)).body
    assert (added.watcher_id, list(added.new_topics), list(added.deleted_topics)) == (7, [NAMESPACE + "seen-1"], [])
    assert added.topics_hash == topics_hash([NAMESPACE + "seen-1"])
    await other.producer("hidden", producer_id=2)
    await memory_broker.service.delete(TopicName.parse("seen-1"), force=True)
    removed = (await client.expect(Command.WATCH_TOPIC_UPDATE)).body
    assert (list(removed.new_topics), list(removed.deleted_topics)) == ([], [NAMESPACE + "seen-1"])
    assert (await client.request(Command.WATCH_TOPIC_LIST_CLOSE, watcher_id=7)).name == "SUCCESS"
    await other.producer("seen-2", producer_id=3)
    assert await client.round_trip() == []
    assert not memory_broker.running.context.topic_lists._watched


async def test_watchers_of_a_session_have_a_bound(memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_topics, "WATCHERS_MAX", 2)
    client = await memory_broker.connect()
    fields = {"namespace": "public/default", "topics_pattern": ".*"}
    requests = [client.start(Command.WATCH_TOPIC_LIST, watcher_id=index, **fields) for index in range(3)]
    answers = [await client.answer(request_id) for request_id in requests]
    assert sorted(answer.name for answer in answers) == ["ERROR", *["WATCH_TOPIC_LIST_SUCCESS"] * 2]
    (refusal,) = [answer for answer in answers if answer.name == "ERROR"]
    assert (refusal.body.error, "2 topic list watchers" in refusal.body.message) == (pb.NotAllowedError, True)
    again = await client.request(Command.WATCH_TOPIC_LIST, watcher_id=0, **fields)
    assert again.name == "WATCH_TOPIC_LIST_SUCCESS", "in the place of an earlier one"
    await client.request(Command.WATCH_TOPIC_LIST_CLOSE, watcher_id=1)
    after = await client.request(Command.WATCH_TOPIC_LIST, watcher_id=3, **fields)
    assert after.name == "WATCH_TOPIC_LIST_SUCCESS"


async def test_watch_topic_list_again(memory_broker: MemoryBroker) -> None:
    names = await some_topics(memory_broker)
    client = await memory_broker.connect()
    fields = {"watcher_id": 1, "namespace": "public/default", "topics_pattern": ".*"}
    assert list((await client.request(Command.WATCH_TOPIC_LIST, **fields)).body.topic) == names
    again = await client.request(Command.WATCH_TOPIC_LIST, **fields, topics_hash=topics_hash(names))
    assert (list(again.body.topic), again.body.topics_hash) == ([], topics_hash(names))
    (watched,) = memory_broker.running.context.topic_lists._watched.values()
    assert len(watched.watchers) == 1


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"topics_pattern": "x" * 51}, pb.NotAllowedError),
        ({"topics_pattern": "("}, pb.NotAllowedError),
        ({"topics_pattern": "(?=(a+)+b).*"}, pb.NotAllowedError),
        ({"topics_pattern": ".*", "namespace": "public"}, pb.InvalidTopicName),
    ],
)
async def test_watch_topic_list_refusals(memory_broker: MemoryBroker, fields: dict[str, str], error: int) -> None:
    client = await memory_broker.connect()
    answer = await client.request(
        Command.WATCH_TOPIC_LIST, **{"watcher_id": 1, "namespace": "public/default", **fields}
    )
    assert (answer.name, answer.body.error) == ("ERROR", error)
    assert not memory_broker.running.context.topic_lists._watched


async def test_watch_topic_list_may_be_switched_off() -> None:
    async with MemoryBroker(BrokerSettings(topic_list_watchers=False)) as broker:
        client = await broker.open()
        client.send(Command.CONNECT, client_version="test", protocol_version=21)
        assert not (await client.expect(Command.CONNECTED)).body.feature_flags.supports_topic_watchers
        answer = await client.request(
            Command.WATCH_TOPIC_LIST, watcher_id=1, namespace="public/default", topics_pattern=".*"
        )
        assert answer.body.error == pb.NotAllowedError


async def test_watch_topic_list_close_of_none(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    assert (await client.request(Command.WATCH_TOPIC_LIST_CLOSE, watcher_id=9)).name == "SUCCESS"
