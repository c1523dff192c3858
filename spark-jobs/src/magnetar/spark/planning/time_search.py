"""Where in a topic a point in time is."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable
from itertools import accumulate
from typing import Final, TypeAlias

from magnetar.spark.errors import BadOption
from magnetar.spark.planning.plan import Span, normalised, spans_between
from magnetar.spark.positions import BEGINNING, MessagePosition
from magnetar.spark.topics import TopicLedger, TopicState

CLOCK_DIFFERENCE_MS_MAX: Final = 600_000
"""How far producers' clocks may be ahead of the broker's that closed a ledger; costs a few reads more at the most."""

UNREADABLE_MAX: Final = 8
"""Entries next to an unreadable one that are tried in its place. Holes are rare, and mostly longer than this."""

PublishTimeOf: TypeAlias = Callable[[int, int], Awaitable[int | None]]
"""The publish time of a ledger's entry, in milliseconds; None: it cannot be read."""


async def first_at(state: TopicState, time_ms: int, publish_time_of: PublishTimeOf) -> MessagePosition:
    """The first message that was published at `time_ms` or later; the topic's end if there is none.

    Reads log2(entries) + 1 entries, or up to 1 + `UNREADABLE_MAX` times as many where entries cannot be read. Of equal
    times the first is found. Publish times are by producers' clocks: where they do not ascend, the place found is one
    at which they step over `time_ms` (the message before it is earlier, the one there is not), and there may be other
    such places. Who needs each message of a time asks for an earlier time and filters. Messages in ledgers that were
    closed more than `CLOCK_DIFFERENCE_MS_MAX` before `time_ms` are taken for earlier unseen.

    Raises `BadOption` when the topic's ledgers are not known: then nothing can be searched."""
    if not state.ledgers_known:
        raise BadOption(
            f"{state.topic}: a time is looked for in the topic's ledgers, which the brokers' admin API or the metadata "
            "store tells: set admin.url (and let it show internal stats) or metadata.url, or use publishTimeFrom and "
            "publishTimeTo instead of startingTime and endingTime"
        )
    spans = [span for span in spans_between(state, BEGINNING, state.end) if _may_have(span.ledger, time_ms)]
    before = [0, *accumulate(span.entries for span in spans)]
    low, high = 0, before[-1]
    while low < high:
        middle = (low + high) // 2
        readable, time = await _time_from(spans, before, (middle, high), publish_time_of)
        # What cannot be read is taken for later: then nothing readable is left out before it.
        if time is None or time >= time_ms:
            high = middle
        else:
            low = readable + 1
    if low == before[-1]:
        return normalised(state, state.end)
    return _position(spans, before, low)


def ledgers_searched(state: TopicState, time_ms: int) -> set[int]:
    """The ledgers of which `first_at` may want entries."""
    return {ledger.ledger_id for ledger in state.ledgers if _may_have(ledger, time_ms)}


def _may_have(ledger: TopicLedger, time_ms: int) -> bool:
    return not 0 < ledger.closed_ms < time_ms - CLOCK_DIFFERENCE_MS_MAX


async def _time_from(
    spans: list[Span], before: list[int], bounds: tuple[int, int], publish_time_of: PublishTimeOf
) -> tuple[int, int | None]:
    """The number and the time of the first readable entry of these, of which a few are tried."""
    first, end = bounds
    for number in range(first, min(end, first + 1 + UNREADABLE_MAX)):
        position = _position(spans, before, number)
        time = await publish_time_of(position.ledger_id, position.entry_id)
        if time is not None:
            return number, time
    return first, None


def _position(spans: list[Span], before: list[int], number: int) -> MessagePosition:
    """The position of the entry with this number, counted over all spans."""
    place = bisect_right(before, number) - 1
    span = spans[place]
    return MessagePosition(span.ledger.ledger_id, span.first_entry_id + number - before[place])
