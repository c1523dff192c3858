"""A client that acknowledges in transactions, and what a coordinator says of their ends: for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, Received, batch_message
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

TOPIC = "persistent://public/default/t"
LOG = "public/default/persistent/t-s__transaction_pending_ack"
PENDING = "/admin/v3/transactions/{}/public/default/t/s"
EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = 0, 1, 2, 3
FIRST_OF_THREE, REST_OF_THREE = ([0b110], 3), ([0b001], 3)
COMMIT, ABORT = pb.COMMIT, pb.ABORT
SETTINGS = BrokerSettings(transactions=TransactionSettings(enabled=True))


def with_transactions(**settings: Any) -> MemoryBroker:
    """A broker with transactions, and other settings of theirs."""
    return MemoryBroker(replace(SETTINGS, transactions=TransactionSettings(enabled=True, **settings)))


def id_of(received: Received) -> tuple[int, int]:
    message_id = received.body.message_id
    return message_id.ledgerId, message_id.entryId


class Client:
    """A connection with a producer and consumers of one topic."""

    def __init__(self, client: ProtocolClient) -> None:
        self.client = client

    @staticmethod
    async def of(broker: MemoryBroker, kind: int = SHARED, *, subscribe: bool = True) -> Client:
        client = Client(await broker.connect())
        if subscribe:
            await client.consumer(kind)
        return client

    async def consumer(self, kind: int = SHARED, consumer_id: int = 1, **fields: Any) -> None:
        await self.client.consumer(
            TOPIC, "s", consumer_id, subType=kind, initialPosition=pb.CommandSubscribe.Earliest, **fields
        )

    async def publish(self, count: int, **fields: Any) -> None:
        if not hasattr(self, "publishing"):
            self.publishing = await self.client.producer(TOPIC)
        await self.client.publish(count, **fields)

    async def receive(self, count: int, consumer_id: int = 1) -> list[tuple[int, int]]:
        return [id_of(each) for each in await self.client.messages(count, consumer_id=consumer_id)]

    async def ack(
        self,
        transaction: int | None,
        *positions: tuple[int, int],
        consumer_id: int = 1,
        kind: int = pb.CommandAck.Individual,
        sets: dict[tuple[int, int], tuple[list[int], int]] | None = None,
    ) -> Any:
        """The error of the answer, None for none; `sets` has the ack set and the size of each batch."""
        ids = []
        for position in positions:
            words, size = (sets or {}).get(position, ([], 0))
            ids.append({"ledgerId": position[0], "entryId": position[1], "partition": -1, "ack_set": words})
            if size:
                ids[-1]["batch_size"] = size
        bits = {} if transaction is None else {"txnid_least_bits": transaction, "txnid_most_bits": 0}
        answer = await self.client.request(
            pb.BaseCommand.ACK, consumer_id=consumer_id, ack_type=kind, message_id=ids, **bits
        )
        assert answer.name == "ACK_RESPONSE"
        return answer.body.error if answer.body.HasField("error") else None

    async def end(self, transaction: int, action: int, *, mark: int = -1, subscription: str = "s") -> Any:
        """The error of the answer, None for none."""
        answer = await self.client.request(
            pb.BaseCommand.END_TXN_ON_SUBSCRIPTION,
            txnid_least_bits=transaction,
            txnid_most_bits=0,
            subscription={"topic": TOPIC, "subscription": subscription},
            txn_action=action,
            txnid_least_bits_of_low_watermark=mark & 0xFFFF_FFFF_FFFF_FFFF,
        )
        assert answer.name == "END_TXN_ON_SUBSCRIPTION_RESPONSE"
        assert (answer.body.txnid_least_bits, answer.body.txnid_most_bits) == (transaction, 0)
        return answer.body.error if answer.body.HasField("error") else None

    async def again(self, kind: int = SHARED) -> list[tuple[int, int]]:
        """What a consumer gets that comes anew."""
        answer = await self.client.request(pb.BaseCommand.CLOSE_CONSUMER, consumer_id=1)
        assert answer.name == "SUCCESS"
        self.client.inbox.clear()
        await self.consumer(kind)
        self.client.send(pb.BaseCommand.FLOW, consumer_id=1, messagePermits=3_000)
        return await self.nothing_more()

    async def shown(self, count: int, consumer_id: int = 1) -> list[tuple[int, int]]:
        """What a consumer is sent that takes anything: so many, wherever they are read from, and what comes with
        these."""
        self.client.send(pb.BaseCommand.FLOW, consumer_id=consumer_id, messagePermits=100)
        found = [id_of(await self.client.expect(pb.BaseCommand.MESSAGE)) for _ in range(count)]
        return found + await self.nothing_more()

    async def nothing_more(self) -> list[tuple[int, int]]:
        """What has come by now, without asking for more."""
        return [id_of(each) for each in await self.client.round_trip() if each.name == "MESSAGE"]


def topic_of(broker: MemoryBroker) -> Any:
    return broker.service.topics[TOPIC]


def backlog(broker: MemoryBroker) -> int:
    count: int = topic_of(broker).subscriptions["s"].backlog
    return count


async def restarted(broker: MemoryBroker) -> Client:
    """The next owner of the topic, which everybody has left."""
    await broker.stop()
    await broker.start()
    return await Client.of(broker, subscribe=False)


async def killed(broker: MemoryBroker) -> Client:
    """The next owner of a topic whose broker wrote nothing when it ended."""
    await broker.service.abandon([topic_of(broker)])
    return await Client.of(broker, subscribe=False)


async def one_batch(client: Client) -> tuple[int, int]:
    """A batch of three that the consumer was sent."""
    await client.publish(0)
    content = batch_message(b"a", b"b", b"c")
    client.client.send(pb.BaseCommand.SEND, content, producer_id=1, sequence_id=0, num_messages=3)
    (batch,) = await client.receive(1)
    return batch
