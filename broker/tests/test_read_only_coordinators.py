"""A broker that only reads, set up by the file of a cluster with transactions."""

from __future__ import annotations

from dataclasses import replace

from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.testing.clusters import MemoryCluster
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.test_broker_read_only import READ_ONLY, SETTINGS

TRANSACTIONS = TransactionSettings(enabled=True)


async def test_it_coordinates_no_transactions() -> None:
    """The log is the owner's: whoever opens it, too, takes it away."""
    async with MemoryCluster(1, replace(SETTINGS, transactions=TRANSACTIONS)) as cluster:
        writer = await cluster[0].connect()
        answer = await writer.request(pb.BaseCommand.TC_CLIENT_CONNECT_REQUEST, tc_id=0)
        assert not answer.body.HasField("error"), answer
        answer = await writer.request(pb.BaseCommand.NEW_TXN, tc_id=0, txn_ttl_seconds=60)
        assert not answer.body.HasField("error"), answer
        reader = await cluster.add(replace(READ_ONLY, transactions=TRANSACTIONS))
        client = await reader.connect()
        for _ in range(2):
            answer = await client.request(pb.BaseCommand.TC_CLIENT_CONNECT_REQUEST, tc_id=0)
            assert answer.body.HasField("error"), answer
            answer = await client.request(pb.BaseCommand.NEW_TXN, tc_id=0, txn_ttl_seconds=60)
            assert answer.body.HasField("error"), answer
        answer = await writer.request(pb.BaseCommand.NEW_TXN, tc_id=0, txn_ttl_seconds=60)
        assert not answer.body.HasField("error"), answer
