"""Entries as Apache Pulsar 4.0.8 stored them, against what its own Java client read of them.

Topic `mixed`: single messages, batches and interleaved chunked messages, in and out of transactions that were committed
or aborted. Topic `topic`: keyed messages, batches, deletions and transactions, compacted in the middle.
"""

from __future__ import annotations

import gzip
import json
import random
from base64 import b64decode
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from magnetar.spark.assembly.assembler import EntryAssembler
from magnetar.spark.assembly.compaction import CompactedLedger, compacted_slices, compaction_in_stats, read_compaction
from magnetar.spark.entries import WholeEntry
from magnetar.spark.positions import BEGINNING, MessagePosition
from magnetar.spark.slices import Slice
from magnetar.spark.topics import TopicLedger
from magnetar.wire.pulsar.batch import split_batch
from magnetar.wire.pulsar.compression import decompress
from spark_fakes.assembly import TOPIC, MemoryTopic

RECORDED: Final = Path(__file__).parent / "recorded" / "apache_pulsar_4_0_8_entries.json.gz"

END: Final = MessagePosition(1 << 40, 0)

Read = tuple[str, bytes]
"""Position and value."""


@cache
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(RECORDED.read_bytes()))
    return found


def topic(name: str) -> MemoryTopic:
    ledgers = recorded()[name].items()
    return MemoryTopic({int(ledger_id): [b64decode(each) for each in entries] for ledger_id, entries in ledgers})


def read_by_java(name: str) -> list[Read]:
    return [(position, b"" if value == "-" else b64decode(value)) for position, value in recorded()[name]]


def messages(entry: WholeEntry) -> list[Read]:
    place = f"{entry.ledger_id}:{entry.entry_id}"
    view = entry.view
    if view.is_batch:
        singles = enumerate(split_batch(entry.data))
        return [(f"{place}:{index}", value) for index, (single, value) in singles if not single.compacted_out]
    payload = entry.data[view.payload_start :] if entry.joined_payload is None else entry.joined_payload
    return [(f"{place}:0", decompress(view.compression, payload, view.uncompressed_size, 1 << 20))]


async def entries_of(stored: MemoryTopic, neighbours: MemoryTopic, slice_: Slice, block: int) -> list[WholeEntry]:
    assembler = EntryAssembler(slice_, neighbours)
    whole: list[WholeEntry] = []
    for part in slice_.ranges:
        for first in range(part.first_entry_id, part.last_entry_id + 1, block):
            whole += await assembler.feed(
                stored.block(part.ledger_id, first, min(part.last_entry_id, first + block - 1))
            )
    return whole + await assembler.finish()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ["mixed", "topic"])
async def test_a_topic_is_read_as_the_java_client_reads_it(name: str, seed: int) -> None:
    stored = topic(name)
    rng = random.Random(seed)
    places = [
        MessagePosition(ledger_id, at) for ledger_id, entries in stored.ledgers.items() for at in range(len(entries))
    ]
    edges = [BEGINNING, *sorted(rng.sample(places, 5 * seed)), END]
    whole: list[WholeEntry] = []
    for index in range(len(edges) - 1):
        slice_ = stored.slice_of(edges[index], edges[index + 1])
        whole += await entries_of(stored, stored, slice_, rng.randint(1, 20))
    assert [each.broken for each in whole if each.broken] == []
    assert [message for entry in whole for message in messages(entry)] == read_by_java(f"{name}_read")


async def compaction() -> tuple[CompactedLedger, TopicLedger]:
    async def last_entry_of(_: int) -> bytes | None:
        return b64decode(recorded()["cursor_ledger_entry"])

    in_stats = compaction_in_stats(recorded()["stats"])
    assert in_stats is not None
    for node in ("cursor_node", "closed_cursor_node"):
        assert await read_compaction(b64decode(recorded()[node]), last_entry_of) == in_stats[0]
    return in_stats


async def test_a_compacted_topic_is_read_as_the_java_client_reads_it() -> None:
    found, ledger = await compaction()
    compacted, rest = topic("compacted"), topic("topic")
    assert list(compacted.ledgers) == [found.ledger_id]
    assert len(compacted.ledgers[found.ledger_id]) == ledger.entries
    slices = compacted_slices(TOPIC, found, ledger, (BEGINNING, END), 300)
    assert len(slices) > 2
    whole: list[WholeEntry] = []
    for slice_ in slices:
        whole += await entries_of(compacted, rest, slice_, 2)
    # The Java client says nothing of a chunked message whose other chunks compaction took.
    assert ["chunked" in each.broken for each in whole if each.broken] == [True]
    whole = [each for each in whole if not each.broken]
    whole += await entries_of(rest, rest, rest.slice_of(found.rest, END), 7)
    assert [message for entry in whole for message in messages(entry)] == read_by_java("compacted_read")
