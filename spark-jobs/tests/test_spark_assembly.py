from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.spark.assembly.assembler import EntryAssembler
from magnetar.spark.assembly.neighbours import DEFAULT_BOUNDS, Bounds
from magnetar.spark.entries import WholeEntry
from magnetar.spark.positions import MessagePosition
from magnetar.spark.slices import Slice
from magnetar.wire.pulsar.batch import build_message
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import MessageMetadata
from magnetar.wire.pulsar.metadata import full_metadata, metadata_bounds
from spark_fakes.assembly import MemoryTopic, batch, chunk, marker, plain

COMMIT, ABORT = 21, 22
END = MessagePosition(1 << 40, 0)
START = MessagePosition(-1, -1)

Read = tuple[int, int, bytes | None]
"""A message as read: its place and its payload, None for a bad record."""


async def read(
    topic: MemoryTopic, slice_: Slice, block_entries: int = 3, bounds: Bounds = DEFAULT_BOUNDS
) -> list[WholeEntry]:
    assembler = EntryAssembler(slice_, topic, bounds=bounds)
    whole: list[WholeEntry] = []
    for part in slice_.ranges:
        for first in range(part.first_entry_id, part.last_entry_id + 1, block_entries):
            last = min(part.last_entry_id, first + block_entries - 1)
            whole += await assembler.feed(topic.block(part.ledger_id, first, last))
    return whole + await assembler.finish()


async def read_all(*entries: bytes | None, bounds: Bounds = DEFAULT_BOUNDS) -> list[WholeEntry]:
    topic = MemoryTopic({1: list(entries)})
    return await read(topic, topic.slice_of(START, END), bounds=bounds)


def seen(entries: Sequence[WholeEntry]) -> list[Read]:
    return [
        (each.ledger_id, each.entry_id, None if each.broken else payload_of(each.data, each.joined_payload))
        for each in entries
    ]


def payload_of(data: bytes, joined: bytes | None) -> bytes:
    return data[metadata_bounds(data)[1] :] if joined is None else joined


# --- The whole topic, read as Apache's broker and its Java client do it, without any slices.


def parsed(data: bytes) -> MessageMetadata | None:
    try:
        return full_metadata(data)
    except BadMetadata:
        return None


def naive(topic: MemoryTopic) -> list[Read]:
    """The broker knows all outcomes; the client keeps one buffer a uuid."""
    stored = [
        (ledger_id, entry_id, data, parsed(data))
        for ledger_id, entries in topic.ledgers.items()
        for entry_id, data in enumerate(entries)
        if data is not None
    ]
    committed = {
        (found.txnid_most_bits, found.txnid_least_bits): found.marker_type == COMMIT
        for _, _, _, found in stored
        if found is not None and found.marker_type in (COMMIT, ABORT)
    }
    buffers: dict[str, list[bytes]] = {}
    done: set[str] = set()
    read_so_far: list[Read] = []
    for ledger_id, entry_id, data, found in stored:
        if found is None:
            read_so_far.append((ledger_id, entry_id, None))
            continue
        if found.HasField("marker_type"):
            continue
        if found.HasField("txnid_most_bits"):
            outcome = committed.get((found.txnid_most_bits, found.txnid_least_bits))
            if outcome is None:  # It came late, and retention took the marker.
                read_so_far.append((ledger_id, entry_id, None))
            if not outcome:
                continue
        payload = payload_of(data, None)
        if found.num_chunks_from_msg <= 1:
            read_so_far.append((ledger_id, entry_id, payload))
            continue
        uuid, number, last = found.uuid, found.chunk_id, found.chunk_id == found.num_chunks_from_msg - 1
        if number == 0:
            buffers[uuid] = []
            done.discard(uuid)
        if uuid in buffers and number == len(buffers[uuid]):
            buffers[uuid].append(payload)
        elif uuid not in buffers or number > len(buffers[uuid]):
            buffers.pop(uuid, None)
        if last and uuid not in done:
            done.add(uuid)
            whole = b"".join(buffers[uuid]) if uuid in buffers else None
            read_so_far.append((ledger_id, entry_id, whole))
    return read_so_far


# --- Random topics: what each producer does, interleaved.


@st.composite
def actions(draw: st.DrawFn, number: int) -> list[bytes]:
    """What one producer stores, in its order."""
    producer = f"producer-{number}"
    transaction = (0, number) if draw(st.booleans()) else None
    entries: list[bytes] = []
    for sequence_id in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["plain", "batch", "chunks", "chunks", "marker", "garbage"]))
        if kind == "plain":
            entries.append(plain(sequence_id, b"%d" % sequence_id, producer=producer, transaction=transaction))
        elif kind == "batch":
            entries.append(batch(sequence_id, [b"a", b"b"], producer=producer, transaction=transaction))
        elif kind == "marker":
            entries.append(marker(draw(st.sampled_from([10, 12, 20]))))
        elif kind == "garbage":
            entries.append(
                draw(st.sampled_from([b"", b"x", b"\x0e\x01aaaa\xff\xff\xff\xff", b"\0\0\0\x02\x08"])) or b"y"
            )
        else:
            payloads = [b"%d-%d" % (sequence_id, index) for index in range(draw(st.integers(2, 4)))]
            numbers = draw(chunk_orders(len(payloads)))
            entries += [
                chunk(sequence_id, index, payloads, producer=producer, transaction=transaction) for index in numbers
            ]
    if transaction is not None:
        outcome = draw(st.sampled_from([COMMIT, ABORT]))
        # Messages that come late are possible after an abort.
        at = len(entries) if outcome == COMMIT else draw(st.integers(0, len(entries)))
        entries.insert(at, marker(outcome, transaction))
    return entries


@st.composite
def chunk_orders(draw: st.DrawFn, count: int) -> list[int]:
    """The order in which a producer's chunks come to stand in the topic."""
    kind = draw(st.sampled_from(["whole", "whole", "again", "died", "gap", "any"]))
    if kind == "whole":
        return list(range(count))
    if kind == "again":  # From the beginning after some, as after a reconnection, or a part of them.
        return [*range(draw(st.integers(0, count))), *range(draw(st.integers(0, count - 1)), count)]
    if kind == "died":
        return list(range(count - 1))
    if kind == "gap":
        left_out = draw(st.integers(0, count - 1))
        return [index for index in range(count) if index != left_out]
    return draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=2 * count))


@st.composite
def topics(draw: st.DrawFn) -> MemoryTopic:
    producers = [draw(actions(number)) for number in range(draw(st.integers(1, 4)))]
    entries: list[bytes] = []
    while any(producers):
        producer = draw(st.sampled_from([each for each in producers if each]))
        entries.append(producer.pop(0))
    cuts = sorted(draw(st.lists(st.integers(0, len(entries)), max_size=3)))
    edges = [0, *cuts, len(entries)]
    ledgers: dict[int, list[bytes | None]] = {}
    for index in range(len(edges) - 1):
        ledgers[5 + 3 * index] = list(entries[edges[index] : edges[index + 1]])
    for _ in range(draw(st.integers(0, 1))):  # Retention.
        ledgers.pop(min(ledgers))
    return MemoryTopic(ledgers)


@settings(max_examples=20)
@given(st.data())
async def test_all_slices_together_give_what_the_whole_topic_gives(data: st.DataObject) -> None:
    topic = data.draw(topics())
    places = [
        MessagePosition(ledger_id, at) for ledger_id, entries in topic.ledgers.items() for at in range(len(entries))
    ]
    cuts = data.draw(st.lists(st.sampled_from(places), max_size=4, unique=True)) if places else []
    edges = [START, *sorted(cuts), END]
    bounds = replace(DEFAULT_BOUNDS, held_entries_max=data.draw(st.sampled_from([1, 2, 1000])))
    found: list[Read] = []
    for index in range(len(edges) - 1):
        slice_ = topic.slice_of(edges[index], edges[index + 1])
        found += seen(await read(topic, slice_, data.draw(st.integers(1, 5)), bounds))
    assert found == naive(topic)


# --- By hand.


async def test_markers_are_left_out() -> None:
    assert seen(await read_all(marker(10), plain(0), marker(COMMIT, (0, 1)))) == [(1, 1, b"plain")]


async def test_broken_metadata_is_handed_on_and_ends_nothing() -> None:
    first, broken, last = await read_all(plain(0), b"\x0e\x01", plain(1))
    assert (first.broken, last.broken) == ("", "")
    assert broken.broken == "a message that is too short for its metadata"
    assert broken.view.publish_time_ms == -1
    assert broken.data == b"\x0e\x01"


async def test_messages_stand_where_they_are_and_not_where_their_transaction_ends() -> None:
    found = await read_all(
        plain(0, b"a", transaction=(1, 1)),
        plain(1, b"b", transaction=(1, 2)),
        plain(2, b"c"),
        marker(ABORT, (1, 2)),
        plain(3, b"d", transaction=(1, 1)),
        marker(COMMIT, (1, 1)),
    )
    assert [(entry, payload) for _, entry, payload in seen(found)] == [(0, b"a"), (2, b"c"), (4, b"d")]


async def test_a_transaction_without_marker_is_a_bad_record() -> None:
    (found,) = await read_all(plain(0, transaction=(3, 7)))
    assert found.broken == (
        "transaction (3,7) has no marker that was found, so it may be undecided: the topic ends before it"
    )


async def test_a_marker_is_looked_for_behind_the_slice_and_only_so_far() -> None:
    entries: list[bytes | None] = [
        plain(0, transaction=(0, 0)),
        *[plain(1) for _ in range(200)],
        marker(COMMIT, (0, 0)),
    ]
    topic = MemoryTopic({1: entries})
    slice_ = topic.slice_of(START, MessagePosition(1, 1))
    assert [each.broken for each in await read(topic, slice_)] == [""]
    (lost,) = await read(topic, slice_, bounds=replace(DEFAULT_BOUNDS, walk_entries_max=100))
    assert "looked at" in lost.broken
    assert topic.entries_read < 201 + 201


async def test_too_much_that_waits_is_decided_by_looking_ahead() -> None:
    entries: list[bytes | None] = [plain(0, transaction=(0, 0)), *[plain(1) for _ in range(50)], marker(ABORT, (0, 0))]
    topic = MemoryTopic({1: entries})
    assembler = EntryAssembler(topic.slice_of(START, END), topic, bounds=replace(DEFAULT_BOUNDS, held_entries_max=10))
    found = await assembler.feed(topic.block(1, 0, 20))
    assert [each.entry_id for each in found] == list(range(1, 21))


async def test_brokers_have_decided_about_transactions() -> None:
    topic = MemoryTopic({1: [plain(0, transaction=(0, 0))]})
    assembler = EntryAssembler(topic.slice_of(START, END), topic, filtered_by_broker=True)
    assert len(await assembler.feed(topic.block(1, 0, 0))) == 1
    assert topic.entries_read == 0


async def test_a_broker_that_takes_over_decides_what_waits() -> None:
    given = plain(2, b"given", transaction=(0, 1))
    stored = [plain(0, transaction=(0, 2)), plain(1), given, plain(3, transaction=(0, 1)), marker(COMMIT, (0, 1))]
    assembler = EntryAssembler(MemoryTopic({1: [*stored]}).slice_of(START, END), broker := MemoryTopic({1: [*stored]}))
    assert await assembler.feed(broker.block(1, 0, 2)) == []
    broker.ledgers[1][0] = broker.ledgers[1][4] = None
    assert [each.entry_id for each in await assembler.continue_through_broker()] == [1, 2]
    assert [each.entry_id for each in await assembler.feed(broker.block(1, 3, 4))] == [3]
    assert await assembler.finish() == []


async def test_chunks_of_several_producers_are_joined_at_their_last() -> None:
    one, two = [b"ab", b"cd", b"e"], [b"xx", b"y"]
    found = await read_all(
        chunk(0, 0, one), chunk(0, 0, two, producer="q"), plain(1), chunk(0, 1, one), chunk(0, 1, two, producer="q"),
        chunk(0, 2, one),
    )  # fmt: skip
    assert seen(found) == [(1, 2, b"plain"), (1, 4, b"xxy"), (1, 5, b"abcde")]
    assert found[2].view.chunk_id == 2


async def test_earlier_chunks_are_found_in_earlier_ledgers_by_one_walk() -> None:
    pieces = [b"ab", b"cd", b"e"]
    topic = MemoryTopic(
        {
            3: [chunk(0, 0, pieces), chunk(0, 0, pieces, producer="q"), plain(1)],
            4: [],
            9: [
                chunk(0, 1, pieces),
                chunk(0, 1, pieces, producer="q"),
                chunk(0, 2, pieces, producer="q"),
                chunk(0, 2, pieces),
            ],
        }
    )
    assert seen(await read(topic, topic.slice_of(MessagePosition(9, 1), END))) == [(9, 2, b"abcde"), (9, 3, b"abcde")]
    assert topic.entries_read == 4
    assert seen(await read(topic, topic.slice_of(START, MessagePosition(9, 2)))) == [(3, 2, b"plain")]


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ([1, 2], "chunk 0 was not found: the topic begins there: what was before is gone by retention"),
        ([0, 2], "chunk 2 follows chunk 0"),
        ([0, 2, 1, 2], "chunk 2 follows chunk 0"),
    ],
)  # fmt: skip
async def test_what_is_not_whole_is_a_bad_record(numbers: list[int], reason: str) -> None:
    (found,) = await read_all(*[chunk(4, number, [b"a", b"b", b"c"]) for number in numbers])
    assert found.broken == f"chunked message p-4 of producer p: {reason}"


@pytest.mark.parametrize(
    "numbers", [[0, 1, 0, 1, 2], [0, 1, 1, 2], [0, 1, 2, 2], [0, 1, 2, 1, 2], [0, 0, 1, 0, 1, 1, 2]]
)
async def test_chunks_that_were_sent_twice_make_one_message(numbers: list[int]) -> None:
    found = await read_all(*[chunk(4, number, [b"a", b"b", b"c"]) for number in numbers])
    assert [payload for _, _, payload in seen(found)] == [b"abc"]


@pytest.mark.parametrize("cut", range(1, 6))
async def test_chunks_that_were_sent_twice_make_one_message_wherever_a_slice_ends(cut: int) -> None:
    topic = MemoryTopic({1: [chunk(4, number, [b"a", b"b", b"c"]) for number in (0, 1, 2, 1, 2)]})
    found = await read(topic, topic.slice_of(START, MessagePosition(1, cut)))
    found += await read(topic, topic.slice_of(MessagePosition(1, cut), END))
    assert seen(found) == [(1, 2, b"abc")]


async def test_chunks_before_a_slice_are_those_of_the_same_transaction() -> None:
    one, two = [b"a", b"b", b"c"], [b"x", b"y", b"z"]
    stored = [chunk(0, 0, one, transaction=(0, 1)), chunk(0, 0, two, transaction=(0, 2))]
    stored += [chunk(0, 1, one, transaction=(0, 1)), chunk(0, 1, two, transaction=(0, 2))]
    stored += [chunk(0, 2, one, transaction=(0, 1)), marker(COMMIT, (0, 1)), marker(ABORT, (0, 2))]
    topic = MemoryTopic({1: [*stored]})
    assert seen(await read(topic, topic.slice_of(MessagePosition(1, 3), END))) == [(1, 4, b"abc")]


async def test_chunks_of_an_aborted_attempt_are_not_mixed_in() -> None:
    pieces, again = [b"a", b"b", b"c"], [b"x", b"y", b"z"]
    found = await read_all(
        chunk(0, 0, pieces, transaction=(0, 1)), chunk(0, 1, pieces, transaction=(0, 1)),
        chunk(0, 0, again, transaction=(0, 2)), chunk(0, 1, again, transaction=(0, 2)),
        marker(ABORT, (0, 1)), chunk(0, 2, again, transaction=(0, 2)), marker(COMMIT, (0, 2)),
    )  # fmt: skip
    assert seen(found) == [(1, 5, b"xyz")]


async def test_chunks_that_make_too_much_are_a_bad_record() -> None:
    pieces = [b"abcd", b"efgh", b"i"]
    (found,) = await read_all(
        *[chunk(0, number, pieces) for number in range(3)], bounds=replace(DEFAULT_BOUNDS, message_bytes_max=8)
    )
    assert found.broken.endswith("it has 9 bytes, more than the 8 that are joined")


async def test_unfinished_messages_do_not_pile_up() -> None:
    pieces = [b"abcd", b"efgh"]
    dead = [chunk(0, 0, pieces, producer=f"dead-{number}") for number in range(50)]
    bounds = replace(DEFAULT_BOUNDS, unfinished_bytes_max=20, uuids_max=10)
    found = await read_all(
        chunk(0, 0, pieces), *dead, chunk(0, 0, pieces, producer="q"), chunk(0, 1, pieces, producer="q"), bounds=bounds
    )
    assert [payload for _, _, payload in seen(found)] == [b"abcdefgh"]


@pytest.mark.parametrize("left_out", ["uuid", "chunk_id"])
async def test_chunks_that_lack_their_fields_are_bad_records(left_out: str) -> None:
    made = full_metadata(chunk(0, 0, [b"a", b"b"]))
    made.ClearField(left_out)
    (found,) = await read_all(build_message(made, b"a"))
    assert found.broken.endswith("a chunk without uuid or number")


async def test_a_hole_within_a_chunked_message_is_named() -> None:
    pieces = [b"a", b"b", b"c"]
    (found,) = await read_all(chunk(0, 0, pieces), None, chunk(0, 2, pieces))
    assert "chunk 2 follows chunk 0" in found.broken


async def test_publish_times_leave_whole_entries_out() -> None:
    entries = [plain(number, publish_time_ms=number) for number in range(6)]
    entries += [chunk(9, number, [b"a", b"b"], publish_time_ms=3) for number in range(2)]
    entries += [chunk(10, number, [b"a", b"b"], publish_time_ms=5) for number in range(2)]
    topic = MemoryTopic({1: [*entries, b"broken"]})
    assembler = EntryAssembler(topic.slice_of(START, END), topic, publish_time_ms=(2, 4))
    found = await assembler.feed(topic.block(1, 0, 20))
    assert [each.entry_id for each in found] == [2, 3, 4, 7, 10]
