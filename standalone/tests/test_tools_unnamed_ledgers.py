"""Which ledgers nothing names, as `bookie list-unnamed-ledgers` shows them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from magnetar.bookie.autorecovery.testing import MemoryCluster
from magnetar.core.clock import SystemClock
from magnetar.core.ids import EARLIEST
from magnetar.ledger.api import LedgerOptions
from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.managed.paths import ledger_path
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.shared import ledger_options
from magnetar.managed.testing import append
from magnetar.standalone.tools.unnamed_ledgers import UnnamedLedger, unnamed_ledgers

TOPIC = "public/default/persistent/a%2Ftopic"
ONE_COPY = ManagedLedgerSettings(ensemble_size=1, write_quorum=1, ack_quorum=1)
LATER_MS = SystemClock().now_ms() + 10**6


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    opened = MemoryCluster(3)
    yield opened
    await opened.close()


@pytest.fixture
async def topics(cluster: MemoryCluster) -> AsyncIterator[ManagedLedgerFactory]:
    """A topic with a ledger in use, and a subscription with one."""
    loop = asyncio.get_running_loop()
    factory = ManagedLedgerFactory(cluster.store, cluster.client, SystemClock(), loop, settings=ONE_COPY)
    ledger = await factory.open(TOPIC)
    cursor = await ledger.open_cursor("a sub", EARLIEST)
    at = [await append(ledger, [b"%d" % number]) for number in range(3)]
    cursor.acknowledge([at[1]])
    durable = loop.create_future()
    cursor.persist(durable.set_result)
    assert await durable is None
    yield factory
    await factory.close()


async def found(cluster: MemoryCluster, before_ms: int = LATER_MS) -> list[UnnamedLedger]:
    return [each async for each in unnamed_ledgers(cluster.store, cluster.client.metadata, before_ms)]


async def made(cluster: MemoryCluster, options: LedgerOptions) -> int:
    """As by a broker that dies before it has named it."""
    writer, _ = await cluster.open_ledger(options, [b"state"])
    await writer.close()
    return writer.ledger_id


@pytest.mark.usefixtures("topics")
async def test_what_topics_and_cursors_use_is_named(cluster: MemoryCluster) -> None:
    ids = [ledger_id async for ledger_id in cluster.client.metadata.ledger_ids()]
    assert len(ids) == 2
    assert await found(cluster) == []


@pytest.mark.usefixtures("topics")
async def test_what_a_broker_made_and_did_not_name_is_found(cluster: MemoryCluster) -> None:
    of_topic = await made(cluster, ledger_options(ONE_COPY, TOPIC))
    of_cursor = await made(cluster, ledger_options(ONE_COPY, TOPIC, "a sub"))
    of_deleted = await made(cluster, ledger_options(ONE_COPY, "public/default/persistent/gone"))
    of_deleted_cursor = await made(cluster, ledger_options(ONE_COPY, TOPIC, "gone"))
    assert [(each.ledger_id, each.cursor, each.node_exists) for each in await found(cluster)] == [
        (of_topic, "", True),
        (of_cursor, "a sub", True),
        (of_deleted, "", False),
        (of_deleted_cursor, "gone", False),
    ]
    assert {(each.topic, each.state, each.last_entry_id) for each in await found(cluster)} == {
        (TOPIC, "CLOSED", 0),
        ("public/default/persistent/gone", "CLOSED", 0),
    }


@pytest.mark.usefixtures("topics")
async def test_young_ledgers_are_left_out(cluster: MemoryCluster) -> None:
    begun_ms = SystemClock().now_ms()
    await made(cluster, ledger_options(ONE_COPY, TOPIC))
    assert await found(cluster, begun_ms) == []


@pytest.mark.usefixtures("topics")
@pytest.mark.parametrize("custom", [{}, {"component": b"schema", "pulsar/schemaId": b"public/default/t"}])
async def test_ledgers_of_others_are_left_out(cluster: MemoryCluster, custom: dict[str, bytes]) -> None:
    await made(cluster, LedgerOptions(ensemble_size=1, write_quorum=1, ack_quorum=1, custom_metadata=custom))
    assert await found(cluster) == []


async def test_of_a_node_that_nobody_can_read_nothing_is_told(
    cluster: MemoryCluster, topics: ManagedLedgerFactory
) -> None:
    await made(cluster, ledger_options(ONE_COPY, TOPIC))
    await topics.close()
    await cluster.store.put(ledger_path(TOPIC), b"\xff damaged")
    assert await found(cluster) == []


async def test_more_than_are_looked_at_side_by_side(cluster: MemoryCluster) -> None:
    wanted = [await made(cluster, ledger_options(ONE_COPY, TOPIC)) for _ in range(70)]
    looked_at: list[int] = []
    rows = unnamed_ledgers(cluster.store, cluster.client.metadata, LATER_MS, looked_at.append)
    assert [each.ledger_id async for each in rows] == wanted
    assert looked_at == [64]
