"""How far the next micro-batch of a stream goes when it is limited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from magnetar.spark.planning.plan import Span, entry_bounds, normalised, spans_between
from magnetar.spark.positions import BEGINNING, MessagePosition
from magnetar.spark.topics import TopicState

ROWS_PER_ENTRY_UNKNOWN: Final = 1.0
"""Rows per entry assumed of a topic of which nothing was read yet: too many rows are admitted where producers batch,
until it is known."""

_ROUNDING: Final = 1e-6
"""A share of 6 of 20 rows is 6 and not 5.999…"""


@dataclass(slots=True, kw_only=True)
class _Backlog:
    state: TopicState
    start: MessagePosition
    end: MessagePosition
    spans: list[Span]
    rows_per_entry: float
    entries: int
    size_bytes: int


def admit(
    states: Mapping[str, TopicState],
    starts: Mapping[str, MessagePosition],
    ends: Mapping[str, MessagePosition],
    rows_max: int | None,
    bytes_max: int | None,
    rows_per_entry: Mapping[str, float],
) -> dict[str, MessagePosition]:
    """For each topic of `states` where the next batch ends, exclusive. Topics without a start begin at their beginning;
    those that are in `ends` go no further than there.

    Each limit is shared by the topics in proportion to their backlogs, in rows and in bytes, so that all of them come
    to their ends after about as many batches. A topic with a backlog gets one entry at the least: then every topic
    moves, and the limits are exceeded by these single entries at the most (rows and bytes are estimates, by
    `rows_per_entry` and each ledger's average entry).

    Of a topic whose ledgers are not known only the last ledger is counted: what is before it comes along whole.

    When there is nothing new at all, the starts come back as they are, so that there is no empty batch."""
    backlogs = {
        topic: _backlog(
            state,
            (starts.get(topic, BEGINNING), ends.get(topic, state.end)),
            rows_per_entry.get(topic, ROWS_PER_ENTRY_UNKNOWN),
        )
        for topic, state in states.items()
    }
    if not any(backlog.entries or _has_uncounted(backlog) for backlog in backlogs.values()):
        return {topic: starts.get(topic, normalised(state, BEGINNING)) for topic, state in states.items()}
    rows_total = sum(backlog.entries * backlog.rows_per_entry for backlog in backlogs.values())
    bytes_total = sum(backlog.size_bytes for backlog in backlogs.values())
    rows_share = 1.0 if rows_max is None or rows_total <= rows_max else rows_max / rows_total
    bytes_share = 1.0 if bytes_max is None or bytes_total <= bytes_max else bytes_max / bytes_total
    return {topic: _reached(backlog, rows_share, bytes_share) for topic, backlog in backlogs.items()}


def _backlog(state: TopicState, bounds: tuple[MessagePosition, MessagePosition], rows_per_entry: float) -> _Backlog:
    start, end = bounds
    spans = spans_between(state, start, end)
    return _Backlog(
        state=state,
        start=start,
        end=end,
        spans=spans,
        rows_per_entry=max(rows_per_entry, 1e-3),
        entries=sum(span.entries for span in spans),
        size_bytes=sum(span.size_bytes for span in spans),
    )


def _has_uncounted(backlog: _Backlog) -> bool:
    """Whether there is a hole to get over, or ledgers that are not known."""
    if not backlog.state.ledgers_known:
        return backlog.start < backlog.end
    for ledger in backlog.state.ledgers:
        low, high = entry_bounds(ledger, backlog.start, backlog.end)
        if ledger.missing and low < high:
            return True
    return False


def _reached(backlog: _Backlog, rows_share: float, bytes_share: float) -> MessagePosition:
    state = backlog.state
    start, end = normalised(state, backlog.start), normalised(state, backlog.end)
    if start >= end:
        return start  # Nothing new; or it is beyond the end, which is for those who look for losses.
    if rows_share >= 1.0 and bytes_share >= 1.0:
        return end
    entries_left = int(backlog.entries * rows_share + _ROUNDING)
    bytes_left = int(backlog.size_bytes * bytes_share + _ROUNDING)
    for place, span in enumerate(backlog.spans):
        admitted = min(span.entries, entries_left, bytes_left * span.entries // span.size_bytes)
        if admitted < span.entries:
            if place == 0 and admitted == 0:
                admitted = 1
            behind = MessagePosition(span.ledger.ledger_id, span.first_entry_id + admitted)
            return min(normalised(state, behind), end)
        entries_left -= span.entries
        bytes_left -= span.size_bytes
    return end
