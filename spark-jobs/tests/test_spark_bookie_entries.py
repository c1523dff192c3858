"""Reading entries from bookies, over bookies in memory: order, holes, moved and deleted ledgers, bookies that fail."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence

import pytest
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.ledger_paths import ledger_path
from magnetar.ledger.testing import Health, MemoryBookies, RecordingListener
from magnetar.ledger.writer import OpenLedgerWriter
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import StoreUnavailable
from magnetar.sim.virtual_time import LoopClock, VirtualTimeLoop
from magnetar.spark.bookies.entries import PIECES_AHEAD, BookieEntries
from magnetar.spark.bookies.ledger_place import REQUEST_COUNT_MAX
from magnetar.spark.entries import EntryBlock, Hole
from magnetar.spark.errors import ClusterUnreachable, DataLoss
from magnetar.spark.slices import LedgerRange
from magnetar.wire.bookkeeper.entry import EntryRun, run_of

new_event_loop = VirtualTimeLoop

TOPIC = "persistent://public/default/t"
SINGLE = LedgerOptions()
WHOLE = LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=2)
STRIPED = LedgerOptions(ensemble_size=4, write_quorum=2, ack_quorum=2)
SHAPES = pytest.mark.parametrize("options", [SINGLE, WHOLE, STRIPED], ids=["1/1/1", "3/3/2", "4/2/2"])


class Cluster:
    """Bookies, a store, and a client that writes."""

    def __init__(self) -> None:
        self.store = MemoryMetadataStore()
        self.bookies = MemoryBookies(5)
        self.client = BookKeeperClient(self.store, self.bookies, clock=LoopClock(), rng=random.Random(7))
        self.metadata_reads = 0

    async def write(self, options: LedgerOptions, payloads: Sequence[bytes]) -> OpenLedgerWriter:
        """An open ledger whose entries are all confirmed."""
        listener = RecordingListener()
        writer = await self.client.create(options, listener)
        writer.append(payloads)
        await listener.until_confirmed(len(payloads) - 1)
        return writer

    async def metadata(self, ledger_id: int) -> bytes | None:
        self.metadata_reads += 1
        node = await self.store.get(ledger_path(ledger_id))
        return None if node is None else node.value

    async def range(self, ledger_id: int, first: int, last: int, size_bytes: int = 0) -> LedgerRange:
        metadata = await self.metadata(ledger_id)
        self.metadata_reads = 0
        assert metadata is not None
        return LedgerRange(
            ledger_id=ledger_id, first_entry_id=first, last_entry_id=last, size_bytes=size_bytes, metadata=metadata
        )

    def entries(self, *, store: bool = True) -> BookieEntries:
        return BookieEntries(TOPIC, self.bookies, self.metadata if store else None, give_up_seconds=30.0)

    def lose(self, ledger_id: int, entry_ids: Sequence[int]) -> None:
        for bookie in self.bookies.bookies.values():
            for entry_id in entry_ids:
                if ledger_id in bookie.ledgers:
                    bookie.ledgers[ledger_id].entries.pop(entry_id, None)

    def damage(self, ledger_id: int, entry_id: int, bookie_ids: Sequence[str]) -> None:
        for bookie_id in bookie_ids:
            entries = self.bookies.bookies[bookie_id].ledgers[ledger_id].entries
            entries[entry_id] = entries[entry_id][:-1] + b"?"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    yield made
    await made.client.close()
    await made.store.close()


async def read(
    source: BookieEntries, ranges: Sequence[LedgerRange]
) -> tuple[list[tuple[int, int, bytes]], list[tuple[int, int, int]], list[EntryBlock | Hole]]:
    """Entries, holes, and both in the order in which they came."""
    order: list[EntryBlock | Hole] = []
    async for block in source.blocks(ranges, order.append):
        order.append(block)  # noqa: PERF401 (holes are put between)
    entries = [
        (part.ledger_id, entry_id, entry)
        for part in order
        if isinstance(part, EntryBlock)
        for entry_id, entry in zip(part.entry_ids, part.entries, strict=True)
    ]
    holes = [(part.ledger_id, part.first_entry_id, part.last_entry_id) for part in order if isinstance(part, Hole)]
    return entries, holes, order


def no_hole(hole: Hole) -> None:
    pytest.fail(str(hole))


def payloads(count: int, size_bytes: int = 10) -> list[bytes]:
    return [f"{number:08d}".encode().ljust(size_bytes, b".") for number in range(count)]


@SHAPES
async def test_all_entries_of_several_ledgers_come_in_order(cluster: Cluster, options: LedgerOptions) -> None:
    sent = payloads(2 * REQUEST_COUNT_MAX + 77)
    ranges, expected = [], []
    for _ in range(3):
        writer = await cluster.write(options, sent)
        ranges.append(await cluster.range(writer.ledger_id, 5, len(sent) - 1))
        expected += [(writer.ledger_id, entry_id, sent[entry_id]) for entry_id in range(5, len(sent))]
    entries, holes, _ = await read(cluster.entries(), ranges)
    assert (entries, holes) == (expected, [])
    assert cluster.metadata_reads == 0  # The task's own metadata is enough.


@SHAPES
async def test_reading_leaves_the_writer_alone(cluster: Cluster, options: LedgerOptions) -> None:
    sent = payloads(300)
    writer = await cluster.write(options, sent)
    before = await cluster.metadata(writer.ledger_id)
    # Bookies know all but the last group as confirmed; whoever made the range knows better.
    entries, holes, _ = await read(cluster.entries(), [await cluster.range(writer.ledger_id, 0, 299)])
    assert [entry for _, _, entry in entries] == sent
    assert not holes
    assert not any(ledger.fenced for bookie in cluster.bookies.bookies.values() for ledger in bookie.ledgers.values())
    assert await cluster.metadata(writer.ledger_id) == before
    assert writer.append([b"further"]) == 300
    await writer.close()
    assert (await cluster.client.open(writer.ledger_id, recover=False)).last_add_confirmed == 300


async def test_requests_are_cut_by_size_and_a_wrong_estimate_costs_no_entry(cluster: Cluster) -> None:
    sent = payloads(40, size_bytes=512 * 1024)
    writer = await cluster.write(WHOLE, sent)
    # It says one byte each, so that all of them seem to fit into one request.
    entries, holes, order = await read(cluster.entries(), [await cluster.range(writer.ledger_id, 0, 39, size_bytes=40)])
    assert [entry for _, _, entry in entries] == sent
    assert not holes
    assert max(sum(map(len, part.entries)) for part in order if isinstance(part, EntryBlock)) < 10 * 1024 * 1024


async def test_some_requests_are_under_way_ahead_of_the_reader(cluster: Cluster) -> None:
    writer = await cluster.write(SINGLE, payloads(8 * REQUEST_COUNT_MAX))
    source = cluster.entries()
    blocks = source.blocks([await cluster.range(writer.ledger_id, 0, 8 * REQUEST_COUNT_MAX - 1)], no_hole)
    await anext(blocks)
    assert len(source._under_way) <= PIECES_AHEAD
    await source.close()
    await source.close()
    assert not source._under_way


@SHAPES
async def test_holes_are_exact_and_reading_goes_on_behind_them(cluster: Cluster, options: LedgerOptions) -> None:
    count = 2 * REQUEST_COUNT_MAX
    sent = payloads(count)
    writer = await cluster.write(options, sent)
    lost = [0, 1, 2, 50, *range(900, 1500), count - 1]
    cluster.lose(writer.ledger_id, lost)
    entries, holes, order = await read(cluster.entries(), [await cluster.range(writer.ledger_id, 0, count - 1)])
    assert [entry_id for _, entry_id, _ in entries] == sorted(set(range(count)) - set(lost))
    ledger_id = writer.ledger_id
    assert holes == [(ledger_id, 0, 2), (ledger_id, 50, 50), (ledger_id, 900, 1499), (ledger_id, count - 1, count - 1)]
    places = [part.first_entry_id if isinstance(part, Hole) else part.entry_ids[0] for part in order]
    assert places == sorted(places)
    assert "has no such entry" in next(part.reason for part in order if isinstance(part, Hole))


@SHAPES
async def test_damage_on_one_bookie_is_read_from_another_and_on_all_is_a_hole(
    cluster: Cluster, options: LedgerOptions
) -> None:
    sent = payloads(20)
    writer = await cluster.write(options, sent)
    holders = cluster.bookies.holders(writer.ledger_id, 7)
    cluster.damage(writer.ledger_id, 7, holders[1:])
    cluster.damage(writer.ledger_id, 12, cluster.bookies.holders(writer.ledger_id, 12))
    entries, holes, order = await read(cluster.entries(), [await cluster.range(writer.ledger_id, 0, 19)])
    assert [entry_id for _, entry_id, _ in entries] == [each for each in range(20) if each != 12]
    assert holes == [(writer.ledger_id, 12, 12)]
    assert "digest" in next(part.reason for part in order if isinstance(part, Hole))


async def test_a_hole_that_nobody_wants_to_pass_ends_the_read(cluster: Cluster) -> None:
    writer = await cluster.write(WHOLE, payloads(20))
    cluster.lose(writer.ledger_id, [5])

    def refuse(hole: Hole) -> None:
        raise DataLoss(str(hole))

    source = cluster.entries()
    with pytest.raises(DataLoss, match=rf"1 entries are missing, {writer.ledger_id}:5 to"):
        async for _ in source.blocks([await cluster.range(writer.ledger_id, 0, 19)], refuse):
            pass
    assert not source._under_way


async def test_bookies_that_lost_the_whole_ledger_make_one_hole(cluster: Cluster) -> None:
    count = 3 * REQUEST_COUNT_MAX
    writer = await cluster.write(WHOLE, payloads(count))
    for bookie in cluster.bookies.bookies.values():
        bookie.ledgers.clear()
    other = await cluster.write(WHOLE, payloads(3))
    ranges = [await cluster.range(writer.ledger_id, 0, count - 1), await cluster.range(other.ledger_id, 0, 2)]
    entries, holes, _ = await read(cluster.entries(), ranges)
    assert holes == [(writer.ledger_id, 0, count - 1)]
    assert [each[:2] for each in entries] == [(other.ledger_id, entry_id) for entry_id in range(3)]


async def test_a_ledger_that_was_deleted_meanwhile_is_one_hole(cluster: Cluster) -> None:
    count = 6 * REQUEST_COUNT_MAX
    writer = await cluster.write(WHOLE, payloads(count))
    part = await cluster.range(writer.ledger_id, 10, count - 1)
    await cluster.client.delete(writer.ledger_id)
    for bookie in cluster.bookies.bookies.values():
        bookie.ledgers.clear()
    entries, holes, order = await read(cluster.entries(), [part])
    assert (entries, holes) == ([], [(writer.ledger_id, 10, count - 1)])
    assert isinstance(order[0], Hole)
    assert "deleted" in order[0].reason


@SHAPES
async def test_entries_that_were_moved_are_read_where_they_are_now(cluster: Cluster, options: LedgerOptions) -> None:
    sent = payloads(50)
    writer = await cluster.write(options, sent)
    part = await cluster.range(writer.ledger_id, 0, 49)
    metadata, version = await cluster.client.metadata.read(writer.ledger_id)
    before = metadata.ensembles[0][1]
    after = [cluster.bookies.add_bookie().bookie_id for _ in before]
    for old, new in zip(before, after, strict=True):
        cluster.bookies.bookies[new].ledgers = cluster.bookies.bookies[old].ledgers
        cluster.bookies.bookies[old].ledgers = {}
        cluster.bookies.bookies[old].stop()
    await cluster.client.metadata.write(writer.ledger_id, metadata.with_ensemble(0, after), version)
    entries, holes, _ = await read(cluster.entries(), [part])
    assert [entry for _, _, entry in entries] == sent
    assert not holes


async def test_a_ledger_with_several_ensembles(cluster: Cluster) -> None:
    listener = RecordingListener()
    writer = await cluster.client.create(WHOLE, listener)
    sent = payloads(60)
    for start in range(0, 60, 20):
        writer.append(sent[start : start + 20])
        await listener.until_confirmed(start + 19)
        first = (await cluster.client.metadata.read(writer.ledger_id))[0].ensembles[-1][1][0]
        if start < 40:
            cluster.bookies.bookies[first].refusal = None
            cluster.bookies.bookies[first].stop()
    part = await cluster.range(writer.ledger_id, 0, 59)
    entries, holes, _ = await read(cluster.entries(), [part])
    assert [entry for _, _, entry in entries] == sent
    assert not holes


@pytest.mark.parametrize("options", [WHOLE, STRIPED], ids=["3/3/2", "4/2/2"])
@pytest.mark.parametrize("health", [Health.STOPPED, Health.HANGING])
async def test_a_bookie_fails_half_way(cluster: Cluster, options: LedgerOptions, health: Health) -> None:
    count = 12 * REQUEST_COUNT_MAX
    sent = payloads(count)
    writer = await cluster.write(options, sent)
    part = await cluster.range(writer.ledger_id, 0, count - 1)
    failing = cluster.bookies.bookies[(await cluster.client.metadata.read(writer.ledger_id))[0].ensembles[0][1][0]]
    entries: list[bytes] = []
    async for block in cluster.entries().blocks([part], no_hole):
        entries += block.entries
        failing.health = health
    assert entries == sent


async def test_the_only_bookie_is_waited_for(cluster: Cluster) -> None:
    sent = payloads(5)
    writer = await cluster.write(SINGLE, sent)
    part = await cluster.range(writer.ledger_id, 0, 4)
    (holder,) = cluster.bookies.holders(writer.ledger_id, 0)
    cluster.bookies.bookies[holder].stop()
    with pytest.raises(ClusterUnreachable, match=f"{holder} cannot be reached.*readMode=brokers"):
        await read(cluster.entries(), [part])
    cluster.bookies.bookies[holder].heal()
    assert [entry for _, _, entry in (await read(cluster.entries(), [part]))[0]] == sent


async def test_a_hole_is_told_of_though_what_is_behind_it_cannot_be_reached(cluster: Cluster) -> None:
    # Who goes on through brokers would not hear of it: they leave out without a word what they cannot read.
    holed, other = await cluster.write(SINGLE, payloads(5)), await cluster.write(SINGLE, payloads(5))
    cluster.lose(holed.ledger_id, [3, 4])
    ranges = [await cluster.range(each.ledger_id, 0, 4) for each in (holed, other)]
    (holder,) = cluster.bookies.holders(other.ledger_id, 0)
    assert holder not in cluster.bookies.holders(holed.ledger_id, 0)
    cluster.bookies.bookies[holder].stop()
    holes: list[Hole] = []
    with pytest.raises(ClusterUnreachable):
        async for _ in cluster.entries().blocks(ranges, holes.append):
            pass
    assert [(hole.first_entry_id, hole.last_entry_id) for hole in holes] == [(3, 4)]


async def test_an_answer_without_entries_is_no_hole(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = await cluster.write(SINGLE, payloads(5))
    part = await cluster.range(writer.ledger_id, 0, 4)
    (holder,) = cluster.bookies.holders(writer.ledger_id, 0)

    async def nothing(*_: int) -> EntryRun:
        return run_of([])

    monkeypatch.setattr(cluster.bookies.connection(holder), "read_run", nothing)
    with pytest.raises(ClusterUnreachable, match="answers with nothing"):
        await read(cluster.entries(), [part])


async def test_nobody_says_that_entries_are_lost_while_the_store_cannot_be_asked(cluster: Cluster) -> None:
    writer = await cluster.write(WHOLE, payloads(5))
    part = await cluster.range(writer.ledger_id, 0, 4)
    cluster.lose(writer.ledger_id, [3])

    async def unreachable(_: int) -> bytes | None:
        raise StoreUnavailable("away")

    with pytest.raises(ClusterUnreachable, match="away"):
        await read(BookieEntries(TOPIC, cluster.bookies, unreachable), [part])
    assert (await read(cluster.entries(store=False), [part]))[1] == [(writer.ledger_id, 3, 3)]


async def test_a_range_without_metadata_is_looked_up(cluster: Cluster) -> None:
    sent = payloads(5)
    writer = await cluster.write(WHOLE, sent)
    part = LedgerRange(ledger_id=writer.ledger_id, first_entry_id=1, last_entry_id=4, size_bytes=0)
    assert [entry for _, _, entry in (await read(cluster.entries(), [part]))[0]] == sent[1:]
    gone = LedgerRange(ledger_id=999, first_entry_id=0, last_entry_id=4, size_bytes=0)
    assert (await read(cluster.entries(), [gone]))[1] == [(999, 0, 4)]
    assert (await read(cluster.entries(store=False), [part]))[1] == [(writer.ledger_id, 1, 4)]
