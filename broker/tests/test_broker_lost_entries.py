"""Entries that no bookie has, and bookies that do not answer: every command names it by the same code."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from magnetar.broker.admin.application import status_of
from magnetar.broker.server_errors import server_error_of
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient
from magnetar.core.errors import MagnetarError
from magnetar.ledger.api import EntryNotFound, EntryUnreadable, LedgerNotFound, LedgerUnavailable, NotEnoughBookies
from magnetar.managed.errors import CursorClosed, ManagedLedgerClosed, ManagedLedgerFenced, ManagedLedgerWriteFailed
from magnetar.metadata.store import NodeTooLarge, StoreUnavailable
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

Command = pb.BaseCommand
TOPIC = "persistent://public/default/topic"
ADMIN_TOPIC = "/admin/v2/persistent/public/default/topic"
COUNT = 4


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    """One that keeps no entry in memory."""
    async with MemoryBroker(BrokerSettings(managed_ledger_cache_bytes_max=0)) as running:
        yield running


async def stored(broker: MemoryBroker) -> tuple[ProtocolClient, list[Any]]:
    """A client with a consumer on a topic of some messages, and their ids."""
    client = await broker.connect()
    await client.producer(TOPIC)
    await client.consumer(TOPIC)
    return client, await client.publish(COUNT)


def lose(broker: MemoryBroker, ledger_id: int) -> None:
    """No bookie has the entries of a ledger any more."""
    for bookie in broker.bookies.bookies.values():
        bookie.ledgers[ledger_id].entries.clear()


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        pytest.param(Command.GET_LAST_MESSAGE_ID, {"consumer_id": 1}, id="last message id"),
        pytest.param(Command.SEEK, {"consumer_id": 1, "message_publish_time": 5}, id="seek by time"),
        pytest.param(
            Command.SUBSCRIBE,
            {
                "topic": TOPIC,
                "subscription": "late",
                "subType": 0,
                "consumer_id": 2,
                "start_message_rollback_duration_sec": 9,
            },
            id="subscribe by time",
        ),
    ],
)
@pytest.mark.parametrize("lost", [True, False], ids=["lost", "out of reach"])
async def test_every_command_names_lost_entries_the_same(
    broker: MemoryBroker, kind: pb.BaseCommand.Type, fields: dict[str, Any], *, lost: bool
) -> None:
    client, ids = await stored(broker)
    if lost:
        lose(broker, ids[0].ledgerId)
    else:
        for bookie in broker.bookies.bookies.values():
            bookie.stop()
    answer = await client.request(kind, **fields)
    assert (answer.name, answer.body.error) == ("ERROR", pb.PersistenceError), answer
    assert f"{ids[0].ledgerId}:" in answer.body.message


async def test_schemas_out_of_reach_are_named_the_same(broker: MemoryBroker) -> None:
    client = await broker.connect()
    schema = {"name": "s", "type": 1, "schema_data": b""}
    await client.producer(TOPIC, schema=schema)
    for bookie in broker.bookies.bookies.values():
        bookie.stop()
    answer = await client.request(Command.GET_SCHEMA, topic=TOPIC)
    assert answer.body.error_code == pb.PersistenceError
    other = {**schema, "type": 8}
    answer = await client.request(Command.GET_OR_CREATE_SCHEMA, topic=TOPIC, schema=other)
    assert answer.body.error_code == pb.PersistenceError


async def test_lost_entries_are_no_404(broker: MemoryBroker) -> None:
    _, ids = await stored(broker)
    ledger_id = ids[0].ledgerId
    lose(broker, ledger_id)
    paths = (
        f"/ledger/{ledger_id}/entry/1",
        "/subscription/s/position/1",
        "/examinemessage",
        "/lastMessageId",
        "/messageid/5",
    )
    async with aiohttp.ClientSession(broker.admin_url) as session:
        for path in paths:
            async with session.get(ADMIN_TOPIC + path) as answer:
                reason = (await answer.json())["reason"]
                assert (answer.status, f"no bookie has entry {ledger_id}:" in reason) == (500, True), (path, reason)
        async with session.get(f"{ADMIN_TOPIC}/ledger/{ledger_id}/entry/{COUNT}") as answer:
            assert answer.status == 404, "there never was such an entry"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EntryNotFound("7:1"), ServerError.PERSISTENCE_ERROR),
        (EntryUnreadable((7, 1), "7:1"), ServerError.PERSISTENCE_ERROR),
        (LedgerNotFound("7"), ServerError.PERSISTENCE_ERROR),
        (LedgerUnavailable("7"), ServerError.PERSISTENCE_ERROR),
        (NotEnoughBookies("0 of 1"), ServerError.PERSISTENCE_ERROR),
        (ManagedLedgerWriteFailed("full"), ServerError.PERSISTENCE_ERROR),
        (CursorClosed("s"), ServerError.PERSISTENCE_ERROR),
        (ManagedLedgerFenced("t"), ServerError.SERVICE_NOT_READY),
        (ManagedLedgerClosed("t"), ServerError.SERVICE_NOT_READY),
        (StoreUnavailable("away"), ServerError.METADATA_ERROR),
        (NodeTooLarge("large"), ServerError.NOT_ALLOWED_ERROR),
        (PulsarError(ServerError.CONSUMER_BUSY, "busy"), ServerError.CONSUMER_BUSY),
        (MagnetarError("?"), ServerError.UNKNOWN_ERROR),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, MagnetarError) else "",
)
def test_the_code_of_each_error(error: MagnetarError, code: ServerError) -> None:
    assert server_error_of(error) is code


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (EntryNotFound("7:1"), 500),
        (EntryUnreadable((7, 1), "7:1"), 503),
        (LedgerUnavailable("7"), 503),
        (ManagedLedgerFenced("t"), 503),
        (ManagedLedgerClosed("t"), 503),
        (NodeTooLarge("large"), 413),
        (PulsarError(ServerError.TOPIC_NOT_FOUND, "t"), 404),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, MagnetarError) else "",
)
def test_the_status_of_each_error(error: MagnetarError, status: int) -> None:
    assert status_of(error) == status
