from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import cast

import pytest
from magnetar.spark.assembly.compaction import CompactedLedger
from magnetar.spark.cluster import ClusterConnections
from magnetar.spark.entries import EntryBlock, OnHole
from magnetar.spark.errors import ClusterUnreachable, DataLoss
from magnetar.spark.options.offsets import AtTime
from magnetar.spark.options.pushdown import MessageFilters
from magnetar.spark.options.reading import parse_source_options
from magnetar.spark.planning.planner import PUBLISHED_BEFORE_STORED_MS_MAX, ReadPlanner, TopicRange, narrowed
from magnetar.spark.positions import MessagePosition
from magnetar.spark.slices import LedgerRange
from magnetar.spark.topics import CLOSED_AT_UNKNOWN_TIME, TopicLedger, TopicState
from spark_fakes.assembly import MemoryTopic, plain

TOPIC = "persistent://public/default/t"
HOUR = PUBLISHED_BEFORE_STORED_MS_MAX
FIRST, END = MessagePosition(1, 0), MessagePosition(3, 5)


def reach(*closed_ms: int) -> TopicRange:
    ledgers = tuple(
        TopicLedger(ledger_id=number, entries=5, size_bytes=50, closed_ms=each)
        for number, each in enumerate(closed_ms, 1)
    )
    return TopicRange(TopicState(topic=TOPIC, ledgers=ledgers, end=END), FIRST, END)


def test_ledgers_that_were_written_at_other_times_are_left_out() -> None:
    found = narrowed(reach(10 * HOUR, 20 * HOUR, 0), MessageFilters(publish_time_ms_min=12 * HOUR))
    assert (found.first, found.end) == ((2, 0, 0), END)
    found = narrowed(reach(10 * HOUR, 20 * HOUR, 0), MessageFilters(publish_time_ms_max=12 * HOUR))
    assert (found.first, found.end) == (FIRST, (3, 0, 0))


def test_ledgers_of_which_nobody_says_when_they_were_written_are_read() -> None:
    unknown = reach(CLOSED_AT_UNKNOWN_TIME, CLOSED_AT_UNKNOWN_TIME, 0)
    found = narrowed(unknown, MessageFilters(publish_time_ms_min=12 * HOUR, publish_time_ms_max=13 * HOUR))
    assert (found.first, found.end) == (FIRST, END)


async def test_what_only_brokers_know_is_neither_lost_nor_left_out() -> None:
    # A broker told that there are five entries; after a restart none answers, and bookies know of four.
    whole = reach(10 * HOUR, 20 * HOUR, 0)
    fewer = replace(
        whole.state,
        end=MessagePosition(3, 4),
        end_certain=False,
        ledgers=(*whole.state.ledgers[:2], replace(whole.state.ledgers[2], entries=4)),
    )
    options = parse_source_options({"service.url": "pulsar://h:1", "topic": "t"})
    planner = ReadPlanner(options, cast("ClusterConnections", None), direct=False)
    with pytest.raises(ClusterUnreachable, match="up to before 3:5: bookies know of what is before 3:4"):
        await planner.slices([replace(whole, state=fewer)], {})
    assert await planner.slices([replace(whole, state=fewer, end=fewer.end)], {})
    with pytest.raises(DataLoss, match="ends before"):
        await planner.slices([replace(whole, state=replace(fewer, end_certain=True))], {})
    with pytest.raises(DataLoss, match="has no ledger 4"):
        await planner.slices([replace(whole, state=fewer, end=MessagePosition(4, 1))], {})


class Compacted:
    """A cluster with a topic that was compacted up to 2:3, into a ledger that is gone; its broker may tell more."""

    opened_direct = None

    def __init__(self, told: CompactedLedger | None = None) -> None:
        self.brokers = ToldCompaction(told)

    async def direct(self) -> Compacted:
        return self

    async def direct_catalog(self) -> Compacted:
        return self

    async def with_metadata(self, state: TopicState, ledger_ids: set[int]) -> TopicState:
        return state

    async def compaction(
        self, topic: str, told: Callable[[], Awaitable[CompactedLedger | None]]
    ) -> tuple[CompactedLedger, TopicLedger]:
        newer = await told()
        if newer is not None:
            return newer, TopicLedger(ledger_id=newer.ledger_id, entries=1, size_bytes=10)
        gone = TopicLedger(ledger_id=70, entries=0, size_bytes=0, missing=True)
        return CompactedLedger(70, MessagePosition(2, 3)), gone


class ToldCompaction:
    def __init__(self, told: CompactedLedger | None) -> None:
        self.told = told

    async def compaction(self, topic: str) -> CompactedLedger | None:
        if self.told is None:
            raise ClusterUnreachable("away")
        return self.told


class Tiered(Compacted):
    """A cluster of which bookies have nothing, and brokers have all."""

    def __init__(self) -> None:
        super().__init__()
        self.topic = MemoryTopic({1: [plain(at, publish_time_ms=HOUR + at) for at in range(5)]})
        self.looked_up: set[int] = set()

    def entries(self, topic: str, *, give_up_seconds: float = 0.0) -> Entries:
        return Entries(MemoryTopic({}))

    def broker_entries(self, topic: str) -> Entries:
        return Entries(self.topic)

    async def with_metadata(self, state: TopicState, ledger_ids: set[int]) -> TopicState:
        self.looked_up |= ledger_ids
        return state


class Entries:
    def __init__(self, topic: MemoryTopic) -> None:
        self.topic = topic

    async def blocks(self, ranges: Sequence[LedgerRange], on_hole: OnHole) -> AsyncIterator[EntryBlock]:
        for part in ranges:
            yield self.topic.block(part.ledger_id, part.first_entry_id, part.last_entry_id)

    async def close(self) -> None:
        pass


async def test_a_time_is_looked_for_in_tiered_storage_too() -> None:
    options = parse_source_options({"service.url": "pulsar://h:1", "topic": "t", "startingTime": "3600003"})
    cluster = Tiered()
    planner = ReadPlanner(options, cast("ClusterConnections", cluster), direct=True)
    ledgers = (
        TopicLedger(ledger_id=0, entries=5, size_bytes=50, closed_ms=1),
        TopicLedger(ledger_id=1, entries=5, size_bytes=50, closed_ms=2 * HOUR, offloaded=True),
    )
    state = TopicState(topic=TOPIC, ledgers=ledgers, end=MessagePosition(1, 5))
    assert await planner.positions(AtTime(HOUR + 3), [state], "startingTime") == {TOPIC: MessagePosition(1, 3)}
    assert cluster.looked_up == {1}


async def test_a_compaction_that_is_gone_is_not_an_empty_one() -> None:
    options = parse_source_options({"service.url": "pulsar://h:1", "topic": "t", "readCompacted": "true"})
    planner = ReadPlanner(options, cast("ClusterConnections", Compacted()), direct=True)
    with pytest.raises(DataLoss, match="compacted into ledger 70, and the metadata store has it no more"):
        await planner.slices([reach(10, 20, 0)], {})
    planner = ReadPlanner(
        replace(options, fail_on_data_loss=False), cast("ClusterConnections", Compacted()), direct=True
    )
    assert [(one.first, one.end) for one in await planner.slices([reach(10, 20, 0)], {})] == [((2, 4, 0), END)]


async def test_a_compaction_that_only_its_broker_knows_of_is_read() -> None:
    options = parse_source_options({"service.url": "pulsar://h:1", "topic": "t", "readCompacted": "true"})
    newer = CompactedLedger(71, MessagePosition(3, 1))
    planner = ReadPlanner(options, cast("ClusterConnections", Compacted(newer)), direct=True)
    found = await planner.slices([reach(10, 20, 0)], {})
    assert [(one.compacted, one.ranges[0].ledger_id, one.first, one.end) for one in found] == [
        (True, 71, FIRST, (3, 2, 0)),
        (False, 3, (3, 2, 0), END),
    ]


class Brokers:
    """They tell of a ledger that the topic has no more, or do not answer."""

    def __init__(self, told: dict[int, int] | None) -> None:
        self.told = told
        self.brokers = self

    async def trimmed_entries(self, topic: str, subscription: str) -> dict[int, int]:
        if self.told is None:
            raise ClusterUnreachable("away")
        return self.told


async def test_brokers_are_asked_whether_a_trimmed_ledger_was_read_to_its_end() -> None:
    options = parse_source_options({"service.url": "pulsar://h:1", "topic": "t"})
    trimmed = reach(10 * HOUR, 20 * HOUR, 0)
    trimmed = replace(
        trimmed, first=MessagePosition(1, 3), state=replace(trimmed.state, ledgers=trimmed.state.ledgers[1:])
    )

    async def planned(told: dict[int, int] | None, *, fail: bool = True) -> list[MessagePosition]:
        wanted = replace(options, fail_on_data_loss=fail)
        planner = ReadPlanner(wanted, cast("ClusterConnections", Brokers(told)), direct=False)
        return [one.first for one in await planner.slices([trimmed], {})]

    assert await planned({1: 3}) == [(1, 3, 0)]
    with pytest.raises(DataLoss, match=r"entries 1:3 to 1:4 can no longer be read \(2 in all\)"):
        await planned({1: 5})
    with pytest.raises(DataLoss, match="entries after 1:2 of ledger 1, if any, and of others"):
        await planned({})
    with pytest.raises(ClusterUnreachable):
        await planned(None)
    assert await planned(None, fail=False) == [(2, 0, 0)]
