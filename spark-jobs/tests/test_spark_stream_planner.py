"""What a stream's planner answers, over topics that are made up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from magnetar.sim.virtual_time import VirtualTimeLoop
from magnetar.spark import stream_planner
from magnetar.spark.catalog import TopicLedger, TopicState
from magnetar.spark.cluster import Cluster
from magnetar.spark.errors import DataLoss, TopicMissing
from magnetar.spark.options import SourceOptions, parse_source_options
from magnetar.spark.planner import ReadPlanner, Selected
from magnetar.spark.positions import MessagePosition
from magnetar.spark.pushdown import MessageFilters
from magnetar.spark.stream_planner import StreamPlanner
from magnetar.spark.table import Table
from pyspark.sql.types import BinaryType, StructType

new_event_loop = VirtualTimeLoop
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
        self.ledgers_known = True

    async def selected(self, filters: MessageFilters) -> Selected:
        return Selected([TOPIC], "") if self.ledgers else Selected([], "there is no topic t")

    async def states(self, topics: Sequence[str]) -> dict[str, TopicState]:
        self.looks += 1
        await asyncio.sleep(self.look_seconds)
        if not self.ledgers:
            return {}
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
            ledgers_known=self.ledgers_known,
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
    begun_at = asyncio.get_running_loop().time()
    for _ in range(10):
        await planner.latest(start)
        await asyncio.sleep(0.005)
    # As long without a look as the one before it took.
    assert made.looks - 1 <= (asyncio.get_running_loop().time() - begun_at) / (2 * made.look_seconds)


@pytest.mark.parametrize("look_seconds", [0.0, 3.0])
async def test_nothing_new_is_never_told_of_a_look_before_the_question(
    monkeypatch: pytest.MonkeyPatch, ledgers: dict[int, int], look_seconds: float
) -> None:
    planner, made = stream(monkeypatch, ledgers)
    made.look_seconds = look_seconds
    start = await planner.initial()
    await planner.latest(start)
    for published in range(1, 4):
        ledgers[1] = 100 + published
        start = await planner.latest(start)
        assert start == {TOPIC: f"1:{100 + published}"}


async def test_what_is_known_to_be_there_waits_for_no_look(
    monkeypatch: pytest.MonkeyPatch, ledgers: dict[int, int]
) -> None:
    planner, made = stream(monkeypatch, ledgers, startingOffsets="earliest", maxBytesPerTrigger="1000")
    made.look_seconds = 3.0
    start = await planner.initial()
    begun_at = asyncio.get_running_loop().time()
    assert await planner.latest(start) == {TOPIC: "1:10"}
    assert asyncio.get_running_loop().time() == begun_at


async def test_a_poll_that_is_far_away_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, ledgers: dict[int, int]
) -> None:
    planner, _ = stream(monkeypatch, ledgers, pollInterval="1h")
    start = await planner.initial()
    await planner.latest(start)
    ledgers[1] += 1
    begun_at = asyncio.get_running_loop().time()
    assert await planner.latest(start) == start
    assert asyncio.get_running_loop().time() == begun_at
    await asyncio.sleep(3600)
    assert await planner.latest(start) == {TOPIC: "1:101"}


@pytest.mark.parametrize(("fail", "known", "told"), [("true", False, 1), ("false", False, 0), ("true", True, 0)])
async def test_a_stream_that_could_not_see_a_loss_says_so_once(
    monkeypatch: pytest.MonkeyPatch,
    ledgers: dict[int, int],
    caplog: pytest.LogCaptureFixture,
    fail: str,
    known: bool,
    told: int,
) -> None:
    planner, made = stream(monkeypatch, ledgers, failOnDataLoss=fail)
    made.ledgers_known = known
    start = await planner.initial()
    for _ in range(2):
        await asyncio.sleep(0.02)
        await planner.latest(start)
    assert made.looks > 1
    assert sum("it would not be noticed if retention took messages" in line for line in caplog.messages) == told


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


def forget_looks(planner: StreamPlanner) -> None:
    """The next one is due."""
    planner._topics_at_seconds = planner._states_at_seconds = float("-inf")


class TestMissing:
    """A topic that is named and not there when a driver starts."""

    @pytest.mark.parametrize("fail", ["true", "false"])
    @pytest.mark.parametrize("spark_4_0", [True, False])
    async def test_a_new_query_fails(self, monkeypatch: pytest.MonkeyPatch, fail: str, spark_4_0: bool) -> None:
        planner, _ = stream(monkeypatch, {}, failOnDataLoss=fail)
        await planner.stop_at_present()
        with pytest.raises(TopicMissing, match="there is no topic t"):
            await planner.latest(None if spark_4_0 else await planner.initial())

    @pytest.mark.parametrize("spark_4_0", [True, False])
    async def test_gone_on(
        self, monkeypatch: pytest.MonkeyPatch, spark_4_0: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        planner, made = stream(monkeypatch, {}, failOnDataLoss="false", topicDiscoveryInterval="1s")
        await planner.initial()
        start = {TOPIC: "1:40"}
        if spark_4_0:
            assert await planner.tasks(start, start) == []
        assert await planner.latest(None if spark_4_0 else start) == {}
        assert f"{TOPIC}: entries from 1:40 up to before the topic's end can no longer be read" in caplog.text
        assert "there is no topic t; once it is there, it is read from its beginning" in caplog.text
        assert await planner.tasks(start, {}) == []
        caplog.clear()
        forget_looks(planner)
        assert await planner.latest(None if spark_4_0 else {}) == {}
        assert not caplog.text
        made.ledgers[7] = 3
        forget_looks(planner)
        assert await planner.latest(None if spark_4_0 else {}) == {TOPIC: "7:3"}
        assert not caplog.text

    async def test_gone_on_without_it_before(self, monkeypatch: pytest.MonkeyPatch) -> None:
        planner, _ = stream(monkeypatch, {}, failOnDataLoss="false")
        assert await planner.initial() == {stream_planner.MISSING: "there is no topic t"}
        assert await planner.latest({}) == {}

    async def test_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        planner, _ = stream(monkeypatch, {})
        await planner.initial()
        with pytest.raises(DataLoss, match=f"{TOPIC}: entries from 1:40 up to.*The topic was deleted.*goes on without"):
            await planner.latest({TOPIC: "1:40"})
        planner, _ = stream(monkeypatch, {})
        with pytest.raises(TopicMissing, match="there is no topic t"):
            await planner.latest({})

    async def test_a_first_micro_batch_that_is_planned_again(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        end = {TOPIC: "1:40"}
        planner, _ = stream(monkeypatch, {}, failOnDataLoss="false")
        assert await planner.tasks(await planner.initial(), end) == []
        assert f"{TOPIC}: entries from the topic's beginning up to before the topic's end" in caplog.text
        planner, _ = stream(monkeypatch, {})
        with pytest.raises(DataLoss, match="The topic was deleted"):
            await planner.tasks(await planner.initial(), end)
