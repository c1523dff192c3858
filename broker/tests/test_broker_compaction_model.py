"""Compaction against a model: whatever was published, what is left is the last value of each key, in its place."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from magnetar.broker.compaction.compacted_cursor import CompactedCursor
from magnetar.broker.compaction.entries import StoredEntries
from magnetar.broker.compaction.latest import (
    DIGEST_BYTES,
    WHOLE,
    KeyRules,
    LatestKeys,
    TooManyKeys,
    _remembered,
)
from magnetar.broker.compaction.run import MEMBERS_PER_LOOK
from magnetar.broker.compaction.topic_compaction import CompactionWorld, TopicCompaction
from magnetar.broker.settings.policies import CompactionOrder, PolicySettings
from magnetar.broker.slices import TimeSlice
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.topic_name import TopicName
from magnetar.managed.compaction import COMPACTION_CURSOR
from magnetar.managed.entry import Entry
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.testing import ManagedWorld, append
from magnetar.sim.virtual_time import LoopClock, VirtualTimeLoop
from magnetar.wire.pulsar.batch import build_batch, build_message, split_batch
from magnetar.wire.pulsar.compression import compress
from magnetar.wire.pulsar.compression_type import Compression
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import (
    BrokerEntryMetadata,
    EncryptionKeys,
    MessageMetadata,
    SingleMessageMetadata,
)
from magnetar.wire.pulsar.metadata import skim

from broker.tests.compaction_world import until

TOPIC = TopicName.parse("persistent://public/default/t")


@dataclass(frozen=True)
class Sent:
    """A message. No key: null; an empty value deletes."""

    key: str | None
    value: bytes
    event_time_ms: int = 0


@dataclass(frozen=True)
class Stored:
    """An entry: one message, or a batch."""

    messages: tuple[Sent, ...]
    batch: bool = False
    compression: Compression = Compression.NONE
    broker_metadata: bool = False
    marker: bool = False


def metadata(**fields: Any) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, **fields)


def content(entry: Stored) -> bytes:
    if entry.batch:
        singles = []
        for sent in entry.messages:
            single = SingleMessageMetadata(payload_size=0, event_time=sent.event_time_ms)
            if sent.key is not None:
                single.partition_key = sent.key
            singles.append((single, sent.value))
        data = build_batch(metadata(), singles, entry.compression)
    else:
        (sent,) = entry.messages
        head = metadata(event_time=sent.event_time_ms, compression=entry.compression, uncompressed_size=len(sent.value))
        if sent.key is not None:
            head.partition_key = sent.key
        if entry.marker:
            head.marker_type = 21
        data = build_message(head, compress(entry.compression, sent.value))
    if entry.broker_metadata:
        ours = BrokerEntryMetadata(broker_timestamp=5, index=7).SerializeToString()
        data = b"\x0e\x02" + len(ours).to_bytes(4, "big") + ours + data
    return data


keys = st.sampled_from(["a", "b", "c", "", "k" * 31, "k" * 32, "k" * 40, "ключ"]) | st.none()
sent = st.builds(Sent, keys, st.sampled_from([b"", b"1", b"22"]), st.integers(0, 3))
compressions = st.sampled_from(list(Compression))
entries = st.one_of(
    st.builds(
        Stored, st.tuples(sent), st.just(False), compressions, st.booleans(), st.sampled_from([False] * 4 + [True])
    ),
    st.builds(Stored, st.lists(sent, min_size=1, max_size=4).map(tuple), st.just(True), compressions, st.booleans()),
)
rounds = st.lists(st.tuples(st.lists(entries, max_size=6), st.booleans()), min_size=1, max_size=3)
rules = st.builds(KeyRules, keep_without_key=st.booleans(), by_event_time=st.booleans())


class Topic:
    """What a compaction needs of a topic, over a managed ledger in memory."""

    def __init__(self, ledger: ManagedLedger) -> None:
        self.name = TOPIC
        self.ledger = ledger
        self.closing = False
        self.subscriptions: dict[str, Any] = {}
        self.visible_entries = StoredEntries(ledger)

    async def create_subscription(self, name: str, start: Position) -> object:
        return await self.ledger.open_cursor(name, start)


Place = tuple[int, int]
"""(number of the entry, index of its message)."""


class Model:
    """What a compaction leaves, by the words of the specification."""

    def __init__(self, rules: KeyRules) -> None:
        self.rules = rules
        self.entries: list[Stored] = []
        self.kept: dict[Place, Sent] = {}

    def compact(self, new: list[Stored]) -> None:
        known = [(place, sent) for place, sent in self.kept.items()]
        first = len(self.entries)
        self.entries += new
        for number, entry in enumerate(new, first):
            if not entry.marker:
                known += [((number, index), sent) for index, sent in enumerate(entry.messages)]
        latest: dict[str, tuple[Place, int]] = {}
        kept: dict[Place, Sent] = {}
        for place, sent in known:
            if sent.key is None:
                if self.rules.keep_without_key:
                    kept[place] = sent
                continue
            before = latest.get(sent.key)
            if self.rules.by_event_time and before is not None:
                ties = not self.entries[place[0]].batch
                if sent.event_time_ms < before[1] or (sent.event_time_ms == before[1] and not ties):
                    continue
            if sent.value:
                latest[sent.key] = (place, sent.event_time_ms)
            else:
                latest.pop(sent.key, None)
        wanted = {place for place, _ in latest.values()}
        kept |= {place: sent for place, sent in known if place in wanted}
        self.kept = dict(sorted(kept.items()))


async def compacted(topic: Topic) -> list[tuple[tuple[int, int], bytes]]:
    """What a reader of the compacted view gets."""
    cursor = CompactedCursor(topic.ledger, topic.ledger.new_non_durable_cursor("r", EARLIEST), EARLIEST)
    found = []
    while read := await cursor.read(2, 1 << 20):
        found += [(entry.position, entry.data) for entry in read]
    await cursor.close()
    return found


def messages_in(data: bytes, stored: Stored) -> dict[int, Sent]:

    view = Entry(0, 0, data).metadata()
    assert view.num_messages == len(stored.messages)
    if not view.is_batch:
        assert data == content(stored)
        return {0: stored.messages[0]}
    found = {}
    for index, (single, value) in enumerate(split_batch(data)):
        key = single.partition_key if single.HasField("partition_key") else None
        if single.compacted_out:
            assert (key, value) == (None, b"")
        else:
            found[index] = Sent(key, value, single.event_time)
    return found


def parts(chosen: KeyRules) -> PolicySettings:
    order = CompactionOrder.EVENT_TIME if chosen.by_event_time else CompactionOrder.PUBLISHED
    return PolicySettings(compaction_keeps_null_keys=chosen.keep_without_key, compaction_order=order)


async def check(published: list[tuple[list[Stored], bool]], chosen: KeyRules) -> None:
    world = ManagedWorld()
    ledger = await world.factory(ManagedLedgerSettings(max_entries_per_ledger=4, minimum_rollover_ms=0)).open("t")
    topic = Topic(ledger)
    tasks: set[asyncio.Task[None]] = set()
    shared = CompactionWorld(
        LoopClock(),
        lambda work: tasks.add(asyncio.get_running_loop().create_task(work)),
        asyncio.Semaphore(1),
        lambda: parts(chosen),
        ManagedLedgerSettings(),
    )
    compaction = TopicCompaction(topic, shared)
    await topic.create_subscription(COMPACTION_CURSOR, EARLIEST)
    model = Model(chosen)
    places: dict[Position, int] = {}
    for new, trims in published:
        for entry in new:
            places[await append(ledger, [content(entry)])] = len(places)
        compaction.start()
        await until(lambda: compaction.status["status"] != "RUNNING")
        assert compaction.status == {"status": "SUCCESS", "lastError": ""}
        model.compact(new)
        if trims:
            await ledger.roll()
            await ledger.trim()
        found: dict[Place, Sent] = {}
        for position, data in await compacted(topic):
            number = places[position]
            some = messages_in(data, model.entries[number])
            assert some, "an entry of which nothing is left is left out"
            found |= {(number, index): one for index, one in some.items()}
        assert found == model.kept
        assert list(found) == sorted(found)
    await world.close()


@given(rounds, rules)
@settings(max_examples=60, deadline=None)
@example([([Stored((Sent("a", b"1"),)), Stored((Sent("a", b""),))], True), ([], False)], KeyRules())
@example([([Stored((Sent("a", b"1", 2),)), Stored((Sent("a", b"2", 1),))], False)], KeyRules(by_event_time=True))
def test_what_is_left_is_the_last_value_of_each_key(
    published: list[tuple[list[Stored], bool]], chosen: KeyRules
) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(check(published, chosen))


async def run_once(*stored: bytes, chosen: KeyRules | None = None) -> list[bytes]:
    world = ManagedWorld()
    ledger = await world.factory().open("t")
    for data in stored:
        await append(ledger, [data])
    topic = Topic(ledger)
    tasks: list[asyncio.Task[None]] = []
    shared = CompactionWorld(
        LoopClock(),
        lambda work: tasks.append(asyncio.get_running_loop().create_task(work)),
        asyncio.Semaphore(1),
        lambda: parts(chosen or KeyRules()),
        ManagedLedgerSettings(),
    )
    compaction = TopicCompaction(topic, shared)
    compaction.start()
    await asyncio.wait(tasks)
    assert compaction.status["status"] == "SUCCESS", compaction.status
    found = [data for _, data in await compacted(topic)]
    await world.close()
    return found


async def test_encrypted_batches_are_one_message() -> None:
    secret = [EncryptionKeys(key="k", value=b"v")]
    first = build_message(metadata(partition_key="a", num_messages_in_batch=3, encryption_keys=secret), b"?")
    second = build_message(metadata(partition_key="a", num_messages_in_batch=2, encryption_keys=secret), b"!")
    other = build_message(metadata(partition_key="b", encryption_keys=secret), b"#")
    assert await run_once(first, second, other) == [second, other]


async def test_a_batch_that_cannot_be_read_is_kept_whole() -> None:
    broken = build_message(metadata(num_messages_in_batch=3), b"no batch")
    one = build_message(metadata(partition_key="a"), b"1")
    strange = build_message(metadata(num_messages_in_batch=2, compression=4, uncompressed_size=9), b"no block")
    assert await run_once(broken, one, strange) == [broken, one, strange]


async def test_what_nobody_can_read_is_left_out() -> None:
    one = build_message(metadata(partition_key="a"), b"1")
    assert await run_once(b"?", one, b"") == [one]


async def test_what_counts_as_a_value() -> None:
    """The size that a message says that it unpacks to, where it says one."""
    packed = build_message(
        metadata(partition_key="a", compression=2, uncompressed_size=0), compress(Compression.ZLIB, b"")
    )
    unsaid = build_message(metadata(partition_key="b"), b"1")
    nothing = build_message(metadata(partition_key="c"), b"")
    before = [build_message(metadata(partition_key=key), b"0") for key in "abc"]
    assert await run_once(*before, packed, unsaid, nothing) == [unsaid]


async def test_keys_have_a_bound() -> None:
    latest = LatestKeys(KeyRules(keys_max=2))
    for key in ("a", "b", "a"):
        latest.note((1, 1), WHOLE, key, 0, has_value=True)
    with pytest.raises(TooManyKeys):
        latest.note((1, 2), WHOLE, "c", 0, has_value=True)
    assert len(latest) == 2


def test_long_keys_are_told_apart() -> None:
    latest = LatestKeys(KeyRules())
    several = ["k" * length for length in range(DIGEST_BYTES - 2, DIGEST_BYTES + 3)]
    for number, key in enumerate(several):
        latest.note((1, number), WHOLE, key, 0, has_value=True)
    assert [latest.is_latest((1, number), WHOLE, key) for number, key in enumerate(several)] == [True] * len(several)


async def test_large_batches_leave_turns_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock of the processor: one batch of very many messages is gone through in many turns of the loop."""
    turns: list[int] = []
    monkeypatch.setattr(TimeSlice, "over", property(lambda _: True))
    pause = TimeSlice.pause

    async def counted(one: Any) -> None:
        turns.append(1)
        await pause(one)

    monkeypatch.setattr(TimeSlice, "pause", counted)
    many = Stored(tuple(Sent(f"k{number % 500}", b"v") for number in range(5_000)), batch=True)
    (left,) = await run_once(content(many))
    assert len(messages_in(left, many)) == 500
    assert len(turns) >= 2 * 5_000 // MEMBERS_PER_LOOK


async def until_it_gives_up() -> tuple[dict[str, str], float]:
    world = ManagedWorld()
    ledger = await world.factory().open("t")
    await append(ledger, [build_message(metadata(partition_key="a"), b"1")])
    tasks: list[asyncio.Task[None]] = []
    shared = CompactionWorld(
        LoopClock(),
        lambda work: tasks.append(asyncio.get_running_loop().create_task(work)),
        asyncio.Semaphore(1),
        lambda: PolicySettings(compaction_read_seconds_max=30),
        ManagedLedgerSettings(),
    )
    compaction = TopicCompaction(Topic(ledger), shared)
    began = asyncio.get_running_loop().time()
    compaction.start()
    await asyncio.wait(tasks[:1])
    seconds = asyncio.get_running_loop().time() - began
    assert list(world.ledgers.stored) == [ledger.ledgers.ids[0]], "no ledger was made for it"
    await world.close()
    return compaction.status, seconds


def test_a_read_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hanging(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(CompactedCursor, "read", hanging)
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        status, seconds = runner.run(until_it_gives_up())
    assert status == {"status": "ERROR", "lastError": "reading took longer than 30 s"}
    assert 30 <= seconds < 31


def test_a_key_that_was_deleted_takes_no_room() -> None:
    latest = LatestKeys(KeyRules(keys_max=1))
    for number, key in enumerate("abc"):
        assert latest.note((1, 2 * number), WHOLE, key, 0, has_value=True)
        assert len(latest) == 1
        assert not latest.note((1, 2 * number + 1), WHOLE, key, 0, has_value=False)
        assert len(latest) == 0


def test_no_key_is_remembered_by_what_may_be_the_digest_of_another_one() -> None:
    """Keys that are as long as a digest are digested, too: nobody can make one that stands for another key."""
    assert _remembered("k" * (DIGEST_BYTES - 1)) == b"k" * (DIGEST_BYTES - 1)
    for length in (DIGEST_BYTES, DIGEST_BYTES + 1):
        assert _remembered("k" * length) not in (b"k" * length, b"k" * DIGEST_BYTES)
        assert len(_remembered("k" * length)) == DIGEST_BYTES


@pytest.mark.parametrize(("fields", "hidden"), [({}, False), ({"marker_type": 0}, True), ({"marker_type": 21}, True)])
async def test_markers_of_every_type_are_hidden(fields: dict[str, int], *, hidden: bool) -> None:
    world = ManagedWorld()
    entries = StoredEntries(await world.factory().open("t"))
    assert entries.hides(skim(build_message(metadata(**fields), b""))) is hidden
    await world.close()
