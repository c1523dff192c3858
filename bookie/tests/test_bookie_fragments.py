from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.bookie.autorecovery.fragment_check import entries_to_check
from magnetar.bookie.autorecovery.fragments import (
    EnsembleRepair,
    FragmentState,
    Segment,
    bad_fragments,
    lost_fragments,
    names,
    segments_of,
    source_order,
    with_move,
)
from magnetar.core.ids import NO_ENTRY
from magnetar.ledger.striping import write_set
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState


def metadata_of(
    ensembles: list[tuple[int, list[str]]], write_quorum: int, last_entry_id: int | None = None
) -> LedgerMetadata:
    closed = last_entry_id is not None
    return LedgerMetadata(
        ensemble_size=len(ensembles[0][1]),
        write_quorum=write_quorum,
        ack_quorum=1,
        ensembles=ensembles,
        state=LedgerState.CLOSED if closed else LedgerState.OPEN,
        last_entry_id=-1 if last_entry_id is None else last_entry_id,
    )


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    bookies = [f"b{number}" for number in range(8)]
    size = draw(st.integers(1, 5))
    quorum = draw(st.integers(1, size))
    starts = sorted(draw(st.sets(st.integers(1, 40), max_size=4)))
    ensembles = [(start, draw(st.permutations(bookies))[:size]) for start in [0, *starts]]
    last = draw(st.none() | st.integers(ensembles[-1][0] - 1, ensembles[-1][0] + 15))
    return metadata_of(ensembles, quorum, last)


Held = dict[int, set[str]]


def stored(metadata: LedgerMetadata) -> Held:
    """Entry → bookies that have it, as a writer left them; closed segments only."""
    held: Held = {}
    for segment in segments_of(metadata):
        for entry_id in range(segment.first_entry_id, segment.last_entry_id + 1):
            places = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
            held[entry_id] = {segment.bookies[index] for index in places}
    return held


@given(ledgers())
def test_segments_hold_what_striping_says(metadata: LedgerMetadata) -> None:
    segments = segments_of(metadata)
    assert [segment.closed for segment in segments[:-1]] == [True] * (len(segments) - 1)
    assert segments[-1].closed == (metadata.state is LedgerState.CLOSED)
    for segment in segments:
        for index in range(len(segment.bookies)):
            held = [
                entry_id
                for entry_id in range(segment.first_entry_id, segment.last_entry_id + 1)
                if index in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
            ]
            assert segment.first_held(index) == (held[0] if held else NO_ENTRY)
            assert segment.last_held(index) == (held[-1] if held else NO_ENTRY)


@given(ledgers(), st.sets(st.sampled_from([f"b{number}" for number in range(8)])), st.randoms(use_true_random=False))
def test_after_the_moves_every_entry_has_its_replicas(
    metadata: LedgerMetadata, lost: set[str], rng: random.Random
) -> None:
    held = stored(metadata)
    for bookies in held.values():
        bookies -= lost
    changed = metadata
    for segment in segments_of(metadata):
        bad = bad_fragments(segment, lost_fragments(segment, lost))
        if bad is None or not segment.closed:
            continue
        fresh = [f"new{number}" for number in range(len(bad.verdicts))]
        move = EnsembleRepair(segment, dict(zip(bad.verdicts, fresh, strict=True)))
        copied: list[int] = []
        for entry_ids in move.entry_ids(rng.randint(1, 7)):
            copied += entry_ids
            for entry_id in entry_ids:
                assert move.targets(entry_id)
                held[entry_id].update(move.targets(entry_id))
        assert copied == sorted(set(copied))
        moved = with_move(changed, move)
        assert moved is not None
        changed = moved
    for segment in segments_of(changed):
        assert len(set(segment.bookies)) == len(segment.bookies)
        if not segment.closed:
            continue
        assert not lost.intersection(segment.bookies)
        for entry_id in range(segment.first_entry_id, segment.last_entry_id + 1):
            places = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
            # Exactly the write set: nothing is copied where it does not belong.
            assert held[entry_id] == {segment.bookies[index] for index in places}
    assert not names(changed, lost) or changed.state is LedgerState.OPEN
    assert [first for first, _ in changed.ensembles] == [first for first, _ in metadata.ensembles]


def test_a_move_is_not_recorded_over_other_changes() -> None:
    metadata = metadata_of([(0, ["a", "b"]), (10, ["a", "c"])], 2, last_entry_id=15)
    first, last = segments_of(metadata)
    move = EnsembleRepair(first, {1: "x"})
    moved = with_move(metadata, move)
    assert moved is not None
    assert moved.ensembles == [(0, ["a", "x"]), (10, ["a", "c"])]
    assert metadata.ensembles[0] == (0, ["a", "b"])
    # Somebody else replaced the same place, or put the new bookie elsewhere in the ensemble.
    assert with_move(moved, move) is None
    assert with_move(metadata_of([(0, ["x", "b"]), (10, ["a", "c"])], 2, 15), move) is None
    # Another place of the segment changed: both changes hold.
    both = with_move(metadata_of([(0, ["y", "b"]), (10, ["a", "c"])], 2, 15), move)
    assert both is not None
    assert both.ensembles[0] == (0, ["y", "x"])
    # The segment ends elsewhere, is open, or is gone.
    assert with_move(metadata_of([(0, ["a", "b"]), (9, ["a", "c"])], 2, 15), move) is None
    assert with_move(metadata_of([(0, ["a", "b"]), (10, ["a", "c"])], 2), EnsembleRepair(last, {0: "x"})) is None
    assert with_move(metadata_of([(0, ["a", "b"])], 2, 12), EnsembleRepair(last, {0: "x"})) is None


def test_an_empty_ledger_moves_without_copies() -> None:
    metadata = metadata_of([(0, ["a", "b", "c"])], 2, last_entry_id=-1)
    move = EnsembleRepair(segments_of(metadata)[0], {2: "x"})
    assert list(move.entry_ids(10)) == []
    moved = with_move(metadata, move)
    assert moved is not None
    assert moved.ensembles == [(0, ["a", "b", "x"])]


def test_sources_are_asked_whole_ones_first_and_absent_ones_last() -> None:
    segment = Segment(0, 9, ("a", "b", "c", "d", "e"), 5, closed=True)
    verdicts = {0: FragmentState.LOST, 1: FragmentState.MISSING, 2: FragmentState.LOST}
    for turn in range(10):
        order = [
            segment.bookies[index]
            for index in source_order(segment, verdicts, spared=["c"], unregistered=["a"], turn=turn)
        ]
        assert set(order[:2]) == {"d", "e"}
        assert order[2:] == ["c", "b", "a"]
    firsts = {source_order(segment, {}, spared=(), unregistered=(), turn=turn)[0] for turn in range(5)}
    assert firsts == set(range(5))


@given(ledgers(), st.integers(0, 100), st.randoms(use_true_random=False))
def test_checked_entries_are_first_last_and_a_share(
    metadata: LedgerMetadata, percentage: int, rng: random.Random
) -> None:
    for segment in segments_of(metadata):
        for index in range(len(segment.bookies)):
            chosen = entries_to_check(segment, index, percentage, rng)
            if segment.first_held(index) == NO_ENTRY:
                assert chosen == []
                continue
            assert (chosen[0], chosen[-1]) == (segment.first_held(index), segment.last_held(index))
            assert all(segment.holds(index, entry_id) for entry_id in chosen)
            assert chosen == sorted(set(chosen))
            if percentage == 100:
                assert len(chosen) == sum(segment.holds(index, e) for e in range(chosen[0], chosen[-1] + 1))


@pytest.mark.parametrize("percentage", [0, 10, 50])
def test_the_share_of_checked_entries_is_about_right(percentage: int) -> None:
    segment = Segment(0, 999, ("a",), 1, closed=True)
    chosen = entries_to_check(segment, 0, percentage, random.Random(1))
    assert 10 * percentage <= len(chosen) <= 10 * percentage + 3
