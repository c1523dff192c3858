from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

from magnetar.spark.entries import EntryBlock, OnHole
from magnetar.spark.planning.planner import ReadPlanner
from magnetar.spark.planning.rows_per_entry import LOOKED_AT_ONCE_MAX, RowsPerEntry
from magnetar.spark.positions import MessagePosition
from magnetar.spark.slices import LedgerRange
from magnetar.spark.topics import TopicLedger, TopicState
from spark_fakes.assembly import MemoryTopic, batch, plain


class Planner:
    """Each topic has entries of as many messages as its name says."""

    def __init__(self) -> None:
        self.options = self
        self.split_bytes = 1 << 20
        self.open = self.open_max = self.looks = 0

    async def source(self, topic: str) -> Any:
        self.open += 1
        self.looks += 1
        self.open_max = max(self.open, self.open_max)
        count = int(topic)
        return Source(self, MemoryTopic({1: [batch(at, [b"x"] * count) if count else plain(at) for at in range(20)]}))


class Source:
    def __init__(self, planner: Planner, topic: MemoryTopic) -> None:
        self.planner, self.topic = planner, topic

    async def blocks(self, ranges: Sequence[LedgerRange], on_hole: OnHole) -> AsyncIterator[EntryBlock]:
        await asyncio.sleep(0)
        for part in ranges:
            yield self.topic.block(part.ledger_id, part.first_entry_id, part.last_entry_id)

    async def close(self) -> None:
        self.planner.open -= 1


def state(topic: str) -> TopicState:
    ledger = TopicLedger(ledger_id=1, entries=20, size_bytes=2000)
    return TopicState(topic=topic, ledgers=(ledger,), end=MessagePosition(1, 20))


async def test_topics_are_looked_at_side_by_side_and_once_for_each_place() -> None:
    planner = Planner()
    rows = RowsPerEntry(cast("ReadPlanner", planner))
    states = {str(number): state(str(number)) for number in range(40)}
    begin = dict.fromkeys(states, MessagePosition(1, 0)) | {"7": MessagePosition(1, 20)}
    expected = {topic: max(1.0, int(topic)) for topic in states if topic != "7"}
    assert await rows.estimates(states, begin) == expected
    assert await rows.estimates(states, begin) == expected
    assert (planner.looks, planner.open) == (39, 0)
    assert 1 < planner.open_max <= LOOKED_AT_ONCE_MAX
    assert await rows.estimates(states, {**begin, "3": MessagePosition(1, 5)}) == expected
    assert planner.looks == 40
