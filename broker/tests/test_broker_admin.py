"""The admin API over its real HTTP server: clusters, tenants, namespaces and their policies, schemas, brokers."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import time
from typing import Any

import aiohttp
import pytest
from magnetar.broker.admin.brokers import metrics
from magnetar.broker.admin.brokers.metrics import CollectedMetrics
from magnetar.broker.context import BrokerContext
from magnetar.broker.testing.sessions import ProtocolClient
from magnetar.core.limits import MIB
from magnetar.core.topic_name import TopicName
from magnetar.net.testing import until
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

Command = pb.BaseCommand
NAMESPACE = "/admin/v2/namespaces/public/default"
PERSISTENT = "/admin/v2/persistent/public/default"
TOPIC = PERSISTENT + "/topic"
SCHEMAS = "/admin/v2/schemas/public/default/topic"
RECORD = {"type": "JSON", "schema": '{"type":"record","name":"R","fields":[]}', "properties": {"k": "v"}}
SWITCHED_OFF = dict.fromkeys(
    ("brokerClientTlsEnabled", "tlsAllowInsecureConnection", "brokerClientTlsEnabledWithKeyStore"), False
)
TENANT = {"adminRoles": ["r"], "allowedClusters": ["standalone"]}


async def test_clusters(admin: Any) -> None:
    base = "/admin/v2/clusters"
    await admin.check(
        ("GET", base, None, 200, ["standalone"]),
        ("PUT", base + "/east", {"serviceUrl": "http://east:8080"}, 200, None),
        ("PUT", base + "/east", {"serviceUrl": "http://east:8080"}, 409, "already exists"),
        ("PUT", base + "/not%20a%20name", {}, 412, "not valid"),
        ("PUT", base + "/west", b"nonsense", 400, "JSON"),
        ("PUT", base + "/west", [1], 400, "object"),
        ("PUT", base + "/west", {"serviceUrl": "pulsar://west"}, 400, "Illegal service url"),
        ("POST", base + "/east", {"brokerServiceUrl": "pulsar://east:6650"}, 200, None),
        (
            "GET",
            base + "/east",
            None,
            200,
            {"brokerServiceUrl": "pulsar://east:6650", **SWITCHED_OFF},
        ),
        ("POST", base + "/none", {}, 404, "does not exist"),
        ("GET", base + "/none", None, 404, "does not exist"),
        ("GET", base, None, 200, ["east", "standalone"]),
        ("DELETE", base + "/standalone", None, 412, "not empty"),
        ("DELETE", base + "/east", None, 204, None),
        ("DELETE", base + "/east", None, 404, "does not exist"),
    )


async def test_tenants(admin: Any) -> None:
    base = "/admin/v2/tenants"
    await admin.check(
        ("GET", base, None, 200, ["public", "pulsar"]),
        ("PUT", base + "/t", TENANT, 204, None),
        ("PUT", base + "/t", TENANT, 409, "already exist"),
        ("PUT", base + "/a%20b", TENANT, 412, "not valid"),
        ("PUT", base + "/u", {"allowedClusters": []}, 412, "empty"),
        ("PUT", base + "/u", {"allowedClusters": ["nowhere"]}, 412, "do not exist"),
        ("PUT", base + "/u", {"allowedClusters": "standalone"}, 400, "list"),
        ("PUT", base + "/u", None, 412, "null"),
        ("PUT", base + "/u", {"adminRoles": [" r"], "allowedClusters": ["standalone"]}, 412, "whitespace"),
        ("PUT", base + "/u", b"{", 400, "JSON"),
        ("GET", base + "/t", None, 200, TENANT),
        ("POST", base + "/t", {**TENANT, "adminRoles": []}, 204, None),
        ("GET", base + "/t", None, 200, {**TENANT, "adminRoles": []}),
        ("POST", base + "/none", TENANT, 404, "not found"),
        ("GET", base + "/none", None, 404, "does not exist"),
        ("PUT", "/admin/v2/namespaces/t/n", None, 204, None),
        ("DELETE", base + "/t", None, 409, "active namespaces"),
        ("DELETE", "/admin/v2/namespaces/t/n", None, 204, None),
        ("DELETE", base + "/t", None, 204, None),
        ("DELETE", base + "/t", None, 404, "doesn't exist"),
    )


async def test_namespaces(admin: Any) -> None:
    base = "/admin/v2/namespaces/public"
    halves = {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"], "numBundles": 2}
    uneven = {"boundaries": ["0x00000000", "0x10000000", "0xffffffff"], "numBundles": 2}
    await admin.check(
        ("GET", base, None, 200, ["public/default"]),
        ("GET", "/admin/v2/namespaces/none", None, 404, "not found"),
        ("PUT", base + "/n", {"bundles": {"numBundles": 2}}, 204, None),
        ("PUT", base + "/n", None, 409, "already exists"),
        ("GET", base + "/n/bundles", None, 200, halves),
        ("PUT", base + "/number", 2, 204, None),
        ("GET", base + "/number/bundles", None, 200, halves),
        ("PUT", base + "/uneven", {"bundles": uneven}, 204, None),
        ("GET", base + "/uneven/bundles", None, 200, uneven),
        ("PUT", base + "/x", {"bundles": {"boundaries": ["0x00000000", "0x1"], "numBundles": 1}}, 400, "whole hash"),
        ("PUT", base + "/x", {"bundles": {"boundaries": ["zero"], "numBundles": 1}}, 400, "numbers"),
        ("PUT", base + "/x", {"bundles": {"numBundles": 100_000}}, 400, "between 1 and"),
        ("PUT", base + "/x", {"bundles": {"numBundles": "two"}}, 400, "whole number"),
        ("PUT", base + "/x", {"bundles": 7}, 400, "object"),
        ("PUT", base + "/x", "text", 400, "policies"),
        ("PUT", base + "/x", b"nonsense", 400, "JSON"),
        ("PUT", base + "/a%20b", None, 412, "not valid"),
        ("PUT", "/admin/v2/namespaces/none/n", None, 404, "Tenant does not exist"),
        ("GET", base + "/none", None, 404, "does not exist"),
        ("GET", base + "/none/bundles", None, 404, "does not exist"),
        ("GET", base + "/none/topics", None, 404, "does not exist"),
        ("PUT", base + "/none/unload", None, 404, "not found"),
        ("DELETE", base + "/none", None, 404, "does not exist"),
        ("DELETE", base + "/n", None, 204, None),
        ("GET", base + "/n", None, 404, "does not exist"),
    )


async def test_namespace_document(admin: Any) -> None:
    status, policies = await admin("GET", NAMESPACE)
    assert status == 200
    assert policies["replication_clusters"] == ["standalone"]
    assert policies["bundles"]["numBundles"] == len(policies["bundles"]["boundaries"]) - 1
    fields = "auth_policies backlog_quota_map deleted encryption_required schema_compatibility_strategy properties"
    assert set(fields.split()) <= set(policies)


async def test_namespace_topics_and_deletion(admin: Any, client: ProtocolClient) -> None:
    base = "/admin/v2/namespaces/public/n"
    stored, passing = "persistent://public/n/t", "non-persistent://public/n/t"
    await admin.check(("PUT", base, None, 204, None))
    await client.producer(stored)
    await client.producer(passing, 2)
    await client.request(Command.CLOSE_PRODUCER, producer_id=2)
    await admin.check(("PUT", "/admin/v2/persistent/public/n/parts/partitions", 2, 204, None),
        ("GET", base + "/topics?mode=ALL", None, 200, [passing, f"{stored[:-1]}parts-partition-0",
                                                      f"{stored[:-1]}parts-partition-1", stored]),
        ("GET", base + "/topics?mode=NON_PERSISTENT", None, 200, [passing]),
        ("DELETE", base, None, 409, "non empty"),
        ("PUT", base + "/unload", None, 204, None),
    )  # fmt: skip
    await client.expect(Command.CLOSE_PRODUCER)
    assert not admin.broker.service.topics
    await admin.check(
        ("DELETE", base + "?force=true", None, 405, "doesn't allow"),
        ("POST", "/admin/v2/brokers/configuration/forceDeleteNamespaceAllowed/true", None, 200, None),
        ("DELETE", base + "?force=true", None, 204, None),
        ("GET", base + "/topics", None, 404, "does not exist"),
    )
    assert (await client.request(Command.PRODUCER, topic=stored, producer_id=3)).body.error == pb.TopicNotFound


async def test_retention_reaches_loaded_topics(admin: Any, client: ProtocolClient) -> None:
    await client.producer("topic")
    ledger = admin.broker.service.topics["persistent://public/default/topic"].ledger
    for body, time_ms, size_bytes in (
        ({"retentionTimeInMinutes": 3, "retentionSizeInMB": 5}, 180_000, 5 * MIB),
        ({"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}, -1, -1),
    ):
        await admin.check(("POST", NAMESPACE + "/retention", body, 204, None))
        assert (ledger.settings.retention_time_ms, ledger.settings.retention_size_bytes) == (time_ms, size_bytes)
        await client.producer("other", 2)
        other = admin.broker.service.topics["persistent://public/default/other"].ledger
        assert other.settings.retention_time_ms == time_ms, "and those that are loaded later"
        await admin.broker.service.unload(TopicName.parse("other"))
    await admin.check(("DELETE", NAMESPACE + "/retention", None, 204, None))
    assert ledger.settings.retention_time_ms == 0


async def test_auto_creation_policies(admin: Any, client: ProtocolClient) -> None:
    partitioned = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
    await admin.check(("POST", NAMESPACE + "/autoTopicCreation", partitioned, 204, None))
    assert (await client.request(Command.PARTITIONED_METADATA, topic="new")).body.partitions == 3
    await admin.check(("POST", NAMESPACE + "/autoTopicCreation", {"allowAutoTopicCreation": False}, 204, None))
    assert (await client.request(Command.PRODUCER, topic="t", producer_id=1)).body.error == pb.TopicNotFound
    await admin.check(("DELETE", NAMESPACE + "/autoTopicCreation", None, 204, None))
    await client.producer("t")
    forbidden = {"allowAutoSubscriptionCreation": False}
    await admin.check(("POST", NAMESPACE + "/autoSubscriptionCreation", forbidden, 204, None))
    answer = await client.request(Command.SUBSCRIBE, topic="t", subscription="s", subType=0, consumer_id=1)
    assert answer.body.error == pb.SubscriptionNotFound
    await admin.check(("PUT", PERSISTENT + "/t/subscription/s", None, 204, None))
    await client.consumer("t")


async def test_schema_policies(admin: Any, client: ProtocolClient) -> None:
    def schema(name: str) -> dict[str, object]:
        fields = [{"name": name, "type": "int"}]
        data = json.dumps({"type": "record", "name": "R", "fields": fields}).encode()
        return {"name": "s", "type": 2, "schema_data": data}

    await client.producer("topic", schema=schema("a"))
    refused = await client.request(Command.PRODUCER, topic="topic", producer_id=2, schema=schema("b"))
    assert refused.body.error == pb.IncompatibleSchema
    await admin.check(("PUT", NAMESPACE + "/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE", 204, None))
    assert (await client.producer("topic", 2, schema=schema("b"))).schema_version == (1).to_bytes(8, "big")
    await admin.check(("POST", NAMESPACE + "/isAllowAutoUpdateSchema", False, 204, None))
    refused = await client.request(Command.PRODUCER, topic="topic", producer_id=3, schema=schema("c"))
    assert refused.body.error == pb.IncompatibleSchema
    await admin.check(("POST", NAMESPACE + "/schemaValidationEnforced", True, 204, None))
    refused = await client.request(Command.PRODUCER, topic="topic", producer_id=3)
    assert refused.body.error == pb.IncompatibleSchema


# --- schemas, lookup, brokers, metrics


async def test_schemas(admin: Any) -> None:
    await admin.check(
        ("GET", SCHEMAS + "/schema", None, 404, "not found"),
        ("DELETE", SCHEMAS + "/schema", None, 200, {"version": 0}),
        ("POST", SCHEMAS + "/schema", RECORD, 200, {"version": {"version": 0}}),
        ("POST", SCHEMAS + "/schema", RECORD, 200, {"version": {"version": 0}}),
        ("POST", SCHEMAS + "/schema", {**RECORD, "schema": "nonsense"}, 422, "Invalid schema"),
        ("POST", SCHEMAS + "/schema", {**RECORD, "type": "ODD"}, 422, "ODD"),
        ("POST", SCHEMAS + "/schema", {}, 422, "Not a schema"),
        ("POST", SCHEMAS + "/schema", b"nonsense", 400, "JSON"),
        ("POST", SCHEMAS + "/schema", {**RECORD, "type": "STRING", "schema": ""}, 409, ...),
        ("GET", SCHEMAS + "/schema/7", None, 404, "not found"),
        ("GET", SCHEMAS + "/schema/x", None, 400, "whole number"),
        ("POST", SCHEMAS + "/version", RECORD, 200, {"version": 0}),
        ("POST", SCHEMAS + "/version", {**RECORD, "type": "STRING"}, 200, {"version": -1}),
        ("POST", SCHEMAS + "/version", [], 400, "object"),
        (
            "POST",
            SCHEMAS + "/compatibility",
            RECORD,
            202,
            {"compatibility": True, "schemaCompatibilityStrategy": "FULL"},
        ),
        ("POST", SCHEMAS + "/compatibility", {}, 422, "Not a schema"),
    )
    own = TOPIC + "/schemaCompatibilityStrategy"
    other = {**RECORD, "schema": '{"type":"record","name":"R","fields":[{"name":"n","type":"int"}]}'}
    answer = {"compatibility": True, "schemaCompatibilityStrategy": "ALWAYS_COMPATIBLE"}
    await admin.check(
        ("POST", SCHEMAS + "/schema", other, 409, ...),
        ("PUT", TOPIC, None, 204, None),
        ("PUT", own, "ALWAYS_COMPATIBLE", 204, None),
        ("POST", SCHEMAS + "/compatibility", other, 202, answer),
        ("DELETE", own, None, 204, None),
    )
    for path in ("/schema", "/schema/0"):
        _, schema = await admin("GET", SCHEMAS + path)
        assert schema.pop("timestamp") > 0
        assert schema == {"version": 0, "type": "JSON", "data": RECORD["schema"], "properties": {"k": "v"}}
    _, every = await admin("GET", SCHEMAS + "/schemas")
    assert [one["version"] for one in every["getSchemaResponses"]] == [0]
    await admin.check(
        ("DELETE", SCHEMAS + "/schema", None, 200, {"version": 1}),
        ("GET", SCHEMAS + "/schema", None, 404, "not found"),
        ("DELETE", SCHEMAS + "/schema?force=true", None, 200, ...),
    )


async def test_lookup(admin: Any) -> None:
    base = "/lookup/v2/topic/persistent/public"
    service_url = f"pulsar://127.0.0.1:{admin.broker.port}"
    owner = {"brokerUrl": service_url, "nativeUrl": service_url, "httpUrl": admin.broker.admin_url, "brokerUrlSsl": ""}
    await admin.check(
        ("GET", base + "/default/t", None, 200, owner),
        ("GET", base.replace("persistent", "non-persistent") + "/default/t", None, 200, owner),
        ("GET", base + "/none/t", None, 404, "not found"),
        ("GET", base + "/a%20b/t", None, 412, "not valid"),
    )
    status, bundle = await admin("GET", base + "/default/t/bundle")
    assert status == 200
    low, _, high = bundle.partition("_")
    assert int(low, 16) < int(high, 16)


async def test_brokers(admin: Any) -> None:
    base = "/admin/v2/brokers"
    broker_id = admin.broker.running.settings.broker_id
    await admin.check(
        ("GET", base, None, 200, [broker_id]),
        ("GET", base + "/standalone", None, 200, [broker_id]),
        ("GET", base + "/nowhere", None, 200, [broker_id]),
        ("GET", base + "/leaderBroker", None, 200, {"brokerId": broker_id, "serviceUrl": admin.broker.admin_url}),
        ("GET", base + "/ready", None, 200, "ok"),
        ("GET", base + "/health", None, 200, "ok"),
        ("GET", base + "/health?topicVersion=V2&brokerId=" + broker_id, None, 200, "ok"),
        ("GET", base + "/health?brokerId=nobody:1", None, 404, "nobody:1"),
        ("GET", base + "/health?topicVersion=X", None, 404, "version"),
        ("GET", base + "/backlog-quota-check", None, 204, None),
        ("POST", base + "/shutdown", None, 501, "stop"),
        ("GET", base + "/version", None, 200, "4.0.8"),
        ("GET", "/status.html", None, 200, "OK"),
        ("GET", base + "/standalone/nobody:1/ownedNamespaces", None, 404, "nobody:1"),
    )
    _, owned = await admin("GET", f"{base}/standalone/{broker_id}/ownedNamespaces")
    assert f"pulsar/{broker_id}/0x00000000_0xffffffff" in owned
    assert next(iter(owned.values())) == {"broker_assignment": "shared", "is_controlled": False, "is_active": True}


async def test_health_says_when_nothing_can_be_stored(admin: Any) -> None:
    await admin.check(("GET", "/admin/v2/brokers/health", None, 200, "ok"))
    (bookie,) = admin.broker.bookies.bookies.values()
    bookie.stop()
    status, _ = await admin("GET", "/admin/v2/brokers/health")
    assert status in (500, 503)
    bookie.heal()


async def test_metrics(admin: Any, client: ProtocolClient) -> None:
    await client.producer("topic")
    await client.consumer("topic")
    await client.publish(2)
    for path in ("/metrics", "/metrics/"):
        status, text = await admin("GET", path)
        assert status == 200
        lines = text.splitlines()
        labels = 'cluster="standalone",namespace="public/default",topic="persistent://public/default/topic"'
        assert f"pulsar_in_messages_total{{{labels}}} 2" in lines
        assert f'pulsar_subscription_back_log{{{labels},subscription="s"}} 2' in lines
        assert 'pulsar_topics_count{cluster="standalone",namespace="public/default"} 1' in lines
        assert 'pulsar_broker_topics_count{cluster="standalone"} 1' in lines
        # Nothing is decided where a broker is alone; dashboards want a number all the same.
        assert 'magnetar_lb_decisions_failed_total{cluster="standalone"} 0' in lines
        assert 'magnetar_lb_placements_total{cluster="standalone"} 0' in lines
        for name in ("pulsar_lb_unload_bundle_total", "pulsar_lb_bundles_split_total"):
            assert [line.rpartition(" ")[2] for line in lines if line.startswith(name + "{")] == ["0"]


async def test_what_is_not_there(admin: Any) -> None:
    await admin.check(
        ("GET", "/admin/v2/nothing", None, 404, "Not Found"),
        ("PATCH", "/admin/v2/clusters", None, 405, "Method Not Allowed"),
        ("POST", TOPIC + "/partitions", io.BytesIO(b"x" * (9 * MIB)), 413, "at most 1048576"),
    )


async def test_runtime_configuration(admin: Any) -> None:
    async with (
        aiohttp.ClientSession(admin.broker.admin_url) as session,
        session.get("/admin/v2/brokers/configuration/runtime") as answer,
    ):
        configuration = await answer.json()
    assert configuration["clusterName"] == "standalone"
    assert configuration["allowAutoTopicCreation"] == "true"
    assert all(isinstance(value, str) for value in configuration.values())


async def test_metrics_are_never_those_of_an_earlier_question(
    admin: Any, client: ProtocolClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when they could not be gathered for whoever asked before."""
    gathered = CollectedMetrics(admin.broker.running.context)
    assert b"topic=" not in b"".join(await gathered.text())
    await client.producer("persistent://public/default/topic")
    assert b'topic="persistent://public/default/topic"' in b"".join(await gathered.text())
    gather, go = metrics.broker_metrics, asyncio.Event()
    gatherings = 0

    async def slowly(context: BrokerContext, process: bytes) -> list[bytes]:
        nonlocal gatherings
        gatherings += 1
        if gatherings == 2:
            raise ValueError("a mistake of ours")
        text = await gather(context, process)
        await go.wait()
        return text

    monkeypatch.setattr(metrics, "broker_metrics", slowly)
    first = asyncio.create_task(gathered.text())
    await until(lambda: gatherings == 1)
    await client.producer("persistent://public/default/other", producer_id=2)
    others = [asyncio.create_task(gathered.text()) for _ in range(2)]
    await asyncio.sleep(0)
    go.set()
    assert b"other" not in b"".join(await first)
    with pytest.raises(ValueError, match="a mistake of ours"):
        await others[0]
    assert b'topic="persistent://public/default/other"' in b"".join(await others[1])


@pytest.mark.slow
async def test_metrics_of_many_topics_are_gathered_in_turns_and_once_for_all_who_ask(
    admin: Any, client: ProtocolClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.producer("persistent://public/default/topic")
    await client.consumer("persistent://public/default/topic")
    context = admin.broker.running.context
    (topic,) = context.service.topics.values()
    count = 10_000
    monkeypatch.setattr(context.service, "topics", {f"{number}": topic for number in range(count)})
    gathered = CollectedMetrics(context)
    longest_seconds = 0.0

    async def measure() -> None:
        nonlocal longest_seconds
        while True:
            begun = time.thread_time()
            await asyncio.sleep(0)
            longest_seconds = max(longest_seconds, time.thread_time() - begun)

    gc.disable()  # A collection would look at all that other tests have left in this process.
    try:
        for _ in range(5):
            longest_seconds = 0.0
            measuring = asyncio.create_task(measure())
            first, *others = await asyncio.gather(*(gathered.text() for _ in range(100)))
            measuring.cancel()
            if longest_seconds < 0.05:
                break
    finally:
        gc.enable()
    assert longest_seconds < 0.05
    # The first one's was begun before the others asked.
    assert len({id(one) for one in others}) == 1
    text = b"".join(first)
    assert text.count(b"\npulsar_subscription_back_log{") == count
    assert text.count(b"\n# TYPE pulsar_rate_in gauge\n") == 1
