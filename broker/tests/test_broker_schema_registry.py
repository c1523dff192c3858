"""The registry on its storage: versions, tombstones, many writers, lost ledgers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from magnetar.broker.schema.cache import WeightedCache
from magnetar.broker.schema.errors import IncompatibleSchema, InvalidSchemaData, NoSchema
from magnetar.broker.schema.locator import SchemaStoreCorrupt
from magnetar.broker.schema.registry import FORCED_DELETE_VERSION, SchemaRegistry
from magnetar.broker.schema.schema_info import SchemaInfo
from magnetar.broker.schema.storage import SchemaStorage
from magnetar.broker.schema.strategy import Strategy
from magnetar.ledger.api import LedgerOptions, LedgerUnavailable, NotEnoughBookies
from magnetar.managed.testing import MemoryLedgers
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import MetadataStore
from magnetar.wire.pulsar.enums import SchemaType

ID = "public/default/t"
PATH = f"/schemas/{ID}"


class Clock:
    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic_seconds(self) -> float:
        return 0.0


def avro(*fields: str, optional: bool = True) -> SchemaInfo:
    nodes = [{"name": name, "type": "string", **({"default": ""} if optional else {})} for name in fields]
    return SchemaInfo(SchemaType.AVRO, json.dumps({"type": "record", "name": "A", "fields": nodes}).encode())


STRING = SchemaInfo(SchemaType.STRING)


@pytest.fixture
async def store() -> AsyncIterator[MemoryMetadataStore]:
    store = MemoryMetadataStore()
    yield store
    await store.close()


@pytest.fixture
def ledgers() -> MemoryLedgers:
    return MemoryLedgers()


def new_registry(store: MetadataStore, ledgers: MemoryLedgers) -> SchemaRegistry:
    return SchemaRegistry(SchemaStorage(store, ledgers, LedgerOptions(digest_type="CRC32")), Clock())


@pytest.fixture
async def registry(store: MemoryMetadataStore, ledgers: MemoryLedgers) -> AsyncIterator[SchemaRegistry]:
    registry = new_registry(store, ledgers)
    yield registry
    await registry.close()


@pytest.fixture
async def other_broker(store: MemoryMetadataStore, ledgers: MemoryLedgers) -> AsyncIterator[SchemaRegistry]:
    registry = new_registry(store, ledgers)
    yield registry
    await registry.close()


async def test_no_schema_at_first(registry: SchemaRegistry) -> None:
    assert await registry.get(ID) is None
    assert await registry.get(ID, 0) is None
    assert await registry.all_versions(ID) == []
    assert await registry.find_version(ID, STRING) is None
    assert await registry.delete(ID, force=False) is None
    assert await registry.delete(ID, force=True) is None


async def test_versions_count_from_zero(registry: SchemaRegistry) -> None:
    versions = [
        await registry.put_if_absent(ID, schema, Strategy.FULL, user="me")
        for schema in (avro("a"), avro("a", "b"), avro("a"), avro("a", "b"), avro("c"))
    ]
    assert versions == [0, 1, 0, 1, 2]
    newest = await registry.get(ID)
    assert newest is not None
    assert (newest.version, newest.schema, newest.user) == (2, avro("c"), "me")
    assert newest.timestamp_ms == 1_700_000_000_000
    first = await registry.get(ID, 0)
    assert first is not None
    assert first.schema == avro("a")
    assert await registry.get(ID, 3) is None
    assert [stored.version for stored in await registry.all_versions(ID)] == [0, 1, 2]
    assert await registry.find_version(ID, avro("a", "b")) == 1


async def test_each_version_is_a_closed_ledger_with_one_entry(registry: SchemaRegistry, ledgers: MemoryLedgers) -> None:
    await registry.put_if_absent(ID, avro("a"), Strategy.FULL)
    await registry.put_if_absent(ID, avro("a", "b"), Strategy.FULL)
    assert [(len(ledger.entries), ledger.closed) for ledger in ledgers.stored.values()] == [(1, True), (1, True)]
    options = ledgers.stored[0].options
    assert options.digest_type == "CRC32"
    assert dict(options.custom_metadata) == {
        "application": b"pulsar",
        "component": b"schema",
        "pulsar/schemaId": ID.encode(),
    }


async def test_the_same_meaning_gets_the_same_version(registry: SchemaRegistry) -> None:
    await registry.put_if_absent(ID, avro("a"), Strategy.ALWAYS_INCOMPATIBLE)
    spaced = SchemaInfo(SchemaType.AVRO, json.dumps(json.loads(avro("a").data), indent=1).encode())
    assert await registry.put_if_absent(ID, spaced, Strategy.ALWAYS_INCOMPATIBLE) == 0


async def test_refusals_add_nothing(registry: SchemaRegistry, ledgers: MemoryLedgers) -> None:
    await registry.put_if_absent(ID, avro("a"), Strategy.FULL)
    with pytest.raises(IncompatibleSchema):
        await registry.put_if_absent(ID, avro("b", optional=False), Strategy.FULL)
    with pytest.raises(IncompatibleSchema, match="exists schema type AVRO, new schema type STRING"):
        await registry.put_if_absent(ID, STRING, Strategy.FULL)
    with pytest.raises(InvalidSchemaData):
        await registry.put_if_absent(ID, SchemaInfo(SchemaType.AVRO, b"zz"), Strategy.ALWAYS_COMPATIBLE)
    with pytest.raises(IncompatibleSchema, match=r"Schema not found and schema auto updating is disabled\."):
        await registry.put_if_absent(ID, avro("a", "b"), Strategy.FULL, allow_auto_update=False)
    assert await registry.put_if_absent(ID, avro("a"), Strategy.FULL, allow_auto_update=False) == 0
    assert len(ledgers.stored) == 1


async def test_transitive_strategies_see_all_versions(registry: SchemaRegistry) -> None:
    old = SchemaInfo(SchemaType.AVRO, b'"int"')
    await registry.put_if_absent(ID, old, Strategy.ALWAYS_COMPATIBLE)
    await registry.put_if_absent(ID, avro("a"), Strategy.ALWAYS_COMPATIBLE)
    assert await registry.is_compatible(ID, avro("b"), Strategy.FULL)
    assert not await registry.is_compatible(ID, avro("b"), Strategy.FULL_TRANSITIVE)
    with pytest.raises(IncompatibleSchema):
        await registry.put_if_absent(ID, avro("b"), Strategy.FULL_TRANSITIVE)
    with pytest.raises(InvalidSchemaData):
        await registry.is_compatible(ID, SchemaInfo(SchemaType.AVRO, b"zz"), Strategy.FULL)
    assert await registry.is_compatible("public/default/new", avro("b"), Strategy.ALWAYS_INCOMPATIBLE)


async def test_consumers(registry: SchemaRegistry) -> None:
    with pytest.raises(NoSchema):
        await registry.check_consumer(ID, avro("a"), Strategy.FULL)
    await registry.check_consumer(ID, avro("a"), Strategy.ALWAYS_COMPATIBLE)
    await registry.put_if_absent(ID, avro("a", optional=False), Strategy.FULL)
    reads, reads_not = avro("a", "b"), avro("b", optional=False)
    for strategy in (Strategy.BACKWARD, Strategy.FORWARD, Strategy.FORWARD_TRANSITIVE, Strategy.FULL):
        await registry.check_consumer(ID, reads, strategy)
        await registry.check_consumer(ID, avro(), strategy)
        with pytest.raises(IncompatibleSchema):
            await registry.check_consumer(ID, reads_not, strategy)
    await registry.check_consumer(ID, avro(), Strategy.BACKWARD_TRANSITIVE)
    for strategy in (Strategy.FULL_TRANSITIVE, Strategy.ALWAYS_INCOMPATIBLE):
        with pytest.raises(IncompatibleSchema):
            await registry.check_consumer(ID, avro(), strategy)


async def test_many_producers_of_one_schema_make_one_version(
    registry: SchemaRegistry, other_broker: SchemaRegistry, ledgers: MemoryLedgers
) -> None:
    puts = [broker.put_if_absent(ID, avro("a"), Strategy.FULL) for broker in (registry, other_broker) * 20]
    assert set(await asyncio.gather(*puts)) == {0}
    assert len(await registry.all_versions(ID)) == 1
    assert len(ledgers.stored) == 1, "the loser deletes its ledger"


async def test_many_producers_of_different_schemas_all_get_in(
    registry: SchemaRegistry, other_broker: SchemaRegistry, ledgers: MemoryLedgers
) -> None:
    puts = [
        broker.put_if_absent(ID, avro(f"f{number}"), Strategy.FULL)
        for number in range(8)
        for broker in (registry, other_broker)
    ]
    versions = await asyncio.gather(*puts)
    assert versions[::2] == versions[1::2]
    assert sorted(versions[::2]) == list(range(8))
    assert len(ledgers.stored) == 8


async def test_a_tombstone_hides_what_was(registry: SchemaRegistry, other_broker: SchemaRegistry) -> None:
    await registry.put_if_absent(ID, avro("a"), Strategy.FULL)
    assert await registry.delete(ID, force=False, user="me") == 1
    assert await registry.delete(ID, force=False) == 1
    assert await registry.get(ID) is None
    assert await registry.get(ID, 0) is None
    assert await registry.get(ID, 1) is None
    assert await registry.all_versions(ID) == []
    with pytest.raises(NoSchema):
        await registry.check_consumer(ID, avro("a"), Strategy.FULL)
    assert await other_broker.put_if_absent(ID, STRING, Strategy.FULL) == 2
    assert [stored.version for stored in await registry.all_versions(ID)] == [2]


async def test_a_forced_delete_leaves_nothing(
    registry: SchemaRegistry, store: MemoryMetadataStore, ledgers: MemoryLedgers
) -> None:
    await registry.put_if_absent(ID, avro("a"), Strategy.FULL)
    await registry.put_if_absent(ID, avro("b"), Strategy.FULL)
    assert await registry.delete(ID, force=True) == FORCED_DELETE_VERSION
    assert not await store.exists(PATH)
    assert ledgers.stored == {}
    assert await registry.put_if_absent(ID, STRING, Strategy.FULL) == 0


async def test_reads_are_kept_until_another_broker_changes_something(
    registry: SchemaRegistry, other_broker: SchemaRegistry, ledgers: MemoryLedgers
) -> None:
    await registry.put_if_absent(ID, avro("a"), Strategy.FULL)
    await asyncio.gather(*(registry.get(ID) for _ in range(50)))
    assert ledgers.reads == 1
    assert await registry.put_if_absent(ID, avro("a"), Strategy.FULL) == 0
    assert ledgers.reads == 1
    await other_broker.put_if_absent(ID, avro("b"), Strategy.FULL)
    await asyncio.sleep(0)
    newest = await registry.get(ID)
    assert newest is not None
    assert newest.version == 1


async def test_a_lost_version_does_not_lock_the_topic(registry: SchemaRegistry, ledgers: MemoryLedgers) -> None:
    for name in "abc":
        await registry.put_if_absent(ID, avro(name), Strategy.FULL)
    del ledgers.stored[2]
    ledgers.stored[0].entries.clear()
    newest = await registry.get(ID)
    assert newest is not None
    assert newest.version == 1
    assert await registry.get(ID, 2) is None
    assert await registry.put_if_absent(ID, avro("c"), Strategy.FULL) == 3


async def test_a_version_that_cannot_be_read_now_is_lost_by_force_only(
    registry: SchemaRegistry, ledgers: MemoryLedgers
) -> None:
    for name in "abc":
        await registry.put_if_absent(ID, avro(name), Strategy.FULL)
    ledgers.away.add(2)
    with pytest.raises(LedgerUnavailable):
        await registry.get(ID)
    registry.unreadable_is_lost = True
    newest = await registry.get(ID)
    assert newest is not None
    assert newest.version == 1
    assert await registry.put_if_absent(ID, avro("d"), Strategy.FULL) == 3
    registry.unreadable_is_lost = False
    ledgers.away.clear()
    assert [stored.version for stored in await registry.all_versions(ID)] == [0, 1, 2, 3]


async def test_what_fails_leaves_no_ledger(registry: SchemaRegistry, ledgers: MemoryLedgers) -> None:
    ledgers.fail_appends_after = 0
    with pytest.raises(LedgerUnavailable):
        await registry.put_if_absent(ID, STRING, Strategy.FULL)
    assert ledgers.stored == {}
    ledgers.not_enough_bookies()
    with pytest.raises(NotEnoughBookies):
        await registry.put_if_absent(ID, STRING, Strategy.FULL)
    assert await registry.get(ID) is None


async def test_ledgers_that_pulsar_left_open_are_read(registry: SchemaRegistry, ledgers: MemoryLedgers) -> None:
    await registry.put_if_absent(ID, STRING, Strategy.FULL)
    ledgers.stored[0].closed = False
    stored = await registry.get(ID)
    assert stored is not None
    assert stored.schema == STRING


async def test_rubbish_in_the_store_is_told(
    registry: SchemaRegistry, store: MemoryMetadataStore, ledgers: MemoryLedgers
) -> None:
    await registry.put_if_absent(ID, STRING, Strategy.FULL)
    ledgers.stored[0].entries[0] = b"\xff"
    with pytest.raises(SchemaStoreCorrupt):
        await registry.get(ID)
    await store.put(PATH, b"\xff")
    await asyncio.sleep(0)
    with pytest.raises(SchemaStoreCorrupt):
        await registry.get(ID)


async def test_one_reader_may_give_up(registry: SchemaRegistry, ledgers: MemoryLedgers) -> None:
    await registry.put_if_absent(ID, STRING, Strategy.FULL)
    readers = [asyncio.create_task(registry.get(ID)) for _ in range(2)]
    await asyncio.sleep(0)
    readers[0].cancel()
    stored = await readers[1]
    assert stored is not None
    assert stored.schema == STRING


def test_the_cache_stays_within_its_budget() -> None:
    cache: WeightedCache[str, int] = WeightedCache(10)
    cache.put("a", 1, 4)
    cache.put("b", 2, 4)
    assert cache.get("a") == 1
    cache.put("c", 3, 4)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]
    cache.put("d", 4, 11)
    assert cache.get("d") is None
    cache.put("a", 5, 10)
    assert [cache.get(key) for key in "ac"] == [5, None]
    cache.discard("a")
    cache.discard("a")
    cache.put("e", 6, 10)
    assert cache.get("e") == 6
    cache.clear()
    assert cache.get("e") is None
