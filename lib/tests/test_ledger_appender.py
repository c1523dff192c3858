"""The appender against a twin that keeps a set of bookies per entry and is too simple to be wrong."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.ledger.appender import Appender, AppenderState
from magnetar.ledger.striping import write_set


class Twin:
    """BookKeeper's rules entry by entry, and that of groups: they are confirmed as a whole."""

    def __init__(self, ensemble: int, write_quorum: int, ack_quorum: int) -> None:
        self.shape = (ensemble, write_quorum, ack_quorum)
        self.confirmed = -1
        self.pushed = -1
        self.ends: list[int] = []
        self.acknowledged: dict[int, set[int]] = {}
        self.failed: set[int] = set()

    def append(self, count: int) -> None:
        self.pushed += count
        self.ends.append(self.pushed)

    def ack(self, index: int, entry_id: int) -> None:
        if index not in self.failed and entry_id <= self.pushed:
            self.acknowledged.setdefault(entry_id, set()).add(index)
            self.confirm()

    def confirm(self) -> None:
        complete = self.confirmed
        while not self.failed and len(self.acknowledged.get(complete + 1, ())) >= self.shape[2]:
            complete += 1
        self.confirmed = max([end for end in self.ends if end <= complete], default=-1)

    def replace(self, indexes: Sequence[int]) -> None:
        self.failed.difference_update(indexes)
        for entry_id, acknowledged in self.acknowledged.items():
            if entry_id > self.confirmed:
                acknowledged.difference_update(indexes)
        self.confirm()


def sent(appender: Appender, count: int) -> dict[int, list[int]]:
    return {index: list(entry_ids) for index, entry_ids in appender.append(count)}


def sent_singly(appender: Appender, count: int) -> dict[int, list[int]]:
    """So many groups of one entry."""
    found: dict[int, list[int]] = {}
    for _ in range(count):
        for index, entry_ids in sent(appender, 1).items():
            found.setdefault(index, []).extend(entry_ids)
    return dict(sorted(found.items()))


def test_one_bookie() -> None:
    appender = Appender(1, 1, 1)
    assert sent_singly(appender, 3) == {0: [0, 1, 2]}
    assert appender.acknowledged(0, [0, 1])
    assert appender.last_add_confirmed == 1
    assert not appender.acknowledged(0, [0, 1])
    assert appender.acknowledged(0, [2])
    assert sent(appender, 1) == {0: [3]}


def test_group_size_does_not_matter_to_the_cost_of_a_group() -> None:
    appender = Appender(1, 1, 1)
    ((index, entry_ids),) = appender.append(10**12)
    assert (index, entry_ids) == (0, range(10**12))
    assert not appender.acknowledged(0, range(10))
    assert appender.quorum_up_to == 9


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 3, 2), (3, 2, 2)])
def test_a_group_is_confirmed_as_a_whole(shape: tuple[int, int, int]) -> None:
    """Half of one was told to bookies and written into the metadata; those who follow a ledger showed it, and again in
    the next ledger, to which the group was sent again."""
    appender = Appender(*shape)
    for count in (2, 5, 3):
        appender.append(count)
    for index in range(shape[0]):
        appender.acknowledged(index, [entry for entry in range(5) if index in write_set(entry, *shape[:2])])
    assert (appender.last_add_confirmed, appender.quorum_up_to) == (1, 4)
    appender.validate()
    for index in range(shape[0]):
        appender.acknowledged(index, [entry for entry in range(5, 10) if index in write_set(entry, *shape[:2])])
    assert appender.last_add_confirmed == appender.quorum_up_to == 9
    appender.validate()


@pytest.mark.parametrize("shape", [(2, 2, 1), (3, 3, 2), (3, 2, 2)])
def test_a_change_in_the_middle_of_a_group_begins_before_it(shape: tuple[int, int, int]) -> None:
    appender = Appender(*shape)
    appender.append(1)
    appender.append(6)
    for index in range(shape[0]):
        appender.acknowledged(index, [entry for entry in range(4) if index in write_set(entry, *shape[:2])])
    assert appender.quorum_up_to == 3
    appender.bookie_failed(0)
    resent = {index: list(entry_ids) for index, entry_ids in appender.replaced([0])}
    assert resent == {0: [entry for entry in range(1, 7) if 0 in write_set(entry, *shape[:2])]}
    assert appender.last_add_confirmed == 0
    appender.validate()
    for index in range(1, shape[0]):
        appender.acknowledged(index, [entry for entry in range(1, 7) if index in write_set(entry, *shape[:2])])
    assert (appender.last_add_confirmed == 6) == (shape == (2, 2, 1) or shape == (3, 3, 2))
    appender.acknowledged(0, resent[0])
    assert appender.last_add_confirmed == 6
    appender.validate()


def test_what_a_quorum_has_of_a_group_is_looked_at_anew_when_one_of_it_is_replaced() -> None:
    appender = Appender(3, 2, 2)
    appender.append(1)
    appender.append(4)
    assert [write_set(entry, 3, 2) for entry in (2, 3, 4)] == [[2, 0], [0, 1], [1, 2]]
    for index in range(3):
        appender.acknowledged(index, [entry for entry in range(4) if index in write_set(entry, 3, 2)])
    appender.bookie_failed(0)
    appender.replaced([0])
    assert not appender.acknowledged(1, [4])
    assert not appender.acknowledged(2, [4])
    assert appender.quorum_up_to == 1
    assert appender.acknowledged(0, [2, 3])
    assert appender.last_add_confirmed == 4


def test_the_ack_quorum_decides() -> None:
    appender = Appender(3, 3, 2)
    assert sent_singly(appender, 2) == {0: [0, 1], 1: [0, 1], 2: [0, 1]}
    assert not appender.acknowledged(0, [0, 1])
    assert appender.acknowledged(2, [0])
    assert appender.last_add_confirmed == 0
    assert appender.acknowledged(1, [0, 1])
    assert appender.last_add_confirmed == 1


def test_an_entry_that_is_answered_twice_stands_for_no_other() -> None:
    appender = Appender(1, 1, 1)
    sent_singly(appender, 3)
    assert appender.acknowledged(0, [0, 0, 2])
    assert appender.last_add_confirmed == 0


def test_striped_entries_go_to_their_write_sets() -> None:
    appender = Appender(3, 2, 2)
    assert sent_singly(appender, 4) == {0: [0, 2, 3], 1: [0, 1, 3], 2: [1, 2]}
    appender.acknowledged(1, [1])
    appender.acknowledged(2, [1])
    assert appender.last_add_confirmed == -1
    appender.acknowledged(0, [0, 2])
    assert appender.acknowledged(1, [0])
    assert appender.last_add_confirmed == 1


@pytest.mark.parametrize("shape", [(3, 3, 2), (3, 2, 2)])
def test_nothing_is_confirmed_during_a_change(shape: tuple[int, int, int]) -> None:
    appender = Appender(*shape)
    sent_singly(appender, 3)
    for index in range(3):
        appender.acknowledged(index, [0])
    assert appender.last_add_confirmed == 0
    assert appender.bookie_failed(0)
    assert not appender.bookie_failed(1)
    assert not appender.acknowledged(1, [1, 2])
    assert not appender.acknowledged(2, [1, 2])
    assert sent_singly(appender, 2) == {2: [entry for entry in (3, 4) if 2 in write_set(entry, *shape[:2])]}
    resent = {index: list(entry_ids) for index, entry_ids in appender.replaced([0])}
    assert resent == {0: [entry for entry in (1, 2, 3, 4) if 0 in write_set(entry, *shape[:2])]}
    assert appender.failed_bookies == (1,)
    appender.replaced([1])
    assert appender.state is AppenderState.OPEN
    appender.validate()


def test_silent_bookies_are_named() -> None:
    whole = Appender(3, 3, 2)
    whole.append(4)
    whole.acknowledged(1, [0, 1])
    whole.acknowledged(2, [1])
    assert whole.silent_bookies(0) == [0, 2]
    assert whole.silent_bookies(1) == [0]
    striped = Appender(3, 2, 2)
    striped.append(2)
    striped.acknowledged(1, [0, 1])
    assert striped.silent_bookies(0) == [0]
    assert striped.silent_bookies(1) == [2]


def test_a_failed_one_takes_nothing() -> None:
    appender = Appender(3, 2, 2)
    appender.append(2)
    assert appender.fail()
    assert not appender.fail()
    assert not appender.acknowledged(0, [0])
    assert not appender.bookie_failed(0)
    appender.validate()


step: st.SearchStrategy[tuple[str, int, list[int]]] = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 4), st.just([])),
    st.tuples(st.just("ack"), st.integers(0, 3), st.lists(st.integers(0, 14), max_size=5)),
    st.tuples(st.just("run"), st.integers(0, 3), st.lists(st.integers(0, 14), min_size=2, max_size=2)),
    st.tuples(st.just("fail"), st.integers(0, 3), st.just([])),
    st.tuples(st.just("replace"), st.integers(0, 3), st.just([])),
)


@pytest.mark.slow
@settings(max_examples=300)
@given(shape=st.sampled_from([(1, 1, 1), (2, 2, 1), (3, 3, 2), (3, 2, 2), (4, 3, 2), (4, 2, 1)]), steps=st.lists(step))
def test_it_never_confirms_what_the_twin_would_not(
    shape: tuple[int, int, int], steps: list[tuple[str, int, list[int]]]
) -> None:
    appender, twin = Appender(*shape), Twin(*shape)
    striped = shape[0] != shape[1]
    for what, number, entry_ids in steps:
        index = number % shape[0]
        if what == "append":
            appender.append(number)
            twin.append(number)
        elif what in ("ack", "run"):
            if what == "run":
                entry_ids = list(range(min(entry_ids), max(entry_ids) + 1))
            kept = [entry for entry in entry_ids if entry <= twin.pushed and index in write_set(entry, *shape[:2])]
            before = appender.last_add_confirmed
            assert appender.acknowledged(index, kept) == (appender.last_add_confirmed > before)
            for entry_id in kept:
                twin.ack(index, entry_id)
        elif what == "fail":
            appender.bookie_failed(index)
            twin.failed.add(index)
        elif index in appender.failed_bookies:
            appender.replaced([index])
            twin.replace([index])
        appender.validate()
        assert set(appender.failed_bookies) == twin.failed
        assert appender.last_add_confirmed <= twin.confirmed
        if striped:
            assert appender.last_add_confirmed == twin.confirmed
        if twin.failed:
            # The new segment begins behind what the appender confirmed; the twin may have been ahead by a hole.
            twin.confirmed = appender.last_add_confirmed
    finish(appender, twin, shape)


def finish(appender: Appender, twin: Twin, shape: tuple[int, int, int]) -> None:
    """Once everybody has answered everything, all is confirmed."""
    failed = sorted(appender.failed_bookies)
    if failed:
        appender.replaced(failed)
    for index in range(shape[0]):
        kept = [entry for entry in range(twin.pushed + 1) if index in write_set(entry, *shape[:2])]
        appender.acknowledged(index, kept)
    appender.validate()
    assert appender.last_add_confirmed == appender.last_add_pushed == twin.pushed
