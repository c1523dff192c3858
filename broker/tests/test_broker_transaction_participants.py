"""How topics and subscriptions hear of the end of a transaction: by the broker's own client, wherever they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from magnetar.broker.bundles.ownership import ownership_path
from magnetar.broker.session import commands
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.testing.auth import broker_settings
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.broker.transactions.api import Asker, CoordinatorService, EndedTransaction
from magnetar.broker.transactions.coordinator_participants import RemoteParticipants
from magnetar.broker.transactions.names import TransactionId, coordinator_topic
from magnetar.client.errors import TimedOut
from magnetar.core.ids import EARLIEST
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.messages import frame_of

from broker.tests.transaction_ack_stage import id_of

ENABLED = BrokerSettings(cluster_name="memory", transactions=TransactionSettings(enabled=True))
TOPIC = "persistent://public/default/topic-partition-3"
NOBODY = Asker("", super_user=False)
ENDED = EndedTransaction(TransactionId(7, 300), commit=True, low_water_mark=-1)


class Asked:
    """Stands for the brokers' side of the two commands, and keeps what came."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[tuple[Any, Any]] = []
        """(broker's context, request)."""
        self.super_users: list[bool] = []
        """Whether they came from such."""
        self.error: int | None = None
        self.silent = False
        for kind, field, answer in (
            (pb.BaseCommand.END_TXN_ON_PARTITION, "endTxnOnPartition", pb.CommandEndTxnOnPartitionResponse),
            (pb.BaseCommand.END_TXN_ON_SUBSCRIPTION, "endTxnOnSubscription", pb.CommandEndTxnOnSubscriptionResponse),
        ):
            monkeypatch.setitem(commands.COMMANDS, kind, self._server(field, answer))

    def _server(self, field: str, kind: Any) -> Any:
        def serve(session: Any, command: pb.BaseCommand) -> None:
            request = getattr(command, field)
            self.requests.append((session.context, request))
            self.super_users.append(session.access is not None and session.access.is_known_super_user)
            if self.silent:
                return
            answer = kind(request_id=request.request_id)
            if self.error is not None:
                answer.error, answer.message = self.error, "no"
            session.write(frame_of(answer))

        return serve


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What brokers are asked."""
    return Asked(monkeypatch)


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    """One with transactions."""
    async with MemoryBroker(ENABLED) as running:
        yield running


def participants_of(broker: MemoryBroker, **settings: Any) -> RemoteParticipants:
    """What a broker's coordinators tell them by."""
    context = broker.running.context
    transactions = replace(ENABLED.transactions, **settings)
    return RemoteParticipants(context.client.get, transactions, context.service.resources.exists)


async def test_what_is_told(broker: MemoryBroker, asked: Asked) -> None:
    participants = participants_of(broker)
    await participants.end_on_partition(ENDED, TOPIC)
    await participants.end_on_subscription(ENDED._replace(commit=False, low_water_mark=5), TOPIC, "s/ü")
    partition, subscription = (request for _, request in asked.requests)
    assert (partition.txnid_most_bits, partition.txnid_least_bits) == (7, 300)
    assert (partition.topic, partition.txn_action) == (TOPIC, pb.COMMIT)
    # -1 as Java's long.
    assert partition.txnid_least_bits_of_low_watermark == (1 << 64) - 1
    assert (subscription.txnid_most_bits, subscription.txnid_least_bits) == (7, 300)
    assert (subscription.subscription.topic, subscription.subscription.subscription) == (TOPIC, "s/ü")
    assert (subscription.txn_action, subscription.txnid_least_bits_of_low_watermark) == (pb.ABORT, 5)


async def test_the_owner_is_asked_wherever_it_is(asked: Asked) -> None:
    async with MemoryCluster(2, ENABLED) as cluster:
        bundle = await cluster.take(cluster[0], TOPIC)
        participants = participants_of(cluster[0])
        await participants.end_on_partition(ENDED, TOPIC)
        there = cluster[1].running.context.ownership.own.broker_id
        await cluster[0].running.context.moves.unload(bundle, destination=there)
        await participants.end_on_partition(ENDED, TOPIC)
        contexts = [broker.running.context for broker in cluster.brokers]
        assert [contexts.index(context) for context, _ in asked.requests] == [0, 1]


@pytest.mark.parametrize("code", [ServerError.SERVICE_NOT_READY, ServerError.TRANSACTION_NOT_FOUND])
async def test_a_refusal_is_told(broker: MemoryBroker, asked: Asked, code: ServerError) -> None:
    asked.error = code
    for telling in (
        participants_of(broker).end_on_partition(ENDED, TOPIC),
        participants_of(broker).end_on_subscription(ENDED, TOPIC, "s"),
    ):
        with pytest.raises(PulsarError) as refusal:
            await telling
        assert refusal.value.code is code


async def test_a_silent_broker_is_not_waited_for(broker: MemoryBroker, asked: Asked) -> None:
    asked.silent = True
    with pytest.raises(TimedOut, match="is not told within"):
        await participants_of(broker, request_timeout_ms=50).end_on_partition(ENDED, TOPIC)


@pytest.mark.parametrize("topic", ["persistent://gone/gone/topic", "persistent://public/gone/topic", "no//topic", ""])
async def test_what_cannot_be_need_not_hear(broker: MemoryBroker, asked: Asked, topic: str) -> None:
    await participants_of(broker).end_on_partition(ENDED, topic)
    await participants_of(broker).end_on_subscription(ENDED, topic, "s")
    assert asked.requests == []


async def test_a_refused_lookup_in_a_namespace_that_stands_is_no_success(broker: MemoryBroker, asked: Asked) -> None:
    resources = broker.service.resources
    path = resources.namespace_path(NamespaceName("public", "default"))
    await resources.documents.update(path, lambda policies: {**policies, "deleted": True})
    with pytest.raises(PulsarError):
        await participants_of(broker).end_on_partition(ENDED, TOPIC)
    assert asked.requests == []


async def test_there_is_a_bound_of_requests_without_an_answer(broker: MemoryBroker, asked: Asked) -> None:
    asked.silent = True
    participants = participants_of(broker, requests_at_once_max=1, request_timeout_ms=60_000)  # 100 at least.
    telling = [asyncio.create_task(participants.end_on_partition(ENDED, TOPIC)) for _ in range(150)]
    await until(lambda: len(asked.requests) == 100)
    asked.silent = False
    await participants_of(broker).end_on_partition(ENDED, TOPIC)
    assert len(asked.requests) == 101
    for task in telling:
        task.cancel()
    await asyncio.gather(*telling, return_exceptions=True)


async def test_the_client_shows_the_brokers_credentials(asked: Asked) -> None:
    settings = replace(broker_settings(), transactions=ENABLED.transactions)
    async with MemoryBroker(settings) as broker:
        await participants_of(broker).end_on_partition(ENDED, TOPIC)
        await participants_of(broker).end_on_subscription(ENDED, TOPIC, "s")
    assert asked.super_users == [True, True]


def remotely_told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics that brokers tell by the network."""
    told: list[str] = []
    tell = RemoteParticipants.end_on_partition

    async def end_on_partition(self: RemoteParticipants, ended: EndedTransaction, topic: str) -> None:
        told.append(topic)
        await tell(self, ended, topic)

    monkeypatch.setattr(RemoteParticipants, "end_on_partition", end_on_partition)
    return told


def coordinators_of(broker: MemoryBroker) -> CoordinatorService:
    coordinators = broker.running.context.coordinators
    assert coordinators is not None
    return coordinators


async def test_a_broker_spares_the_network_for_its_own_topics_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that moves to another broker, or is not loaded, hears there."""
    told = remotely_told(monkeypatch)
    async with MemoryCluster(2, ENABLED) as cluster:
        bundle = await cluster.take(cluster[0], TOPIC)
        context = cluster[0].running.context
        coordinators = coordinators_of(cluster[0])
        await cluster.take(cluster[0], str(coordinator_topic(0)))
        await coordinators.connect(0)

        async def commit() -> None:
            transaction = await coordinators.new_transaction(0, 60_000, NOBODY)
            await coordinators.add_partitions(transaction, NOBODY, [TOPIC])
            await coordinators.end(transaction, NOBODY, commit=True)

        topic = await context.service.topic(TopicName.parse(TOPIC), create=True)
        assert isinstance(topic, PersistentTopic)
        await commit()
        assert told == []
        await context.moves.unload(bundle, destination=cluster[1].running.context.ownership.own.broker_id)
        await commit()
        assert told == [TOPIC]


@pytest.mark.parametrize("subscribed", [True, False])
async def test_a_former_owner_of_the_topic_does_not_say_that_acknowledgements_are_committed(subscribed: bool) -> None:
    """It knows nothing of the transaction, as they were made at the next owner."""
    async with MemoryCluster(2, ENABLED) as cluster:
        former, owner = cluster[0], cluster[1]
        await cluster.take(former, str(coordinator_topic(0)))
        bundle = await cluster.take(former, TOPIC)
        coordinators: Any = former.running.context.coordinators
        await coordinators.connect(0)
        topic = await former.running.context.service.topic(TopicName.parse(TOPIC), create=True)
        assert isinstance(topic, PersistentTopic)
        if subscribed:
            assert topic.pending_acks is not None
            await topic.pending_acks.ready(await topic.create_subscription("s", EARLIEST))
        transaction = await coordinators.new_transaction(0, 600_000, NOBODY)
        former.store.disconnect()  # It does not hear that it has lost the bundle.
        await owner.store.delete(ownership_path(bundle))
        await cluster.take(owner, TOPIC)
        client = await owner.connect()
        await client.consumer(TOPIC, "s", 1, subType=1, initialPosition=pb.CommandSubscribe.Earliest)
        await client.producer(TOPIC)
        await client.publish(1)
        (message,) = await client.messages(1, consumer_id=1)
        position = id_of(message)
        await coordinators.add_subscriptions(transaction, NOBODY, [(TOPIC, "s")])
        await client.request(
            pb.BaseCommand.ACK,
            consumer_id=1,
            ack_type=pb.CommandAck.Individual,
            message_id=[{"ledgerId": position[0], "entryId": position[1], "partition": -1}],
            txnid_most_bits=transaction.coordinator,
            txnid_least_bits=transaction.sequence,
        )
        ending = asyncio.create_task(coordinators.end(transaction, NOBODY, commit=True))
        await asyncio.wait((ending,), timeout=1.0)
        assert not (ending.done() and ending.exception() is None)
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        former.store.begin_anew()
