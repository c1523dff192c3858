"""The delayed entries of one minute: in the order of their times, in a few bytes each, and never moved when many."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.broker.subscriptions.delay_bucket import BUCKET_MS, NEAR_MAX, NO_ENTRY, SEGMENT_ENTRIES, DelayBucket
from magnetar.core.ids import Position

FAR = 1 << 40
ENTRIES = 2 * SEGMENT_ENTRIES + 100


def in_order(bucket: DelayBucket) -> list[tuple[int, Position, int]]:
    """All that is in a bucket: offset, position, hash."""
    found = []
    offset = bucket.next_occupied(0)
    while offset < BUCKET_MS:
        number = bucket.head(offset)
        while number != NO_ENTRY:
            found.append((offset, bucket.position(number), bucket.key_hash(number)))
            number = bucket.following(number)
        offset = bucket.next_occupied(offset + 1)
    return found


POSITIONS = {
    "one ledger": lambda number: (7, number),
    "two ledgers": lambda number: (7 + number % 2, number),
    "one after the other": lambda number: (7 + number // 5_000, number % 5_000),
    "far apart": lambda number: (7, number * FAR),
    "just too far apart": lambda number: (7, number * (NEAR_MAX // (SEGMENT_ENTRIES - 1) + 1)),
    "backwards": lambda number: (7, FAR - number),
}


@pytest.mark.parametrize("positions", POSITIONS.values(), ids=POSITIONS)
def test_many_entries_come_in_the_order_of_their_times(positions: Callable[[int], Position]) -> None:
    bucket = DelayBucket()
    put = []
    for number in range(ENTRIES):
        offset = number * 31 % 1_000
        bucket.add(offset, positions(number), number * 7)
        put.append((offset, positions(number), number * 7))
    assert len(bucket) == ENTRIES
    assert bucket.first_offset == 0
    while not bucket.chain(500):
        assert bucket.next_known(0) == 0
    assert in_order(bucket) == sorted(put, key=lambda each: each[0])
    numbers = range(0, ENTRIES, 97)
    assert [bucket.position(number) for number in numbers] == [positions(number) for number in numbers]


STEPS = st.lists(
    st.one_of(st.tuples(st.just("add"), st.integers(1, 3_000)), st.tuples(st.just("chain"), st.integers(1, 3_000)))
)


@settings(deadline=None, max_examples=30)
@given(STEPS)
def test_entries_may_come_while_others_are_ordered(steps: list[tuple[str, int]]) -> None:
    bucket = DelayBucket()
    put: list[tuple[int, Position, int]] = []
    for step, count in steps:
        if step == "chain":
            bucket.chain(count)
        else:
            for number in range(len(put), len(put) + count):
                put.append((number * 7919 % 50, (1, number), number))
                bucket.add(*put[-1])
    while not bucket.chain(1_000):
        pass
    assert len(bucket) == len(put)
    assert in_order(bucket) == sorted(put, key=lambda each: each[0])


def test_what_is_full_is_not_moved_any_more() -> None:
    bucket = DelayBucket()
    for number in range(ENTRIES):
        bucket.add(5, (7, number), number)
    first, second = bucket._full
    for number in range(ENTRIES, 2 * ENTRIES):
        bucket.add(5, (7, number), number)
    assert bucket._full[0] is first
    assert bucket._full[1] is second
    assert len(first.offsets) == len(first._entries) == SEGMENT_ENTRIES
    assert first._entries.itemsize == 4
    assert len(first._ledgers) == 1
