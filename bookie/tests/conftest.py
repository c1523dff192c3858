"""A bookie per test, on a directory of its own, and restarts of it."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from magnetar.bookie.app import RunningBookie, start_bookie
from magnetar.bookie.settings import BookieSettings, DiskSettings, standalone_settings
from magnetar.core.clock import SystemClock
from magnetar.metadata.memory import MemoryMetadataStore

StartBookie = Callable[..., Awaitable[RunningBookie]]


@pytest.fixture
def store() -> MemoryMetadataStore:
    return MemoryMetadataStore()


@pytest.fixture
def settings(tmp_path: Path) -> BookieSettings:
    small = standalone_settings(tmp_path)
    return dataclasses.replace(
        small, port=0, disk=DiskSettings(usage_threshold=1.0, usage_low_water=1.0, free_bytes_min=0)
    )


@pytest.fixture
async def start(settings: BookieSettings, store: MemoryMetadataStore) -> AsyncIterator[StartBookie]:
    """Starts the bookie; `start(serve_tcp=True)` changes settings. Whatever runs at the end is closed."""
    running: list[RunningBookie] = []

    async def start_one(**changes: Any) -> RunningBookie:
        bookie = await start_bookie(dataclasses.replace(settings, **changes), store, SystemClock())
        running.append(bookie)
        return bookie

    yield start_one
    for bookie in running:
        await bookie.close()
    await store.close()
