"""Where entries are and who owns ledgers: two RocksDB databases in DbLedgerStorage's layout.

`ledgers`: ledger id (8 bytes) → LedgerData. `locations`: ledger id, entry id (16 bytes) → location (8 bytes). All
big-endian, so that a ledger's entries stand in a row (BookKeeper: bookie/storage/ldb).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options, Rdict, WriteBatch, WriteOptions

LEDGERS_DIRECTORY: Final = "ledgers"
LOCATIONS_DIRECTORY: Final = "locations"
WRITE_BUFFER_BYTES: Final = 4 * 1024 * 1024
"""Per database; the write cache in front of it does the batching."""
OPEN_FILES_MAX: Final = 128
"""Per database; enough for some hundred million entries at RocksDB's file sizes."""
TABLE_FORMAT_VERSION: Final = 5
"""Readable by RocksDB 6.6 and later, BookKeeper 4.17's among them."""
PUTS_PER_TURN: Final = 256
"""Puts between two short sleeps in `put_locations`."""
TURN_SECONDS: Final = 50e-6
"""Sleeping gives the interpreter lock away; without, the event loop would wait up to 5 ms for it, again and again."""

RawKey: TypeAlias = str | int | float | bytes | bool
"""What the binding's type stubs call a key; in raw mode it is bytes."""

_KEY: Final = struct.Struct(">q")
_LOCATION: Final = struct.Struct(">Q")
_LAST_ENTRY: Final = b"\x7f" + b"\xff" * 7


class IndexFailed(OSError):
    """RocksDB could not read or write; its own words follow. (Its Python binding has no error class of its own.)"""


@contextmanager
def _telling() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise IndexFailed(f"index: {error}") from error


class Index:
    """Both databases. Any thread; RocksDB does the locking. Methods raise `IndexFailed`, an OSError."""

    def __init__(self, directory: Path, block_cache_bytes: int) -> None:
        """Opens or makes the databases below `directory`."""
        cache = Cache(block_cache_bytes)
        with _telling():
            self._ledgers = Rdict(str(directory / LEDGERS_DIRECTORY), _options(cache))
        try:
            with _telling():
                self._locations = Rdict(str(directory / LOCATIONS_DIRECTORY), _options(cache))
        except IndexFailed:
            self._ledgers.close()
            raise
        self._synced = WriteOptions()
        self._synced.sync = True

    def ledger(self, ledger_id: int) -> bytes | None:
        """The encoded state of a ledger."""
        with _telling():
            value: bytes | None = self._ledgers.get(_KEY.pack(ledger_id))
        return value

    def put_ledgers(self, states: Sequence[tuple[int, bytes]]) -> None:
        """Store states; durable on return."""
        if not states:
            return
        batch = WriteBatch(raw_mode=True)
        for ledger_id, value in states:
            batch.put(_KEY.pack(ledger_id), value)
        with _telling():
            self._ledgers.write(batch, self._synced)

    def ledger_ids(self) -> Iterator[int]:
        """All ledgers with a state, ascending."""
        for key in self._ledgers.keys():  # noqa: SIM118  (no dict: iterating needs the method)
            assert isinstance(key, bytes)
            ledger_id: int = _KEY.unpack(key)[0]
            if ledger_id >= 0:
                yield ledger_id

    def put_locations(self, ledger_id: int, entry_ids: Sequence[int], locations: Sequence[int]) -> None:
        """Store the places of entries of one ledger. Durable after `sync`."""
        prefix = _KEY.pack(ledger_id)
        key_of = _KEY.pack
        location_of = _LOCATION.pack
        for at in range(0, len(entry_ids), PUTS_PER_TURN):
            batch = WriteBatch(raw_mode=True)
            put = batch.put
            for entry_id, location in zip(
                entry_ids[at : at + PUTS_PER_TURN], locations[at : at + PUTS_PER_TURN], strict=True
            ):
                put(prefix + key_of(entry_id), location_of(location))
            with _telling():
                self._locations.write(batch)
            time.sleep(TURN_SECONDS)

    def sync(self) -> None:
        """Make every `put_locations` so far durable."""
        with _telling():
            self._locations.flush_wal(True)

    def location(self, ledger_id: int, entry_id: int) -> int | None:
        """Where an entry is, or None."""
        with _telling():
            value = self._locations.get(_KEY.pack(ledger_id) + _KEY.pack(entry_id))
        return None if value is None else int.from_bytes(value, "big")

    def locations(self, ledger_id: int, first_entry_id: int, count_max: int) -> list[int]:
        """Where consecutive entries are, from the first one to the first missing one."""
        prefix = _KEY.pack(ledger_id)
        wanted = range(first_entry_id, first_entry_id + count_max)
        keys: list[RawKey] = [prefix + _KEY.pack(entry_id) for entry_id in wanted]
        found: list[int] = []
        with _telling():
            values: list[bytes | None] = self._locations.get(keys) or []
        for value in values:
            if value is None:
                break
            found.append(int.from_bytes(value, "big"))
        return found

    def last_entry_id(self, ledger_id: int) -> int:
        """The greatest entry id of a ledger, or -1."""
        prefix = _KEY.pack(ledger_id)
        with _telling():
            iterator = self._locations.iter()
            iterator.seek_for_prev(prefix + _LAST_ENTRY)
        if not iterator.valid():
            return -1
        key: bytes = iterator.key()
        if key[:8] != prefix:
            return -1
        entry_id: int = _KEY.unpack(key[8:])[0]
        return entry_id

    def entry_ids(self, ledger_id: int) -> list[int]:
        """All entry ids of a ledger, ascending."""
        prefix = _KEY.pack(ledger_id)
        with _telling():
            iterator = self._locations.iter()
            iterator.seek(prefix)
        found: list[int] = []
        while iterator.valid():
            key: bytes = iterator.key()
            if key[:8] != prefix:
                break
            found.append(_KEY.unpack(key[8:])[0])
            iterator.next()
        return found

    def close(self) -> None:
        """Close both databases. What could not be written out is in their logs, which the next opening reads."""
        try:
            with _telling():
                self._locations.close()
        finally:
            with _telling():
                self._ledgers.close()


def open_rocksdb_index(directory: Path, block_cache_bytes: int) -> Index:
    """Production's `OpenIndex`."""
    return Index(directory, block_cache_bytes)


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
    options.set_max_total_wal_size(4 * WRITE_BUFFER_BYTES)
    options.set_stats_dump_period_sec(0)
    return options
