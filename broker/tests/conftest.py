"""What the broker's tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from magnetar.broker.session_testing import MemoryBroker


@pytest.fixture
async def memory_broker() -> AsyncIterator[MemoryBroker]:
    """A broker of this test's own over a store and bookies in memory."""
    async with MemoryBroker() as broker:
        yield broker
