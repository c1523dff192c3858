"""One topic, compacted in turns by Apache's broker and by ours; each takes over what the other has left."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from magnetar.client.client import PulsarClient
from magnetar.client.message import OutgoingMessage
from magnetar.client.producer import ProducerOptions
from magnetar.client.reader import ReaderOptions
from magnetar.client.settings import ClientSettings
from magnetar.core.clock import SystemClock
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.compression_type import Compression

from e2e.interchange import brokers, parts
from e2e.interchange.cluster import Cluster
from e2e.interchange.parts import BrokerPart
from e2e.processes import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

TOPIC = TopicName.parse("persistent://public/default/prices")
COMPACTED_SECONDS_MAX = 60.0

KeyValue = tuple[str, str | None]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """ZooKeeper, a bookie, and what brokers want to find."""
    reason = parts.missing()
    if reason is not None:
        pytest.skip(reason)
    with Cluster(tmp_path) as running:
        running.initialize_pulsar()
        running.start(running.our_bookie("bookie"))
        yield running


def ask(broker: BrokerPart, method: str, rest: str) -> Any:
    """The answer of the admin API about the topic, decoded; None for an empty one."""
    url = f"{broker.admin_url}/admin/v2/{str(TOPIC).replace('://', '/')}/{rest}"
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=60) as answer:
        content = answer.read()
    return json.loads(content) if content else None


async def publish(broker: BrokerPart, single: Sequence[KeyValue], batch: Sequence[KeyValue]) -> None:
    client = PulsarClient(lambda: broker.service_url, SystemClock(), ClientSettings())
    try:
        producer = await client.producer(TOPIC, ProducerOptions(compression=Compression.LZ4))
        await producer.send_all([outgoing(*pair) for pair in single])
        await producer.send_batch([outgoing(*pair) for pair in batch])
    finally:
        await client.close()


def outgoing(key: str, value: str | None) -> OutgoingMessage:
    return OutgoingMessage(None if value is None else value.encode(), key=key)


async def read(broker: BrokerPart) -> list[tuple[str, str]]:
    """The compacted view, to its end."""
    client = PulsarClient(lambda: broker.service_url, SystemClock(), ClientSettings())
    try:
        reader = await client.reader(TOPIC, ReaderOptions(read_compacted=True))
        found = []
        while (message := await reader.next_or_end()) is not None:
            found.append((str(message.key), message.payload.decode()))
        return found
    finally:
        await client.close()


def compact(broker: BrokerPart) -> int:
    """Compact the topic, then have it lose what nobody needs any more; the compacted ledger."""
    ask(broker, "PUT", "compaction")

    def ended() -> bool:
        status = ask(broker, "GET", "compaction")
        assert status["status"] != "ERROR", status
        return bool(status["status"] == "SUCCESS")

    wait_for(ended, COMPACTED_SECONDS_MAX, "the topic is not compacted")
    ledger_id: int = ask(broker, "GET", "internalStats")["compactedLedger"]["ledgerId"]
    ask(broker, "PUT", "unload")
    wait_for(
        lambda: bool(ask(broker, "GET", "internalStats")["numberOfEntries"] == 0),
        COMPACTED_SECONDS_MAX,
        "what is compacted is kept",
    )
    assert ask(broker, "GET", "internalStats")["compactedLedger"]["ledgerId"] == ledger_id
    return ledger_id


@pytest.mark.parametrize("first", ["apache", "ours"])
def test_in_turns(cluster: Cluster, first: str) -> None:
    apache, ours = cluster.apache_broker((1, 1, 1)), cluster.our_broker((1, 1, 1))
    turns: list[BrokerPart] = [apache, ours, apache] if first == "apache" else [ours, apache, ours]
    latest: dict[str, str] = {}
    ledgers: list[int] = []
    for number, broker in enumerate(turns):
        brokers.start_with_namespace(cluster, broker)
        assert asyncio.run(read(broker)) == list(latest.items()) if ledgers else True
        single: list[KeyValue] = [(f"k{key}", f"{number}-{key}") for key in range(number, number + 6)]
        batch: list[KeyValue] = [("k1", f"{number}-batch"), (f"k{number + 2}", None), ("k9", f"{number}-batch")]
        asyncio.run(publish(broker, single, batch))
        for key, value in (*single, *batch):
            latest.pop(key, None)
            if value is not None:
                latest[key] = value
        ledgers.append(compact(broker))
        assert asyncio.run(read(broker)) == list(latest.items())
        broker.stop()
    assert len(set(ledgers)) == len(ledgers)
