"""The result of a compaction: a ledger with each key's last message, up to a horizon (broker-internals section 12).

Whatever lies before the horizon may be gone from the topic itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from magnetar.core.ids import NO_ENTRY, Position
from magnetar.ledger.api import LedgerReader
from magnetar.managed.compaction import COMPACTION_CURSOR, LEDGER_PROPERTY
from magnetar.managed.entry import Entry
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.wire.pulsar.batch import split_batch
from magnetar.wire.pulsar.compacted import decode_compacted
from magnetar.wire.pulsar.errors import BadMetadata


class Compaction(NamedTuple):
    """The newest compaction of a topic."""

    ledger_id: int
    horizon: Position
    """The compaction's horizon: the last position of the topic that it went through."""


def compaction_of(ledger: ManagedLedger) -> Compaction | None:
    """The newest compaction of a topic; None when there was none."""
    cursor = ledger.cursors.get(COMPACTION_CURSOR)
    ledger_id = None if cursor is None else cursor.properties.get(LEDGER_PROPERTY)
    return None if cursor is None or ledger_id is None else Compaction(ledger_id, cursor.mark_delete)


async def read_compacted(reader: LedgerReader, first: int, last: int) -> list[Entry]:
    """Entries first..last of a compacted ledger, perhaps fewer but at least one. Raises what the reader raises,
    or `BadMetadata`."""
    entries: list[Entry] = []
    for data in await reader.read(first, last):
        (ledger_id, entry_id), content = decode_compacted(data)
        entries.append(Entry(ledger_id, entry_id, content))
    return entries


async def last_compacted(ledger: ManagedLedger, compaction: Compaction) -> Entry | None:
    """The last message of a compaction; None when it left none."""
    reader = await ledger.open_other(compaction.ledger_id)
    try:
        last = reader.last_add_confirmed
        return (await read_compacted(reader, last, last))[0] if last != NO_ENTRY else None
    finally:
        await reader.close()


async def first_published_since(ledger: ManagedLedger, compaction: Compaction, since_ms: int) -> Position | None:
    """The first message of a compaction that was published at or after a time (ms since 1970), by binary search; None
    when there is none. Whose metadata cannot be read counts as such. Raises what reading raises."""
    reader = await ledger.open_other(compaction.ledger_id)
    try:
        first, end = 0, reader.last_add_confirmed + 1
        found: Position | None = None
        while first < end:
            middle = (first + end) // 2
            (entry,) = await read_compacted(reader, middle, middle)
            if _published_since(entry, since_ms):
                end, found = middle, entry.position
            else:
                first = middle + 1
        return found
    finally:
        await reader.close()


def _published_since(entry: Entry, since_ms: int) -> bool:
    try:
        return entry.metadata().publish_time_ms >= since_ms
    except BadMetadata:
        return True


def last_batch_index(entry: Entry) -> int:
    """The last message of a batch that compaction left in; -1 when the entry is no batch."""
    if not entry.metadata().is_batch:
        return -1
    try:
        singles = split_batch(entry.data)
    except BadMetadata:
        # Encrypted or damaged: nobody but its consumer knows what is in it.
        return entry.metadata().num_messages - 1
    return max((index for index, (single, _) in enumerate(singles) if not single.compacted_out), default=-1)


def sized(entries: Sequence[Entry], count_max: int, size_bytes_max: int) -> list[Entry]:
    """The first of these entries, as many as the bounds allow, at least one."""
    taken: list[Entry] = []
    size_bytes = 0
    for entry in entries[:count_max]:
        size_bytes += len(entry.data)
        if taken and size_bytes > size_bytes_max:
            break
        taken.append(entry)
    return taken
