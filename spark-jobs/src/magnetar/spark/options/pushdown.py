"""Which messages are wanted at all: from options, and from the filters that Spark hands down.

Spark's filters are known by their class names and attributes, so that no Spark is needed here (pyspark.sql.datasource
has them from 4.1 on). A filter that is applied here exactly is not given back, and Spark does not look again; one that
only narrows what is read is given back too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from magnetar.core.topic_name import TopicName

PUBLISH_TIME: Final = "__publishTime"
EVENT_TIME: Final = "__eventTime"
KEY: Final = "__key"
TOPIC: Final = "__topic"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFilters:
    """What a message has to fulfil, all of it; None or empty: nothing is asked. Times are milliseconds since 1970."""

    publish_time_ms_min: int | None = None
    """The earliest publish time, inclusive."""
    publish_time_ms_max: int | None = None
    """The latest publish time, inclusive."""
    event_time_ms_min: int | None = None
    """Inclusive. A message without an event time fits no bound."""
    event_time_ms_max: int | None = None
    """The latest event time, inclusive."""
    keys: frozenset[bytes] | None = None
    """The key as the table shows it is one of these, texts in UTF-8; a message without a key has none of them."""
    topics: frozenset[str] | None = None
    """Complete names of the wanted topics, with `-partition-N`."""
    topic_prefixes: tuple[str, ...] = ()
    """The complete name begins with each of these."""
    partitions: frozenset[int] | None = None
    """A topic without partitions is its own partition 0."""

    @property
    def nothing(self) -> bool:
        """No message at all can fulfil these."""
        return (
            _empty_range(self.publish_time_ms_min, self.publish_time_ms_max)
            or _empty_range(self.event_time_ms_min, self.event_time_ms_max)
            or self.keys == frozenset()
            or self.topics == frozenset()
            or self.partitions == frozenset()
        )

    def wants_topic(self, topic: str) -> bool:
        """Whether messages of this topic, or partition, may be wanted. The name is complete."""
        if self.topics is not None and topic not in self.topics:
            return False
        if not all(topic.startswith(prefix) for prefix in self.topic_prefixes):
            return False
        return self.partitions is None or max(TopicName.parse(topic).partition_index, 0) in self.partitions


EVERYTHING: Final = MessageFilters()

_Bounds: TypeAlias = tuple[int | None, int | None]


def push(filters: MessageFilters, asked: Sequence[object]) -> tuple[MessageFilters, list[object]]:
    """The filters narrowed by Spark's, all of which have to hold; and those of Spark's that it still has to apply,
    the very objects, in their order."""
    given_back: list[object] = []
    waiting: list[object] = []
    for one in asked:
        column = _column(one)
        narrow = _NARROWING.get(column)
        narrowed = None if narrow is None else narrow(filters, one)
        if narrowed is None:
            # These hold of themselves once other filters are known to be applied.
            (waiting if column in _NARROWING and _kind(one) == "IsNotNull" else given_back).append(one)
            continue
        filters, exact = narrowed
        if not exact:
            (waiting if column == EVENT_TIME else given_back).append(one)
    given_back += [one for one in waiting if not _implied(filters, one)]
    places = {id(one): place for place, one in enumerate(asked)}
    given_back.sort(key=lambda one: places[id(one)])
    return filters, given_back


def _kind(one: object) -> str:
    return type(one).__name__


def _column(one: object) -> str:
    path = getattr(one, "attribute", ())
    return str(path[0]) if isinstance(path, tuple) and len(path) == 1 else ""


def _implied(filters: MessageFilters, one: object) -> bool:
    column = _column(one)
    if column == EVENT_TIME:
        # An event time of 0 is none: above it, a bound leaves out messages without.
        bounded = filters.event_time_ms_min is not None and filters.event_time_ms_min >= 1
        return bounded and _kind(one) != "In"
    if column == KEY:
        return filters.keys is not None
    return True  # Each message has a publish time and a topic.


def _narrow_publish_time(filters: MessageFilters, one: object) -> tuple[MessageFilters, bool] | None:
    bounds = _time_bounds(one)
    if bounds is None:
        return None
    low, high = _narrower((filters.publish_time_ms_min, filters.publish_time_ms_max), bounds)
    return replace(filters, publish_time_ms_min=low, publish_time_ms_max=high), _kind(one) != "In"


def _narrow_event_time(filters: MessageFilters, one: object) -> tuple[MessageFilters, bool] | None:
    bounds = _time_bounds(one)
    if bounds is None:
        return None
    low, high = _narrower((filters.event_time_ms_min, filters.event_time_ms_max), bounds)
    return replace(filters, event_time_ms_min=low, event_time_ms_max=high), False


def _narrow_key(filters: MessageFilters, one: object) -> tuple[MessageFilters, bool] | None:
    keys = _keys(one)
    if keys is None:
        return None
    return replace(filters, keys=keys if filters.keys is None else filters.keys & keys), True


def _narrow_topic(filters: MessageFilters, one: object) -> tuple[MessageFilters, bool] | None:
    if _kind(one) == "StringStartsWith":
        prefix = getattr(one, "value", None)
        if not isinstance(prefix, str):
            return None
        return replace(filters, topic_prefixes=(*filters.topic_prefixes, prefix)), True
    topics = _texts(one)
    if topics is None:
        return None
    return replace(filters, topics=topics if filters.topics is None else filters.topics & topics), True


_NARROWING: Final[dict[str, Callable[[MessageFilters, object], tuple[MessageFilters, bool] | None]]] = {
    PUBLISH_TIME: _narrow_publish_time,
    EVENT_TIME: _narrow_event_time,
    KEY: _narrow_key,
    TOPIC: _narrow_topic,
}


def _equal_to(one: object) -> list[object] | None:
    """What a column may be by `=`, `<=>` or IN; None: the filter says something else."""
    value = getattr(one, "value", None)
    if _kind(one) in ("EqualTo", "EqualNullSafe") and value is not None:
        return [value]
    if _kind(one) == "In" and isinstance(value, list | tuple):
        # A NULL in the list makes no row fit.
        return [each for each in value if each is not None]
    return None


def _texts(one: object) -> frozenset[str] | None:
    values = _equal_to(one)
    texts = [value for value in values or () if isinstance(value, str)]
    return None if values is None or len(texts) < len(values) else frozenset(texts)


def _keys(one: object) -> frozenset[bytes] | None:
    """Spark compares a column of texts with texts, and one of bytes with bytes."""
    values = _equal_to(one)
    keys = [value.encode() if isinstance(value, str) else value for value in values or ()]
    known = [bytes(key) for key in keys if isinstance(key, bytes | bytearray)]
    return None if values is None or len(known) < len(values) else frozenset(known)


def _time_bounds(one: object) -> _Bounds | None:
    """Both inclusive, in milliseconds; None: the filter says something else. Rows have whole milliseconds."""
    value = getattr(one, "value", None)
    if _kind(one) == "In" and isinstance(value, list | tuple):
        times = [_microseconds(time) for time in value if time is not None]
        known = [time for time in times if time is not None]
        if not known or len(known) < len(times):
            return None
        return -(-min(known) // 1000), max(known) // 1000
    time = _microseconds(value)
    if time is None:
        return None
    below, above = time // 1000, -(-time // 1000)
    match _kind(one):
        case "EqualTo" | "EqualNullSafe":
            return above, below  # No row at all when this is no whole millisecond.
        case "GreaterThan":
            return below + 1, None
        case "GreaterThanOrEqual":
            return above, None
        case "LessThan":
            return None, above - 1
        case "LessThanOrEqual":
            return None, below
        case _:
            return None


def _microseconds(value: object) -> int | None:
    """Exact, unlike `timestamp()`. A time without its zone says nothing."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // _MICROSECOND


def _narrower(one: _Bounds, other: _Bounds) -> _Bounds:
    lows = [low for low in (one[0], other[0]) if low is not None]
    highs = [high for high in (one[1], other[1]) if high is not None]
    return max(lows, default=None), min(highs, default=None)


def _empty_range(low: int | None, high: int | None) -> bool:
    return low is not None and high is not None and low > high
