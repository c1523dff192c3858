"""Deduplication of many producers, and of long names: snapshots stay possible, and memory bounded."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.broker.deduplicated_names import NAME_BYTES_MAX, SNAPSHOT_BYTES_MAX, is_too_long, most_recent
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.policies import PolicySettings
from magnetar.broker.testing.sessions import MemoryBroker, ShiftedClock, message
from magnetar.broker.topics.deduplication import Deduplication, open_deduplication
from magnetar.broker.topics.producer import Producer, ProducerIdentity, PublishBatch
from magnetar.core.topic_name import TopicName
from magnetar.managed.info_codec import size_of_properties
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.testing import ManagedWorld, append
from magnetar.sim.virtual_time import VirtualTimeLoop
from magnetar.wire.pulsar.errors import ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

new_event_loop = VirtualTimeLoop

PATH = "public/default/persistent/topic"
TOPIC = "persistent://public/default/topic"
SMALL_LEDGERS = ManagedLedgerSettings(
    max_entries_per_ledger=10, minimum_rollover_ms=0, retention_time_ms=0, retention_size_bytes=0
)


@pytest.fixture
def world() -> ManagedWorld:
    return ManagedWorld()


async def owner(
    world: ManagedWorld, policy: ManagedLedgerSettings | None = None, **settings: Any
) -> tuple[ManagedLedger, Deduplication]:
    """Another owner opens the topic."""
    ledger = await world.factory(policy).open(PATH)
    return ledger, await open_deduplication(ledger, PolicySettings(**settings), world.clock)


def batch(name: str, *numbers: int) -> PublishBatch:
    made = PublishBatch(Producer(ProducerIdentity(1, name), Any, 0))  # type: ignore[arg-type]
    for number in numbers:
        made.add(message(sequence_id=number, producer_name=name), number, 0, 1)
    return made


def sent(deduplication: Deduplication, name: str, number: int = 0) -> None:
    """A producer is connected, and a message of it is stored."""
    deduplication.producer_added(name)
    one = batch(name, number)
    assert deduplication.check(one, ()) is None
    deduplication.batch_stored(one, (0, 0))


def named(number: int, characters: int) -> str:
    return f"{number:06d}".rjust(characters, "p")


# --- snapshots are stored, whatever the names are


@pytest.mark.parametrize(("count", "characters"), [(10_000, 20), (10_000, 100), (40, 30_000), (100, 60_000)])
async def test_snapshots_are_stored_and_ledgers_trimmed_whatever_the_names_are(
    world: ManagedWorld, count: int, characters: int
) -> None:
    ledger, deduplication = await owner(world, SMALL_LEDGERS)
    for number in range(count):
        deduplication.producer_added(named(number, characters))
        deduplication.stored[named(number, characters)] = number
    for _ in range(4):
        for _ in range(20):
            await append(ledger, [b"x"])
        deduplication.snapshot(ledger.last_confirmed)
        world.clock.ms += 120_000
        await world.settle()
        assert len(ledger.ledgers) == 1
        assert ledger.cursors["pulsar.dedup"].needless_up_to >= ledger.last_confirmed
    _, again = await owner(world)
    assert again.stored.items() <= deduplication.stored.items()
    assert size_of_properties(again.stored) > SNAPSHOT_BYTES_MAX - 65_000 or again.stored == deduplication.stored


async def test_ten_thousand_producers_with_usual_names_are_all_known_to_the_next_owner(world: ManagedWorld) -> None:
    ledger, deduplication = await owner(world)
    await append(ledger, [b"x"])
    deduplication.stored.update({named(number, 100): number for number in range(10_000)})
    deduplication.snapshot(ledger.last_confirmed)
    await world.settle()
    _, again = await owner(world)
    assert again.stored == deduplication.stored


# --- who is known


@given(
    st.lists(st.tuples(st.text(max_size=8), st.booleans()), max_size=12, unique_by=lambda each: each[0]),
    st.integers(-1, 14),
    st.integers(0, 400),
)
def test_a_snapshot_holds_who_is_connected_then_who_sent_last(
    producers: list[tuple[str, bool]], count_max: int, bytes_max: int
) -> None:
    stored = {name: number for number, (name, _) in enumerate(producers)}
    gone = {name for name, is_gone in producers if is_gone}
    kept = most_recent(stored, gone, count_max, bytes_max)
    assert kept is not stored
    assert list(kept.items()) == [each for each in stored.items() if each[0] in kept]
    assert len(kept) <= max(0, count_max)
    assert size_of_properties(kept) <= bytes_max
    latest_first = [name for name, _ in reversed(producers)]
    here_first = sorted(latest_first, key=lambda name: name in gone)
    if size_of_properties(stored) <= bytes_max:
        assert kept.keys() == set(here_first[: max(0, count_max)])
    room = bytes_max - size_of_properties(kept)
    assert len(kept) >= count_max or all(size_of_properties([name]) > room for name in stored.keys() - kept)


def test_of_too_many_those_that_sent_last_stay() -> None:
    stored = {"a": 1, "b": 2, "c": 3, "d": 4}
    assert most_recent(stored, {"c", "d"}, 3, 1_000) == {"a": 1, "b": 2, "d": 4}
    assert most_recent(stored, {"c", "d"}, 1, 1_000) == {"b": 2}
    assert most_recent(stored, stored, 1_000, size_of_properties("ab")) == {"c": 3, "d": 4}


async def test_of_too_many_those_that_are_gone_are_forgotten_and_none_that_is_connected(
    world: ManagedWorld, caplog: pytest.LogCaptureFixture
) -> None:
    ledger, deduplication = await owner(world, deduplication_producers_max=3)
    await append(ledger, [b"x"])
    for name in "abcdefg":
        sent(deduplication, name)
    for name in "gfed":
        deduplication.producer_removed(name)
    sent(deduplication, "a", 1)
    with caplog.at_level(logging.WARNING):
        deduplication.snapshot(ledger.last_confirmed)
        deduplication.snapshot(ledger.last_confirmed)
    assert deduplication.stored == {"b": 0, "c": 0, "a": 1}
    assert deduplication.pushed == deduplication.stored
    assert ledger.cursors["pulsar.dedup"].properties == {"b": 0, "c": 0, "a": 1}
    assert len([one for one in caplog.messages if "deduplication knows 7 producers, and 3 have room" in one]) == 1
    sent(deduplication, "h")
    deduplication.snapshot(ledger.last_confirmed)
    assert deduplication.last_sequence_id("b") == 0, "it is connected"
    assert list(ledger.cursors["pulsar.dedup"].properties) == ["c", "a", "h"]
    deduplication.producer_removed("b")
    deduplication.snapshot(ledger.last_confirmed)
    assert deduplication.last_sequence_id("b") == -1


async def test_memory_is_bounded_by_what_a_snapshot_holds(world: ManagedWorld) -> None:
    ledger, deduplication = await owner(world, deduplication_snapshot_entries=100)
    await append(ledger, [b"x"])
    most = 0
    for number in range(4_000):
        sent(deduplication, named(number, NAME_BYTES_MAX))
        deduplication.producer_removed(named(number, NAME_BYTES_MAX))
        most = max(most, size_of_properties(deduplication.stored))
    assert most <= SNAPSHOT_BYTES_MAX + 100 * (NAME_BYTES_MAX + 20)
    assert deduplication.stored.keys() == deduplication.pushed.keys() == deduplication._idle_since.keys()
    assert deduplication.last_sequence_id(named(3_999, NAME_BYTES_MAX)) == 0


async def test_who_has_a_message_on_its_way_is_not_forgotten(world: ManagedWorld) -> None:
    """Its receipt may be on its way when it comes back and sends the message again."""
    ledger, deduplication = await owner(world, deduplication_producers_max=1)
    sent(deduplication, "a")
    assert deduplication.check(batch("a", 1), ()) is None
    deduplication.producer_removed("a")
    sent(deduplication, "b")
    deduplication.snapshot(ledger.last_confirmed)
    assert deduplication.last_sequence_id("a") == 1
    deduplication.batch_stored(batch("a", 1), (0, 0))
    deduplication.snapshot(ledger.last_confirmed)
    assert deduplication.last_sequence_id("a") == -1


async def test_who_is_gone_is_forgotten_also_when_its_message_was_stored_while_another_failed(
    world: ManagedWorld,
) -> None:
    _, deduplication = await owner(world)
    deduplication.producer_added("a")
    assert deduplication.check(batch("a", 1), ()) is None
    deduplication.append_failed()
    deduplication.batch_stored(batch("a", 1), (0, 0))
    deduplication.producer_removed("a")
    world.clock.ms += 10**9
    deduplication.maintain(0)
    assert deduplication.last_sequence_id("a") == -1


# --- what entries and other clusters name


async def test_long_names_that_only_messages_have_are_not_kept(world: ManagedWorld) -> None:
    """Clients can write whatever they want into a message's metadata."""
    ledger, _ = await owner(world)
    long_name = "p" * (NAME_BYTES_MAX + 1)
    names: list[dict[str, Any]] = [{"producer_name": "p", "replicated_from": long_name}, {"producer_name": long_name}]
    await append(ledger, [message(b"x", sequence_id=7, **fields) for fields in names])
    _, again = await owner(world)
    assert again.stored == {"p": 7}
    deduplicated = again._check_original(long_name, 1, 1), again._check_original(long_name, 1, 1)
    assert [status.name for status in deduplicated] == ["NEW", "NEW"]
    assert again.pushed == {"p": 7}


async def test_names_that_are_replayed_are_bounded_too(world: ManagedWorld) -> None:
    ledger, _ = await owner(world)
    for number in range(60):
        await append(ledger, [message(b"x", producer_name=str(number), sequence_id=number)])
    _, again = await owner(world, deduplication_producers_max=10)
    assert again.stored == {str(number): number for number in range(50, 60)}


# --- who is let in


def test_the_length_of_a_name_is_counted_in_bytes() -> None:
    assert [is_too_long(name) for name in ("p" * 1_024, "p" * 1_025, "ö" * 512, "ö" * 513)] == [0, 1, 0, 1]


async def test_a_new_producer_with_a_very_long_name_is_refused_with_deduplication() -> None:
    async with MemoryBroker(
        BrokerSettings(policies=PolicySettings(deduplication=True)), clock=ShiftedClock()
    ) as broker:
        client = await broker.connect()
        content = {"topic": TOPIC, "producer_name": "p" * 1_025}
        error = await client.request(pb.BaseCommand.PRODUCER, producer_id=1, **content)
        assert error.name == "ERROR"
        assert int(error.body.error) == ServerError.NOT_ALLOWED_ERROR
        assert "at most 1024 bytes" in error.body.message
        topic = broker.service.topics[TOPIC]
        assert not topic.producers.by_name
        topic.deduplication.stored["p" * 1_025] = 5  # From a snapshot of Apache's broker.
        body = await client.producer(TOPIC, 1, producer_name="p" * 1_025)
        assert body.last_sequence_id == 5
        await client.producer(TOPIC, 2, producer_name="p" * 1_024)


async def test_without_deduplication_names_are_as_long_as_ever() -> None:
    async with MemoryBroker(BrokerSettings(), clock=ShiftedClock()) as broker:
        client = await broker.connect()
        await client.producer(TOPIC, 1, producer_name="p" * 30_000)


async def test_who_sends_while_deduplication_is_switched_on_is_not_taken_for_gone() -> None:
    async with MemoryBroker(BrokerSettings(), clock=ShiftedClock()) as broker:
        client = await broker.connect()
        await client.producer(TOPIC, 1, producer_name="p")
        topic = await broker.service.topic(TopicName.parse(TOPIC), create=True)
        await topic.ledger.open_cursor("pulsar.dedup", topic.ledger.last_confirmed)
        client.send(pb.BaseCommand.SEND, message(b"x", producer_name="p", sequence_id=3), producer_id=1, sequence_id=3)
        await client.expect(pb.BaseCommand.SEND_RECEIPT)
        topic.policies = replace(topic.policies, deduplication=True)
        await topic._deduplication_switch.follow(topic)
        assert topic.deduplication.last_sequence_id("p") == 3
        assert not topic.deduplication._idle_since
