"""Looks into a bookie's RocksDB index, ours or Apache's DbLedgerStorage, without changing it."""

from __future__ import annotations

import contextlib
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.bookie.ledger_state import decode_state
from magnetar.bookie.storage.index import LEDGERS_DIRECTORY, LOCATIONS_DIRECTORY
from magnetar.bookie.storage.index_database import IndexFailed
from magnetar.metadata.rocksdb_files import check_iterator
from rocksdict import AccessType, Options, Rdict, RdictIter

_KEY: Final = struct.Struct(">q")
_NOT_DATA: Final = ("LOG", "LOCK", "rocksdict-config")
"""What RocksDB and its binding write for themselves."""
_LOCATION: Final = struct.Struct(">Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedLedger:
    """What the index keeps about a ledger."""

    ledger_id: int
    index: str
    """The directory of the index that has the ledger."""
    fenced: bool
    master_key: str
    """Hexadecimal; empty when nobody has said it yet."""
    explicit_lac: str
    """The packet in hexadecimal; empty when there is none."""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedEntry:
    """Where an entry is."""

    entry_id: int
    log_id: int
    position: int
    """The position of the entry's first byte in that log."""


class IndexReading:
    """Both databases of one directory. A context manager. OSError when they cannot be read.

    A running bookie does not mind; what it has not written to its index yet is not seen. RocksDB writes a log, and its
    binding a file of options, even where it only reads: they go to a temporary directory that links to the real one's
    files, so that nothing of the bookie is touched."""

    def __init__(self, directory: Path) -> None:
        """`directory` is …/current."""
        self.directory = directory
        with contextlib.ExitStack() as opened:
            scratch = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="magnetar-index-")))
            self._ledgers = _open(directory / LEDGERS_DIRECTORY, scratch)
            opened.callback(self._ledgers.close)
            self._locations = _open(directory / LOCATIONS_DIRECTORY, scratch)
            opened.callback(self._locations.close)
            self._opened = opened.pop_all()

    def __enter__(self) -> IndexReading:
        """Nothing more to do."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of both."""
        self._opened.close()

    def ledgers(self) -> Iterator[IndexedLedger]:
        """All ledgers, ascending."""
        iterator = self._ledgers.iter()
        iterator.seek_to_first()
        while iterator.valid():
            ledger_id: int = _KEY.unpack(iterator.key())[0]
            if ledger_id >= 0:
                yield self._described(ledger_id, iterator.value())
            iterator.next()
        self._check(iterator)

    def ledger(self, ledger_id: int) -> IndexedLedger | None:
        """One ledger; None when this index does not know it."""
        value = self._ledgers.get(_KEY.pack(ledger_id))
        return None if value is None else self._described(ledger_id, value)

    def entries(self, ledger_id: int) -> Iterator[IndexedEntry]:
        """Where each entry of a ledger is, ascending."""
        prefix = _KEY.pack(ledger_id)
        iterator = self._locations.iter()
        iterator.seek(prefix)
        while iterator.valid() and (key := iterator.key())[:8] == prefix:
            location: int = _LOCATION.unpack(iterator.value())[0]
            yield IndexedEntry(entry_id=_KEY.unpack(key[8:])[0], log_id=location >> 32, position=location & 0xFFFF_FFFF)
            iterator.next()
        self._check(iterator)

    def _check(self, iterator: RdictIter) -> None:
        """A list that ends where a block cannot be read must not look like a whole one."""
        try:
            check_iterator(iterator)
        except Exception as error:
            raise IndexFailed(f"the index at {self.directory} cannot be read: {error}") from error

    def _described(self, ledger_id: int, value: bytes) -> IndexedLedger:
        index = str(self.directory)
        try:
            state = decode_state(ledger_id, value)
        except ValueError as error:
            return IndexedLedger(
                ledger_id=ledger_id, index=index, fenced=False, master_key="", explicit_lac="", problem=str(error)
            )
        return IndexedLedger(
            ledger_id=ledger_id,
            index=index,
            fenced=state.fenced,
            master_key=state.master_key.hex(),
            explicit_lac=state.explicit_lac.hex(),
        )


def _open(directory: Path, scratch: Path) -> Rdict:
    if not directory.is_dir():
        raise IndexFailed(f"there is no index at {directory}")
    linked = scratch / directory.name
    linked.mkdir()
    for path in directory.iterdir():
        if not path.name.startswith(_NOT_DATA):
            (linked / path.name).symlink_to(path.absolute())
    try:
        return Rdict(str(linked), Options(raw_mode=True), access_type=AccessType.read_only())
    except Exception as error:
        raise IndexFailed(f"the index at {directory} cannot be read: {error}") from error
