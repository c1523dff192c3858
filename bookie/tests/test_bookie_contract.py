"""The real bookie behind both kinds of connection: the same promises."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from magnetar.bookie.app import RunningBookie
from magnetar.bookie.local import LocalBookieConnection
from magnetar.ledger.bookie_client.bookie_connection import BookieConnection
from magnetar.ledger.bookie_client.contract import BookieConnectionContract
from magnetar.ledger.bookie_client.tcp_connections import TcpBookieConnections
from magnetar.metadata.memory import MemoryMetadataStore

StartBookie = Callable[..., Awaitable[RunningBookie]]


class TestLocal(BookieConnectionContract):
    @pytest.fixture
    async def bookie(self, start: StartBookie) -> AsyncIterator[BookieConnection]:
        running = await start()
        connection = LocalBookieConnection(running.bookie_id, running.bookie)
        yield connection
        await connection.close()


class TestTcp(BookieConnectionContract):
    @pytest.fixture
    async def bookie(self, start: StartBookie, store: MemoryMetadataStore) -> AsyncIterator[BookieConnection]:
        running = await start(serve_tcp=True)
        connections = TcpBookieConnections(store)
        await connections.start()
        yield connections.connection(running.bookie_id)
        await connections.close()
