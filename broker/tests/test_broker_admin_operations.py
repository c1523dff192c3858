"""Brokers seen as a whole, drains over HTTP, and what load balancers are told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from magnetar.broker.settings.admin import AdminSettings
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.load import LoadSettings
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.core.topic_name import TopicName

TOPICS = [f"persistent://public/default/t{number}" for number in range(20)]
SETTINGS = BrokerSettings(
    cluster_name="memory", load=LoadSettings(report_interval_ms_min=1, round_seconds=3600, unloads_per_second_max=1000)
)
REPORTS = "/admin/v2/brokers/load-reports"

Ask = Callable[..., Any]


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with MemoryCluster(3, SETTINGS) as running:
        yield running


@pytest.fixture
async def ask() -> AsyncIterator[Ask]:
    """Ask a broker: status and body."""
    async with aiohttp.ClientSession() as session:

        async def ask(broker: MemoryBroker, method: str, path: str) -> Any:
            async with session.request(method, broker.admin_url + path) as answer:
                return answer.status, await (answer.json() if "json" in answer.content_type else answer.text())

        yield ask


def own_id(broker: MemoryBroker) -> str:
    found: str = broker.running.context.ownership.own.broker_id
    return found


def owned_count(broker: MemoryBroker) -> int:
    return sum(name.namespace.name == "default" for name in broker.running.context.ownership.owned())


def drain_of(broker: MemoryBroker) -> str:
    return f"/admin/v2/brokers/{own_id(broker)}/drain"


async def test_every_broker_says_how_all_are(cluster: MemoryCluster, ask: Ask) -> None:
    bundle = await cluster.take(cluster[1], TOPICS[0])
    await cluster[1].service.topic(TopicName.parse(TOPICS[0]), create=True)
    cluster[1].running.context.load.renew_report()
    reports = cluster[0].running.context.load.directory.reports
    await until(lambda: reports[own_id(cluster[1])].total("topics") == 1)
    status, found = await ask(cluster[0], "GET", REPORTS + "?bundles=true")
    assert status == 200
    assert [row["broker"] for row in found] == sorted(map(own_id, cluster.brokers))
    row = next(row for row in found if row["broker"] == own_id(cluster[1]))
    assert (row["state"], row["magnetar"], row["topics"], row["bundles"]) == ("serving", True, 1, 1)
    assert row["bundleNames"] == [str(bundle)]
    leader = next(row["broker"] for row in found if row["leader"])
    elected = cluster[2].running.context.load.leader()
    assert elected is not None
    assert leader == elected.broker_id
    await ask(cluster[1], "POST", drain_of(cluster[1]))
    await until(lambda: own_id(cluster[1]) not in reports)
    assert (await ask(cluster[0], "GET", drain_of(cluster[1])))[0] == 200
    _, found = await ask(cluster[0], "GET", REPORTS)
    assert [row["state"] for row in found].count("draining") == 1
    assert "bundleNames" not in found[0]
    # The report of one that drains is renewed as well: how much is left is what people want to know.
    await until(lambda: owned_count(cluster[1]) == 0)
    for _ in range(100):
        _, found = await ask(cluster[0], "GET", REPORTS)
        if next(row for row in found if row["state"] == "draining")["bundles"] == 0:
            break
    else:
        raise AssertionError(found)
    await cluster.stop(cluster[1])
    assert len((await ask(cluster[0], "GET", REPORTS))[1]) == 2


async def test_any_broker_drains_any_other(cluster: MemoryCluster, ask: Ask) -> None:
    leaving = cluster[2]
    for topic in TOPICS:
        await cluster.take(leaving, topic)
        await leaving.service.topic(TopicName.parse(topic), create=True)
    had = owned_count(leaving)
    assert (await ask(cluster[0], "GET", drain_of(leaving)))[1]["step"] == "none"
    status, state = await ask(cluster[0], "POST", drain_of(leaving))
    assert (status, state["broker"], state["bundlesTotal"]) == (200, own_id(leaving), had)
    await until(lambda: own_id(leaving) not in cluster[0].running.context.load.brokers())
    await until(lambda: owned_count(leaving) == 0)
    assert (await ask(cluster[0], "POST", drain_of(leaving)))[0] == 200, "begun already"
    status, state = await ask(cluster[1], "DELETE", drain_of(leaving))
    assert (status, state["step"]) == (200, "none")
    await cluster.settled()
    assert (await ask(cluster[0], "POST", "/admin/v2/brokers/nobody:1/drain"))[0] == 404
    await cluster.stop(cluster[1])
    await cluster.stop(cluster[1])
    await cluster.settled()
    status, refusal = await ask(cluster[0], "POST", drain_of(cluster[0]))
    assert (status, "start one first" in refusal["reason"]) == (412, True)


async def test_status_says_where_no_client_should_be_sent(cluster: MemoryCluster, ask: Ask) -> None:
    leaving, status = cluster[2], "/status.html"
    assert await ask(leaving, "GET", status) == (200, "OK")
    await ask(leaving, "POST", drain_of(leaving))
    assert (await ask(leaving, "GET", status))[0] == 404
    assert (await ask(leaving, "GET", "/admin/v2/brokers/ready")) == (200, "ok")
    assert (await ask(cluster[0], "GET", status))[0] == 200
    await ask(leaving, "DELETE", drain_of(leaving))
    assert await ask(leaving, "GET", status) == (200, "OK")
    # Nobody is told to go away from brokers that are all without their metadata store.
    leaving.store.disconnect()
    assert (await ask(leaving, "GET", status))[0] == 200
    leaving.store.reconnect()


async def test_a_file_takes_a_broker_out_of_rotation(tmp_path: Path, ask: Ask) -> None:
    file = tmp_path / "status"
    settings = replace(SETTINGS, admin=AdminSettings(status_file=str(file)))
    async with MemoryBroker(settings) as broker:
        assert (await ask(broker, "GET", "/status.html"))[0] == 404
        file.touch()
        assert await ask(broker, "GET", "/status.html") == (200, "OK")
