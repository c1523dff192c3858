"""Stored entries on their way from a bookie or a broker to the decoder, many at a time.

Brokers and bookies give the same bytes, so that everything behind an `EntrySource` is the same for both.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from magnetar.spark.slices import LedgerRange
from magnetar.wire.pulsar.metadata import MessageMetadataView


class EntryBlock:
    """Entries of one ledger, ascending. A broker leaves out what consumers do not get, so ids may have gaps."""

    __slots__ = ("entries", "entry_ids", "ledger_id")

    def __init__(self, ledger_id: int, entry_ids: Sequence[int], entries: list[bytes]) -> None:
        self.ledger_id = ledger_id
        self.entry_ids = entry_ids
        self.entries = entries
        """As stored: perhaps broker entry metadata, then headers and payload as SEND carried them."""


class WholeEntry:
    """An entry that is to be decoded: no marker, no part of a chunked message, not of an aborted transaction."""

    __slots__ = ("broken", "data", "entry_id", "joined_payload", "ledger_id", "view")

    def __init__(
        self,
        ledger_id: int,
        entry_id: int,
        view: MessageMetadataView,
        data: bytes,
        joined_payload: bytes | None = None,
        broken: str = "",
    ) -> None:
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.view = view
        self.data = data
        """As stored; of a chunked message its last chunk's."""
        self.joined_payload = joined_payload
        """A chunked message's whole payload, not unpacked yet; else None: the payload is `data[view.payload_start:]`.
        Chunks are compressed as one before they are cut."""
        self.broken = broken
        """Why this cannot be decoded: one bad record, however many messages it held. Empty: all is well.
        If its metadata is what is broken, `view` has nothing but absent values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """Entries that should be there and are not: each of their bookies denies them, or has them damaged."""

    topic: str
    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    reason: str

    def __str__(self) -> str:
        count = self.last_entry_id - self.first_entry_id + 1
        return (
            f"{self.topic}: {count} entries are missing, {self.ledger_id}:{self.first_entry_id} to "
            f"{self.ledger_id}:{self.last_entry_id} ({self.reason})"
        )


OnHole: TypeAlias = Callable[[Hole], None]
"""Raises `DataLoss`, or notes it and returns: then reading goes on behind the hole."""


class EntrySource(Protocol):
    """Reads entries of one topic. One use at a time."""

    def blocks(self, ranges: Sequence[LedgerRange], on_hole: OnHole) -> AsyncIterator[EntryBlock]:
        """All entries of the ranges, in order, some 1 to 4 MB a block, with the next one on its way meanwhile.

        Raises `ClusterUnreachable` after a bounded time of trying."""
        ...

    def close(self) -> Coroutine[Any, Any, None]:
        """Let go of what is held. Twice is no error."""
        ...
