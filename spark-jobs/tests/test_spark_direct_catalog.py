"""Topics, ledgers and ends from a metadata store and bookies in memory."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping, Sequence

import pytest
from magnetar.core.topic_name import TopicName
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.testing import MemoryBookies, RecordingListener
from magnetar.ledger.writer import OpenLedgerWriter
from magnetar.managed.info_codec import encode_ledger_info
from magnetar.managed.ledger_list import LedgerRecord
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import Node, StoreUnavailable
from magnetar.sim.virtual_time import LoopClock, VirtualTimeLoop
from magnetar.spark.bookies import catalog as direct_catalog
from magnetar.spark.bookies.catalog import DirectCatalog, Ends
from magnetar.spark.bookies.topic_nodes import ledgers_path, partitions_path
from magnetar.spark.errors import BadOption, ClusterUnreachable
from magnetar.spark.positions import BEGINNING, MessagePosition
from magnetar.spark.topics import TopicSelection
from magnetar.wire.bookkeeper.ledger_metadata import decode_ledger_metadata
from magnetar.wire.pulsar.generated.ml_data_formats_pb2 import ManagedLedgerInfo

new_event_loop = VirtualTimeLoop

TOPIC = "persistent://public/default/t"
WHOLE = LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=2)


class CountingStore(MemoryMetadataStore):
    """Counts reads, and refuses writes once it is sealed."""

    def __init__(self) -> None:
        super().__init__()
        self.gets: list[str] = []
        self.away = False

    async def get(self, path: str, *, watch: bool = True) -> Node | None:
        self.gets.append(path)
        if self.away:
            raise StoreUnavailable("the store is away")
        return await super().get(path, watch=watch)


class Cluster:
    """What a catalog looks at, and how it comes to be."""

    def __init__(self) -> None:
        self.store = CountingStore()
        self.ledgers_store = self.store
        self.bookies = MemoryBookies(3)
        self.client = BookKeeperClient(self.store, self.bookies, clock=LoopClock(), rng=random.Random(7))

    async def ledger(self, count: int, *, close: bool) -> OpenLedgerWriter:
        """With entries of 100 bytes, added one by one."""
        listener = RecordingListener()
        writer = await self.client.create(WHOLE, listener)
        for entry_id in range(count):
            writer.append([b"x" * 100])
            await listener.until_confirmed(entry_id)
        if close:
            await writer.close()
        return writer

    async def topic(self, name: str, records: Sequence[LedgerRecord]) -> None:
        path = ledgers_path(TopicName.parse(name))
        await self.store.put(path, encode_ledger_info(records, None, {"a": "b"}) if records else b"")

    async def partitioned(self, name: str, count: int, **more: object) -> None:
        document = {"partitions": count, **more}
        await self.store.put(partitions_path(TopicName.parse(name)), json.dumps(document).encode())


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    yield made
    await made.client.close()
    await made.store.close()


def told(ends: Mapping[str, MessagePosition]) -> Ends:
    async def ask(topics: Sequence[str]) -> Mapping[str, MessagePosition]:
        return {topic: ends[topic] for topic in topics if topic in ends}

    return ask


async def test_topics_by_name(cluster: Cluster) -> None:
    await cluster.topic("one", [])
    await cluster.partitioned("many", 3)
    await cluster.topic("many-partition-0", [])
    await cluster.partitioned("going", 2, deleted=True)
    await cluster.topic("elsewhere-partition-4", [])
    catalog = DirectCatalog(cluster)
    names = ("one", "public/default/many", "nothing", "going", "elsewhere", "many-partition-2", "many-partition-3")
    assert await catalog.topics(TopicSelection(names=names)) == [
        "persistent://public/default/elsewhere-partition-4",
        "persistent://public/default/many-partition-0",
        "persistent://public/default/many-partition-1",
        "persistent://public/default/many-partition-2",
        "persistent://public/default/one",
    ]
    with pytest.raises(BadOption, match="not persistent"):
        await catalog.topics(TopicSelection(names=("non-persistent://a/b/c",)))


async def test_topics_by_pattern(cluster: Cluster) -> None:
    for name in ("log a", "log-b-partition-0", "other", "__change_events"):
        await cluster.topic(name, [])
    await cluster.topic("persistent://public/elsewhere/log-c", [])
    await cluster.partitioned("log-d", 2)
    catalog = DirectCatalog(cluster)
    assert await catalog.topics(TopicSelection(pattern="persistent://public/default/log.*")) == [
        "persistent://public/default/log a",
        "persistent://public/default/log-b-partition-0",
        "persistent://public/default/log-d-partition-0",
        "persistent://public/default/log-d-partition-1",
    ]
    assert "persistent://public/default/__change_events" not in await catalog.topics(
        TopicSelection(pattern="public/default/.*")
    )
    for pattern in ("log.*", "persistent://public/(", "non-persistent://a/b/c"):
        with pytest.raises(BadOption):
            await catalog.topics(TopicSelection(pattern=pattern))


async def test_a_topic_that_is_written(cluster: Cluster) -> None:
    closed = await cluster.ledger(4, close=True)
    writer = await cluster.ledger(5, close=False)
    records = [LedgerRecord(closed.ledger_id, 4, 400, 1_000), LedgerRecord(writer.ledger_id)]
    await cluster.topic(TOPIC, records)
    alone = (await DirectCatalog(cluster).states([TOPIC, TOPIC + "-gone"]))[TOPIC]
    first, last = alone.ledgers
    assert (first.ledger_id, first.entries, first.size_bytes, first.closed_ms) == (closed.ledger_id, 4, 400, 1_000)
    # Bookies have not heard yet that the fifth entry is confirmed: who asks no broker does not see it.
    assert (last.entries, last.size_bytes, last.closed_ms) == (4, 400, 0)
    assert alone.end == MessagePosition(writer.ledger_id, 4)
    assert decode_ledger_metadata(last.metadata).ensembles[0][0] == 0
    assert first.metadata == b""
    assert alone.properties == {"a": "b"}

    end = MessagePosition(writer.ledger_id, 5)
    state = (await DirectCatalog(cluster, told({TOPIC: end})).states([TOPIC]))[TOPIC]
    assert (state.end, state.ledgers[-1].entries, state.ledgers[-1].size_bytes) == (end, 5, 500)
    # The writer has noticed nothing.
    assert not any(bookie.ledgers[writer.ledger_id].fenced for bookie in cluster.bookies.bookies.values())
    assert writer.append([b"more"]) == 5
    await writer.close()


async def test_brokers_hold_an_end_back(cluster: Cluster) -> None:
    closed, writer = await cluster.ledger(4, close=True), await cluster.ledger(5, close=False)
    await cluster.topic(TOPIC, [LedgerRecord(closed.ledger_id, 4, 400, 1_000), LedgerRecord(writer.ledger_id)])
    end = MessagePosition(closed.ledger_id, 2)
    state = (await DirectCatalog(cluster, told({TOPIC: end})).states([TOPIC]))[TOPIC]
    assert (state.end, state.ledgers[-1].entries) == (end, 4)
    state = (await DirectCatalog(cluster, told({TOPIC: BEGINNING})).states([TOPIC]))[TOPIC]
    assert state.end == MessagePosition(closed.ledger_id, 0)


async def test_empty_topics(cluster: Cluster) -> None:
    await cluster.topic(TOPIC, [])
    await cluster.partitioned("p", 2)
    unused = "persistent://public/default/p-partition-1"
    states = await DirectCatalog(cluster).states([TOPIC, unused, "persistent://public/default/p-partition-2"])
    assert set(states) == {TOPIC, unused}
    assert all((state.ledgers, state.end) == ((), BEGINNING) for state in states.values())
    writer = await cluster.ledger(0, close=False)
    await cluster.topic(TOPIC, [LedgerRecord(writer.ledger_id)])
    state = (await DirectCatalog(cluster).states([TOPIC]))[TOPIC]
    assert (state.ledgers[0].entries, state.end) == (0, MessagePosition(writer.ledger_id, 0))


async def test_a_last_ledger_that_was_closed_without_its_broker_noting_it(cluster: Cluster) -> None:
    writer = await cluster.ledger(7, close=True)
    await cluster.topic(TOPIC, [LedgerRecord(writer.ledger_id)])
    state = (await DirectCatalog(cluster).states([TOPIC]))[TOPIC]
    assert (state.ledgers[0].entries, state.ledgers[0].size_bytes) == (7, 700)
    assert state.end == MessagePosition(writer.ledger_id, 7)


async def test_metadata_of_the_ledgers_that_are_read(cluster: Cluster) -> None:
    writers = [await cluster.ledger(1, close=True) for _ in range(4)]
    records = [LedgerRecord(writer.ledger_id, 1, 100, 1_000) for writer in writers]
    await cluster.topic(TOPIC, records)
    catalog = DirectCatalog(cluster)
    state = (await catalog.states([TOPIC]))[TOPIC]
    assert len([path for path in cluster.store.gets if path.startswith("/ledgers/")]) == 0
    ids = [writer.ledger_id for writer in writers]
    some = await catalog.with_metadata(state, ids[1:])
    assert [bool(ledger.metadata) for ledger in some.ledgers] == [False, True, True, True]
    cluster.store.gets.clear()
    assert await catalog.with_metadata(state, ids[1:]) == some
    assert not cluster.store.gets  # Closed ledgers are kept.

    # One that the topic still lists is a hole; one that it has let go of is not.
    catalog = DirectCatalog(cluster)
    await cluster.client.delete(ids[0])
    await cluster.client.delete(ids[2])
    await cluster.topic(TOPIC, records[1:])
    state = await catalog.with_metadata(state, ids)
    assert [(ledger.ledger_id, ledger.missing) for ledger in state.ledgers] == [
        (ids[1], False),
        (ids[2], True),
        (ids[3], False),
    ]


async def test_kept_metadata_is_bounded(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_catalog, "CLOSED_KEPT_MAX", 2)
    ids = [(await cluster.ledger(1, close=True)).ledger_id for _ in range(3)]
    catalog = DirectCatalog(cluster)
    for ledger_id in [*ids, ids[2], ids[0]]:
        assert await catalog.ledger_metadata(ledger_id)
    assert list(catalog._closed) == [ids[2], ids[0]]


async def test_a_ledger_in_use_that_is_gone(cluster: Cluster) -> None:
    await cluster.topic(TOPIC, [LedgerRecord(1_000)])
    state = (await DirectCatalog(cluster).states([TOPIC]))[TOPIC]
    assert state.ledgers[0].missing


async def test_offloaded_ledgers(cluster: Cluster) -> None:
    record = LedgerRecord(5, 1, 100, 1_000)
    record.rest = ManagedLedgerInfo.LedgerInfo(ledgerId=5)
    record.rest.offloadContext.complete = True
    await cluster.topic(TOPIC, [record])
    assert (await DirectCatalog(cluster).states([TOPIC]))[TOPIC].ledgers[0].offloaded


async def test_too_few_bookies_say_how_far_it_goes(cluster: Cluster) -> None:
    writer = await cluster.ledger(3, close=False)
    await cluster.topic(TOPIC, [LedgerRecord(writer.ledger_id)])
    first, second, _ = cluster.bookies.bookies.values()
    first.stop()
    assert (await DirectCatalog(cluster).states([TOPIC]))[TOPIC].end.entry_id == 2
    second.stop()
    with pytest.raises(ClusterUnreachable, match="the others may know of more"):
        await DirectCatalog(cluster).states([TOPIC])
    # A broker's word is enough.
    end = MessagePosition(writer.ledger_id, 3)
    state = (await DirectCatalog(cluster, told({TOPIC: end})).states([TOPIC]))[TOPIC]
    assert (state.end, state.ledgers[0].entries) == (end, 3)


async def test_brokers_tell_and_not_one_bookie_says_anything(cluster: Cluster) -> None:
    one = await cluster.ledger(3, close=False)
    await cluster.topic(TOPIC, [LedgerRecord(one.ledger_id)])
    catalog = DirectCatalog(cluster, told({TOPIC: MessagePosition(one.ledger_id, 3)}))
    for bookie in cluster.bookies.bookies.values():
        bookie.stop()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    with pytest.raises(ClusterUnreachable, match=r"for 10 s none of the bookies .* answers"):
        await catalog.states([TOPIC])
    assert 10 <= loop.time() - begun < 30
    # One that is started again meanwhile is waited for.
    first = next(iter(cluster.bookies.bookies.values()))
    loop.call_later(5, first.heal)
    assert (await catalog.states([TOPIC]))[TOPIC].end.entry_id == 3


async def test_the_store_is_away(cluster: Cluster) -> None:
    cluster.store.away = True
    catalog = DirectCatalog(cluster)
    with pytest.raises(ClusterUnreachable, match=r"the store is away.*metadata\.url"):
        await catalog.states([TOPIC])
    with pytest.raises(ClusterUnreachable):
        await catalog.topics(TopicSelection(names=("t",)))
    cluster.store.away = False
    await cluster.store.put(ledgers_path(TopicName.parse("t")), b"\xff\xff\xff")
    with pytest.raises(ClusterUnreachable):
        await catalog.states([TOPIC])


async def test_no_broker_answers_any_more(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    writer = await cluster.ledger(5, close=False)
    await cluster.topic(TOPIC, [LedgerRecord(writer.ledger_id)])
    end = MessagePosition(writer.ledger_id, 5)
    away = False

    async def ends(topics: Sequence[str]) -> Mapping[str, MessagePosition]:
        if away:
            raise ClusterUnreachable("no broker")
        return dict.fromkeys(topics, end)

    catalog = DirectCatalog(cluster, ends)
    assert (await catalog.states([TOPIC]))[TOPIC].end == end
    away = True
    # What a broker has said once stays true, although bookies know of four entries only.
    assert (await catalog.states([TOPIC]))[TOPIC].end == end
    assert "no broker says" in caplog.text
    fewer = (await DirectCatalog(cluster, ends).states([TOPIC]))[TOPIC]
    assert (fewer.end, fewer.end_certain) == (MessagePosition(writer.ledger_id, 4), False)
    writer.append([b"1"])
    writer.append([b"2"])
    await writer.close()
    assert (await catalog.states([TOPIC]))[TOPIC].end == MessagePosition(writer.ledger_id, 7)
