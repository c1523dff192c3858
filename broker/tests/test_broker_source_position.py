"""Names of replicators, positions at the source, and what of them is in a snapshot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.broker.replicated_message import parse_position
from magnetar.broker.replicator_names import is_replicator, producer_of, source_cluster
from magnetar.broker.source_position import SOURCES_MAX, SourcePositions
from magnetar.core.limits import MIB

NUMBERS = st.integers(0, 2**63 - 1)
POSITIONS = st.tuples(NUMBERS, NUMBERS)


@pytest.mark.parametrize(
    ("name", "replicator", "source"),
    [
        ("pulsar.repl.east-->west", True, "east"),
        ("pulsar.repl.east", True, "east"),
        ("pulsar.repl.a.b-->west", True, "a.b"),
        ("pulsar.repl-topic-->shadow", True, None),
        ("pulsar.rep.east", False, None),
        ("p", False, None),
        ("", False, None),
    ],
)
def test_names(name: str, source: str | None, *, replicator: bool) -> None:
    assert (is_replicator(name), source_cluster(name)) == (replicator, source)


@given(POSITIONS)
def test_a_position_is_read_as_it_is_written(position: tuple[int, int]) -> None:
    assert parse_position(f"{position[0]}:{position[1]}") == position


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "1:", ":1", "1:2:3", "-1:2", "+1:2", " 1:2", "1_0:2", "²:1", "\u0661:2", f"{2**63}:0", f"0:{2**63}"),
        pytest.param("1" * 5_000 + ":1", id="more digits than Python reads"),
    ],
)
def test_anything_else_is_no_position(text: str) -> None:
    assert parse_position(text) is None


@given(st.lists(POSITIONS, max_size=20))
def test_what_is_taken_rises_by_ledger_first(positions: list[tuple[int, int]]) -> None:
    sources = SourcePositions("west")
    taken = [position for position in positions if sources.take("k", position)]
    assert taken == sorted(set(taken))
    assert not sources.is_stored("k", (0, 0))
    for position in taken:
        sources.store("k", position)
    assert all(sources.is_stored("k", position) for position in positions)


def test_what_is_stored_never_goes_back() -> None:
    """A sender that began anew without deduplication has stored the last ones twice, and is replayed so."""
    sources = SourcePositions("west")
    for entry_id in (1, 2, 3, 1, 2):
        sources.store("k", (7, entry_id))
    assert sources.is_stored("k", (7, 3))
    sources.forget_taken()
    assert not sources.take("k", (7, 3))


def test_what_was_taken_and_not_stored_may_come_again_also_when_it_was_the_first() -> None:
    sources = SourcePositions("west")
    sources.store("other", (1, 1))
    assert sources.take("k", (7, 1))
    sources.forget_taken()
    assert sources.take("k", (7, 1))
    assert not sources.take("other", (1, 1))


@given(st.dictionaries(st.text(max_size=3), POSITIONS, max_size=5))
def test_a_snapshot_is_loaded_as_it_was(positions: dict[str, tuple[int, int]]) -> None:
    sources = SourcePositions("west")
    for name, position in positions.items():
        sources.store(producer_of(name.replace("-->", ""), "west"), position)
    members = sources.snapshot(100, MIB)
    loaded = SourcePositions("west")
    assert loaded.load({**members, "p": 4, "p_LID": 5}) == {"p": 4, "p_LID": 5}
    assert loaded.snapshot(100, MIB) == members


def test_a_snapshot_has_both_halves_of_a_position_or_none() -> None:
    sources = SourcePositions("west")
    for name in "abc":
        sources.store(name, (1, 2))
    assert [len(sources.snapshot(count_max, MIB)) for count_max in (0, 1, 2, 3, 4, 5, 6)] == [0, 0, 2, 2, 4, 4, 6]


def test_sources_with_long_names_take_no_more_of_a_snapshot_than_they_may() -> None:
    sources = SourcePositions("west")
    for number in range(10):
        sources.store(f"{number}".rjust(1_000, "p"), (1, 2))
    assert [len(sources.snapshot(100, bytes_max)) for bytes_max in (0, 2_000, 2_100, 5_000, MIB)] == [0, 0, 2, 4, 20]


def test_what_a_snapshot_names_is_taken_already_also_under_an_old_name() -> None:
    """A broker that takes the topic over is sent again what had no receipt."""
    sources = SourcePositions("west")
    assert sources.load({"pulsar.repl.east_LID": 7, "pulsar.repl.east_EID": 0, "pulsar.repl.north_LID": 7}) == {}
    key = producer_of("east", "west")
    assert sources.is_stored(key, (7, 0))
    assert not sources.take(key, (7, 0))
    assert sources.take(key, (7, 1))
    assert sources.snapshot(9, MIB) == {f"{key}_LID": 7, f"{key}_EID": 0}


def test_an_old_name_and_the_new_one_are_one_source() -> None:
    sources = SourcePositions("west")
    assert (
        sources.key_of("pulsar.repl.east") == sources.key_of("pulsar.repl.east-->west") == producer_of("east", "west")
    )
    assert sources.key_of("pulsar.repl-a-->b") == "pulsar.repl-a-->b"


def test_sources_are_bounded() -> None:
    sources = SourcePositions("west")
    for number in range(SOURCES_MAX + 5):
        sources.take(str(number), (1, 1))
        sources.store(str(number), (1, 1))
    assert len(sources.snapshot(10 * SOURCES_MAX, MIB)) == 2 * SOURCES_MAX
    assert sources.take("0", (1, 1))
    sources.store(str(SOURCES_MAX), (1, 2))  # One that is known makes no other one go.
    assert sources.is_stored("5", (1, 1))


def test_an_entry_that_cannot_be_read_says_no_position() -> None:
    sources = SourcePositions("west")
    assert not sources.replay("east", b"\x00")
    assert sources.snapshot(10, MIB) == {}
