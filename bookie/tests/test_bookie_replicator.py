from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence

import pytest
from magnetar.bookie.autorecovery.fragments import EnsembleRepair, FragmentState, segments_of
from magnetar.bookie.autorecovery.replication.entry_copy import TargetFailed, rebuilt
from magnetar.bookie.autorecovery.replication.replicator import LedgerReplicator, known_last_add_confirmed
from magnetar.bookie.autorecovery.replication.result import OpenDamage, ProblemKind, ReplicationScope
from magnetar.bookie.autorecovery.replication.settings import ReplicationSettings
from magnetar.bookie.autorecovery.testing import MemoryBookieCluster
from magnetar.core.errors import SettingError
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.bookie_client.bookie_connection import ADD_FLAG_RECOVERY
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.placement import Adherence
from magnetar.ledger.testing import RegisteredBookies
from magnetar.ledger.topology import BookieTopology
from magnetar.ledger.writer import OpenLedgerWriter
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.sim.virtual_time import LoopClock, VirtualTimeLoop
from magnetar.wire.bookkeeper.codes import BookieCode
from magnetar.wire.bookkeeper.entry import EntryCodec, header
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState

new_event_loop = VirtualTimeLoop

WHOLE = LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=2)
PAIR = LedgerOptions(ensemble_size=2, write_quorum=2, ack_quorum=2)
STRIPED = LedgerOptions(ensemble_size=4, write_quorum=2, ack_quorum=2)
SHAPES = pytest.mark.parametrize("options", [PAIR, WHOLE, STRIPED], ids=["2/2/2", "3/3/2", "4/2/2"])
SMALL = ReplicationSettings(entry_batch_size=7, batch_bytes_max=200, outstanding_bytes_max=300, add_timeout_seconds=0.1)


def payloads(count: int) -> list[bytes]:
    return [b"payload %d" % number * (number % 3 + 1) for number in range(count)]


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryBookieCluster]:
    opened = MemoryBookieCluster(6, clock=LoopClock())
    yield opened
    await opened.close()


async def assert_reads(cluster: MemoryBookieCluster, ledger_id: int, expected: Sequence[bytes]) -> None:
    metadata = await cluster.metadata(ledger_id)
    reader = await cluster.client.open(ledger_id, password=metadata.password, recover=False)
    found: list[bytes] = []
    while len(found) < len(expected):
        found += await reader.read(len(found), len(expected) - 1)
    assert found == list(expected)


def stop(cluster: MemoryBookieCluster, metadata: LedgerMetadata, *indexes: int, segment: int = 0) -> list[str]:
    stopped = [metadata.ensembles[segment][1][index] for index in indexes]
    for bookie in stopped:
        cluster.bookies.bookies[bookie].stop()
    return stopped


@SHAPES
@pytest.mark.parametrize("settings", [ReplicationSettings(), SMALL], ids=["one batch", "many batches"])
@pytest.mark.parametrize("digest", ["CRC32C", "CRC32", "HMAC", "DUMMY"])
async def test_a_lost_bookie_is_replaced(
    cluster: MemoryBookieCluster, options: LedgerOptions, settings: ReplicationSettings, digest: str
) -> None:
    options = dataclasses.replace(options, digest_type=digest, password=b"secret")
    ledger_id = await cluster.closed_ledger(options, payloads(50))
    before = await cluster.metadata(ledger_id)
    lost = stop(cluster, before, 1)
    seen: list[tuple[int, int]] = []
    result = await cluster.replicator(settings).replicate(
        ledger_id, on_progress=lambda entries, size: seen.append((entries, size))
    )
    assert result.complete
    assert result.fragments_moved == 1
    assert result.entries_copied == (50 if options.ensemble_size == options.write_quorum else 26)
    assert (result.entries_copied, result.bytes_copied) == tuple(map(sum, zip(*seen, strict=True)))
    assert await cluster.lacking(ledger_id, lost) == []
    after = await cluster.metadata(ledger_id)
    assert dataclasses.replace(after, ensembles=before.ensembles) == before
    await assert_reads(cluster, ledger_id, payloads(50))
    again = await cluster.replicator().replicate(ledger_id)
    assert (again.complete, again.entries_copied) == (True, 0)


async def test_copies_say_how_far_the_ledger_goes(cluster: MemoryBookieCluster) -> None:
    ledger_id = await cluster.closed_ledger(PAIR, payloads(10))
    stop(cluster, await cluster.metadata(ledger_id), 0)
    await cluster.replicator().replicate(ledger_id)
    new = (await cluster.metadata(ledger_id)).ensembles[0][1][0]
    entries = cluster.bookies.bookies[new].ledgers[ledger_id].entries
    length = 0
    for entry_id, payload in enumerate(payloads(10)):
        length += len(payload)
        assert header(entries[entry_id]) == (ledger_id, entry_id, 9, length)


def test_rebuilt_entries_keep_their_lengths_with_and_without_gaps() -> None:
    codec = EntryCodec(3, "CRC32C")
    entries = codec.encode_many(0, -1, 0, payloads(9))
    for chosen in ([0, 1, 2, 3], [2, 4, 5, 8], [7]):
        copies = rebuilt(codec, 8, [(entry_id, entries[entry_id]) for entry_id in chosen])
        for entry_id, copy in zip(chosen, copies, strict=True):
            assert codec.decode(copy, entry_id) == payloads(9)[entry_id]
            assert header(copy) == (3, entry_id, 8, header(entries[entry_id])[3])
    assert rebuilt(codec, 8, []) == []


async def test_two_lost_bookies_of_three(cluster: MemoryBookieCluster) -> None:
    ledger_id = await cluster.closed_ledger(WHOLE, payloads(40))
    lost = stop(cluster, await cluster.metadata(ledger_id), 0, 2)
    result = await cluster.replicator(SMALL).replicate(ledger_id)
    assert (result.complete, result.fragments_moved, result.entries_copied) == (True, 2, 80)
    assert await cluster.lacking(ledger_id, lost) == []


async def test_every_segment_is_repaired_empty_ones_too(cluster: MemoryBookieCluster) -> None:
    writer, listener = await cluster.open_ledger(WHOLE, payloads(5))
    first = stop(cluster, writer.metadata, 0)
    writer.append(payloads(5))
    await listener.until_confirmed(9)
    await writer.close()
    second = stop(cluster, writer.metadata, 1, segment=1)
    cluster.bookies.add_bookie()
    cluster.bookies.add_bookie()
    empty = await cluster.closed_ledger(WHOLE, [])
    third = stop(cluster, await cluster.metadata(empty), 2)
    for ledger_id in (writer.ledger_id, empty):
        result = await cluster.replicator().replicate(ledger_id)
        assert result.complete
        assert await cluster.lacking(ledger_id, [*first, *second, *third]) == []
        for _, ensemble in (await cluster.metadata(ledger_id)).ensembles:
            assert not {*first, *second, *third}.intersection(ensemble)


async def test_a_replica_with_holes_is_replaced(cluster: MemoryBookieCluster) -> None:
    ledger_id = await cluster.closed_ledger(WHOLE, payloads(20))
    ensemble = (await cluster.metadata(ledger_id)).ensembles[0][1]
    cluster.drop(ensemble[0], ledger_id, [17, 18, 19])
    # The other two miss what only the one with the hole still has.
    cluster.drop(ensemble[1], ledger_id, [4])
    cluster.drop(ensemble[2], ledger_id, [4])
    result = await cluster.replicator(SMALL).replicate(ledger_id)
    assert (result.complete, result.fragments_moved) == (True, 1)
    assert await cluster.lacking(ledger_id) == [(4, ensemble[1]), (4, ensemble[2])]
    checked = await cluster.replicator(ReplicationSettings(verification_percentage=100)).replicate(ledger_id)
    assert checked.complete
    assert await cluster.lacking(ledger_id) == []


async def test_a_replica_with_holes_is_filled_up_when_nobody_else_is_there() -> None:
    cluster = MemoryBookieCluster(2)
    ledger_id = await cluster.closed_ledger(PAIR, payloads(20))
    before = await cluster.metadata(ledger_id)
    cluster.drop(before.ensembles[0][1][1], ledger_id, [0, 7])
    result = await cluster.replicator().replicate(ledger_id)
    assert result.complete
    assert await cluster.lacking(ledger_id) == []
    assert await cluster.metadata(ledger_id) == before
    await cluster.close()


async def test_a_replica_whose_disk_is_bad_is_filled_up_once() -> None:
    cluster = MemoryBookieCluster(2)
    ledger_id = await cluster.closed_ledger(PAIR, payloads(5))
    bookie = cluster.bookies.bookies[(await cluster.metadata(ledger_id)).ensembles[0][1][1]]
    stored = bookie.ledgers[ledger_id]

    class Forgetful(dict[int, bytes]):
        def update(self, *args: object, **kwargs: object) -> None:
            """Nothing stays."""

    stored.entries = Forgetful()
    result = await cluster.replicator().replicate(ledger_id)
    assert result.has(ProblemKind.NOT_ENOUGH_BOOKIES)
    assert bookie.add_calls == 1 + 1
    await cluster.close()


async def test_a_damaged_source_is_passed_over(cluster: MemoryBookieCluster) -> None:
    ledger_id = await cluster.closed_ledger(WHOLE, payloads(20))
    metadata = await cluster.metadata(ledger_id)
    lost = stop(cluster, metadata, 2)
    for entry_id in range(3, 17):
        cluster.damage(metadata.ensembles[0][1][entry_id % 2], ledger_id, entry_id)
    result = await cluster.replicator(SMALL).replicate(ledger_id)
    assert result.complete
    new = (await cluster.metadata(ledger_id)).ensembles[0][1][2]
    assert new not in lost
    codec = EntryCodec(ledger_id, "CRC32C")
    for entry_id, entry in cluster.bookies.bookies[new].ledgers[ledger_id].entries.items():
        codec.decode(entry, entry_id)


@SHAPES
async def test_entries_that_nobody_has_are_named_and_the_metadata_stays(
    cluster: MemoryBookieCluster, options: LedgerOptions
) -> None:
    ledger_id = await cluster.closed_ledger(options, payloads(40))
    before = await cluster.metadata(ledger_id)
    stop(cluster, before, 1)
    for bookie in before.ensembles[0][1]:
        entries = cluster.bookies.bookies[bookie].ledgers[ledger_id].entries
        if 9 in entries:
            cluster.damage(bookie, ledger_id, 9)
        if 13 in entries:
            cluster.drop(bookie, ledger_id, [13])
    result = await cluster.replicator(SMALL).replicate(ledger_id)
    assert result.has(ProblemKind.UNREADABLE)
    assert result.fragments_moved == 0
    assert f"ledger {ledger_id}: 9" in result.reason
    assert await cluster.metadata(ledger_id) == before


async def test_an_avoided_bookie_is_replaced_and_is_the_last_source(cluster: MemoryBookieCluster) -> None:
    ledger_id = await cluster.closed_ledger(WHOLE, payloads(20))
    ensemble = (await cluster.metadata(ledger_id)).ensembles[0][1]
    for bookie in ensemble[1:]:
        cluster.drop(bookie, ledger_id, [5, 6])
    cluster.bookies.bookies[ensemble[0]].writable = False
    for scope in (ReplicationScope.AVOIDED, ReplicationScope.WHOLE):
        result = await cluster.replicator(SMALL).replicate(ledger_id, avoid={ensemble[0]}, scope=scope)
        assert result.complete
    after = (await cluster.metadata(ledger_id)).ensembles[0][1]
    assert after[1:] == ensemble[1:]
    assert after[0] not in ensemble
    assert len(cluster.bookies.bookies[after[0]].ledgers[ledger_id].entries) == 20


async def test_an_avoided_bookie_leaves_although_another_is_lost_for_good() -> None:
    cluster = MemoryBookieCluster(4)
    ledger_id = await cluster.closed_ledger(WHOLE, payloads(9))
    ensemble = (await cluster.metadata(ledger_id)).ensembles[0][1]
    cluster.bookies.bookies[ensemble[1]].stop()
    result = await cluster.replicator().replicate(ledger_id, avoid={ensemble[0]}, scope=ReplicationScope.AVOIDED)
    assert result.complete
    after = (await cluster.metadata(ledger_id)).ensembles[0][1]
    assert (after[1:], after[0] in ensemble) == (ensemble[1:], False)
    await cluster.close()


@pytest.mark.parametrize("options", [WHOLE, STRIPED], ids=["3/3/2", "4/2/2"])
async def test_an_ensemble_that_names_a_bookie_twice_is_repaired(
    cluster: MemoryBookieCluster, options: LedgerOptions
) -> None:
    """No client makes such an ensemble, but somebody may have edited the metadata."""
    ledger_id = await cluster.closed_ledger(options, payloads(20))
    metadata, version = await cluster.client.metadata.read(ledger_id)
    bookies = metadata.ensembles[0][1]
    twice = dataclasses.replace(metadata, ensembles=[(0, [bookies[0], bookies[0], *bookies[2:]])])
    await cluster.client.metadata.write(ledger_id, twice, version)
    result = await cluster.replicator().replicate(ledger_id)
    assert (result.complete, await cluster.lacking(ledger_id)) == (True, [])
    lost = stop(cluster, await cluster.metadata(ledger_id), len(bookies) - 1)
    result = await cluster.replicator().replicate(ledger_id)
    assert result.complete
    assert result.entries_copied <= 2 * 20
    assert await cluster.lacking(ledger_id, lost) == []


async def test_too_few_bookies_repair_what_they_can() -> None:
    cluster = MemoryBookieCluster(4)
    ledger_id = await cluster.closed_ledger(WHOLE, payloads(9))
    lost = stop(cluster, await cluster.metadata(ledger_id), 0, 1)
    result = await cluster.replicator().replicate(ledger_id)
    assert (result.fragments_moved, result.has(ProblemKind.NOT_ENOUGH_BOOKIES)) == (1, True)
    ensemble = (await cluster.metadata(ledger_id)).ensembles[0][1]
    assert len(set(ensemble) - set(lost)) == 2
    none = await cluster.replicator().replicate(ledger_id)
    assert (none.fragments_moved, none.has(ProblemKind.NOT_ENOUGH_BOOKIES)) == (0, True)
    cluster.bookies.add_bookie()
    assert (await cluster.replicator().replicate(ledger_id)).complete
    assert await cluster.lacking(ledger_id, lost) == []
    await cluster.close()


@pytest.mark.parametrize("trouble", ["stopped", "hanging", "refusing"])
async def test_a_bookie_that_does_not_take_the_copy_is_not_named(cluster: MemoryBookieCluster, trouble: str) -> None:
    ledger_id = await cluster.closed_ledger(WHOLE, payloads(30))
    ensemble = (await cluster.metadata(ledger_id)).ensembles[0][1]
    stop(cluster, await cluster.metadata(ledger_id), 0)
    free = [bookie for bookie in cluster.bookies.bookies if bookie not in ensemble]
    bad = free[:2]
    for bookie_id in bad:
        bookie = cluster.bookies.bookies[bookie_id]
        if trouble == "hanging":
            bookie.hang()
        elif trouble == "refusing":
            bookie.refusal = BookieCode.EREADONLY
        else:
            bookie.refusal = BookieCode.UNREACHABLE
    result = await cluster.replicator(SMALL).replicate(ledger_id)
    assert result.complete
    assert (await cluster.metadata(ledger_id)).ensembles[0][1][0] == free[2]
    for bookie_id in bad:
        cluster.bookies.bookies[bookie_id].stop()


@pytest.mark.parametrize("code", [BookieCode.EIO, BookieCode.EREADONLY])
async def test_a_copy_that_its_target_refused_has_failed(cluster: MemoryBookieCluster, code: BookieCode) -> None:
    """Nor is that left to the next round, which would find a bookie named that has nothing."""
    ledger_id = await cluster.closed_ledger(WHOLE, payloads(30))
    metadata = await cluster.metadata(ledger_id)
    target = next(bookie for bookie in cluster.bookies.bookies if bookie not in metadata.ensembles[0][1])
    cluster.bookies.bookies[target].refusal = code
    move = EnsembleRepair(segments_of(metadata)[0], {0: target})
    with pytest.raises(TargetFailed):
        await cluster.replicator(SMALL).copy(ledger_id, metadata, move, [1, 2], lambda *_: None)


async def test_a_bookie_that_turns_read_only_during_the_copy_is_not_named(cluster: MemoryBookieCluster) -> None:
    """It takes the rest of the copy, as it does all adds of high priority; but whoever drains it may have looked at
    this ledger already."""
    ledger_id = await cluster.closed_ledger(WHOLE, payloads(30))
    metadata = await cluster.metadata(ledger_id)
    lost = stop(cluster, metadata, 0)
    free = [bookie for bookie in cluster.bookies.bookies if bookie not in metadata.ensembles[0][1]]
    turned: list[str] = []

    def turn(_entries: int, _size_bytes: int) -> None:
        for bookie_id in free:
            bookie = cluster.bookies.bookies[bookie_id]
            if not turned and bookie.ledgers.get(ledger_id):
                turned.append(bookie_id)
                bookie.writable = False

    result = await cluster.replicator().replicate(ledger_id, on_progress=turn)
    assert result.complete
    after = (await cluster.metadata(ledger_id)).ensembles[0][1]
    assert not {*turned, *lost}.intersection(after)
    assert turned
    assert await cluster.lacking(ledger_id) == []


async def test_a_bookie_that_has_left_is_not_named_whatever_the_list_says() -> None:
    """With one replica each, its copy would be the only one."""
    store = MemoryMetadataStore()
    bookies = RegisteredBookies(store, 3)
    await bookies.register()
    cluster = MemoryBookieCluster(bookies, store, clock=LoopClock())
    ledger_id = await cluster.closed_ledger(LedgerOptions(), payloads(30))
    (holder,) = (await cluster.metadata(ledger_id)).ensembles[0][1]
    leaving, staying = sorted(set(bookies.bookies) - {holder})
    await bookies.leave(leaving)
    for attempt in range(10):
        cluster.rng.seed(attempt)
        result = await cluster.replicator().replicate(ledger_id, avoid=[holder])
        assert result.complete
        assert (await cluster.metadata(ledger_id)).ensembles[0][1] == [staying]
        assert await cluster.lacking(ledger_id) == []
        await cluster.replicator().record(
            ledger_id, EnsembleRepair(segments_of(await cluster.metadata(ledger_id))[0], {0: holder})
        )
    await cluster.close()


async def test_what_an_earlier_attempt_has_copied_does_no_harm(cluster: MemoryBookieCluster) -> None:
    ledger_id = await cluster.closed_ledger(WHOLE, payloads(30))
    ensemble = (await cluster.metadata(ledger_id)).ensembles[0][1]
    entries = cluster.bookies.bookies[ensemble[0]].ledgers[ledger_id].entries
    codec = EntryCodec(ledger_id, "CRC32C")
    for bookie_id in cluster.bookies.bookies:
        if bookie_id not in ensemble:
            some = {entry_id: entries[entry_id] for entry_id in (0, 1, 2, 29)}
            cluster.bookies.bookies[bookie_id].add_entries(
                ledger_id, codec.master_key, list(some), list(some.values()), ADD_FLAG_RECOVERY, lambda *_: None
            )
    await asyncio.sleep(0)
    lost = stop(cluster, await cluster.metadata(ledger_id), 1)
    assert (await cluster.replicator(SMALL).replicate(ledger_id)).complete
    assert await cluster.lacking(ledger_id, lost) == []


async def test_a_silent_bookie_is_given_time(cluster: MemoryBookieCluster) -> None:
    ledger_id = await cluster.closed_ledger(WHOLE, payloads(10))
    silent = (await cluster.metadata(ledger_id)).ensembles[0][1][1]
    cluster.bookies.bookies[silent].mute()
    result = await cluster.replicator().replicate(ledger_id)
    assert (result.has(ProblemKind.SILENT), result.fragments_moved) == (True, 0)
    assert silent in result.reason
    assert (await cluster.replicator().replicate(ledger_id, replace_silent=True)).complete
    assert silent not in (await cluster.metadata(ledger_id)).ensembles[0][1]
    cluster.bookies.bookies[silent].stop()


async def test_a_conflict_is_read_again(cluster: MemoryBookieCluster) -> None:
    ledger_id = await cluster.closed_ledger(WHOLE, payloads(10))
    before = await cluster.metadata(ledger_id)
    lost = stop(cluster, before, 0)
    ops = cluster.client.metadata
    write, conflicts = ops.write, 0

    async def write_second(
        ledger_id: int, metadata: LedgerMetadata, version: int, registrations: Sequence[str] = ()
    ) -> int:
        nonlocal conflicts
        if conflicts < 3:
            conflicts += 1
            current, newest = await ops.read(ledger_id)
            touched = {**current.custom_metadata, "touched": b"%d" % conflicts}
            await write(ledger_id, dataclasses.replace(current, custom_metadata=touched), newest)
        return await write(ledger_id, metadata, version, registrations)

    ops.write = write_second  # type: ignore[method-assign]
    assert (await cluster.replicator().replicate(ledger_id)).complete
    after = await cluster.metadata(ledger_id)
    assert (conflicts, after.custom_metadata) == (3, {"touched": b"3"})
    assert await cluster.lacking(ledger_id, lost) == []


async def test_nothing_is_recorded_of_a_segment_that_another_has_changed(cluster: MemoryBookieCluster) -> None:
    ledger_id = await cluster.closed_ledger(PAIR, payloads(5))
    metadata, version = await cluster.client.metadata.read(ledger_id)
    first, second = metadata.ensembles[0][1]
    spare, other, *_ = sorted(set(cluster.bookies.bookies) - {first, second})
    changed = dataclasses.replace(metadata, ensembles=[(0, [other, second])])
    await cluster.client.metadata.write(ledger_id, changed, version)
    move = EnsembleRepair(segments_of(metadata)[0], {0: spare})
    assert not await cluster.replicator().record(ledger_id, move)
    assert await cluster.metadata(ledger_id) == changed


async def test_one_copy_is_looked_at_by_its_ledger_segment_and_bookie(cluster: MemoryBookieCluster) -> None:
    await cluster.closed_ledger(PAIR, payloads(5))
    ledger_id = await cluster.closed_ledger(PAIR, payloads(5))
    metadata = await cluster.metadata(ledger_id)
    lacking, whole = metadata.ensembles[0][1]
    cluster.drop(lacking, ledger_id, [0, 4])
    replicator = cluster.replicator()
    assert await replicator.check_bookie(ledger_id, metadata, 0, lacking) is FragmentState.MISSING
    assert await replicator.check_bookie(ledger_id, metadata, 0, whole) is FragmentState.PRESENT


def test_what_metadata_proves_to_be_confirmed() -> None:
    """Of an open ledger all before its last segment, of a closed one everything."""
    ensembles = [(0, ["a:1"]), (5, ["b:1"])]
    opened = LedgerMetadata(ensemble_size=1, write_quorum=1, ack_quorum=1, ensembles=ensembles)
    assert known_last_add_confirmed(opened) == 4
    assert known_last_add_confirmed(dataclasses.replace(opened, state=LedgerState.CLOSED, last_entry_id=9)) == 9


async def test_two_replicators_at_once_agree(cluster: MemoryBookieCluster) -> None:
    ledger_id = await cluster.closed_ledger(WHOLE, payloads(60))
    lost = stop(cluster, await cluster.metadata(ledger_id), 0, 1)
    replicators = [cluster.replicator(SMALL) for _ in range(3)]
    results = await asyncio.gather(*(replicator.replicate(ledger_id) for replicator in replicators))
    assert all(result.complete for result in results)
    assert await cluster.lacking(ledger_id, lost) == []


async def test_a_deleted_ledger_needs_nothing(cluster: MemoryBookieCluster) -> None:
    assert (await cluster.replicator().replicate(4711)).deleted
    ledger_id = await cluster.closed_ledger(WHOLE, payloads(30))
    ensemble = (await cluster.metadata(ledger_id)).ensembles[0][1]
    stop(cluster, await cluster.metadata(ledger_id), 0)

    deleting: list[asyncio.Future[None]] = []

    def delete(entries: int, size_bytes: int) -> None:
        if not deleting:
            deleting.append(asyncio.ensure_future(cluster.client.delete(ledger_id)))
            for bookie_id in ensemble[1:]:
                cluster.bookies.bookies[bookie_id].ledgers.clear()

    result = await cluster.replicator(SMALL).replicate(ledger_id, on_progress=delete)
    assert (result.deleted, result.complete) == (True, True)


async def test_an_open_segment_waits_for_its_writer_then_the_ledger_is_closed(cluster: MemoryBookieCluster) -> None:
    writer, listener = await cluster.open_ledger(WHOLE, payloads(5))
    ledger_id = writer.ledger_id
    stop(cluster, writer.metadata, 0)
    writer.append(payloads(5))
    await listener.until_confirmed(9)
    stopped = stop(cluster, writer.metadata, 1, segment=1)
    replicator = cluster.replicator()
    result = await replicator.replicate(ledger_id)
    # What is closed is repaired; the open segment is left to the writer.
    assert (result.has(ProblemKind.OPEN), len(result.problems)) == (True, 1)
    assert stopped[0] in result.reason
    assert await cluster.lacking(ledger_id, stopped) == []
    assert (await cluster.metadata(ledger_id)).state is LedgerState.OPEN
    await replicator.close_open_ledger(ledger_id)
    assert (await cluster.metadata(ledger_id)).state is LedgerState.CLOSED
    assert (await replicator.replicate(ledger_id)).complete
    assert await cluster.lacking(ledger_id, stopped) == []
    await assert_reads(cluster, ledger_id, [*payloads(5), *payloads(5)])


async def ledger_with_five_known_confirmed(cluster: MemoryBookieCluster) -> OpenLedgerWriter:
    """Open, of six entries; only the last tells the bookies that those before are confirmed."""
    writer, listener = await cluster.open_ledger(WHOLE, payloads(5))
    writer.append([b"later"])
    await listener.until_confirmed(5)
    return writer


async def test_bookies_that_lack_confirmed_entries_of_an_open_ledger_are_named_and_no_others(
    cluster: MemoryBookieCluster,
) -> None:
    writer = await ledger_with_five_known_confirmed(cluster)
    damaged, late, lacking = writer.metadata.ensembles[0][1]
    cluster.damage(damaged, writer.ledger_id, 4)
    cluster.drop(lacking, writer.ledger_id, [0])
    cluster.bookies.bookies[late].mute()
    result = await cluster.replicator().replicate(writer.ledger_id)
    assert result.open_damage == OpenDamage((damaged, lacking), 4)
    assert result.reason == (f"it is open and left to its writer; {damaged}, {lacking} cannot give its entries")
    await writer.abandon()


async def test_an_open_ledger_that_is_whole_stays_open(cluster: MemoryBookieCluster) -> None:
    writer = await ledger_with_five_known_confirmed(cluster)
    replicator = cluster.replicator()
    result = await replicator.replicate(writer.ledger_id)
    assert (result.complete, result.open_damage) == (True, None)
    await replicator.close_open_ledger(writer.ledger_id)
    await replicator.close_open_ledger(4711)
    assert (await cluster.metadata(writer.ledger_id)).state is LedgerState.OPEN
    await writer.close()


async def test_a_ledger_whose_password_is_not_in_the_metadata(cluster: MemoryBookieCluster) -> None:
    options = dataclasses.replace(WHOLE, digest_type="HMAC", password=b"old")
    ledger_id = await cluster.closed_ledger(options, payloads(10))
    metadata, version = await cluster.client.metadata.read(ledger_id)
    bare = dataclasses.replace(metadata, digest_type=None, password=b"")
    await cluster.client.metadata.write(ledger_id, bare, version)
    lost = stop(cluster, metadata, 2)
    for known in (ReplicationSettings(), ReplicationSettings(recovery_digest_type="HMAC")):
        result = await cluster.replicator(known).replicate(ledger_id)
        assert result.has(ProblemKind.UNREADABLE)
        assert (result.fragments_moved, result.entries_copied) == (0, 0)
    settings = ReplicationSettings(recovery_digest_type="HMAC", recovery_password=b"old")
    assert (await cluster.replicator(settings).replicate(ledger_id)).complete
    after = await cluster.metadata(ledger_id)
    assert dataclasses.replace(after, ensembles=bare.ensembles) == bare
    new = after.ensembles[0][1][2]
    assert new not in lost
    key = EntryCodec(ledger_id, "HMAC", b"old").master_key
    named = [cluster.bookies.bookies[bookie].ledgers[ledger_id] for bookie in after.ensembles[0][1]]
    assert {ledger.master_key for ledger in named} == {key}


async def test_a_copy_within_a_rate_takes_its_time(cluster: MemoryBookieCluster) -> None:
    ledger_id = await cluster.closed_ledger(WHOLE, [b"x" * 1000] * 60)
    stop(cluster, await cluster.metadata(ledger_id), 0)
    settings = dataclasses.replace(SMALL, bytes_per_second=200_000, entry_batch_size=5, batch_bytes_max=10_000)
    loop = asyncio.get_running_loop()
    start = loop.time()
    result = await cluster.replicator(settings).replicate(ledger_id)
    # 62 kB at 200 kB/s, less the burst.
    assert result.bytes_copied > 60_000
    assert 0.02 < loop.time() - start < 0.32


async def test_bounds_of_settings() -> None:
    with pytest.raises(SettingError, match="rereplicationEntryBatchSize"):
        ReplicationSettings(entry_batch_size=0)


async def test_a_ledger_is_spread_anew_when_that_is_asked_for() -> None:
    places = BookieTopology(
        {"default": {f"bookie-{number}:3181": "/rack-a" if number < 4 else "/rack-b" for number in range(6)}}
    )
    cluster = MemoryBookieCluster(4)
    ledger_id = await cluster.closed_ledger(WHOLE, payloads(10))
    cluster.bookies.add_bookie()
    cluster.bookies.add_bookie()
    client = BookKeeperClient(cluster.store, cluster.bookies, rng=cluster.rng, places=lambda: places)
    replicator = LedgerReplicator(client, cluster.bookies, rng=cluster.rng)
    before = await cluster.metadata(ledger_id)
    assert (await replicator.replicate(ledger_id)).moves == []
    result = await replicator.replicate(ledger_id, scope=ReplicationScope.PLACEMENT)
    assert (result.complete, len(result.moves), result.misplaced_moved) == (True, 1, True)
    after = await cluster.metadata(ledger_id)
    assert len(set(before.ensembles[0][1]) - set(after.ensembles[0][1])) == 1
    assert client.chooser.adheres(after.ensembles[0][1], 3) is Adherence.STRICT
    assert await cluster.lacking(ledger_id) == []
    # Where no other bookies help, the ledger is as good as it gets.
    cluster.bookies.bookies["bookie-4:3181"].writable = cluster.bookies.bookies["bookie-5:3181"].writable = False
    other = await cluster.closed_ledger(WHOLE, payloads(10))
    result = await replicator.replicate(other, scope=ReplicationScope.PLACEMENT)
    assert (result.complete, result.moves) == (True, [])
    await client.close()
    await cluster.close()


async def test_copies_go_to_machines_that_have_none() -> None:
    machine_of = {f"bookie-{number}:3181": f"machine-{number // 2}" for number in range(6)}
    places = BookieTopology({}, machine_of)
    cluster = MemoryBookieCluster(6, clock=LoopClock())
    await cluster.client.close()
    cluster.client = BookKeeperClient(
        cluster.store, cluster.bookies, clock=cluster.clock, rng=cluster.rng, places=lambda: places
    )
    ledger_id = await cluster.closed_ledger(PAIR, payloads(10))
    before = (await cluster.metadata(ledger_id)).ensembles[0][1]
    assert len({machine_of[bookie] for bookie in before}) == 2
    stop(cluster, await cluster.metadata(ledger_id), 0)
    replicator = cluster.replicator()
    assert (await replicator.replicate(ledger_id)).complete
    after = (await cluster.metadata(ledger_id)).ensembles[0][1]
    assert len({machine_of[bookie] for bookie in after}) == 2
    # Only the other process of the machine that has the last copy is left: nobody takes a second one.
    for bookie in cluster.bookies.bookies.values():
        bookie.writable = machine_of[bookie.bookie_id] == machine_of[after[1]]
    stop(cluster, await cluster.metadata(ledger_id), 0)
    result = await replicator.replicate(ledger_id)
    assert not result.complete
    assert [problem.kind for problem in result.problems] == [ProblemKind.NOT_ENOUGH_BOOKIES]
    assert (await cluster.metadata(ledger_id)).ensembles[0][1] == after
    await cluster.close()


async def test_what_is_copied_is_counted(cluster: MemoryBookieCluster) -> None:
    ledger_id = await cluster.closed_ledger(WHOLE, payloads(30))
    stop(cluster, await cluster.metadata(ledger_id), 0, 1)
    replicator = cluster.replicator(SMALL)
    result = await replicator.replicate(ledger_id)
    counters = replicator.counters
    assert (counters.entries_read, counters.entries_written) == (30, 60)
    assert counters.bytes_written.total == result.bytes_copied
    assert counters.bytes_read.total * 2 == result.bytes_copied
    assert counters.read_latency.success.count == 30
    assert counters.write_latency.success.count == 60
