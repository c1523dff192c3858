from __future__ import annotations

import itertools
from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st
from magnetar.ledger.striping import covered, keeps, kept_entries, write_set

Shape: TypeAlias = tuple[int, int, int]
shapes: st.SearchStrategy[Shape] = st.tuples(st.integers(1, 7), st.integers(1, 7), st.integers(1, 7)).map(
    lambda sizes: (max(sizes), sorted(sizes)[1], min(sizes))
)


def test_write_sets_go_round() -> None:
    assert [write_set(entry, 3, 2) for entry in range(4)] == [[0, 1], [1, 2], [2, 0], [0, 1]]
    assert write_set(5, 3, 3) == [2, 0, 1]


@given(shape=shapes, first=st.integers(0, 10**12), count=st.integers(0, 30))
def test_kept_entries_are_those_whose_write_set_names_the_bookie(shape: Shape, first: int, count: int) -> None:
    ensemble, write_quorum, _ = shape
    for index in range(ensemble):
        expected = [entry for entry in range(first, first + count) if index in write_set(entry, ensemble, write_quorum)]
        assert list(kept_entries(index, first, first + count - 1, ensemble, write_quorum)) == expected
        kept = [entry for entry in range(first, first + count) if keeps(index, entry, ensemble, write_quorum)]
        assert kept == expected


@given(shape=shapes, data=st.data())
def test_coverage_means_that_no_entry_can_still_be_acknowledged(shape: Shape, data: st.DataObject) -> None:
    ensemble, write_quorum, ack_quorum = shape
    answered = data.draw(st.sets(st.integers(0, ensemble - 1)))
    silent = set(range(ensemble)) - answered
    acknowledgeable = any(
        set(quorum) <= silent
        for entry in range(ensemble)
        for quorum in itertools.combinations(write_set(entry, ensemble, write_quorum), ack_quorum)
    )
    assert covered(answered, *shape) == (not acknowledgeable)
