from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from magnetar.spark.assembly.neighbours import DEFAULT_BOUNDS, EntryWalk, TopicNeighbours
from magnetar.spark.entries import EntryBlock, Hole, OnHole
from magnetar.spark.positions import MessagePosition
from magnetar.spark.slices import LedgerRange
from magnetar.spark.topics import TopicLedger, TopicState
from spark_fakes.assembly import TOPIC, MemoryTopic


class Source:
    def __init__(self) -> None:
        self.asked: list[LedgerRange] = []
        self.closed = 0

    async def blocks(self, ranges: Sequence[LedgerRange], on_hole: OnHole) -> AsyncIterator[EntryBlock]:
        self.asked += ranges
        for part in ranges:
            on_hole(Hole(topic=TOPIC, ledger_id=part.ledger_id, first_entry_id=0, last_entry_id=0, reason="gone"))
            for entry_id in range(max(1, part.first_entry_id), part.last_entry_id + 1):
                yield EntryBlock(part.ledger_id, [entry_id], [b"%d" % entry_id])

    async def close(self) -> None:
        self.closed += 1


async def states(topics: Sequence[str]) -> dict[str, TopicState]:
    ledgers = (
        TopicLedger(ledger_id=2, entries=10, size_bytes=1000, metadata=b"two"),
        TopicLedger(ledger_id=5, entries=10, size_bytes=1000, missing=True),
        TopicLedger(ledger_id=6, entries=3, size_bytes=30),
    )
    return {TOPIC: TopicState(topic=TOPIC, ledgers=ledgers, end=MessagePosition(6, 3))}


async def test_neighbours_are_those_of_the_catalog() -> None:
    source = Source()
    topic = TopicNeighbours(TOPIC, states, lambda: source)
    assert [await topic.previous(6), await topic.previous(5), await topic.previous(2)] == [5, 2, None]
    assert [await topic.following(2), await topic.following(6)] == [5, None]
    assert [await topic.last_entry(each) for each in (2, 5, 6, 7)] == [9, -1, 2, -1]
    block = await topic.read(2, 0, 3)
    assert (block.entry_ids, block.entries) == ([1, 2, 3], [b"1", b"2", b"3"])
    assert source.asked == [
        LedgerRange(ledger_id=2, first_entry_id=0, last_entry_id=3, size_bytes=400, metadata=b"two")
    ]
    assert len(topic.holes) == 1
    assert (await topic.read(5, 0, 3)).entries == []
    await topic.close()
    await topic.close()
    assert source.closed == 1


async def test_nothing_is_near_a_topic_that_is_gone() -> None:
    topic = TopicNeighbours("persistent://a/b/c", states, Source)
    assert (await topic.previous(6), await topic.following(1), await topic.last_entry(2)) == (None, None, -1)


async def test_walks_see_each_entry_once() -> None:
    topic = MemoryTopic({ledger_id: [b"%d-%d" % (ledger_id, at) for at in range(150)] for ledger_id in (1, 4, 9)})
    for forward, place in ((True, (4, 10)), (False, (4, 9))):
        walk = EntryWalk(topic, DEFAULT_BOUNDS, place, forward=forward)
        seen: list[bytes] = []
        while (block := await walk.step()) is not None:
            seen += block.entries if forward else block.entries[::-1]
        everything = [entry for entries in topic.ledgers.values() for entry in entries]
        assert seen == (everything[160:] if forward else everything[159::-1])
        assert await walk.step() is None


async def test_a_walk_goes_on_behind_what_was_read_otherwise() -> None:
    topic = MemoryTopic({1: [b"%d" % at for at in range(10)]})
    walk = EntryWalk(topic, DEFAULT_BOUNDS, (1, 0), forward=True)
    walk.skip_to((1, 8))
    walk.skip_to((1, 2))
    block = await walk.step()
    assert block is not None
    assert block.entries == [b"8", b"9"]


async def test_walks_say_that_brokers_alone_do_not_tell_ledgers() -> None:
    async def states_of(topics: Sequence[str]) -> dict[str, TopicState]:
        ledger = TopicLedger(ledger_id=6, entries=3, size_bytes=0)
        return {TOPIC: TopicState(topic=TOPIC, ledgers=(ledger,), end=MessagePosition(6, 3), ledgers_known=False)}

    topic = TopicNeighbours(TOPIC, states_of, Source)
    before = EntryWalk(topic, DEFAULT_BOUNDS, (4, 0), forward=False)
    while await before.step() is not None:
        pass
    assert before.ended == (
        "it is not known which ledgers are before ledger 4: brokers tell the topic's ledgers by the admin API alone: "
        "set admin.url, with a role that may see internal stats, or read from bookies (readMode)"
    )
    behind = EntryWalk(topic, DEFAULT_BOUNDS, (6, 3), forward=True)
    assert await behind.step() is None
    assert behind.ended.startswith("it is not known which ledgers are behind ledger 6")
    assert await TopicNeighbours(TOPIC, states, Source).unknown() == ""
