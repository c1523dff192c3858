"""Transactions over the wire: clients' commands to coordinators, one broker and several, restarts and moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from magnetar.broker.bundles.ownership import ownership_path
from magnetar.broker.context import BrokerContext
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.testing.auth import ADMIN, PROXY, broker_settings, connected_as
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.broker.testing.sessions import COORDINATORS, MemoryBroker, ProtocolClient, Received, command_type
from magnetar.broker.transactions.api import EndedTransaction
from magnetar.broker.transactions.coordinator_log import CoordinatorLog
from magnetar.broker.transactions.coordinator_participants import RemoteParticipants
from magnetar.broker.transactions.names import TransactionId, coordinator_topic, log_name
from magnetar.ledger.testing import Health
from magnetar.managed.errors import ManagedLedgerFenced
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

ENABLED = BrokerSettings(cluster_name="memory", transactions=TransactionSettings(enabled=True))
A, B = "persistent://public/default/a", "persistent://public/default/b"
COMMIT, ABORT = pb.COMMIT, pb.ABORT


class Told:
    """Stands for the topics and subscriptions of all brokers, and remembers what they hear."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[tuple[int, int, bool, str, str]] = []
        self.ready = asyncio.Event()
        self.ready.set()
        heard = self

        async def on_partition(_: RemoteParticipants, ended: EndedTransaction, topic: str) -> None:
            await heard.ready.wait()
            heard.told.append((*ended.id, ended.commit, topic, ""))

        async def on_subscription(_: RemoteParticipants, ended: EndedTransaction, topic: str, name: str) -> None:
            await heard.ready.wait()
            heard.told.append((*ended.id, ended.commit, topic, name))

        monkeypatch.setattr(RemoteParticipants, "end_on_partition", on_partition)
        monkeypatch.setattr(RemoteParticipants, "end_on_subscription", on_subscription)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """What topics and subscriptions hear."""
    return Told(monkeypatch)


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    """One with transactions."""
    async with MemoryBroker(ENABLED) as running:
        yield running


async def ask(client: ProtocolClient, kind: str, **fields: Any) -> Received:
    """The answer to a request."""
    return await client.request(command_type(kind), **fields)


async def connect(client: ProtocolClient, coordinator: int) -> Received:
    """TC_CLIENT_CONNECT."""
    return await ask(client, "TC_CLIENT_CONNECT_REQUEST", tc_id=coordinator)


async def begin(client: ProtocolClient, coordinator: int = 0, timeout_ms: int = 60_000) -> int:
    """NEW_TXN; the least bits."""
    answer = await ask(client, "NEW_TXN", tc_id=coordinator, txn_ttl_seconds=timeout_ms)
    assert not answer.body.HasField("error"), answer
    assert answer.body.txnid_most_bits == coordinator
    sequence: int = answer.body.txnid_least_bits
    return sequence


async def add(client: ProtocolClient, coordinator: int, sequence: int, *topics: str) -> Received:
    """ADD_PARTITION_TO_TXN."""
    return await ask(
        client, "ADD_PARTITION_TO_TXN", txnid_most_bits=coordinator, txnid_least_bits=sequence, partitions=topics
    )


async def subscribe(client: ProtocolClient, coordinator: int, sequence: int, topic: str, name: str) -> Received:
    """ADD_SUBSCRIPTION_TO_TXN."""
    return await ask(
        client,
        "ADD_SUBSCRIPTION_TO_TXN",
        txnid_most_bits=coordinator,
        txnid_least_bits=sequence,
        subscription=[pb.Subscription(topic=topic, subscription=name)],
    )


async def end(client: ProtocolClient, coordinator: int, sequence: int, action: int) -> Received:
    """END_TXN."""
    return await ask(client, "END_TXN", txnid_most_bits=coordinator, txnid_least_bits=sequence, txn_action=action)


def error_of(answer: Received) -> ServerError | None:
    """The error in the fields of an answer."""
    assert answer.name.endswith("_RESPONSE"), answer
    return ServerError(answer.body.error) if answer.body.HasField("error") else None


async def test_a_transaction_from_begin_to_end(broker: MemoryBroker, told: Told) -> None:
    client = await broker.connect()
    count = await ask(client, "PARTITIONED_METADATA", topic=str(coordinator_topic(0).partitioned_name()))
    assert count.body.partitions == COORDINATORS
    for coordinator in range(COORDINATORS):
        found = await ask(client, "LOOKUP", topic=str(coordinator_topic(coordinator)))
        assert found.body.response == pb.CommandLookupTopicResponse.Connect
        assert error_of(await connect(client, coordinator)) is None
        assert await begin(client, coordinator) == 0
    answer = await add(client, 2, 0, A, B)
    assert error_of(answer) is None
    assert (answer.name, answer.body.txnid_most_bits, answer.body.txnid_least_bits) == (
        "ADD_PARTITION_TO_TXN_RESPONSE",
        2,
        0,
    )
    assert error_of(await subscribe(client, 2, 0, B, "s")) is None
    answer = await end(client, 2, 0, COMMIT)
    assert error_of(answer) is None
    assert (answer.name, answer.body.txnid_most_bits, answer.body.txnid_least_bits) == ("END_TXN_RESPONSE", 2, 0)
    assert sorted(told.told) == sorted([(2, 0, True, A, ""), (2, 0, True, B, ""), (2, 0, True, B, "s")])
    assert await begin(client, 2) == 1
    assert error_of(await end(client, 2, 1, ABORT)) is None


async def test_refusals_are_in_the_answers_fields(broker: MemoryBroker, told: Told) -> None:
    client = await broker.connect()
    assert error_of(await connect(client, 0)) is None
    for coordinator in (1, COORDINATORS, (1 << 64) - 1):
        answer = await ask(client, "NEW_TXN", tc_id=coordinator, txn_ttl_seconds=1_000)
        assert error_of(answer) is ServerError.TRANSACTION_COORDINATOR_NOT_FOUND
        assert error_of(await end(client, coordinator, 0, COMMIT)) is ServerError.TRANSACTION_COORDINATOR_NOT_FOUND
    for coordinator in (COORDINATORS, (1 << 64) - 1):
        assert error_of(await connect(client, coordinator)) is ServerError.TRANSACTION_COORDINATOR_NOT_FOUND
    for refused in (await add(client, 0, 9, A), await subscribe(client, 0, 9, A, "s"), await end(client, 0, 9, ABORT)):
        assert error_of(refused) is ServerError.TRANSACTION_NOT_FOUND
        assert (refused.body.txnid_most_bits, refused.body.txnid_least_bits) == (0, 9)
    assert await begin(client) == 0
    assert error_of(await add(client, 0, 0, A, "persistent://a/b")) is ServerError.INVALID_TOPIC_NAME
    assert error_of(await subscribe(client, 0, 0, "", "s")) is ServerError.INVALID_TOPIC_NAME
    answer = await ask(client, "END_TXN", txnid_most_bits=0, txnid_least_bits=0)
    assert error_of(answer) is ServerError.NOT_ALLOWED_ERROR
    told.ready.clear()
    await add(client, 0, 0, A)
    committing = asyncio.create_task(end(client, 0, 0, COMMIT))
    other = await broker.connect()
    while error_of(await add(other, 0, 0, B)) is None:
        await asyncio.sleep(0)
    for refused in (await add(other, 0, 0, B), await subscribe(other, 0, 0, A, "s"), await end(other, 0, 0, ABORT)):
        assert error_of(refused) is ServerError.INVALID_TXN_STATUS
    told.ready.set()
    assert error_of(await committing) is None


async def test_a_coordinators_log_is_nobodys_topic(broker: MemoryBroker) -> None:
    client = await broker.connect()
    await connect(client, 0)
    await begin(client)
    topic = "persistent://" + log_name(0).replace("/persistent/", "/")
    refused = [
        await ask(client, "PRODUCER", topic=topic, producer_id=1),
        await ask(client, "SUBSCRIBE", topic=topic, subscription="s", subType=0, consumer_id=1),
    ]
    assert [(one.name, one.body.error) for one in refused] == [("ERROR", ServerError.NOT_ALLOWED_ERROR)] * 2
    assert await begin(client) == 1


async def test_the_most_that_may_be_open() -> None:
    settings = replace(ENABLED, transactions=replace(ENABLED.transactions, open_per_coordinator_max=1))
    async with MemoryBroker(settings) as broker:
        client = await broker.connect()
        await connect(client, 0)
        await begin(client)
        answer = await ask(client, "NEW_TXN", tc_id=0, txn_ttl_seconds=60_000)
        assert error_of(answer) is ServerError.TOO_MANY_REQUESTS
        assert "maxActiveTransactionsPerCoordinator" in answer.body.message
        await end(client, 0, 0, ABORT)
        await begin(client)


async def test_nobody_ends_it(broker: MemoryBroker, told: Told) -> None:
    client = await broker.connect()
    await connect(client, 0)
    await begin(client, timeout_ms=300)
    await add(client, 0, 0, A)
    await until(lambda: told.told == [(0, 0, False, A, "")])
    await until(lambda: len(coordinators_of(broker).get(0).table) == 0)


def coordinators_of(broker: MemoryBroker) -> Any:
    """The coordinators that a broker runs."""
    context: BrokerContext = broker.running.context
    return context.coordinators


# --- restarts, moves, owners


async def test_after_a_restart_all_is_there(broker: MemoryBroker, told: Told) -> None:
    client = await broker.connect()
    await connect(client, 0)
    for _ in range(3):
        await begin(client)
    await add(client, 0, 0, A)
    await add(client, 0, 2, B)
    await end(client, 0, 1, ABORT)
    told.ready.clear()
    client.start(command_type("END_TXN"), txnid_most_bits=0, txnid_least_bits=2, txn_action=COMMIT)
    await until(lambda: coordinators_of(broker).get(0).table.get(2).state.name == "COMMITTING")
    stopping = asyncio.create_task(broker.stop())
    await until(lambda: coordinators_of(broker)._open == {})
    told.ready.set()
    await stopping
    told.told.clear()
    await broker.start()
    client = await broker.connect()
    assert error_of(await add(client, 0, 0, B)) is ServerError.TRANSACTION_COORDINATOR_NOT_FOUND
    assert error_of(await connect(client, 0)) is None
    await until(lambda: told.told == [(0, 2, True, B, "")])
    assert error_of(await end(client, 0, 0, COMMIT)) is None
    assert told.told[1:] == [(0, 0, True, A, "")]
    assert await begin(client) == 3


async def test_who_waits_for_an_end_hears_that_the_bundle_goes(broker: MemoryBroker, told: Told) -> None:
    client = await broker.connect()
    await connect(client, 0)
    await begin(client)
    await add(client, 0, 0, A)
    told.ready.clear()
    committing = asyncio.create_task(end(client, 0, 0, COMMIT))
    await until(lambda: coordinators_of(broker).get(0).table.get(0).state.name == "COMMITTING")
    bundle = broker.running.context.ownership.serving(coordinator_topic(0))
    assert bundle is not None
    await broker.running.context.moves.unload(bundle.name)
    assert error_of(await committing) is ServerError.TRANSACTION_COORDINATOR_NOT_FOUND
    told.ready.set()
    assert error_of(await connect(client, 0)) is None
    await until(lambda: len(coordinators_of(broker).get(0).table) == 0)
    assert set(told.told) == {(0, 0, True, A, "")}


async def test_clients_that_connect_at_once_share_one_reading(broker: MemoryBroker) -> None:
    clients = [await broker.connect() for _ in range(10)]
    answers = await asyncio.gather(*(connect(client, 1) for client in clients))
    assert [error_of(answer) for answer in answers] == [None] * 10
    assert [await begin(client, 1) for client in clients] == list(range(10))


async def test_a_client_that_connects_while_the_log_is_read_waits_for_it(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, replay, reading = asyncio.Event(), CoordinatorLog.replay, asyncio.Event()

    async def slowly(self: CoordinatorLog, take: Any) -> None:
        reading.set()
        await go_on.wait()
        await replay(self, take)

    monkeypatch.setattr(CoordinatorLog, "replay", slowly)
    clients = [await broker.connect() for _ in range(2)]
    first = asyncio.create_task(connect(clients[0], 1))
    await reading.wait()
    second = asyncio.create_task(connect(clients[1], 1))
    assert (await coordinators_of(broker).stats(1)).state == "Initializing"
    done, _ = await asyncio.wait([first, second], timeout=0.3)
    go_on.set()
    assert not done
    assert [error_of(answer) for answer in await asyncio.gather(first, second)] == [None, None]
    assert await begin(clients[1], 1) == 0


async def test_one_that_is_given_up_shows_nothing_even_before_it_is_let_go_of(broker: MemoryBroker) -> None:
    coordinators = coordinators_of(broker)
    await coordinators.connect(1)
    coordinators.get(1)._give_up(ManagedLedgerFenced("somebody else has it"))
    with pytest.raises(PulsarError, match="Transaction coordinator 1 not found"):
        await coordinators.stats(1)
    # It is read anew; so is the one that a client wants at that moment.
    await coordinators.connect(1)
    assert (await coordinators.stats(1)).state == "Ready"


async def test_a_broker_that_does_not_know_yet_that_it_lost_a_coordinator_takes_it_from_nobody(told: Told) -> None:
    async with MemoryCluster(2, ENABLED) as cluster:
        bundle = await cluster.take(cluster[0], str(coordinator_topic(1)))
        paused = cluster[0].running.context.ownership
        # It hears of nothing: as one that stood still, and asks no store of its own accord.
        paused._check_later = lambda bundles: None  # type: ignore[method-assign]
        await cluster[0].store.delete(ownership_path(bundle))
        await cluster.take(cluster[1], str(coordinator_topic(1)))
        owner = await cluster[1].connect()
        assert error_of(await connect(owner, 1)) is None
        assert cluster.owned(cluster[0], bundle) is not None
        assert error_of(await connect(await cluster[0].connect(), 1)) is ServerError.SERVICE_NOT_READY
        # The log is as it was: nobody has fenced its owner.
        assert await begin(owner, 1) == 0


async def test_a_coordinator_moves_with_its_bundle(told: Told) -> None:
    async with MemoryCluster(2, ENABLED) as cluster:
        topic = str(coordinator_topic(1))
        bundle = await cluster.take(cluster[0], topic)
        client, other = await cluster[0].connect(), await cluster[1].connect()
        assert error_of(await connect(client, 1)) is None
        refused = await connect(other, 1)
        assert error_of(refused) is ServerError.SERVICE_NOT_READY
        assert await begin(client, 1) == 0
        await add(client, 1, 0, A)
        there = cluster[1].running.context.ownership.own.broker_id
        await cluster[0].running.context.moves.unload(bundle, destination=there)
        assert error_of(await end(client, 1, 0, COMMIT)) is ServerError.TRANSACTION_COORDINATOR_NOT_FOUND
        assert await cluster.lookup(cluster[0], topic) is cluster[1]
        assert error_of(await connect(client, 1)) is ServerError.SERVICE_NOT_READY
        assert error_of(await connect(other, 1)) is None
        assert error_of(await end(other, 1, 0, COMMIT)) is None
        assert told.told == [(1, 0, True, A, "")]
        assert await begin(other, 1) == 1


async def test_a_coordinator_stays_when_its_bundle_is_split(told: Told) -> None:
    async with MemoryCluster(1, ENABLED) as cluster:
        bundle = await cluster.take(cluster[0], str(coordinator_topic(1)))
        client = await cluster[0].connect()
        await connect(client, 1)
        await begin(client, 1)
        await cluster[0].running.context.moves.split(bundle)
        assert error_of(await end(client, 1, 0, COMMIT)) is None
        assert await begin(client, 1) == 1


async def test_a_broker_that_lost_its_session_serves_no_coordinator(told: Told) -> None:
    async with MemoryCluster(2, ENABLED) as cluster:
        topic = str(coordinator_topic(1))
        await cluster.take(cluster[0], topic)
        client = await cluster[0].connect()
        await connect(client, 1)
        await begin(client, 1)
        await add(client, 1, 0, A)
        cluster[0].store.expire_session()
        answer = await ask(client, "NEW_TXN", tc_id=1, txn_ttl_seconds=60_000)
        assert error_of(answer) is ServerError.TRANSACTION_COORDINATOR_NOT_FOUND
        await cluster.settled()
        owner = await cluster.lookup(cluster[1], topic)
        client = await owner.connect()
        assert error_of(await connect(client, 1)) is None
        assert error_of(await end(client, 1, 0, COMMIT)) is None
        assert told.told == [(1, 0, True, A, "")]


async def test_a_broker_whose_log_was_taken_lets_go(broker: MemoryBroker) -> None:
    client = await broker.connect()
    await connect(client, 0)
    await begin(client)
    # Another owner, of which this broker has not heard.
    factory = other_factory(broker)
    await factory.open(log_name(0))
    answer = await ask(client, "NEW_TXN", tc_id=0, txn_ttl_seconds=60_000)
    assert error_of(answer) is ServerError.TRANSACTION_COORDINATOR_NOT_FOUND
    await factory.close()
    assert error_of(await connect(client, 0)) is None
    # What was refused was perhaps begun: its id is not given again.
    assert await begin(client) >= 1


def other_factory(broker: MemoryBroker) -> Any:
    """Managed ledgers of somebody who does not ask who owns what."""
    service = broker.service
    return type(service.ledgers)(
        broker.store, broker.ledgers, service.clock, asyncio.get_running_loop(), settings=service.ledgers.settings
    )


async def test_while_no_bookie_answers_nothing_is_confirmed_and_afterwards_all_goes_on(
    broker: MemoryBroker, told: Told
) -> None:
    client = await broker.connect()
    await connect(client, 0)
    await begin(client)
    await add(client, 0, 0, A)
    for bookie in broker.bookies.bookies.values():
        bookie.stop()
    answer = await end(client, 0, 0, COMMIT)
    assert error_of(answer) is ServerError.TRANSACTION_COORDINATOR_NOT_FOUND
    assert told.told == []
    for bookie in broker.bookies.bookies.values():
        bookie.heal()
        assert bookie.health is Health.HEALTHY
    # Read anew without anybody asking.
    await until(lambda: 0 in {one.id for one, _ in coordinators_of(broker)._open.values()})
    assert error_of(await connect(client, 0)) is None
    assert error_of(await end(client, 0, 0, COMMIT)) in (None, ServerError.TRANSACTION_NOT_FOUND)
    assert told.told == [(0, 0, True, A, "")]


# --- who may


async def test_roles_own_their_transactions(told: Told) -> None:
    settings = replace(broker_settings(), transactions=ENABLED.transactions)
    async with MemoryBroker(settings) as broker:
        alice, bob, admin = [await connected_as(broker, subject) for subject in ("alice", "bob", ADMIN)]
        await connect(alice, 0)
        assert [await begin(client) for client in (alice, bob, admin)] == [0, 1, 2]
        assert error_of(await add(alice, 0, 0, A)) is None
        for sequence in (0, 2):
            assert error_of(await add(bob, 0, sequence, A)) is ServerError.TRANSACTION_NOT_FOUND
            assert error_of(await subscribe(bob, 0, sequence, A, "s")) is ServerError.TRANSACTION_NOT_FOUND
            refused = await end(bob, 0, sequence, COMMIT)
            assert error_of(refused) is ServerError.TRANSACTION_NOT_FOUND
            assert refused.body.message == (
                f"Client (bob) is neither the owner of the transaction (0,{sequence}) nor a super user"
            )
        assert (await coordinators_of(broker).details(TransactionId(0, 0))).owner == "alice"
        assert error_of(await end(admin, 0, 0, COMMIT)) is None
        assert error_of(await end(bob, 0, 1, ABORT)) is None


async def test_a_proxys_client_owns_what_it_begins(told: Told) -> None:
    settings = replace(broker_settings(), transactions=ENABLED.transactions)
    async with MemoryBroker(settings) as broker:
        through, direct = [
            await connected_as(broker, PROXY, original_principal="alice"),
            await connected_as(broker, "alice"),
        ]
        await connect(through, 0)
        await begin(through)
        assert (await coordinators_of(broker).details(TransactionId(0, 0))).owner == "alice"
        assert error_of(await add(direct, 0, 0, A)) is None
