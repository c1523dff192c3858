"""Snapshots in segments (`transactionBufferSegmentedSnapshotEnabled`): Avro records of an index and its segments.
Pure.

The index of a topic lists its segments, of which each has as many aborted transactions as fit into a message, and those
that no segment has yet. Facts: transactions-dedup-compaction 1.6; pulsar-broker `transaction/buffer/metadata/v2`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from magnetar.broker.subscriptions.visibility import TransactionBits
from magnetar.broker.transactions.buffers.snapshot_codec import END_OF_ARRAY, PRESENT, Snapshot, number, text
from magnetar.core.ids import Position, signed64


class SegmentPlace(NamedTuple):
    """One segment in an index."""

    sequence_id: int
    last_marker: Position
    """The abort marker of the last transaction in it: with its ledger goes the segment."""
    message: Position
    """Where the segment is in the topic of segments."""


class SnapshotSegment(NamedTuple):
    """The fields of a segment beside the transactions that it lists."""

    topic: str
    sequence_id: int
    last_marker: Position


def segment_capacity(size_bytes: int, topic: str) -> int:
    """How many transactions a segment has, as Apache's brokers reckon it."""
    return max(1, (size_bytes - 8 - len(topic)) // 3)


def segment_key(topic: str, sequence_id: int) -> str:
    """The key of a segment's message."""
    return f"multiple-{sequence_id}-{topic}"


def bits_block(transactions: Sequence[TransactionBits]) -> bytes:
    """Some transactions of a list."""
    parts = [number(len(transactions))]
    for most_bits, least_bits in transactions:
        parts += (number(signed64(least_bits)), number(signed64(most_bits)))
    return b"".join(parts)


def encode_segment(segment: SnapshotSegment, blocks: Iterable[bytes]) -> bytes:
    """A segment with these blocks, none of which is empty."""
    ledger_id, entry_id = segment.last_marker
    fields = (number(entry_id), number(ledger_id), number(segment.sequence_id), text(segment.topic))
    return b"".join([PRESENT, *blocks, END_OF_ARRAY, *fields])


def encode_index(snapshot: Snapshot, places: Sequence[SegmentPlace], blocks: Iterable[bytes]) -> bytes:
    """An index; the blocks have the transactions that are in no segment yet, and none is empty."""
    parts = [PRESENT]
    if places:
        parts.append(number(len(places)))
    for sequence_id, (marker_ledger, marker_entry), (ledger_id, entry_id) in places:
        parts += map(number, (marker_entry, marker_ledger, entry_id, ledger_id, sequence_id))
    ledger_id, entry_id = snapshot.max_read_position
    parts += (END_OF_ARRAY, PRESENT, PRESENT, *blocks, END_OF_ARRAY, number(entry_id), number(ledger_id))
    return b"".join([*parts, text(snapshot.topic)])
