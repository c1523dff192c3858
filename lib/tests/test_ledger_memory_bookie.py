from __future__ import annotations

import pytest
from magnetar.ledger.bookie_client.bookie_connection import BookieConnection
from magnetar.ledger.bookie_client.contract import BookieConnectionContract
from magnetar.ledger.testing import MemoryBookies


class TestMemoryBookieContract(BookieConnectionContract):
    @pytest.fixture
    def bookie(self) -> BookieConnection:
        return MemoryBookies(1).connection("bookie-0:3181")
