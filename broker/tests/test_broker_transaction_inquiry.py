"""Transactions that nobody would end: those of clients and coordinators that are gone, or that nobody ever began."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from magnetar.admin_client.errors import AdminRefused, AdminUnreachable
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, message
from magnetar.broker.transactions.coordinator_timeouts import Timeouts
from magnetar.broker.transactions.inquiry import Doubt, Inquiries
from magnetar.broker.transactions.names import TransactionId, coordinator_topic
from magnetar.core.errors import MagnetarError
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests import transaction_ack_stage as acks
from broker.tests.test_broker_transaction_buffer import TOPIC, Command, all_sent, loaded, send, texts, transactional


async def looked(broker: MemoryBroker, times: int = 2) -> None:
    """So many minutes pass."""
    for _ in range(times):
        await broker.service.upkeep.check_now("transactions")


async def begun(client: ProtocolClient, ttl_ms: int) -> int:
    """A transaction of coordinator 0 with the topic."""
    await client.request(Command.LOOKUP, topic=str(coordinator_topic(0)))
    assert not (await client.request(Command.TC_CLIENT_CONNECT_REQUEST, tc_id=0)).body.HasField("error")
    number: int = (await client.request(Command.NEW_TXN, tc_id=0, txn_ttl_seconds=ttl_ms)).body.txnid_least_bits
    bits = {"txnid_most_bits": 0, "txnid_least_bits": number}
    added = await client.request(Command.ADD_PARTITION_TO_TXN, partitions=[TOPIC], **bits)
    assert not added.body.HasField("error")
    return number


async def sent_in(client: ProtocolClient, most_bits: int, least_bits: int, number: int) -> None:
    bits: Any = {"txnid_most_bits": most_bits, "txnid_least_bits": least_bits}
    client.send(
        Command.SEND, message(b"m%d" % number, sequence_id=number, **bits), producer_id=1, sequence_id=number, **bits
    )
    await client.expect(Command.SEND_RECEIPT)


async def test_what_nobody_began_holds_nothing_back_for_ever() -> None:
    async with transactional() as (broker, client):
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        client.send(Command.FLOW, consumer_id=1, messagePermits=100)
        await sent_in(client, 0, 999, 0)
        await send(client, 1)
        await looked(broker, 1)
        assert await all_sent(client) == []
        await looked(broker, 1)
        assert texts([await client.expect(Command.MESSAGE)]) == [b"m1"]
        assert loaded(broker).buffer.table.open == {}  # type: ignore[union-attr]


@pytest.mark.parametrize("bits", [(77, 1), (0, (1 << 64) - 1), ((1 << 64) - 1, 0)])
async def test_a_message_of_what_can_be_no_transaction_is_refused(bits: tuple[int, int]) -> None:
    async with transactional() as (broker, client):
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        fields: Any = {"txnid_most_bits": bits[0], "txnid_least_bits": bits[1]}
        client.send(Command.SEND, message(b"m0", **fields), producer_id=1, sequence_id=0, **fields)
        refused = await client.expect(Command.SEND_ERROR)
        assert (refused.body.sequence_id, refused.body.error) == (0, pb.NotAllowedError)
        await send(client, 1)
        assert texts(await client.messages(1)) == [b"m1"]
        buffer = loaded(broker).buffer
        assert buffer is not None
        assert (list(buffer.table.open), buffer.has_snapshot) == ([], False)


async def test_what_is_open_is_left_alone() -> None:
    async with transactional() as (broker, client):
        number = await begun(client, 600_000)
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        client.send(Command.FLOW, consumer_id=1, messagePermits=100)
        await send(client, 0, transaction=number)
        await looked(broker, 3)
        bits = {"txnid_most_bits": 0, "txnid_least_bits": number}
        ended = await client.request(Command.END_TXN, txn_action=pb.COMMIT, **bits)
        assert not ended.body.HasField("error"), ended
        assert texts([await client.expect(Command.MESSAGE)]) == [b"m0"]


async def test_a_coordinator_that_no_client_asks_for_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with transactional() as (broker, client):
        # However slow this is: the first coordinator goes before the time of its transaction.
        monkeypatch.setattr(Timeouts, "add", lambda *_: None)
        number = await begun(client, 300)
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        client.send(Command.FLOW, consumer_id=1, messagePermits=100)
        await send(client, 0, transaction=number)
        coordinators = broker.running.context.coordinators
        assert coordinators is not None
        owned = broker.service.ownership.serving(coordinator_topic(0))
        assert owned is not None
        await coordinators.abandon_in([owned])
        monkeypatch.undo()
        await send(client, 1)
        await asyncio.sleep(0.4)
        assert await all_sent(client) == []
        await looked(broker)
        assert texts([await client.expect(Command.MESSAGE)]) == [b"m1"]


async def test_acknowledgements_of_what_nobody_began_are_taken_back() -> None:
    async with MemoryBroker(acks.SETTINGS) as broker:
        client = await acks.Client.of(broker)
        await client.publish(2)
        ids = await client.receive(2)
        assert await client.ack(999, ids[0]) is None
        await looked(broker, 1)
        assert await client.nothing_more() == []
        await looked(broker, 1)
        assert await client.shown(1) == [ids[0]]


class Cluster:
    """A client and an admin API that answer as a test says."""

    def __init__(self, asked: MagnetarError | None = None, told: MagnetarError | None = None) -> None:
        self._asked = asked
        self._told = told
        self.aborted = 0

    async def ask(self, topic: object, build: Any) -> None:
        assert build(1)
        if self._asked is not None:
            raise self._asked

    async def call(self, method: str, path: str) -> None:
        assert (method, path) == ("GET", "/admin/v3/transactions/transactionMetadata/1/7")
        if self._told is not None:
            raise self._told

    async def abort(self) -> None:
        self.aborted += 1


NOT_FOUND = AdminRefused(404, "The transaction (1,7) was not found")


@pytest.mark.parametrize(
    ("cluster", "aborted"),
    [
        (Cluster(told=NOT_FOUND), 1),
        (Cluster(), 0),
        (Cluster(told=AdminRefused(404, "Transaction coordinator with id 1 not found!")), 0),
        (Cluster(told=AdminRefused(401, "no")), 0),
        (Cluster(told=AdminUnreachable("nobody")), 0),
        (Cluster(asked=PulsarError(ServerError.SERVICE_NOT_READY, "moving"), told=NOT_FOUND), 0),
    ],
)
async def test_only_what_is_surely_over_is_aborted(cluster: Any, aborted: int) -> None:
    async def count() -> int:
        return 4

    inquiries = Inquiries(lambda: cluster, cluster, count)
    await inquiries.settle([Doubt(TransactionId(1, 7), "t", cluster.abort)])
    assert cluster.aborted == aborted


async def test_coordinators_are_counted_from_0() -> None:
    """The first one that there is not is asked nothing."""

    async def count() -> int:
        return 4

    cluster: Any = Cluster(asked=PulsarError(ServerError.SERVICE_NOT_READY, "moving"))
    inquiries = Inquiries(lambda: cluster, cluster, count)
    assert await inquiries.is_over(TransactionId(4, 7))
    with pytest.raises(PulsarError):
        await inquiries.is_over(TransactionId(3, 7))
    # As the log of acknowledgements has what was beyond a Java long.
    assert await inquiries.is_over(TransactionId(-1, 7))
    assert await inquiries.is_over(TransactionId(3, -7))
