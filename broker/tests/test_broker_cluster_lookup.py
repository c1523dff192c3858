"""Lookups in a cluster: who takes what nobody owns, who sends where."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import pytest
from magnetar.broker.bundles.ownership import ownership_path
from magnetar.broker.settings.broker import AutoCreationSettings, BrokerSettings
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.errors import PulsarError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

TOPIC = "persistent://public/default/t"
LOOKUP = pb.BaseCommand.LOOKUP
CONNECT = pb.CommandLookupTopicResponse.Connect
REDIRECT = pb.CommandLookupTopicResponse.Redirect


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with MemoryCluster(3) as running:
        yield running


def leader_of(cluster: MemoryCluster) -> MemoryBroker:
    (leader,) = [broker for broker in cluster.brokers if broker.running.context.load.leading]
    return leader


async def test_every_broker_leads_to_the_same_owner(cluster: MemoryCluster) -> None:
    for number in range(20):
        topic = f"{TOPIC}{number}"
        found = {await cluster.lookup(broker, topic) for broker in cluster.brokers}
        assert len(found) == 1
        assert cluster.owners(await cluster.bundle_of(topic)) == list(found)


async def test_who_does_not_lead_sends_to_the_leader_without_the_flag(cluster: MemoryCluster) -> None:
    leader = leader_of(cluster)
    other = next(broker for broker in cluster.brokers if broker is not leader)
    client = await other.connect()
    answer = (await client.request(LOOKUP, topic=TOPIC)).body
    assert (answer.response, answer.authoritative) == (REDIRECT, False)
    assert answer.brokerServiceUrl == leader.running.settings.service_url


async def test_whoever_is_asked_with_the_flag_takes_the_bundle(cluster: MemoryCluster) -> None:
    for broker in cluster.brokers[1:]:
        client = await broker.connect()
        answer = (await client.request(LOOKUP, topic=TOPIC, authoritative=True)).body
        assert (answer.response, answer.authoritative) == (CONNECT, True)
        assert answer.brokerServiceUrl == cluster[1].running.settings.service_url, "the first one keeps it"


async def test_the_owner_node_is_apaches(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[2], TOPIC)
    node = await cluster[0].store.get(ownership_path(bundle))
    assert node.stat.ephemeral
    settings = cluster[2].running.settings
    assert json.loads(node.value) == {
        "nativeUrl": settings.service_url,
        "httpUrl": settings.web_service_url,
        "disabled": False,
        "advertisedListeners": {},
    }


async def test_three_brokers_take_a_bundle_at_once(cluster: MemoryCluster) -> None:
    for number in range(10):
        name = TopicName.parse(f"persistent://public/default/race-{number}")
        answers = await asyncio.gather(
            *(
                broker.running.context.lookup.find(name, authoritative=True)
                for broker in cluster.brokers
                for _ in range(3)
            )
        )
        assert len({answer.addresses.broker_id for answer in answers}) == 1
        assert len(cluster.owners(await cluster.bundle_of(str(name)))) == 1


async def test_a_bundle_that_is_unloading_is_not_ready(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[1], TOPIC)
    await cluster[1].running.context.ownership.disable(bundle)
    for broker in (cluster[0], cluster[2]):
        client = await broker.connect()
        answer = (await client.request(LOOKUP, topic=TOPIC)).body
        assert (answer.error, answer.message) == (pb.ServiceNotReady, f"Namespace bundle {bundle} is being unloaded")


async def test_two_that_believe_each_other_to_lead_send_nobody_to_and_fro(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = cluster[0], cluster[1]
    for broker, other in ((first, second), (second, first)):
        load = broker.running.context.load
        monkeypatch.setattr(load, "leader", lambda other=other: other.running.context.ownership.own)
        monkeypatch.setattr(type(load), "leading", property(lambda _: False))
    broker, authoritative, hops = first, False, 0
    clients = {broker: await broker.connect() for broker in cluster.brokers}
    while True:
        answer = (await clients[broker].request(LOOKUP, topic=TOPIC, authoritative=authoritative)).body
        broker, authoritative, hops = cluster.by_url(answer.brokerServiceUrl), answer.authoritative, hops + 1
        if answer.response == CONNECT:
            break
    assert hops <= 5
    assert cluster.owners(await cluster.bundle_of(TOPIC)) == [broker]
    other_bundles = [
        name
        for name in (f"{TOPIC}-{number}" for number in range(100))
        if await cluster.bundle_of(name) != await cluster.bundle_of(TOPIC)
    ]
    async with aiohttp.ClientSession() as session:
        path = "/lookup/v2/topic/" + other_bundles[0].replace("://", "/")
        async with session.get(first.admin_url + path, max_redirects=3) as found:
            assert found.status == 200


async def test_http_lookups_follow_the_same_way(cluster: MemoryCluster) -> None:
    leader = leader_of(cluster)
    other = next(broker for broker in cluster.brokers if broker is not leader)
    async with aiohttp.ClientSession() as session:
        url = other.admin_url + "/lookup/v2/topic/persistent/public/default/t?listenerName="
        async with session.get(url, allow_redirects=False) as answer:
            assert answer.status == 307
            assert answer.headers["Location"] == (
                leader.admin_url + "/lookup/v2/topic/persistent/public/default/t?listenerName=&authoritative=false"
            )
        async with session.get(url) as answer:
            assert answer.status == 200
            document = await answer.json()
    owner = cluster.by_url(document["brokerUrl"])
    assert document == {
        "brokerUrl": owner.running.settings.service_url,
        "httpUrl": owner.running.settings.web_service_url,
        "nativeUrl": owner.running.settings.service_url,
        "brokerUrlSsl": "",
    }
    assert cluster.owners(await cluster.bundle_of(TOPIC)) == [owner]


async def test_a_topic_is_served_by_its_owner_only(cluster: MemoryCluster) -> None:
    await cluster.take(cluster[1], TOPIC)
    client = await cluster[2].connect()
    refused = await client.request(pb.BaseCommand.PRODUCER, topic=TOPIC, producer_id=1)
    assert refused.body.error == pb.ServiceNotReady
    assert refused.body.message == (
        f"Namespace bundle for topic ({TOPIC}) not served by this instance:"
        f"{cluster[2].running.settings.broker_id}. Please redo the lookup. Request is denied: namespace=public/default"
    )
    await (await cluster[1].connect()).producer(TOPIC)


async def test_namespaces_of_a_broker(cluster: MemoryCluster) -> None:
    named = cluster[2].running.settings.broker_id
    health = f"persistent://pulsar/{named}/healthcheck"
    for broker in cluster.brokers:
        assert await cluster.lookup(broker, health) is cluster[2]
        assert await cluster.lookup(broker, f"persistent://sla-monitor/{named}/t") is cluster[2]
    lookup = cluster[0].running.context.lookup
    for namespace in ("pulsar/gone:1", "sla-monitor/gone:1"):
        with pytest.raises(PulsarError, match="No broker was available"):
            await lookup.find(TopicName.parse(f"persistent://{namespace}/t"))
    await (await cluster[2].connect()).producer(health)


async def test_namespaces_of_other_clusters(cluster: MemoryCluster) -> None:
    resources = cluster[0].service.resources
    await resources.documents.update("/admin/policies/public/default", lambda it: {**it, "replication_clusters": ["b"]})
    client = await cluster[1].connect()

    async def refused() -> bool:
        answer = (await client.request(LOOKUP, topic=TOPIC)).body
        return bool(answer.error == pb.MetadataError and "Namespace missing local cluster name" in answer.message)

    while not await refused():
        await asyncio.sleep(0.005)
    await resources.documents.create("/admin/clusters/b", {"brokerServiceUrl": "pulsar://b:6650"})
    await resources.documents.update("/admin/clusters/memory", lambda it: {**it, "peerClusterNames": ["b"]})

    async def redirected() -> bool:
        answer = (await client.request(LOOKUP, topic=TOPIC)).body
        return bool((answer.response, answer.brokerServiceUrl) == (REDIRECT, "pulsar://b:6650"))

    while not await redirected():
        await asyncio.sleep(0.005)


async def test_listeners() -> None:
    text = "inside:pulsar://10.0.0.1:6650,outside:pulsar://1.2.3.4:16650,outside:pulsar+ssl://1.2.3.4:16651"
    settings = BrokerSettings(cluster_name="memory", advertised_listeners=text)
    async with MemoryCluster(1, settings) as cluster:
        client = await cluster[0].connect()
        plain = (await client.request(LOOKUP, topic=TOPIC)).body
        assert (plain.brokerServiceUrl, plain.brokerServiceUrlTls) == ("pulsar://10.0.0.1:6650", "")
        named = (await client.request(LOOKUP, topic=TOPIC, advertised_listener_name="outside")).body
        assert named.brokerServiceUrl == "pulsar://1.2.3.4:16650"
        assert named.brokerServiceUrlTls == "pulsar+ssl://1.2.3.4:16651"
        unknown = (await client.request(LOOKUP, topic=TOPIC, advertised_listener_name="none")).body
        assert (unknown.error, unknown.message) == (pb.ServiceNotReady, "the broker do not have none listener")


async def test_the_internal_listener_may_be_named() -> None:
    text = "a:pulsar://10.0.0.1:6650,b:pulsar://10.0.0.2:6650"
    settings = BrokerSettings(cluster_name="memory", advertised_listeners=text, internal_listener_name="b")
    async with MemoryCluster(1, settings) as cluster:
        plain = (await (await cluster[0].connect()).request(LOOKUP, topic=TOPIC)).body
        assert plain.brokerServiceUrl == "pulsar://10.0.0.2:6650"


async def test_repeated_lookups_read_nothing(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await cluster.take(cluster[1], TOPIC)
    for broker in cluster.brokers:
        await broker.running.context.lookup.find(TopicName.parse(TOPIC))
        reads: list[str] = []

        async def get(path: str, *, reads: list[str] = reads, **_: object) -> None:
            reads.append(path)

        monkeypatch.setattr(broker.store, "get", get)
        client = await broker.connect()
        for _ in range(100):
            answer = (await client.request(LOOKUP, topic=TOPIC)).body
            assert answer.brokerServiceUrl == cluster[1].running.settings.service_url
        assert reads == []
        monkeypatch.undo()


async def test_lookups_find_bundles_again_after_a_change_elsewhere(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[1], TOPIC)
    assert await cluster.lookup(cluster[0], TOPIC) is cluster[1]
    await cluster[1].running.context.moves.unload(bundle)
    await until(lambda: cluster[0].running.context.ownership.peek(bundle) is None)
    await cluster.take(cluster[2], TOPIC)
    await until(lambda: cluster[0].running.context.ownership.peek(bundle) is None)
    assert await cluster.lookup(cluster[0], TOPIC) is cluster[2]


async def test_the_throttle_counts_what_waits() -> None:
    settings = replace(BrokerSettings(cluster_name="memory"), lookups_max=0)
    async with MemoryCluster(1, settings) as cluster:
        answer = (await (await cluster[0].connect()).request(LOOKUP, topic=TOPIC)).body
        assert answer.error == pb.TooManyRequests


async def test_http_lookup_of_a_topic_that_may_not_be_made() -> None:
    settings = BrokerSettings(cluster_name="memory", auto_creation=AutoCreationSettings(topics_allowed=False))
    async with MemoryCluster(1, settings) as cluster, aiohttp.ClientSession() as session:
        await cluster[0].service.partitioned.create(TopicName.parse(TOPIC), 1)
        base = cluster[0].admin_url + "/lookup/v2/topic/"
        for path, status in (
            ("persistent/public/default/t", 200),
            ("persistent/public/default/t-partition-0", 200),
            ("persistent/public/default/none", 404),
            ("non-persistent/public/default/none", 200),
            ("persistent/public/none/t", 404),
        ):
            async with session.get(base + path) as answer:
                assert answer.status == status, path
        async with session.get(base + "persistent/public/default/none") as answer:
            assert await answer.json() == {"reason": "Topic not found."}
