"""Resource groups on whole brokers in memory: which topics they limit, and what brokers tell each other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from magnetar.broker.admin.brokers.metrics import broker_metrics
from magnetar.broker.peers.addresses import BrokerAddresses
from magnetar.broker.resource_groups import exchange as exchange_module
from magnetar.broker.resource_groups.exchange import (
    ECHO_SECONDS_MAX,
    SETTLE_SECONDS,
    USAGE_TOPIC,
    ExchangeParts,
    UsageExchange,
)
from magnetar.broker.resource_groups.group import GroupReport, Rates, ResourceGroup
from magnetar.broker.resource_groups.groups import ROOT, ResourceGroups
from magnetar.broker.resource_groups.usage_message import decode_reports, encode_reports
from magnetar.broker.resources import Resources
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.broker.testing.sessions import MemoryBroker, ShiftedClock, command_frame, message
from magnetar.client.reader import ReaderOptions
from magnetar.core.topic_name import TopicName
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import SessionEvent
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.subscription_stage import Timers
from broker.tests.test_broker_policies_sessions import NON_PERSISTENT, TOPIC, set_namespace

OTHER_NAMESPACE = "public/other"


async def set_group(broker: MemoryBroker, name: str, **limits: int) -> None:
    """Make a group, or change it."""
    await broker.service.resources.documents.put(f"{ROOT}/{name}", limits)


def groups_of(broker: MemoryBroker, topic: str = TOPIC) -> list[str]:
    return [group.name for group in broker.service.topics[topic].groups]


async def receipts(broker: MemoryBroker, client: Any, count: int, producer_id: int = 1, first: int = 0) -> int:
    """Send so many, one read after the other; how many have receipts soon after."""
    for number in range(first, first + count):
        client.send(pb.BaseCommand.SEND, message(b"x"), producer_id=producer_id, sequence_id=number)
        await asyncio.sleep(0.002)
    await asyncio.sleep(0.05)
    return sum(received.name == "SEND_RECEIPT" for received in client.inbox)


async def test_a_namespaces_group_limits_its_topics_together_and_may_change_at_any_time() -> None:
    async with MemoryBroker(clock=ShiftedClock()) as broker:
        await set_group(broker, "g", publishRateInMsgs=4)
        client = await broker.connect()
        await client.producer(TOPIC, 1)
        await client.producer(TOPIC + "2", 2)
        assert await receipts(broker, client, 20) == 20
        await set_namespace(broker, resource_group_name="g")
        await until(lambda: groups_of(broker) == groups_of(broker, TOPIC + "2") == ["g"])
        client.inbox.clear()
        passed = await receipts(broker, client, 20, producer_id=2)
        assert passed < 20
        await set_group(broker, "g", publishRateInMsgs=-1)
        await until(lambda: len(client.inbox) == 20)
        await set_group(broker, "g", publishRateInMsgs=1)
        await until(lambda: broker.service.groups.get("g").limits.publish_messages == 1)
        assert await receipts(broker, client, 10, first=20) < 30
        await set_namespace(broker, resource_group_name=None)
        await until(lambda: groups_of(broker) == [])
        # What its limiter still holds goes on when that has tokens again, at the latest.
        await until(lambda: len(client.inbox) == 30)


async def test_what_one_read_brings_passes_in_its_order_as_the_group_allows() -> None:
    async with MemoryBroker() as broker:
        await set_group(broker, "g", publishRateInMsgs=40)
        await set_namespace(broker, resource_group_name="g")
        client = await broker.connect()
        await client.producer(TOPIC)
        await until(lambda: groups_of(broker) == ["g"])
        limiter = broker.service.groups.get("g").publish.limiter
        frames = [
            command_frame(pb.BaseCommand.SEND, message(b"x"), producer_id=1, sequence_id=number)
            for number in range(500)
        ]
        client.send_bytes(b"".join(frames))
        await until(lambda: limiter.messages_total >= 12)
        assert limiter.messages_total < 100
        client.send(pb.BaseCommand.CLOSE_PRODUCER, producer_id=1, request_id=77)
        # The connection is read no further, so that the broker learns of it only when the limit goes.
        assert limiter.messages_total < 200
        await set_group(broker, "g", publishRateInMsgs=-1)
        await client.answer(77)
        receipts_of = [received.body.sequence_id for received in client.inbox if received.name == "SEND_RECEIPT"]
        assert receipts_of == list(range(500))
        assert limiter.messages_total == 500
        assert broker.service.topics[TOPIC].messages_in == 500


async def test_what_waits_is_stored_when_its_producer_closes_in_the_same_read() -> None:
    async with MemoryBroker() as broker:
        await set_group(broker, "g", publishRateInMsgs=1)
        await set_namespace(broker, resource_group_name="g")
        client = await broker.connect()
        await client.producer(TOPIC, 1)
        await client.producer(TOPIC, 2)
        await until(lambda: groups_of(broker) == ["g"])
        frames = [
            command_frame(pb.BaseCommand.SEND, message(b"x"), producer_id=producer_id, sequence_id=number)
            for number in range(50)
            for producer_id in (1, 2)
        ]
        frames.append(command_frame(pb.BaseCommand.CLOSE_PRODUCER, producer_id=1, request_id=77))
        client.send_bytes(b"".join(frames))
        await client.answer(77)
        stored = [received.body for received in client.inbox if received.name == "SEND_RECEIPT"]
        assert [body.sequence_id for body in stored if body.producer_id == 1] == list(range(50))
        assert sum(body.producer_id == 2 for body in stored) < 50


async def test_a_group_named_after_a_tenant_limits_all_of_the_tenant() -> None:
    async with MemoryBroker() as broker:
        await broker.service.resources.documents.create(
            f"/admin/policies/{OTHER_NAMESPACE}", {"replication_clusters": ["standalone"]}
        )
        client = await broker.connect()
        topics = [TOPIC, f"persistent://{OTHER_NAMESPACE}/t", f"non-persistent://{OTHER_NAMESPACE}/t"]
        for number, topic in enumerate(topics):
            await client.producer(topic, number)
            assert groups_of(broker, topic) == []
        await set_group(broker, "tenant:public", publishRateInMsgs=100)
        await set_group(broker, "tenant:pulsar", publishRateInMsgs=1)
        await set_group(broker, "g", publishRateInMsgs=50)
        await set_namespace(broker, resource_group_name="g")
        await until(lambda: groups_of(broker, topics[2]) == ["tenant:public"])
        await until(lambda: groups_of(broker) == ["g", "tenant:public"])
        await set_namespace(broker, resource_group_name="tenant:public")
        await until(lambda: groups_of(broker) == ["tenant:public"])
        one, two = (broker.service.topics[topic].groups[0] for topic in topics[:2])
        assert one is two
        await broker.service.resources.documents.delete(f"{ROOT}/tenant:public")
        await until(lambda: not any(groups_of(broker, topic) for topic in topics))


async def test_topics_of_brokers_are_in_no_group() -> None:
    async with MemoryBroker() as broker:
        await set_group(broker, "tenant:public", publishRateInMsgs=1)
        await set_group(broker, "tenant:pulsar", publishRateInMsgs=1)
        await until(lambda: len(broker.service.groups._limits) == 2)
        groups = broker.service.groups
        for topic in (str(USAGE_TOPIC), "persistent://public/default/__change_events"):
            assert groups.of(TopicName.parse(topic), "tenant:public") == ()
        assert len(groups.of(TopicName.parse(TOPIC), "none")) == 1


async def test_a_neighbour_on_another_connection_is_not_held_up() -> None:
    async with MemoryBroker() as broker:
        await broker.service.resources.documents.create(
            f"/admin/policies/{OTHER_NAMESPACE}", {"replication_clusters": ["standalone"]}
        )
        await set_group(broker, "g", publishRateInMsgs=1)
        await set_namespace(broker, resource_group_name="g")
        limited, free = await broker.connect(), await broker.connect()
        await limited.producer(TOPIC)
        await free.producer(f"persistent://{OTHER_NAMESPACE}/t")
        await until(lambda: groups_of(broker) == ["g"])
        assert await receipts(broker, limited, 10) < 10
        assert await receipts(broker, free, 10) == 10


async def test_dispatch_of_a_group_is_limited_over_its_topics() -> None:
    async with MemoryBroker() as broker:
        client = await broker.connect()
        for number, topic in enumerate((TOPIC, TOPIC + "2")):
            await client.producer(topic, number)
            await client.consumer(topic, consumer_id=number)
        await set_group(broker, "g", dispatchRateInMsgs=4)
        await set_namespace(broker, resource_group_name="g")
        await until(lambda: groups_of(broker) == ["g"])
        for number in (0, 1):
            await client.publish(10, producer_id=number)
            client.send(pb.BaseCommand.FLOW, consumer_id=number, messagePermits=100)
        await client.round_trip()
        group = broker.service.groups.get("g")
        assert group.dispatch.limiter.messages_total < 15
        await set_group(broker, "g", dispatchRateInMsgs=10_000)
        await until(lambda: group.dispatch.limiter.messages_total == 20)


async def test_a_non_persistent_topic_drops_what_its_group_does_not_let_pass() -> None:
    async with MemoryBroker() as broker:
        client = await broker.connect()
        await client.producer(NON_PERSISTENT)
        await client.consumer(NON_PERSISTENT)
        client.send(pb.BaseCommand.FLOW, consumer_id=1, messagePermits=1_000)
        await set_group(broker, "g", dispatchRateInMsgs=4)
        await set_namespace(broker, resource_group_name="g")
        await until(lambda: groups_of(broker, NON_PERSISTENT) == ["g"])
        await receipts(broker, client, 20)
        sent = broker.service.groups.get("g").dispatch.limiter.messages_total
        assert 1 <= sent < 20
        assert broker.service.topics[NON_PERSISTENT].subscriptions["s"].messages_dropped == 20 - sent


async def test_limits_are_found_again_after_the_store_was_away() -> None:
    store = MemoryMetadataStore()
    resources = Resources(store)
    timers = Timers()
    work: list[Awaitable[None]] = []
    groups = ResourceGroups(resources, timers, timers.call_later, work.append)
    changes: list[int] = []
    groups.on_changed = lambda: changes.append(len(groups._limits))
    await resources.documents.create(f"{ROOT}/a", {"publishRateInMsgs": 5})
    await store.put(f"{ROOT}/b", b"no document")
    groups.start()
    await work.pop()
    assert changes == [2]
    assert [group.name for group in groups.of(TopicName.parse(TOPIC), "a")] == ["a"]
    await resources.documents.delete(f"{ROOT}/a")
    await work.pop()
    assert changes == [2, 1]
    assert groups.of(TopicName.parse(TOPIC), "a") == ()
    groups.close()


async def test_what_passes_is_counted_in_the_metrics() -> None:
    async with MemoryBroker() as broker:
        await set_group(broker, "g", publishRateInMsgs=4_000)
        await set_namespace(broker, resource_group_name="g")
        client = await broker.connect()
        await client.producer(TOPIC)
        await until(lambda: groups_of(broker) == ["g"])
        await client.publish(3)
        text = b"".join(await broker_metrics(broker.running.context)).decode()
        labels = '{cluster="standalone",ResourceGroup="g",MonitoringClass="Publish"}'
        assert f"pulsar_resource_group_messages_used_total{labels} 3" in text
        assert f"pulsar_resource_group_calculated_messages_quota{labels} 4000.0" in text


async def asked(broker: MemoryBroker, method: str, path: str, body: Any = None) -> tuple[int, str]:
    url = f"{broker.admin_url}/admin/v2/{path}"
    async with aiohttp.ClientSession() as session, session.request(method, url, json=body) as answer:
        return answer.status, await answer.text()


async def test_what_tools_set_holds_and_what_is_refused_changes_nothing() -> None:
    async with MemoryBroker() as broker:
        client = await broker.connect()
        await client.producer(TOPIC)
        one, of_namespace = "resourcegroups/tenant:public", "namespaces/public/default/resourcegroup"
        values: list[Any] = [-2, -(2**31), 2**31, "x", []]
        for value in values:
            status, _ = await asked(broker, "PUT", one, {"publishRateInMsgs": value})
            assert status == 400, value
        assert await asked(broker, "GET", "resourcegroups") == (200, "[]")
        assert (await asked(broker, "PUT", one, {"publishRateInMsgs": 100, "publishRateInBytes": -1}))[0] == 204
        await until(lambda: groups_of(broker) == ["tenant:public"])
        assert (await asked(broker, "PUT", one, {"publishRateInMsgs": -2}))[0] == 400
        assert broker.service.groups.get("tenant:public").publish.parts == (100.0, 0.0)
        assert (await asked(broker, "POST", f"{of_namespace}/none"))[0] == 412
        assert (await asked(broker, "PUT", "resourcegroups/g", {"dispatchRateInBytes": 7}))[0] == 204
        assert (await asked(broker, "POST", f"{of_namespace}/g"))[0] == 204
        assert groups_of(broker) == ["g", "tenant:public"]
        assert (await asked(broker, "DELETE", "resourcegroups/g"))[0] == 412
        assert (await asked(broker, "DELETE", of_namespace))[0] == 204
        assert groups_of(broker) == ["tenant:public"]
        assert (await asked(broker, "DELETE", one))[0] == 204
        await until(lambda: groups_of(broker) == [])


# --- several brokers


async def test_brokers_share_a_limit_by_what_they_tell_in_the_system_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "TICK_SECONDS", 0.05)
    monkeypatch.setattr(exchange_module, "SETTLE_SECONDS", 0.1)
    async with MemoryCluster(2) as cluster:
        first, second = cluster.brokers
        await set_group(first, "g", publishRateInMsgs=1_000)
        await set_namespace(first, resource_group_name="g")
        topic = TOPIC
        await cluster.take(first, topic)
        client = await first.connect()
        await client.producer(topic)
        await until(lambda: groups_of(first) == ["g"])
        group: ResourceGroup = first.service.groups.get("g")
        assert group.publish.parts == (500.0, 0.0)
        await until(lambda: group.publish.parts == (1_000.0, 0.0))
        reader = await second.running.context.client.get().reader(USAGE_TOPIC, ReaderOptions())
        group.asked = True
        broker, reports = decode_reports((await reader.receive()).payload, 60.0)
        assert broker == first.running.settings.service_url
        assert [report.group for report in reports] == ["g"]
        await reader.close()
        # A report of the other one, as if topics of the group were there too.
        producer = await second.running.context.client.get().producer(USAGE_TOPIC)
        report = GroupReport("g", Rates(600, messages_wait=True), Rates(), True)
        from magnetar.client.message import OutgoingMessage

        for name in ("pulsar://nobody:1", second.running.settings.service_url):
            await producer.send(OutgoingMessage(encode_reports(name, [report], 60.0)))
            await producer.send(OutgoingMessage(b"no report"))
        await until(lambda: list(group.heard) == [second.running.settings.service_url])
        # Nobody publishes here, and somebody waits there.
        await until(lambda: 0 < group.publish.parts[0] < 30)
        await producer.close()
        await cluster.stop(second)
        await until(lambda: group.publish.parts == (1_000.0, 0.0))


class FakeBrokers:
    """An exchange of one broker among others, with nobody at the other end of its topic."""

    def __init__(self, others: int) -> None:
        self.timers = Timers()
        self.groups = ResourceGroups(Resources(MemoryMetadataStore()), self.timers, self.timers.call_later, _run_later)
        self.groups._limits = {}
        self.addresses: Mapping[str, BrokerAddresses] = {
            str(number): BrokerAddresses(
                broker_id=str(number),
                service_url=f"pulsar://b{number}:1",
                service_url_tls=None,
                web_service_url=None,
                web_service_url_tls=None,
            )
            for number in range(others + 1)
        }
        self.exchange = UsageExchange(
            self.groups,
            ExchangeParts(
                own=self.addresses["0"],
                brokers=lambda: self.addresses,
                client=_no_client,
                clock=self.timers,
                interval_seconds=lambda: 60.0,
            ),
        )

    def group(self, **limits: int) -> ResourceGroup:
        from magnetar.broker.resource_groups.group import limits_of

        self.groups._limits["g"] = limits_of(limits)
        (group,) = self.groups.of(TopicName.parse(TOPIC), "g")
        return group

    def hear(self, number: int, *reports: GroupReport) -> None:
        payload = encode_reports(f"pulsar://b{number}:1", reports, 60.0)
        self.exchange.take(cast(Any, SimpleNamespace(payload=payload)))

    async def ticks(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.timers.advance(1_000)
            await self.exchange.tick()


def _no_client() -> Any:
    raise AssertionError("nothing is sent before the loop's next turn")


def _run_later(work: Any) -> None:
    work.close()


OWN = GroupReport("g", Rates(), Rates(), True)


async def test_an_even_part_is_kept_until_the_others_have_heard_and_when_they_hear_no_more() -> None:
    brokers = FakeBrokers(others=3)
    group = brokers.group(publishRateInMsgs=1_000, dispatchRateInBytes=4_000)
    assert group.publish.parts == (250.0, 0.0)
    await brokers.ticks(5)
    assert group.publish.parts == (250.0, 0.0)
    assert group.dispatch.parts == (0.0, 1_000.0)
    group.report(brokers.timers.monotonic_seconds())
    brokers.hear(0, OWN)
    await brokers.ticks(SETTLE_SECONDS + 1)
    assert group.publish.parts == (1_000.0, 0.0)
    group.asked = True
    await brokers.ticks(ECHO_SECONDS_MAX + 1)
    assert group.publish.parts == (250.0, 0.0)
    brokers.hear(0, OWN)
    await brokers.ticks(1)
    assert group.publish.parts == (1_000.0, 0.0)
    await brokers.exchange.close()


async def test_only_brokers_of_the_cluster_and_groups_in_use_are_remembered() -> None:
    brokers = FakeBrokers(others=2)
    group = brokers.group(publishRateInMsgs=1_000)
    await brokers.ticks(1)
    for number in range(200):
        brokers.hear(number, *[GroupReport(f"x{index}", Rates(1), Rates(), True) for index in range(50)], OWN)
    assert list(group.heard) == ["pulsar://b1:1", "pulsar://b2:1"]
    assert [one.name for one in brokers.groups.in_use()] == ["g"]
    await brokers.exchange.close()


async def test_alone_a_broker_tells_nobody_and_uses_all() -> None:
    brokers = FakeBrokers(others=0)
    group = brokers.group(publishRateInMsgs=1_000)
    await brokers.ticks(3)
    assert group.publish.parts == (1_000.0, 0.0)
    assert not brokers.exchange._transport


async def test_a_group_without_topics_is_forgotten() -> None:
    brokers = FakeBrokers(others=0)
    group: ResourceGroup | None = brokers.group(publishRateInMsgs=1_000)
    assert brokers.groups.in_use() == [group]
    group = None
    assert brokers.groups.in_use() == []


@pytest.mark.parametrize("event", [SessionEvent.RECONNECTED, SessionEvent.SESSION_RESTARTED])
async def test_limits_are_read_again_once_changes_may_have_been_missed(event: SessionEvent) -> None:
    """No notification tells of what was changed while the store was out of reach."""
    limits = {"g": 5}
    heard: list[Any] = []

    async def children(path: str) -> list[str]:
        return list(limits)

    async def get(path: str) -> dict[str, int]:
        return {"publishRateInMsgs": limits[path.rpartition("/")[2]]}

    resources: Any = SimpleNamespace(
        documents=SimpleNamespace(children=children, get=get),
        configuration_store=SimpleNamespace(watch=lambda _: lambda: None, watch_session=heard.append),
    )
    timers = Timers()
    reads: list[Any] = []
    groups = ResourceGroups(resources, timers, timers.call_later, reads.append)
    groups.start()
    await reads.pop()
    topic = TopicName.parse("persistent://public/default/t")
    (group,) = groups.of(topic, "g")
    limits["g"] = 9
    heard[0](event)
    await reads.pop()
    assert group.limits.publish_messages == 9
