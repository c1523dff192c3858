"""A topic that Apache Pulsar 4.0.8 has compacted (recorded for the Spark source), compacted here: the same is left."""

from __future__ import annotations

import asyncio
import gzip
import json
from base64 import b64decode
from pathlib import Path
from typing import Any, Final

from magnetar.broker.compaction.latest import KeyRules
from magnetar.broker.compaction.topic_compaction import CompactionWorld, TopicCompaction
from magnetar.core.clock import SystemClock
from magnetar.core.ids import Position
from magnetar.managed.compaction import LEDGER_PROPERTY
from magnetar.managed.info_codec import decode_cursor_info
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.testing import ManagedWorld, append
from magnetar.wire.pulsar.batch import decompressed_payload
from magnetar.wire.pulsar.compacted import decode_compacted, encode_compacted
from magnetar.wire.pulsar.metadata import MessageMetadataView, full_metadata, skim

from broker.tests.test_broker_compaction_model import TOPIC, Topic, compacted, parts

RECORDED: Final = Path(__file__).parents[2] / "spark-jobs/tests/recorded/apache_pulsar_4_0_8_entries.json.gz"
ABORT: Final = 22


class Visible:
    """What readers see of a topic with transactions, all of which have ended."""

    def __init__(self, ledger: ManagedLedger, aborted: set[tuple[int, int]]) -> None:
        self._ledger = ledger
        self._aborted = aborted

    def end(self) -> Position:
        return self._ledger.ledgers.last_position()

    def hides(self, metadata: MessageMetadataView) -> bool:
        return metadata.marker_type >= 0 or transaction(metadata) in self._aborted


def transaction(metadata: MessageMetadataView) -> tuple[int, int]:
    return metadata.txnid_most_bits, metadata.txnid_least_bits


def horizon(recorded: dict[str, Any]) -> Position:
    info = decode_cursor_info(b64decode(recorded["closed_cursor_node"]))
    assert [(one.name, one.value) for one in info.properties] == [
        (LEDGER_PROPERTY, int(next(iter(recorded["compacted"]))))
    ]
    return info.markDeleteLedgerId, info.markDeleteEntryId


def taken_apart(data: bytes) -> tuple[bytes, bytes]:
    """Metadata and payload of an entry; another compressor may give other bytes for the same."""
    return full_metadata(data).SerializeToString(), decompressed_payload(data)


async def test_the_same_is_left() -> None:
    recorded: dict[str, Any] = json.loads(gzip.decompress(RECORDED.read_bytes()))
    end = horizon(recorded)
    stored = {
        (int(ledger_id), entry_id): b64decode(data)
        for ledger_id, entries in recorded["topic"].items()
        for entry_id, data in enumerate(entries)
    }
    views = [skim(data) for data in stored.values()]
    aborted = {transaction(view) for view in views if view.marker_type == ABORT}
    assert aborted
    by_apache = [decode_compacted(b64decode(data)) for data in next(iter(recorded["compacted"].values()))]

    world = ManagedWorld()
    ledger = await world.factory().open("t")
    places = {await append(ledger, [data]): place for place, data in stored.items() if place <= end}
    topic: Any = Topic(ledger)
    topic.visible_entries = Visible(ledger, aborted)
    tasks: list[asyncio.Task[None]] = []
    shared = CompactionWorld(
        SystemClock(),
        lambda work: tasks.append(asyncio.get_running_loop().create_task(work)),
        asyncio.Semaphore(1),
        lambda: parts(KeyRules()),
        ManagedLedgerSettings(),
    )
    compaction = TopicCompaction(topic, shared)
    compaction.start()
    await asyncio.wait(tasks)
    assert compaction.status["status"] == "SUCCESS"
    left = [(places[position], data) for position, data in await compacted(topic)]
    assert [place for place, _ in left] == [place for place, _ in by_apache]
    assert [taken_apart(data) for _, data in left] == [taken_apart(data) for _, data in by_apache]
    await world.close()


def test_entries_are_written_as_by_apache() -> None:
    recorded: dict[str, Any] = json.loads(gzip.decompress(RECORDED.read_bytes()))
    assert TOPIC.partition_index == -1
    for entries in recorded["compacted"].values():
        for data in map(b64decode, entries):
            position, content = decode_compacted(data)
            assert encode_compacted(position, content, TOPIC.partition_index) == data
