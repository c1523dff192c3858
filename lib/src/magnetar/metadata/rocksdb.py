"""The metadata store of a cluster that lives in one process and survives it: a tree in RocksDB.

Each operation is one atomic write to RocksDB on the loop (some microseconds, into memory and the log), then one sync
of the log for all operations of the same moment, in a thread. An operation is answered, told to listeners and shown to
readers only when it is synced. After a sync that the disk refused, nobody knows what it holds: the tree is read again,
and its sessions begin anew, as they do where a remote store was away for too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from magnetar.core.clock import Clock, SystemClock
from magnetar.core.disk import make_directory
from magnetar.core.errors import Misuse
from magnetar.metadata.local import LocalStore, LocalTree
from magnetar.metadata.paths import ROOT
from magnetar.metadata.rocksdb_files import (
    DATABASE,
    DatabaseDamaged,
    SyncedNumber,
    check_iterator,
    holds_database,
    open_database,
)
from magnetar.metadata.store import Notification, StoreUnavailable
from magnetar.metadata.tree import NO_OWNER, NodeRecord, Outcome
from rocksdict import BlockBasedOptions, Cache, Options, WriteBatch

logger: Final = logging.getLogger(__name__)

_SYSTEM_CLOCK: Final = SystemClock()

RECOVERY_SECONDS: Final = 1.0
"""Between attempts to read the metadata again after the disk refused a sync; they go on until one succeeds."""

_NODE: Final = b"n"
"""Then the parent's path, a zero byte (no path has one) and the name: the children of a node lie side by side."""
_EPHEMERAL: Final = b"e"
"""Then the path of an ephemeral node: what has to vanish when its session does."""
_SEQUENCE: Final = b"s"
"""Then the path of a parent: the number of its next sequential child."""

_HEADER: Final = struct.Struct(">qqqq")
"""The head of a stored node: version, created_ms, modified_ms, owner. The value follows."""
_NUMBER: Final = struct.Struct(">q")

_WRITE_BUFFER_BYTES: Final = 4 << 20
"""Metadata of a whole small cluster fits; RocksDB keeps two of these."""
_BLOCK_CACHE_BYTES: Final = 4 << 20
_OPEN_FILES_MAX: Final = 64
_LOG_BYTES_MAX: Final = 16 << 20
"""Bounds how long opening takes after a crash: this much log is read again."""


_DAMAGE_ADVICE: Final = (
    "Put a copy of the whole directory back that is not damaged. Nothing can go on without what is lost here: what "
    "the metadata does not name would be deleted from the bookies. Where no message is needed any more, begin anew "
    "(`magnetar standalone --fresh`); `--accept-loss` does not apply to metadata"
)
_ROOM_BYTES_MIN: Final = 2 * _WRITE_BUFFER_BYTES
"""What opening may want to write: the log as tables."""


class StoreInUse(Misuse):
    """Another process (or another tree of this one) has the directory open."""


class MetadataDamaged(StoreUnavailable):
    """The metadata on the disk is not what was written; the text says where, and what to do."""


class RocksdbTable:
    """Records in RocksDB. Opening and every call block, for microseconds unless RocksDB has to read from the disk.

    What cannot be read is raised as `StoreUnavailable`, never taken for missing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._database = open_database(directory, _options())
        self._synced = SyncedNumber(directory)

    def reopen(self) -> None:
        """Begin again with what the disk holds, without ephemeral nodes. `StoreUnavailable`: not yet."""
        with contextlib.suppress(StoreUnavailable):
            self._close_database()
        # It goes with its last reference, whether or not it was closed well.
        vars(self).pop("_database", None)
        try:
            self._database = open_database(self._directory, _options())
            self.apply(Outcome(removals=self.ephemeral()))
            self.sync()
        except Exception as error:  # rocksdict raises nothing more exact.
            raise StoreUnavailable(f"the metadata cannot be read again yet: {error}") from error

    def load(self, path: str) -> NodeRecord | None:
        """The record at a path."""
        stored = self._get(_node_key(path))
        if stored is None:
            return None
        version, created_ms, modified_ms, owner = _HEADER.unpack_from(stored)
        return NodeRecord(stored[_HEADER.size :], version, created_ms, modified_ms, owner)

    def child_names(self, path: str) -> list[str]:
        """Names of the direct children, sorted by code point, as UTF-8 sorts."""
        return list(self._names(_children_prefix(path)))

    def has_children(self, path: str) -> bool:
        """Whether a node stands directly below."""
        return next(self._names(_children_prefix(path)), None) is not None

    def sequence(self, path: str) -> int:
        """The number that the next sequential child gets."""
        stored = self._get(_SEQUENCE + path.encode())
        return 0 if stored is None else int(_NUMBER.unpack(stored)[0])

    def owned_by(self, owner: int) -> list[str]:
        """Paths of a session's ephemeral nodes."""
        return [path for path, record in self.ephemeral() if record.owner == owner]

    def ephemeral(self) -> list[tuple[str, NodeRecord]]:
        """Every ephemeral node."""
        found = [(path, self.load(path)) for path in self._names(_EPHEMERAL)]
        return [(path, record) for path, record in found if record is not None]

    def apply(self, outcome: Outcome) -> None:
        """Make an outcome so, as one atomic write that `sync` makes durable. `StoreUnavailable` if RocksDB refuses."""
        batch = WriteBatch(raw_mode=True)
        for path, record in outcome.saves:
            header = _HEADER.pack(record.version, record.created_ms, record.modified_ms, record.owner)
            batch.put(_node_key(path), header + record.value)
            if record.owner != NO_OWNER:
                batch.put(_EPHEMERAL + path.encode(), b"")
        for path, record in outcome.removals:
            batch.delete(_node_key(path))
            batch.delete(_SEQUENCE + path.encode())
            if record.owner != NO_OWNER:
                batch.delete(_EPHEMERAL + path.encode())
        if outcome.next_sequence is not None:
            parent, number = outcome.next_sequence
            batch.put(_SEQUENCE + parent.encode(), _NUMBER.pack(number))
        try:
            self._database.write(batch)
        except Exception as error:  # rocksdict raises nothing more exact.
            raise StoreUnavailable(f"RocksDB refused a write of metadata: {error}") from error

    def sync(self) -> None:
        """Make all that was applied durable; blocks for as long as the disk takes, without the interpreter lock."""
        number = self._database.latest_sequence_number()
        self._database.flush_wal(True)
        self._synced.note(number)

    def close(self) -> None:
        """Let go of the files. What could not be written out is in the log, which the next opening reads."""
        try:
            self._close_database()
        finally:
            self._synced.close()

    def _close_database(self) -> None:
        if "_database" not in vars(self):
            return  # It could not be opened again.
        try:
            self._database.close()
        except Exception as error:  # rocksdict raises nothing more exact.
            raise StoreUnavailable(f"the metadata could not be closed well: {error}") from error

    def _get(self, key: bytes) -> bytes | None:
        try:
            stored: bytes | None = self._database.get(key)
        except Exception as error:  # rocksdict raises nothing more exact.
            raise self._unreadable(error) from error
        return stored

    def _names(self, prefix: bytes) -> Iterator[str]:
        iterator = self._database.iter()
        iterator.seek(prefix)
        while iterator.valid() and (key := iterator.key()).startswith(prefix):
            yield key[len(prefix) :].decode()
            iterator.next()
        try:
            check_iterator(iterator)
        except Exception as error:  # rocksdict raises nothing more exact.
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> StoreUnavailable:
        logger.error("the metadata in %s cannot be read: %s", self._directory, error)
        return MetadataDamaged(f"the metadata in {self._directory} cannot be read: {error}. {_DAMAGE_ADVICE}")


class _SyncGroup:
    """Operations that one sync makes durable."""

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.done = done
        self.notifications: list[Notification] = []
        self.paths: set[str] = set()


class RocksdbTree(LocalTree):
    """A tree in a directory, which must be no other process's. Opening blocks for some ten milliseconds.

    Raises `StoreInUse` if it is another's, `StoreUnavailable` if it cannot be opened. Ephemeral nodes of the process
    that had it before are gone."""

    def __init__(self, directory: Path, clock: Clock = _SYSTEM_CLOCK) -> None:
        self._lock = _lock_directory(directory)
        try:
            self._rocksdb_table = _open_table(directory)
        except BaseException:
            os.close(self._lock)
            raise
        super().__init__(self._rocksdb_table, clock)
        self._syncer = ThreadPoolExecutor(1, thread_name_prefix="metadata-sync")
        self._gathering: _SyncGroup | None = None
        self._syncing: _SyncGroup | None = None
        self._directory = directory
        self._failure: str | None = None
        """Why nothing can be answered now."""
        self._refused = False
        """Whether RocksDB refused the last write; it may do so for ever, whatever room there is by then."""
        self._recovering: asyncio.Task[None] | None = None
        self._closing = False

    def commit(self, outcome: Outcome) -> asyncio.Future[None] | None:
        """Apply, and sync together with whatever else comes until the disk is free."""
        self.check()
        try:
            self._rocksdb_table.apply(outcome)
        except StoreUnavailable:
            self._refused = True
            self._recover_later()
            raise
        self._refused = False
        if not outcome.notifications:
            return None
        group = self._gathering
        if group is None:
            loop = asyncio.get_running_loop()
            group = self._gathering = _SyncGroup(loop.create_future())
            if self._syncing is None:
                loop.call_soon(self._start_sync)
        group.notifications.extend(outcome.notifications)
        group.paths.update(notification.path for notification in outcome.notifications)
        return group.done

    def check(self) -> None:
        """`StoreUnavailable` while the tree can be neither read nor written."""
        if self._failure is not None:
            raise StoreUnavailable(self._failure)

    def unsettled(self, path: str) -> asyncio.Future[None] | None:
        """A change of this node or its children that is not synced yet must not be shown: a crash could undo it."""
        for group in (self._gathering, self._syncing):
            if group is not None and path in group.paths:
                return group.done
        return None

    async def close(self) -> None:
        """Finish what is under way and give the directory free."""
        self._closing = True
        if self._recovering is not None:
            self._recovering.cancel()
            await asyncio.wait([self._recovering])
        for group in (self._syncing, self._gathering):
            if group is not None:
                with contextlib.suppress(StoreUnavailable):  # Those who wait for the group are told.
                    await asyncio.shield(group.done)
        try:
            await asyncio.get_running_loop().run_in_executor(self._syncer, self._rocksdb_table.close)
        finally:
            self._syncer.shutdown()
            os.close(self._lock)

    def _start_sync(self) -> None:
        group, self._gathering = self._gathering, None
        self._syncing = group
        synced = asyncio.get_running_loop().run_in_executor(self._syncer, self._rocksdb_table.sync)
        synced.add_done_callback(self._finish_sync)

    def _finish_sync(self, synced: asyncio.Future[None]) -> None:
        group, self._syncing = self._syncing, None
        assert group is not None
        error = synced.exception()
        if error is None:
            self.tell(group.notifications)
            group.done.set_result(None)
        else:
            # What the disk holds is unknown from here on, so this tree answers nothing until it has been read again.
            self._failure = f"metadata could not be synced to the disk: {error}"
            group.done.set_exception(StoreUnavailable(self._failure))
            group.done.exception()  # Nobody may be waiting; the failure is raised to all who come.
            self._recover_later()
        if self._gathering is not None:
            self._start_sync()

    def _recover_later(self) -> None:
        if self._recovering is None and not self._closing:
            self._recovering = asyncio.get_running_loop().create_task(self._recover(), name="metadata recovery")

    def _has_room(self) -> bool:
        try:
            disk = os.statvfs(self._directory)
        except OSError as error:
            logger.warning("the metadata's disk cannot be looked at: %s", error)
            return False
        return disk.f_bavail * disk.f_frsize >= _ROOM_BYTES_MIN

    async def _recover(self) -> None:
        """Read the metadata again once the disk has room; to those who use it, their sessions were lost.

        Not if it was one write that was refused, and RocksDB takes others by then."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(RECOVERY_SECONDS)
            if self._failure is None and not self._refused:
                self._recovering = None
                return
            if self._syncing is not None or self._gathering is not None or not self._has_room():
                continue
            self._failure = self._failure or "the metadata is being read again after the disk refused a write"
            try:
                await loop.run_in_executor(self._syncer, self._rocksdb_table.reopen)
                break
            except StoreUnavailable as error:
                logger.warning("%s", error)
        self._failure, self._refused, self._recovering = None, False, None
        logger.warning("the metadata was read again from the disk; sessions begin anew")
        self.expire_sessions()


class RocksdbMetadataStore(LocalStore):
    """One session on a tree in a directory; see `RocksdbTree` for what opening does and raises."""

    def __init__(self, directory: str | Path | RocksdbTree, clock: Clock = _SYSTEM_CLOCK) -> None:
        """Made where there is none yet."""
        tree = directory if isinstance(directory, RocksdbTree) else RocksdbTree(Path(directory), clock)
        self._rocksdb_tree = tree
        super().__init__(tree)

    @classmethod
    def open_existing(cls, directory: Path) -> RocksdbMetadataStore:
        """The one that is there, and `StoreUnavailable` where there is none; nothing is made."""
        if not holds_database(directory / DATABASE):
            raise StoreUnavailable(
                f"there is no metadata at {directory}: {directory / DATABASE} holds no database. That of a standalone "
                "cluster is at rocksdb:DATA/metadata, DATA being its data folder"
            )
        return cls(directory)

    def another_session(self) -> RocksdbMetadataStore:
        """A new session on the same open tree, with ephemeral nodes of its own."""
        return RocksdbMetadataStore(self._rocksdb_tree)


def _node_key(path: str) -> bytes:
    if path == ROOT:
        return _NODE + b"\x00"
    parent, _, name = path.rpartition("/")
    return b"%b%b\x00%b" % (_NODE, (parent or ROOT).encode(), name.encode())


def _children_prefix(path: str) -> bytes:
    return b"%b%b\x00" % (_NODE, path.encode())


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(2)
    options.set_max_background_jobs(2)
    options.set_max_open_files(_OPEN_FILES_MAX)
    options.set_max_total_wal_size(_LOG_BYTES_MAX)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(_BLOCK_CACHE_BYTES))
    blocks.set_bloom_filter(10, False)
    options.set_block_based_table_factory(blocks)
    return options


def _lock_directory(directory: Path) -> int:
    """Returns the open lock file, which holds our process id; the lock goes with the process, however it ends."""
    try:
        if not (directory / DATABASE / "CURRENT").exists():
            make_directory(directory / DATABASE)
        lock = os.open(directory / "owner.pid", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StoreUnavailable(f"cannot use the metadata directory {directory}: {error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise _in_use(directory, f"process {owner}") from error
    os.truncate(lock, 0)
    with open(lock, "w", closefd=False) as file:
        file.write(f"{os.getpid()}\n")
    return lock


def _open_table(directory: Path) -> RocksdbTable:
    try:
        table = RocksdbTable(directory / DATABASE)
    except DatabaseDamaged as error:
        raise MetadataDamaged(f"{error}. {_DAMAGE_ADVICE}") from error
    except Exception as error:  # rocksdict raises nothing more exact.
        if "/LOCK" in str(error):
            raise _in_use(directory, "another program") from error
        raise StoreUnavailable(f"cannot open the metadata in {directory}: {error}") from error
    try:
        table.apply(Outcome(removals=table.ephemeral()))
    except BaseException:
        with contextlib.suppress(StoreUnavailable):
            table.close()
        raise
    return table


def _in_use(directory: Path, owner: str) -> StoreInUse:
    return StoreInUse(
        f"the metadata directory {directory} is in use by {owner}; stop that one, give this one a directory of its "
        "own, or keep the metadata in ZooKeeper (zk:host:2181) if several processes are to share it"
    )
