"""`/admin/v3/transactions`: coordinators and their transactions, as administrators see them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from magnetar.broker.context import BrokerContext
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.broker.testing.sessions import COORDINATORS, MemoryBroker
from magnetar.broker.transactions.api import Asker
from magnetar.broker.transactions.coordinator_participants import RemoteParticipants
from magnetar.broker.transactions.names import TransactionId, coordinator_topic, log_name
from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.wire.pulsar.errors import PulsarError

from broker.tests.conftest import Admin

ENABLED = BrokerSettings(cluster_name="memory", transactions=TransactionSettings(enabled=True))
BASE = "/admin/v3/transactions"
ALICE = Asker("alice", super_user=False)
NOBODY = Asker("", super_user=False)
A, B = "persistent://public/default/a", "persistent://public/default/b"


@pytest.fixture
async def memory_broker() -> AsyncIterator[MemoryBroker]:
    """One with transactions."""
    async with MemoryBroker(ENABLED) as running:
        yield running


def coordinators_of(broker: MemoryBroker) -> Any:
    """The coordinators that a broker runs."""
    context: BrokerContext = broker.running.context
    return context.coordinators


UNKNOWN = "(3,7) was not found: it was committed or aborted, which is not known"


async def test_statistics_of_coordinators(memory_broker: MemoryBroker, admin: Any) -> None:
    coordinators = coordinators_of(memory_broker)
    missing = "Transaction coordinator not found! coordinator id : 0"
    await admin.check(
        ("GET", BASE + "/coordinatorStats?coordinatorId=0", None, 404, missing),
        ("GET", BASE + "/coordinatorStats", None, 404, missing),
        ("GET", BASE + "/coordinatorInternalStats/0", None, 404, missing),
    )
    for coordinator in range(COORDINATORS):
        await coordinators.connect(coordinator)
    for _ in range(3):
        await coordinators.new_transaction(2, 60_000, ALICE)
    await coordinators.end(TransactionId(2, 0), ALICE, commit=False)
    status, found = await admin("GET", BASE + "/coordinatorStats?coordinatorId=2")
    assert status == 200
    assert 0 < found.pop("recoverStartTime") <= found.pop("recoverEndTime")
    assert found == {"state": "Ready", "leastSigBits": 2, "lowWaterMark": 0, "ongoingTxnSize": 2}
    status, found = await admin("GET", BASE + "/coordinatorStats")
    assert status == 200
    assert {id_: (one["leastSigBits"], one["ongoingTxnSize"]) for id_, one in found.items()} == {
        "0": (-1, 0),
        "1": (-1, 0),
        "2": (2, 2),
        "3": (-1, 0),
    }
    status, found = await admin("GET", BASE + "/coordinators")
    assert status == 200
    url = memory_broker.running.settings.service_url
    assert found == [{"id": number, "brokerServiceUrl": url} for number in range(COORDINATORS)]


async def test_the_inside_of_a_log(memory_broker: MemoryBroker, admin: Any) -> None:
    coordinators = coordinators_of(memory_broker)
    await coordinators.connect(1)
    await coordinators.new_transaction(1, 60_000, NOBODY)
    status, found = await admin("GET", BASE + "/coordinatorInternalStats/1?metadata=true")
    assert status == 200
    log = found["transactionLogStats"]
    assert log["managedLedgerName"] == "pulsar/system/persistent/__transaction_log_1"
    inside = log["managedLedgerInternalStats"]
    assert inside["entriesAddedCounter"] == 1
    assert list(inside["cursors"]) == ["transaction.subscription"]
    assert inside["cursors"]["transaction.subscription"]["markDeletePosition"].endswith(":-1")
    assert "LedgerMetadata{" in inside["ledgers"][0]["metadata"]


async def test_one_transaction(memory_broker: MemoryBroker, admin: Any) -> None:
    coordinators = coordinators_of(memory_broker)
    await coordinators.connect(3)
    id_ = await coordinators.new_transaction(3, 60_000, ALICE)
    await coordinators.add_partitions(id_, ALICE, [A])
    await coordinators.add_subscriptions(id_, ALICE, [(B, "s")])
    status, found = await admin("GET", BASE + "/transactionMetadata/3/0")
    assert status == 200
    assert found.pop("openTimestamp") > 0
    assert list(found.pop("producedPartitions")) == [A]
    acknowledged = found.pop("ackedPartitions")
    assert {topic: list(names) for topic, names in acknowledged.items()} == {B: ["s"]}
    assert found == {"txnId": "(3,0)", "status": "OPEN", "timeoutAt": 60_000, "owner": "alice"}
    await admin.check(
        (
            "GET",
            BASE + "/transactionMetadata/3/7",
            None,
            404,
            "(3,7) was not found: it was committed or aborted, which is not known",
        ),
        ("GET", BASE + "/transactionMetadata/2/0", None, 404, "Transaction coordinator 2 not found"),
        ("GET", BASE + "/transactionMetadata/x/0", None, 400, "not a whole number"),
        ("GET", BASE + "/transactionMetadata/-1/0", None, 400, "out of bounds"),
    )


async def test_slow_transactions_are_those_with_a_long_time(memory_broker: MemoryBroker, admin: Any) -> None:
    coordinators = coordinators_of(memory_broker)
    for coordinator in range(COORDINATORS):
        await coordinators.connect(coordinator)
        await coordinators.new_transaction(coordinator, 60_000 * (coordinator + 1), NOBODY)
    for timeout_ms, slow in ((0, 4), (60_000, 3), (200_000, 1), (10_000_000, 0)):
        status, found = await admin("GET", f"{BASE}/slowTransactions/{timeout_ms}")
        assert (status, sorted(found)) == (200, [f"({number},0)" for number in range(4 - slow, 4)])
    status, found = await admin("GET", f"{BASE}/slowTransactions/1?coordinatorId=1")
    assert status == 200
    assert found["(1,0)"]["timeoutAt"] == 120_000
    assert "owner" not in found["(1,0)"]


async def test_a_transaction_is_aborted_for_whoever_owns_it(
    memory_broker: MemoryBroker, admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    async def on_partition(_: RemoteParticipants, *what: Any) -> None:
        told.append(what)

    monkeypatch.setattr(RemoteParticipants, "end_on_partition", on_partition)
    coordinators = coordinators_of(memory_broker)
    await coordinators.connect(0)
    id_ = await coordinators.new_transaction(0, 60_000, ALICE)
    await coordinators.add_partitions(id_, ALICE, [A])
    await admin.check(("POST", BASE + "/abortTransaction/0/0", None, 204, None))
    assert [(ended.commit, topic) for ended, topic in told] == [(False, A)]
    await admin.check(
        ("POST", BASE + "/abortTransaction/0/0", None, 404, "(0,0) was not found"),
        ("POST", BASE + "/abortTransaction/1/0", None, 404, "Transaction coordinator 1 not found"),
        ("POST", BASE + "/abortTransaction/9999999999/0", None, 400, "mostSigBits out of bounds"),
    )


async def test_there_may_be_more_coordinators_but_not_fewer(memory_broker: MemoryBroker, admin: Any) -> None:
    fewer = "Number of transaction coordinators should be more than the current number of transaction coordinator"
    path = BASE + "/transactionCoordinator/replicas"
    await admin.check(
        ("POST", path, 4, 406, fewer),
        ("POST", path, -1, 406, fewer),
        ("POST", path, 1_000_000, 406, "at most"),
        ("POST", path, "x", 400, ...),
        ("POST", path, 6, 204, None),
    )
    await until(
        lambda: memory_broker.service.resources.peek_partitions(coordinator_topic(0).partitioned_name())[1] in (6, None)
    )
    await coordinators_of(memory_broker).connect(5)
    status, found = await admin("GET", BASE + "/coordinators")
    assert (status, len(found)) == (200, 6)


async def test_the_broker_that_runs_it_is_asked() -> None:
    async with MemoryCluster(2, ENABLED) as cluster, aiohttp.ClientSession() as session:
        await cluster.take(cluster[1], str(coordinator_topic(1)))
        await coordinators_of(cluster[1]).connect(1)
        status, found = await Admin(cluster[0], session)("GET", BASE + "/coordinatorStats?coordinatorId=1")
        assert (status, found["state"]) == (200, "Ready")


async def test_without_transactions() -> None:
    refusal = "This Broker is not configured with transactionCoordinatorEnabled=true."
    async with MemoryBroker() as broker, aiohttp.ClientSession() as session:
        await Admin(broker, session).check(
            ("GET", BASE + "/coordinators", None, 503, refusal),
            ("GET", BASE + "/coordinatorStats", None, 503, refusal),
            ("GET", BASE + "/coordinatorInternalStats/0", None, 503, refusal),
            ("GET", BASE + "/transactionMetadata/0/0", None, 503, refusal),
            ("GET", BASE + "/slowTransactions/1", None, 503, refusal),
            ("POST", BASE + "/abortTransaction/0/0", None, 503, refusal),
            ("POST", BASE + "/transactionCoordinator/replicas", 20, 503, refusal),
        )


@pytest.mark.parametrize(
    "path",
    [
        "coordinatorStats?coordinatorId=3",
        "coordinatorInternalStats/3",
        "transactionMetadata/3/0",
        "slowTransactions/1?coordinatorId=3",
    ],
)
async def test_a_broker_that_was_paused_shows_nothing_of_what_it_remembers(
    memory_broker: MemoryBroker, admin: Any, path: str
) -> None:
    coordinators = coordinators_of(memory_broker)
    await coordinators.connect(3)
    await coordinators.new_transaction(3, 60_000, NOBODY)
    assert (await admin("GET", f"{BASE}/{path}"))[0] == 200
    assert memory_broker.ledgers is not None
    clock, loop = memory_broker.service.clock, asyncio.get_running_loop()
    other = ManagedLedgerFactory(memory_broker.store, memory_broker.ledgers, clock, loop)
    log = await other.open(log_name(3))
    try:
        assert (await admin("GET", f"{BASE}/{path}"))[0] == 404
    finally:
        await log.close()


async def test_a_broker_that_was_paused_tells_nobody_of_its_newest_transaction(memory_broker: MemoryBroker) -> None:
    """Whoever asks takes all that are newer for open."""
    coordinators = coordinators_of(memory_broker)
    await coordinators.connect(3)
    await coordinators.new_transaction(3, 60_000, NOBODY)
    assert await coordinators.newest(3) == 0
    assert memory_broker.ledgers is not None
    clock, loop = memory_broker.service.clock, asyncio.get_running_loop()
    other = ManagedLedgerFactory(memory_broker.store, memory_broker.ledgers, clock, loop)
    log = await other.open(log_name(3))
    try:
        with pytest.raises(PulsarError, match="another broker runs it"):
            await coordinators.newest(3)
    finally:
        await log.close()
