"""Managed ledgers that are closed, let go of or taken over: what their former owner still does, and does not."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator

import pytest
from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.core.ids import EARLIEST
from magnetar.ledger.api import LedgerClosed, LedgerListener, LedgerOptions
from magnetar.managed.compaction import COMPACTION_CURSOR, LEDGER_PROPERTY
from magnetar.managed.errors import (
    CursorClosed,
    ManagedLedgerClosed,
    ManagedLedgerError,
    ManagedLedgerFenced,
    ManagedLedgerWriteFailed,
)
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.shared import ledger_options
from magnetar.managed.states import ManagedLedgerState
from magnetar.managed.testing import ManagedWorld, MemoryWriter, append, read_all
from magnetar.metadata.faulty import FaultyStore, RequestFate
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop

NAME = "public/default/persistent/topic"
ROLLING = ManagedLedgerSettings(
    max_entries_per_ledger=2, minimum_rollover_ms=0, retention_time_ms=-1, retention_size_bytes=-1
)


@pytest.fixture
async def world() -> AsyncIterator[ManagedWorld]:
    world = ManagedWorld()
    yield world
    await world.close()


class SlowToList(FaultyStore):
    """A session whose answer to `children` waits until `go` is set."""

    def __init__(self, world: ManagedWorld) -> None:
        super().__init__(world.store, lambda verb, path: RequestFate.DONE)
        self.asked = asyncio.Event()
        self.go = asyncio.Event()

    async def children(self, path: str, *, watch: bool = True) -> list[str]:
        self.asked.set()
        await self.go.wait()
        return await super().children(path, watch=watch)


def append_later(ledger: ManagedLedger, payload: bytes) -> list[MagnetarError | None]:
    """What the append is told, once it is."""
    told: list[MagnetarError | None] = []
    ledger.appends.append([payload], lambda error, *_: told.append(error), None)
    return told


async def test_who_lets_go_fails_what_waits_and_writes_nothing(world: ManagedWorld) -> None:
    ledger = await world.factory().open(NAME)
    await append(ledger, [b"stored"])
    node = await world.store.get(f"/managed-ledgers/{NAME}")
    world.ledgers.hold = True
    told = append_later(ledger, b"waits")
    await ledger.abandon()
    assert [type(error) for error in told] == [ManagedLedgerFenced]
    world.ledgers.release()
    await world.settle()
    assert await world.store.get(f"/managed-ledgers/{NAME}") == node
    assert not any(stored.closed for stored in world.ledgers.stored.values())


async def test_who_lets_go_while_the_next_ledger_is_made_uses_none(world: ManagedWorld) -> None:
    ledger = await world.factory(ROLLING).open(NAME)
    world.ledgers.hold = True
    told = append_later(ledger, b"one") + append_later(ledger, b"two")
    world.ledgers.release()
    ledger.appends.append([b"a", b"b"], lambda *_: None, None)
    ledgers = len(world.ledgers.stored)
    assert ledger.internal_stats().state == ManagedLedgerState.CLOSING_LEDGER.value
    await ledger.abandon()
    await world.settle()
    assert len(world.ledgers.stored) == ledgers
    assert ledger.state is ManagedLedgerState.FENCED
    assert told == []


async def test_a_ledger_that_was_let_go_of_is_opened_anew(world: ManagedWorld) -> None:
    factory = world.factory(ROLLING)
    abandoned = await factory.open(NAME)
    await append(abandoned, [b"stored"])
    await abandoned.abandon()
    opened = await factory.open(NAME)
    assert opened is not abandoned
    assert await read_all(await opened.open_cursor("sub", EARLIEST)) == [b"stored"]
    await opened.close()
    again = await factory.open(NAME)
    assert again is not opened
    assert again.state is ManagedLedgerState.LEDGER_OPENED


class Listener:
    """Is told of appends, and lives for as long as anything holds the managed ledger."""

    def __call__(self) -> None:
        """Nothing to do."""


@pytest.mark.parametrize("way", ["close", "abandon", "delete"])
async def test_nothing_is_kept_of_a_ledger_that_is_not_open(world: ManagedWorld, way: str) -> None:
    ledger = await world.factory().open(NAME)
    await append(ledger, [b"stored"])
    listener = Listener()
    ledger.appends.on_appended.append(listener)
    await getattr(ledger, way)()
    kept = weakref.ref(listener)
    del ledger, listener
    await world.settle()
    gc.collect()
    assert kept() is None


async def test_a_closed_factory_opens_nothing(world: ManagedWorld) -> None:
    factory = world.factory()
    await factory.close()
    with pytest.raises(ManagedLedgerClosed):
        await factory.open(NAME)
    assert not await world.store.exists(f"/managed-ledgers/{NAME}")


async def test_a_closed_ledger_gives_no_cursors(world: ManagedWorld) -> None:
    ledger = await world.factory().open(NAME)
    await ledger.close()
    with pytest.raises(ManagedLedgerClosed):
        await ledger.open_cursor("sub", EARLIEST)


async def test_nobody_is_let_in_while_no_ledger_can_be_made(world: ManagedWorld) -> None:
    ledger = await world.factory(ROLLING).open(NAME)
    await append(ledger, [b"a", b"b"])
    world.ledgers.not_enough_bookies()
    told = append_later(ledger, b"c")
    while not told:
        await world.settle()
    with pytest.raises(ManagedLedgerWriteFailed):
        await ledger.check_writable()
    world.ledgers.refuse_creation = None
    await ledger.check_writable()
    await append(ledger, [b"d"])
    assert ledger.ledgers.number_of_entries() == 3


async def test_a_confirmation_of_a_former_ledger_confirms_nothing_of_the_next(world: ManagedWorld) -> None:
    ledger = await world.factory(ROLLING).open(NAME)
    await append(ledger, [b"a", b"b"])
    await append(ledger, [b"c"])
    world.ledgers.hold = True
    told = append_later(ledger, b"d")
    former, current = (record.ledger_id for record in ledger.internal_stats().ledgers)
    ledger.appends.confirmed(former, 1)
    assert told == []
    ledger.appends.confirmed(current, 1)
    assert told == [None]


async def test_who_loads_the_cursors_after_the_next_owner_used_them_does_not_get_the_topic(world: ManagedWorld) -> None:
    """It would take the cursors with it, and drop acknowledgements in ledgers that its list lacks."""
    first = world.factory(ROLLING)
    await (await first.open(NAME)).open_cursor("sub", EARLIEST)
    await first.close()
    slow = SlowToList(world)
    opening = asyncio.create_task(world.factory(ROLLING, store=slow).open(NAME))
    await slow.asked.wait()
    ledger = await world.factory(ROLLING).open(NAME)
    position = (await append(ledger, [b"one", b"two"]))[0], 1
    cursor = await ledger.open_cursor("sub", EARLIEST)
    cursor.acknowledge([position])
    receipts: list[MagnetarError | None] = []
    cursor.persist(receipts.append)
    await world.settle()
    assert receipts == [None]
    slow.go.set()
    with pytest.raises(ManagedLedgerFenced):
        await opening
    await world.settle()
    after = await world.factory(ROLLING).open(NAME)
    assert (await after.open_cursor("sub", EARLIEST)).is_acknowledged(position)


@pytest.mark.parametrize(("way", "refusal"), [("close", ManagedLedgerClosed), ("abandon", ManagedLedgerFenced)])
async def test_a_closed_ledger_denies_no_cursor(
    world: ManagedWorld, way: str, refusal: type[ManagedLedgerError]
) -> None:
    """It is there for the next owner: whoever is to delete it has to ask that one."""
    ledger = await world.factory().open(NAME)
    await ledger.open_cursor("sub", EARLIEST)
    await getattr(ledger, way)()
    with pytest.raises(refusal):
        await ledger.delete_cursor("sub")


async def test_a_cursor_that_could_not_be_stored_when_it_was_closed_is_not_written_later(world: ManagedWorld) -> None:
    """Its next owner would find its node changed, and take the ledger for another one's."""
    at_once = ManagedLedgerSettings(retention_time_ms=-1, retention_size_bytes=-1, mark_delete_rate=0)
    ledger = await world.factory(at_once).open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    await append(ledger, [b"%d" % number for number in range(4)])
    world.ledgers.not_enough_bookies()
    entries = await cursor.read(4, 1 << 20)
    cursor.acknowledge([entries[0].position])
    told: list[MagnetarError | None] = []
    cursor.persist(told.append)
    await ledger.close()
    assert [isinstance(error, MagnetarError) for error in told] == [True]
    world.ledgers.refuse_creation = None
    upcoming = await world.factory(at_once).open(NAME)
    await asyncio.sleep(60.0)
    again = upcoming.cursors["sub"]
    again.acknowledge([entries[0].position])
    stored: list[MagnetarError | None] = []
    again.persist(stored.append)
    await world.settle()
    assert stored == [None]
    assert upcoming.state is not ManagedLedgerState.FENCED


async def test_who_finds_another_owner_while_it_closes_writes_no_further_cursor(world: ManagedWorld) -> None:
    """That one has them all, and would take what is written for another owner's."""
    ledger = await world.factory().open(NAME)
    cursors = [await ledger.open_cursor(name, EARLIEST) for name in ("one", "another")]
    await append(ledger, [b"%d" % number for number in range(4)])
    entries = await cursors[0].read(4, 1 << 20)
    upcoming = await world.factory().open(NAME)
    upcoming.cursors["one"].acknowledge([entries[0].position])
    await upcoming.close()  # It has written the node of this cursor, and not that of the other one.
    upcoming = await world.factory().open(NAME)
    for cursor in cursors:
        cursor.acknowledge([entries[0].position])
    await ledger.close()
    again = upcoming.cursors["another"]
    again.acknowledge([entries[0].position])
    stored: list[MagnetarError | None] = []
    again.persist(stored.append)
    await world.settle()
    assert stored == [None]


async def test_a_deletion_that_fails_leaves_no_cursor_that_is_written_later(world: ManagedWorld) -> None:
    def fate(verb: str, path: str) -> RequestFate:
        return RequestFate.REFUSED if verb == "delete" else RequestFate.DONE

    session = FaultyStore(world.store, fate)
    at_once = ManagedLedgerSettings(retention_time_ms=-1, retention_size_bytes=-1, mark_delete_rate=0)
    ledger = await world.factory(at_once, store=session).open(NAME)
    cursors = [await ledger.open_cursor(name, EARLIEST) for name in ("one", "another")]
    await append(ledger, [b"%d" % number for number in range(4)])
    entries = await cursors[1].read(4, 1 << 20)
    cursors[1].acknowledge([entries[0].position])
    with pytest.raises(Unavailable):
        await ledger.delete()
    upcoming = await world.factory(at_once).open(NAME)
    await asyncio.sleep(60.0)
    again = upcoming.cursors["another"]
    again.acknowledge([entries[0].position])
    stored: list[MagnetarError | None] = []
    again.persist(stored.append)
    await world.settle()
    assert stored == [None]


@pytest.mark.parametrize("verb", ["get", "delete"])
async def test_what_a_topic_is_compacted_to_outlives_a_deletion_that_fails(world: ManagedWorld, verb: str) -> None:
    """Nothing of it may be deleted while its cursor is there, which names it."""
    failing = False

    def fate(asked: str, path: str) -> RequestFate:
        return RequestFate.REFUSED if failing and asked == verb else RequestFate.DONE

    factory = world.factory(store=FaultyStore(world.store, fate))
    ledger = await factory.open(NAME)
    await append(ledger, [b"one", b"two"])
    compacted = await ledger.create_other(ledger_options(ledger.settings, NAME), ledger.appends)
    await compacted.close()
    cursor = await ledger.open_cursor(COMPACTION_CURSOR, EARLIEST)
    await cursor.set_properties({LEDGER_PROPERTY: compacted.ledger_id})
    failing = True
    with pytest.raises(Unavailable):
        await ledger.delete()
    failing = False
    again = await factory.open(NAME)
    await world.settle()
    assert again.cursors[COMPACTION_CURSOR].properties == {LEDGER_PROPERTY: compacted.ledger_id}
    await (await again.open_other(compacted.ledger_id)).close()


async def test_a_cursor_that_is_deleted_while_its_node_is_written_leaves_no_ledger_open(world: ManagedWorld) -> None:
    """Nobody would close it, and the client of the bookies keeps all that are open."""
    delay_seconds = 0.0
    store = FaultyStore(world.store, lambda verb, path: RequestFate.DONE, lambda: delay_seconds)
    ledger = await world.factory(store=store).open(NAME)
    await append(ledger, [b"one", b"two"])
    cursor = await ledger.open_cursor("s", EARLIEST)
    (entry, _) = await cursor.read(2, 1 << 20)
    made: list[MemoryWriter] = []
    create = world.ledgers.create

    async def remembered(options: LedgerOptions, listener: LedgerListener) -> MemoryWriter:
        made.append(await create(options, listener))
        return made[-1]

    world.ledgers.create = remembered  # type: ignore[method-assign]
    cursor.acknowledge([entry.position])
    stored: list[MagnetarError | None] = []
    delay_seconds = 5.0  # Of the node's write, and of nothing after it.
    cursor.persist(stored.append)
    await asyncio.sleep(1.0)
    assert len(made) == 1
    delay_seconds = 0.0
    await ledger.delete_cursor("s")
    await asyncio.sleep(10.0)
    assert [type(one) for one in stored] == [CursorClosed]
    with pytest.raises(LedgerClosed):
        made[0].append([b"x"])
    assert made[0].ledger_id not in world.ledgers.stored


async def test_that_another_owner_was_seen_is_told_where_nothing_is_appended(world: ManagedWorld) -> None:
    ledger = await world.factory().open(NAME)
    told: list[ManagedLedgerFenced] = []
    ledger.appends.on_fenced = told.append
    await world.factory().open(NAME)
    for _ in range(2):
        with pytest.raises(ManagedLedgerFenced):
            await ledger.set_property("key", "value")
    await world.settle()
    assert len(told) == 1
