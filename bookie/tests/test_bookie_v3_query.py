from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator

import pytest
from magnetar.bookie.app import start_bookie
from magnetar.bookie.availability import decode_availability
from magnetar.bookie.settings import BookieSettings
from magnetar.core.clock import SystemClock
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.bookie_client.tcp_connections import TcpBookieConnections
from magnetar.ledger.bookie_client.v3_query import V3Queries
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.testing import RecordingListener
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError


@pytest.fixture
async def connections(
    settings: BookieSettings, store: MemoryMetadataStore
) -> AsyncIterator[tuple[str, TcpBookieConnections]]:
    """A bookie on TCP, and connections to it."""
    bookie = await start_bookie(dataclasses.replace(settings, serve_tcp=True), store, SystemClock())
    opened = TcpBookieConnections(store)
    await opened.start()
    yield bookie.bookie_id, opened
    await opened.close()
    await bookie.close()
    await store.close()


async def test_a_bookie_tells_its_entries_and_its_space(
    connections: tuple[str, TcpBookieConnections], store: MemoryMetadataStore
) -> None:
    bookie_id, tcp = connections
    client = BookKeeperClient(store, tcp)
    listener = RecordingListener()
    writer = await client.create(LedgerOptions(), listener)
    writer.append([b"x"] * 5)
    await listener.until_confirmed(4)
    queries = V3Queries(tcp.address)
    assert decode_availability(await queries.list_entries(bookie_id, writer.ledger_id)) == [0, 1, 2, 3, 4]
    total, free = await queries.disk_space(bookie_id)
    assert 0 < free <= total
    with pytest.raises(BookieError) as refused:
        await queries.list_entries(bookie_id, 99)
    assert refused.value.code in (BookieCode.ENOLEDGER, BookieCode.ENOENTRY)
    await writer.close()
    await client.close()


async def test_nobody_there() -> None:
    queries = V3Queries({"closed": ("127.0.0.1", 1)}.get, timeout_seconds=1.0)
    for bookie_id in ("closed", "unknown"):
        with pytest.raises(BookieError) as refused:
            await queries.list_entries(bookie_id, 1)
        assert refused.value.code is BookieCode.UNREACHABLE


@pytest.mark.parametrize("answer", [b"", b"\xff\xff\xff\xff", b"\x00\x00\x00\x02zz"])
async def test_whoever_does_not_answer_so_is_not_reached(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    queries = V3Queries(lambda _: ("127.0.0.1", port), timeout_seconds=1.0)
    with pytest.raises(BookieError) as refused:
        await queries.list_entries("it", 1)
    assert refused.value.code is BookieCode.UNREACHABLE
    server.close()
    await server.wait_closed()
