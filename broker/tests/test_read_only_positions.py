"""What an owner is told of a position, against a model of an owner; and positions as text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from magnetar.broker.read_only.position_difference import (
    IDS_MAX,
    WORDS_MAX,
    Kept,
    Stretch,
    Tell,
    start_after,
    takes_back,
    tell_next,
)
from magnetar.broker.read_only.position_text import BadPositionText, stretches_of, text_of
from magnetar.core.ids import Position
from magnetar.managed.ack_state import AckState
from magnetar.managed.entry_bitmap import words_of
from magnetar.managed.ledger_list import LedgerList, LedgerRecord

LEDGERS = {3: 7, 5: 0, 8: 1, 9: 12}
POSITIONS = [(ledger_id, entry) for ledger_id, entries in LEDGERS.items() for entry in range(entries)]
BATCH = 70
WHOLE = (1 << BATCH) - 1


def ledger_list() -> LedgerList:
    return LedgerList([LedgerRecord(ledger_id, entries) for ledger_id, entries in LEDGERS.items()])


class ModelOwner:
    """A broker that holds the subscription: acknowledges what it is told, and seeks."""

    def __init__(self, mark: Position) -> None:
        self.ledgers = ledger_list()
        self.acks = AckState(self.ledgers, mark)

    def tell(self, tell: Tell) -> None:
        if tell.mark is not None:
            self.acks.acknowledge_cumulative(tell.mark)
        self.acks.acknowledge(tell.positions())
        for position, words in tell.words():
            self.acks.acknowledge_batch_indexes(position, words, 0)

    def seek(self, position: Position) -> None:
        self.acks.reset(self.ledgers.previous_position(self.ledgers.valid_from(position)))

    def left(self) -> dict[Position, int]:
        """The messages that would be delivered."""
        return left_of(self.acks)


def left_of(acks: AckState) -> dict[Position, int]:
    partial = acks.partial or {}
    return {each: partial.get(each, WHOLE) for each in POSITIONS if not acks.is_acknowledged(each)}


class Teller:
    """Keeps an owner up to date as `KeptPosition` does; the owner may take a round in part, or twice."""

    def __init__(self, owner: ModelOwner, acks: AckState) -> None:
        self.owner = owner
        self.acks = acks
        self.told = self.sent = Kept.of(acks)
        self.seeks = 0

    def round(self, taken: int = 1 << 30, count_max: int = 4) -> None:
        now = Kept.of(self.acks)
        if takes_back(self.sent, now):
            self.seeks += 1
            self.owner.seek(start_after(now.mark))
            self.told = Kept(now.mark)
        self.sent = now
        while tells := tell_next(self.told, now, count_max):
            assert len(tells) <= count_max
            for tell in tells:
                if not taken:
                    return
                taken -= 1
                self.owner.tell(tell)
                self.owner.tell(tell)
                self.told.add(tell)


positions = st.sampled_from(POSITIONS)
lefts = st.integers(1, WHOLE - 1)
steps = st.one_of(
    st.tuples(st.just("each"), st.lists(positions, min_size=1, max_size=6)),
    st.tuples(st.just("up to"), positions),
    st.tuples(st.just("part"), positions, lefts),
    st.tuples(st.just("seek"), positions),
    st.tuples(st.just("seek into a batch"), positions, lefts),
    st.tuples(st.just("tell"), st.integers(0, 3)),
    st.tuples(st.just("tell all")),
    st.tuples(st.just("come back")),
)


def take(acks: AckState, step: Any) -> None:
    kind, *what = step
    if kind == "each":
        acks.acknowledge(what[0])
    elif kind == "up to":
        acks.acknowledge_cumulative(what[0])
    if kind.startswith("seek"):
        acks.reset(ledger_list().previous_position(what[0]))
    if kind in ("part", "seek into a batch"):
        acks.acknowledge_batch_indexes(what[0], words_of(what[1]), BATCH)


@pytest.mark.slow
@given(st.lists(steps, max_size=25))
@example([("each", [(9, 5)]), ("tell all",), ("seek", (9, 0)), ("tell all",)])
@example([("part", (9, 5), 1), ("tell all",), ("up to", (9, 4)), ("seek", (9, 5))])
def test_the_owner_comes_to_have_the_same_acknowledged(story: list[Any]) -> None:
    acks = AckState(ledger_list(), (3, -1))
    teller = Teller(ModelOwner((3, -1)), acks)
    for step in story:
        if step[0] == "tell":
            teller.round(step[1], count_max=1)
        elif step[0] == "tell all":
            teller.round()
            assert teller.owner.left() == left_of(acks)
        elif step[0] == "come back":
            teller.told = Kept(teller.owner.acks.mark_delete)
        else:
            take(acks, step)
    teller.round()
    assert teller.owner.left() == left_of(acks)
    assert not tell_next(teller.told, Kept.of(acks), 4)


@pytest.mark.slow
@given(st.lists(steps.filter(lambda step: not step[0].startswith("seek")), max_size=25))
def test_without_a_seek_here_there_is_none_at_the_owner(story: list[Any]) -> None:
    acks = AckState(ledger_list(), (3, -1))
    teller = Teller(ModelOwner((3, -1)), acks)
    for step in story:
        take(acks, step)
        teller.round()
    assert teller.seeks == 0


def test_a_seek_forward_drops_what_was_acknowledged_behind_it() -> None:
    acks = AckState(ledger_list(), (3, -1))
    teller = Teller(ModelOwner((3, -1)), acks)
    acks.acknowledge([(9, 8)])
    teller.round()
    acks.reset((9, 2))
    teller.round()
    assert teller.seeks == 1
    assert (9, 8) in teller.owner.left()


def test_commands_are_of_a_bounded_size() -> None:
    count = 10_000
    acks = AckState(LedgerList([LedgerRecord(1, count)]), (1, -1))
    acks.acknowledge([(1, entry) for entry in range(1, 5_000)])
    acks.acknowledge([(1, entry) for entry in range(5_001, count, 2)])
    for entry in range(5_002, 5_600, 2):
        acks.acknowledge_batch_indexes((1, entry), words_of(1 | 1 << 1_300), 1_301)
    told, now = Kept((1, -1)), Kept.of(acks)
    rounds = 0
    while tells := tell_next(told, now, 3):
        rounds += 1
        assert len(tells) <= 3
        for tell in tells:
            assert len(tell.positions()) + len(tell.parts) <= IDS_MAX
            assert sum(len(words) for _, words in tell.words()) <= WORDS_MAX
            told.add(tell)
    assert told.beyond == now.beyond
    assert told.partial == now.partial
    assert rounds < 10


def test_what_the_mark_has_passed_takes_no_memory() -> None:
    told = Kept((1, -1))
    told.add(Tell(None, tell_next(told, Kept((1, -1), {1: 0b10, 2: 0b10}), 1)[0].whole, [((1, 4), 1)]))
    told.add(Tell((2, 0), [], []))
    assert (told.beyond, told.partial) == ({2: 0b10}, {})
    told.add(Tell((2, 1), [], []))
    assert told.beyond == {}


def test_parts_of_batches_that_are_wholly_told_take_no_memory() -> None:
    told = Kept((1, -1), None, {(1, 2): 1, (1, 3): 1})
    told.add(Tell(None, [Stretch(1, 2, 2)], []))
    assert told.partial == {(1, 3): 1}


def test_of_many_parts_a_thousand_are_told_at_once() -> None:
    now = Kept((1, -1), None, {(1, entry): 1 for entry in range(IDS_MAX + 1)})
    assert [len(tell.parts) for tell in tell_next(Kept((1, -1)), now, 4)] == [IDS_MAX, 1]


def test_what_a_state_still_has_of_older_ledgers_means_nothing() -> None:
    acks = AckState(ledger_list(), (3, 0))
    acks.acknowledge([(3, 5), (9, 3)])
    acks.mark_delete = (8, 0)
    assert Kept.of(acks).beyond == {9: 0b1000}


# --- copies of a state


def test_what_a_state_has_acknowledged_is_copied_from_its_mark_on() -> None:
    """Also far behind it, and what the state still holds before the mark is none of it."""
    far = AckState(LedgerList([LedgerRecord(1, 20_000)]), (1, 8_000))
    far.acknowledge([(1, 9_000)])
    assert Kept.of(far).beyond == {1: 1 << 9_000}
    acks = AckState(ledger_list(), (3, 0))
    acks.acknowledge([(3, 5), (3, 6)])
    acks.acknowledge_batch_indexes((3, 3), words_of(1), BATCH)
    acks.acknowledge_batch_indexes((9, 3), words_of(1), BATCH)
    acks.mark_delete = (3, 5)
    assert (Kept.of(acks).beyond, list(Kept.of(acks).partial)) == ({3: 1 << 6}, [(9, 3)])
    acks.mark_delete = (3, 6)
    assert Kept.of(acks).beyond == {}


def test_the_mark_itself_is_acknowledged() -> None:
    kept = Kept((1, 3), {1: 0b100000})
    assert [entry for entry in range(7) if kept.has((1, entry))] == [0, 1, 2, 3, 5]


def test_what_was_told_only_grows() -> None:
    told = Kept((2, 0), None, {(2, 4): 0b0111})
    told.add(Tell((1, 5), [], [((2, 4), 0b1011)]))
    assert (told.mark, told.partial) == ((2, 0), {(2, 4): 0b0011})
    told.add(Tell((2, 4), [], []))
    assert (told.mark, told.partial) == ((2, 4), {})


PART = (1, 4)


@pytest.mark.parametrize(
    ("told", "now", "takes"),
    [
        pytest.param(Kept((1, 3)), Kept((1, 3)), False, id="the same mark"),
        pytest.param(Kept((1, 3)), Kept((1, 2)), True, id="an earlier mark"),
        pytest.param(Kept((1, -1), {1: 0b110}), Kept((1, 2)), False, id="entries that the mark has passed"),
        pytest.param(Kept((1, -1), {1: 0b110}), Kept((2, 0)), False, id="a ledger that the mark has passed"),
        pytest.param(Kept((1, -1), {1: 0b110}), Kept((1, -1), {1: 0b010}), True, id="one of two entries"),
        pytest.param(Kept((1, -1), {2: 0b1}), Kept((1, 5)), True, id="an entry of a later ledger"),
        pytest.param(Kept((1, -1), None, {PART: 1}), Kept((1, 4)), False, id="a part of what the mark has passed"),
        pytest.param(Kept((1, -1), None, {PART: 1}), Kept((1, -1), {1: 16}), False, id="a part of what is whole"),
        pytest.param(Kept((1, -1), None, {PART: 3}), Kept((1, -1), None, {PART: 1}), False, id="a greater part"),
        pytest.param(Kept((1, -1), None, {PART: 1}), Kept((1, -1), None, {PART: 3}), True, id="a lesser part"),
        pytest.param(Kept((1, -1), None, {PART: 1}), Kept((1, -1)), True, id="no part"),
    ],
)
def test_it_takes_a_seek_when_less_is_acknowledged_than_was_told(told: Kept, now: Kept, *, takes: bool) -> None:
    assert takes_back(told, now) is takes


def test_what_is_missing_is_told_ascending_and_to_the_last_entry() -> None:
    now = Kept((1, -1), {9: 0b1, 3: (1 << (IDS_MAX + 1)) - 1}, {(9, 8): 1, (3, 2_000): 1, (9, 4): 1})
    tells = tell_next(Kept((1, -1)), now, 9)
    assert [each for tell in tells for each in tell.positions()] == [*((3, n) for n in range(IDS_MAX + 1)), (9, 0)]
    assert [position for tell in tells for position, _ in tell.parts] == [(3, 2_000), (9, 4), (9, 8)]


def test_parts_of_large_batches_fill_each_acknowledgement() -> None:
    words = 200
    now = Kept((1, -1), None, {(1, entry): 1 << (64 * words - 1) for entry in range(3 * WORDS_MAX // words)})
    assert [len(tell.parts) for tell in tell_next(Kept((1, -1)), now, 9)] == 3 * [WORDS_MAX // words]


# --- text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[]", []),
        ("[(3:-1..3:0]]", [((3, -1), (3, 0))]),
        ("[(3:1..3:5],(3:7..3:9]]", [((3, 1), (3, 5)), ((3, 7), (3, 9))]),
        ("[(3:1..3:5], (4:7..5:0]]", [((3, 1), (3, 5)), ((4, 7), (5, 0))]),
        ("[(3:1..3:5], ...]", [((3, 1), (3, 5))]),
    ],
)
def test_stretches_are_read(text: str, found: list[tuple[Position, Position]]) -> None:
    assert stretches_of(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "]",
        "[ ]",
        "(3:1..3:5]",
        "x(3:1..3:5]]",
        "[(3:1..3:5]x",
        "[(3:1..3:5)]",
        "[[3:1..3:5]]",
        "[(3:1..3:5],]",
        "[(3:1..3:5], ]",
        "[(3:1..3:5](3:7..3:9]]",
        "[(3:1..3:5];(3:7..3:9]]",
        "[(3:1..3:1]]",
        "[(3:5..3:1]]",
        "[(3:1..3:-1]]",
        "[(-3:1..3:5]]",
        "[(3:1..3:5]...]",
        "[...]",
        "[(3:1..3:5]\n]",
        "[(3:1..3:99999999999999999999]]",
        "[(٣:1..3:5]]",
    ],
)
def test_what_is_no_text_of_stretches_is_not_guessed_at(text: str) -> None:
    with pytest.raises(BadPositionText):
        stretches_of(text)


def test_a_bad_text_is_told_in_short() -> None:
    with pytest.raises(BadPositionText) as caught:
        stretches_of("[" + 100_000 * "x")
    assert len(str(caught.value)) < 200


@pytest.mark.slow
@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 60)), max_size=40))
def test_every_text_is_read_as_it_was_written(acknowledged: set[Position]) -> None:
    acks = AckState(LedgerList([LedgerRecord(each, 61) for each in range(6)]), (0, -1))
    acks.acknowledge(sorted(acknowledged))
    stretches = acks.ranges()
    assert stretches_of(text_of(stretches)) == stretches
    assert stretches_of(text_of(stretches).replace(", ", ",")) == stretches
