"""Less common operations on topics, over a real HTTP server: measuring, keeping, reading, allowing."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from magnetar.broker.admin.topics.message_response import UNPACKED_BYTES_MAX, header_text, short_time
from magnetar.broker.admin.topics.stats_merge import merge_stats
from magnetar.broker.admin.topics.subscription_positions import ack_set
from magnetar.broker.admin.topics.topics import is_system_topic, without_system_topics
from magnetar.broker.testing.sessions import ProtocolClient, batch_message
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

Command = pb.BaseCommand
PERSISTENT = "/admin/v2/persistent/public/default"
TOPIC = PERSISTENT + "/topic"
SUBSCRIPTION = TOPIC + "/subscription/s"
EARLIEST = {"ledgerId": -1, "entryId": -1}


async def published(client: ProtocolClient, count: int, **fields: Any) -> Any:
    """Publish to the topic; the first one's id."""
    await client.producer("topic")
    return (await client.publish(count, **fields))[0]


async def published_batch(client: ProtocolClient) -> Any:
    """A batch of four messages on the topic; its id."""
    await client.producer("topic")
    client.send(Command.SEND, batch_message(b"a", b"b", b"c", b"d"), producer_id=1, sequence_id=0, num_messages=4)
    return (await client.expect(Command.SEND_RECEIPT)).body.message_id


# --- measuring


async def test_internal_info(admin: Any, client: ProtocolClient) -> None:
    first = await published(client, 3)
    await admin.check(("PUT", SUBSCRIPTION + "?replicated=true", EARLIEST, 204, None))
    _, info = await admin("GET", TOPIC + "/internal-info")
    assert info["version"] >= 0
    assert [ledger["ledgerId"] for ledger in info["ledgers"]] == [first.ledgerId]
    assert info["ledgers"][0]["isOffloaded"] is False
    assert info["cursors"]["s"]["properties"] == {"pulsar.replicated.subscription": 1}
    assert info["creationDate"].endswith("Z")
    await admin.check(
        ("POST", TOPIC + "/terminate", None, 200, ...),
        ("PUT", PERSISTENT + "/parts/partitions", 2, 204, None),
        ("GET", PERSISTENT + "/none/internal-info", None, 404, "not found"),
    )
    _, info = await admin("GET", TOPIC + "/internal-info")
    assert info["terminatedPosition"] == {"ledgerId": first.ledgerId, "entryId": 2}
    _, parts = await admin("GET", PERSISTENT + "/parts/internal-info")
    assert parts["version"] == 0
    assert sorted(parts["partitions"]) == [f"persistent://public/default/parts-partition-{index}" for index in (0, 1)]


async def test_backlog_of_a_topic(admin: Any, client: ProtocolClient) -> None:
    await published(client, 3)
    await admin.check(("PUT", SUBSCRIPTION, EARLIEST, 204, None))
    _, backlog = await admin("GET", TOPIC + "/backlog")
    assert (backlog["totalMessages"], backlog["messageBacklog"]) == (3, 3)
    assert backlog["cursorDetails"]["s"]["cursorBacklog"] == 3
    assert backlog["topicName"] == "public/default/persistent/topic"
    _, backlog = await admin("GET", PERSISTENT + "/none/backlog")
    assert (backlog["totalMessages"], backlog["dataLedgerDetails"]) == (0, [])


async def test_ledger_metadata_in_internal_stats(admin: Any, client: ProtocolClient) -> None:
    await published(client, 1)
    _, stats = await admin("GET", TOPIC + "/internalStats?metadata=true")
    assert stats["ledgers"][0]["metadata"].startswith("LedgerMetadata{formatVersion=3, ensembleSize=")
    _, stats = await admin("GET", TOPIC + "/internalStats")
    assert "metadata" not in stats["ledgers"][0]


async def test_what_statistics_may_leave_out(admin: Any, client: ProtocolClient) -> None:
    await published(client, 2, publish_time=5_000)
    await client.consumer("topic", initialPosition=1)
    _, stats = await admin("GET", TOPIC + "/stats?getEarliestTimeInBacklog=true")
    assert stats["earliestMsgPublishTimeInBacklogs"] == 5_000
    assert stats["subscriptions"]["s"]["earliestMsgPublishTimeInBacklog"] == 5_000
    assert stats["subscriptions"]["s"]["backlogSize"] > 0
    _, stats = await admin(
        "GET", TOPIC + "/stats?excludePublishers=true&excludeConsumers=true&subscriptionBacklogSize=false"
    )
    assert (stats["publishers"], stats["subscriptions"]["s"]["consumers"]) == ([], [])
    assert stats["subscriptions"]["s"]["backlogSize"] == -1


async def test_nothing_is_the_sum_of_no_partitions() -> None:
    merged = await merge_stats([])
    assert (merged["msgInCounter"], merged["subscriptions"], merged["publishers"]) == (0, {}, [])


async def test_partitions_add_up() -> None:
    def stats(number: int) -> dict[str, Any]:
        consumer = {"consumerName": f"c{number}", "availablePermits": number, "address": "/1", "lastAckedTimestamp": 7}
        subscription = {
            "msgBacklog": number,
            "type": "Shared",
            "blockedSubscriptionOnUnackedMsgs": number == 2,
            "earliestMsgPublishTimeInBacklog": 0 if number == 2 else 50,
            "consumers": [consumer],
        }
        return {
            "msgInCounter": number,
            "bytesInCounter": 10 * number,
            "ownerBroker": f"b{number}",
            "backlogQuotaLimitTime": -1,
            "oldestBacklogMessageAgeSeconds": -1,
            "subscriptions": {"s": subscription},
        }

    merged = await merge_stats([stats(1), stats(2)])
    assert (merged["msgInCounter"], merged["averageMsgSize"]) == (3, 10)
    assert "ownerBroker" not in merged
    assert (merged["backlogQuotaLimitTime"], merged["oldestBacklogMessageAgeSeconds"]) == (-1, 0)
    (consumer,) = merged["subscriptions"]["s"].pop("consumers")
    assert consumer == {"consumerName": "c1", "availablePermits": 3, "lastAckedTimestamp": 7}
    assert merged["subscriptions"]["s"] == {
        "msgBacklog": 3,
        "type": "Shared",
        "blockedSubscriptionOnUnackedMsgs": True,
        "earliestMsgPublishTimeInBacklog": 50,
    }


# --- listing


async def test_lists_by_bundle_and_without_system_topics(admin: Any) -> None:
    full = [f"persistent://public/default/{name}" for name in ("__change_events", "a", "b")]
    await admin.check(*(("PUT", f"{PERSISTENT}/{name}", None, 204, None) for name in ("a", "b", "__change_events")))
    await admin.check(
        ("GET", PERSISTENT, None, 200, full[1:]),
        ("GET", PERSISTENT + "?includeSystemTopic=true", None, 200, full),
        ("GET", PERSISTENT + "?bundle=nonsense", None, 412, "Invalid bundle range"),
        ("PUT", PERSISTENT + "/p/partitions", 1, 204, None),
        ("GET", PERSISTENT + "/partitioned?includeSystemTopic=true", None, 200, ["persistent://public/default/p"]),
    )
    halves = [f"{PERSISTENT}?bundle={bundle}" for bundle in ("0x00000000_0x80000000", "0x80000000_0xffffffff")]
    found = [name for half in halves for name in (await admin("GET", half))[1]]
    assert sorted(found) == [*full[1:], "persistent://public/default/p-partition-0"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("persistent://t/n/__change_events", True),
        ("persistent://t/n/__change_events-partition-0", True),
        ("persistent://pulsar/system/__transaction_log_3", True),
        ("persistent://pulsar/system/transaction_coordinator_assign-partition-2", True),
        ("persistent://t/n/topic-s__transaction_pending_ack", True),
        ("persistent://t/n/__mine", False),
        ("persistent://t/n/my_transaction_log", False),
        ("persistent://t/n/topic", False),
    ],
)
def test_system_topics(name: str, expected: bool) -> None:
    assert is_system_topic(name) == expected
    assert without_system_topics([name]) == ([] if expected else [name])


async def test_a_space_may_come_as_a_plus(admin: Any) -> None:
    await admin.check(
        ("PUT", PERSISTENT + "/a+b", None, 204, None),
        ("GET", PERSISTENT + "/a%20b/stats", None, 200, ...),
        ("PUT", PERSISTENT + "/a%2Bb", None, 204, None),
        ("GET", PERSISTENT, None, 200, ["persistent://public/default/a b", "persistent://public/default/a+b"]),
        ("PUT", PERSISTENT + "/a+b/subscription/x%2By", None, 204, None),
        ("GET", PERSISTENT + "/a+b/subscriptions", None, 200, ["x y"]),
    )


# --- keeping


async def test_trim_and_truncate(admin: Any, client: ProtocolClient) -> None:
    await published(client, 3)
    await admin.check(
        ("PUT", SUBSCRIPTION, EARLIEST, 204, None),
        ("POST", TOPIC + "/trim", None, 200, None),
        ("POST", PERSISTENT + "/none/trim", None, 404, "not found"),
        ("POST", "/admin/v2/non-persistent/public/default/t/trim", None, 405, "not allowed"),
    )
    _, stats = await admin("GET", TOPIC + "/internalStats")
    assert stats["numberOfEntries"] == 3
    await admin.check(
        ("DELETE", TOPIC + "/truncate", None, 204, None),
        ("DELETE", PERSISTENT + "/none/truncate", None, 404, "not found"),
        ("DELETE", "/admin/v2/non-persistent/public/default/t/truncate", None, 412, "unsupport truncate"),
    )
    _, stats = await admin("GET", TOPIC + "/internalStats")
    assert stats["numberOfEntries"] == 0


async def test_what_this_broker_cannot_do_is_refused(admin: Any) -> None:
    no_offload = {
        "status": "NOT_RUN",
        "lastError": "",
        "firstUnoffloadedMessage": {
            "ledgerId": -1,
            "entryId": -1,
            "partitionIndex": -1,
            "batchIndex": -1,
            "batchSize": 0,
        },
    }
    await admin.check(
        ("PUT", TOPIC, None, 204, None),
        ("GET", TOPIC + "/offload", None, 200, no_offload),
        ("PUT", TOPIC + "/offload", EARLIEST, 405, "managedLedgerOffloadDriver"),
        ("PUT", TOPIC + "/offload", None, 400, "messageId is null"),
        ("PUT", PERSISTENT + "/parts/partitions", 1, 204, None),
        ("GET", PERSISTENT + "/parts/offload", None, 404, "not found"),
    )


async def test_termination_of_what_is_not_partitioned(admin: Any) -> None:
    await admin.check(
        ("PUT", TOPIC, None, 204, None),
        ("POST", TOPIC + "/terminate/partitions", None, 405, "please use terminate commands"),
        ("POST", "/admin/v2/non-persistent/public/default/t/terminate/partitions", None, 406, "persistent topic name"),
    )


async def test_reasons_for_partitions_that_are_not_there(admin: Any) -> None:
    await admin.check(
        ("PUT", PERSISTENT + "/parts/partitions", 1, 204, None),
        ("GET", PERSISTENT + "/parts-partition-5/stats", None, 404, "Topic partitions were not yet created"),
        ("GET", PERSISTENT + "/none-partition-0/stats", None, 404, "has zero partitions"),
        ("PUT", PERSISTENT + "/parts-partition-5", None, 412, "smaller than number of partition"),
        ("DELETE", PERSISTENT + "/none/partitions", None, 404, "not found."),
        ("PUT", TOPIC, None, 204, None),
        ("DELETE", TOPIC + "/partitions", None, 409, "non-partitioned topic"),
        ("POST", TOPIC + "/createMissedPartitions", None, 404, "does not exist"),
    )


async def test_properties_of_topics(admin: Any) -> None:
    parts = PERSISTENT + "/parts"
    await admin.check(
        ("PUT", TOPIC, {"a": "b"}, 204, None),
        ("GET", TOPIC + "/properties", None, 200, {"a": "b"}),
        ("PUT", TOPIC + "/properties", {"c": "d"}, 204, None),
        ("GET", TOPIC + "/properties", None, 200, {"a": "b", "c": "d"}),
        ("DELETE", TOPIC + "/properties?key=a", None, 204, None),
        ("GET", TOPIC + "/properties", None, 200, {"c": "d"}),
        ("DELETE", TOPIC + "/properties", None, 412, "key"),
        ("GET", PERSISTENT + "/none/properties", None, 404, "not found"),
        ("GET", "/admin/v2/non-persistent/public/default/t/properties", None, 406, "persistent topic name"),
        ("PUT", parts + "/partitions", 2, 204, None),
        ("GET", parts + "/properties", None, 200, None),
        ("PUT", parts + "/properties", {"a": "b"}, 204, None),
        ("GET", parts + "/properties", None, 200, {"a": "b"}),
        ("GET", parts + "/partitions", None, 200, {"partitions": 2, "deleted": False, "properties": {"a": "b"}}),
        ("DELETE", parts + "/properties?key=a", None, 204, None),
        ("GET", parts + "/properties", None, 200, {}),
    )


async def test_permissions_on_topics(admin: Any) -> None:
    permissions = TOPIC + "/permissions"
    none = PERSISTENT + "/none/permissions"
    await admin.check(
        ("PUT", TOPIC, None, 204, None),
        ("GET", permissions, None, 200, {}),
        ("POST", permissions + "/role", ["produce", "consume"], 204, None),
        ("GET", permissions, None, 200, {"role": ["consume", "produce"]}),
        ("POST", "/admin/v2/namespaces/public/default/permissions/role", ["functions"], 204, None),
        ("GET", permissions, None, 200, {"role": ["consume", "functions", "produce"]}),
        ("DELETE", permissions + "/role", None, 204, None),
        ("GET", permissions, None, 200, {"role": ["functions"]}),
        ("POST", permissions + "/role", {}, 400, "list"),
        ("GET", none, None, 404, "not found"),
        ("POST", none + "/role", ["produce"], 404, "not found"),
        ("DELETE", none + "/role", None, 404, "not found"),
    )


# --- subscriptions


async def test_descriptions_of_subscriptions(admin: Any) -> None:
    status = SUBSCRIPTION + "/replicatedSubscriptionStatus"
    full = "persistent://public/default/topic"
    none = TOPIC + "/subscription/none"
    await admin.check(
        ("PUT", TOPIC, None, 204, None),
        ("PUT", SUBSCRIPTION, {**EARLIEST, "properties": {"a": "b"}}, 204, None),
        ("GET", SUBSCRIPTION + "/properties", None, 200, {"a": "b"}),
        ("PUT", SUBSCRIPTION + "/properties", {"c": "d"}, 204, None),
        ("GET", SUBSCRIPTION + "/properties", None, 200, {"c": "d"}),
        ("GET", status, None, 200, {full: False}),
        ("POST", status, True, 204, None),
        ("GET", status, None, 200, {full: True}),
        ("POST", status, "yes", 400, "true or false"),
        ("GET", none + "/properties", None, 404, "not found"),
        ("PUT", none + "/properties", {}, 404, "not found"),
        ("GET", none + "/replicatedSubscriptionStatus", None, 404, "not found"),
        ("POST", none + "/replicatedSubscriptionStatus", True, 404, "not found"),
        ("PUT", TOPIC + "/subscription/e", "earliest", 204, None),
        ("PUT", PERSISTENT + "/made/subscription/s", None, 204, None),
        ("PUT", "/admin/v2/non-persistent/public/default/t/subscription/s", None, 400, "only be done through client"),
    )


async def test_expiring_up_to_a_position(admin: Any, client: ProtocolClient) -> None:
    first = await published(client, 5)
    expire = SUBSCRIPTION + "/expireMessages"
    position = {"ledgerId": first.ledgerId, "entryId": 2}
    await admin.check(
        ("PUT", SUBSCRIPTION, EARLIEST, 204, None),
        ("POST", expire, {**position, "isExcluded": True}, 204, None),
        ("POST", SUBSCRIPTION + "/analyzeBacklog", None, 200, ...),
    )
    _, analysed = await admin("POST", SUBSCRIPTION + "/analyzeBacklog")
    assert (analysed["entries"], analysed["firstMessageId"]) == (3, f"{first.ledgerId}:2")
    await admin.check(
        ("POST", expire, position, 204, None),
        ("POST", expire, {**position, "entryId": 99}, 409, "invalid message position"),
        ("POST", expire, None, 400, "position"),
        ("POST", TOPIC + "/subscription/none/expireMessages", position, 404, "not found"),
    )
    _, analysed = await admin("POST", SUBSCRIPTION + "/analyzeBacklog", {**position, "entryId": 4})
    assert (analysed["entries"], analysed["messages"], analysed["aborted"]) == (1, 1, False)


async def test_resetting_into_a_batch(admin: Any, client: ProtocolClient) -> None:
    batch = await published_batch(client)
    await admin.check(("PUT", SUBSCRIPTION, EARLIEST, 204, None))
    for body, entries, messages in (
        ({}, 1, 4),
        ({"batchIndex": 0}, 1, 4),
        ({"batchIndex": 2}, 1, 2),
        ({"batchIndex": 2, "isExcluded": True}, 1, 1),
        ({"batchIndex": 3, "isExcluded": True}, 0, 0),
        ({"isExcluded": True}, 0, 0),
    ):
        position = {"ledgerId": batch.ledgerId, "entryId": batch.entryId, **body}
        await admin.check(("POST", SUBSCRIPTION + "/resetcursor", position, 204, None))
        _, analysed = await admin("POST", SUBSCRIPTION + "/analyzeBacklog")
        assert (analysed["entries"], analysed["messages"]) == (entries, messages), body


def test_ack_sets_have_a_bit_for_what_is_left() -> None:
    assert ack_set(2, 4) == [0b1100]
    assert ack_set(70, 72) == [0, 0b11000000]
    assert ack_set(1, 64) == [-2]


# --- messages


async def test_examining_messages(admin: Any, client: ProtocolClient) -> None:
    await admin.check(
        ("PUT", TOPIC, None, 204, None),
        ("GET", TOPIC + "/examinemessage", None, 412, "total message is zero"),
    )
    await published(client, 3)
    async with aiohttp.ClientSession(admin.broker.admin_url) as session:
        for query, expected in (
            ("initialPosition=earliest&messagePosition=2", b"m1"),
            ("initialPosition=latest&messagePosition=2", b"m1"),
            ("messagePosition=1", b"m2"),
            ("", b"m2"),
            ("initialPosition=earliest&messagePosition=4", b"m2"),
        ):
            async with session.get(f"{TOPIC}/examinemessage?{query}") as answer:
                assert await answer.read() == expected
    await admin.check(
        ("GET", TOPIC + "/examinemessage?messagePosition=x", None, 400, "whole number"),
        ("PUT", PERSISTENT + "/parts/partitions", 1, 204, None),
        ("GET", PERSISTENT + "/parts/examinemessage", None, 405, "partitioned topic is not allowed"),
    )


async def test_headers_of_a_batch(admin: Any, client: ProtocolClient) -> None:
    await published_batch(client)
    async with (
        aiohttp.ClientSession(admin.broker.admin_url) as session,
        session.get(TOPIC + "/examinemessage") as answer,
    ):
        headers, payload = answer.headers, await answer.read()
    assert headers["X-Pulsar-num-batch-message"] == "4"
    assert headers["X-Pulsar-batch-size"] == str(len(payload))
    assert headers["X-Pulsar-Is-Encrypted"] == "false"
    assert headers["X-Pulsar-txn-uncommitted"] == "false"
    assert headers["X-Pulsar-PROPERTY"] == "{}"


async def test_headers_cannot_be_broken_out_of(admin: Any, client: ProtocolClient) -> None:
    await published(client, 1, partition_key="a\r\nX-Evil: 1", properties=[{"key": "ä", "value": "\r\n"}])
    async with (
        aiohttp.ClientSession(admin.broker.admin_url) as session,
        session.get(TOPIC + "/examinemessage") as answer,
    ):
        assert "X-Evil" not in answer.headers
        assert answer.headers["X-Pulsar-partition-key"] == "a??X-Evil: 1"
        assert answer.headers["X-Pulsar-PROPERTY"] == '{"\\u00e4":"\\r\\n"}'


@pytest.mark.parametrize("field", ["publish_time", "event_time", "deliver_at_time"])
@pytest.mark.parametrize("milliseconds", [2**63 - 1, 253_402_300_800_000, 2**64 - 1, 2**63])
async def test_times_that_no_calendar_has(admin: Any, client: ProtocolClient, field: str, milliseconds: int) -> None:
    if field == "deliver_at_time" and milliseconds >= 2**63:
        milliseconds -= 2**64
    await published(client, 1, **{field: milliseconds})
    async with (
        aiohttp.ClientSession(admin.broker.admin_url) as session,
        session.get(TOPIC + "/examinemessage") as answer,
    ):
        assert answer.status == 200
        assert answer.headers["X-Pulsar-" + field.replace("_", "-")] == short_time(milliseconds)


@pytest.mark.parametrize(
    ("fields", "left_out"),
    [
        ({"partition_key": "k" * 1_000_000}, "partition-key"),
        ({"schema_version": b"\xff" * 100_000}, "Base64-schema-version-b64encoded"),
        ({"partition_key": "\xff" * 5_000}, "partition-key"),
        ({"properties": [{"key": str(number), "value": ""} for number in range(5_000)]}, "PROPERTY"),
        ({"uuid": "u" * 4_000, "partition_key": "k" * 4_000}, "uuid"),
    ],
)
async def test_headers_that_clients_would_refuse_are_left_out(
    admin: Any, client: ProtocolClient, fields: dict[str, Any], left_out: str
) -> None:
    await published(client, 1, **fields)
    async with (
        aiohttp.ClientSession(admin.broker.admin_url) as session,
        session.get(TOPIC + "/examinemessage") as answer,
    ):
        assert (answer.status, await answer.read()) == (200, b"m0")
        assert answer.headers["X-Pulsar-left-out"] == left_out
        assert "X-Pulsar-" + left_out not in answer.headers
        assert "X-Pulsar-Message-ID" in answer.headers
        assert sum(len(name) + len(value) for name, value in answer.headers.items()) < 8_192


async def test_a_message_that_would_unpack_to_too_much(admin: Any, client: ProtocolClient) -> None:
    await published(client, 1, compression=3, uncompressed_size=UNPACKED_BYTES_MAX + 1)
    await admin.check(("GET", TOPIC + "/examinemessage", None, 413, "cannot be unpacked"))


def test_times() -> None:
    assert short_time(2**64 - 1) == "1969-12-31T23:59:59.999Z", "Java's long is -1"
    assert short_time(253_402_300_799_999) == "9999-12-31T23:59:59.999Z"
    assert short_time(253_402_300_800_000) == "253402300800000"
    assert short_time(2**63) == str(-(2**63))


def test_texts_of_headers() -> None:
    assert header_text("a\nb\u20ac") == "a?b?"
    assert [short_time(ms) for ms in (0, 1_500, 1_050)] == [
        "1970-01-01T00:00:00Z",
        "1970-01-01T00:00:01.5Z",
        "1970-01-01T00:00:01.05Z",
    ]
    # Years that the calendar does not have: a producer may write any time.
    assert [short_time(ms) for ms in (2**63 - 1, -(2**63))] == ["9223372036854775807", "-9223372036854775808"]


async def test_bytes_from_a_position_on(admin: Any, client: ProtocolClient) -> None:
    first = await published(client, 4)
    _, stats = await admin("GET", TOPIC + "/internalStats")
    size = stats["totalSize"]
    position = {"ledgerId": first.ledgerId, "entryId": 0}
    await admin.check(
        ("PUT", TOPIC + "/backlogSize", position, 200, size - size // 4),
        ("PUT", TOPIC + "/backlogSize", EARLIEST, 200, size),
        ("PUT", TOPIC + "/backlogSize", {**position, "entryId": 1}, 200, size // 2),
        ("PUT", TOPIC + "/backlogSize", {**position, "entryId": 99}, 200, 0),
        ("PUT", TOPIC + "/backlogSize", None, 400, "message id"),
        ("GET", TOPIC + "/getMessageIdByIndex?index=1", None, 412, "do not note"),
        ("GET", TOPIC + "/getMessageIdByIndex", None, 404, "Invalid message index"),
    )


# --- the broker's own


async def test_broker_stats(admin: Any, client: ProtocolClient) -> None:
    base = "/admin/v2/broker-stats"
    await published(client, 2)
    await client.consumer("topic", initialPosition=1)
    await client.consumer("non-persistent://public/default/n", consumer_id=2)
    for name in ("topics", "destinations"):
        _, found = await admin("GET", f"{base}/{name}")
        bundles = found["public/default"].values()
        topics = {name: topic for bundle in bundles for domain in bundle.values() for name, topic in domain.items()}
        topic = topics["persistent://public/default/topic"]
        assert (topic["msgInCount"], topic["producerCount"], topic["subscriptions"]["s"]["msgBacklog"]) == (2, 1, 2)
        assert "non-persistent://public/default/n" in topics
    _, metrics = await admin("GET", base + "/metrics")
    assert {"brk_in_rate", "brk_no_of_producers"} <= set(metrics[1]["metrics"])
    assert metrics[1]["dimensions"] == {"cluster": "standalone", "namespace": "public/default"}
    _, operations = await admin("GET", base + "/bookieops")
    assert operations["public/default"]["persistent://public/default/topic"]["dataLedgerCreateOp"] == 0
    _, beans = await admin("GET", base + "/mbeans")
    assert beans[0]["metrics"]["residentMemoryBytes"] > 0
    _, allocator = await admin("GET", base + "/allocator-stats/default")
    assert allocator["usedHeapMemory"] > 0
    _, report = await admin("GET", base + "/load-report")
    assert report["webServiceUrl"] == admin.broker.admin_url
    await admin.check(
        ("GET", base + "/allocator-stats/ml-cache", None, 200, ...),
        ("GET", base + "/allocator-stats/x", None, 406, "Invalid allocator name : x"),
        ("GET", base + "/broker-resource-availability/public/default", None, 409, "does not support"),
    )


async def test_schema_metadata(admin: Any) -> None:
    schemas = "/admin/v2/schemas/public/default/topic"
    await admin.check(
        ("GET", schemas + "/metadata", None, 200, None),
        ("POST", schemas + "/schema", {"type": "STRING", "schema": ""}, 200, {"version": {"version": 0}}),
    )
    _, metadata = await admin("GET", schemas + "/metadata")
    assert metadata["index"] == [metadata["info"]]
    assert metadata["info"]["version"] == 0
