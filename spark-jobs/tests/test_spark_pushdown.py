"""Filters of Spark's, and what is left of them for Spark."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.spark.options.pushdown import EVERYTHING, MessageFilters, push


class _Filter:
    """Like those of pyspark.sql.datasource."""

    def __init__(self, attribute: str, value: Any = None) -> None:
        self.attribute = tuple(attribute.split("."))
        self.value = value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.attribute}, {self.value!r})"


class EqualTo(_Filter): ...


class EqualNullSafe(_Filter): ...


class GreaterThan(_Filter): ...


class GreaterThanOrEqual(_Filter): ...


class LessThan(_Filter): ...


class LessThanOrEqual(_Filter): ...


class In(_Filter): ...


class IsNull(_Filter): ...


class IsNotNull(_Filter): ...


class StringStartsWith(_Filter): ...


class StringEndsWith(_Filter): ...


class Not:
    def __init__(self, child: _Filter) -> None:
        self.child = child


TOPIC = "persistent://public/default/t"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOON_MS = 1_772_366_400_000
HALF = timedelta(microseconds=500)


def pushed(*asked: object) -> tuple[MessageFilters, list[object]]:
    return push(EVERYTHING, asked)


@pytest.mark.parametrize(
    ("one", "low", "high"),
    [
        (GreaterThan("__publishTime", NOON), NOON_MS + 1, None),
        (GreaterThan("__publishTime", NOON + HALF), NOON_MS + 1, None),
        (GreaterThanOrEqual("__publishTime", NOON), NOON_MS, None),
        (GreaterThanOrEqual("__publishTime", NOON + HALF), NOON_MS + 1, None),
        (LessThan("__publishTime", NOON), None, NOON_MS - 1),
        (LessThan("__publishTime", NOON + HALF), None, NOON_MS),
        (LessThanOrEqual("__publishTime", NOON), None, NOON_MS),
        (LessThanOrEqual("__publishTime", NOON + HALF), None, NOON_MS),
        (EqualTo("__publishTime", NOON), NOON_MS, NOON_MS),
        (EqualNullSafe("__publishTime", NOON), NOON_MS, NOON_MS),
        (EqualTo("__publishTime", NOON.astimezone(timezone(timedelta(hours=5)))), NOON_MS, NOON_MS),
    ],
)
def test_publish_times_are_taken_exactly(one: object, low: int | None, high: int | None) -> None:
    filters, rest = pushed(IsNotNull("__publishTime"), one)
    assert (filters.publish_time_ms_min, filters.publish_time_ms_max) == (low, high)
    assert rest == []


def test_no_message_has_half_a_millisecond() -> None:
    filters, rest = pushed(EqualTo("__publishTime", NOON + HALF))
    assert filters.nothing
    assert rest == []


COMPARED: dict[type[_Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda row, value: row == value,
    GreaterThan: lambda row, value: row > value,
    GreaterThanOrEqual: lambda row, value: row >= value,
    LessThan: lambda row, value: row < value,
    LessThanOrEqual: lambda row, value: row <= value,
    In: lambda row, values: row in values,
}
SINGLE = [one for one in COMPARED if one is not In]


@given(
    st.lists(st.tuples(st.sampled_from(SINGLE), st.integers(-3000, 3000)), max_size=4),
    st.lists(st.integers(-3000, 3000), min_size=1, max_size=3) | st.none(),
    st.integers(-4, 4),
    st.sampled_from(["__publishTime", "__eventTime"]),
)
def test_the_same_rows_pass_as_in_spark(
    comparisons: list[tuple[type[_Filter], int]], listed: list[int] | None, row_ms: int, column: str
) -> None:
    """Times are microseconds around noon; the row has a whole millisecond."""
    asked = [kind(column, NOON + timedelta(microseconds=micros)) for kind, micros in comparisons]
    if listed is not None:
        asked.append(In(column, tuple(NOON + timedelta(microseconds=micros) for micros in listed)))
    row = NOON + timedelta(milliseconds=row_ms)
    filters, rest = push(EVERYTHING, asked)
    wanted = all(COMPARED[type(one)](row, one.value) for one in asked)
    if column == "__publishTime":
        low, high = filters.publish_time_ms_min, filters.publish_time_ms_max
    else:
        low, high = filters.event_time_ms_min, filters.event_time_ms_max
    time_ms = NOON_MS + row_ms
    ours = (low is None or time_ms >= low) and (high is None or time_ms <= high)
    spark = all(COMPARED[type(one)](row, one.value) for one in rest if isinstance(one, _Filter))
    assert (ours and spark) == wanted


def test_event_times_without_a_lower_bound_are_checked_by_spark_too() -> None:
    """A message without an event time has 0 there, and NULL in Spark."""
    below, present = LessThan("__eventTime", NOON), IsNotNull("__eventTime")
    filters, rest = pushed(present, below)
    assert filters.event_time_ms_max == NOON_MS - 1
    assert rest == [present, below]
    above = GreaterThan("__eventTime", NOON - timedelta(days=1))
    assert pushed(present, below, above)[1] == []
    listed = In("__eventTime", [NOON, NOON + timedelta(seconds=1)])
    assert pushed(listed, above)[1] == [listed]


def test_keys_and_topics() -> None:
    filters, rest = pushed(
        IsNotNull("__key"), In("__key", ["a", "b", None]), EqualTo("__key", "a"), StringStartsWith("__topic", "pers")
    )
    assert filters == MessageFilters(keys=frozenset([b"a"]), topic_prefixes=("pers",))
    assert rest == []
    filters, rest = pushed(EqualTo("__topic", TOPIC), In("__topic", (TOPIC, "other")), IsNotNull("__topic"))
    assert filters == MessageFilters(topics=frozenset([TOPIC]))
    assert rest == []
    assert pushed(EqualTo("__key", "a"), EqualTo("__key", "b"))[0].nothing


def test_keys_of_bytes() -> None:
    filters, rest = pushed(IsNotNull("__key"), In("__key", [b"\xff", bytearray(b"b"), None]), EqualTo("__key", b"b"))
    assert filters == MessageFilters(keys=frozenset([b"b"]))
    assert rest == []
    # Texts are compared as their UTF-8.
    assert pushed(EqualTo("__key", "é"))[0].keys == frozenset(["é".encode()])


def test_what_is_not_understood_is_given_back_as_it_is() -> None:
    asked = [
        EqualTo("value", "x"),
        Not(EqualTo("__key", "x")),
        IsNull("__key"),
        IsNotNull("__key"),
        IsNotNull("value"),
        EqualTo("__key", 1),
        EqualTo("__key.part", "x"),
        EqualNullSafe("__key", None),
        In("__key", ["a", 5]),
        GreaterThan("__key", "a"),
        StringEndsWith("__topic", "t"),
        GreaterThan("__publishTime", datetime(2026, 3, 1)),  # noqa: DTZ001 - such a value says nothing
        In("__publishTime", [NOON, "noon"]),
        object(),
    ]
    filters, rest = push(EVERYTHING, asked)
    assert filters == EVERYTHING
    assert rest == asked
    assert all(one is other for one, other in zip(rest, asked, strict=True))


def test_filters_of_options_are_narrowed() -> None:
    options = MessageFilters(publish_time_ms_min=NOON_MS, keys=frozenset([b"a", b"b"]), partitions=frozenset([1]))
    asked = [GreaterThan("__publishTime", NOON - HALF * 10_000), In("__key", ["b", "c"])]
    filters, rest = push(options, asked)
    assert filters == MessageFilters(publish_time_ms_min=NOON_MS, keys=frozenset([b"b"]), partitions=frozenset([1]))
    assert rest == []


def test_topics_that_are_wanted() -> None:
    assert EVERYTHING.wants_topic(TOPIC)
    assert not EVERYTHING.nothing
    assert MessageFilters(partitions=frozenset([0])).wants_topic(TOPIC)
    assert not MessageFilters(partitions=frozenset([0])).wants_topic(f"{TOPIC}-partition-3")
    assert MessageFilters(partitions=frozenset([3])).wants_topic(f"{TOPIC}-partition-3")
    assert not MessageFilters(topics=frozenset([TOPIC])).wants_topic(f"{TOPIC}-partition-3")
    prefixes = MessageFilters(topic_prefixes=("persistent://public/", f"{TOPIC}-"))
    assert prefixes.wants_topic(f"{TOPIC}-partition-3")
    assert not prefixes.wants_topic(TOPIC)
