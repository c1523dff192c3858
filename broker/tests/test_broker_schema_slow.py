"""Schemas whose bookies do not answer: they hold up those of their own topics only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from magnetar.broker.schema.registry import SchemaRegistry
from magnetar.broker.schema.schema_info import SchemaInfo
from magnetar.broker.schema.storage import SchemaStorage
from magnetar.broker.schema.strategy import Strategy
from magnetar.core.errors import MagnetarError
from magnetar.ledger.api import LedgerOptions
from magnetar.managed.testing import MemoryLedgers
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.net.places import PATIENT_SECONDS
from magnetar.sim.virtual_time import VirtualTimeLoop
from magnetar.wire.pulsar.enums import SchemaType

new_event_loop = VirtualTimeLoop

STUCK_TOPICS = 16
"""As many as read at a time when all is well."""


class StuckLedgers(MemoryLedgers):
    """Some ledgers' bookies say nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.stuck: set[int] = set()
        self.asked = 0

    async def open(self, ledger_id: int, **options: Any) -> Any:
        if ledger_id in self.stuck:
            self.asked += 1
            await asyncio.get_running_loop().create_future()
        return await super().open(ledger_id, **options)


def schema(text: str) -> SchemaInfo:
    data = b'{"type":"record","name":"%s","fields":[]}' % text.encode()
    return SchemaInfo(SchemaType.AVRO, data)


@pytest.fixture
def ledgers() -> StuckLedgers:
    return StuckLedgers()


@pytest.fixture
async def registry(ledgers: StuckLedgers) -> AsyncIterator[SchemaRegistry]:
    store = MemoryMetadataStore()

    def new_registry() -> SchemaRegistry:
        return SchemaRegistry(SchemaStorage(store, ledgers, LedgerOptions(digest_type="CRC32")))

    written = new_registry()
    for number in range(STUCK_TOPICS):
        await written.put_if_absent(f"public/default/stuck-{number}", schema("Old"), Strategy.FULL)
    ledgers.stuck.update(ledgers.stored)
    await written.put_if_absent("public/default/well", schema("Old"), Strategy.FULL)
    await written.close()
    # Nothing of them is in memory.
    registry = new_registry()
    yield registry
    await registry.close()
    await store.close()


async def outcomes(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, (asyncio.CancelledError, MagnetarError))


async def test_a_schema_is_read_beside_those_whose_bookies_say_nothing(
    registry: SchemaRegistry, ledgers: StuckLedgers
) -> None:
    stuck = [asyncio.create_task(registry.get(f"public/default/stuck-{number}")) for number in range(STUCK_TOPICS)]
    await asyncio.sleep(0.1)
    assert ledgers.asked == STUCK_TOPICS
    async with asyncio.timeout(2 * PATIENT_SECONDS):
        stored = await registry.get("public/default/well")
    assert stored is not None
    await outcomes(stuck)


async def test_a_schema_is_added_beside_those_whose_bookies_say_nothing(
    registry: SchemaRegistry, ledgers: StuckLedgers
) -> None:
    stuck = [
        asyncio.create_task(registry.put_if_absent(f"public/default/stuck-{number}", schema("New"), Strategy.FULL))
        for number in range(STUCK_TOPICS)
    ]
    await asyncio.sleep(0.1)
    assert ledgers.asked
    async with asyncio.timeout(4 * PATIENT_SECONDS):
        version = await registry.put_if_absent("public/default/well", schema("Old"), Strategy.FULL)
        assert version == 0
        await registry.check_compatible("public/default/well", schema("Old"), Strategy.FULL_TRANSITIVE)
    await outcomes(stuck)
