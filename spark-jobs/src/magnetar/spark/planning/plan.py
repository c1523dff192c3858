"""How a stretch of a topic is cut into what single tasks read.

Sizes are estimates by each ledger's average entry. Positions and numbers of entries are exact."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

from magnetar.spark.options.offsets import LATEST
from magnetar.spark.positions import MessagePosition
from magnetar.spark.slices import LedgerRange, Slice
from magnetar.spark.topics import TopicLedger, TopicState

SLICES_MAX: Final = 100_000
"""Tasks of one stage: with more of them, Spark's driver has more to do than its executors. Slices grow instead."""

RANGES_PER_SLICE_MAX: Final = 500
"""Ledgers that one task opens; each costs it a round trip, and some hundred bytes in the task's description."""

UNKNOWN_ENTRY_BYTES: Final = 1024
"""Assumed of an entry when a ledger does not tell its size."""


LAST_ENTRY_UNKNOWN: Final = (1 << 62) - 1
"""The last entry of a range of which only the reader will see where it ends."""


class Span(NamedTuple):
    """Entries of one ledger that are there to be read."""

    ledger: TopicLedger
    first_entry_id: int
    entries: int
    size_bytes: int


def normalised(state: TopicState, position: MessagePosition) -> MessagePosition:
    """The same place named in one way, so that places can be compared: what is at the end of a ledger is at the
    beginning of the next one (those without entries are skipped), and what is before the topic's beginning is at its
    beginning. A place behind everything stays as it is.

    When the ledgers are not known, so does any place but the beginning of a ledger behind the end's: that one may be
    there without entries, and then is what the metadata store has told the end to be."""
    if position == LATEST:
        position = state.end
    if not state.ledgers_known:
        behind = position.ledger_id > state.end.ledger_id and position[1:] == (0, 0)
        return state.end if behind else position
    ledgers = state.ledgers
    place = bisect_left(ledgers, position.ledger_id, key=_ledger_id)
    if place < len(ledgers) and ledgers[place].ledger_id == position.ledger_id:
        if position.entry_id < ledgers[place].entries or place + 1 == len(ledgers):
            return position
        place += 1
    if place == len(ledgers):
        return position if position.ledger_id >= 0 else state.end
    while place + 1 < len(ledgers) and not ledgers[place].entries:
        place += 1
    return MessagePosition(ledgers[place].ledger_id, 0)


def ends_before(state: TopicState, position: MessagePosition) -> bool:
    """Whether the topic ends before this place, for certain."""
    place, end = normalised(state, position), normalised(state, state.end)
    return place > end and (state.end_certain or place.ledger_id != end.ledger_id)


def spans_between(state: TopicState, first: MessagePosition, end: MessagePosition) -> list[Span]:
    """The entries with messages from `first` up to before `end`, without those of missing ledgers.

    When the ledgers are not known, those in the end's ledger only: there may be more."""
    if end == LATEST:
        end = state.end
    begin_at = bisect_left(state.ledgers, first.ledger_id, key=_ledger_id)
    spans: list[Span] = []
    for ledger in state.ledgers[begin_at:]:
        if ledger.ledger_id > end.ledger_id:
            break
        if ledger.missing:
            continue
        low, high = entry_bounds(ledger, first, end)
        if low < high:
            spans.append(Span(ledger, low, high - low, _size_bytes(ledger, high - low)))
    return spans


def entry_bounds(ledger: TopicLedger, first: MessagePosition, end: MessagePosition) -> tuple[int, int]:
    """The ledger's entries that have messages from `first` up to before `end`; the second number is exclusive."""
    if first >= end or not first.ledger_id <= ledger.ledger_id <= end.ledger_id:
        return 0, 0
    low = max(first.entry_id, 0) if ledger.ledger_id == first.ledger_id else 0
    high = ledger.entries
    if ledger.ledger_id == end.ledger_id:
        # An end within a batch has some of the batch's messages before it.
        high = min(high, end.entry_id + (end.batch_index > 0))
    return low, max(low, high)


def size_bytes_between(state: TopicState, first: MessagePosition, end: MessagePosition) -> int:
    """How large these entries are, estimated."""
    return sum(span.size_bytes for span in spans_between(state, first, end))


def slices_of(state: TopicState, first: MessagePosition, end: MessagePosition, split_bytes: int) -> list[Slice]:
    """The messages from `first` up to before `end`, cut into slices of about `split_bytes` and of about equal size.

    Each slice begins where the one before it ends; the first begins at `first`, the last ends at `end`. Each entry is
    in exactly one of them. Nothing to read: no slices. When the ledgers are not known, everything is one
    slice, whose ranges `BrokerEntries` reads along with what is between them."""
    end = state.end if end == LATEST else end
    if not state.ledgers_known:
        ranges = stretch_ranges(first, end)
        return [Slice(topic=state.topic, first=first, end=end, ranges=ranges)] if ranges else []
    spans = spans_between(state, first, end)
    if not spans:
        return []
    parts = _cut(spans, _slices_wanted(sum(span.size_bytes for span in spans), split_bytes))
    starts = [first] + [MessagePosition(part[0].ledger_id, part[0].first_entry_id) for part in parts[1:]]
    return [
        Slice(topic=state.topic, first=begins, end=ends, ranges=tuple(part))
        for begins, ends, part in zip(starts, [*starts[1:], end], parts, strict=True)
    ]


def slices_of_all(
    stretches: Sequence[tuple[TopicState, MessagePosition, MessagePosition]], split_bytes: int
) -> list[Slice]:
    """Slices of several topics, each from a place up to before another one. About `SLICES_MAX` of them at the most,
    but at least one for each topic with entries."""
    total_bytes = sum(size_bytes_between(state, first, end) for state, first, end in stretches)
    split_bytes = max(split_bytes, -(-total_bytes // SLICES_MAX))
    return [part for state, first, end in stretches for part in slices_of(state, first, end, split_bytes)]


def stretch_ranges(first: MessagePosition, end: MessagePosition) -> tuple[LedgerRange, ...]:
    """Everything from `first` up to before `end` of a topic whose ledgers nobody knows: the first and the last ledger's
    entries. The last is empty where the end is at a ledger's beginning; it says how far to read all the same."""
    last_entry_id = end.entry_id - (not end.batch_index)
    if first >= end:
        return ()
    if first.ledger_id == end.ledger_id:
        return (_range_of(first.ledger_id, first.entry_id, last_entry_id),)
    return (
        _range_of(first.ledger_id, first.entry_id, LAST_ENTRY_UNKNOWN),
        _range_of(end.ledger_id, 0, last_entry_id),
    )


def _range_of(ledger_id: int, first_entry_id: int, last_entry_id: int) -> LedgerRange:
    return LedgerRange(ledger_id=ledger_id, first_entry_id=first_entry_id, last_entry_id=last_entry_id, size_bytes=0)


def _slices_wanted(total_bytes: int, split_bytes: int) -> int:
    return min(max(-(-total_bytes // max(split_bytes, 1)), 1), SLICES_MAX)


def _cut(spans: list[Span], count: int) -> list[list[LedgerRange]]:
    """Up to `count` parts: an entry belongs to the part in whose share of all bytes its first byte is. More parts come
    only of very many ledgers."""
    total_bytes = sum(span.size_bytes for span in spans)
    parts: list[list[LedgerRange]] = [[]]
    bytes_before = 0
    part = 0
    for span in spans:
        done = 0
        while done < span.entries:
            # Integers, as 2^53 bytes are not so many.
            behind_part = (part + 1) * total_bytes - bytes_before * count
            entries = -(-behind_part * span.entries // (span.size_bytes * count))
            until = span.entries if part + 1 >= count else min(entries, span.entries)
            if until > done:
                if len(parts[-1]) == RANGES_PER_SLICE_MAX:
                    parts.append([])
                parts[-1].append(_range(span, done, until))
                done = until
            if done < span.entries:
                part += 1
                if parts[-1]:
                    parts.append([])
        bytes_before += span.size_bytes
    return parts if parts[-1] else parts[:-1]


def _range(span: Span, done: int, until: int) -> LedgerRange:
    return LedgerRange(
        ledger_id=span.ledger.ledger_id,
        first_entry_id=span.first_entry_id + done,
        last_entry_id=span.first_entry_id + until - 1,
        size_bytes=span.size_bytes * until // span.entries - span.size_bytes * done // span.entries,
        metadata=span.ledger.metadata,
    )


def _size_bytes(ledger: TopicLedger, entries: int) -> int:
    if ledger.size_bytes <= 0:
        return entries * UNKNOWN_ENTRY_BYTES
    return max(ledger.size_bytes * entries // ledger.entries, 1)


def _ledger_id(ledger: TopicLedger) -> int:
    return ledger.ledger_id
