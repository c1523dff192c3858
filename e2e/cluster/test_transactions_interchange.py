"""What transactions wrote at Apache's broker goes on at ours, and the other way round, with snapshots of both kinds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from magnetar.broker.testing.sessions import ProtocolClient, message
from magnetar.client.client import PulsarClient
from magnetar.client.reader import Reader
from magnetar.core.clock import SystemClock
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from e2e.cluster import admin
from e2e.interchange import brokers, parts
from e2e.interchange.cluster import Cluster
from e2e.interchange.parts import BrokerPart
from e2e.interchange.topic_driver import TopicDriver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

NAMESPACE: Final = "public/default"
TOPIC: Final = f"persistent://{NAMESPACE}/orders"
ABORTED: Final = [f"lost{number}" for number in range(7)]
"""More than a segment has."""

SETTINGS: Final = {
    "transactionCoordinatorEnabled": "true",
    "transactionBufferSnapshotMinTimeInMillis": "200",
    # Three transactions each, as Apache's brokers reckon it.
    "transactionBufferSnapshotSegmentSize": str(8 + len(TOPIC) + 9),
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """ZooKeeper, a bookie, and what brokers with one transaction coordinator want to find."""
    reason = parts.missing()
    if reason is not None:
        pytest.skip(reason)
    with Cluster(tmp_path) as running:
        running.initialize_pulsar(transaction_coordinators=1)
        running.start(running.our_bookie("bookie"))
        yield running


def statistics(broker: BrokerPart) -> tuple[int, int]:
    """How many transactions are open and aborted, as far as the broker knows."""
    path = f"/admin/v3/transactions/transactionBufferStats/{TOPIC.removeprefix('persistent://')}"
    found = json.loads(admin.call("GET", broker.admin_url + path))
    return found["ongoingTxnSize"], found["totalAbortedTransactions"]


def values(broker: BrokerPart) -> list[str]:
    """What a reader of ours gets, without what Java's driver fills it up with."""

    async def read() -> list[str]:
        client = PulsarClient(lambda: broker.service_url, SystemClock())
        try:
            reader: Reader = await client.reader(TopicName.parse(TOPIC))
            found: list[str] = []
            while (one := await reader.next_or_end()) is not None:
                found.append(one.payload.decode().partition(".")[0])
            return found
        finally:
            await client.close()

    return asyncio.run(read())


def at_ours(ours: BrokerPart) -> None:
    """What Apache's coordinator left open is committed; then a transaction that is aborted, and one that stays open."""

    async def work() -> None:
        client = await ProtocolClient.connected(int(ours.service_url.rpartition(":")[2]))
        kind = pb.BaseCommand

        async def send(number: int, transaction: int) -> None:
            bits = {"txnid_most_bits": 0, "txnid_least_bits": transaction}
            content = message(b"ours%d." % number, sequence_id=number, **bits)  # type: ignore[arg-type]
            client.send(kind.SEND, content, producer_id=1, sequence_id=number, **bits)
            await client.expect(kind.SEND_RECEIPT)

        async def end(transaction: int, action: pb.TxnAction) -> None:
            answer = await client.request(
                kind.END_TXN_ON_PARTITION,
                topic=TOPIC,
                txnid_most_bits=0,
                txnid_least_bits=transaction,
                txn_action=action,
            )
            assert not answer.body.HasField("error"), answer

        await client.request(kind.LOOKUP, topic=TOPIC, authoritative=False)
        await client.producer(TOPIC)
        await send(0, 1000)
        await send(1, 1001)
        await send(2, 1002)
        await end(len(ABORTED) + 1, pb.COMMIT)
        await end(1000, pb.ABORT)
        await end(1001, pb.COMMIT)
        await client.close()

    asyncio.run(work())


@pytest.mark.parametrize("segmented", [False, True])
def test_each_goes_on_where_the_other_was(cluster: Cluster, tmp_path: Path, *, segmented: bool) -> None:
    settings = {**SETTINGS, "transactionBufferSegmentedSnapshotEnabled": str(segmented).lower()}
    apache, ours = cluster.apache_broker((1, 1, 1), **settings), cluster.our_broker((1, 1, 1), **settings)
    brokers.start_with_namespace(cluster, apache)
    namespace = f"{apache.admin_url}/admin/v2/namespaces/{NAMESPACE}"
    admin.call("POST", f"{namespace}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    with TopicDriver(apache.service_url, tmp_path / "driver.log") as java:
        java.begin("kept", *ABORTED, "left")
        java.send(TOPIC, "=plain0")
        java.send(TOPIC, "=kept0", transaction="kept")
        for name in ABORTED:
            java.send(TOPIC, f"={name}", transaction=name)
        java.send(TOPIC, "=kept1", transaction="kept")
        java.commit("kept")
        for name in ABORTED:
            java.abort(name)
        java.send(TOPIC, "=plain1")
        java.send(TOPIC, "=left0", transaction="left")
        java.send(TOPIC, "=plain2")
        shown = ["plain0", "kept0", "kept1", "plain1"]
        assert [one.value.partition(".")[0] for one in java.read(TOPIC) if one.value is not None] == shown
    apache.stop()
    brokers.start_with_namespace(cluster, ours)
    assert values(ours) == shown
    assert statistics(ours) == (1, len(ABORTED))
    at_ours(ours)
    shown += ["left0", "plain2", "ours1"]
    assert values(ours) == shown
    assert statistics(ours) == (1, len(ABORTED) + 1)
    if segmented:
        # Apache's broker 4.0.8 does not come back then, not even after itself: it cannot read a segment while the
        # newest ledger of their topic is empty ("LastConfirmedEntry is null when reading ledger").
        return
    ours.stop()
    brokers.start_with_namespace(cluster, apache)
    assert values(apache) == shown
    assert statistics(apache) == (1, len(ABORTED) + 1)
