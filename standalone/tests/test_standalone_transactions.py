"""A standalone cluster with transactions, over restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from magnetar.broker.testing.sessions import ProtocolClient
from magnetar.standalone.cluster import start_cluster
from magnetar.standalone.settings import StandaloneSettings
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

TOPIC = "persistent://pulsar/system/transaction_coordinator_assign"


async def begun(data: Path, *, transactions: bool = True) -> tuple[int, Any, Any]:
    """How many coordinators a cluster has, and the answers of the first to who connects and begins a transaction."""
    settings = StandaloneSettings(
        data_directory=data, broker_service_port=0, web_service_port=0, transactions=transactions
    )
    cluster = await start_cluster(settings)
    try:
        client = await ProtocolClient.connected(int(cluster.service_url.rpartition(":")[2]))
        count = await client.request(pb.BaseCommand.PARTITIONED_METADATA, topic=TOPIC)
        await client.request(pb.BaseCommand.LOOKUP, topic=TOPIC + "-partition-0")
        connected = await client.request(pb.BaseCommand.TC_CLIENT_CONNECT_REQUEST, tc_id=0)
        answer = await client.request(pb.BaseCommand.NEW_TXN, tc_id=0, txn_ttl_seconds=60_000)
        await client.close()
    finally:
        await cluster.close()
    return count.body.partitions, connected, answer


@pytest.mark.slow
async def test_one_coordinator_that_outlives_restarts(tmp_path: Path) -> None:
    for sequence in range(3):
        count, connected, answer = await begun(tmp_path / "data")
        assert count == 1
        assert not connected.body.HasField("error"), connected
        assert (answer.body.txnid_most_bits, answer.body.txnid_least_bits) == (0, sequence)


@pytest.mark.slow
async def test_no_coordinator_unless_asked_for(tmp_path: Path) -> None:
    count, connected, answer = await begun(tmp_path / "data", transactions=False)
    assert count == 0
    assert [one.name for one in (connected, answer)] == ["ERROR", "ERROR"]
    assert [one.body.error for one in (connected, answer)] == [pb.NotAllowedError] * 2
