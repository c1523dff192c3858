"""The admin API over several brokers: whoever is asked, the owners do it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from magnetar.broker.admin.web.documents import READ_ONLY_FLAG
from magnetar.broker.settings.admin import AdminSettings
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.broker.topics.service import BrokerService
from magnetar.core.bundle import BundleName
from magnetar.core.topic_name import TopicName

NAMESPACE = "/admin/v2/namespaces/public/default"
CLUSTER = "memory"
FORCE = AdminSettings(force_delete_namespace_allowed=True, force_delete_tenant_allowed=True)
TOPICS = [f"persistent://public/default/t{number}" for number in range(12)]


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with MemoryCluster(3, BrokerSettings(cluster_name=CLUSTER, admin=FORCE)) as running:
        yield running


Ask = Callable[..., Any]


@pytest.fixture
async def ask() -> AsyncIterator[Ask]:
    """Ask a broker: status, body, and where it sends the one who asks."""
    async with aiohttp.ClientSession() as session:

        async def ask(
            broker: MemoryBroker, method: str, path: str, body: bytes | None = None, *, follow: bool = True
        ) -> Any:
            url = broker.admin_url + path
            async with session.request(method, url, data=body, allow_redirects=follow) as answer:
                content = await answer.read()
                found = await answer.json(content_type=None) if content and answer.status != 307 else None
                return answer.status, found, answer.headers.get("Location")

        yield ask


async def spread(cluster: MemoryCluster, topics: list[str]) -> dict[BundleName, MemoryBroker]:
    """Each topic is made by the broker whose turn it is to own its bundle."""
    owners: dict[BundleName, MemoryBroker] = {}
    for topic in topics:
        bundle = await cluster.bundle_of(topic)
        if bundle not in owners:
            owners[bundle] = cluster[len(owners) % len(cluster.brokers)]
            await cluster.take(owners[bundle], topic)
        await owners[bundle].service.topic(TopicName.parse(topic), create=True)
    return owners


def leader_of(cluster: MemoryCluster) -> MemoryBroker:
    (leader,) = [broker for broker in cluster.brokers if broker.running.context.load.leading]
    return leader


async def test_a_bundle_is_unloaded_by_its_owner(cluster: MemoryCluster, ask: Ask) -> None:
    owners = await spread(cluster, TOPICS)
    for bundle, owner in owners.items():
        path = f"{NAMESPACE}/{bundle.range}/unload"
        other = next(broker for broker in cluster.brokers if broker is not owner)
        status, _, location = await ask(other, "PUT", path + "?x=%26", follow=False)
        leading = str(other is leader_of(cluster)).lower()
        assert (status, location) == (307, f"{owner.admin_url}{path}?x=%26&authoritative={leading}")
        assert (await ask(other, "PUT", path))[0] == 204
        assert cluster.owners(bundle) == []
        assert (await ask(other, "PUT", path))[0] == 204, "what nobody owns is let go of already"


async def test_a_bundle_goes_where_it_is_sent(cluster: MemoryCluster, ask: Ask) -> None:
    bundle, owner = next(iter((await spread(cluster, TOPICS)).items()))
    for destination in cluster.brokers:
        path = f"{NAMESPACE}/{bundle.range}/unload?destinationBroker={destination.running.settings.broker_id}"
        assert (await ask(owner, "PUT", path))[0] == 204
        assert cluster.owners(bundle) == [destination]
    path = f"{NAMESPACE}/{bundle.range}/unload?destinationBroker=nobody:1"
    assert (await ask(owner, "PUT", path))[0] == 409


async def test_a_namespace_is_unloaded_by_all_its_owners(cluster: MemoryCluster, ask: Ask) -> None:
    owners = await spread(cluster, TOPICS)
    assert len(set(owners.values())) == len(cluster.brokers)
    assert (await ask(cluster[0], "PUT", NAMESPACE + "/unload"))[0] == 204
    assert not any(cluster.owners(bundle) for bundle in owners)
    assert not any(name in broker.service.topics for broker in cluster.brokers for name in TOPICS)


async def test_unloads_of_a_namespace_at_once_all_succeed(
    cluster: MemoryCluster, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks for what is under way already, whichever broker does it, waits for its end."""
    owners = await spread(cluster, TOPICS)
    held, closing = asyncio.Event(), 0

    async def slowly(service: BrokerService, *arguments: Any) -> None:
        nonlocal closing
        closing += 1
        await held.wait()
        await close_topic(service, *arguments)

    close_topic = BrokerService.close_topic
    monkeypatch.setattr(BrokerService, "close_topic", slowly)
    first = asyncio.create_task(ask(cluster[0], "PUT", NAMESPACE + "/unload"))
    await until(lambda: closing == len(TOPICS))
    others = [
        asyncio.create_task(ask(broker, "PUT", NAMESPACE + "/unload")) for broker in (*cluster.brokers, cluster[0])
    ]
    bundle, owner = next(iter(owners.items()))
    one = asyncio.create_task(ask(owner, "PUT", f"{NAMESPACE}/{bundle.range}/unload"))
    done, _ = await asyncio.wait([first, one, *others], timeout=0.2)
    held.set()
    assert not done, [task.result() for task in done]
    assert {(await task)[0] for task in (first, one, *others)} == {204}
    assert not any(cluster.owners(bundle) for bundle in owners)


async def test_a_bundle_is_split_by_its_owner(cluster: MemoryCluster, ask: Ask) -> None:
    bundle, owner = next(iter((await spread(cluster, TOPICS)).items()))
    other = next(broker for broker in cluster.brokers if broker is not owner)
    assert (await ask(other, "PUT", f"{NAMESPACE}/{bundle.range}/split"))[0] == 204
    status, bundles, _ = await ask(other, "GET", NAMESPACE + "/bundles")
    middle = bundle.range.low + (bundle.range.high - bundle.range.low) // 2
    assert status == 200
    assert f"0x{middle:08x}" in bundles["boundaries"]
    status, answer, _ = await ask(other, "GET", f"{NAMESPACE}/{bundle.range}/topicHashPositions")
    assert status == 412, answer
    largest = await ask(other, "PUT", f"{NAMESPACE}/LARGEST/split")
    assert largest[0] == 204
    assert (await ask(other, "PUT", f"{NAMESPACE}/HOT/split"))[0] == 404, "nobody has reported traffic"


async def test_backlogs_and_subscriptions_of_a_namespace(cluster: MemoryCluster, ask: Ask) -> None:
    owners = await spread(cluster, TOPICS)
    for topic in TOPICS:
        loaded = await owners[await cluster.bundle_of(topic)].service.topic(TopicName.parse(topic), create=True)
        for name in ("s", "other"):
            await loaded.create_subscription(name, (-1, -1))
    # One that is not loaded counts as well.
    await owners[await cluster.bundle_of(TOPICS[0])].service.unload(TopicName.parse(TOPICS[0]))
    assert (await ask(cluster[1], "POST", NAMESPACE + "/clearBacklog/s"))[0] == 204
    assert (await ask(cluster[1], "POST", NAMESPACE + "/clearBacklog"))[0] == 204
    assert (await ask(cluster[2], "POST", NAMESPACE + "/unsubscribe/other"))[0] == 204
    for topic in TOPICS:
        loaded = await owners[await cluster.bundle_of(topic)].service.topic(TopicName.parse(topic), create=False)
        assert set(loaded.subscriptions) == {"s"}
        assert loaded.subscriptions["s"].cursor.backlog_entries == 0


async def test_a_subscription_in_use_stays(cluster: MemoryCluster, ask: Ask) -> None:
    owners = await spread(cluster, TOPICS[:1])
    owner = next(iter(owners.values()))
    client = await owner.connect()
    await client.consumer(TOPICS[0])
    status, reason, _ = await ask(cluster[2], "POST", NAMESPACE + "/unsubscribe/s")
    assert status == 412, reason


async def test_topics_of_all_brokers_are_listed_and_deleted(cluster: MemoryCluster, ask: Ask) -> None:
    namespace = "/admin/v2/namespaces/public/gone"
    passing = [f"non-persistent://public/gone/p{number}" for number in range(6)]
    stored = [f"persistent://public/gone/t{number}" for number in range(6)]
    assert (await ask(cluster[0], "PUT", namespace))[0] == 204
    await spread(cluster, passing + stored)
    assert (await ask(cluster[1], "PUT", "/admin/v2/persistent/public/gone/parts/partitions", b"2"))[0] == 204
    parts = [f"persistent://public/gone/parts-partition-{index}" for index in range(2)]
    for mode, expected in (
        ("ALL", passing + stored + parts),
        ("NON_PERSISTENT", passing),
        ("PERSISTENT", stored + parts),
    ):
        status, found, _ = await ask(cluster[2], "GET", f"{namespace}/topics?mode={mode}")
        assert (status, found) == (200, sorted(expected))
    assert (await ask(cluster[2], "DELETE", namespace))[0] == 409
    assert (await ask(cluster[2], "DELETE", namespace + "?force=true"))[0] == 204
    store = cluster[0].store
    for path in ("/namespace", "/managed-ledgers", "/admin/policies", "/admin/local-policies"):
        assert "gone" not in await store.children(f"{path}/public"), path
    assert not any(
        name.partition("://")[2].startswith("public/gone/")
        for broker in cluster.brokers
        for name in broker.service.topics
    )
    assert (await ask(cluster[1], "PUT", namespace))[0] == 204, "it can be made again"


async def test_a_tenant_goes_with_its_namespaces(cluster: MemoryCluster, ask: Ask) -> None:
    tenant = "/admin/v2/tenants/t"
    assert (await ask(cluster[0], "PUT", tenant, b'{"allowedClusters":["memory"]}'))[0] == 204
    assert (await ask(cluster[0], "PUT", "/admin/v2/namespaces/t/n"))[0] == 204
    assert (await ask(cluster[0], "PUT", "/admin/v2/persistent/t/n/topic"))[0] == 204
    assert (await ask(cluster[1], "DELETE", tenant))[0] == 409
    assert (await ask(cluster[1], "DELETE", tenant + "?force=true"))[0] == 204
    assert "t" not in await cluster[0].store.children("/admin/policies")


async def test_brokers_know_each_other(cluster: MemoryCluster, ask: Ask) -> None:
    ids = sorted(broker.running.settings.broker_id for broker in cluster.brokers)
    leader = leader_of(cluster)
    owners = await spread(cluster, TOPICS)
    for broker in cluster.brokers:
        assert (await ask(broker, "GET", "/admin/v2/brokers"))[1] == ids
        _, found, _ = await ask(broker, "GET", "/admin/v2/brokers/leaderBroker")
        assert found == {"brokerId": leader.running.settings.broker_id, "serviceUrl": leader.admin_url}
    asked, other = cluster[0], cluster[1]
    other_id = other.running.settings.broker_id
    _, owned, _ = await ask(asked, "GET", f"/admin/v2/brokers/{CLUSTER}/{other_id}/ownedNamespaces")
    assert {str(bundle) for bundle, owner in owners.items() if owner is other} <= set(owned)
    status, _, location = await ask(asked, "GET", f"/admin/v2/brokers/health?brokerId={other_id}", follow=False)
    assert status == 307
    assert location.startswith(other.admin_url)


async def test_an_isolation_policy_moves_what_it_is_about(cluster: MemoryCluster, ask: Ask) -> None:
    owners = await spread(cluster, TOPICS)
    policy = (
        b'{"namespaces":["public/.*"],"primary":["127.0.0.1"],"secondary":[],"auto_failover_policy":'
        b'{"policy_type":"min_available","parameters":{"min_limit":"1","usage_threshold":"80"}}}'
    )
    path = f"/admin/v2/clusters/{CLUSTER}/namespaceIsolationPolicies/p"
    assert (await ask(cluster[0], "POST", path, policy))[0] == 204
    assert not any(cluster.owners(bundle) for bundle in owners)
    broker_id = cluster[0].running.settings.broker_id
    _, found, _ = await ask(
        cluster[0], "GET", f"/admin/v2/clusters/{CLUSTER}/namespaceIsolationPolicies/brokers/{broker_id}"
    )
    assert found == {"brokerName": broker_id, "policyName": "p", "namespaceRegex": ["public/.*"], "primary": True}


@pytest.mark.parametrize("field", ["namespaces", "primary", "secondary"])
async def test_an_isolation_policy_has_only_expressions_that_are_matched(
    cluster: MemoryCluster, ask: Ask, field: str
) -> None:
    policy: dict[str, object] = {
        "namespaces": ["public/.*"],
        "primary": ["127.0.0.1"],
        "secondary": [],
        "auto_failover_policy": {
            "policy_type": "min_available",
            "parameters": {"min_limit": "1", "usage_threshold": "80"},
        },
    }
    path = f"/admin/v2/clusters/{CLUSTER}/namespaceIsolationPolicies/p"
    for expression in ("(?!public/).*", "(a+)+\\1", "["):
        body = json.dumps({**policy, field: [expression]}).encode()
        status, answer, _ = await ask(cluster[0], "POST", path, body)
        assert status == 400
        said = f"; {field}: {expression!r} is no regular expression that brokers match: "
        assert said in answer["reason"]
    assert (await ask(cluster[0], "GET", path))[0] == 404


async def test_policies_that_may_only_be_read(cluster: MemoryCluster, ask: Ask) -> None:
    await cluster[0].store.put(READ_ONLY_FLAG, b"")
    for method, path, body in (
        ("POST", NAMESPACE + "/messageTTL", b"7"),
        ("PUT", "/admin/v2/namespaces/public/new", None),
        ("DELETE", NAMESPACE, None),
        ("PUT", "/admin/v2/tenants/t", b'{"allowedClusters":["memory"]}'),
        ("PUT", "/admin/v2/clusters/east", b"{}"),
        ("PUT", "/admin/v2/resourcegroups/g", b"{}"),
        ("POST", NAMESPACE + "/permissions/role", b'["produce"]'),
        ("POST", NAMESPACE + "/antiAffinity", b"g"),
    ):
        assert (await ask(cluster[1], method, path, body))[0] == 403, path
    assert (await ask(cluster[1], "GET", NAMESPACE + "/messageTTL"))[0] == 200
    await cluster[0].store.delete(READ_ONLY_FLAG)
    assert (await ask(cluster[1], "POST", NAMESPACE + "/messageTTL", b"7"))[0] == 204


async def test_a_broker_is_told_to_stop(cluster: MemoryCluster, ask: Ask) -> None:
    stopped = asyncio.Event()
    owners = await spread(cluster, TOPICS)
    broker = cluster[1]
    shutdown = "/admin/v2/brokers/shutdown?maxConcurrentUnloadPerSec="
    assert (await ask(broker, "POST", shutdown + "1000"))[0] == 501
    object.__setattr__(broker.running.context, "request_stop", stopped.set)
    assert (await ask(broker, "POST", shutdown + "x"))[0] == 412
    assert (await ask(broker, "POST", shutdown + "1000"))[0] == 204
    assert stopped.is_set()
    assert not any(broker in cluster.owners(bundle) for bundle in owners)
    await until(lambda: broker.running.settings.broker_id not in cluster[0].running.context.load.brokers())
