"""Whether messages that should be read are gone, which, and why, in words for people who are woken by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from magnetar.spark.options.offsets import LATEST
from magnetar.spark.planning.plan import ends_before, entry_bounds, normalised
from magnetar.spark.positions import BEGINNING, MessagePosition
from magnetar.spark.topics import TopicState

_UNKNOWN: Final = -1
"""How many entries a ledger has that nobody can be asked about."""


class LossKind(Enum):
    """Why messages are gone."""

    RETENTION = "retention"
    """The topic begins behind them."""
    HOLE = "hole"
    """Older and newer ones are there."""
    TRUNCATED = "truncated"
    """The topic ends before them."""
    TOPIC_DELETED = "topic deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Messages that are gone. As text it is for the user."""

    kind: LossKind
    topic: str
    first: MessagePosition
    end: MessagePosition
    """The position right behind the messages that are gone."""
    last: MessagePosition | None
    """The last entry that is gone, where it is known."""
    entries: int | None
    """How many entries are gone; None: that is not known (perhaps none)."""
    cause: str
    remedy: str

    def __str__(self) -> str:
        if self.end == self.first:
            return f"{self.topic}: {self.first}, where reading should go on, is not there. {self.cause} {self.remedy}"
        if self.kind is LossKind.RETENTION and self.entries is None:
            return f"{self.topic}: {_unseen(self.first, self.end)}. {self.cause} {self.remedy}"
        if self.last is None:
            extent = f"entries from {_place(self.first)} up to before {_place(self.end)} can no longer be read"
        elif self.last == self.first:
            extent = f"entry {self.first} can no longer be read"
        else:
            extent = f"entries {self.first} to {self.last} can no longer be read"
        count = f"{self.entries} in all" if self.entries is not None else "it cannot be known how many; perhaps none"
        return f"{self.topic}: {extent} ({count}). {self.cause} {self.remedy}"


def losses(
    state: TopicState, first: MessagePosition, end: MessagePosition, known_entries: Mapping[int, int]
) -> list[Loss]:
    """What is gone of the messages from `first` up to before `end`. From `BEGINNING` on nothing of the past is missed.

    `known_entries` are ledgers of this topic that were seen closed, with their numbers of entries: one that was read
    to its end and then trimmed is no loss, and others can be counted. What was written and trimmed while nobody looked
    is noticed, unless `first` was the end of a closed ledger and no newer one was there yet. What is gone from between
    other ledgers, and of which the query had come to the beginning, had no entries: brokers take out such ledgers when
    they are closed, and none else but from the front (Pulsar: ManagedLedgerImpl.ledgerClosed, internalTrimLedgers).

    Of a topic whose ledgers are not known only `TRUNCATED` can be seen.

    A state that was asked for earlier than `end` was may find `TRUNCATED` wrongly: ask anew before believing it."""
    end = state.end if end == LATEST else end
    first = state.end if first == LATEST else first
    beyond = _beyond_end(state, first, end)
    if not state.ledgers_known:
        # Of an empty topic nobody tells where it would go on.
        return [] if beyond is None or state.end == BEGINNING else [beyond]
    found = [] if beyond is not None and beyond.first == first else _before_beginning(state, first, end, known_entries)
    found += _holes(state, first, end, known_entries)
    return found + ([] if beyond is None else [beyond])


def deleted_topic(topic: str, first: MessagePosition) -> Loss:
    """The loss of a topic which was read up to before `first` and is not there any more. What it held from there on is
    gone."""
    return Loss(
        kind=LossKind.TOPIC_DELETED,
        topic=topic,
        first=first,
        end=LATEST,
        last=None,
        entries=None,
        cause="The topic was deleted: by an administrator, or as inactive for want of subscriptions and clients.",
        remedy="With failOnDataLoss=false the query goes on without it, and reads it from its beginning if it is made "
        "anew; the option predefinedSubscription keeps a topic from being deleted as inactive.",
    )


def missing_compaction(topic: str, ledger_id: int) -> Loss:
    """The loss of the ledger which a topic was compacted into. What it held is not known."""
    cause = (
        f"The topic was compacted into ledger {ledger_id}, and the metadata store has it no more. If it was compacted "
        "again a moment ago, its broker alone knows into which one: set admin.url, with a role that may see internal "
        "stats, or try again in a minute."
    )
    return _hole(topic, ledger_id, 0, _UNKNOWN, cause)


def goes_on_from(state: TopicState, first: MessagePosition) -> MessagePosition:
    """Where a query that accepts losses reads on. From a place beyond the topic's end it is the topic's beginning when
    the ledger is unknown: all that is there was written since, or is of another topic of this name."""
    place = normalised(state, first)
    if place <= normalised(state, state.end):
        return place
    known = any(ledger.ledger_id == first.ledger_id for ledger in state.ledgers)
    return normalised(state, state.end if known else BEGINNING)


def _beyond_end(state: TopicState, first: MessagePosition, end: MessagePosition) -> Loss | None:
    real_end = normalised(state, state.end)
    wanted = max(normalised(state, end), normalised(state, first))
    if not ends_before(state, wanted):
        return None
    begins = max(first, state.end)
    same_ledger = begins.ledger_id == wanted.ledger_id and wanted.entry_id > begins.entry_id
    ledger_known = any(ledger.ledger_id == wanted.ledger_id for ledger in state.ledgers)
    if ledger_known:
        cause = f"The topic ends before {real_end}: its end was cut off, or the place is of another cluster."
    else:
        cause = (
            f"The topic {f'ends before {real_end}' if state.ledgers else 'is empty'} and has no ledger "
            f"{wanted.ledger_id}: it was truncated, it was deleted and made anew in a cluster that was set up anew, "
            "or the place is of another topic or cluster."
        )
    return Loss(
        kind=LossKind.TRUNCATED,
        topic=state.topic,
        first=begins,
        end=wanted,
        last=_last_before(wanted) if same_ledger else None,
        entries=wanted.entry_id + (wanted.batch_index > 0) - begins.entry_id if same_ledger else None,
        cause=cause,
        remedy="Look whether service.url, topic and startingOffsets (or the checkpoint) belong together. With "
        f"failOnDataLoss=false the query goes on from {goes_on_from(state, first)}.",
    )


def _before_beginning(
    state: TopicState, first: MessagePosition, end: MessagePosition, known_entries: Mapping[int, int]
) -> list[Loss]:
    if first.ledger_id < 0 or not state.ledgers or first.ledger_id >= state.ledgers[0].ledger_id or end <= first:
        return []
    oldest = MessagePosition(state.ledgers[0].ledger_id, 0)
    behind = min(oldest, end)
    # Ids are given out in the whole cluster: other ledgers between may be of other topics.
    gone = {ledger: known_entries[ledger] for ledger in sorted(known_entries) if ledger < oldest.ledger_id}
    last, count = _known_extent(gone, first, behind)
    if first.ledger_id not in gone:
        last, known_count = None, None
    elif count == 0:
        return []
    else:
        known_count = count
    return [
        Loss(
            kind=LossKind.RETENTION,
            topic=state.topic,
            first=first,
            end=behind,
            last=last,
            entries=known_count,
            cause=f"The topic now begins at {oldest}: retention has trimmed what is older before the query came to it, "
            "or the topic was deleted and made anew (then none of its ledgers is older).",
            remedy="The option predefinedSubscription keeps what the query has not read yet, and so does a longer "
            "retention of the namespace. With failOnDataLoss=false the query goes on from "
            f"{goes_on_from(state, first)}.",
        )
    ]


def _holes(
    state: TopicState, first: MessagePosition, end: MessagePosition, known_entries: Mapping[int, int]
) -> list[Loss]:
    found: list[Loss] = []
    present = {ledger.ledger_id for ledger in state.ledgers}
    for ledger in state.ledgers:
        low, high = entry_bounds(ledger, first, end)
        if ledger.missing and low < high:
            cause = f"The topic still lists ledger {ledger.ledger_id}, and the metadata store has it no more."
            found.append(_hole(state.topic, ledger.ledger_id, low, high, cause))
    if not state.ledgers:
        return found
    oldest, newest = state.ledgers[0].ledger_id, state.ledgers[-1].ledger_id
    between = {ledger: known_entries[ledger] for ledger in known_entries if oldest < ledger < newest}
    for place in (first, end):
        if oldest < place.ledger_id < newest:
            between.setdefault(place.ledger_id, _UNKNOWN)
    for ledger_id, entries in between.items():
        if ledger_id in present or not first.ledger_id <= ledger_id <= end.ledger_id or end <= first:
            continue
        low = first.entry_id if ledger_id == first.ledger_id else 0
        high = entries
        if ledger_id == end.ledger_id:
            asked = end.entry_id + (end.batch_index > 0)
            high = asked if entries == _UNKNOWN else min(asked, entries)
        cause = (
            f"The topic has no ledger {ledger_id} any more, though it has older ones: retention does not do that. "
            "Someone removed it, or the place is of another topic."
        )
        never_written = high == _UNKNOWN and first == MessagePosition(ledger_id, 0)
        if low < high or (high == _UNKNOWN and not never_written):
            found.append(_hole(state.topic, ledger_id, low, high, cause))
    return sorted(found, key=lambda loss: loss.first)


def _hole(topic: str, ledger_id: int, low: int, high: int, cause: str) -> Loss:
    """`high` is exclusive."""
    known = high != _UNKNOWN
    return Loss(
        kind=LossKind.HOLE,
        topic=topic,
        first=MessagePosition(ledger_id, low),
        end=MessagePosition(ledger_id, high) if known else MessagePosition(ledger_id + 1, 0),
        last=MessagePosition(ledger_id, high - 1) if known else None,
        entries=high - low if known else None,
        cause=cause,
        remedy="Look what happened to it on the bookies and whether a backup has it: nothing here brings it back. With "
        "failOnDataLoss=false the query goes on behind it.",
    )


def _known_extent(
    gone: Mapping[int, int], first: MessagePosition, behind: MessagePosition
) -> tuple[MessagePosition | None, int]:
    """The last entry and the number of entries of these ledgers from `first` up to before `behind`."""
    last: MessagePosition | None = None
    count = 0
    for ledger_id, entries in gone.items():
        if not first.ledger_id <= ledger_id <= behind.ledger_id:
            continue
        low = first.entry_id if ledger_id == first.ledger_id else 0
        high = min(entries, behind.entry_id + (behind.batch_index > 0)) if ledger_id == behind.ledger_id else entries
        if low < high:
            last, count = MessagePosition(ledger_id, high - 1), count + high - low
    return last, count


def _last_before(end: MessagePosition) -> MessagePosition:
    return MessagePosition(end.ledger_id, end.entry_id if end.batch_index else end.entry_id - 1)


def _unseen(first: MessagePosition, end: MessagePosition) -> str:
    """What a ledger held that is gone, and whose last entry nobody knows."""
    ledger_id = first.ledger_id
    what, if_any = f"entries after {ledger_id}:{first.entry_id - 1} of ledger {ledger_id}", ", if any,"
    if first.batch_index:
        what, if_any = f"messages from {first} on of ledger {ledger_id}", ""
    elif not first.entry_id:
        what = f"entries of ledger {ledger_id}"
    if end.ledger_id == ledger_id:
        extent = f"{what} up to before {end}{if_any}"
    else:
        extent = f"{what}{if_any or ','} and of others behind it before {end}, if any,"
    return (
        f"{extent} can no longer be read (how many cannot be known: the query has not seen where ledger {ledger_id} "
        "ended)"
    )


def _place(position: MessagePosition) -> str:
    if position == BEGINNING:
        return "the topic's beginning"
    return "the topic's end" if position == LATEST else str(position)
