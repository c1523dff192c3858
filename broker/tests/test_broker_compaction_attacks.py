"""Compaction beside administrators that empty topics and move subscriptions, and beside transactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from magnetar.broker.compaction import topic_compaction
from magnetar.broker.compaction.output import CompactedOutput
from magnetar.broker.compaction.threshold import over_threshold
from magnetar.broker.compaction.topic_compaction import TopicCompaction, is_unsettled
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.testing.sessions import MemoryBroker, message
from magnetar.client.message import OutgoingMessage
from magnetar.core.topic_name import TopicName
from magnetar.managed.compaction import COMPACTION_CURSOR, RUN_PROPERTY
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.metadata.store import StoreUnavailable
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.compaction_world import TOPIC, CompactionWorld, until
from broker.tests.test_broker_compaction_failures import AFTER, BEFORE, FIRST, THEN
from broker.tests.test_broker_transaction_buffer import end, send

ADMIN = "/admin/v2/persistent/public/default/t"


@pytest.fixture
async def world() -> AsyncIterator[CompactionWorld]:
    async with MemoryBroker(BrokerSettings(transactions=TransactionSettings(enabled=True))) as broker:
        world = CompactionWorld(broker)
        await world.publish(*FIRST)
        await world.compact()
        await world.publish(*THEN)
        yield world
        await world.close()


async def asked(world: CompactionWorld, method: str, path: str, **named: Any) -> int:
    url = world.broker.running.settings.web_service_url
    async with aiohttp.ClientSession() as http, http.request(method, url + path, **named) as answer:
        return answer.status


async def test_a_topic_that_is_truncated_has_nothing_compacted_left(world: CompactionWorld) -> None:
    assert await asked(world, "DELETE", ADMIN + "/truncate") == 204
    assert await world.read() == []
    assert await world.compacted_ledgers() == set()
    assert not is_unsettled(await world.ledger())
    await world.publish(("a", "3"), ("a", "4"))
    assert (await world.compact())["status"] == "SUCCESS"
    assert await world.read() == [("a", "4")]


@pytest.mark.parametrize("deleted", [False, True], ids=["compacted", "deleted"])
async def test_nobody_notes_which_ledgers_a_compaction_has_left(world: CompactionWorld, *, deleted: bool) -> None:
    """They are deleted: those of other topics could be among them. What a run has noted stays, and is not shown."""
    producer = await world.client.producer(TopicName.parse("persistent://public/default/other"))
    (kept,) = await producer.send_all([OutgoingMessage(b"kept")])
    await producer.close()
    cursor = (await world.ledger()).cursors[COMPACTION_CURSOR]
    path = f"{ADMIN}/subscription/{COMPACTION_CURSOR}"
    given = {RUN_PROPERTY: str(kept.position[0]), "mine": "1"}
    assert await asked(world, "PUT", path + "/properties", json=given) == 204
    assert cursor.cursor_properties == {"mine": "1"}
    await cursor.set_cursor_properties({RUN_PROPERTY: "77", "mine": "1"})
    assert await asked(world, "PUT", path + "/properties", json=given | {"mine": "2"}) == 204
    assert cursor.cursor_properties == {RUN_PROPERTY: "77", "mine": "2"}
    assert (await world.topic()).subscriptions[COMPACTION_CURSOR].statistics()["subscriptionProperties"] == {
        "mine": "2"
    }
    if deleted:
        assert await asked(world, "DELETE", path) == 204
        assert await asked(world, "PUT", path, json={"ledgerId": -1, "entryId": -1, "properties": given}) == 204
        assert await asked(world, "DELETE", path) == 204
    else:
        assert (await world.compact())["status"] == "SUCCESS"
    assert await world.metadata(kept.position[0]) is not None


@pytest.mark.parametrize("first", [True, False], ids=["first", "second"])
@pytest.mark.parametrize("made", [False, True], ids=["before its ledger is made", "when its ledger is made"])
async def test_a_truncation_ends_a_compaction(
    world: CompactionWorld, monkeypatch: pytest.MonkeyPatch, *, made: bool, first: bool
) -> None:
    """Neither its ledger is left, nor that of the compaction before, if there was one."""
    reached = asyncio.Event()
    make = ManagedLedger.create_other
    if first:
        await (await world.topic()).delete_subscription(COMPACTION_CURSOR)

    async def held(*arguments: Any) -> Any:
        if made:
            await make(*arguments)
        reached.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(ManagedLedger, "create_other", held)
        (await world.compaction()).start()
        await reached.wait()
        assert len(await world.compacted_ledgers()) == made + (not first)
        assert await asked(world, "DELETE", ADMIN + "/truncate") == 204
    assert (await world.compaction()).status["status"] == "ERROR"
    assert await world.compacted_ledgers() == set()
    assert await world.read() == []


@pytest.mark.parametrize(
    "path",
    [
        "/subscription/__compaction/skip_all",
        "/subscription/__compaction/skip/3",
        "/subscription/__compaction/expireMessages/0",
        "/subscription/__compaction/resetcursor/0",
        "/all_subscription/expireMessages/0",
        "clearBacklog",
        "clearBacklog/__compaction",
    ],
)
async def test_nothing_but_compaction_moves_what_it_has_gone_through(world: CompactionWorld, path: str) -> None:
    before = await world.compacted()
    where = ADMIN + path if path.startswith("/") else "/admin/v2/namespaces/public/default/" + path
    assert await asked(world, "POST", where) in (405 if "__compaction/" in path else 204, 409)
    assert await world.compacted() == before
    assert await world.read() == BEFORE


async def test_no_client_subscribes_by_compactions_name(world: CompactionWorld) -> None:
    client = await world.broker.connect()
    fields = {"topic": str(TOPIC), "subscription": COMPACTION_CURSOR, "consumer_id": 1, "subType": 0}
    answer = await client.request(pb.BaseCommand.SUBSCRIBE, **fields)
    assert (answer.name, answer.body.error) == ("ERROR", pb.NotAllowedError)


async def test_who_wants_what_is_lost_is_told(world: CompactionWorld) -> None:
    assert world.broker.ledgers is not None
    await world.broker.ledgers.delete((await world.compacted()).ledger_id)
    client = await world.broker.connect()
    fields = {"topic": str(TOPIC), "subscription": "s", "consumer_id": 1, "subType": 0, "initialPosition": 1}
    answer = await client.request(pb.BaseCommand.SUBSCRIBE, read_compacted=True, **fields)
    assert (answer.name, answer.body.error) == ("ERROR", pb.PersistenceError)
    assert "s" not in (await world.topic()).subscriptions
    await client.consumer(str(TOPIC), initialPosition=1)
    await (await world.topic()).delete_subscription(COMPACTION_CURSOR)
    assert (await world.compact())["status"] == "SUCCESS"
    assert await world.read() == AFTER


async def test_a_slow_deletion_takes_no_later_note_away(
    world: CompactionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier owner has left is deleted so slowly that a run begins meanwhile, and goes."""
    ledger = await world.ledger()
    cursor = ledger.cursors[COMPACTION_CURSOR]
    await cursor.set_cursor_properties({RUN_PROPERTY: "4711"})
    begun, go_on = asyncio.Event(), asyncio.Event()
    delete, make = ManagedLedger.delete_others, ManagedLedger.create_other

    async def slowly(self: ManagedLedger, ledger_ids: set[int]) -> None:
        if not begun.is_set():
            begun.set()
            await go_on.wait()
        await delete(self, ledger_ids)

    async def made(*arguments: Any) -> Any:
        writer = await make(*arguments)
        go_on.set()
        for _ in range(50):
            await asyncio.sleep(0)
        assert is_unsettled(ledger), "whoever loads the topic now would not know the ledger"
        return writer

    monkeypatch.setattr(ManagedLedger, "delete_others", slowly)
    monkeypatch.setattr(ManagedLedger, "create_other", made)
    compaction = await world.compaction()
    compaction.settle_later()
    await begun.wait()
    compaction.start()
    asyncio.get_running_loop().call_later(0.2, go_on.set)
    await until(lambda: compaction.status["status"] != "RUNNING")
    assert compaction.status["status"] == "SUCCESS", compaction.status
    assert await world.compacted_ledgers() == {(await world.compacted()).ledger_id}


async def test_what_waits_for_a_transaction_starts_no_compaction(world: CompactionWorld) -> None:
    """Whether something that readers have came since the last compaction, or nothing."""
    client = await world.broker.connect()
    await world.compact()
    topic = await world.topic()
    await client.producer(str(TOPIC))
    for transaction, earlier in ((1, []), (2, [1])):
        for number in earlier:
            await send(client, number)
        await send(client, 10 * transaction, transaction=transaction)
        for number in range(11, 20):
            await send(client, 10 * transaction + number)
        assert not over_threshold(topic.ledger, 200, topic.visible_entries.end())
        assert not (await end(client, transaction, topic=str(TOPIC))).HasField("error")
        assert over_threshold(topic.ledger, 200, topic.visible_entries.end())
        await world.compact()


@pytest.mark.parametrize("commit", [True, False])
async def test_nothing_of_an_open_transaction_is_compacted(world: CompactionWorld, *, commit: bool) -> None:
    """Neither what it says of a key, nor what comes behind its beginning."""
    client = await world.broker.connect()
    await client.producer(str(TOPIC))
    bits: Any = {"txnid_most_bits": 0, "txnid_least_bits": 1}
    content = message(b"9", sequence_id=0, partition_key="a", **bits)
    client.send(pb.BaseCommand.SEND, content, producer_id=1, sequence_id=0, **bits)
    await client.expect(pb.BaseCommand.SEND_RECEIPT)
    await world.publish(("b", "9"))
    assert (await world.compact())["status"] == "SUCCESS"
    assert await world.read() == AFTER
    assert not (await end(client, 1, topic=str(TOPIC), commit=commit)).HasField("error")
    behind = [("a", "9"), ("b", "9")] if commit else [("b", "9")]
    assert await world.read() == AFTER + behind
    assert (await world.compact())["status"] == "SUCCESS"
    assert await world.read() == ([("d", "1"), *behind] if commit else [("a", "2"), ("d", "1"), *behind])


async def test_who_looks_after_earlier_runs_leaves_the_one_that_goes_on_alone(
    world: CompactionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    compaction = await world.compaction()
    finish = CompactedOutput.finish

    async def looked_after(self: CompactedOutput) -> None:
        compaction.settle_later()
        for _ in range(50):
            await asyncio.sleep(0)
        await finish(self)

    monkeypatch.setattr(CompactedOutput, "finish", looked_after)
    assert (await world.compact())["status"] == "SUCCESS"
    assert await world.read() == AFTER
    assert is_unsettled(await world.ledger()) is False


async def test_nothing_is_deleted_before_its_successor_is_known_to_be_stored(
    world: CompactionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next owner, who finds the former ledger named, finds it, too."""
    before = await world.compacted()

    async def unstored(cursor: Any) -> None:
        raise StoreUnavailable("not now")

    monkeypatch.setattr(topic_compaction, "_durable", unstored)
    await world.compact()
    assert before.ledger_id in await world.compacted_ledgers()
    monkeypatch.undo()
    await (await world.compaction()).settle()
    assert await world.compacted_ledgers() == {(await world.compacted()).ledger_id}


async def test_ledger_and_horizon_are_told_in_one_write(
    world: CompactionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker goes right after it."""
    reached = asyncio.Event()

    class Last:
        """A cursor whose owner goes when it has stored its properties."""

        def __init__(self, cursor: Any) -> None:
            self._cursor = cursor

        def __getattr__(self, name: str) -> Any:
            return getattr(self._cursor, name)

        async def set_properties(self, properties: dict[str, int]) -> None:
            await self._cursor.set_properties(properties)
            reached.set()
            await asyncio.Event().wait()

    own = TopicCompaction._cursor
    last = (await world.ledger()).last_confirmed
    with monkeypatch.context() as patch:
        patch.setattr(TopicCompaction, "_cursor", lambda self: Last(own(self)))
        (await world.compaction()).start()
        async with asyncio.timeout(60):
            await reached.wait()
        await world.broker.service.abandon([await world.topic()])
    assert (await world.compacted()).horizon >= last
    assert await world.read() == AFTER


async def test_more_than_the_threshold_is_wanted_and_not_as_much(world: CompactionWorld) -> None:
    """As Apache's broker compares (`PersistentTopic.checkCompaction`)."""
    topic = await world.topic()
    end_of_topic = topic.visible_entries.end()
    cursor = topic.ledger.cursors[COMPACTION_CURSOR]
    came_bytes = topic.ledger.ledgers.size_bytes_after(cursor.mark_delete)
    assert came_bytes > 1
    assert over_threshold(topic.ledger, came_bytes - 1, end_of_topic)
    assert not over_threshold(topic.ledger, came_bytes, end_of_topic)


async def test_what_waits_for_a_transaction_starts_no_first_compaction() -> None:
    """There is no compaction yet from which on to count."""
    settings = BrokerSettings(transactions=TransactionSettings(enabled=True))
    async with MemoryBroker(settings) as broker:
        client = await broker.connect()
        await client.producer(str(TOPIC))
        await send(client, 1, transaction=1)
        for number in range(2, 20):
            await send(client, number)
        topic = broker.service.topics[str(TOPIC)]
        assert not over_threshold(topic.ledger, 100, topic.visible_entries.end())
        assert not (await end(client, 1, topic=str(TOPIC))).HasField("error")
        assert over_threshold(topic.ledger, 100, topic.visible_entries.end())
