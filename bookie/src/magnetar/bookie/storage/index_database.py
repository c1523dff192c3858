"""One RocksDB database that outlives a full disk.

Once a write to its log has failed, RocksDB refuses every later one of the same opening. So it is opened again before
the next write, when there is room. What was made durable before the failure is in its log and comes back with that. The
rest may come back too, but a disk that failed to sync may have dropped it: whoever wrote it is told when it wants it to
be durable, and has to write it once more.
"""

from __future__ import annotations

import errno
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from magnetar.core.errors import MagnetarError
from magnetar.metadata.rocksdb_files import SyncedNumber, check_iterator, open_database, repair_database
from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options, Rdict, RdictIter, WriteBatch

logger: Final = logging.getLogger(__name__)

WRITE_BUFFER_BYTES: Final = 16 * 1024 * 1024
"""Per database, taken as it fills. Of 4 MiB RocksDB makes so many small tables that merging them costs half as much
again: 1.3 µs of CPU for each entry's place, against 0.8 (and 0.76 with 32 MiB)."""
TABLES_BEFORE_MERGE: Final = 8
"""New tables that are merged at once; RocksDB's 4 costs a tenth more. Filters keep reads from looking into all."""
OPEN_FILES_MAX: Final = 128
"""Per database; enough for some hundred million entries at RocksDB's file sizes."""
TABLE_FORMAT_VERSION: Final = 5
"""Readable by RocksDB 6.6 and later, BookKeeper 4.17's among them."""
REOPEN_FREE_BYTES_MIN: Final = 2 * WRITE_BUFFER_BYTES
"""Opening writes what the log holds into a table: on a disk that is still full it would fail and leave nothing to read
from."""

_Result = TypeVar("_Result")


class IndexFailed(OSError):
    """RocksDB could not read or write; its own words follow. (Its Python binding has no error class of its own.)"""


class IndexUnreadable(IndexFailed):
    """What was read is not what was written, as checksums say."""


_IN_USE: Final = ("/LOCK: Resource temporarily unavailable", "lock hold by current process")
"""What RocksDB says when another process holds a database, and when this one does. The lock's file may also be one that
this user must not write."""


class IndexInUse(IndexFailed):
    """Another process holds it."""

    def __init__(self, said: str) -> None:
        super().__init__(errno.EBUSY, f"the index is in use by another process, maybe by this bookie itself: {said}")


@contextmanager
def telling() -> Iterator[None]:
    """Raises what goes wrong inside as `IndexFailed`, but for what has an error of its own."""
    try:
        yield
    except (IndexFailed, MagnetarError):
        raise
    except Exception as error:
        if any(said in str(error) for said in _IN_USE):
            raise IndexInUse(str(error)) from error
        failed = IndexUnreadable if "Corruption" in str(error) else IndexFailed
        raise failed(f"index: {error}") from error


class Database:
    """The methods of `Rdict` that the index uses. Any thread."""

    def __init__(self, path: Path, cache: Cache) -> None:
        """Opens or makes it. Another process that holds it is an error; `DatabaseDamaged`."""
        self._path = path
        self._cache = cache
        self._lock = threading.Lock()
        self._failed = False
        self._unsynced: set[int] = set()
        """Threads that have written what nobody has made durable yet."""
        self._doubtful: set[int] = set()
        """Threads whose writes may have been lost when it was opened again, and that do not know it yet."""
        self._rdict = self._open()
        self._synced = SyncedNumber(path)

    def write(self, batch: WriteBatch, *, durable: bool = False) -> None:
        """All of the batch or nothing of it."""
        with self._writing() as rdict:
            rdict.write(batch)
            if durable:
                # Not by an option of the write: there the binding keeps the interpreter lock while the disk syncs, and
                # nothing at all runs in this process until it has.
                rdict.flush_wal(True)
                self._synced.note(rdict.latest_sequence_number())
            else:
                self._unsynced.add(threading.get_ident())

    def flush_wal(self, sync: bool) -> None:
        """Make what was written durable. After an error all that this thread has written since the last time may be
        lost."""
        with self._writing() as rdict:
            me = threading.get_ident()
            if me in self._doubtful:
                self._doubtful.remove(me)
                raise IndexFailed("it was opened again since, and what was written before may be lost")
            rdict.flush_wal(sync)
            self._synced.note(rdict.latest_sequence_number())
            self._unsynced.clear()

    def get(self, key: Any) -> Any:
        """A key's value, or a list of keys' values; None where there is none."""
        return self._read(lambda rdict: rdict.get(key))

    def keys(self) -> Iterator[bytes]:
        """All keys, ascending."""
        cursor = self.iter()
        cursor.seek_to_first()
        while valid(cursor):
            yield cursor.key()
            cursor.next()

    def iter(self) -> RdictIter:
        """A cursor; whoever moves it asks `valid` whether it stands anywhere."""
        return self._read(lambda rdict: rdict.iter())

    def property_int_value(self, name: str) -> int | None:
        """A number that RocksDB reports of itself, by the property's name; None for a name that it does not know."""
        return self._read(lambda rdict: rdict.property_int_value(name))

    def compact_range(self, begin: Any, end: Any) -> None:
        """Rewrite the keys from `begin` to `end`, so that deleted ones give their space back (RocksDB's
        CompactRange)."""
        self._read(lambda rdict: rdict.compact_range(begin, end))

    def close(self) -> None:
        """Close it. What could not be written out is in its log, which the next opening reads."""
        try:
            self._rdict.close()
        finally:
            self._synced.close()

    @contextmanager
    def _writing(self) -> Iterator[Rdict]:
        with self._lock:
            if self._failed and shutil.disk_usage(self._path).free >= REOPEN_FREE_BYTES_MIN:
                self._reopen()
            try:
                yield self._rdict
            except IndexFailed:
                raise
            except BaseException:
                self._failed = True
                # It knows.
                for threads in (self._unsynced, self._doubtful):
                    threads.discard(threading.get_ident())
                raise

    def _reopen(self) -> None:
        logger.warning("the index in %s is opened again after a write that failed", self._path)
        try:
            self._rdict.close()
        except Exception as error:  # noqa: BLE001  (the binding's errors have no class of their own)
            # It still has the failure in its throat, or an earlier attempt has closed it; closed it is all the same.
            logger.info("the index in %s could not be closed well: %s", self._path, error)
        self._rdict = self._open()
        self._failed = False
        self._doubtful |= self._unsynced
        self._unsynced.clear()

    def _read(self, read: Callable[[Rdict], _Result]) -> _Result:
        rdict = self._rdict
        try:
            return read(rdict)
        except Exception:
            with self._lock:
                # Opened again meanwhile?
                if self._rdict is rdict:
                    raise
                rdict = self._rdict
            return read(rdict)

    def _open(self) -> Rdict:
        return open_database(self._path, _options(self._cache))


def valid(cursor: RdictIter) -> bool:
    """Whether a cursor stands on a key; False behind the last one. Raises what it could not read."""
    if cursor.valid():
        return True
    check_iterator(cursor)
    return False


def repair(path: Path, cache: Cache) -> None:
    """Keep what can be read of a damaged database. `IndexFailed` when nothing can be done."""
    with telling():
        repair_database(path, _options(cache))


def _options(cache: Cache) -> Options:
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_cache_index_and_filter_blocks(True)
    table.set_bloom_filter(10, False)
    table.set_format_version(TABLE_FORMAT_VERSION)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(2)
    options.set_max_open_files(OPEN_FILES_MAX)
    options.set_max_background_jobs(2)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_keep_log_file_num(2)
    options.set_max_total_wal_size(2 * WRITE_BUFFER_BYTES)
    options.set_level_zero_file_num_compaction_trigger(TABLES_BEFORE_MERGE)
    options.set_stats_dump_period_sec(0)
    return options
