"""Topic policies that Apache's broker wrote are in force at ours, and the other way round; our client at Apache's."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from magnetar.client.client import PulsarClient
from magnetar.client.consumer import ConsumerOptions, SubscriptionType
from magnetar.client.message import Message, OutgoingMessage
from magnetar.client.producer import AccessMode, ProducerOptions
from magnetar.client.reader import Reader
from magnetar.client.settings import ClientSettings
from magnetar.core.clock import SystemClock
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.compression_type import Compression
from magnetar.wire.pulsar.errors import PulsarError, ServerError

from e2e.interchange import brokers, parts
from e2e.interchange.cluster import Cluster
from e2e.interchange.parts import BrokerPart, jvm_environment
from e2e.peers import distribution
from e2e.processes import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

NAMESPACE = "public/default"
LOCAL, EVERYWHERE = f"persistent://{NAMESPACE}/local", f"persistent://{NAMESPACE}/everywhere"
PARTITIONED = f"persistent://{NAMESPACE}/partitioned"
SEEN_SECONDS_MAX = 20.0

POLICIES: list[tuple[str, str, Any]] = [
    (
        "backlogQuota?backlogQuotaType=destination_storage",
        "backlogQuotaMap",
        {"limitSize": 1 << 20, "policy": "producer_exception"},
    ),
    ("retention", "retention", {"retentionTimeInMinutes": 10, "retentionSizeInMB": 20}),
    ("messageTTL?messageTTL=77", "messageTTL", None),
    ("deduplicationEnabled", "deduplicationEnabled", True),
    ("delayedDelivery", "delayedDelivery", {"active": True, "tickTime": 512, "maxDeliveryDelayInMillis": 5000}),
    (
        "dispatchRate",
        "dispatchRate",
        {
            "dispatchThrottlingRateInMsg": 1000,
            "dispatchThrottlingRateInByte": 200000,
            "relativeToPublishRate": True,
            "ratePeriodInSecond": 2,
        },
    ),
    ("publishRate", "publishRate", {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": 10000}),
    ("subscribeRate", "subscribeRate", {"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 30}),
    ("compactionThreshold", "compactionThreshold", 1000000),
    ("maxMessageSize", "maxMessageSize", 1000),
    ("maxProducers", "maxProducers", 3),
    ("maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic", 6),
    (
        "inactiveTopicPolicies",
        "inactiveTopicPolicies",
        {
            "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
            "maxInactiveDurationSeconds": 600,
            "deleteWhileInactive": False,
        },
    ),
    ("subscriptionTypesEnabled", "subscriptionTypesEnabled", ["Shared", "Key_Shared"]),
]
"""What is posted, where it is read again, and the body."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """ZooKeeper, a bookie, and what brokers want to find."""
    reason = parts.missing()
    if reason is not None:
        pytest.skip(reason)
    with Cluster(tmp_path) as running:
        running.initialize_pulsar()
        running.start(running.our_bookie("bookie"))
        yield running


class KeepMethod(urllib.request.HTTPRedirectHandler):
    """Follows 307 with the method and body that were sent, as admin clients do."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request:
        return urllib.request.Request(newurl, data=req.data, headers=dict(req.headers), method=req.get_method())


OPENER = urllib.request.build_opener(KeepMethod)


def ask(broker: BrokerPart, method: str, topic: str, rest: str = "", body: object = None) -> Any:
    """The answer of the admin API about a topic, decoded; None for an empty one."""
    data = None if body is None else json.dumps(body).encode()
    url = f"{broker.admin_url}/admin/v2/{topic.replace('://', '/')}{rest and '/' + rest}"
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data=data, method=method, headers=headers)
    try:
        with OPENER.open(request, timeout=60) as answer:
            content = answer.read()
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{method} {url}: {error.code} {error.read()!r}") from error
    return json.loads(content) if content else None


def scoped(path: str, topic: str) -> str:
    return path if topic != EVERYWHERE else f"{path}{'&' if '?' in path else '?'}isGlobal=true"


def set_policies(broker: BrokerPart) -> None:
    """Everything, local and global, and on a partitioned topic; one changed again and one removed."""
    for topic in (LOCAL, EVERYWHERE):
        ask(broker, "PUT", topic)
        for path, _, body in POLICIES:
            ask(broker, "POST", topic, scoped(path, topic), body)
    ask(broker, "PUT", PARTITIONED, "partitions", 2)
    ask(broker, "POST", PARTITIONED, "maxConsumers", 4)
    ask(broker, "POST", LOCAL, "maxConsumers", 1)
    ask(broker, "POST", LOCAL, "maxConsumers", 2)
    ask(broker, "POST", LOCAL, "maxUnackedMessagesOnConsumer", 7)
    ask(broker, "DELETE", LOCAL, "maxUnackedMessagesOnConsumer")


def policies_of(broker: BrokerPart) -> dict[str, Any]:
    """All that was set, as a broker tells."""
    found: dict[str, Any] = {}
    for topic in (LOCAL, EVERYWHERE):
        for _, path, _ in POLICIES:
            found[f"{topic} {path}"] = ask(broker, "GET", topic, scoped(path, topic))
    for topic, path in (
        (PARTITIONED, "maxConsumers"),
        (LOCAL, "maxConsumers"),
        (LOCAL, "maxUnackedMessagesOnConsumer"),
    ):
        found[f"{topic} {path}"] = ask(broker, "GET", topic, path)
    return found


def pulsar_admin(cluster: Cluster, broker: BrokerPart, *words: str) -> str:
    """Apache's own tool. subprocess.CalledProcessError when it fails."""
    command = [str(distribution.home() / "bin" / "pulsar-admin"), "--admin-url", broker.admin_url, *words]
    environment = {**os.environ, **jvm_environment(cluster.folder / "logs")}
    done = subprocess.run(command, capture_output=True, env=environment, check=True, timeout=60, text=True)
    return done.stdout.strip()


def test_ours_takes_over_from_apaches(cluster: Cluster) -> None:
    apache, ours = cluster.apache_broker((1, 1, 1)), cluster.our_broker((1, 1, 1))
    brokers.start_with_namespace(cluster, apache)
    set_policies(apache)
    pulsar_admin(cluster, apache, "topicPolicies", "set-max-consumers-per-subscription", "-c", "5", LOCAL)
    expected = policies_of(apache)
    apache.stop()
    brokers.start_with_namespace(cluster, ours)
    assert policies_of(ours) == expected
    assert ask(ours, "GET", LOCAL, "maxConsumersPerSubscription") == 5
    # And goes on writing where Apache's left off.
    ask(ours, "POST", LOCAL, "maxProducers", 9)
    ask(ours, "DELETE", EVERYWHERE, scoped("retention", EVERYWHERE))
    changed = policies_of(ours)
    ours.stop()
    brokers.start_with_namespace(cluster, apache)
    assert policies_of(apache) == changed
    assert changed[f"{LOCAL} maxProducers"] == 9


def test_what_apaches_has_compacted_is_read(cluster: Cluster) -> None:
    """Apache's brokers compact the system topic by themselves, and delete the rest when it is loaded again."""
    apache = cluster.apache_broker((1, 1, 1), brokerServiceCompactionMonitorIntervalInSeconds="1")
    ours = cluster.our_broker((1, 1, 1))
    brokers.start_with_namespace(cluster, apache)
    set_policies(apache)
    expected = policies_of(apache)
    events = f"persistent://{NAMESPACE}/__change_events"

    def compacted() -> bool:
        internals = ask(apache, "GET", events, "internalStats")
        last = internals["lastConfirmedEntry"]
        return bool(internals["cursors"]["__compaction"]["markDeletePosition"] == last)

    wait_for(compacted, SEEN_SECONDS_MAX, "nothing is compacted")
    ask(apache, "PUT", events, "unload")
    wait_for(lambda: ask(apache, "GET", events, "internalStats")["totalSize"] == 0, SEEN_SECONDS_MAX, "all is kept")
    apache.stop()
    brokers.start_with_namespace(cluster, ours)
    assert policies_of(ours) == expected
    ask(ours, "POST", LOCAL, "maxProducers", 9)
    expected[f"{LOCAL} maxProducers"] = 9
    assert policies_of(ours) == expected
    ours.stop()
    brokers.start_with_namespace(cluster, apache)
    assert policies_of(apache) == expected


def test_apaches_takes_over_from_ours(cluster: Cluster) -> None:
    apache, ours = cluster.apache_broker((1, 1, 1)), cluster.our_broker((1, 1, 1))
    brokers.start_with_namespace(cluster, ours)
    set_policies(ours)
    expected = policies_of(ours)
    ours.kill()
    brokers.start_with_namespace(cluster, apache)
    # What the killed one owned is its until its session ends.
    wait_for(
        lambda: _answers(apache, [LOCAL, EVERYWHERE, PARTITIONED]), SEEN_SECONDS_MAX, "Apache's takes nothing over"
    )
    assert policies_of(apache) == expected
    assert pulsar_admin(cluster, apache, "topicPolicies", "get-max-producers", LOCAL) == "3"
    ask(apache, "DELETE", LOCAL)
    apache.stop()
    brokers.start_with_namespace(cluster, ours)
    ask(ours, "PUT", LOCAL)
    assert ask(ours, "GET", LOCAL, "maxProducers") is None
    assert ask(ours, "GET", EVERYWHERE, scoped("maxProducers", EVERYWHERE)) == 3


def test_both_side_by_side(cluster: Cluster) -> None:
    """Topics and their system topic are spread over both brokers."""
    apache = cluster.apache_broker((1, 1, 1), loadBalancerEnabled="true")
    ours = cluster.our_broker((1, 1, 1), loadBalancerEnabled="true")
    brokers.start_with_namespace(cluster, apache)
    ours.start()
    topics = [f"persistent://{NAMESPACE}/topic-{number}" for number in range(12)]
    both: list[BrokerPart] = [apache, ours]
    for number, topic in enumerate(topics):
        ask(both[number % 2], "PUT", topic)
        ask(both[number % 2], "POST", topic, "maxProducers", number + 1)
        ask(both[number // 2 % 2], "POST", topic, "maxConsumers", number + 1)
    owners = {str(_lookup(apache, topic)) for topic in (*topics, f"persistent://{NAMESPACE}/__change_events")}
    assert owners == {apache.service_url, ours.service_url}, "nothing is spread: the test would show nothing"

    def all_seen() -> bool:
        return all(
            ask(broker, "GET", topic, "maxProducers") == ask(broker, "GET", topic, "maxConsumers") == number + 1
            for number, topic in enumerate(topics)
            for broker in both
        )

    wait_for(all_seen, SEEN_SECONDS_MAX, "a broker does not know of all policies")
    apache.kill()
    wait_for(lambda: _answers(ours, topics), SEEN_SECONDS_MAX, "ours does not take the topics over")
    for number, topic in enumerate(topics):
        assert ask(ours, "GET", topic, "maxProducers") == number + 1


def _lookup(broker: BrokerPart, topic: str) -> Any:
    with OPENER.open(f"{broker.admin_url}/lookup/v2/topic/{topic.replace('://', '/')}", timeout=60) as answer:
        return json.loads(answer.read())["brokerUrl"]


def _answers(broker: BrokerPart, topics: list[str]) -> bool:
    try:
        for topic in topics:
            ask(broker, "GET", topic, "maxProducers")
    except (AssertionError, OSError):
        return False
    return True


# --- our client at Apache's broker


TOPIC = TopicName.parse("persistent://public/default/by-our-client")


def test_our_client_at_apaches_broker(cluster: Cluster) -> None:
    """Batches, single messages, readers, consumers, exclusive producers, and topics that are unloaded meanwhile."""
    apache = cluster.apache_broker((1, 1, 1))
    brokers.start_with_namespace(cluster, apache)
    asyncio.run(use_client(apache))


async def use_client(broker: BrokerPart) -> None:
    settings = ClientSettings(backoff_seconds_min=0.05)
    client = PulsarClient(lambda: broker.service_url, SystemClock(), settings)
    try:
        await produce_and_read(client, broker)
        await consume(client)
        await exclude(client)
        partitions = TopicName.parse("persistent://public/default/three-parts")
        await asyncio.to_thread(ask, broker, "PUT", str(partitions), "partitions", 3)
        assert len(await client.topics(partitions)) == 3
    finally:
        await client.close()


async def produce_and_read(client: PulsarClient, broker: BrokerPart) -> None:
    keeper = await client.consumer(TOPIC, ConsumerOptions(subscription="keep", from_earliest=True))
    await keeper.close()
    expected: list[bytes] = []
    for kind in (Compression.NONE, Compression.LZ4, Compression.ZSTD):
        producer = await client.producer(TOPIC, ProducerOptions(compression=kind))
        payloads = [b"%s-%d" % (kind.name.encode(), number) for number in range(50)]
        await producer.send_batch([OutgoingMessage(payload, key="k") for payload in payloads])
        await producer.send_all([OutgoingMessage(payload, properties={"a": "b"}) for payload in payloads])
        expected += payloads * 2
    reader = await client.reader(TOPIC)
    messages = await _rest(reader)
    assert [message.payload for message in messages] == expected
    for round_number in range(3):
        await asyncio.to_thread(ask, broker, "PUT", str(TOPIC), "unload")
        await producer.send(OutgoingMessage(b"after %d" % round_number))
    assert [message.payload for message in await _rest(reader)] == [b"after %d" % number for number in range(3)]


async def _rest(reader: Reader) -> list[Message]:
    messages: list[Message] = []
    while (message := await reader.next_or_end()) is not None:
        messages.append(message)
    return messages


async def consume(client: PulsarClient) -> None:
    topic = TopicName.parse("persistent://public/default/consumed-by-our-client")
    options = ConsumerOptions(subscription="s", kind=SubscriptionType.SHARED)
    consumer = await client.consumer(topic, options)
    producer = await client.producer(topic)
    await producer.send_batch([OutgoingMessage(b"%d" % number) for number in range(4)])
    await producer.send_all([OutgoingMessage(b"%d" % number) for number in range(4, 6)])
    got = [await consumer.receive() for _ in range(6)]
    await consumer.acknowledge([message.id for message in got[:5]])
    await consumer.close()
    again = await client.consumer(topic, options)
    assert (await again.receive()).payload == b"5"
    await again.unsubscribe()


async def exclude(client: PulsarClient) -> None:
    topic = TopicName.parse("persistent://public/default/for-one-producer")
    only = await client.producer(topic, ProducerOptions(access_mode=AccessMode.EXCLUSIVE))
    with pytest.raises(PulsarError) as refused:
        await client.producer(topic, ProducerOptions(access_mode=AccessMode.EXCLUSIVE))
    assert refused.value.code is ServerError.PRODUCER_FENCED
    waiting = asyncio.create_task(client.producer(topic, ProducerOptions(access_mode=AccessMode.WAIT_FOR_EXCLUSIVE)))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await only.close()
    await (await waiting).send(OutgoingMessage(b""))
