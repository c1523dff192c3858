"""The simulated metadata service keeps the promises of every metadata store."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest
from magnetar.core.clock import SystemClock
from magnetar.metadata.store import MetadataStore

from e2e.simulation.metadata import MetadataService, SimulatedMetadata
from lib.tests.metadata_contract import MetadataStoreContract


@pytest.fixture
async def service() -> MetadataService:
    return MetadataService(SystemClock(), random.Random(1))


@pytest.fixture
async def store(service: MetadataService) -> AsyncIterator[MetadataStore]:
    opened = SimulatedMetadata(service, "a")
    yield opened
    await opened.close()


@pytest.fixture
async def other_session(service: MetadataService) -> AsyncIterator[MetadataStore]:
    opened = SimulatedMetadata(service, "b")
    yield opened
    await opened.close()


class TestSimulatedMetadataContract(MetadataStoreContract):
    pass
