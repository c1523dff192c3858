"""A compaction that does not end: the broker goes at any step, a bookie or the store fails, something is damaged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from magnetar.broker.compaction.output import CompactedOutput
from magnetar.broker.compaction.topic_compaction import TopicCompaction, is_unsettled
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.writer import OpenLedgerWriter
from magnetar.managed.compaction import COMPACTION_CURSOR
from magnetar.managed.cursors.storage import CursorStorage
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.metadata.store import StoreUnavailable

from broker.tests.compaction_world import TOPIC, CompactionWorld, until

FIRST = (("a", "1"), ("b", "1"), ("c", "1"), ("a", "2"))
THEN = (("b", "2"), ("c", None), ("d", "1"))
BEFORE = [("b", "1"), ("c", "1"), ("a", "2"), ("b", "2"), ("c", ""), ("d", "1")]
"""What a reader gets after a first compaction of FIRST, with THEN behind it."""
AFTER = [("a", "2"), ("b", "2"), ("d", "1")]


@pytest.fixture
async def world() -> AsyncIterator[CompactionWorld]:
    async with MemoryBroker() as broker:
        world = CompactionWorld(broker)
        await world.publish(*FIRST)
        await world.compact()
        await world.publish(*THEN)
        yield world
        await world.close()


class Stop:
    """Holds a run back at a call, before it or after it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, *, after: bool, times: int = 1) -> None:
        self.reached = asyncio.Event()
        self._left = times
        whole: Callable[..., Any] = getattr(owner, name)

        async def held(*arguments: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not after:
                await self._hold()
            result = await whole(*arguments, **named)
            if self._left == 0 and after:
                await self._hold()
            return result

        monkeypatch.setattr(owner, name, held)

    async def _hold(self) -> None:
        self.reached.set()
        await asyncio.Event().wait()


STEPS = {
    "before it begins": (TopicCompaction, "_run", False),
    "after the first pass": (ManagedLedger, "create_other", False),
    "before the ledger is noted": (TopicCompaction, "_announce", False),
    "before the ledger is made": (TopicCompaction, "_announce", True),
    "when the ledger is made": (ManagedLedger, "create_other", True),
    "while it is written": (CompactedOutput, "add", True),
    "before it is closed": (OpenLedgerWriter, "close", False),
    "when it is closed": (CompactedOutput, "finish", True),
    "before it is told": (TopicCompaction, "_publish", False),
    "when it is told": (TopicCompaction, "_publish", True),
    "before the former one is deleted": (ManagedLedger, "delete_others", False),
    "when the former one is deleted": (ManagedLedger, "delete_others", True),
}
TOLD = {"when it is told", "before the former one is deleted", "when the former one is deleted"}


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "unloaded"])
@pytest.mark.parametrize("step", STEPS)
async def test_the_broker_goes(
    world: CompactionWorld, monkeypatch: pytest.MonkeyPatch, step: str, killed: bool
) -> None:
    """Whoever has the topic next finds one compacted ledger, which is the one that readers get."""
    owner, name, after = STEPS[step]
    with monkeypatch.context() as patch:
        stop = Stop(patch, owner, name, after=after)
        topic = await world.topic()
        (await world.compaction()).start()
        async with asyncio.timeout(60):
            await stop.reached.wait()
        if killed:
            await world.broker.service.abandon([topic])
        else:
            await world.broker.service.unload(TOPIC)
    ledger = await world.ledger()
    await until(lambda: not is_unsettled(ledger))
    assert await world.compacted_ledgers() == {(await world.compacted()).ledger_id}
    assert await world.read() == (AFTER if step in TOLD else BEFORE)
    assert (await world.compact())["status"] == "SUCCESS"
    assert await world.read() == AFTER
    assert await world.compacted_ledgers() == {(await world.compacted()).ledger_id}


async def test_nothing_is_trimmed_before_it_is_stored_that_it_is_compacted(
    world: CompactionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next owner knows nothing of the new ledger, and deletes it."""
    await (await world.ledger()).roll()
    with monkeypatch.context() as patch:
        topic = await world.topic()
        cursor = topic.ledger.cursors[COMPACTION_CURSOR]
        compacted, writes = cursor.mark_delete, CursorStorage._write

        def written(storage: CursorStorage) -> None:
            if cursor.mark_delete == compacted:
                writes(storage)  # Else it never comes to be durable.

        patch.setattr(CursorStorage, "_write", written)
        (await world.compaction()).start()
        await until(lambda: cursor.mark_delete != compacted)
        await topic.ledger.trim()
        await world.broker.service.abandon([topic])
    ledger = await world.ledger()
    await until(lambda: not is_unsettled(ledger))
    assert await world.read() == BEFORE
    assert (await world.compact())["status"] == "SUCCESS"
    assert await world.read() == AFTER


async def test_bookies_that_refuse(world: CompactionWorld) -> None:
    """A run fails, says so, and leaves all as it was; the next one goes well."""
    before = await world.compacted()
    for bookie in world.broker.bookies.bookies.values():
        bookie.writable = False
    status = await world.compact()
    assert status["status"] == "ERROR"
    assert status["lastError"]
    for bookie in world.broker.bookies.bookies.values():
        bookie.writable = True
    assert await world.compacted() == before
    assert await world.read() == BEFORE
    assert (await world.compact())["status"] == "SUCCESS"
    assert await world.read() == AFTER
    assert await world.compacted_ledgers() == {(await world.compacted()).ledger_id}


async def failing(*arguments: Any, **named: Any) -> Any:
    raise StoreUnavailable("not now")


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (ManagedLedger, "create_other"),
        (ManagedLedger, "open_other"),
        (ManagedLedger, "delete_others"),
        (OpenLedgerWriter, "close"),
        (TopicCompaction, "_announce"),
        (TopicCompaction, "settle"),
    ],
)
async def test_the_store_fails(world: CompactionWorld, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing)
        await world.compact()
    assert (await world.compact())["status"] == "SUCCESS"
    assert await world.read() == AFTER
    assert await world.compacted_ledgers() == {(await world.compacted()).ledger_id}


async def test_a_compacted_ledger_that_is_gone(world: CompactionWorld) -> None:
    """Nothing is compacted from what is left: keys would be lost without a word. Without the subscription it goes."""
    assert world.broker.ledgers is not None
    found = await world.compacted()
    await world.broker.ledgers.delete(found.ledger_id)
    status = await world.compact()
    assert status["status"] == "ERROR"
    assert str(found.ledger_id) in status["lastError"]
    assert await world.compacted() == found
    await (await world.topic()).delete_subscription(COMPACTION_CURSOR)
    assert (await world.compact())["status"] == "SUCCESS"
    assert await world.read() == AFTER


async def test_a_damaged_compacted_entry(world: CompactionWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = BookKeeperClient.open

    async def opened(client: BookKeeperClient, ledger_id: int, **named: Any) -> Any:
        reader = await whole(client, ledger_id, **named)
        if ledger_id == damaged:
            return Damaged(reader)
        return reader

    damaged = (await world.compacted()).ledger_id
    with monkeypatch.context() as patch:
        patch.setattr(BookKeeperClient, "open", opened)
        status = await world.compact()
    assert status["status"] == "ERROR"
    assert "compacted entry" in status["lastError"]
    assert (await world.compacted()).ledger_id == damaged
    assert (await world.compact())["status"] == "SUCCESS"
    assert await world.read() == AFTER


class Damaged:
    """A reader of a ledger whose entries are short of a byte."""

    def __init__(self, reader: Any) -> None:
        self.ledger_id = reader.ledger_id
        self.last_add_confirmed = reader.last_add_confirmed
        self.length_bytes = reader.length_bytes
        self.closed = reader.closed
        self.close = reader.close
        self._read = reader.read

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[bytes]:
        return [data[:-1] for data in await self._read(first_entry_id, last_entry_id)]
