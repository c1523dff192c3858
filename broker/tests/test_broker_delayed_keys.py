"""The minutes of delayed entries in order, however many there are."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.broker.subscriptions import delay_bucket, delayed_index, sorted_keys
from magnetar.broker.subscriptions.delay_bucket import BUCKET_BITS
from magnetar.broker.subscriptions.delayed_index import DelayedIndex
from magnetar.broker.subscriptions.sorted_keys import SortedKeys

STEPS = st.lists(st.tuples(st.sampled_from(["add", "first", "take"]), st.integers(0, 60)), max_size=80)


@given(STEPS, st.integers(2, 6))
def test_as_one_sorted_list(steps: list[tuple[str, int]], list_keys_max: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_keys, "LIST_KEYS_MAX", list_keys_max)
        keys, model = SortedKeys(), set[int]()
        for step, key in steps:
            if step == "add" and key not in model:
                keys.add(key)
                model.add(key)
            elif step == "take":
                taken = sorted(one for one in model if one < key)
                assert keys.take_before(key) == taken
                model.difference_update(taken)
            assert keys.first_from(key) == min((one for one in model if one >= key), default=-1)
            assert keys.count == len(model)


def test_so_many_minutes_that_no_more_are_read() -> None:
    index = DelayedIndex()
    for number in range(20):
        # Ten in one minute, then one in each.
        index.add(max(0, number - 9) << BUCKET_BITS, (0, number), 1)
    assert [index.full, index._keys.count] == [False, 11]
    # As if all others were there: a constant cannot be changed where the module is compiled.
    fullness = []
    for count in (delayed_index.BUCKETS_MAX - 1, delayed_index.BUCKETS_MAX):
        index._keys.count = count
        fullness.append(index.full)
    assert fullness == [False, True]
    index._keys.count = 11
    index.stand_at("one", 9)
    assert [index.full, index.count] == [False, 2]


def test_buckets_before_their_time_share_what_they_do_not_use() -> None:
    index = DelayedIndex()
    for number in range(2):
        index.add(number << BUCKET_BITS, (0, number), 1)
    assert index.bucket(0).chain(10)
    assert index.bucket(0).head(0) == 0
    assert index.bucket(1).chain(10)
    assert (index.bucket(0).following(0), index.bucket(1).following(0)) == (-1, -1)
    assert not delay_bucket.NOT_ORDERED
    assert not delay_bucket.NONE_OCCUPIED
    assert not delay_bucket.NO_SEGMENTS


@pytest.mark.slow
def test_each_minute_costs_the_same_among_many() -> None:
    """A hundred thousand others make no list that is moved."""
    chance = random.Random(1)
    index = DelayedIndex()

    def microseconds(count: int) -> float:
        began = time.process_time()
        for _ in range(count):
            index.add(chance.randrange(1 << 46), (0, index.count), 1)
        return (time.process_time() - began) / count * 1e6

    first = min(microseconds(1_000) for _ in range(5))
    for _ in range(95):
        microseconds(1_000)
    assert min(microseconds(1_000) for _ in range(5)) < 10 * first
