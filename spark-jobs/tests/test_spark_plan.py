"""Slices, admission, losses and the search for a time: over made-up topics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.spark.errors import BadOption
from magnetar.spark.options.offsets import LATEST
from magnetar.spark.planning import plan
from magnetar.spark.planning.admission import admit
from magnetar.spark.planning.loss import LossKind, deleted_topic, goes_on_from, losses
from magnetar.spark.planning.plan import (
    ends_before,
    entry_bounds,
    normalised,
    size_bytes_between,
    slices_of,
    slices_of_all,
    spans_between,
)
from magnetar.spark.planning.time_search import UNREADABLE_MAX, first_at
from magnetar.spark.positions import BEGINNING, MessagePosition
from magnetar.spark.topics import TopicLedger, TopicState

TOPIC = "persistent://public/default/t"
FEW = settings(max_examples=40)  # Thousands were run; in everyday use time counts.


def entries_between(state: TopicState, first: MessagePosition, end: MessagePosition) -> int:
    return sum(span.entries for span in spans_between(state, first, end))


def ledger(ledger_id: int, entries: int, size_bytes: int | None = None, *, missing: bool = False) -> TopicLedger:
    return TopicLedger(
        ledger_id=ledger_id,
        entries=entries,
        size_bytes=entries * 100 if size_bytes is None else size_bytes,
        missing=missing,
        metadata=b"m%d" % ledger_id,
    )


def topic(*ledgers: TopicLedger, end: MessagePosition | None = None, name: str = TOPIC) -> TopicState:
    last = MessagePosition(ledgers[-1].ledger_id, ledgers[-1].entries) if ledgers else BEGINNING
    return TopicState(topic=name, ledgers=ledgers, end=end or last)


@st.composite
def topics(draw: st.DrawFn, name: str = TOPIC) -> TopicState:
    """Ledgers of all kinds: empty, missing, offloaded, of unknown size; the end is somewhere in the last ones."""
    ids = sorted(draw(st.sets(st.integers(0, 60), max_size=8)))
    ledgers = []
    for ledger_id in ids:
        entries = draw(st.integers(0, 40) | st.just(0))
        ledgers.append(
            TopicLedger(
                ledger_id=ledger_id,
                entries=entries,
                size_bytes=draw(st.integers(0, 5000)) if entries else 0,
                closed_ms=0 if ledger_id == ids[-1] else 1,
                offloaded=draw(st.booleans()),
                missing=draw(st.integers(0, 5)) == 0,
            )
        )
    if not ledgers:
        return topic(name=name)
    held_back = draw(st.integers(0, min(3, ledgers[-1].entries)))
    end = MessagePosition(ids[-1], ledgers[-1].entries - held_back, draw(st.integers(0, 2)) if held_back else 0)
    return topic(*ledgers, end=end, name=name)


places = st.just(BEGINNING) | st.builds(MessagePosition, st.integers(0, 62), st.integers(0, 42), st.integers(0, 3))


def entries_of(state: TopicState, first: MessagePosition, end: MessagePosition) -> list[tuple[int, int]]:
    """By looking at each entry whether some message of it is in the range."""
    many = 1000
    end = state.end if end == LATEST else end
    return [
        (one.ledger_id, entry)
        for one in state.ledgers
        if not one.missing
        for entry in range(one.entries)
        if first < end
        and first <= MessagePosition(one.ledger_id, entry, many)
        and MessagePosition(one.ledger_id, entry) < end
    ]


@FEW
@given(topics(), places, places, st.integers(1, 3000))
def test_each_entry_is_in_exactly_one_slice_and_slices_meet(
    state: TopicState, first: MessagePosition, end: MessagePosition, split_bytes: int
) -> None:
    slices = slices_of(state, first, end, split_bytes)
    read = [
        (part.ledger_id, entry)
        for one in slices
        for part in one.ranges
        for entry in range(part.first_entry_id, part.last_entry_id + 1)
    ]
    assert read == entries_of(state, first, end)
    assert len(read) == entries_between(state, first, end)
    assert sum(one.size_bytes for one in slices) == size_bytes_between(state, first, end)
    if slices:
        assert slices[0].first == first
        assert slices[-1].end == end
        assert all(one.ranges for one in slices)
        assert all(one.end == other.first for one, other in pairwise(slices))
        for one in slices:
            low, high = one.ranges[0], one.ranges[-1]
            assert one.first <= MessagePosition(low.ledger_id, low.first_entry_id, 9)
            assert MessagePosition(high.ledger_id, high.last_entry_id) < one.end


@FEW
@given(topics(), places, places)
def test_a_normalised_place_has_the_same_messages_behind_it(
    state: TopicState, place: MessagePosition, other: MessagePosition
) -> None:
    same = normalised(state, place)
    assert normalised(state, same) == same
    assert entries_of(state, same, LATEST) == entries_of(state, place, LATEST)
    if place <= other:
        assert same <= normalised(state, other) or normalised(state, other) == state.end


def test_slices_are_of_about_the_size_that_is_wanted() -> None:
    state = topic(*(ledger(number, 10) for number in range(50)), ledger(50, 10_000), ledger(51, 7))
    slices = slices_of(state, BEGINNING, LATEST, 10_000)
    assert len(slices) == 106
    assert all(9_000 <= one.size_bytes <= 11_000 for one in slices)
    assert len(slices[0].ranges) == 10
    assert slices[-1].end == state.end
    assert slices[0].ranges[0].metadata == b"m0"


def test_one_entry_is_never_divided_and_huge_ones_leave_no_empty_slices() -> None:
    state = topic(ledger(1, 3, 3_000_000), ledger(2, 100, 100))
    assert [one.size_bytes for one in slices_of(state, BEGINNING, LATEST, 1000)] == [
        1_000_000,
        1_000_000,
        1_000_000,
        100,
    ]


def test_an_end_within_a_batch_has_the_entry_of_the_batch_before_it() -> None:
    """And one at the beginning of a batch has not."""
    one = ledger(1, 10)
    assert entry_bounds(one, MessagePosition(1, 0), MessagePosition(1, 4, 0)) == (0, 4)
    assert entry_bounds(one, MessagePosition(1, 0), MessagePosition(1, 4, 2)) == (0, 5)
    assert entry_bounds(one, MessagePosition(1, 0), MessagePosition(1, 9, 2)) == (0, 10)


def test_there_is_a_bound_on_slices_and_on_ledgers_of_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "SLICES_MAX", 7)
    state = topic(ledger(1, 1000))
    assert len(slices_of(state, BEGINNING, LATEST, 1)) == 7
    assert 7 <= len(slices_of_all([(state, BEGINNING, LATEST)] * 5, 1)) <= 10
    many = topic(*(ledger(number, 1) for number in range(1200)))
    assert [len(one.ranges) for one in slices_of(many, BEGINNING, LATEST, 1 << 30)] == [500, 500, 200]


def test_normalised_places() -> None:
    state = topic(ledger(3, 5), ledger(5, 0), ledger(8, 4), ledger(9, 0))
    expected = {
        BEGINNING: (3, 0),
        (1, 7): (3, 0),
        (3, 4, 2): (3, 4, 2),
        (3, 5): (8, 0),
        (4, 0): (8, 0),
        (5, 0): (8, 0),
        (8, 4): (9, 0),
        (9, 0): (9, 0),
        (9, 3): (9, 3),
        (10, 1): (10, 1),
        LATEST: (9, 0),
    }
    for place, same in expected.items():
        assert normalised(state, MessagePosition(*place)) == MessagePosition(*same)
    assert normalised(topic(), BEGINNING) == BEGINNING


def cost(state: TopicState, start: MessagePosition, end: MessagePosition, rows_per_entry: float) -> tuple[float, int]:
    return entries_between(state, start, end) * rows_per_entry, size_bytes_between(state, start, end)


@FEW
@given(
    st.lists(topics(), min_size=1, max_size=4),
    st.lists(places, min_size=4, max_size=4),
    st.integers(1, 60) | st.none(),
    st.integers(1, 6000) | st.none(),
    st.sampled_from([0.5, 1.0, 7.0]),
)
def test_admission_keeps_the_limits_and_comes_to_the_end(
    listed: list[TopicState],
    places_: list[MessagePosition],
    rows_max: int | None,
    bytes_max: int | None,
    rows_per_entry: float,
) -> None:
    states = {f"t{number}": state for number, state in enumerate(listed)}
    starts = dict(zip(states, places_, strict=False))
    rates = dict.fromkeys(states, rows_per_entry)
    for _batch in range(400):
        reached = admit(states, starts, {}, rows_max, bytes_max, rates)
        assert reached.keys() == states.keys()
        rows, size = 0.0, 0.0
        for name, state in states.items():
            assert reached[name] >= starts[name]
            entries = entries_between(state, starts[name], reached[name])
            assert entries or not entries_between(state, starts[name], state.end)
            if entries > 1:
                topic_rows, topic_bytes = cost(state, starts[name], reached[name], rows_per_entry)
                rows, size = rows + topic_rows, size + topic_bytes
        assert rows_max is None or rows <= rows_max
        # Sizes of parts of ledgers are rounded.
        assert bytes_max is None or size <= bytes_max + 10 * len(states)
        if reached == starts:
            break
        starts = reached
    assert reached == starts
    for name, state in states.items():
        assert entries_between(state, starts[name], state.end) == 0


def test_limits_are_shared_by_backlog_and_nothing_is_left_behind() -> None:
    large, small, empty = topic(ledger(1, 900)), topic(ledger(2, 100)), topic(ledger(3, 5))
    states = {"large": large, "small": small, "empty": empty}
    starts = {"large": BEGINNING, "small": BEGINNING, "empty": MessagePosition(3, 5)}
    assert admit(states, starts, {}, 100, None, {}) == {
        "large": MessagePosition(1, 90),
        "small": MessagePosition(2, 10),
        "empty": MessagePosition(3, 5),
    }
    assert admit(states, starts, {}, 100, 5_000, {})["large"] == MessagePosition(1, 45)
    assert admit(states, starts, {}, 100, None, {"large": 10.0})["large"] == MessagePosition(1, 9)
    assert admit(states, starts, {}, 1, None, {})["small"] == MessagePosition(2, 1)
    assert admit(states, starts, {}, None, None, {})["large"] == large.end


def test_a_batch_goes_no_further_than_its_end() -> None:
    states = {"t": topic(ledger(1, 900))}
    assert admit(states, {}, {"t": MessagePosition(1, 20, 3)}, None, None, {}) == {"t": MessagePosition(1, 20, 3)}
    assert admit(states, {}, {"t": MessagePosition(1, 20)}, 10, None, {}) == {"t": MessagePosition(1, 10)}


def test_an_end_that_is_not_certain_is_one_in_its_own_ledger_only() -> None:
    """More may have come to that ledger. To be in a later one takes a roll, which nobody has seen."""
    state = TopicState(
        topic=TOPIC, ledgers=(ledger(9, 100),), end=MessagePosition(9, 100), ledgers_known=False, end_certain=False
    )
    assert not ends_before(state, MessagePosition(9, 101))
    assert ends_before(state, MessagePosition(10, 1))
    assert not ends_before(state, MessagePosition(9, 100))


def test_a_topic_whose_ledgers_nobody_knows() -> None:
    end = MessagePosition(9, 100)
    state = TopicState(topic=TOPIC, ledgers=(ledger(9, 100, 0),), end=end, ledgers_known=False)
    start = MessagePosition(3, 7)
    assert normalised(state, start) == start
    (one,) = slices_of(state, start, LATEST, 10)
    assert (one.first, one.end) == (start, end)
    assert [(part.ledger_id, part.first_entry_id) for part in one.ranges] == [(3, 7), (9, 0)]
    assert one.ranges[1].last_entry_id == 99
    assert slices_of(state, end, LATEST, 10) == []
    assert slices_of(state, BEGINNING, MessagePosition(9, 3, 1), 10)[0].ranges[1].last_entry_id == 3
    assert admit({"t": state}, {"t": start}, {}, 10, None, {}) == {"t": MessagePosition(9, 10)}
    assert admit({"t": state}, {"t": end}, {}, 10, None, {}) == {"t": end}
    begun = TopicState(topic=TOPIC, ledgers=(ledger(9, 0),), end=MessagePosition(9, 0), ledgers_known=False)
    assert admit({"t": begun}, {"t": start}, {}, 10, None, {}) == {"t": MessagePosition(9, 0)}
    assert losses(state, start, end, {5: 3}) == []
    # The metadata store tells of a ledger behind that has no entries yet; brokers do not.
    behind = MessagePosition(10, 0)
    assert normalised(state, behind) == end
    assert not ends_before(state, behind)
    assert losses(state, start, behind, {}) == losses(state, behind, LATEST, {}) == []
    assert admit({"t": state}, {"t": behind}, {}, 10, None, {}) == {"t": behind}
    assert ends_before(state, MessagePosition(10, 1))
    empty = TopicState(topic=TOPIC, ledgers=(), end=BEGINNING, ledgers_known=False)
    assert losses(empty, start, LATEST, {}) == []
    assert one_loss(state, (9, 5), (9, 110), {})[:2] == (LossKind.TRUNCATED, 10)


def test_twenty_rows_in_batches_of_six() -> None:
    states, starts, taken = {"t": topic(ledger(1, 12), ledger(2, 8))}, {"t": BEGINNING}, []
    for _batch in range(4):
        reached = admit(states, starts, {}, 6, None, {})
        taken.append(entries_between(states["t"], starts["t"], reached["t"]))
        starts = reached
    assert taken == [6, 6, 6, 2]


def test_bytes_are_counted_where_they_are() -> None:
    states = {"t": topic(ledger(1, 10, 10_000), ledger(2, 1000, 1_000))}
    assert admit(states, {}, {}, None, 2_000, {}) == {"t": MessagePosition(1, 2)}


def test_a_ledger_that_is_closed_is_no_batch_by_itself_but_moves_with_others() -> None:
    rolled, busy = topic(ledger(1, 5), ledger(2, 0)), topic(ledger(7, 5))
    starts = {"rolled": MessagePosition(1, 5), "busy": MessagePosition(7, 5)}
    assert admit({"rolled": rolled, "busy": busy}, starts, {}, 10, None, {}) == starts
    more = topic(ledger(7, 6))
    assert admit({"rolled": rolled, "busy": more}, starts, {}, 10, None, {})["rolled"] == MessagePosition(2, 0)


def test_a_hole_alone_is_passed() -> None:
    state = topic(ledger(1, 5), ledger(2, 4, missing=True), ledger(3, 0))
    assert admit({"t": state}, {"t": MessagePosition(1, 5)}, {}, 1, 1, {}) == {"t": MessagePosition(3, 0)}


def one_loss(
    state: TopicState, first: tuple[int, ...], end: tuple[int, ...], known: Mapping[int, int]
) -> tuple[LossKind, int | None, str]:
    (loss,) = losses(state, MessagePosition(*first), MessagePosition(*end), known)
    return loss.kind, loss.entries, str(loss)


def test_retention_is_named_exactly_when_the_ledgers_were_seen() -> None:
    state = topic(ledger(15, 10))
    kind, entries, text = one_loss(state, (12, 340), (15, 10), {12: 400, 14: 100, 20: 5})
    assert (kind, entries) == (LossKind.RETENTION, 160)
    assert text == (
        f"{TOPIC}: entries 12:340 to 14:99 can no longer be read (160 in all). The topic now begins at 15:0: retention "
        "has trimmed what is older before the query came to it, or the topic was deleted and made anew (then none of "
        "its ledgers is older). The option predefinedSubscription keeps what the query has not read yet, and so does "
        "a longer retention of the namespace. With failOnDataLoss=false the query goes on from 15:0."
    )


def test_retention_of_ledgers_that_nobody_saw_closed() -> None:
    state = topic(ledger(15, 10))
    kind, entries, text = one_loss(state, (12, 340), (15, 10), {})
    assert (kind, entries) == (LossKind.RETENTION, None)
    assert (
        "entries after 12:339 of ledger 12, if any, and of others behind it before 15:0, if any, can no longer be read "
        "(how many cannot be known: the query has not seen where ledger 12 ended)"
    ) in text
    assert "entries of ledger 12, if any, and of others" in one_loss(state, (12, 0), (15, 10), {})[2]
    assert "messages from 12:340:7 on of ledger 12, and of others" in one_loss(state, (12, 340, 7), (15, 10), {})[2]
    assert (
        "after 12:339 of ledger 12 up to before 12:350, if any, can no" in one_loss(state, (12, 340), (12, 350), {})[2]
    )
    kind, entries, text = one_loss(state, (12, 340), (12, 350), {12: 400})
    assert (kind, entries) == (LossKind.RETENTION, 10)
    assert "12:340 to 12:349" in text


def test_what_was_read_to_its_end_may_go() -> None:
    state = topic(ledger(15, 10))
    assert losses(state, MessagePosition(12, 340), LATEST, {12: 340}) == []
    assert losses(state, BEGINNING, LATEST, {}) == []
    assert losses(state, MessagePosition(15, 3), LATEST, {12: 340}) == []
    assert losses(state, LATEST, LATEST, {}) == []
    assert losses(state, MessagePosition(12, 5), MessagePosition(12, 5), {}) == []


def test_holes() -> None:
    state = topic(ledger(10, 5), ledger(12, 7, missing=True), ledger(15, 10))
    kind, entries, text = one_loss(state, (10, 2), (15, 1), {})
    assert (kind, entries) == (LossKind.HOLE, 7)
    assert "entries 12:0 to 12:6 can no longer be read (7 in all)" in text
    assert one_loss(state, (12, 6), (15, 1), {})[1] == 1
    state = topic(ledger(10, 5), ledger(15, 10))
    assert one_loss(state, (10, 0), (15, 1), {12: 7})[:2] == (LossKind.HOLE, 7)
    assert one_loss(state, (12, 3), (15, 1), {12: 7})[:2] == (LossKind.HOLE, 4)
    assert one_loss(state, (12, 3), (15, 1), {})[:2] == (LossKind.HOLE, None)
    assert one_loss(state, (10, 3), (12, 6), {})[:2] == (LossKind.HOLE, 6)
    assert losses(state, MessagePosition(12, 7), MessagePosition(15, 1), {12: 7}) == []
    assert losses(state, MessagePosition(10, 3), MessagePosition(12, 0), {}) == []


def test_places_beyond_the_end() -> None:
    state = topic(ledger(4, 5), ledger(5, 10))
    kind, entries, text = one_loss(state, (5, 3), (5, 12), {})
    assert (kind, entries) == (LossKind.TRUNCATED, 2)
    assert "entries 5:10 to 5:11" in text
    kind, entries, text = one_loss(state, (12, 340), (5, 10), {})
    assert kind is LossKind.TRUNCATED
    assert "12:340, where reading should go on, is not there. The topic ends before 5:10 and has no ledger 12" in text
    assert "goes on from 4:0" in text
    assert goes_on_from(state, MessagePosition(5, 12)) == MessagePosition(5, 10)
    assert goes_on_from(state, MessagePosition(4, 5)) == MessagePosition(5, 0)
    assert "is empty" in one_loss(topic(), (12, 340), (12, 340), {})[2]
    assert "deleted" in str(deleted_topic(TOPIC, MessagePosition(1, 2)))


@FEW
@given(topics(), places, places)
def test_losses_count_what_slices_lack(state: TopicState, first: MessagePosition, end: MessagePosition) -> None:
    """Of a topic that still lists all its ledgers, exactly the missing ones are lost."""
    everything = {one.ledger_id: one.entries for one in state.ledgers}
    first, end = min(first, state.end), min(end, state.end)
    if first.ledger_id not in everything:
        first = BEGINNING
    if end.ledger_id not in everything:
        end = state.end
    found = losses(state, first, end, everything)
    lacking = 0
    for one in state.ledgers:
        low, high = entry_bounds(one, first, end)
        lacking += high - low if one.missing else 0
    assert sum(loss.entries or 0 for loss in found) == lacking
    assert all(loss.kind is LossKind.HOLE for loss in found)


class PublishTimes:
    """Of one ledger after another, with some entries that cannot be read."""

    def __init__(self, times: Sequence[int | None], ledger_entries: int, closed: bool = False) -> None:
        self.times = times
        self.reads = 0
        self.ledger_entries = ledger_entries
        count = -(-len(times) // ledger_entries)
        self.state = topic(
            *(
                TopicLedger(
                    ledger_id=number,
                    entries=min(ledger_entries, len(times) - number * ledger_entries),
                    size_bytes=1,
                    closed_ms=self._closed_ms(number) if closed and number + 1 < count else 0,
                )
                for number in range(count)
            )
        )

    def _closed_ms(self, number: int) -> int:
        part = self.times[number * self.ledger_entries : (number + 1) * self.ledger_entries]
        return max((time for time in part if time is not None), default=0)

    async def of(self, ledger_id: int, entry_id: int) -> int | None:
        self.reads += 1
        return self.times[ledger_id * self.ledger_entries + entry_id]

    async def search(self, time_ms: int) -> int:
        place = await first_at(self.state, time_ms, self.of)
        if place == self.state.end:
            return len(self.times)
        return place.ledger_id * self.ledger_entries + place.entry_id


@FEW
@given(st.lists(st.integers(0, 30), max_size=80).map(sorted), st.integers(0, 32), st.integers(1, 30), st.booleans())
async def test_the_first_message_of_a_time(times: list[int], time_ms: int, ledger_entries: int, closed: bool) -> None:
    scale = 1_000_000  # Ledgers are closed long before the time that is looked for.
    source = PublishTimes([time * scale for time in times], ledger_entries, closed)
    expected = next((place for place, time in enumerate(times) if time >= time_ms), len(times))
    assert await source.search(time_ms * scale) == expected
    assert source.reads <= math.log2(len(times) + 1) + 1


@FEW
@given(st.lists(st.integers(0, 30) | st.none(), max_size=80), st.integers(0, 32), st.integers(1, 30))
async def test_times_that_fall_and_entries_that_are_gone(
    times: list[int | None], time_ms: int, ledger_entries: int
) -> None:
    source = PublishTimes(times, ledger_entries)
    place = await source.search(time_ms)
    assert source.reads <= (math.log2(len(times) + 1) + 1) * (1 + UNREADABLE_MAX)
    if None not in times:
        assert place == 0 or (times[place - 1] or 0) < time_ms
        assert place == len(times) or (times[place] or 0) >= time_ms


async def test_no_time_is_found_without_ledgers() -> None:
    state = TopicState(topic=TOPIC, ledgers=(ledger(9, 100),), end=MessagePosition(9, 100), ledgers_known=False)
    with pytest.raises(BadOption, match=r"set admin\.url"):
        await first_at(state, 5, PublishTimes([1], 1).of)


async def test_a_billion_entries_take_thirty_reads() -> None:
    state = topic(ledger(1, 10**9))
    reads = 0

    async def publish_time_of(_ledger_id: int, entry_id: int) -> int:
        nonlocal reads
        reads += 1
        return entry_id

    assert await first_at(state, 123_456_789, publish_time_of) == MessagePosition(1, 123_456_789)
    assert reads <= 30


def test_ledgers_that_never_had_entries_are_no_holes() -> None:
    # 12 was in use and empty when the query came to it; brokers drop such ones when they close them.
    state = topic(ledger(10, 5), ledger(15, 10))
    assert losses(state, MessagePosition(12, 0), LATEST, {}) == []
    assert one_loss(state, (12, 0, 3), (15, 1), {})[0] is LossKind.HOLE
    assert one_loss(state, (12, 0), (12, 4), {})[:2] == (LossKind.HOLE, 4)
    assert one_loss(state, (12, 0), (15, 1), {12: 7})[:2] == (LossKind.HOLE, 7)
