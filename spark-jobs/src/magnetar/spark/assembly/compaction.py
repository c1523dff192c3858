"""Compacted topics: a ledger with the last message of each key up to a horizon, and then the topic itself.

Facts: Pulsar's `Compactor`, `CompactedTopicImpl` and `RawMessageImpl`; broker-internals section 12. A batch in it still
has all its messages: those that are not the last of their key are marked `compacted_out`, without a payload. Of a
chunked message only the last chunk survives a compaction (all have the same key), so that nobody can read it.

Brokers do all this for readers with read_compacted; what is here is for reading from bookies.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from magnetar.managed.compaction import COMPACTION_CURSOR, LEDGER_PROPERTY
from magnetar.managed.info_codec import POSITION_IN_NODE, decode_cursor_info, decode_position
from magnetar.spark.assembly.chunks import is_chunk
from magnetar.spark.entries import EntryBlock, WholeEntry
from magnetar.spark.positions import MessagePosition
from magnetar.spark.slices import LedgerRange, Slice
from magnetar.spark.topics import TopicLedger
from magnetar.wire.pulsar.compacted import decode_compacted
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.metadata import ABSENT, MessageMetadataView, skim


class CompactedLedger(NamedTuple):
    """A topic's newest compaction."""

    ledger_id: int
    """The id of the compacted ledger. Its metadata is at the usual place; digest and password are its own, not the
    topic's (CRC32 and empty)."""
    horizon: MessagePosition
    """The last entry that it went through."""

    @property
    def rest(self) -> MessagePosition:
        """From here on, the topic itself is read."""
        return self.horizon.next_entry()


async def read_compaction(
    cursor_node: bytes, last_entry_of: Callable[[int], Awaitable[bytes | None]]
) -> CompactedLedger | None:
    """The compaction by the node of the cursor `__compaction` (managed.paths.cursor_path); None: there was none yet.

    While a broker has the topic, the cursor's position is in a ledger of its own: `last_entry_of` gives the last entry
    of it that any bookie has (None when there is none). The last confirmed one that readers learn of is not enough: it
    lags by the newest entry, and that is the one which names the compaction. Raises `BrokenMetadata`, and what
    `last_entry_of` raises."""
    info = decode_cursor_info(cursor_node)
    if info.cursorsLedgerId != POSITION_IN_NODE:
        entry = await last_entry_of(info.cursorsLedgerId)
        if entry is not None:
            position = decode_position(entry)
            properties = {each.name: each.value for each in position.properties}
            return _compaction(properties, position.ledgerId, position.entryId)
    properties = {each.name: each.value for each in info.properties}
    return _compaction(properties, info.markDeleteLedgerId, info.markDeleteEntryId)


def compaction_in_stats(stats: Mapping[str, Any]) -> tuple[CompactedLedger, TopicLedger] | None:
    """The compaction and its ledger by a topic's internal stats (admin API `internalStats`); None: there is none."""
    ledger = stats.get("compactedLedger") or {}
    cursor = (stats.get("cursors") or {}).get(COMPACTION_CURSOR) or {}
    ledger_id = int(ledger.get("ledgerId", -1))
    mark, separator, entry = str(cursor.get("markDeletePosition", "")).partition(":")
    if ledger_id < 0 or not separator:
        return None
    horizon = MessagePosition(int(mark), int(entry))
    found = TopicLedger(
        ledger_id=ledger_id,
        entries=max(0, int(ledger.get("entries", 0))),
        size_bytes=max(0, int(ledger.get("size", 0))),
        offloaded=bool(ledger.get("offloaded", False)),
    )
    return CompactedLedger(ledger_id, horizon), found


def compacted_slices(
    topic: str,
    compaction: CompactedLedger,
    ledger: TopicLedger,
    reach: tuple[MessagePosition, MessagePosition],
    split_bytes: int,
) -> list[Slice]:
    """The slices of a compacted ledger for reading `reach` (first, end exclusive), some `split_bytes` each.

    Reading goes on in the topic from `max(first, compaction.rest)` on. Where in the compacted ledger a position is
    stands in its entries alone: so each slice has the whole reach, and the decoder leaves out what is not of it."""
    first, end = reach
    end = min(end, compaction.rest)
    if first >= end:
        return []
    whole = LedgerRange(
        ledger_id=ledger.ledger_id,
        first_entry_id=0,
        last_entry_id=ledger.entries - 1,
        size_bytes=ledger.size_bytes,
        metadata=ledger.metadata,
    )
    return [
        Slice(topic=topic, first=first, end=end, ranges=(part,), compacted=True) for part in _split(whole, split_bytes)
    ]


def unwrapped(block: EntryBlock, slice_: Slice) -> list[WholeEntry]:
    """Entries of a compacted ledger with the ids that they have in the topic."""
    entries: list[WholeEntry] = []
    for entry_id, wrapped in zip(block.entry_ids, block.entries, strict=True):
        try:
            (topic_ledger_id, topic_entry_id), data = decode_compacted(wrapped)
        except BadMetadata as error:
            entries.append(_lost(slice_, wrapped, f"entry {block.ledger_id}:{entry_id} of a compaction: {error}"))
            continue
        try:
            view = skim(data)
        except BadMetadata as error:
            entries.append(WholeEntry(topic_ledger_id, topic_entry_id, MessageMetadataView(), data, broken=str(error)))
            continue
        if view.marker_type != ABSENT:
            continue
        broken = "a chunked message in a compacted topic: only its last chunk was kept" if is_chunk(view) else ""
        entries.append(WholeEntry(topic_ledger_id, topic_entry_id, view, data, broken=broken))
    return entries


def _compaction(properties: Mapping[str, int], ledger_id: int, entry_id: int) -> CompactedLedger | None:
    compacted = properties.get(LEDGER_PROPERTY)
    return None if compacted is None else CompactedLedger(compacted, MessagePosition(ledger_id, entry_id))


def _split(whole: LedgerRange, split_bytes: int) -> list[LedgerRange]:
    if whole.entries <= 0:
        return []
    parts = max(1, min(whole.entries, -(-whole.size_bytes // max(1, split_bytes))))
    cuts = [whole.entries * index // parts for index in range(parts + 1)]
    return [
        replace(
            whole,
            first_entry_id=begin,
            last_entry_id=end - 1,
            size_bytes=whole.size_bytes * (end - begin) // whole.entries,
        )
        for begin, end in pairwise(cuts)
    ]


def _lost(slice_: Slice, data: bytes, reason: str) -> WholeEntry:
    """Its place in the topic is not known: the end of what is read is as good as any, and is in the slice."""
    end = slice_.end
    entry_id = end.entry_id if end.batch_index else end.entry_id - 1
    return WholeEntry(end.ledger_id, entry_id, MessageMetadataView(), data, broken=reason)
