"""Compactions of two owners of one topic: what one has written late, or has gone through and the next one may not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from magnetar.broker.compaction import topic_compaction
from magnetar.broker.compaction.topic_compaction import TopicCompaction, is_unsettled
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.testing.sessions import MemoryBroker, SharedParts, message
from magnetar.ledger.testing import MemoryBookies
from magnetar.managed.compaction import COMPACTION_CURSOR
from magnetar.managed.errors import ManagedLedgerFenced
from magnetar.managed.paths import cursor_path
from magnetar.metadata.memory import MemoryMetadataStore, MemoryTree
from magnetar.metadata.store import StoreUnavailable
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.compaction_world import TOPIC, CompactionWorld, until
from broker.tests.test_broker_compaction_failures import AFTER, FIRST, THEN
from broker.tests.test_broker_transaction_buffer import end

PATIENCE_SECONDS = 60.0
WITH_TRANSACTIONS = BrokerSettings(transactions=TransactionSettings(enabled=True))


async def test_the_ledger_that_a_former_owner_has_named_late_is_not_deleted(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store takes the write of the owner before after the cursor was loaded by the next one.

    To that one the new ledger is the one of a run that did not end, and it is on its way to delete it."""
    world = CompactionWorld(memory_broker)
    await world.publish(*FIRST)
    await world.compact()
    await world.publish(*THEN)
    await world.broker.service.unload(TOPIC)  # So that the cursor's next write goes to its node.
    late = LateWrite(world, cursor_path((await world.ledger()).name, COMPACTION_CURSOR), monkeypatch)
    (await world.compaction()).start()
    await late.begun()
    await world.broker.service.abandon([await world.topic()])
    found: list[ManagedLedgerFenced] = []
    settle = TopicCompaction._settle

    async def settled(self: TopicCompaction) -> None:
        with pytest.raises(ManagedLedgerFenced) as caught:
            await settle(self)
        found.append(caught.value)

    with monkeypatch.context() as patch:
        patch.setattr(topic_compaction, "_durable", late.arrives)
        patch.setattr(TopicCompaction, "_settle", settled)
        before = await world.compacted()
        await until(lambda: bool(found))
    await world.broker.service.abandon([await world.topic()])
    ledger = await world.ledger()
    await until(lambda: not is_unsettled(ledger))
    assert (await world.compacted()).ledger_id > before.ledger_id
    assert await world.compacted_ledgers() == {(await world.compacted()).ledger_id}
    assert await world.read() == AFTER
    await world.close()


class LateWrite:
    """Holds the write back by which a run names its ledger, until somebody wants it to arrive."""

    def __init__(self, world: CompactionWorld, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path = path
        self._put = world.broker.store.put
        self._telling = False
        self._reached, self._go_on, self._arrived = asyncio.Event(), asyncio.Event(), asyncio.Event()
        publish = TopicCompaction._publish

        async def telling(compaction: TopicCompaction, *arguments: Any) -> None:
            self._telling = True
            await publish(compaction, *arguments)

        monkeypatch.setattr(TopicCompaction, "_publish", telling)
        monkeypatch.setattr(world.broker.store, "put", self._held)

    async def begun(self) -> None:
        """Wait until it is on its way."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._reached.wait()

    async def arrives(self, _cursor: object) -> None:
        """Let it happen."""
        self._go_on.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._arrived.wait()

    async def _held(self, path: str, *arguments: Any, **named: Any) -> Any:
        if path != self._path or not self._telling:
            return await self._put(path, *arguments, **named)
        self._telling = False
        self._reached.set()
        await self._go_on.wait()
        stat = await self._put(path, *arguments, **named)
        self._arrived.set()
        return stat


@pytest.mark.parametrize("happens", [True, False], ids=["it happens", "it does not"])
async def test_nothing_is_deleted_while_the_answer_is_lost_that_tells_who_owns_it(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, *, happens: bool
) -> None:
    """The note stays, so that it is done when the store answers again."""
    world = CompactionWorld(memory_broker)
    await world.publish(*FIRST)
    await world.compact()
    path = cursor_path((await world.ledger()).name, COMPACTION_CURSOR)
    put = world.broker.store.put

    async def lost(where: str, *arguments: Any, **named: Any) -> Any:
        if where != path:
            return await put(where, *arguments, **named)
        if happens:
            await put(where, *arguments, **named)
        raise StoreUnavailable("no answer")

    publish = TopicCompaction._publish

    async def published(compaction: TopicCompaction, *arguments: Any) -> None:
        cursor = (await world.ledger()).cursors[COMPACTION_CURSOR]
        cursor.acknowledge_cumulative(arguments[1])
        assert cursor.storage is not None
        await cursor.storage.flush()
        monkeypatch.setattr(world.broker.store, "put", lost)  # What is written to the cursor's ledger needs no node.
        await publish(compaction, *arguments)

    before = (await world.compacted()).ledger_id
    await world.publish(*THEN)
    monkeypatch.setattr(TopicCompaction, "_publish", published)
    assert (await world.compact())["status"] == "SUCCESS"
    assert await world.compacted_ledgers() == {before, (await world.compacted()).ledger_id}
    monkeypatch.undo()
    assert await world.read() == AFTER
    await (await world.compaction()).settle()
    assert await world.compacted_ledgers() == {(await world.compacted()).ledger_id}
    await world.close()


async def test_a_compaction_goes_no_less_far_than_the_one_before() -> None:
    """The owner of then had no transactions, and compacted what now waits for one. Its readers have seen it."""
    tree, bookies = MemoryTree(), MemoryBookies()

    def broker(settings: BrokerSettings) -> MemoryBroker:
        return MemoryBroker(settings, shared=SharedParts(MemoryMetadataStore(tree), bookies))

    async with broker(WITH_TRANSACTIONS) as with_transactions:
        world = CompactionWorld(with_transactions)
        client = await with_transactions.connect()
        await client.consumer(str(TOPIC))  # It keeps all messages, and the beginning of the transaction.
        await world.publish(("a", "1"))
        await client.producer(str(TOPIC))
        bits: Any = {"txnid_most_bits": 0, "txnid_least_bits": 1}
        content = message(b"1", sequence_id=0, partition_key="t", **bits)
        client.send(pb.BaseCommand.SEND, content, producer_id=1, sequence_id=0, **bits)
        await client.expect(pb.BaseCommand.SEND_RECEIPT)
        await world.publish(("b", "1"))
        await world.close()
    async with broker(replace(WITH_TRANSACTIONS, transactions=TransactionSettings())) as without:
        world = CompactionWorld(without)
        assert (await world.compact())["status"] == "SUCCESS"
        before = await world.compacted()
        await world.close()
    async with broker(WITH_TRANSACTIONS) as with_transactions:
        world = CompactionWorld(with_transactions)
        assert (await world.topic()).visible_entries.end() < before.horizon
        assert (await world.compact())["status"] == "SUCCESS"
        assert (await world.compacted()).horizon == before.horizon
        client = await with_transactions.connect()
        await client.producer(str(TOPIC))
        assert not (await end(client, 1, topic=str(TOPIC))).HasField("error")
        assert [key for key, _ in await world.read()] == ["a", "t", "b"]
        await world.close()
