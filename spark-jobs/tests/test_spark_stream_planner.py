"""What a stream's planner answers, over topics that are made up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from magnetar.spark import stream_planner
from magnetar.spark.catalog import TopicLedger, TopicState
from magnetar.spark.cluster import Cluster
from magnetar.spark.errors import DataLoss
from magnetar.spark.options import SourceOptions, parse_source_options
from magnetar.spark.planner import ReadPlanner
from magnetar.spark.positions import MessagePosition
from magnetar.spark.pushdown import MessageFilters
from magnetar.spark.stream_planner import StreamPlanner
from magnetar.spark.table import Table
from pyspark.sql.types import BinaryType, StructType

TOPIC = "persistent://public/default/t"
OPTIONS = {"service.url": "pulsar://h:1", "topic": "t", "pollInterval": "10ms"}
SCHEMA = StructType().add("value", BinaryType())


class Planner(ReadPlanner):
    """Of one topic with these ledgers: id → entries; the last one is in use."""

    def __init__(self, options: SourceOptions, ledgers: dict[int, int]) -> None:
        super().__init__(options, cast("Cluster", None), direct=False)
        self.ledgers = ledgers
        self.looks = 0
        self.look_seconds = 0.0
        self.brokers_answer = True

    async def topics(self, filters: MessageFilters, *, must_exist: bool = True) -> list[str]:
        return [TOPIC]

    async def states(self, topics: Sequence[str]) -> dict[str, TopicState]:
        self.looks += 1
        await asyncio.sleep(self.look_seconds)
        last = max(self.ledgers)
        ledgers = tuple(
            TopicLedger(ledger_id=each, entries=entries, size_bytes=100 * entries, closed_ms=0 if each == last else 1)
            for each, entries in self.ledgers.items()
        )
        state = TopicState(
            topic=TOPIC,
            ledgers=ledgers,
            end=MessagePosition(last, self.ledgers[last]),
            end_certain=self.brokers_answer,
        )
        return {topic: state for topic in topics if topic == TOPIC}


@pytest.fixture
def ledgers() -> dict[int, int]:
    return {1: 100}


def stream(monkeypatch: pytest.MonkeyPatch, ledgers: dict[int, int], **more: str) -> tuple[StreamPlanner, Planner]:
    options = parse_source_options({**OPTIONS, **more})
    planner = Planner(options, ledgers)

    async def opened(_: Any) -> Planner:
        return planner

    monkeypatch.setattr(stream_planner, "open_planner", opened)
    return StreamPlanner(options, SCHEMA, Table(definition=None)), planner


async def test_spark_4_0_asks_how_far_before_it_asks_from_where(
    monkeypatch: pytest.MonkeyPatch, ledgers: dict[int, int]
) -> None:
    planner, _ = stream(monkeypatch, ledgers, maxBytesPerTrigger="500")
    end = await planner.latest(None)
    ledgers[1] += 3
    start = await planner.initial()
    # Nothing of what was there before the query began.
    assert (start, end) == ({TOPIC: "1:100"}, {TOPIC: "1:100"})
    await asyncio.sleep(0.02)
    assert await planner.latest(None) == {TOPIC: "1:103"}


async def test_what_takes_long_is_not_done_all_the_time(
    monkeypatch: pytest.MonkeyPatch, ledgers: dict[int, int]
) -> None:
    planner, made = stream(monkeypatch, ledgers)
    made.look_seconds = 0.1
    start = await planner.initial()
    for _ in range(10):
        await planner.latest(start)
        await asyncio.sleep(0.005)
    assert made.looks <= 2


async def test_the_end_of_a_run_is_at_the_next_ledger_when_there_is_one(
    monkeypatch: pytest.MonkeyPatch, ledgers: dict[int, int]
) -> None:
    planner, _ = stream(monkeypatch, ledgers, startingOffsets="earliest")
    await planner.stop_at_present()
    ledgers[2] = 5
    start = await planner.initial()
    await asyncio.sleep(0.02)
    # Retention may take the first ledger now: that all of it was read must be seen from the offset.
    assert await planner.latest(start) == {TOPIC: "2:0"}


async def test_a_stream_waits_where_bookies_have_heard_of_less_than_it_has_read(
    monkeypatch: pytest.MonkeyPatch, ledgers: dict[int, int]
) -> None:
    planner, made = stream(monkeypatch, ledgers)
    made.brokers_answer = False
    assert await planner.latest({TOPIC: "1:101"}) == {TOPIC: "1:101"}
    made.brokers_answer = True
    await asyncio.sleep(0.02)
    with pytest.raises(DataLoss, match="ends before 1:100"):
        await planner.latest({TOPIC: "1:101"})
