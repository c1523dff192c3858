"""The judge of compacted readings sees each promise that is broken by hand, and has nothing against good readings."""

from __future__ import annotations

from typing import Final

import pytest

from e2e.broker_simulation.checker import check
from e2e.broker_simulation.drawn.compaction import Message, draw_compaction, message_of
from e2e.broker_simulation.history import CompactedEntry, CompactedReading, Content, Entry, History, TopicHistory

TOPIC: Final = "topic"
PRODUCER: Final = "keyed-p"
HORIZON: Final = (1, 6)


def number_of(*wanted: Message) -> int:
    """The first sequence id from which on the producer sends these."""
    for first in range(100_000):
        if all(message_of(PRODUCER, first + index) == message for index, message in enumerate(wanted)):
            return first
    raise AssertionError(f"{wanted} are never sent")


A, B, C = Message("key0", True), Message("key1", True), Message("key2", True)
A_GOES, C_GOES, NO_KEY = Message("key0", False), Message("key2", False), Message(None, True)
STORED: Final = [(A,), (B,), (NO_KEY,), (C,), (B, A), (C_GOES,), (A_GOES, B), (A,), (C,)]
"""By entry id; the horizon is behind the batch of 6."""


def content(entry_id: int) -> Content:
    """What stands there; the sequence ids only say keys and values."""
    return Content(PRODUCER, number_of(*STORED[entry_id]), len(STORED[entry_id]))


LOG: Final = [Entry((1, number), content(number), "") for number in range(len(STORED))]
LEFT: Final = {2: {0}, 6: {1}, 7: {0}, 8: {0}}
"""What compaction leaves up to the horizon, and all that comes behind it."""


def reading(left: dict[int, set[int]], *, quiet: bool = True) -> CompactedReading:
    """Of these messages of these entries."""
    entries = [
        CompactedEntry((1, number), LOG[number].content, frozenset(indexes), 50.0 + number)
        for number, indexes in left.items()
    ]
    found = CompactedReading("reader", TOPIC, quiet=quiet, floor=HORIZON if quiet else (-1, -1), entries=entries)
    found.whole, found.end, found.ended_at = True, (1, 8), 60.0
    return found


def wrong(found: CompactedReading, *, keeps_without_key: bool = True) -> list[str]:
    """What the judge says."""
    topic = TopicHistory(TOPIC, deduplication=False, logs=[LOG])
    for entry in LOG:
        topic.sent[entry.content], topic.attempts[entry.content] = "", len(LOG)
        topic.asked[entry.content] = 1.0
    history = History({TOPIC: topic}, compacted=[found], keeps_without_key=keeps_without_key)
    return [what for what in check(history) if what.startswith("reader")]


def changed(**changes: set[int]) -> dict[int, set[int]]:
    """`LEFT` with other messages of the entries e0, e1 …"""
    found = {**LEFT, **{int(name[1:]): indexes for name, indexes in changes.items()}}
    return {number: found[number] for number in sorted(found) if found[number]}


@pytest.mark.parametrize("quiet", [True, False])
def test_a_good_reading_has_nothing_wrong(quiet: bool) -> None:
    assert wrong(reading(LEFT, quiet=quiet)) == []


def test_without_compaction_everything_comes() -> None:
    everything = {number: set(range(len(messages))) for number, messages in enumerate(STORED)}
    assert wrong(reading(everything, quiet=False)) == []
    # But not behind a compaction that is over.
    assert any("the horizon is not before (1, 6)" in one for one in wrong(reading(everything)))


@pytest.mark.parametrize(
    ("left", "words"),
    [
        (changed(e8=set()), "of (1, 8) with the key key2 is missing, and is the newest one"),
        (changed(e6=set()), "the message 1 of (1, 6) with the key key1 is missing, and is the newest one"),
        (changed(e2=set()), "the message 0 of (1, 2) with the key None is missing"),
        (changed(e1={0}), "the message 0 of (1, 1) with the key key1 comes, though"),
        (changed(e3={0}), "the message 0 of (1, 3) with the key key2 comes, though the tombstone 0 of (1, 5)"),
    ],
)
def test_the_judge_sees_what_is_missing_and_what_is_too_much(left: dict[int, set[int]], words: str) -> None:
    found = wrong(reading(left))
    assert any(words in one for one in found), found


def test_keys_come_without_their_tombstone_only_where_a_compaction_came_between() -> None:
    """Two horizons in one reading: the value before the first, its tombstone before the second."""
    left = changed(e0={0}, e1={0}, e3={0}, e4={0, 1})
    assert wrong(reading(left, quiet=False)) == []
    found = reading(left)
    found.floor = (1, 0)
    assert any("comes, though the tombstone" in one for one in wrong(found))


def test_nothing_is_missing_for_the_sake_of_what_was_not_sent_yet() -> None:
    found = reading(changed(e6={1}), quiet=False)
    assert wrong(found) == []
    for entry in range(len(found.entries)):
        found.entries[entry] = found.entries[entry]._replace(at=0.5)
    found.ended_at = 0.5
    assert any("is missing before anybody has sent" in one for one in wrong(found))


def test_entries_come_in_order_and_as_they_were_stored() -> None:
    found = reading(LEFT)
    found.entries.append(found.entries[0])
    assert any("(1, 2) comes after (1, 8)" in one for one in wrong(found))
    found = reading(LEFT)
    found.entries[0] = found.entries[0]._replace(content=content(1))
    assert any("(1, 2) is read as" in one for one in wrong(found))


def test_messages_without_a_key_may_go_where_brokers_do_not_keep_them() -> None:
    assert wrong(reading(changed(e2=set())), keeps_without_key=False) == []


def test_who_comes_back_may_find_an_older_compaction() -> None:
    """The reader has come to 6 by the new one, and goes on by none: then 7 stays although nothing is newer."""
    found = reading(changed(e6={1}), quiet=False)
    found.resumed.append((1, 6))
    assert wrong(found) == []


def test_a_quarter_of_the_seeds_is_compacted() -> None:
    drawn = sum(draw_compaction(seed, alone=True) is not None for seed in range(1_000))
    assert 200 < drawn < 300
