"""The admin API of topics in a cluster: whoever is asked answers for all, or says who does."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from magnetar.admin_client.client import AdminAnswer
from magnetar.broker.slices import CALLS_AT_ONCE
from magnetar.broker.testing.clusters import MemoryCluster
from magnetar.broker.testing.sessions import MemoryBroker

PERSISTENT = "/admin/v2/persistent/public/default"
PARTS = PERSISTENT + "/parts"
PARTITIONS = 8


class Anywhere:
    """Asks one broker of a cluster, following redirects or not."""

    def __init__(self, cluster: MemoryCluster, session: aiohttp.ClientSession) -> None:
        self.cluster = cluster
        self._session = session

    async def __call__(
        self, method: str, path: str, body: Any = None, *, broker: int = 0, follow: bool = True
    ) -> tuple[int, Any]:
        """Status, and the decoded answer (for a redirect: where to)."""
        data = None if body is None else json.dumps(body)
        async with self._session.request(
            method,
            self.cluster[broker].admin_url + path,
            data=data,
            headers={"Content-Type": "application/json"},
            allow_redirects=follow,
        ) as answer:
            if answer.status == 307:
                return answer.status, answer.headers["Location"]
            content = await answer.read()
            is_json = answer.content_type == "application/json" and content
            return answer.status, json.loads(content) if is_json else content


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with MemoryCluster(2) as running:
        yield running


@pytest.fixture
async def ask(cluster: MemoryCluster) -> AsyncIterator[Anywhere]:
    async with aiohttp.ClientSession() as session:
        yield Anywhere(cluster, session)


@pytest.fixture
async def spread(cluster: MemoryCluster, ask: Anywhere) -> list[MemoryBroker]:
    """A partitioned topic whose partitions are served by both brokers; the owner of each partition."""
    assert (await ask("PUT", PARTS + "/partitions", PARTITIONS))[0] == 204
    bundles = sorted({str(await cluster.bundle_of(f"{topic(index)}")) for index in range(PARTITIONS)})
    owners: list[MemoryBroker] = []
    for index in range(PARTITIONS):
        bundle = str(await cluster.bundle_of(topic(index)))
        broker = cluster[bundles.index(bundle) % 2]
        await cluster.take(broker, topic(index))
        owners.append(broker)
    assert set(map(id, owners)) == {id(cluster[0]), id(cluster[1])}
    return owners


def topic(index: int) -> str:
    return f"persistent://public/default/parts-partition-{index}"


async def publish(owners: list[MemoryBroker], count: int) -> None:
    """So many messages to each partition, at its owner."""
    for index, broker in enumerate(owners):
        client = await broker.connect()
        await client.producer(topic(index))
        await client.publish(count, publish_time=1_000)


async def test_what_another_broker_owns_is_redirected(ask: Anywhere, spread: list[MemoryBroker]) -> None:
    for index, owner in enumerate(spread):
        other = 1 - ask.cluster.brokers.index(owner)
        path = f"{PARTS}-partition-{index}/stats?getPreciseBacklog=true"
        status, location = await ask("GET", path, broker=other, follow=False)
        assert status == 307
        assert location.startswith(f"{owner.admin_url}{path}")
        assert (await ask("GET", path, broker=other))[1]["ownerBroker"] in owner.admin_url


async def test_partitions_are_made_without_being_owned(ask: Anywhere) -> None:
    assert (await ask("PUT", PARTS + "/partitions", PARTITIONS))[0] == 204
    assert all(not broker.service.topics for broker in ask.cluster.brokers)
    assert len((await ask("GET", PERSISTENT, broker=1))[1]) == PARTITIONS


@pytest.mark.parametrize(
    ("method", "what", "success"),
    [("PUT", "/unload", 204), ("POST", "/terminate/partitions", 200), ("GET", "/partitioned-internalStats", 200)],
)
async def test_partitions_are_asked_some_at_a_time(
    ask: Anywhere, monkeypatch: pytest.MonkeyPatch, method: str, what: str, success: int
) -> None:
    count = 2 * CALLS_AT_ONCE + 1
    assert (await ask("PUT", PARTS + "/partitions", count))[0] == 204
    asked = waiting = most = 0

    async def call(*_: object, **__: object) -> AdminAnswer:
        nonlocal asked, waiting, most
        asked += 1
        waiting += 1
        most = max(most, waiting)
        await asyncio.sleep(0)
        waiting -= 1
        return AdminAnswer(200, b"{}")

    monkeypatch.setattr(ask.cluster[0].running.context.peers, "call", call)
    assert (await ask(method, PARTS + what))[0] == success
    assert (asked, most) == (count, CALLS_AT_ONCE)


@pytest.mark.parametrize("broker", [0, 1])
async def test_a_partitioned_topic_over_two_brokers(ask: Anywhere, spread: list[MemoryBroker], broker: int) -> None:
    subscription = PARTS + "/subscription/s"
    earliest = {"ledgerId": -1, "entryId": -1}
    await publish(spread, 2)
    assert (await ask("PUT", subscription, earliest, broker=broker))[0] == 204
    assert (await ask("PUT", subscription, earliest, broker=broker))[0] == 409
    _, stats = await ask("GET", PARTS + "/partitioned-stats", broker=broker)
    assert (stats["msgInCounter"], stats["subscriptions"]["s"]["msgBacklog"]) == (2 * PARTITIONS, 2 * PARTITIONS)
    assert list(stats["partitions"]) == [topic(index) for index in range(PARTITIONS)]
    assert [stats["partitions"][topic(index)]["ownerBroker"] for index in range(PARTITIONS)] == [
        owner.running.settings.broker_id for owner in spread
    ]
    _, internals = await ask("GET", PARTS + "/partitioned-internalStats", broker=broker)
    assert {one["numberOfEntries"] for one in internals["partitions"].values()} == {2}
    assert await ask("GET", PARTS + "/subscriptions", broker=broker) == (200, ["s"])
    assert (await ask("POST", subscription + "/skip_all", broker=broker))[0] == 204
    _, stats = await ask("GET", PARTS + "/partitioned-stats?perPartition=false", broker=broker)
    assert (stats["subscriptions"]["s"]["msgBacklog"], stats["partitions"]) == (0, {})
    assert (await ask("POST", subscription + "/resetcursor/0", broker=broker))[0] == 204
    assert (await ask("POST", subscription + "/expireMessages/1", broker=broker))[0] == 204
    assert (await ask("PUT", subscription + "/properties", {"k": "v"}, broker=broker))[0] == 204
    assert await ask("GET", subscription + "/properties", broker=broker) == (200, {"k": "v"})
    assert (await ask("POST", subscription + "/replicatedSubscriptionStatus", True, broker=broker))[0] == 204
    _, replicated = await ask("GET", subscription + "/replicatedSubscriptionStatus", broker=broker)
    assert replicated == {topic(index): True for index in range(PARTITIONS)}
    assert (await ask("DELETE", subscription, broker=broker))[0] == 204
    assert (await ask("DELETE", subscription, broker=broker))[0] == 404
    assert (await ask("DELETE", PARTS + "/truncate", broker=broker))[0] == 204
    _, internals = await ask("GET", PARTS + "/partitioned-internalStats", broker=broker)
    assert {one["numberOfEntries"] for one in internals["partitions"].values()} == {0}


async def test_growing_copies_subscriptions_to_other_brokers(ask: Anywhere, spread: list[MemoryBroker]) -> None:
    body = {"ledgerId": -1, "entryId": -1, "properties": {"k": "v"}}
    assert (await ask("PUT", PARTS + "/subscription/a%2Bb?replicated=true", body))[0] == 204
    assert (await ask("POST", PARTS + "/partitions", PARTITIONS + 4, broker=1))[0] == 204
    assert (await ask("GET", PARTS + "/partitions"))[1]["partitions"] == PARTITIONS + 4
    for index in range(PARTITIONS, PARTITIONS + 4):
        _, stats = await ask("GET", f"{PARTS}-partition-{index}/stats")
        assert stats["subscriptions"]["a b"]["subscriptionProperties"] == {"k": "v"}
        assert stats["subscriptions"]["a b"]["isReplicated"]


async def test_terminating_unloading_and_deleting_over_brokers(ask: Anywhere, spread: list[MemoryBroker]) -> None:
    await publish(spread, 1)
    status, ids = await ask("POST", PARTS + "/terminate/partitions", broker=1)
    assert (status, sorted(map(int, ids))) == (200, list(range(PARTITIONS)))
    assert {one["entryId"] for one in ids.values()} == {0}
    assert (await ask("PUT", PARTS + "/unload", broker=1))[0] == 204
    assert all(not broker.service.topics for broker in ask.cluster.brokers)
    assert (await ask("DELETE", PARTS + "/partitions", broker=1))[0] == 204
    assert await ask("GET", PERSISTENT) == (200, [])
    assert (await ask("GET", PARTS + "/partitions"))[0] == 404


async def test_a_topic_in_use_at_another_broker_is_not_deleted(ask: Anywhere, spread: list[MemoryBroker]) -> None:
    client = await spread[-1].connect()
    await client.producer(topic(PARTITIONS - 1))
    broker = 1 - ask.cluster.brokers.index(spread[-1])
    status, answer = await ask("DELETE", PARTS + "/partitions", broker=broker)
    assert (status, answer) == (412, {"reason": "Topic has active producers/subscriptions"})
    assert (await ask("GET", PARTS + "/partitions"))[1]["partitions"] == PARTITIONS
    assert (await ask("DELETE", PARTS + "/partitions?force=true", broker=broker))[0] == 204


async def test_missed_partitions_are_made(ask: Anywhere, spread: list[MemoryBroker]) -> None:
    assert (await ask("DELETE", f"{PARTS}-partition-3", broker=1))[0] == 204
    assert len((await ask("GET", PERSISTENT))[1]) == PARTITIONS - 1
    _, stats = await ask("GET", PARTS + "/partitioned-stats")
    assert len(stats["partitions"]) == PARTITIONS - 1
    assert (await ask("POST", PARTS + "/createMissedPartitions", broker=1))[0] == 204
    assert len((await ask("GET", PERSISTENT))[1]) == PARTITIONS


async def test_non_persistent_topics_of_all_brokers(ask: Anywhere) -> None:
    base = "/admin/v2/non-persistent/public/default"
    names = [f"non-persistent://public/default/t{number}" for number in range(8)]
    owners = set()
    for number, name in enumerate(names):
        bundle = str(await ask.cluster.bundle_of(name))
        broker = ask.cluster[int(bundle.rpartition("/")[2][2], 16) // 4 % 2]
        await ask.cluster.take(broker, name)
        owners.add(id(broker))
        assert (await ask("PUT", f"{base}/t{number}", broker=1))[0] == 204
    assert len(owners) == 2
    for index in range(2):
        assert await ask("GET", base, broker=index) == (200, names)
    found: set[str] = set()
    _, bundles = await ask("GET", "/admin/v2/namespaces/public/default/bundles")
    boundaries = bundles["boundaries"]
    for low, high in itertools.pairwise(boundaries):
        status, some = await ask("GET", f"{base}/{low}_{high}", broker=1)
        assert status == 200
        found.update(some)
    assert found == set(names)
    assert (await ask("GET", f"{base}/0x00000000_0xffffffff"))[0] == 412
    assert (await ask("GET", f"{base}/nonsense"))[0] == 412
    assert await ask("GET", f"{base}/partitioned") == (200, [])
    assert (await ask("DELETE", f"{base}/none"))[0] == 204


async def test_policies_and_schemas_go_to_the_owner(ask: Anywhere) -> None:
    assert (await ask("PUT", PERSISTENT + "/t"))[0] == 204
    owner = await ask.cluster.lookup(ask.cluster[0], "persistent://public/default/t")
    other = 1 - ask.cluster.brokers.index(owner)
    schemas = "/admin/v2/schemas/public/default/t"
    for method, path, body in (
        ("GET", PERSISTENT + "/t/maxConsumers", None),
        ("POST", PERSISTENT + "/t/maxConsumers", 1),
        ("GET", schemas + "/schema", None),
        ("POST", schemas + "/schema", {"type": "STRING", "schema": ""}),
        ("PUT", PERSISTENT + "/t/unload", None),
        ("POST", PERSISTENT + "/t/subscription/s/skip_all", None),
        ("GET", PERSISTENT + "/t/subscription/s/position/1", None),
    ):
        status, location = await ask(method, path, body, broker=other, follow=False)
        assert (status, location.partition("?")[0]) == (307, owner.admin_url + path)
