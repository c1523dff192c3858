"""A closed ledger becomes a data object: which entries are in which block (Pulsar: BlobStoreManagedLedgerOffloader,
BlockAwareSegmentInputStreamImpl.calculateBlockSize)."""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.core.errors import Misuse
from magnetar.wire.offload.data_block import (
    ENTRY_HEADER_BYTES,
    HEADER_BYTES,
    encode_block_header,
    encode_entry_header,
    padding,
)
from magnetar.wire.offload.index import IndexEntry


class DataObjectWriter:
    """Cuts one ledger into blocks, entry by entry, without holding more than it is given.

    The length of a block is in its header and therefore fixed before its entries are known: the largest one allowed, or
    what is left of the ledger, so that the last block is exact. A ledger whose metadata tells a wrong length comes out
    whole all the same, with padding or with more blocks; so does an entry that is larger than a block may be.
    """

    __slots__ = (
        "_block_bytes_max",
        "_block_end",
        "_last_entry_id",
        "_ledger_bytes",
        "_payload_bytes",
        "blocks",
        "next_entry_id",
        "size_bytes",
    )

    def __init__(self, last_entry_id: int, ledger_bytes: int, block_bytes_max: int) -> None:
        self._last_entry_id = last_entry_id
        self._ledger_bytes = ledger_bytes
        self._block_bytes_max = block_bytes_max
        self._payload_bytes = 0
        self._block_end = 0
        self.blocks: list[IndexEntry] = []
        """For the index: where the blocks are."""
        self.size_bytes = 0
        """Of all that was given out so far."""
        self.next_entry_id = 0
        """The entry that is wanted next."""

    def add(self, payloads: Sequence[bytes]) -> list[bytes]:
        """The bytes of the next entries, and of what must stand before them."""
        given: list[bytes] = []
        for payload in payloads:
            if self.next_entry_id > self._last_entry_id:
                raise Misuse(f"an entry beyond the ledger's last one, {self._last_entry_id}")
            wanted_bytes = ENTRY_HEADER_BYTES + len(payload)
            if self.size_bytes + wanted_bytes > self._block_end:
                self._begin_block(given, wanted_bytes)
            given.append(encode_entry_header(self.next_entry_id, len(payload)))
            given.append(payload)
            self.size_bytes += wanted_bytes
            self._payload_bytes += len(payload)
            self.next_entry_id += 1
        return given

    def finish(self) -> list[bytes]:
        """The pieces of the object behind the last entry. Raises `Misuse` unless all entries were added."""
        if self.next_entry_id != self._last_entry_id + 1:
            raise Misuse(f"the ledger ends with entry {self._last_entry_id}, not before {self.next_entry_id}")
        given: list[bytes] = []
        self._pad(given)
        return given

    def _begin_block(self, given: list[bytes], wanted_bytes: int) -> None:
        self._pad(given)
        entries_left = self._last_entry_id - self.next_entry_id + 1
        left_bytes = entries_left * ENTRY_HEADER_BYTES + self._ledger_bytes - self._payload_bytes + HEADER_BYTES
        block_bytes = max(min(self._block_bytes_max, left_bytes), HEADER_BYTES + wanted_bytes)
        self.blocks.append(IndexEntry(self.next_entry_id, len(self.blocks) + 1, self.size_bytes))
        given.append(encode_block_header(block_bytes, self.next_entry_id))
        self._block_end = self.size_bytes + block_bytes
        self.size_bytes += HEADER_BYTES

    def _pad(self, given: list[bytes]) -> None:
        missing_bytes = self._block_end - self.size_bytes
        if missing_bytes:
            given.append(padding(missing_bytes))
            self.size_bytes = self._block_end
