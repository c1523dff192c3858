"""The admin API over its real HTTP server: topics."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from magnetar.broker.testing.sessions import ProtocolClient, batch_message
from magnetar.broker.topics.producer_admission import TOPIC_EPOCH_PROPERTY
from magnetar.managed.offload.owed import OWED_PREFIX
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

Command = pb.BaseCommand
PERSISTENT = "/admin/v2/persistent/public/default"
TOPIC = PERSISTENT + "/topic"
PARTS = PERSISTENT + "/parts"


async def test_topics(admin: Any) -> None:
    full = "persistent://public/default/topic"
    none = "/admin/v2/persistent/public/none"
    await admin.check(
        ("GET", PERSISTENT, None, 200, []),
        ("PUT", TOPIC, None, 204, None),
        ("PUT", TOPIC, None, 409, "already exists"),
        ("PUT", none + "/t", None, 404, "not found"),
        ("PUT", PERSISTENT + "/x-partition-0", None, 412, "-partition-"),
        ("GET", PERSISTENT, None, 200, [full]),
        ("GET", none, None, 404, "does not exist"),
        ("GET", PERSISTENT.replace("public", "a%20b"), None, 412, "not valid"),
        ("GET", TOPIC + "/partitions", None, 200, {"partitions": 0, "deleted": False}),
        ("PUT", TOPIC + "/unload", None, 204, None),
        ("PUT", PERSISTENT + "/none/unload", None, 404, "not found"),
        ("DELETE", TOPIC, None, 204, None),
        ("DELETE", TOPIC, None, 404, "not found"),
        ("GET", PERSISTENT, None, 200, []),
    )


async def test_clients_do_not_note_which_objects_a_broker_is_to_delete(admin: Any) -> None:
    """It asks the endpoint that such a property names, as whoever the broker is there."""
    owed = f"{OWED_PREFIX}5.{UUID(int=7)}"
    value = '{"driver":"aws-s3","stored":{"bucket":"b","serviceEndpoint":"http://127.0.0.1:9"}}'
    await admin.check(
        ("PUT", TOPIC, {owed: value}, 412, "broker's own"),
        ("PUT", TOPIC, {"k": "v"}, 204, None),
        ("PUT", TOPIC + "/properties", {owed: value}, 412, "broker's own"),
        ("DELETE", f"{TOPIC}/properties?key={owed}", None, 412, "broker's own"),
        ("GET", TOPIC + "/properties", None, 200, {"k": "v"}),
    )


@pytest.mark.parametrize("text", ["", "x", "-", "9" * 19, "1e3", "9" * 30, "\u0663"])
async def test_a_topic_with_nonsense_for_its_epoch_is_loaded(admin: Any, text: str) -> None:
    await admin.check(
        ("PUT", TOPIC, {TOPIC_EPOCH_PROPERTY: text}, 204, None),
        ("PUT", TOPIC + "/unload", None, 204, None),
        ("GET", TOPIC + "/stats", None, 200, ...),
        ("DELETE", f"{TOPIC}/properties?key={TOPIC_EPOCH_PROPERTY}", None, 204, None),
    )


async def test_topic_names_are_decoded(admin: Any) -> None:
    await admin.check(("PUT", PERSISTENT + "/a%25b%20c", None, 204, None))
    await admin.check(("GET", PERSISTENT, None, 200, ["persistent://public/default/a%b c"]))
    await admin.check(("GET", PERSISTENT + "/a%25b%20c/stats", None, 200, ...))


async def test_topic_in_use_is_not_deleted(admin: Any, client: ProtocolClient) -> None:
    await client.producer("topic")
    await client.consumer("topic")
    await admin.check(
        ("DELETE", TOPIC, None, 412, "active producers"),
        ("DELETE", TOPIC + "?force=true", None, 204, None),
    )
    assert sorted(received.name for received in await client.round_trip()) == ["CLOSE_CONSUMER", "CLOSE_PRODUCER"]


async def test_partitioned_topics(admin: Any, client: ProtocolClient) -> None:
    full = "persistent://public/default/parts"
    await admin.check(
        ("PUT", PARTS + "/partitions", "two", 400, "whole number"),
        ("PUT", PARTS + "/partitions", True, 400, "whole number"),
        ("PUT", PARTS + "/partitions", 2, 204, None),
        ("PUT", PARTS + "/partitions", 2, 409, "already exists"),
        ("PUT", PARTS, None, 409, "already exists"),
        ("PUT", PERSISTENT + "/document/partitions", {"partitions": 3, "properties": {"k": "v"}}, 204, None),
        (
            "GET",
            PERSISTENT + "/document/partitions",
            None,
            200,
            {"partitions": 3, "deleted": False, "properties": {"k": "v"}},
        ),
        *(("PUT", PERSISTENT + "/x/partitions", bad, 406, "Number of partitions") for bad in (0, -1, 10**9)),
        *(("PUT", PERSISTENT + "/x/partitions", bad, 400, "whole number") for bad in ("two", None, True)),
        ("PUT", PERSISTENT + "/x/partitions", b"nonsense", 400, "JSON"),
        ("PUT", PERSISTENT + "/x-partition-1/partitions", 2, 412, "-partition-"),
        ("PUT", PERSISTENT.replace("default", "none") + "/x/partitions", 2, 404, "not found"),
        ("GET", PARTS + "/partitions", None, 200, {"partitions": 2, "deleted": False}),
        ("GET", PERSISTENT + "/none/partitions", None, 404, "not found"),
        ("GET", PERSISTENT + "/none/partitions?checkAllowAutoCreation=true", None, 200, ...),
        ("GET", PERSISTENT + "/partitioned", None, 200, ["persistent://public/default/document", full]),
        ("GET", PERSISTENT.replace("default", "none") + "/partitioned", None, 404, "does not exist"),
        ("PUT", PARTS + "/subscription/s", None, 204, None),
        ("POST", PARTS + "/partitions", 4, 204, None),
        ("POST", PARTS + "/partitions", 4, 204, None),
        ("POST", PARTS + "/partitions", 3, 422, "less than"),
        ("POST", PARTS + "/partitions", 0, 422, "less than"),
        ("POST", PARTS + "/partitions", 10**9, 406, "Number of partitions"),
        ("POST", PARTS + "/partitions", "x", 400, "whole number"),
        ("POST", PERSISTENT + "/missing/partitions", 3, 409, "not the partitioned topic"),
        ("GET", PARTS + "-partition-3/subscriptions", None, 200, ["s"]),
        ("DELETE", PARTS, None, 409, "delete-partitioned-topic"),
        ("POST", PARTS + "/terminate", None, 405, "not allowed"),
        ("PUT", PARTS + "/unload", None, 204, None),
    )
    await client.producer("parts-partition-3")
    await admin.check(
        ("DELETE", PARTS + "/partitions", None, 412, "active producers"),
        ("DELETE", PARTS + "/partitions?force=true", None, 204, None),
        ("DELETE", PARTS + "/partitions", None, 404, "not found"),
        ("GET", PARTS + "/partitions", None, 404, "not found"),
    )
    await client.expect(Command.CLOSE_PRODUCER)


TOPIC_STATS = (
    "msgRateIn msgThroughputIn msgRateOut msgThroughputOut bytesInCounter msgInCounter bytesOutCounter msgOutCounter "
    "averageMsgSize msgChunkPublished storageSize backlogSize backlogQuotaLimitSize backlogQuotaLimitTime "
    "oldestBacklogMessageAgeSeconds publishRateLimitedTimes earliestMsgPublishTimeInBacklogs offloadedStorageSize "
    "lastOffloadLedgerId lastOffloadSuccessTimeStamp lastOffloadFailureTimeStamp ongoingTxnCount abortedTxnCount "
    "committedTxnCount publishers waitingPublishers subscriptions replication deduplicationStatus compaction "
    "ownerBroker topicCreationTimeStamp lastPublishTimeStamp"
)
SUBSCRIPTION_STATS = (
    "msgRateOut msgThroughputOut bytesOutCounter msgOutCounter msgRateRedeliver messageAckRate chunkedMessageRate "
    "msgBacklog backlogSize msgBacklogNoDelayed blockedSubscriptionOnUnackedMsgs msgDelayed unackedMessages type "
    "msgRateExpired totalMsgExpired lastExpireTimestamp lastConsumedFlowTimestamp lastConsumedTimestamp "
    "lastAckedTimestamp lastMarkDeleteAdvancedTimestamp consumers isDurable isReplicated allowOutOfOrderDelivery "
    "subscriptionProperties"
)
CONSUMER_STATS = (
    "msgRateOut msgThroughputOut bytesOutCounter msgOutCounter msgRateRedeliver messageAckRate consumerName "
    "availablePermits unackedMessages avgMessagesPerEntry blockedConsumerOnUnackedMsgs address connectedSince "
    "clientVersion metadata"
)
PUBLISHER_STATS = (
    "msgRateIn msgThroughputIn averageMsgSize chunkedMessageRate producerId producerName accessMode address "
    "connectedSince clientVersion metadata supportsPartialProducer"
)


@pytest.mark.parametrize("body", [2, "2", 2.0, " 2 ", 2.9, {"partitions": "2"}])
async def test_a_number_of_partitions_as_apaches_json_library_takes_it(admin: Any, body: Any) -> None:
    await admin.check(
        ("PUT", PARTS + "/partitions", body, 204, None),
        ("GET", PARTS + "/partitions", None, 200, {"partitions": 2, "deleted": False}),
        ("POST", PARTS + "/partitions", " 3 ", 204, None),
        ("GET", PARTS + "/partitions", None, 200, {"partitions": 3, "deleted": False}),
    )


async def test_stats(admin: Any, client: ProtocolClient) -> None:
    await client.producer("topic", producer_name="me", metadata=[{"key": "k", "value": "v"}])
    await client.consumer("topic", consumer_name="you", subType=1)
    await client.publish(3)
    await client.messages(3)
    _, stats = await admin("GET", TOPIC + "/stats")
    (publisher,) = stats["publishers"]
    subscription = stats["subscriptions"]["s"]
    (consumer,) = subscription["consumers"]
    for document, names in (
        (stats, TOPIC_STATS),
        (subscription, SUBSCRIPTION_STATS),
        (consumer, CONSUMER_STATS),
        (publisher, PUBLISHER_STATS),
    ):
        assert set(names.split()) - set(document) == set()
    assert (stats["msgInCounter"], stats["msgOutCounter"]) == (3, 3)
    assert (publisher["producerName"], publisher["accessMode"], publisher["metadata"]) == ("me", "Shared", {"k": "v"})
    assert (subscription["type"], subscription["msgBacklog"], subscription["unackedMessages"]) == ("Shared", 3, 3)
    assert (consumer["consumerName"], consumer["unackedMessages"]) == ("you", 3)
    await admin.check(
        ("GET", PERSISTENT + "/none/stats", None, 404, "not found"),
        ("GET", PERSISTENT + "/none/internalStats", None, 404, "not found"),
        ("GET", TOPIC + "/partitioned-stats", None, 404, "not found"),
        ("GET", TOPIC + "/partitioned-internalStats", None, 404, "not found"),
    )


async def test_internal_stats(admin: Any, client: ProtocolClient) -> None:
    await client.producer("topic")
    await client.consumer("topic")
    (first, *_) = await client.publish(3)
    _, stats = await admin("GET", TOPIC + "/internalStats")
    assert (stats["numberOfEntries"], stats["entriesAddedCounter"], stats["state"]) == (3, 3, "LedgerOpened")
    assert stats["lastConfirmedEntry"] == f"{first.ledgerId}:2"
    assert [ledger["ledgerId"] for ledger in stats["ledgers"]] == [first.ledgerId]
    cursor = stats["cursors"]["s"]
    assert cursor["markDeletePosition"] == f"{first.ledgerId}:-1"
    assert cursor["numberOfEntriesSinceFirstNotAckedMessage"] == 1
    assert cursor["active"]


async def test_partitioned_stats(admin: Any, client: ProtocolClient) -> None:
    await admin.check(("PUT", PARTS + "/partitions", 2, 204, None))
    for index in range(2):
        await client.producer(f"parts-partition-{index}", index)
        await client.consumer(f"parts-partition-{index}", consumer_id=index)
        await client.publish(index + 1, producer_id=index)
    _, stats = await admin("GET", PARTS + "/partitioned-stats")
    assert stats["metadata"] == {"partitions": 2, "deleted": False}
    assert stats["msgInCounter"] == 3
    assert stats["subscriptions"]["s"]["msgBacklog"] == 3
    assert len(stats["subscriptions"]["s"]["consumers"]) == 1
    assert [one["msgInCounter"] for one in stats["partitions"].values()] == [1, 2]
    _, stats = await admin("GET", PARTS + "/partitioned-stats?perPartition=false")
    assert stats["partitions"] == {}
    _, stats = await admin("GET", PARTS + "/partitioned-internalStats")
    assert [one["numberOfEntries"] for one in stats["partitions"].values()] == [1, 2]
    await admin.check(("GET", PARTS + "/stats", None, 404, "not found"))


async def test_message_ids(admin: Any, client: ProtocolClient) -> None:
    def document(message_id: Any, batch_index: int = -1) -> dict[str, int]:
        entry_id = message_id if isinstance(message_id, int) else message_id.entryId
        ledger_id = admin.broker.service.topics["persistent://public/default/topic"].ledger.last_confirmed[0]
        return {
            "ledgerId": ledger_id,
            "entryId": entry_id,
            "partitionIndex": -1,
            "batchIndex": batch_index,
            "batchSize": 0,
            **({"outstandingAcksInSameBatch": 0, "originalBatchSize": 0} if batch_index >= 0 else {}),
        }

    await client.producer("topic")
    await admin.check(("GET", TOPIC + "/lastMessageId", None, 200, document(-1)))
    for number in range(3):
        await client.publish(1, first=number, publish_time=1_000 * number)
    await admin.check(
        ("GET", TOPIC + "/lastMessageId", None, 200, document(2)),
        ("GET", TOPIC + "/messageid/1000", None, 200, document(1)),
        ("GET", TOPIC + "/messageid/1001", None, 200, document(2)),
        ("GET", TOPIC + "/messageid/9999", None, 200, document(3)),
        ("GET", TOPIC + "/messageid/soon", None, 400, "whole number"),
        ("GET", PERSISTENT + "/none/messageid/0", None, 404, "not found"),
        ("GET", PERSISTENT + "/none/lastMessageId", None, 404, "not found"),
    )
    client.send(Command.SEND, batch_message(b"a", b"b"), producer_id=1, sequence_id=3, num_messages=2)
    await client.expect(Command.SEND_RECEIPT)
    await admin.check(
        ("GET", TOPIC + "/lastMessageId", None, 200, document(3, 1)),
        ("POST", TOPIC + "/terminate", None, 200, document(3)),
        ("POST", TOPIC + "/terminate", None, 200, document(3)),
        ("POST", PERSISTENT + "/none/terminate", None, 404, "not found"),
    )
    await client.expect(Command.CLOSE_PRODUCER)
    answer = await client.request(Command.PRODUCER, topic="topic", producer_id=1)
    assert answer.body.error == pb.TopicTerminatedError


async def test_non_persistent_topics(admin: Any, client: ProtocolClient) -> None:
    base = "/admin/v2/non-persistent/public/default"
    await admin.check(
        ("PUT", base + "/t", None, 204, None),
        ("GET", base, None, 200, ["non-persistent://public/default/t"]),
        ("GET", PERSISTENT, None, 200, []),
        ("GET", base + "/t/internalStats", None, 200, ...),
        ("GET", base + "/t/lastMessageId", None, 405, "non-persistent"),
        ("POST", base + "/t/terminate", None, 406, "persistent topic name"),
        ("PUT", base + "/p/partitions", 2, 204, None),
        ("GET", base + "/p/partitions", None, 200, {"partitions": 2, "deleted": False}),
    )
    await client.consumer("non-persistent://public/default/t")
    _, stats = await admin("GET", base + "/t/stats")
    assert stats["subscriptions"]["s"]["type"] == "Exclusive"
    await admin.check(("DELETE", base + "/t?force=true", None, 204, None), ("GET", base + "/t/stats", None, 404, ...))
    await client.expect(Command.CLOSE_CONSUMER)
