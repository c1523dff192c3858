"""A ledger as Hadoop's MapFile: a directory with `data`, whose keys are entry ids, and `index`, which has every 128th.

Key -1 holds BookKeeper's metadata of the ledger. A directory gets its name when all of it is on the disk. What is here
waits for the disk, and is called in threads."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import IO, Final
from uuid import UUID

from magnetar.core.errors import PeerError
from magnetar.wire.bookkeeper.ledger_metadata import (
    LedgerMetadata,
    decode_ledger_metadata_message,
    encode_offloaded_ledger_metadata,
)
from magnetar.wire.offload.errors import BadOffload
from magnetar.wire.offload.sequence_file import (
    BYTES_CLASS,
    LONG_CLASS,
    SYNC_INTERVAL_BYTES,
    bytes_value,
    decode_bytes_value,
    decode_long_value,
    decode_sequence_header,
    encode_record,
    encode_sequence_header,
    encode_sync,
    long_value,
    records,
)

METADATA_KEY: Final = -1
INDEX_INTERVAL: Final = 128
DATA: Final = "data"
INDEX: Final = "index"
INDEX_BYTES_MAX: Final = 64 << 20
INDEXED_MAX: Final = 1 << 20
"""Entries of an index, of a ledger of 134 million: 100 MB while it is open."""
BUFFER_BYTES: Final = 1 << 20


class MapFileWriter:
    """Writes a new directory."""

    def __init__(self, folder: Path, uid: UUID, described: LedgerMetadata) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._sync = uid.bytes
        self._indexed: list[tuple[int, int]] = []
        self._count = 0
        self._data: IO[bytes] = (folder / DATA).open("wb", buffering=BUFFER_BYTES)
        self._position = self._data.write(encode_sequence_header(BYTES_CLASS, self._sync))
        self._last_sync = self._position
        self._append(METADATA_KEY, encode_offloaded_ledger_metadata(described))

    def append(self, first_entry_id: int, payloads: Sequence[bytes]) -> None:
        """The next entries."""
        for entry_id, payload in enumerate(payloads, first_entry_id):
            self._append(entry_id, payload)

    def finish(self) -> None:
        """Everything is on the disk, the index last."""
        _sync_and_close(self._data)
        index = (self._folder / INDEX).open("wb")
        index.write(encode_sequence_header(LONG_CLASS, self._sync))
        index.writelines(encode_record(key, long_value(position)) for key, position in self._indexed)
        _sync_and_close(index)
        sync_folder(self._folder)

    def abandon(self) -> None:
        """Let go of a file that will not be finished. Closing writes what is held, which a full disk refuses."""
        with suppress(OSError):
            self._data.close()

    def _append(self, key: int, value: bytes) -> None:
        if self._position >= self._last_sync + SYNC_INTERVAL_BYTES:
            self._last_sync = self._position
            self._position += self._data.write(encode_sync(self._sync))
        if self._count % INDEX_INTERVAL == 0:
            self._indexed.append((key, self._position))
        self._position += self._data.write(encode_record(key, bytes_value(value)))
        self._count += 1


class MapFileReader:
    """Reads a directory that was finished. Raises `FileNotFoundError`, `BadOffload`, `OSError`."""

    def __init__(self, folder: Path) -> None:
        self._keys, self._positions = _read_index(folder / INDEX)
        self._data: IO[bytes] = (folder / DATA).open("rb", buffering=BUFFER_BYTES)
        try:
            self._header = decode_sequence_header(self._data, BYTES_CLASS)
            found = next(records(self._data, self._header), None)
            if found is None or found[0] != METADATA_KEY:
                raise BadOffload("the ledger's metadata are missing")
            described = decode_ledger_metadata_message(decode_bytes_value(found[1]))
        except PeerError as error:
            self._data.close()
            raise BadOffload(str(error)) from None
        self.last_entry_id = described.last_entry_id
        self.length_bytes = described.length_bytes
        if self.last_entry_id < 0 or self.length_bytes < 0:
            self._data.close()
            raise BadOffload(f"metadata of a ledger that ends with entry {self.last_entry_id}")

    def read(self, first_entry_id: int, last_entry_id: int, size_bytes_max: int) -> list[bytes]:
        """Entries first..last, fewer beyond so many bytes, one at least. Raises `BadOffload`, `OSError`."""
        at = bisect_right(self._keys, first_entry_id) - 1
        self._data.seek(self._positions[at])
        payloads: list[bytes] = []
        size_bytes = 0
        for key, value in records(self._data, self._header):
            if key < first_entry_id:
                continue
            if key != first_entry_id + len(payloads):
                break
            payloads.append(decode_bytes_value(value))
            size_bytes += len(value)
            if key == last_entry_id or size_bytes >= size_bytes_max:
                return payloads
        raise BadOffload(f"entry {first_entry_id + len(payloads)} is missing")

    def close(self) -> None:
        """Close the file."""
        self._data.close()


def sync_folder(folder: Path) -> None:
    """The names in a directory are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_and_close(file: IO[bytes]) -> None:
    with file:
        file.flush()
        os.fsync(file.fileno())


def _read_index(path: Path) -> tuple[list[int], list[int]]:
    """Keys and positions, both rising."""
    with path.open("rb") as file:
        if (size_bytes := os.fstat(file.fileno()).st_size) > INDEX_BYTES_MAX:
            raise BadOffload(f"an index of {size_bytes} bytes, where {INDEX_BYTES_MAX} are the most")
        header = decode_sequence_header(file, LONG_CLASS)
        keys: list[int] = []
        positions: list[int] = []
        for key, value in records(file, header):
            # Packed bytes may be a thousand times as many.
            if len(keys) >= INDEXED_MAX:
                raise BadOffload(f"an index of more than {INDEXED_MAX} entries")
            keys.append(key)
            positions.append(decode_long_value(value))
    if not keys or keys[0] != METADATA_KEY or positions[0] < 0:
        raise BadOffload("an index that does not begin with the ledger's metadata")
    if any(one >= other for one, other in (*pairwise(keys), *pairwise(positions))):
        raise BadOffload("an index whose numbers do not rise")
    return keys, positions
