"""What an executor does when bookies cannot be reached any more in the middle of a slice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

import pytest
from magnetar.spark.cluster import ClusterConnections
from magnetar.spark.entries import EntryBlock, EntrySource, OnHole
from magnetar.spark.errors import ClusterUnreachable
from magnetar.spark.options.connection import ConnectionOptions
from magnetar.spark.options.pushdown import EVERYTHING
from magnetar.spark.options.reading import parse_source_options
from magnetar.spark.positions import MessagePosition
from magnetar.spark.reading.table import Table
from magnetar.spark.reading.task import ReadTask, SliceMessages
from magnetar.spark.slices import LedgerRange
from magnetar.spark.topics import TopicLedger, TopicState
from spark_fakes.assembly import TOPIC, MemoryTopic, batch, chunk, plain

OPTIONS = {"service.url": "pulsar://127.0.0.1:1", "topic": "t"}
FIRST, END = MessagePosition(1, 0), MessagePosition(9, 0)


class Source:
    """Entries one by one, as far as it reaches."""

    def __init__(self, topic: MemoryTopic, reach: int, hidden: frozenset[tuple[int, int]] = frozenset()) -> None:
        self.topic = topic
        self.left = reach
        self.hidden = hidden

    async def blocks(self, ranges: Sequence[LedgerRange], on_hole: OnHole) -> AsyncIterator[EntryBlock]:
        for part in ranges:
            last = min(part.last_entry_id, len(self.topic.ledgers[part.ledger_id]) - 1)
            for entry_id in range(part.first_entry_id, last + 1):
                if not self.left:
                    raise ClusterUnreachable("no bookie answers")
                self.left -= 1
                block = self.topic.block(part.ledger_id, entry_id, entry_id)
                if block.entries and (part.ledger_id, entry_id) not in self.hidden:
                    yield block

    async def close(self) -> None:
        pass


class World(ClusterConnections):
    """Bookies of which sources reach so many entries, in the order in which they are made; brokers reach all."""

    def __init__(self, topic: MemoryTopic, *reaches: int, aborted: frozenset[tuple[int, int]] = frozenset()) -> None:
        super().__init__(ConnectionOptions(service_url=OPTIONS["service.url"]))
        self.topic = topic
        self.reaches = list(reaches)
        self.aborted = aborted
        self.brokers.states = self.states  # type: ignore[method-assign]

    async def states(self, topics: Sequence[str]) -> dict[str, TopicState]:
        """As brokers tell them without the admin API."""
        ledgers = (TopicLedger(ledger_id=9, entries=1, size_bytes=0),)
        return {TOPIC: TopicState(topic=TOPIC, ledgers=ledgers, end=MessagePosition(9, 1), ledgers_known=False)}

    def bookie_entries(self, topic: str, addresses: Mapping[str, tuple[str, int]]) -> EntrySource:
        return Source(self.topic, self.reaches.pop(0))

    def broker_entries(self, topic: str, *, read_compacted: bool = False) -> EntrySource:
        return Source(self.topic, 1000, self.aborted)

    async def direct_catalog(self) -> World:  # type: ignore[override]
        return self

    async def with_metadata(self, state: TopicState, ledger_ids: set[int]) -> TopicState:
        return state


def task_of(world: World, first: MessagePosition, **options: str) -> ReadTask:
    return ReadTask(
        slice_=world.topic.slice_of(first, END),
        options=parse_source_options({**OPTIONS, **options}),
        filters=EVERYTHING,
        table=Table(definition=None),
        arrow_schema=b"",
        direct=True,
        bookie_addresses={},
    )


async def read(world: World, first: MessagePosition = FIRST, **options: str) -> list[tuple[int, int]]:
    messages = SliceMessages(task_of(world, first, **options), world)
    try:
        return [(one.ledger_id, one.entry_id) async for some in messages.whole() for one in some if not one.broken]
    finally:
        await messages.close()
        await world.close()


@pytest.mark.parametrize("reach", range(7))
async def test_brokers_go_on_where_bookies_end(reach: int) -> None:
    topic = MemoryTopic({1: [batch(at, [b"a", b"b"]) for at in range(4)], 2: [plain(4), plain(5)]})
    expected = [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1)]
    assert await read(World(topic, reach)) == expected
    if reach < len(expected):
        with pytest.raises(ClusterUnreachable):
            await read(World(topic, reach), readMode="bookies")


async def test_nothing_is_left_out_when_neighbours_cannot_be_reached() -> None:
    # The chunk before the slice cannot be had; the entries that came with its last one must not be lost for it.
    payloads = [b"x" * 10, b"y" * 10]
    topic = MemoryTopic({1: [chunk(7, 0, payloads), plain(8), chunk(7, 1, payloads), plain(9)]})
    with pytest.raises(ClusterUnreachable):
        await read(World(topic, 1000, 0), MessagePosition(1, 1))
    assert await read(World(topic, 1000, 1000), MessagePosition(1, 1)) == [(1, 1), (1, 2), (1, 3)]


async def test_chunks_before_ledgers_that_nobody_tells() -> None:
    payloads = [b"x" * 10, b"y" * 10]
    world = World(MemoryTopic({1: [chunk(7, 0, payloads)], 2: [chunk(7, 1, payloads)], 9: [plain(8)]}), 0)
    task = task_of(world, MessagePosition(2, 0))
    messages = SliceMessages(task, world)
    (broken,) = [one for some in [each async for each in messages.whole()] for one in some if one.broken]
    await messages.close()
    await world.close()
    assert "chunk 0 was not found: it is not known which ledgers are before ledger 2" in broken.broken
    assert "set admin.url" in broken.broken


async def test_open_transactions_are_decided_by_brokers_that_tell_no_ledgers() -> None:
    committed, aborted = (0, 1), (0, 2)
    entries: list[bytes | None] = [
        plain(0, transaction=committed),
        plain(1, transaction=aborted),
        plain(2),
        plain(3, transaction=committed),
    ]
    topic = MemoryTopic({1: entries, 9: [plain(4)]})
    gone = frozenset({(1, 1)})
    assert await read(World(topic, 3, aborted=gone)) == [(1, 0), (1, 2), (1, 3)]
