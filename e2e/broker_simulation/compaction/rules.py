"""What must hold of what readers of compacted topics get. Pure.

A compaction up to a horizon leaves the newest message of each key up to there, unless that deletes the key; behind the
horizon everything stands. Nobody is told the horizon, so it is found from what a reading lacks: a message may only be
missing where the horizon is beyond the next message of its key, and from there on the horizon is no nearer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from magnetar.core.ids import Position

from e2e.broker_simulation.drawn.compaction import Message, message_of
from e2e.broker_simulation.history import CompactedReading, Content, Entry, History, TopicHistory

NOWHERE: Final[Position] = (-1, -1)

CompactionRule = Callable[[History], Iterator[str]]


class Place(NamedTuple):
    """A message where it is stored."""

    position: Position
    number: int
    """Of the message in its entry, from 0."""


@dataclass(slots=True)
class Stored:
    """A message of a topic."""

    place: Place
    content: Content
    message: Message
    newer: Stored | None = None
    """The next message of its key."""

    def __str__(self) -> str:
        kind = "the tombstone" if not self.message.has_value else "the message"
        return f"{kind} {self.place.number} of {self.place.position} with the key {self.message.key}"


def messages_of(log: list[Entry]) -> list[Stored]:
    """All messages of a topic, in order, each with the next one of its key."""
    found: list[Stored] = []
    last: dict[str, Stored] = {}
    for entry in log:
        content = entry.content
        for index in range(content.messages):
            message = message_of(content.producer, content.sequence_id + index)
            stored = Stored(Place(entry.position, index), content, message)
            if message.key is not None:
                former = last.get(message.key)
                if former is not None:
                    former.newer = stored
                last[message.key] = stored
            found.append(stored)
    return found


def compacted_reads_are_right(history: History) -> Iterator[str]:
    """Each reading, by whoever."""
    for reading in history.compacted:
        topic = history.topics[reading.topic]
        if topic.logs:
            judge = Judge(reading, topic, keeps_without_key=history.keeps_without_key)
            for what in judge.wrong():
                yield f"{reading.name}: {what}"


class Judge:
    """Of one reading."""

    def __init__(self, reading: CompactedReading, topic: TopicHistory, *, keeps_without_key: bool) -> None:
        self._reading = reading
        self._log = topic.logs[-1]
        self._asked = topic.asked
        # What was trimmed before anybody wanted it compacted is gone for good.
        self._lost = {position for position, trimmed in topic.trimmed.items() if not trimmed.compacted}
        self._keeps_without_key = keeps_without_key
        self._horizon = reading.floor
        """No nearer than this, as far as known."""

    def wrong(self) -> Iterator[str]:
        """What is wrong with it."""
        found = list(self._wrong_entries())
        yield from found
        if not found:
            yield from self._wrong_messages()

    def _wrong_entries(self) -> Iterator[str]:
        stored = {entry.position: entry.content for entry in self._log}
        last = NOWHERE
        for entry in self._reading.entries:
            if entry.position <= last:
                yield f"{entry.position} comes after {last}"
            last = entry.position
            if stored.get(entry.position) != entry.content:
                there = stored.get(entry.position, "nothing")
                yield f"{entry.position} is read as {entry.content}, and {there} is there"
            elif not entry.indexes:
                yield f"{entry.position} comes without any message"

    def _wrong_messages(self) -> Iterator[str]:
        reading = self._reading
        read = {Place(entry.position, index) for entry in reading.entries for index in entry.indexes}
        end = reading.end
        if not reading.whole:
            end = reading.entries[-1].position if reading.entries else NOWHERE
        log = [entry for entry in self._log if entry.position not in self._lost]
        messages = [one for one in messages_of(log) if reading.quiet or one.place.position <= end]
        if reading.quiet:
            # One horizon for all of it.
            for one in messages:
                if one.place not in read:
                    self._horizon = max(self._horizon, self._horizon_without(one) or NOWHERE)
        passed = self._passing_times()
        resumed = list(reading.resumed)
        for one in messages:
            while resumed and one.place.position > resumed[0]:
                # Another broker perhaps, which knows of an older compaction.
                resumed.pop(0)
                self._horizon = NOWHERE
            if one.place in read:
                yield from self._read(one)
            else:
                yield from self._missing(one, passed(one.place.position))

    def _read(self, one: Stored) -> Iterator[str]:
        newer = one.newer
        if newer is not None and newer.place.position <= self._horizon:
            yield f"{one} comes, though {newer} is newer, and the horizon is not before {self._horizon}"

    def _missing(self, one: Stored, passed_at: float) -> Iterator[str]:
        needed = self._horizon_without(one)
        if needed is None:
            yield f"{one} is missing, and is the newest one" if one.message.key is not None else f"{one} is missing"
            return
        newer = one.newer if one.message.has_value else None
        if newer is not None and self._asked.get(newer.content, 0.0) > passed_at:
            yield f"{one} is missing before anybody has sent {newer}"
        self._horizon = max(self._horizon, needed)

    def _horizon_without(self, one: Stored) -> Position | None:
        """The nearest horizon of a compaction that leaves this out; None: none does."""
        if one.message.key is None:
            return None if self._keeps_without_key else one.place.position
        if not one.message.has_value:
            return one.place.position
        return None if one.newer is None else one.newer.place.position

    def _passing_times(self) -> Callable[[Position], float]:
        """When the reader was told that it is behind a position: asked in the order of positions."""
        entries, at = self._reading.entries, 0

        def passed(position: Position) -> float:
            nonlocal at
            while at < len(entries) and entries[at].position <= position:
                at += 1
            return entries[at].at if at < len(entries) else self._reading.ended_at

        return passed


COMPACTION_RULES: Final[tuple[CompactionRule, ...]] = (compacted_reads_are_right,)
