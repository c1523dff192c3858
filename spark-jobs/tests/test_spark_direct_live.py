"""A whole cluster of processes under a stock producer, read past its brokers, with a bookie killed half way."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pulsar
import pytest
from magnetar.client.message import MessageId, messages_of_entry
from magnetar.spark.bookies.access import DirectAccess, TaskAccess, open_direct
from magnetar.spark.bookies.catalog import DirectCatalog
from magnetar.spark.entries import Hole
from magnetar.spark.errors import ClusterUnreachable
from magnetar.spark.options.connection import ConnectionOptions
from magnetar.spark.positions import MessagePosition
from magnetar.spark.slices import LedgerRange
from magnetar.spark.topics import TopicSelection, TopicState

from e2e import processes
from e2e.cluster.local import LocalCluster, Size

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(180)]

TOPIC = "persistent://public/default/read-directly"
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
MESSAGES = 12_000
LEDGER_ENTRIES = 5


def payload(number: int) -> bytes:
    return f"{number:08d}".encode() + hashlib.sha256(b"%d" % number).digest() * 32


def produce(client: pulsar.Client) -> int:
    """How many messages; the last ones are in the ledger in use, three entries that came one by one."""
    producer = client.create_producer(
        TOPIC, batching_enabled=True, batching_max_messages=1_000, batching_max_publish_delay_ms=10,
        block_if_queue_full=True,
    )  # fmt: skip
    for number in range(MESSAGES):
        producer.send_async(payload(number), lambda *_: None)
    producer.flush()
    number = MESSAGES
    while producer.send(payload(number)).entry_id() != 2:
        number += 1
    producer.close()
    return number + 1


def end_of(consumer: pulsar.Consumer) -> MessagePosition:
    last = consumer.get_last_message_id()
    return MessagePosition(last.ledger_id(), last.entry_id()).next_entry()


def ranges_of(state: TopicState) -> list[LedgerRange]:
    return [
        LedgerRange(
            ledger_id=ledger.ledger_id,
            first_entry_id=0,
            last_entry_id=ledger.entries - 1,
            size_bytes=ledger.size_bytes,
            metadata=ledger.metadata,
        )
        for ledger in state.ledgers
        if ledger.entries
    ]


def no_hole(hole: Hole) -> None:
    pytest.fail(str(hole))


async def test_reading_past_the_brokers(tmp_path: Path) -> None:
    # Ledgers of some hundred kilobytes: many closed ones and one in use.
    settings = {
        "managedLedgerMaxEntriesPerLedger": str(LEDGER_ENTRIES),
        "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    }
    with LocalCluster(tmp_path, Size(bookies=4, brokers=1, proxies=0), broker_settings=settings) as cluster:
        cluster.start()
        client = pulsar.Client(cluster.service_url, logger=QUIET)
        consumer = client.subscribe(TOPIC, "keeps what is there")
        count = produce(client)
        end = end_of(consumer)
        options = ConnectionOptions(service_url=cluster.service_url, metadata_url=cluster.settings.metadata_url)
        access = await open_direct(options)
        try:
            await read_all(cluster, access, end, count)
            # Looking at the wrong place makes nothing there.
            wrong = dataclasses.replace(options, metadata_url=f"{cluster.settings.metadata_url}/nothing-here")
            with pytest.raises(ClusterUnreachable, match="no cluster keeps its bookies"):
                await open_direct(wrong)
            assert not await access.store.exists("/nothing-here")
            # Nobody was fenced: the ledger in use takes what comes next.
            producer = client.create_producer(TOPIC)
            further = producer.send(b"further")
            assert further.ledger_id() >= end.ledger_id
            consumer.close()
        finally:
            await access.close()
            client.close()
        with pytest.raises(ClusterUnreachable):
            await open_direct(dataclasses.replace(options, metadata_url="zk:127.0.0.1:1"))


async def read_all(cluster: LocalCluster, access: DirectAccess, end: MessagePosition, count: int) -> None:
    async def ends(topics: Sequence[str]) -> Mapping[str, MessagePosition]:
        return dict.fromkeys(topics, end)

    broker_cpu_seconds = processes.cpu_seconds(cluster.brokers[0].pids)
    catalog = DirectCatalog(access, ends)
    assert await catalog.topics(TopicSelection(pattern="persistent://public/default/read-.*")) == [TOPIC]
    state = (await catalog.states([TOPIC]))[TOPIC]
    state = await catalog.with_metadata(state, [ledger.ledger_id for ledger in state.ledgers])
    assert state.end == end
    assert len(state.ledgers) > 1
    assert state.ledgers[-1].closed_ms == 0
    assert (state.ledgers[-1].ledger_id, state.ledgers[-1].entries) == (end.ledger_id, end.entry_id)
    # Bookies have not heard yet that the last entry is confirmed.
    alone = (await DirectCatalog(access).states([TOPIC]))[TOPIC]
    assert alone.end == MessagePosition(end.ledger_id, end.entry_id - 1)

    task = TaskAccess(access.addresses(), lambda: _given(access))
    found = 0
    killed = False
    async for block in task.entries(TOPIC).blocks(ranges_of(state), no_hole):
        for entry_id, entry in zip(block.entry_ids, block.entries, strict=True):
            for message in messages_of_entry(entry, MessageId(block.ledger_id, entry_id), 0, []):
                assert message.payload == payload(found)
                found += 1
        if not killed and found >= count // 4:
            cluster.bookies[0].kill()
            killed = True
    assert killed
    assert found == count
    await task.close()
    # What it does by itself meanwhile, a dead bookie among it.
    assert processes.cpu_seconds(cluster.brokers[0].pids) - broker_cpu_seconds < 0.5


async def _given(access: DirectAccess) -> DirectAccess:
    return access
