"""Schemas over a metadata store that loses answers: one version for one schema, and no ledger left over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from magnetar.broker.schema.locator import parse_locator
from magnetar.broker.schema.registry import SchemaRegistry
from magnetar.broker.schema.schema_info import SchemaInfo
from magnetar.broker.schema.storage import SchemaStorage
from magnetar.broker.schema.strategy import Strategy
from magnetar.ledger.api import LedgerOptions
from magnetar.managed.testing import MemoryLedgers
from magnetar.metadata.faulty import FaultyStore, RequestFate
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import StoreUnavailable
from magnetar.sim.virtual_time import LoopClock, VirtualTimeLoop
from magnetar.wire.pulsar.enums import SchemaType

new_event_loop = VirtualTimeLoop

ID = "public/default/t"
PATH = f"/schemas/{ID}"
UNSURE = [RequestFate.REFUSED, RequestFate.LOST, RequestFate.LATE]
STRING = SchemaInfo(SchemaType.STRING)
BYTES = SchemaInfo(SchemaType.BYTES)


class World:
    """A registry over a session that treats the next requests as it is told."""

    def __init__(self) -> None:
        self.tree = MemoryMetadataStore()
        self.ledgers = MemoryLedgers()
        self.fates: dict[str, list[RequestFate]] = {}
        self.session = FaultyStore(self.tree, self._fate, late_seconds=5.0)
        self.registry = SchemaRegistry(
            SchemaStorage(self.session, self.ledgers, LedgerOptions(digest_type="CRC32")), LoopClock()
        )

    async def put(self, schema: SchemaInfo = STRING) -> int:
        return await self.registry.put_if_absent(ID, schema, Strategy.ALWAYS_COMPATIBLE)

    async def until_answered(self, schema: SchemaInfo = STRING) -> int:
        """As a producer does: it connects again until it is let in."""
        while True:
            try:
                return await self.put(schema)
            except StoreUnavailable:
                continue

    async def named(self) -> list[int]:
        """Ledgers of the versions that are stored."""
        await asyncio.sleep(20.0)  # What is late has come.
        await asyncio.sleep(20.0)  # What is late has come.
        node = await self.tree.get(PATH)
        return [] if node is None else [one.ledger_id for one in parse_locator(node.value, 0).positions]

    def _fate(self, verb: str, path: str) -> RequestFate:
        fates = self.fates.get(verb) if path == PATH else None
        return fates.pop(0) if fates else RequestFate.DONE


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.registry.close()
    await world.session.close()


@pytest.mark.parametrize("fate", UNSURE)
@pytest.mark.parametrize("times", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("before", [0, 1])
async def test_a_schema_gets_one_version_and_one_ledger(
    world: World, fate: RequestFate, times: int, before: int
) -> None:
    if before:
        await world.put(BYTES)
    world.fates["put"] = [fate] * times
    assert await world.until_answered() == before
    assert len(await world.named()) == before + 1
    await world.put(SchemaInfo(SchemaType.INT32))  # By then all is settled.
    assert sorted(world.ledgers.stored) == await world.named()


@pytest.mark.parametrize("fate", UNSURE)
async def test_a_lost_answer_is_not_told_to_the_producer(world: World, fate: RequestFate) -> None:
    world.fates["put"] = [fate]
    assert await world.put() == 0
    assert sorted(world.ledgers.stored) == await world.named()


@pytest.mark.parametrize("fate", UNSURE)
@pytest.mark.parametrize("times", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("then", ["delete", "put"])
async def test_a_deletion_leaves_no_ledger(world: World, fate: RequestFate, times: int, then: str) -> None:
    await world.put(BYTES)
    await world.put(STRING)
    world.fates["delete"] = [fate] * times
    deleted = False
    for _ in range(times + 1):
        try:
            await world.registry.delete(ID, force=True)
            deleted = True
            break
        except StoreUnavailable:
            continue
    assert deleted
    if then == "put":
        assert await world.put() == 0
    assert sorted(world.ledgers.stored) == await world.named()
    assert len(world.ledgers.stored) == (then == "put")
