"""Managed ledgers and cursors at the edges: what is refused, what waits while something ends, what readers and owners
leave behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST
from magnetar.ledger.api import LedgerUnavailable
from magnetar.managed.entry import Entry
from magnetar.managed.errors import ManagedLedgerTerminated
from magnetar.managed.ledger_list import LedgerList, LedgerRecord
from magnetar.managed.ledger_rollover import FAILING_LEDGER_DELAY_SECONDS
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.states import ManagedLedgerState
from magnetar.managed.testing import ManagedWorld, MemoryWriter, append, read_all
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop

NAME = "public/default/persistent/topic"
POLICY = ManagedLedgerSettings(
    max_entries_per_ledger=5, minimum_rollover_ms=0, retention_time_ms=-1, retention_size_bytes=-1
)


@pytest.fixture
async def world() -> AsyncIterator[ManagedWorld]:
    world = ManagedWorld()
    yield world
    await world.close()


class Outcomes:
    """What appends were told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[object, MagnetarError | None, int]] = []

    def __call__(self, error: MagnetarError | None, ledger_id: int, first_entry_id: int, context: object) -> None:
        del ledger_id
        self.told.append((context, error, first_entry_id))


# --- appends


async def test_a_batch_that_the_ledger_refuses_is_told_once_and_never_stored(
    world: ManagedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = await world.factory(POLICY).open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    await append(ledger, [b"first"])
    send = MemoryWriter.append

    def refuse_large(writer: MemoryWriter, payloads: Sequence[bytes]) -> int:
        if payloads[0] == b"large":
            raise LedgerUnavailable("more than may be outstanding")
        return send(writer, payloads)

    outcomes = Outcomes()
    with monkeypatch.context() as patched:
        patched.setattr(MemoryWriter, "append", refuse_large)
        ledger.appends.append([b"large"], outcomes, "large")
        assert not outcomes.told, "never from inside"
        await world.settle()
    ledger.appends.append([b"small"], outcomes, "small")
    await world.settle()
    assert [context for context, _, _ in outcomes.told] == ["large", "small"]
    assert isinstance(outcomes.told[0][1], LedgerUnavailable)
    assert outcomes.told[1][1:] == (None, 1)
    assert await read_all(cursor) == [b"first", b"small"]


async def test_an_append_that_comes_while_an_idle_ledger_is_closed_is_stored(world: ManagedWorld) -> None:
    ledger = await world.factory(replace(POLICY, inactive_rollover_ms=1_000)).open(NAME)
    await append(ledger, [b"a"])
    world.clock.ms += 2_000
    async with asyncio.timeout(60):
        rolling = asyncio.create_task(ledger.roll_if_due())
        await asyncio.sleep(0)
        assert ledger.state is ManagedLedgerState.CLOSING_LEDGER
        await append(ledger, [b"b"])
        await rolling
    assert [record.entries for record in ledger.ledgers.records()] == [1, 1]


async def test_each_ledger_holds_as_much_as_the_first_one(world: ManagedWorld) -> None:
    settings = replace(POLICY, max_entries_per_ledger=1_000, max_size_per_ledger_bytes=100)
    ledger = await world.factory(settings).open(NAME)
    for _ in range(40):
        await append(ledger, [b"x" * 10])
        await world.settle()
    assert [record.entries for record in ledger.ledgers.records() if record.entries] == [10, 10, 10, 10]


async def test_ledgers_that_fail_at_once_are_made_at_a_growing_pause(
    world: ManagedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each leaves an empty ledger behind, and work for whoever collects these."""
    ledger = await world.factory(POLICY).open(NAME)
    confirm = MemoryWriter._confirm
    made: list[float] = []
    fails = len(FAILING_LEDGER_DELAY_SECONDS)

    def fail_first(writer: MemoryWriter) -> None:
        if len(made) < fails:
            made.append(asyncio.get_running_loop().time())
            writer._fail(LedgerUnavailable("no quorum"))
        else:
            confirm(writer)

    monkeypatch.setattr(MemoryWriter, "_confirm", fail_first)
    await append(ledger, [b"a"])
    end = asyncio.get_running_loop().time()
    pauses = [after - before for before, after in zip(made, [*made[1:], end], strict=True)]
    assert pauses == pytest.approx([*FAILING_LEDGER_DELAY_SECONDS[1:], FAILING_LEDGER_DELAY_SECONDS[-1]], abs=0.05)


async def test_what_could_not_be_stored_before_the_end_of_a_topic_is_told(world: ManagedWorld) -> None:
    ledger = await world.factory(POLICY).open(NAME)
    last = await append(ledger, [b"a"])
    outcomes = Outcomes()
    world.ledgers.unreachable = True
    ledger.appends.append([b"b"], outcomes, "b")
    async with asyncio.timeout(60):
        assert await ledger.terminate() == last
    assert [type(error) for _, error, _ in outcomes.told] == [ManagedLedgerTerminated]
    world.ledgers.unreachable = False


# --- cursors


async def test_the_next_owner_has_the_properties_that_were_stored_last(world: ManagedWorld) -> None:
    """Not those of when the cursor got its ledger: deduplication would know less than its mark says."""
    cursor = await (await world.factory(POLICY).open(NAME)).open_cursor("sub", EARLIEST)
    for sequence_id in range(3):
        await cursor.set_properties({"p": sequence_id})
    again = (await world.factory(POLICY).open(NAME)).cursors["sub"]
    assert again.properties == {"p": 2}


async def test_acknowledgements_that_could_not_be_stored_are_stored_later(world: ManagedWorld) -> None:
    """By the timer: nobody has to acknowledge anything more."""
    ledger = await world.factory(POLICY).open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    last = await append(ledger, [b"a", b"b"])
    world.ledgers.hold = True
    cursor.acknowledge([last])
    told: list[MagnetarError | None] = []
    cursor.persist(told.append)
    # Until the timer has found nothing more to do.
    await asyncio.sleep(10)
    assert told == []
    world.ledgers.fail_appends_after = 0
    world.ledgers.release()
    await world.settle()
    assert isinstance(told[0], LedgerUnavailable)
    world.clock.ms += 20_000
    await asyncio.sleep(10)
    again = (await world.factory(POLICY).open(NAME)).cursors["sub"]
    assert again.mark_delete == last


async def test_what_is_acknowledged_while_it_is_read_again_is_not_given_out(world: ManagedWorld) -> None:
    ledger = await world.factory(POLICY, cache_bytes_max=0).open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    at = [await append(ledger, [b"%d" % number]) for number in range(4)]
    reading = asyncio.create_task(cursor.read_positions(at))
    await asyncio.sleep(0)
    cursor.acknowledge([at[1], at[2]])
    assert [int(entry.data) for entry in await reading] == [0, 3]


async def test_what_is_read_again_comes_in_order_wherever_it_was(world: ManagedWorld) -> None:
    ledger = await world.factory(POLICY).open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    at = [await append(ledger, [b"%d" % number]) for number in range(5)]
    kept = [Entry(at[0][0], number, b"%d" % number) for number in (1, 3)]
    ledger.cache.remove_ledger(at[0][0])
    for entry in kept:
        ledger.cache.add(at[0][0], [entry], 1, 0.0)
    assert [int(entry.data) for entry in await cursor.read_positions(at)] == [0, 1, 2, 3, 4]
    assert world.ledgers.reads > 0


def test_the_bytes_behind_a_position_are_those_of_the_entries_behind_it() -> None:
    ledgers = LedgerList([LedgerRecord(1, 10, 1_000), LedgerRecord(2, 5, 200), LedgerRecord(3)])
    assert [ledgers.size_bytes_after((1, entry_id)) for entry_id in (-1, 0, 4, 9)] == [1_200, 1_100, 700, 200]
    assert [ledgers.size_bytes_after(position) for position in ((2, 4), (3, -1), (0, 5))] == [0, 0, 1_200]


def test_an_entry_of_an_empty_or_unknown_ledger_has_no_average_size() -> None:
    ledgers = LedgerList([LedgerRecord(1, 10, 1_000), LedgerRecord(3)])
    assert [ledgers.average_entry_bytes(ledger_id) for ledger_id in (1, 2, 3, 4)] == [100, 0, 0, 0]


async def test_a_reader_of_a_trimmed_ledger_counts_only_what_is_left(world: ManagedWorld) -> None:
    ledger = await world.factory(POLICY).open(NAME)
    at = [await append(ledger, [b"%d" % number]) for number in range(12)]
    await world.settle()
    reader = ledger.new_non_durable_cursor("reader", EARLIEST)
    reader.acknowledge([at[1], at[3], at[6]])
    assert reader.backlog_entries == 9
    ledger.settings = replace(POLICY, retention_time_ms=0, retention_size_bytes=0)
    await ledger.trim()
    assert ledger.ledgers.ids[0] == at[10][0]
    assert (reader.backlog_entries, reader.individually_acknowledged()) == (2, [])
    assert [int(payload) for payload in await read_all(reader)] == [10, 11]
    reader.acknowledge([at[10]])
    assert (reader.mark_delete, reader.backlog_entries) == (at[10], 1)


async def test_a_reader_that_is_closed_is_forgotten(world: ManagedWorld) -> None:
    ledger = await world.factory(POLICY).open(NAME)
    reader = ledger.new_non_durable_cursor("reader", EARLIEST)
    await append(ledger, [b"a"])
    kept_bytes = ledger.cache.size_bytes
    assert kept_bytes > 0
    await reader.close()
    await append(ledger, [b"b"])
    assert ledger.cache.size_bytes == kept_bytes, "nobody is left who would read it"
