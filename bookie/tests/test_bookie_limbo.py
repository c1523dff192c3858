"""A bookie that has lost its journal: it denies nothing until its peers have given back what it lacks."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from magnetar.bookie.app import RunningBookie, start_bookie
from magnetar.bookie.bookie import Bookie
from magnetar.bookie.cookie import COOKIES_PATH, InvalidCookie
from magnetar.bookie.healing import Healer
from magnetar.bookie.integrity.begun_journals import begun_by_last_start, begun_journals_path, check_journals_are_newest
from magnetar.bookie.integrity.limbo import LIMBO_FILE, Limbo, LimboStage
from magnetar.bookie.journal.files import JournalDamaged
from magnetar.bookie.local import LocalBookies
from magnetar.bookie.loss import Losses, OnLoss
from magnetar.bookie.operations import LimboState
from magnetar.bookie.settings import BookieSettings, DiskSettings, standalone_settings
from magnetar.bookie.storage.entry_log_note import NOTE_FILE, EntryLogLost, list_logs, read_note, write_note
from magnetar.core.clock import SystemClock
from magnetar.core.disk import SystemDisk
from magnetar.core.errors import Unavailable
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.ledger_paths import AVAILABLE_PATH
from magnetar.ledger.testing import RecordingListener
from magnetar.metadata.faulty import FaultyStore, RequestFate
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import Stat
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.bookkeeper.entry import EntryCodec

NAMES = ("one", "two", "three")
FIRST_SEND = [b"entry %d" % number for number in range(60)]


class World:
    """Three bookies over one metadata store, and a client of theirs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = MemoryMetadataStore()
        self.running: dict[str, RunningBookie] = {}
        self._served: dict[str, Bookie] = {}
        self.connections = LocalBookies(self._served)
        self.client = BookKeeperClient(self.store, self.connections, SystemClock())

    def settings(self, name: str) -> BookieSettings:
        disk = DiskSettings(usage_threshold=1.0, usage_low_water=1.0, free_bytes_min=0)
        return dataclasses.replace(standalone_settings(self.folder / name), bookie_id=name, port=0, disk=disk)

    async def start(self, name: str, *, heal: bool = False, accept: bool = False) -> RunningBookie:
        settings = dataclasses.replace(self.settings(name), heal_from_peers=heal, accept_loss=accept)
        running = await start_bookie(settings, self.store, SystemClock())
        self.running[name] = running
        self._served[name] = running.bookie
        return running

    async def stop(self, name: str) -> None:
        await self.connections.connection(name).close()
        del self._served[name]
        await self.running.pop(name).close()

    async def lose_journal(self, name: str) -> None:
        """As after kill -9, with the journal's files gone; entries that no checkpoint has written are lost."""
        folder = self.folder / name
        shutil.copytree(folder, self.folder / "crashed")
        await self.stop(name)
        shutil.rmtree(folder)
        (self.folder / "crashed").rename(folder)
        for path in (folder / "journal" / "current").glob("*.txn"):
            path.unlink()

    async def put_back_an_older_copy(self, name: str, ledger_holders: Sequence[str]) -> int:
        """Its directories are a copy from before its last start. Returns a half-written ledger of after that."""
        folder = self.folder / name
        shutil.copytree(folder, self.folder / "older")
        await self.stop(name)
        await self.start(name)
        ledger_id = await self.half_written(ledger_holders)
        await self.stop(name)
        shutil.rmtree(folder)
        (self.folder / "older").rename(folder)
        return ledger_id

    async def write(self, options: LedgerOptions, entries: Sequence[bytes]) -> int:
        """A closed ledger of these entries."""
        writer = await self.client.create(options, RecordingListener())
        writer.append(entries)
        await writer.close()
        return writer.ledger_id

    async def half_written(self, holders: Sequence[str]) -> int:
        """An open ledger of three bookies whose entries were acknowledged by these two, and by nobody else."""
        writer = await self.client.create(
            LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=2), RecordingListener()
        )
        codec = EntryCodec(writer.ledger_id, "CRC32C")
        stored = codec.encode_many(0, -1, 0, FIRST_SEND)
        for name in holders:
            told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            self._served[name].add_entries(
                writer.ledger_id,
                codec.master_key,
                range(len(stored)),
                stored,
                0,
                lambda code, ledger_id, entry_ids, told=told: told.set_result(code),
            )
            assert await told == BookieCode.EOK
        await writer.abandon()
        return writer.ledger_id

    async def read(self, ledger_id: int) -> list[bytes]:
        """All entries, after a recovery if the ledger is open."""
        reader = await self.client.open(ledger_id, recover=True)
        try:
            if reader.last_add_confirmed < 0:
                return []
            return [bytes(entry) for entry in await reader.read(0, reader.last_add_confirmed)]
        finally:
            await reader.close()

    async def code_of(self, name: str, ledger_id: int, entry_id: int) -> BookieCode:
        try:
            await self._served[name].read_entry(ledger_id, entry_id)
        except BookieError as error:
            return error.code
        return BookieCode.EOK

    async def close(self) -> None:
        await self.client.close()
        await self.connections.close()
        for name in list(self.running):
            await self.stop(name)
        await self.store.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    for name in NAMES:
        await made.start(name)
    yield made
    await made.close()


async def test_it_is_refused_unless_it_may_heal(world: World) -> None:
    await world.half_written(("one", "two"))
    await world.lose_journal("one")
    with pytest.raises(JournalDamaged, match=r"missing in .*one/journal/current.*dataIntegrityChecking=true"):
        await world.start("one")


async def test_in_limbo_nothing_is_denied_and_nothing_acknowledged_is_lost(world: World) -> None:
    ledger_id = await world.half_written(("one", "two"))
    await world.lose_journal("one")
    running = await world.start("one", heal=True)
    assert await world.code_of("one", ledger_id, 0) is BookieCode.EUNKNOWNLEDGERSTATE
    assert await world.code_of("one", ledger_id, -1) is BookieCode.EUNKNOWNLEDGERSTATE
    # The only one that still has the entries is away, and the third never had them: two denials would be enough.
    await world.stop("two")
    with pytest.raises(Unavailable):
        await world.read(ledger_id)
    healer = Healer(running, world.client, world.connections)
    assert not await healer.heal_once()
    assert list(running.parts.limbo.unhealed) == [ledger_id]
    await world.start("two")
    assert await healer.heal_once()
    assert await world.read(ledger_id) == FIRST_SEND
    assert await running.bookie.entry_ids(ledger_id) == list(range(len(FIRST_SEND)))
    assert await world.code_of("one", ledger_id, 999) is BookieCode.ENOENTRY


async def test_an_older_copy_of_its_directories_is_refused_and_may_heal(world: World) -> None:
    """Nothing in the copy says that it took anything since."""
    ledger_id = await world.put_back_an_older_copy("one", ("one", "two"))
    for _ in range(2):
        with pytest.raises(JournalDamaged, match=r"one/journal/current is an older copy: .*dataIntegrityChecking=true"):
            await world.start("one")
    running = await world.start("one", heal=True)
    await world.stop("two")
    with pytest.raises(Unavailable):
        await world.read(ledger_id)
    await world.start("two")
    assert await Healer(running, world.client, world.connections).heal_once()
    assert await world.read(ledger_id) == FIRST_SEND
    await world.stop("one")
    await world.start("one")


async def test_an_older_copy_whose_loss_is_accepted_is_told_once(world: World) -> None:
    await world.put_back_an_older_copy("one", ("one", "two"))
    running = await world.start("one", accept=True)
    assert ["is an older copy" in damage for damage in running.parts.limbo.damage] == [True]
    await world.stop("one")
    assert not (await world.start("one")).parts.limbo.damage


@pytest.mark.parametrize("noted", [b"ffffffffffff", b"not a number"])
async def test_what_was_noted_of_a_bookie_that_left_is_no_reason(world: World, noted: bytes) -> None:
    """It comes again with empty directories, and may be stopped before anything else was made."""
    await world.stop("one")
    shutil.rmtree(world.folder / "one")
    await world.store.put(begun_journals_path("one"), noted)
    await world.store.delete(f"{COOKIES_PATH}/one")
    assert await begun_by_last_start(world.store, "one", holds_data=False) == []
    assert not await world.store.exists(begun_journals_path("one"))
    await world.start("one")
    await world.stop("one")
    await world.start("one")


async def test_an_older_copy_is_told_also_when_its_cookie_was_gone_for_a_while(world: World) -> None:
    """A cookie in the store is put right by hand, and whatever restarts the bookie starts it in between."""
    await world.put_back_an_older_copy("one", ("one", "two"))
    path = f"{COOKIES_PATH}/one"
    node = await world.store.get(path)
    assert node is not None
    await world.store.delete(path)
    with pytest.raises(InvalidCookie, match="does not know"):
        await world.start("one")
    await world.store.put(path, node.value)
    with pytest.raises(JournalDamaged, match="is an older copy"):
        await world.start("one")


async def test_begun_journals_are_noted_before_anybody_can_find_the_bookie(world: World) -> None:
    await world.stop("one")
    written: list[str] = []

    def noted(verb: str, path: str) -> RequestFate:
        if verb == "put":
            written.append(path)
        return RequestFate.DONE

    running = await start_bookie(world.settings("one"), FaultyStore(world.store, noted), SystemClock())
    await running.close()
    assert written.index(begun_journals_path("one")) < written.index(f"{AVAILABLE_PATH}/one")


def test_each_journal_directory_is_compared_with_its_own_newest_file(tmp_path: Path) -> None:
    directories = [tmp_path / name for name in ("a", "b", "c")]
    for directory, file_id in zip(directories, (7, 5, 7), strict=True):
        directory.mkdir()
        (directory / f"{file_id:x}.txn").touch()
    losses = Losses(OnLoss.ACCEPT)
    check_journals_are_newest(SystemDisk(), directories, [7, 6, 8], losses)
    older = "{} is an older copy: its newest journal file is {:x}, and {:x} was begun"
    assert [line.partition(" at the")[0] for line in losses.told] == [
        older.format(directories[1], 5, 6),
        older.format(directories[2], 7, 8),
    ]


async def test_a_damaged_note_of_begun_journals_is_left_out(world: World) -> None:
    await world.stop("one")
    await world.store.put(begun_journals_path("one"), b"not a number")
    await world.start("one")
    newest = max(int(path.stem, 16) for path in (world.folder / "one/journal/current").glob("*.txn"))
    assert await begun_by_last_start(world.store, "one", holds_data=True) == [newest]


async def test_without_limbo_the_same_recovery_loses_what_was_acknowledged(world: World) -> None:
    """What `--accept-loss` does where limbo was called for, so that the test above proves something."""
    ledger_id = await world.half_written(("one", "two"))
    await world.lose_journal("one")
    await world.start("one", accept=True)
    await world.stop("two")
    assert await world.read(ledger_id) == []


async def test_striped_ledgers_come_back_whole(world: World) -> None:
    options = LedgerOptions(ensemble_size=3, write_quorum=2, ack_quorum=2)
    ledger_ids = [await world.write(options, FIRST_SEND) for _ in range(3)]
    await world.lose_journal("one")
    running = await world.start("one", heal=True)
    healer = Healer(running, world.client, world.connections)
    await healer.run()
    assert running.parts.limbo.entries_fetched == 3 * len(FIRST_SEND) * 2 // 3
    assert not (world.folder / "one" / "ledgers" / "current" / LIMBO_FILE).exists()
    await world.stop("two")
    for ledger_id in ledger_ids:
        held = await running.bookie.entry_ids(ledger_id)
        assert len(held) == len(FIRST_SEND) * 2 // 3
    await world.start("two")
    await world.stop("three")
    for ledger_id in ledger_ids:
        assert await world.read(ledger_id) == FIRST_SEND


async def test_a_writer_that_was_fenced_stays_fenced(world: World) -> None:
    ledger_id = await world.half_written(("one", "two"))
    assert await world.read(ledger_id) == FIRST_SEND  # Fences all three, and closes.
    await world.lose_journal("one")
    running = await world.start("one", heal=True)
    codec = EntryCodec(ledger_id, "CRC32C")
    told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    late = codec.encode_many(len(FIRST_SEND), len(FIRST_SEND) - 1, 0, [b"late"])
    running.bookie.add_entries(
        ledger_id,
        codec.master_key,
        [len(FIRST_SEND)],
        late,
        0,
        lambda code, ledger_id, entry_ids: told.set_result(code),
    )
    assert await told == BookieCode.EFENCED


async def test_limbo_outlasts_a_restart_and_a_crash_while_it_begins(world: World) -> None:
    ledger_id = await world.half_written(("one", "two"))
    await world.lose_journal("one")
    await world.start("one", heal=True)
    await world.stop("one")
    await world.start("one")
    assert await world.code_of("one", ledger_id, 5) is BookieCode.EUNKNOWNLEDGERSTATE
    await world.stop("one")
    # A crash before all ledgers were in limbo leaves this.
    (world.folder / "one" / "ledgers" / "current" / LIMBO_FILE).write_bytes(b"entering\n")
    running = await world.start("one")
    assert await world.code_of("one", ledger_id, 5) is BookieCode.EUNKNOWNLEDGERSTATE
    await Healer(running, world.client, world.connections).run()
    assert await world.code_of("one", ledger_id, 5) is BookieCode.EOK


async def test_limbo_has_ended_once_that_is_durable(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a restart would find ledgers in limbo, and nothing that says that they are to be healed."""
    await world.half_written(("one", "two"))
    await world.lose_journal("one")
    running = await world.start("one", heal=True)
    healer = Healer(running, world.client, world.connections)

    async def no_room(_marks: object) -> bool:
        return False

    with monkeypatch.context() as patched:
        patched.setattr(running.parts.checkpointer, "checkpoint", no_room)
        assert not await healer.heal_once()
    assert Limbo(running.parts.directories).stage is LimboStage.HEALING
    assert await healer.heal_once()
    assert Limbo(running.parts.directories).stage is LimboStage.NONE


async def test_limbo_has_begun_once_it_is_durable(world: World) -> None:
    """A start that cannot store which ledgers are in limbo begins anew, and does not serve them as whole."""
    await world.half_written(("one", "two"))
    parts = world.running["one"].parts
    limbo = Limbo(parts.directories)
    limbo.begin(1)

    async def no_room() -> None:
        raise OSError(errno.ENOSPC, "the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        await limbo.enter(parts.states, no_room, world.store, "one")
    assert Limbo(parts.directories).stage is LimboStage.ENTERING
    limbo.end()


async def test_ledgers_that_a_lagging_store_does_not_list_yet_go_into_limbo_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger_id = await world.half_written(("one", "two"))
    parts = world.running["one"].parts
    lags = True
    children, put = world.store.children, world.store.put

    async def children_of_before(path: str, **more: Any) -> list[str]:
        return [] if lags and path.startswith("/ledgers/0") else await children(path, **more)

    async def put_after_all_before_it(*arguments: Any, **more: Any) -> Stat:
        nonlocal lags
        lags = False
        return await put(*arguments, **more)

    async def not_now() -> None:
        pass

    monkeypatch.setattr(world.store, "children", children_of_before)
    monkeypatch.setattr(world.store, "put", put_after_all_before_it)
    limbo = Limbo(parts.directories)
    limbo.begin(1)
    assert await limbo.enter(parts.states, not_now, world.store, "one") == 1
    for entry_id in (500, -1):
        assert await world.code_of("one", ledger_id, entry_id) is BookieCode.EUNKNOWNLEDGERSTATE
    limbo.end()


async def test_ledgers_that_only_an_older_segment_says_are_here_go_into_limbo_too(world: World) -> None:
    ledger_id = await world.half_written(("one", "two"))
    metadata, version = await world.client.metadata.read(ledger_id)
    await world.client.metadata.write(ledger_id, metadata.with_ensemble(5, ["two", "three", "four"]), version)
    parts = world.running["one"].parts

    async def not_now() -> None:
        pass

    limbo = Limbo(parts.directories)
    limbo.begin(1)
    assert await limbo.enter(parts.states, not_now, world.store, "one") == 1
    limbo.end()


async def test_a_ledger_with_one_replica_stays_in_limbo_until_its_loss_is_accepted(world: World) -> None:
    options = LedgerOptions(ensemble_size=1, write_quorum=1, ack_quorum=1)
    ledger_ids = [await world.write(options, FIRST_SEND) for _ in range(9)]
    alone = [ledger_id for ledger_id in ledger_ids if await world.code_of("one", ledger_id, 0) is BookieCode.EOK]
    await world.lose_journal("one")
    running = await world.start("one", heal=True)
    healer = Healer(running, world.client, world.connections)
    assert await healer.heal_once() is (not alone)
    assert sorted(running.parts.limbo.unhealed) == alone
    await world.stop("one")
    await world.start("one", accept=True)
    for ledger_id in alone:
        assert await world.code_of("one", ledger_id, 0) in (BookieCode.ENOENTRY, BookieCode.ENOLEDGER)


async def test_what_can_be_had_is_fetched_and_what_is_lost_for_certain_is_told(world: World) -> None:
    options = LedgerOptions(ensemble_size=3, write_quorum=2, ack_quorum=2)
    ledger_id = await world.write(options, FIRST_SEND)
    await world.lose_journal("two")
    await world.start("two", accept=True)  # It denies what it had from here on.
    await world.lose_journal("one")
    before_ms = SystemClock().now_ms()
    running = await world.start("one", heal=True)
    limbo = running.parts.limbo
    begun = limbo.state()
    assert before_ms <= begun.since_ms <= SystemClock().now_ms()
    assert (begun.in_limbo, begun.ledgers, begun.ledgers_total, begun.entries_fetched) == (True, 1, 1, 0)
    assert len(begun.damage) == 1
    assert re.search(r"missing in .*one/journal/current.* may be lost$", begun.damage[0])
    healer = Healer(running, world.client, world.connections)
    third = len(FIRST_SEND) // 3
    await world.stop("two")
    assert not await healer.heal_once()
    # While somebody who may have them is away, nothing is lost for certain.
    assert (limbo.state().entries_fetched, limbo.state().entries_lost, limbo.state().ledgers_unhealed) == (third, 0, 1)
    await world.start("two")
    assert not await healer.heal_once()
    state = limbo.state()
    assert (state.entries_fetched, state.entries_lost, state.ledgers_unhealed) == (third, third, 1)
    assert state.problems[0][0] == ledger_id
    assert f"{third} of {third} are lost for certain" in state.problems[0][1]
    await world.stop("one")
    running = await world.start("one")
    again = running.parts.limbo.state()
    assert (again.since_ms, again.ledgers, again.ledgers_total, again.damage) == (begun.since_ms, 1, 1, ())


async def test_a_read_that_healing_overtakes_denies_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has looked before the entry came back, and answers when the ledger is out of limbo."""
    options = LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=3)
    ledger_id = await world.write(options, FIRST_SEND)
    await world.lose_journal("one")
    running = await world.start("one", heal=True)
    storage, bookie = running.parts.storage, running.bookie
    looked, healed = asyncio.Semaphore(0), asyncio.Event()

    def late(read: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def answer(*arguments: Any) -> Any:
            found = await read(*arguments)
            looked.release()
            await healed.wait()
            return found

        return answer

    with monkeypatch.context() as slow:
        slow.setattr(storage, "read_many", late(storage.read_many))
        slow.setattr(storage, "read_run", late(storage.read_run))
        reads = [
            asyncio.create_task(bookie.read_entry(ledger_id, 7)),
            asyncio.create_task(bookie.read_entry(ledger_id, -1)),
            asyncio.create_task(bookie.read_run(ledger_id, 0, 10, 10_000)),
        ]
        for _ in reads:
            await looked.acquire()
    assert await Healer(running, world.client, world.connections).heal_once()
    healed.set()
    for answer in await asyncio.gather(*reads, return_exceptions=True):
        assert isinstance(answer, BookieError)
        assert answer.code is BookieCode.EUNKNOWNLEDGERSTATE
    assert await world.code_of("one", ledger_id, 7) is BookieCode.EOK


async def test_a_bookie_that_is_whole_is_in_no_limbo(world: World) -> None:
    ledger_id = await world.half_written(("one", "two"))
    await world.lose_journal("one")
    running = await world.start("one", heal=True)
    assert await Healer(running, world.client, world.connections).heal_once()
    state = running.parts.limbo.state()
    # The recovery that closed the ledger has brought them, which counts.
    assert state == LimboState(entries_fetched=60, damage=state.damage)
    assert await world.code_of("one", ledger_id, 0) is BookieCode.EOK
    await world.stop("one")
    assert (await world.start("one")).parts.limbo.state() == LimboState()


async def test_the_file_of_an_older_version_goes_on_without_a_time(world: World) -> None:
    await world.half_written(("one", "two"))
    await world.lose_journal("one")
    await world.start("one", heal=True)
    await world.stop("one")
    (world.folder / "one" / "ledgers" / "current" / LIMBO_FILE).write_bytes(b"healing\n")
    state = (await world.start("one")).parts.limbo.state()
    assert (state.in_limbo, state.ledgers, state.ledgers_total, state.since_ms) == (True, 1, 0, 0)


async def test_a_damaged_index_heals_as_well(world: World) -> None:
    options = LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=3)
    ledger_id = await world.write(options, FIRST_SEND)
    await world.stop("one")  # Everything is in the entry log and the index now.
    locations = world.folder / "one" / "ledgers" / "current" / "locations"
    for table in (*locations.glob("*.sst"), *locations.glob("*.log")):
        table.unlink()
    with pytest.raises(Unavailable, match=r"locations"):
        await world.start("one")
    running = await world.start("one", heal=True)
    assert await world.code_of("one", ledger_id, 0) is BookieCode.EUNKNOWNLEDGERSTATE
    await Healer(running, world.client, world.connections).run()
    assert await running.bookie.entry_ids(ledger_id) == list(range(len(FIRST_SEND)))


async def test_accepted_damage_is_kept_for_a_look_and_told_once(world: World) -> None:
    options = LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=3)
    kept = await world.write(options, FIRST_SEND)
    folder = world.folder / "one"
    shutil.copytree(folder, world.folder / "crashed")
    await world.stop("one")
    shutil.rmtree(folder)
    (world.folder / "crashed").rename(folder)
    (journal,) = (folder / "journal" / "current").glob("*.txn")
    content = journal.read_bytes()
    journal.write_bytes(bytes(512) + content[512:])
    with pytest.raises(JournalDamaged, match="its head is zeros"):
        await world.start("one")
    running = await world.start("one", accept=True)
    # Behind the head everything was whole.
    assert await running.bookie.entry_ids(kept) == list(range(len(FIRST_SEND)))
    assert journal.with_name(f"{journal.name}.damaged").read_bytes()[512:] == content[512:]
    await world.stop("one")
    running = await world.start("one")
    assert await running.bookie.entry_ids(kept) == list(range(len(FIRST_SEND)))


async def stored_on_disk(world: World) -> tuple[int, Path]:
    """A closed ledger of which the first bookie, stopped, has everything in its entry log and in a table of its index;
    and its ledger directory."""
    options = LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=3)
    ledger_id = await world.write(options, FIRST_SEND)
    await world.stop("one")
    # RocksDB writes a table when it is opened with something in its log.
    await world.start("one")
    await world.stop("one")
    return ledger_id, world.folder / "one" / "ledgers" / "current"


@pytest.mark.parametrize("cut_to", [None, 0, 1024, 1500, 2000])
async def test_an_entry_log_that_is_gone_is_told_and_heals(world: World, cut_to: int | None) -> None:
    ledger_id, current = await stored_on_disk(world)
    entry_log = current / "0.log"
    if cut_to is None:
        entry_log.unlink()
        with pytest.raises(EntryLogLost, match=rf"current/0\.log is missing: .* entry {ledger_id}:0, .*--accept-loss"):
            await world.start("one")
    else:
        os.truncate(entry_log, cut_to)
    running = await world.start("one", heal=True)
    assert len(running.parts.limbo.state().damage) == 1
    assert await world.code_of("one", ledger_id, len(FIRST_SEND) - 1) is BookieCode.EUNKNOWNLEDGERSTATE
    assert await Healer(running, world.client, world.connections).heal_once()
    assert await running.bookie.entry_ids(ledger_id) == list(range(len(FIRST_SEND)))
    for entry_id in range(len(FIRST_SEND)):
        assert await world.code_of("one", ledger_id, entry_id) is BookieCode.EOK
    await world.stop("one")
    assert (await world.start("one")).parts.limbo.state() == LimboState()


async def test_entries_of_a_lost_log_are_denied_once_the_loss_is_accepted(world: World) -> None:
    ledger_id, current = await stored_on_disk(world)
    (current / "0.log").unlink()
    await world.start("one", accept=True)
    assert await world.code_of("one", ledger_id, 0) is BookieCode.ENOENTRY
    await world.stop("one")
    await world.start("one")
    assert await world.code_of("one", ledger_id, 0) is BookieCode.ENOENTRY


async def test_what_was_given_up_is_listed(world: World, caplog: pytest.LogCaptureFixture) -> None:
    opened = await world.client.create(
        LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=2), RecordingListener()
    )
    await opened.abandon()
    ledger_id, current = await stored_on_disk(world)
    os.truncate(current / "0.log", 2000)
    await world.start("one", accept=True)
    last = len(FIRST_SEND) - 1
    assert re.search(rf"given up of ledger {ledger_id}: entries \d+ to {last}$", caplog.text, re.MULTILINE)
    assert f"given up of ledger {opened.ledger_id}: it was open, maybe entries from 0 on" in caplog.text
    assert "entries of 2 ledgers were given up; readers stop at them, until they are skipped" in caplog.text


async def test_a_log_that_another_program_has_deleted_stops_no_start(world: World) -> None:
    """As a bookie of BookKeeper's does, which knows nothing of the note."""
    ledger_id, current = await stored_on_disk(world)
    write_note(SystemDisk(), current, [*list_logs(SystemDisk(), current), 0x77])
    await world.start("one")
    assert await world.code_of("one", ledger_id, 0) is BookieCode.EOK
    assert read_note(SystemDisk(), current) == {0}


@pytest.mark.parametrize("database", ["ledgers", "locations"])
async def test_a_wrong_byte_in_the_index_is_found_by_a_start_that_heals(world: World, database: str) -> None:
    ledger_id, current = await stored_on_disk(world)
    for table in (current / database).glob("*.sst"):
        content = bytearray(table.read_bytes())
        content[40] ^= 1
        table.write_bytes(content)
    running = await world.start("one", heal=True)
    damage = running.parts.limbo.state().damage
    assert any(re.search(rf"{database}/.*\.sst", line) for line in damage), damage
    assert await world.code_of("one", ledger_id, 0) is not BookieCode.ENOENTRY
    assert await Healer(running, world.client, world.connections).heal_once()
    assert await running.bookie.entry_ids(ledger_id) == list(range(len(FIRST_SEND)))
    for entry_id in range(len(FIRST_SEND)):
        assert await world.code_of("one", ledger_id, entry_id) is BookieCode.EOK
    await world.stop("one")
    assert (await world.start("one", heal=True)).parts.limbo.state() == LimboState()


async def test_a_damaged_note_is_left_out(world: World, caplog: pytest.LogCaptureFixture) -> None:
    ledger_id, current = await stored_on_disk(world)
    note = current / NOTE_FILE
    assert read_note(SystemDisk(), current) == {0}
    note.write_bytes(b"77" + note.read_bytes())
    await world.start("one")
    assert "entryLogs is damaged and left out" in caplog.text
    assert await world.code_of("one", ledger_id, 0) is BookieCode.EOK
    assert read_note(SystemDisk(), current) == {0}
