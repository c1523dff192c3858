from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from magnetar.core.errors import Misuse
from magnetar.metadata.rocksdb import RocksdbMetadataStore, RocksdbTable, StoreInUse
from magnetar.metadata.store import MetadataStore, SessionEvent, StoreUnavailable
from magnetar.metadata.tree import NO_OWNER, NodeRecord, Outcome

from lib.tests.metadata_contract import MetadataStoreContract, value_of

WRITER = """
import asyncio, sys
from magnetar.metadata.rocksdb import RocksdbMetadataStore

async def main():
    store = RocksdbMetadataStore(sys.argv[1])
    await store.put("/kept", b"1")
    await store.put("/kept", b"2")
    await store.put("/dir/ephemeral", b"", ephemeral=True)
    await store.put("/dir/n-", b"", ephemeral=True, sequential=True)
    print("ready", flush=True)
    number = 0
    while True:
        await asyncio.gather(*(store.put(f"/stream/{number + i:08d}", b"x") for i in range(7)))
        number += 7
        print(number, flush=True)

asyncio.run(main())
"""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[RocksdbMetadataStore]:
    opened = RocksdbMetadataStore(tmp_path / "metadata")
    yield opened
    await opened.close()


@pytest.fixture
async def other_session(store: RocksdbMetadataStore) -> AsyncIterator[MetadataStore]:
    opened = store.another_session()
    yield opened
    await opened.close()


class TestRocksdbContract(MetadataStoreContract):
    pass


async def test_all_but_ephemeral_nodes_outlive_the_process_object(tmp_path: Path) -> None:
    store = RocksdbMetadataStore(tmp_path)
    stat = await store.put("/a/b", b"value")
    stat = await store.put("/a/b", b"changed")
    first = await store.put("/a/n-", b"", sequential=True)
    await store.delete(first.path)
    await store.put("/a/e", b"", ephemeral=True)
    await store.close()

    store = RocksdbMetadataStore(tmp_path)
    node = await store.get("/a/b")
    assert node is not None
    assert (node.value, node.stat) == (b"changed", stat)
    assert await store.children("/a") == ["b"]
    assert (await store.put("/a/n-", b"", sequential=True)).path > first.path
    await store.close()


async def test_a_removed_parent_forgets_its_sequence(store: RocksdbMetadataStore) -> None:
    first = await store.put("/a/n-", b"", sequential=True)
    await store.delete_recursively("/a")
    assert (await store.put("/a/n-", b"", sequential=True)).path == first.path


async def test_numbers_that_are_left_out_are_never_given(store: RocksdbMetadataStore) -> None:
    assert store.next_number("/a") == 0
    await store.put("/a/n-", b"", sequential=True)
    store.leave_out_numbers("/a", 7)
    store.leave_out_numbers("/a", 3)
    assert store.next_number("/a") == 7
    assert (await store.put("/a/n-", b"", sequential=True)).path == "/a/n-0000000007"
    assert store.next_number("/a") == 8


@pytest.mark.slow
async def test_a_killed_process_loses_nothing_that_it_was_told_is_written(tmp_path: Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    with writer.stdout as told:
        assert told.readline() == b"ready\n"
        last_told = max(int(told.readline()) for _ in range(20))
        with pytest.raises(StoreInUse, match=rf"{tmp_path}.*process {writer.pid}; stop that one"):
            RocksdbMetadataStore(tmp_path)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        last_told = max([last_told, *map(int, told.read().split())])

    store = RocksdbMetadataStore(tmp_path)
    node = await store.get("/kept")
    assert node is not None
    assert (node.value, node.stat.version) == (b"2", 1)
    assert await store.children("/dir") == []
    assert (await store.put("/dir/n-", b"", sequential=True)).path == "/dir/n-0000000001"
    names = await store.children("/stream")
    assert names[:last_told] == [f"{number:08d}" for number in range(last_told)]
    await store.close()


async def test_a_directory_has_one_tree_at_a_time(store: RocksdbMetadataStore, tmp_path: Path) -> None:
    assert issubclass(StoreInUse, Misuse)
    with pytest.raises(StoreInUse, match=f"process {os.getpid()}"):
        RocksdbMetadataStore(tmp_path / "metadata")
    await store.close()
    again = RocksdbMetadataStore(tmp_path / "metadata")
    await again.close()


async def test_the_tree_stays_open_until_its_last_session_ends(store: RocksdbMetadataStore) -> None:
    other = store.another_session()
    await other.put("/e", b"", ephemeral=True)
    await store.close()
    await other.put("/a", b"1")
    assert await value_of(other, "/a") == b"1"
    await other.close()


async def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreUnavailable, match="file/below"):
        RocksdbMetadataStore(tmp_path / "file" / "below")


async def test_writes_of_one_moment_share_a_sync(store: RocksdbMetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    table = store._rocksdb_tree._rocksdb_table
    sync, syncs = table.sync, 0

    def counted() -> None:
        nonlocal syncs
        syncs += 1
        sync()

    monkeypatch.setattr(table, "sync", counted)
    await asyncio.gather(*(store.put(f"/many/{i}", b"") for i in range(1000)))
    assert syncs == 1


async def test_a_failed_sync_fails_the_write_and_all_that_come_after(
    store: RocksdbMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError("no space left")

    monkeypatch.setattr(store._rocksdb_tree._rocksdb_table, "sync", fail)
    writes = [asyncio.ensure_future(store.put("/a", b"")), asyncio.ensure_future(store.exists("/a"))]
    for result in await asyncio.gather(*writes, return_exceptions=True):
        assert isinstance(result, StoreUnavailable)
    with pytest.raises(StoreUnavailable, match="no space left"):
        await store.put("/b", b"")
    with pytest.raises(StoreUnavailable):
        await store.get("/b")


async def test_a_reader_never_sees_what_is_not_synced(store: RocksdbMetadataStore) -> None:
    order: list[str] = []

    async def write() -> None:
        await store.put("/a", b"1")
        order.append("written")

    async def read() -> None:
        assert await value_of(store, "/a") == b"1"
        order.append("read")

    await asyncio.gather(write(), read())
    assert order == ["written", "read"]


async def test_nor_while_it_is_being_synced(store: RocksdbMetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    table = store._rocksdb_tree._rocksdb_table
    sync, begun, go_on = table.sync, threading.Event(), threading.Event()

    def slow_sync() -> None:
        begun.set()
        go_on.wait(30)
        sync()

    monkeypatch.setattr(table, "sync", slow_sync)
    writing = asyncio.ensure_future(store.put("/a", b"1"))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    reading = asyncio.ensure_future(store.get("/a"))
    done, _ = await asyncio.wait([reading], timeout=0.1)
    go_on.set()
    assert not done
    await asyncio.gather(writing, reading)


@pytest.mark.slow
async def test_the_names_of_new_directories_are_durable(tmp_path: Path, synced_names: set[Path]) -> None:
    """RocksDB makes its directory without a sync of its name: a power cut would take all metadata."""
    directory = tmp_path / "data" / "metadata"
    await RocksdbMetadataStore(directory).close()
    assert {directory.parent, directory, directory / "rocksdb"} <= synced_names


@pytest.mark.parametrize("torn", ["cut short", "zeros at the end", "a sector lost"])
def test_what_a_power_cut_does_to_changes_that_nobody_synced_stops_no_start(tmp_path: Path, torn: str) -> None:
    """A disk may have kept any sectors of what was not synced; what was is there."""
    running = RocksdbTable(tmp_path / "running")
    running.apply(Outcome(saves=[("/synced", NodeRecord(b"s" * 2_000, 0, 0, 0, NO_OWNER))]))
    running.sync()
    log = max((tmp_path / "running").glob("*.log"))
    synced_bytes = log.stat().st_size
    running.apply(Outcome(saves=[("/open", NodeRecord(os.urandom(4_000), 0, 0, 0, NO_OWNER))]))
    shutil.copytree(tmp_path / "running", tmp_path / "cut")
    running.close()
    content = bytearray((tmp_path / "cut" / log.name).read_bytes())
    sector = -(-synced_bytes // 512) * 512 + 512
    if torn == "cut short":
        del content[sector:]
    else:
        end = len(content) if torn == "zeros at the end" else sector + 512
        content[sector:end] = bytes(end - sector)
    (tmp_path / "cut" / log.name).write_bytes(content)
    again = RocksdbTable(tmp_path / "cut")
    found, lost = again.load("/synced"), again.load("/open")
    again.close()
    assert found is not None
    assert found.value == b"s" * 2_000
    assert lost is None


async def test_opening_an_empty_directory_is_quick(tmp_path: Path) -> None:
    # Processor time, and the best of several: the machine may do other things as well.
    took = [1.0]
    while min(took) >= 0.050 and len(took) < 20:
        started = time.process_time()
        store = RocksdbMetadataStore(tmp_path / str(len(took)))
        took.append(time.process_time() - started)
        await store.close()
    assert min(took) < 0.050


async def test_after_a_refused_sync_the_metadata_is_read_again(
    store: RocksdbMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.metadata.rocksdb.RECOVERY_SECONDS", 0.01)
    await store.put("/kept", b"before")
    await store.put("/ephemeral", b"", ephemeral=True)
    events: list[SessionEvent] = []
    begun_anew = asyncio.Event()

    def heard(event: SessionEvent) -> None:
        events.append(event)
        if event is SessionEvent.SESSION_RESTARTED:
            begun_anew.set()

    store.watch_session(heard)
    table = store._rocksdb_tree._rocksdb_table
    sync = table.sync
    failures = 3

    def failing() -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError("No space left on device")
        sync()

    monkeypatch.setattr(table, "sync", failing)
    results = await asyncio.gather(store.put("/kept", b"after"), store.put("/new", b""), return_exceptions=True)
    assert [type(result) for result in results] == [StoreUnavailable] * 2
    with pytest.raises(StoreUnavailable):
        await store.get("/kept")
    await asyncio.wait_for(begun_anew.wait(), 30)
    assert events == [SessionEvent.SESSION_LOST, SessionEvent.SESSION_RESTARTED]
    node = await store.get("/kept")
    assert node is not None
    assert node.value in (b"before", b"after"), "nobody was told which"
    assert not await store.exists("/ephemeral")
    await store.put("/ephemeral", b"", ephemeral=True)
    await store.put("/kept", b"again")


async def test_a_tree_closes_while_its_disk_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RocksdbMetadataStore(tmp_path / "metadata")
    table = store._rocksdb_tree._rocksdb_table

    def failing() -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(table, "sync", failing)
    with pytest.raises(StoreUnavailable):
        await store.put("/a", b"")
    await store.close()
    again = RocksdbMetadataStore(tmp_path / "metadata")
    await again.close()


async def test_a_sync_that_fails_while_the_tree_closes_begins_no_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RocksdbMetadataStore(tmp_path / "metadata")
    closing = threading.Event()

    def failing() -> None:
        closing.wait(10)
        raise OSError("No space left on device")

    monkeypatch.setattr(store._rocksdb_tree._rocksdb_table, "sync", failing)
    write = asyncio.ensure_future(store.put("/a", b""))
    await asyncio.sleep(0)
    closed = asyncio.ensure_future(store.close())
    for _ in range(5):
        await asyncio.sleep(0)
    closing.set()
    with pytest.raises(StoreUnavailable):
        await write
    await closed
    assert [task for task in asyncio.all_tasks() if task.get_name() == "metadata recovery"] == []


async def test_all_sessions_begin_anew_whatever_the_disk_refuses_meanwhile(
    store: RocksdbMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.metadata.rocksdb.RECOVERY_SECONDS", 0.01)
    tree = store._rocksdb_tree
    sessions = [store, *(store.another_session() for _ in range(3))]
    told: list[int] = []
    for index, session in enumerate(sessions):
        session.watch_session(
            lambda event, index=index: told.append(index) if event is SessionEvent.SESSION_RESTARTED else None  # type: ignore[misc]
        )
    apply, refusals = tree._rocksdb_table.apply, 2

    def refusing(outcome: Outcome) -> None:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise StoreUnavailable("RocksDB refused a write of metadata")
        apply(outcome)

    monkeypatch.setattr(tree._rocksdb_table, "apply", refusing)
    tree.expire_sessions()
    await asyncio.sleep(0)
    assert sorted(told) == [0, 1, 2, 3]
    for session in sessions[1:]:
        await session.put(f"/{id(session)}", b"", ephemeral=True)
        await session.close()
