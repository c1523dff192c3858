"""A topic that is opened, and subscriptions that are deleted, while something goes wrong or comes in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping

import pytest
from magnetar.core.ids import EARLIEST
from magnetar.ledger.api import LedgerListener, LedgerOptions
from magnetar.managed.errors import ManagedLedgerClosed, ManagedLedgerWriteFailed
from magnetar.managed.info_codec import decode_ledger_info
from magnetar.managed.paths import cursor_path, ledger_path
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.testing import ManagedWorld, MemoryLedgers, MemoryWriter, append, read_all
from magnetar.metadata.faulty import FaultyStore, RequestFate
from magnetar.metadata.store import Node, StoreUnavailable
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop

NAME = "public/default/persistent/topic"
KEEPING = ManagedLedgerSettings(
    max_entries_per_ledger=2, minimum_rollover_ms=0, retention_time_ms=-1, retention_size_bytes=-1
)
KEEPING_NOTHING = ManagedLedgerSettings(max_entries_per_ledger=2, minimum_rollover_ms=0)


@pytest.fixture
async def world() -> AsyncIterator[ManagedWorld]:
    world = ManagedWorld()
    yield world
    await world.close()


class RememberedLedgers(MemoryLedgers):
    """Knows the writers that it made."""

    def __init__(self) -> None:
        super().__init__()
        self.writers: list[MemoryWriter] = []

    async def create(self, options: LedgerOptions, listener: LedgerListener) -> MemoryWriter:
        self.writers.append(await super().create(options, listener))
        return self.writers[-1]


class SlowToGet(FaultyStore):
    """A session whose reads of some paths wait until `go` is set."""

    def __init__(self, world: ManagedWorld, paths: Collection[str]) -> None:
        super().__init__(world.store, lambda verb, path: RequestFate.DONE)
        self.paths = set(paths)
        self.asked = asyncio.Event()
        self.go = asyncio.Event()

    async def get(self, path: str, *, watch: bool = True) -> Node | None:
        if path in self.paths:
            self.asked.set()
            await self.go.wait()
        return await super().get(path, watch=watch)


def failing(world: ManagedWorld, verb: str, path: str, *fates: RequestFate) -> FaultyStore:
    """A session of which these requests come to that."""
    left = list(fates)
    return FaultyStore(
        world.store, lambda its, at: left.pop(0) if left and (its, at) == (verb, path) else RequestFate.DONE
    )


async def test_an_opening_that_fails_leaves_nothing_open(world: ManagedWorld) -> None:
    world.ledgers = ledgers = RememberedLedgers()
    await (await world.factory().open(NAME)).open_cursor("sub", EARLIEST)
    factory = world.factory(store=failing(world, "get", cursor_path(NAME, "sub"), RequestFate.LOST))
    with pytest.raises(StoreUnavailable):
        await factory.open(NAME)
    assert len(ledgers.writers) == 2
    assert ledgers.writers[-1]._closed


async def test_a_topic_whose_last_ledger_is_gone_opens_with_the_others(world: ManagedWorld) -> None:
    """As with Pulsar: somebody has deleted it, and the topic is of use without."""
    ledger = await world.factory(KEEPING).open(NAME)
    await ledger.open_cursor("sub", EARLIEST)
    for number in range(3):
        await append(ledger, [b"%d" % number])
    before, last = ledger.ledgers.ids
    del world.ledgers.stored[last]
    opened = await world.factory(KEEPING).open(NAME)
    assert last not in opened.ledgers.ids
    ledger_id, _ = await append(opened, [b"3"])
    assert ledger_id not in (before, last)
    assert await read_all(opened.cursors["sub"]) == [b"0", b"1", b"3"]


async def named_ledgers(world: ManagedWorld) -> set[int]:
    """Those that the topic's node has, empty or not: other programs open what it names."""
    node = await world.store.get(ledger_path(NAME))
    assert node is not None
    return {record.ledger_id for record in decode_ledger_info(node.value).records}


@pytest.mark.parametrize("fate", [RequestFate.REFUSED, RequestFate.LOST])
async def test_an_empty_ledger_stays_while_the_list_names_it(world: ManagedWorld, fate: RequestFate) -> None:
    await world.factory(KEEPING).open(NAME)
    (empty,) = await named_ledgers(world)
    factory = world.factory(KEEPING, store=failing(world, "put", ledger_path(NAME), fate))
    with pytest.raises(StoreUnavailable):
        await factory.open(NAME)
    await world.settle()
    assert await named_ledgers(world) <= set(world.ledgers.stored)
    await factory.open(NAME)
    await world.settle()
    assert empty not in world.ledgers.stored


async def test_a_ledger_that_failed_empty_stays_while_the_list_names_it(world: ManagedWorld) -> None:
    store = failing(world, "put", ledger_path(NAME), RequestFate.DONE, RequestFate.REFUSED)
    ledger = await world.factory(KEEPING, store=store).open(NAME)
    (empty,) = await named_ledgers(world)
    world.ledgers.fail_appends_after = 0
    with pytest.raises(ManagedLedgerWriteFailed):
        await append(ledger, [b"not stored"])
    await world.settle()
    assert await named_ledgers(world) == {empty}
    assert empty in world.ledgers.stored
    await ledger.check_writable()
    await append(ledger, [b"stored"])
    await world.settle()
    assert empty not in world.ledgers.stored


@pytest.mark.parametrize("fate", [RequestFate.REFUSED, RequestFate.LOST])
async def test_a_ledger_that_a_failed_opening_has_made_is_not_left_over(world: ManagedWorld, fate: RequestFate) -> None:
    await append(await world.factory(KEEPING).open(NAME), [b"stored"])
    factory = world.factory(KEEPING, store=failing(world, "put", ledger_path(NAME), fate))
    with pytest.raises(StoreUnavailable):
        await factory.open(NAME)
    ledger = await factory.open(NAME)
    await world.settle()
    assert set(world.ledgers.stored) == set(ledger.ledgers.ids)


async def test_what_a_terminated_topic_may_name_is_not_deleted(world: ManagedWorld) -> None:
    """Nothing is written when it is opened: a write without an answer may still come."""
    factory = world.factory(KEEPING)
    ledger = await factory.open(NAME)
    await append(ledger, [b"stored"])
    await ledger.terminate()
    await ledger.close()
    in_doubt = await world.ledgers.create(LedgerOptions(ensemble_size=1, write_quorum=1, ack_quorum=1), ledger.appends)
    factory._shared.left_over(NAME, [in_doubt.ledger_id])
    await factory.open(NAME)
    await world.settle()
    assert in_doubt.ledger_id in world.ledgers.stored


async def test_the_last_ledger_of_a_terminated_topic_was_closed_when_it_was(world: ManagedWorld) -> None:
    """Retention and expiry go by it, however often the topic is loaded."""
    ledger = await world.factory(KEEPING).open(NAME)
    await append(ledger, [b"stored"])
    await ledger.terminate()
    await ledger.close()
    (record,) = (await world.factory(KEEPING).open(NAME)).ledgers.records()
    world.clock.ms += 3_600_000
    (again,) = (await world.factory(KEEPING).open(NAME)).ledgers.records()
    assert again.closed_ms == record.closed_ms > 0


async def test_what_may_go_goes_when_the_topic_is_opened(world: ManagedWorld) -> None:
    """Its former owner may have been killed before it did that."""
    ledger = await world.factory(KEEPING).open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    for _ in range(3):
        await append(ledger, [b"a", b"b"])
    await cursor.clear_backlog()
    opened = await world.factory(KEEPING_NOTHING).open(NAME)
    await world.settle()
    assert opened.ledgers.number_of_entries() == 0


async def test_a_subscription_is_not_deleted_once_its_topic_is_closed(world: ManagedWorld) -> None:
    """Whoever has closed it has told which ledgers may be left over: nobody would tell of more."""
    store = SlowToGet(world, ())
    ledger = await world.factory(store=store).open(NAME)
    await ledger.open_cursor("sub", EARLIEST)
    store.paths.add(ledger_path(NAME))
    deletion = asyncio.create_task(ledger.delete_cursor("sub"))
    await store.asked.wait()
    await ledger.close()
    store.go.set()
    with pytest.raises(ManagedLedgerClosed):
        await deletion
    assert await world.store.exists(cursor_path(NAME, "sub"))


async def test_a_subscription_that_is_made_again_while_it_is_deleted_stays(world: ManagedWorld) -> None:
    ledger = await world.factory().open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    await append(ledger, [b"stored"])
    cursor.acknowledge([(ledger.ledgers.ids[0], 0)])
    told: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    cursor.persist(told.set_result)
    assert await told is None
    # The deletion waits for the cursor's own ledger, when its node is gone.
    gone, go = asyncio.Event(), asyncio.Event()
    delete = world.ledgers.delete

    async def slowly(ledger_id: int) -> None:
        gone.set()
        await go.wait()
        await delete(ledger_id)

    world.ledgers.delete = slowly  # type: ignore[method-assign]
    deletion = asyncio.create_task(ledger.delete_cursor("sub"))
    await gone.wait()
    again = await ledger.open_cursor("sub", EARLIEST)
    go.set()
    await deletion
    assert ledger.cursors == {"sub": again}
    assert again.backlog_entries == 1


async def test_a_property_that_entries_know_as_well_is_stored_with_the_list(world: ManagedWorld) -> None:
    ledger = await world.factory(KEEPING_NOTHING).open(NAME)
    await ledger.open_cursor("sub", EARLIEST)
    for number in range(3):  # Two go into a ledger.
        ledger.note_property("last", str(number))
        await append(ledger, [b"%d" % number])
    await world.settle()
    node = await world.store.get(ledger_path(NAME))
    assert node is not None
    assert decode_ledger_info(node.value).properties == {"last": "2"}


async def test_what_is_noted_while_the_list_is_written_is_stored_with_the_next_write(world: ManagedWorld) -> None:
    writes = 0

    def note(verb: str, path: str) -> RequestFate:
        nonlocal writes
        if (verb, path) == ("put", ledger_path(NAME)):
            writes += 1
            ledger.note_property("last", str(writes))
        return RequestFate.DONE

    ledger = await world.factory(KEEPING_NOTHING).open(NAME)
    await ledger.close()
    ledger = await world.factory(KEEPING_NOTHING, store=FaultyStore(world.store, lambda *at: note(*at))).open(NAME)
    before = writes
    await ledger.set_property("mine", "1")
    assert (writes, ledger.properties["last"]) == (before + 1, str(before + 1))
    await append(ledger, [b"0", b"1", b"2"])  # No cursor needs them: the ledger of the first two is trimmed.
    await ledger.truncate()
    await world.settle()
    assert ledger.ledgers.number_of_entries() == 0
    assert ledger.properties == {"mine": "1", "last": str(writes)}
    await ledger.set_property("mine", None)
    assert ledger.properties == {"last": str(writes)}


async def test_the_last_entry_brings_the_properties_up_to_date_before_anything_is_written(world: ManagedWorld) -> None:
    """All of its ledger is consumed, and trimmed as soon as the next one is in the list."""
    ledger = await world.factory(KEEPING_NOTHING).open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    ledger.note_property("last", "0")
    await append(ledger, [b"1"])
    cursor.acknowledge([(ledger.ledgers.ids[0], 0)])
    told: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    cursor.persist(told.set_result)
    assert await told is None
    heard: list[tuple[bytes, dict[str, str]]] = []

    def said_by_last(entry: bytes, properties: Mapping[str, str]) -> Mapping[str, str]:
        heard.append((entry, dict(properties)))
        return {**properties, "last": entry.decode()}

    again = await world.factory(KEEPING_NOTHING).open(NAME, said_by_last=said_by_last)
    assert heard == [(b"1", {})]
    assert again.properties == {"last": "1"}
    await world.settle()
    assert again.ledgers.number_of_entries() == 0
    node = await world.store.get(ledger_path(NAME))
    assert node is not None
    assert decode_ledger_info(node.value).properties == {"last": "1"}
    # Nothing was said since: nobody is asked, and the property stays.
    once_more = await world.factory(KEEPING_NOTHING).open(NAME, said_by_last=said_by_last)
    assert len(heard) == 1
    assert once_more.properties == {"last": "1"}
