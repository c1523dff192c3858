"""Where reading begins and ends, as users say it and as Spark's checkpoints keep it.

The form of a stream's offset is a promise to checkpoints: `{"persistent://tenant/namespace/topic": "ledger:entry"}`,
or `"ledger:entry:batch index"`, naming the first message that was not read yet. Later versions read it too."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError
from magnetar.spark.errors import BadOption
from magnetar.spark.options.parsing import TIME_FORMS, complete_topic, parse_time_ms, shortened
from magnetar.spark.positions import BEGINNING, MessagePosition
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import MessageIdData

_LONG_MAX: Final = (1 << 63) - 1
_PARTS_MAX: Final = 3
"""Longer lists of numbers are bytes: a serialized id has at least four."""

LATEST: Final = MessagePosition(_LONG_MAX, _LONG_MAX)
"""Behind everything, wherever that is when it is looked up (Java's `MessageId.latest`)."""

_NAMED: Final = {"earliest": tuple(BEGINNING)[:2], "latest": tuple(LATEST)[:2]}

_ACCEPTED: Final = (
    'a JSON object from topics to the places of messages is accepted: {"persistent://public/default/t": "12:340"}; '
    'a place is "ledger:entry", "ledger:entry:batch index", [ledger, entry], "earliest", "latest", or the bytes of a '
    "serialized MessageId as a list or in base64"
)


@dataclass(frozen=True, slots=True)
class Earliest:
    """From the first message that a topic still has."""


@dataclass(frozen=True, slots=True)
class Latest:
    """From behind the last message, or up to it."""


@dataclass(frozen=True, slots=True)
class Explicit:
    """A place for each topic, by complete names: the first message that is read, or the first that is not.

    `BEGINNING` and `LATEST` are places too."""

    positions: Mapping[str, MessagePosition]


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first message that was published at this time or later, in milliseconds: for all topics, or for each."""

    time_ms: int | Mapping[str, int]


StartingPoint: TypeAlias = Earliest | Latest | Explicit | AtTime
EndingPoint: TypeAlias = Latest | Explicit | AtTime

TimePlace: TypeAlias = int
"""Milliseconds since 1970, yet to be looked up in the topic."""


def place_of(point: StartingPoint, topic: str, option: str = "startingOffsets") -> MessagePosition | TimePlace:
    """Where it is in one topic: a place, `BEGINNING`, `LATEST`, or a time to look up. A time for a topic with
    partitions is one for each of them.

    Raises `BadOption` when the point says nothing of this topic: guessing would lose messages or read them twice."""
    match point:
        case Earliest():
            return BEGINNING
        case Latest():
            return LATEST
        case Explicit(positions):
            if topic not in positions:
                raise _unnamed(option, topic, positions)
            return positions[topic]
        case AtTime(int() as time_ms):
            return time_ms
        case AtTime(times):
            assert not isinstance(times, int)
            whole = re.sub(r"-partition-\d+$", "", topic)
            if topic not in times and whole not in times:
                raise _unnamed(option, topic, times)
            return times.get(topic, times.get(whole, 0))


def begins_at_end(point: StartingPoint) -> bool:
    """Whether it is another place each time that it is looked for, in a topic at least."""
    return isinstance(point, Latest) or (isinstance(point, Explicit) and LATEST in point.positions.values())


def _unnamed(option: str, topic: str, named: Mapping[str, object]) -> BadOption:
    names = ", ".join(sorted(named)[:5])
    return BadOption(
        f"option {option} does not say where in {topic}: name each topic that is read, each partition by itself "
        f"(named are: {names}{', …' if len(named) > 5 else ''})"
    )


def parse_offsets(option: str, text: str, *, exclusive_end: bool = False) -> StartingPoint:
    """`earliest`, `latest` or JSON. With `exclusive_end` the places name the last messages that are read, and those
    right behind them come out; a place without batch index then stands for its whole entry. Raises `BadOption`."""
    if text.lower() == "earliest":
        return Earliest()
    if text.lower() == "latest":
        return Latest()
    if not text.startswith("{"):
        raise BadOption(f"option {option}: {shortened(text)} is not understood; earliest, latest, or {_ACCEPTED}")
    positions: dict[str, MessagePosition] = {}
    for name, value in _json_object(option, text, _ACCEPTED).items():
        topic = complete_topic(option, name)
        parts = _position_parts(value)
        if parts is None:
            raise BadOption(f"option {option}: {shortened(json.dumps(value))} for {name} is no place; {_ACCEPTED}")
        if topic in positions:
            raise BadOption(f"option {option} names {topic} twice")
        positions[topic] = _behind(parts) if exclusive_end else MessagePosition(*parts)
    return Explicit(positions)


def parse_times(option: str, text: str) -> AtTime:
    """A time, or a JSON object from topics to times. Raises `BadOption`."""
    if not text.startswith("{"):
        time_ms = parse_time_ms(text)
        if time_ms is None:
            raise BadOption(f"option {option}: {shortened(text)} is no time; {TIME_FORMS}")
        return AtTime(time_ms)
    times: dict[str, int] = {}
    for name, value in _json_object(option, text, f"for each topic {TIME_FORMS}").items():
        time_ms = parse_time_ms(str(value)) if isinstance(value, int | str) and not isinstance(value, bool) else None
        if time_ms is None:
            raise BadOption(f"option {option}: {shortened(json.dumps(value))} for {name} is no time; {TIME_FORMS}")
        times[complete_topic(option, name)] = time_ms
    return AtTime(times)


def _json_object(option: str, text: str, accepted: str) -> dict[str, object]:
    try:
        value = json.loads(text, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        raise BadOption(f"option {option}: {shortened(text)} is no JSON object ({error}); {accepted}") from None
    if not isinstance(value, dict) or not value:
        raise BadOption(f"option {option}: {shortened(text)} names no topic; {accepted}")
    return value


def _without_doubles(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands in it twice")
    return found


def _behind(parts: tuple[int, ...]) -> MessagePosition:
    """The first message that is not read when the one with these numbers is the last that is."""
    if parts in (tuple(LATEST), tuple(LATEST)[:2]):
        return LATEST
    if parts[:2] == tuple(BEGINNING)[:2]:
        return BEGINNING
    if len(parts) == _PARTS_MAX:
        return MessagePosition(parts[0], parts[1], parts[2] + 1)
    return MessagePosition(parts[0], parts[1] + 1)


def _position_parts(value: object) -> tuple[int, ...] | None:
    """Ledger, entry and, where it is given, batch index; None: it is no place."""
    if isinstance(value, str):
        if value.strip().lower() in _NAMED:
            return _NAMED[value.strip().lower()]
        if re.fullmatch(r"\d{1,18}:\d{1,18}(:\d{1,9})?", value.strip(), re.ASCII):
            return tuple(int(part) for part in value.split(":"))
        try:
            return _serialized_parts(base64.b64decode(value.strip(), validate=True))
        except ValueError:
            return None
    if not isinstance(value, list) or not all(isinstance(one, int) and not isinstance(one, bool) for one in value):
        return None
    if len(value) in (2, _PARTS_MAX):
        return tuple(value) if all(0 <= one < 1 << 60 for one in value) else None
    # Java's bytes have a sign.
    return _serialized_parts(bytes(one & 0xFF for one in value)) if all(-128 <= one <= 255 for one in value) else None


def _serialized_parts(data: bytes) -> tuple[int, ...] | None:
    """Ledger, entry and perhaps batch index of Java's `MessageId.toByteArray`; None: the bytes are no such id."""
    try:
        message_id = MessageIdData.FromString(data)
    except DecodeError:
        return None
    if not message_id.IsInitialized() or not message_id.HasField("ledgerId"):
        return None
    ledger_id, entry_id = _signed(message_id.ledgerId), _signed(message_id.entryId)
    if (ledger_id, entry_id) != tuple(BEGINNING)[:2] and (ledger_id < 0 or entry_id < 0):
        return None
    if message_id.batch_index < 0:
        return ledger_id, entry_id
    return ledger_id, entry_id, message_id.batch_index


def _signed(number: int) -> int:
    return number - (1 << 64) if number > _LONG_MAX else number


def encode_offset(positions: Mapping[str, MessagePosition]) -> dict[str, str]:
    """Positions in the form that Spark keeps in the checkpoint; sorted, so that equal offsets are equal texts."""
    return {topic: str(positions[topic]) for topic in sorted(positions)}


def decode_offset(offset: Mapping[str, object]) -> dict[str, MessagePosition]:
    """The inverse. Raises `BadOption` for what this version does not know: a checkpoint of another source, or of a
    later version."""
    positions: dict[str, MessagePosition] = {}
    for topic, text in offset.items():
        known = isinstance(text, str) and re.fullmatch(r"-1:-1|\d+:\d+(:\d+)?", text, re.ASCII)
        if not known or not topic.startswith("persistent://"):
            found = shortened(json.dumps({topic: text}, default=repr))
            raise BadOption(
                f"the checkpoint has the offset {found}, which this version does not understand: "
                '{"persistent://tenant/namespace/topic": "ledger:entry"} is. It was written by another source or a '
                "later version: read on with that one, or begin with a new checkpointLocation"
            )
        positions[topic] = MessagePosition.parse(str(text))
    return positions


def advance(
    offset: Mapping[str, MessagePosition],
    reached: Mapping[str, MessagePosition],
    deleted: Collection[str] = (),
    *,
    restarted: Collection[str] = (),
) -> dict[str, MessagePosition]:
    """The offset moved on to what was reached: topics that are new come in, `deleted` ones go, and none goes back,
    as answers may be older than the offset; but for `restarted` ones, which were truncated or made anew."""
    moved = {topic: position for topic, position in offset.items() if topic not in deleted}
    for topic, position in reached.items():
        if topic not in deleted:
            moved[topic] = position if topic in restarted else max(position, moved.get(topic, BEGINNING))
    return moved
