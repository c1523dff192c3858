from __future__ import annotations

import pytest
from magnetar.managed.ack_state import AckState
from magnetar.managed.info_codec import encode_cursor_info, encode_position
from magnetar.managed.ledger_list import LedgerList
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.spark.assembly.assembler import EntryAssembler
from magnetar.spark.assembly.compaction import CompactedLedger, compacted_slices, compaction_in_stats, read_compaction
from magnetar.spark.entries import EntryBlock
from magnetar.spark.positions import BEGINNING, MessagePosition
from magnetar.spark.topics import TopicLedger
from magnetar.wire.pulsar.compacted import encode_compacted
from spark_fakes.assembly import TOPIC, MemoryTopic, chunk, marker, plain

AT = CompactedLedger(70, MessagePosition(12, 99))
SETTINGS = ManagedLedgerSettings()
MARK = AckState(LedgerList([]), (12, 99))


async def no_ledger(ledger_id: int) -> bytes | None:
    raise AssertionError(ledger_id)


async def test_a_compaction_stands_in_the_cursors_node() -> None:
    node = encode_cursor_info(MARK, {"CompactedTopicLedger": 70}, {}, SETTINGS, 1)
    assert await read_compaction(node, no_ledger) == AT
    assert AT.rest == MessagePosition(12, 100)
    assert await read_compaction(encode_cursor_info(MARK, {}, {}, SETTINGS, 1), no_ledger) is None


async def test_a_compaction_stands_in_the_cursors_ledger_while_a_broker_has_the_topic() -> None:
    node = encode_cursor_info(
        AckState(LedgerList([]), (3, 4)), {"CompactedTopicLedger": 5}, {}, SETTINGS, 1, cursor_ledger_id=44
    )

    async def last_entry_of(ledger_id: int) -> bytes | None:
        assert ledger_id == 44
        return encode_position(MARK, {"CompactedTopicLedger": 70}, SETTINGS)

    async def none_yet(_: int) -> bytes | None:
        return None

    assert await read_compaction(node, last_entry_of) == AT
    assert await read_compaction(node, none_yet) == CompactedLedger(5, MessagePosition(3, 4))


def test_a_compaction_stands_in_internal_stats() -> None:
    stats = {
        "compactedLedger": {"ledgerId": 70, "entries": 9, "size": 900, "offloaded": False},
        "cursors": {"__compaction": {"markDeletePosition": "12:99", "properties": {"CompactedTopicLedger": 70}}},
    }
    assert compaction_in_stats(stats) == (AT, TopicLedger(ledger_id=70, entries=9, size_bytes=900))
    assert compaction_in_stats({"compactedLedger": {"ledgerId": -1}, "cursors": {}}) is None
    assert compaction_in_stats({}) is None


@pytest.mark.parametrize(("entries", "size_bytes", "parts"), [(10, 1000, 4), (2, 1000, 2), (10, 10, 1), (0, 0, 0)])
def test_a_compacted_ledger_is_cut_by_size(entries: int, size_bytes: int, parts: int) -> None:
    ledger = TopicLedger(ledger_id=70, entries=entries, size_bytes=size_bytes, metadata=b"m")
    slices = compacted_slices(TOPIC, AT, ledger, (BEGINNING, MessagePosition(50, 0)), 250)
    assert len(slices) == parts
    assert all(each.compacted and (each.first, each.end) == (BEGINNING, AT.rest) for each in slices)
    covered = [
        entry for each in slices for entry in range(each.ranges[0].first_entry_id, each.ranges[0].last_entry_id + 1)
    ]
    assert covered == list(range(entries))


def test_what_is_behind_the_horizon_needs_no_compacted_ledger() -> None:
    ledger = TopicLedger(ledger_id=70, entries=10, size_bytes=10)
    assert compacted_slices(TOPIC, AT, ledger, (AT.rest, MessagePosition(50, 0)), 250) == []
    (until,) = compacted_slices(TOPIC, AT, ledger, (BEGINNING, MessagePosition(4, 0)), 250)
    assert until.end == MessagePosition(4, 0)


async def test_compacted_entries_have_the_ids_of_the_topic() -> None:
    wrapped = [
        encode_compacted((3, 7), plain(1, b"one", transaction=(0, 1))),
        encode_compacted((3, 8), marker(12)),
        encode_compacted((3, 9), b"broken"),
        b"\xff",
        encode_compacted((5, 0), chunk(1, 1, [b"a", b"b"])),
        encode_compacted((5, 1), plain(2, b"two")),
    ]
    ledger = TopicLedger(ledger_id=70, entries=len(wrapped), size_bytes=100)
    (slice_,) = compacted_slices(TOPIC, AT, ledger, (BEGINNING, MessagePosition(50, 0)), 250)
    assembler = EntryAssembler(slice_, MemoryTopic({}))
    found = await assembler.feed(EntryBlock(70, range(len(wrapped)), wrapped))
    assert await assembler.finish() == []
    assert [(each.ledger_id, each.entry_id, bool(each.broken)) for each in found] == [
        (3, 7, False), (3, 9, True), (12, 99, True), (5, 0, True), (5, 1, False),
    ]  # fmt: skip
    assert found[0].data[found[0].view.payload_start :] == b"one"
    assert "entry 70:3 of a compaction" in found[2].broken
    assert "chunked" in found[3].broken
