"""Settings of the admin API and of metrics that change while a broker runs."""

from __future__ import annotations

import re
from typing import Any, Final

import aiohttp
import pytest
from magnetar.broker.admin.topics.partitions import check_client
from magnetar.broker.admin.web.responses import AdminError
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient

CONFIGURATION: Final = "/admin/v2/brokers/configuration"
NAMESPACE: Final = "/admin/v2/namespaces/public/default"
TOPIC: Final = "/admin/v2/persistent/public/default/t"
UNKNOWN: Final = "httpRequestsFailOnUnknownPropertiesEnabled"
VERSIONS: Final = "clientLibraryVersionCheckEnabled"
BUNDLES: Final = "exposeBundlesMetricsInPrometheus"

RETENTION: Final = {"retentionTimeInMinutes": 5, "retentionSizeInMB": 5}


async def test_members_that_nobody_knows_are_passed_over_or_refused(admin: Any) -> None:
    wrong = {**RETENTION, "retentionTimeInHours": 5}
    rate = {"publishThrottlingRateInMsg": 1, "burst": 2}
    tenant = {"allowedClusters": ["standalone"], "owner": "me"}
    policies = {"bundles": {"numBundles": 2, "cut": "evenly"}}
    await admin.check(
        ("PUT", TOPIC, None, 204, None),
        ("POST", NAMESPACE + "/retention", wrong, 204, None),
        ("PUT", "/admin/v2/tenants/one", tenant, 204, None),
        ("POST", f"{CONFIGURATION}/{UNKNOWN}/true", None, 200, None),
        ("POST", NAMESPACE + "/retention", {**wrong, "retentionSizeInMB": 7}, 400, 'field "retentionTimeInHours"'),
        ("GET", NAMESPACE + "/retention", None, 200, RETENTION),
        ("POST", NAMESPACE + "/retention", {**RETENTION, "retentionSizeInMB": 7}, 204, None),
        ("POST", TOPIC + "/publishRate", rate, 400, "burst"),
        ("POST", TOPIC + "/s/dispatchRate", {"burst": 2}, 400, "burst"),
        ("PUT", "/admin/v2/tenants/two", tenant, 400, "owner"),
        ("PUT", "/admin/v2/namespaces/public/new", policies, 400, "cut"),
        ("PUT", "/admin/v2/namespaces/public/new", {"is_mine": True}, 400, "is_mine"),
        # What is stored may have any members: brokers of another version wrote it.
        ("GET", NAMESPACE, None, 200, ...),
        ("DELETE", f"{CONFIGURATION}/{UNKNOWN}", None, 200, None),
        ("PUT", "/admin/v2/tenants/two", tenant, 204, None),
    )


async def partitions(broker: MemoryBroker, agent: str | None) -> tuple[int, str]:
    """What a client of this name hears of a topic's partitions."""
    headers = {} if agent is None else {"User-Agent": agent}
    async with (
        aiohttp.ClientSession(skip_auto_headers=["User-Agent"]) as session,
        session.get(broker.admin_url + TOPIC + "/partitions", headers=headers) as answer,
    ):
        return answer.status, await answer.text()


async def test_clients_that_are_too_old_for_partitions_are_told_no_counts(
    admin: Any, memory_broker: MemoryBroker
) -> None:
    await admin.check(("PUT", TOPIC + "/partitions", 3, 204, None))
    assert (await partitions(memory_broker, None))[0] == 200
    await admin.check(("POST", f"{CONFIGURATION}/{VERSIONS}/true", None, 200, None))
    status, told = await partitions(memory_broker, None)
    assert (status, "version in user-agent is not present" in told) == (405, True)
    status, told = await partitions(memory_broker, "Pulsar-CPP-v1.20-incubating")
    assert (status, "Pulsar-CPP-v1.20-incubating is not supported" in told) == (405, True)
    assert (await partitions(memory_broker, "Pulsar-CPP-v3.5.1"))[0] == 200
    await admin.check(
        ("PUT", TOPIC.replace("/t", "/u") + "/partitions", 1, 204, None),
        ("DELETE", f"{CONFIGURATION}/{VERSIONS}", None, 200, None),
    )
    assert (await partitions(memory_broker, "Pulsar-CPP-v1.20-incubating"))[0] == 200


@pytest.mark.parametrize(
    ("agent", "good"),
    [
        ("", False),
        ("  ", False),
        ("Pulsar-CPP-v1.20", False),
        ("Pulsar-CPP-v0.99.1", False),
        ("Pulsar-CPP-v1.21", True),
        ("Pulsar-CPP-v2.0.1", True),
        ("Pulsar-CPP-v3", True),
        ("Pulsar-CPP-vnext", True),
        ("Pulsar-Java-v1.0", True),
        ("curl/8", True),
    ],
)
def test_which_clients_are_too_old(agent: str, good: bool) -> None:
    if good:
        check_client(agent)
        return
    with pytest.raises(AdminError, match="not compatible") as refused:
        check_client(agent)
    assert refused.value.status == 405


async def bundle_lines(broker: MemoryBroker) -> list[str]:
    """What `/metrics` says of bundles."""
    async with aiohttp.ClientSession() as session, session.get(broker.admin_url + "/metrics") as answer:
        return [line for line in (await answer.text()).splitlines() if "pulsar_bundle_" in line]


async def test_what_each_bundle_does_is_told_or_not(memory_broker: MemoryBroker, client: ProtocolClient) -> None:
    await client.producer("persistent://public/default/t")
    await client.consumer("persistent://public/default/t")
    load, dynamic = memory_broker.running.context.load, memory_broker.running.context.dynamic
    await load.report(at_once=True)
    assert await bundle_lines(memory_broker) == []
    await dynamic.set(BUNDLES, "true")
    lines = await bundle_lines(memory_broker)
    declared = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    names = ["msg_rate_in", "msg_rate_out", "topics_count", "consumer_count", "producer_count"]
    names += ["msg_throughput_in", "msg_throughput_out"]
    assert sorted(declared) == sorted(f"pulsar_bundle_{name}" for name in names)
    for name in ("topics", "consumer", "producer"):
        (found,) = [line for line in lines if f"bundle_{name}_count{{" in line and not line.endswith(" 0")]
        assert found.endswith(" 1")
        assert re.search(r'bundle="public/default/0x[0-9a-f]{8}_0x[0-9a-f]{8}",metric="bundle"', found)
        assert 'cluster="standalone",broker="127.0.0.1"' in found
    groups = [group for group in load.load_balancing_metrics() if group["dimensions"]["metric"] == "bundle"]
    assert {group["dimensions"]["bundle"] for group in groups} == set(map(str, memory_broker.service.ownership.owned()))
    await dynamic.remove(BUNDLES)
    assert await bundle_lines(memory_broker) == []
