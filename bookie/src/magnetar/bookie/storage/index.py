"""Where entries are and who owns ledgers: two RocksDB databases in DbLedgerStorage's layout.

`ledgers`: ledger id (8 bytes) → LedgerData; see `deleted_ledgers` for ids that are negative. `locations`: ledger id,
entry id (16 bytes) → location (8 bytes). All big-endian, so that a ledger's entries stand in a row (BookKeeper:
bookie/storage/ldb).
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from magnetar.bookie.loss import WHAT_TO_DO, without_advice
from magnetar.bookie.storage.deleted_ledgers import DeletedLedgers
from magnetar.bookie.storage.index_api import IndexDamaged, IndexMissing
from magnetar.bookie.storage.index_database import Database, IndexFailed, repair, valid
from magnetar.bookie.storage.index_database import telling as _telling
from magnetar.core.disk import SystemDisk
from magnetar.metadata.rocksdb_files import DatabaseDamaged
from rocksdict import Cache, RdictIter, WriteBatch

logger: Final = logging.getLogger(__name__)

LEDGERS_DIRECTORY: Final = "ledgers"
LOCATIONS_DIRECTORY: Final = "locations"
PUTS_PER_TURN: Final = 256
"""Puts between two short sleeps in `put_locations`."""
TURN_SECONDS: Final = 50e-6
"""Sleeping gives the interpreter lock away; without, the event loop would wait up to 5 ms for it, again and again."""

REPAIR_CACHE_BYTES: Final = 1 << 20
"""Bytes of RocksDB's block cache during a repair, which reads each block once."""

ESTIMATE: Final = "rocksdb.estimate-num-keys"

RawKey: TypeAlias = str | int | float | bytes | bool
"""What the binding's type stubs call a key; in raw mode it is bytes."""

_KEY: Final = struct.Struct(">q")
_LOCATION: Final = struct.Struct(">Q")
_LAST_ENTRY: Final = b"\x7f" + b"\xff" * 7
_PLACE_KEY: Final = struct.Struct(">qq")
_PAST_ENTRIES: Final = b"\x80" + b"\x00" * 7
"""A key's end that comes after that of every entry id, none of which is negative."""
_NO_LEDGER: Final = 1 << 63
"""A number that is greater than every ledger id."""


class Index:
    """Both databases. Any thread; RocksDB does the locking. Methods raise `IndexFailed`, an OSError."""

    def __init__(self, directory: Path, block_cache_bytes: int, *, create: bool = True) -> None:
        """Opens or makes the databases below `directory`; see `OpenIndex` for what it raises."""
        missing = [name for name in (LEDGERS_DIRECTORY, LOCATIONS_DIRECTORY) if not (directory / name).is_dir()]
        if missing and not create:
            raise IndexMissing(
                f"{directory} has entry logs and no index: {' and '.join(missing)} are missing. Restore them (or set "
                "indexDirectories to where they are); a bookie of SortedLedgerStorage or InterleavedLedgerStorage "
                f"cannot be taken over. {WHAT_TO_DO}"
            )
        cache = Cache(block_cache_bytes)
        self._ledgers = _open(directory / LEDGERS_DIRECTORY, cache)
        try:
            self._locations = _open(directory / LOCATIONS_DIRECTORY, cache)
        except BaseException:
            self._ledgers.close()
            raise
        # RocksDB makes them without a sync of their names.
        with _telling():
            self._deleted = DeletedLedgers(self._ledgers)
            SystemDisk().sync_directory(directory)
        self._places = threading.Lock()
        """Held while a batch of places is written, so that what `move_locations` has looked at stays true."""

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
            self._ledgers.write(batch, durable=True)

    def ledger_ids(self) -> Iterator[int]:
        """All ledgers with a state, ascending."""
        with _telling():
            for key in self._ledgers.keys():  # noqa: SIM118  (no dict: iterating needs the method)
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
            with self._places, _telling():
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
            if not valid(iterator):
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
            while valid(iterator):
                key: bytes = iterator.key()
                if key[:8] != prefix:
                    break
                found.append(_KEY.unpack(key[8:])[0])
                iterator.next()
        return found

    def stored_ledger_ids(self, first_ledger_id: int, count_max: int) -> list[int]:
        """Ledgers that have a state or any place, ascending, from `first_ledger_id` on; fewer than asked for only when
        there are no more."""
        with _telling():
            states = self._ledgers.iter()
            states.seek(_KEY.pack(first_ledger_id))
            places = self._locations.iter()
            places.seek(_KEY.pack(first_ledger_id))
            found: list[int] = []
            with_state, with_place = _ledger_at(states), _ledger_at(places)
            while len(found) < count_max:
                ledger_id = min(with_state, with_place)
                if ledger_id == _NO_LEDGER:
                    break
                found.append(ledger_id)
                if with_state == ledger_id:
                    states.next()
                    with_state = _ledger_at(states)
                if with_place == ledger_id:
                    # Over all other entries of the ledger in one step.
                    places.seek(_KEY.pack(ledger_id) + _PAST_ENTRIES)
                    with_place = _ledger_at(places)
        return found

    def locations_of(self, entries: Sequence[tuple[int, int]]) -> list[int | None]:
        """(ledger id, entry id) → where each is, or None."""
        if not entries:
            return []
        pack = _PLACE_KEY.pack
        keys: list[RawKey] = [pack(ledger_id, entry_id) for ledger_id, entry_id in entries]
        with _telling():
            values: list[bytes | None] = self._locations.get(keys) or []
        return [None if value is None else int.from_bytes(value, "big") for value in values]

    def places(
        self, after: tuple[int, int], count_max: int
    ) -> tuple[list[tuple[int, int, int]], tuple[int, int] | None]:
        """The next `count_max` entries of all behind `after` (ledger id, entry id; (0, -1): from the first one):
        (ledger id, entry id, location), ascending. And where to go on; None at the end."""
        found: list[tuple[int, int, int]] = []
        with _telling():
            iterator = self._locations.iter()
            iterator.seek(_PLACE_KEY.pack(after[0], after[1] + 1))
            for _ in range(count_max):
                if not valid(iterator):
                    return found, None
                ledger_id, entry_id = _PLACE_KEY.unpack(iterator.key())
                found.append((ledger_id, entry_id, int.from_bytes(iterator.value(), "big")))
                iterator.next()
        return found, found[-1][:2] if found else after

    def forget_places(self, entries: Sequence[tuple[int, int]]) -> None:
        """Forget where these entries are (ledger id, entry id); durable on return."""
        batch = WriteBatch(raw_mode=True)
        for ledger_id, entry_id in entries:
            batch.delete(_PLACE_KEY.pack(ledger_id, entry_id))
        with self._places, _telling():
            self._locations.write(batch, durable=True)

    def locations_in_log(
        self, log_id: int, after: tuple[int, int], count_max: int
    ) -> tuple[list[tuple[int, int, int]], tuple[int, int] | None]:
        """Looks at `count_max` entries of all behind `after` (ledger id, entry id; (0, -1): from the first one) for
        those that are in a log: (ledger id, entry id, location). And where to go on; None at the end."""
        looked_at, behind = self.places(after, count_max)
        return [place for place in looked_at if place[2] >> 32 == log_id], behind

    def move_locations(self, old_log_id: int, places: Sequence[tuple[int, int, int]]) -> int:
        """(ledger id, entry id, location) become the places of entries that still are in the old log; others stay as
        they are, whatever `put_locations` does at the same time. Durable after `sync`. How many were moved."""
        moved = 0
        for at in range(0, len(places), PUTS_PER_TURN):
            some = places[at : at + PUTS_PER_TURN]
            with self._places:
                batch = WriteBatch(raw_mode=True)
                found = self.locations_of([(ledger_id, entry_id) for ledger_id, entry_id, _ in some])
                for (ledger_id, entry_id, location), old in zip(some, found, strict=True):
                    if old is not None and old >> 32 == old_log_id:
                        batch.put(_PLACE_KEY.pack(ledger_id, entry_id), _LOCATION.pack(location))
                if not batch.is_empty():
                    moved += batch.len()
                    with _telling():
                        self._locations.write(batch)
        return moved

    def delete_ledgers(self, ledger_ids: Sequence[int]) -> None:
        """Forget states and places of these ledgers; durable on return. After a crash meanwhile `stored_ledger_ids`
        still has those that are not wholly gone."""
        if not ledger_ids:
            return
        places = WriteBatch(raw_mode=True)
        states = WriteBatch(raw_mode=True)
        for ledger_id in ledger_ids:
            key = _KEY.pack(ledger_id)
            places.delete_range(key, key + _PAST_ENTRIES)
            states.delete(key)
        with _telling():
            with self._places:
                self._locations.write(places, durable=True)
            self._deleted.mark(ledger_ids, states)
            self._ledgers.write(states, durable=True)

    def was_deleted(self, ledger_id: int) -> bool:
        """Whether a ledger is one of the last `DELETED_LEDGERS_MAX` that `delete_ledgers` was given, also before a
        restart."""
        with _telling():
            return ledger_id in self._deleted

    def greatest_ledger_id(self) -> int:
        """The greatest id of the ledgers that have a state or any place, or are remembered as deleted; -1: none.
        OSError."""
        with _telling():
            greatest = self._deleted.greatest()
            for database in (self._ledgers, self._locations):
                iterator = database.iter()
                # Behind all of the greatest id that is not negative.
                iterator.seek_for_prev(_LAST_ENTRY + _LAST_ENTRY)
                if valid(iterator):
                    greatest = max(greatest, _KEY.unpack(iterator.key()[:8])[0])
        return greatest

    def estimated_counts(self) -> tuple[int, int]:
        """(ledgers, entries) as RocksDB estimates them: entries that were deleted count until they are compacted."""
        with _telling():
            ledgers, entries = (store.property_int_value(ESTIMATE) for store in (self._ledgers, self._locations))
        return max(0, (ledgers or 0) - self._deleted.count), entries or 0

    def compact_locations(self) -> None:
        """Give back the space of deleted places now; takes as long as it takes. RocksDB does it in place, file by
        file."""
        with _telling():
            self._locations.compact_range(None, None)

    def close(self) -> None:
        """Close both databases. What could not be written out is in their logs, which the next opening reads."""
        try:
            with _telling():
                self._locations.close()
        finally:
            with _telling():
                self._ledgers.close()


def open_rocksdb_index(directory: Path, block_cache_bytes: int, *, create: bool) -> Index:
    """Opens the index on the disk, in RocksDB: the `OpenIndex` of a real bookie."""
    return Index(directory, block_cache_bytes, create=create)


def repair_rocksdb_index(directory: Path) -> None:
    """Make a damaged index one that can be read: what can be read of it stays. A database of which nothing can be read
    is moved aside, and an empty one takes its place. Reads all of it."""
    cache = Cache(REPAIR_CACHE_BYTES)
    for name in (LEDGERS_DIRECTORY, LOCATIONS_DIRECTORY):
        path = directory / name
        if not (damage := _read_all(path, cache)):
            continue
        logger.warning("the index is repaired: %s", without_advice(damage))
        try:
            repair(path, cache)
            damage = _read_all(path, cache)
        except IndexFailed as error:
            damage = str(error)
        if damage:
            aside = _free_name(path)
            logger.error("%s cannot be repaired and is kept as %s: %s", path, aside.name, damage)
            path.rename(aside)
            _open(path, cache).close()


def _read_all(path: Path, cache: Cache) -> str:
    """What is wrong with a database; empty: nothing. An error itself would hold a cursor, and that the database."""
    try:
        database = _open(path, cache)
    except (IndexDamaged, IndexFailed) as error:
        return str(error)
    try:
        with _telling():
            for _ in database.keys():  # noqa: SIM118  (no dict: iterating needs the method)
                pass
    except IndexFailed as error:
        return str(error)
    finally:
        database.close()
    return ""


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return aside


def _open(path: Path, cache: Cache) -> Database:
    with _telling():
        try:
            return Database(path, cache)
        except DatabaseDamaged as error:
            raise IndexDamaged(f"the index says no more where all entries are: {error}. {WHAT_TO_DO}") from error


def _ledger_at(iterator: RdictIter) -> int:
    if not valid(iterator):
        return _NO_LEDGER
    ledger_id: int = _KEY.unpack(iterator.key()[:8])[0]
    # BookKeeper keeps flags of its own under a negative id, behind all ledgers.
    return ledger_id if ledger_id >= 0 else _NO_LEDGER
