"""Which ledgers nothing names, as `bookie list-unnamed-ledgers` shows them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from magnetar.bookie.autorecovery.testing import MemoryBookieCluster
from magnetar.cli.command_line import application
from magnetar.cli.tools.unnamed_ledgers import UnnamedLedger, unnamed_ledgers
from magnetar.core.clock import SystemClock
from magnetar.core.ids import EARLIEST
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.metadata_ops import LedgerMetadataOps
from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.managed.paths import ledger_path
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.shared import ledger_options
from magnetar.managed.testing import append
from magnetar.metadata.rocksdb import RocksdbMetadataStore
from magnetar.metadata.store import MetadataStore
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata
from typer.testing import CliRunner

TOPIC = "public/default/persistent/a%2Ftopic"
ONE_COPY = ManagedLedgerSettings(ensemble_size=1, write_quorum=1, ack_quorum=1)
OF_TOPIC = {"component": b"managed-ledger", "pulsar/managed-ledger": TOPIC.encode()}


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryBookieCluster]:
    opened = MemoryBookieCluster(3)
    yield opened
    await opened.close()


@pytest.fixture
async def topics(cluster: MemoryBookieCluster) -> AsyncIterator[ManagedLedgerFactory]:
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


def later_ms() -> int:
    return SystemClock().now_ms() + 10**6


async def found(cluster: MemoryBookieCluster, before_ms: int | None = None) -> list[UnnamedLedger]:
    before_ms = later_ms() if before_ms is None else before_ms
    return [each async for each in unnamed_ledgers(cluster.store, before_ms)]


async def made(cluster: MemoryBookieCluster, options: LedgerOptions) -> int:
    """As by a broker that dies before it has named it."""
    writer, _ = await cluster.open_ledger(options, [b"state"])
    await writer.close()
    return writer.ledger_id


@pytest.mark.usefixtures("topics")
async def test_what_topics_and_cursors_use_is_named(cluster: MemoryBookieCluster) -> None:
    ids = [ledger_id async for ledger_id in cluster.client.metadata.ledger_ids()]
    assert len(ids) == 2
    assert await found(cluster) == []


@pytest.mark.usefixtures("topics")
async def test_what_a_broker_made_and_did_not_name_is_found(cluster: MemoryBookieCluster) -> None:
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
async def test_young_ledgers_are_left_out(cluster: MemoryBookieCluster) -> None:
    begun_ms = SystemClock().now_ms()
    await made(cluster, ledger_options(ONE_COPY, TOPIC))
    assert await found(cluster, begun_ms) == []


@pytest.mark.usefixtures("topics")
@pytest.mark.parametrize("custom", [{}, {"component": b"schema", "pulsar/schemaId": b"public/default/t"}])
async def test_ledgers_of_others_are_left_out(cluster: MemoryBookieCluster, custom: dict[str, bytes]) -> None:
    await made(cluster, LedgerOptions(ensemble_size=1, write_quorum=1, ack_quorum=1, custom_metadata=custom))
    assert await found(cluster) == []


async def test_of_a_node_that_nobody_can_read_nothing_is_told(
    cluster: MemoryBookieCluster, topics: ManagedLedgerFactory
) -> None:
    await made(cluster, ledger_options(ONE_COPY, TOPIC))
    await topics.close()
    await cluster.store.put(ledger_path(TOPIC), b"\xff damaged")
    assert await found(cluster) == []


async def test_more_than_are_looked_at_side_by_side(cluster: MemoryBookieCluster) -> None:
    wanted = [await made(cluster, ledger_options(ONE_COPY, TOPIC)) for _ in range(70)]
    looked_at: list[int] = []
    rows = unnamed_ledgers(cluster.store, later_ms(), looked_at.append)
    assert [each.ledger_id async for each in rows] == wanted
    assert looked_at == [64]


async def noted(store: MetadataStore, created_ms: int | None, custom: dict[str, bytes] = OF_TOPIC) -> int:
    """In the metadata alone."""
    metadata = LedgerMetadata(
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        ensembles=[(0, ["bookie-0:3181"])],
        created_ms=created_ms,
        custom_metadata=custom,
    )
    return (await LedgerMetadataOps(store).create(metadata))[0]


@pytest.mark.parametrize(
    ("created_ms", "custom", "is_found"),
    [
        pytest.param(999, OF_TOPIC, True, id="old"),
        pytest.param(1, OF_TOPIC, True, id="the oldest"),
        pytest.param(1000, OF_TOPIC, False, id="not before the time"),
        pytest.param(None, OF_TOPIC, False, id="nobody knows how old"),
        pytest.param(0, OF_TOPIC, False, id="no time either"),
        pytest.param(999, OF_TOPIC | {"component": b"compacted-topic"}, False, id="another component's, of a topic"),
        pytest.param(999, {"pulsar/managed-ledger": TOPIC.encode()}, False, id="no component's"),
        pytest.param(999, {"component": b"managed-ledger"}, False, id="no topic's"),
    ],
)
async def test_only_what_is_old_for_certain_and_a_topics_is_found(
    cluster: MemoryBookieCluster, created_ms: int | None, custom: dict[str, bytes], is_found: bool
) -> None:
    ledger_id = await noted(cluster.store, created_ms, custom)
    rows = await found(cluster, 1000)
    assert [(each.ledger_id, each.created_ms) for each in rows] == [(ledger_id, created_ms)] * is_found


@pytest.mark.slow
def test_the_command_lists_what_is_older_than_its_hours(tmp_path: Path) -> None:
    now_ms = SystemClock().now_ms()

    async def write() -> list[int]:
        store = RocksdbMetadataStore(tmp_path / "metadata")
        ages = (23, 25, 47, 49)
        ledger_ids = [await noted(store, now_ms - hours * 3_600_000) for hours in ages]
        await store.close()
        return ledger_ids

    def listed(*arguments: str, code: int = 0) -> list[int]:
        command = ["bookie", "list-unnamed-ledgers", "-m", f"rocksdb://{tmp_path}/metadata", "--json", *arguments]
        result = CliRunner().invoke(application, command, env={"NO_COLOR": "1"})
        assert result.exit_code == code, result.output
        return [row["ledger_id"] for row in json.loads(result.stdout or "[]")]

    ledger_ids = asyncio.run(write())
    assert listed() == ledger_ids[1:]
    assert listed("--older-than-hours", "48") == ledger_ids[3:]
    assert listed("--older-than-hours", "50") == []
    assert listed("--older-than-hours", "0.5", code=2) == []
