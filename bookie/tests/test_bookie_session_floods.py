"""What one client may make a bookie hold: bounded, whatever it asks for and whether it reads; gone when it is gone."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from magnetar.bookie.app import RunningBookie
from magnetar.bookie.server.request_queue import QUEUE_BYTES_MAX
from magnetar.bookie.server.session import TURN_FRAMES_MAX, BookieSession
from magnetar.core.limits import BOOKKEEPER_FRAME_BYTES_MAX, MIB
from magnetar.net.connection import Connection
from magnetar.net.testing import LIVING_PAUSE_SECONDS, SilentClient, living, until
from magnetar.wire.bookkeeper import v2, v3
from magnetar.wire.bookkeeper.entry import EntryCodec
from magnetar.wire.framing import FrameSplitter

from lib.tests import v3_client

StartBookie = Callable[..., Awaitable[RunningBookie]]
CODEC = EntryCodec(1, "CRC32C")
ENTRY_BYTES = 1 * MIB
ENTRIES = CODEC.encode_many(0, -1, 0, [bytes(ENTRY_BYTES)] * 5)

UNSENT_BYTES_MAX = 17 * MIB
"""4 MiB after which nothing more is made, replies of 1 MiB, and one batch of entries. Of long polls the sixteen entries
that are read at once, with their heads."""

REQUESTS = 32
READS = {
    "batch reads": v2.encode_batch_read_request(1, 0, 42, 1_000, 5 * MIB) * REQUESTS,
    "reads": struct.pack(">IIqq", 20, 2 << 24 | 2 << 16, 1, 0) * REQUESTS,
    "reads of version 3": b"".join(
        v3_client.encode_request(
            v3.Request(
                operation=v3.Operation.READ_ENTRY, transaction_id=number, body=v3.ReadRequest(ledger_id=1, entry_id=0)
            )
        )
        for number in range(REQUESTS)
    ),
    "long polls": b"".join(
        v3_client.encode_request(
            v3.Request(
                operation=v3.Operation.READ_ENTRY,
                transaction_id=number,
                body=v3.ReadRequest(ledger_id=1, entry_id=0, previous_lac=-1, timeout_ms=1),
            )
        )
        for number in range(REQUESTS)
    ),
}


def connections(running: RunningBookie) -> list[Connection]:
    assert running.server is not None
    assert running.server._listener is not None
    return list(running.server._listener.connections)


async def with_entries(start: StartBookie, *, flushed: bool) -> RunningBookie:
    running = await start(serve_tcp=True)
    client = await SilentClient.open(running.port)
    for entry in ENTRIES:
        await client.send(struct.pack(">II", 24 + len(entry), 2 << 24 | 1 << 16) + CODEC.master_key + entry)
    await client.read(len(ENTRIES) * 28)
    client.close()
    if flushed:
        await running.parts.checkpointer.checkpoint(running.parts.journals.marks)
    await until(lambda: not connections(running) and not living(BookieSession), pause_seconds=LIVING_PAUSE_SECONDS)
    return running


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("name", READS)
async def test_replies_that_nobody_reads_are_bounded(start: StartBookie, name: str, flushed: bool) -> None:
    """And all come once the client reads."""
    running = await with_entries(start, flushed=flushed)
    client = await SilentClient.open(running.port)
    await client.send(READS[name])
    await until(lambda: connections(running))
    (connection,) = connections(running)
    await until(lambda: connection.unsent_bytes)
    for _ in range(300):
        assert connection.unsent_bytes <= UNSENT_BYTES_MAX
        await asyncio.sleep(0.001)
    assert connection.unsent_bytes
    splitter = FrameSplitter(BOOKKEEPER_FRAME_BYTES_MAX)
    replies = 0
    async with asyncio.timeout(30):
        while replies < REQUESTS:
            replies += len(splitter.feed(await client.read(1))[1]) // 2
    client.close()


OF_A_CONNECTION = (BookieSession, Connection, FrameSplitter)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("sent", [b"", READS["batch reads"], (5 * MIB).to_bytes(4, "big") + bytes(3 * MIB)])
async def test_what_a_connection_had_is_freed_with_it(start: StartBookie, sent: bytes) -> None:
    running = await with_entries(start, flushed=False)
    before = living(*OF_A_CONNECTION)
    client = await SilentClient.open(running.port)
    await client.send(sent)
    await until(lambda: not sent or any(map(busy, connections(running))))
    await until(
        lambda: set(living(*OF_A_CONNECTION) - before) == {"BookieSession", "Connection", "FrameSplitter"},
        pause_seconds=LIVING_PAUSE_SECONDS,
    )
    client.close()
    await until(
        lambda: not connections(running) and not living(*OF_A_CONNECTION) - before, pause_seconds=LIVING_PAUSE_SECONDS
    )


def busy(connection: Any) -> bool:
    return bool(connection.held_bytes)


FORCE = v3_client.encode_request(
    v3.Request(operation=v3.Operation.FORCE_LEDGER, transaction_id=1, body=v3.ForceLedgerRequest(ledger_id=1))
)


@pytest.mark.parametrize("request_frame", [FORCE, v2.encode_read_request(1, 0)])
async def test_one_client_takes_a_turn_of_the_loop_like_all_others(start: StartBookie, request_frame: bytes) -> None:
    """However many requests one read brings; all are answered."""
    running = await start(serve_tcp=True)
    client = await SilentClient.open(running.port)
    splitter = FrameSplitter(BOOKKEEPER_FRAME_BYTES_MAX)
    frames = 0

    async def receive(count: int) -> None:
        nonlocal frames
        async with asyncio.timeout(30):
            while frames < count:
                frames += len(splitter.feed(await client.read(1))[1]) // 2

    await client.send(request_frame)
    await receive(1)
    (connection,) = connections(running)
    session = connection._handler
    assert isinstance(session, BookieSession)
    count = 3 * TURN_FRAMES_MAX
    session.data_received(request_frame * count)
    # Nothing of these is answered before the next turn.
    assert len(session._requests._queue) == TURN_FRAMES_MAX
    assert connection.reading_paused
    await receive(1 + count)
    await until(lambda: not connection.reading_paused)
    client.close()


async def test_what_breaks_the_protocol_in_a_later_turn_ends_the_connection(start: StartBookie) -> None:
    running = await start(serve_tcp=True)
    client = await SilentClient.open(running.port)
    await client.send(FORCE * 3 * TURN_FRAMES_MAX + b"\x00\x00\x00\x04\xff\xff\xff\xff")
    await until(lambda: not connections(running) and not living(BookieSession), pause_seconds=LIVING_PAUSE_SECONDS)
    client.close()


async def served(start: StartBookie, first: bytes) -> tuple[SilentClient, BookieSession, Connection]:
    """A client whose first request is answered, and its session."""
    running = await start(serve_tcp=True)
    client = await SilentClient.open(running.port)
    await client.send(first)
    await client.read(1)
    (connection,) = connections(running)
    session = connection._handler
    assert isinstance(session, BookieSession)
    return client, session, connection


async def test_requests_are_served_in_the_order_in_which_they_came(start: StartBookie) -> None:
    """Also those that are read while others wait for their turn."""
    client, session, _ = await served(start, v2.encode_read_request(1, 0))
    count = 2 * TURN_FRAMES_MAX + 10
    taken: list[int] = []
    put = session._requests.put

    def noted(request: Any, size_bytes: int) -> None:
        taken.append(request.entry_id)
        put(request, size_bytes)

    session._requests.put = noted  # type: ignore[method-assign]
    for first in (0, count):
        session.data_received(b"".join(v2.encode_read_request(1, first + number) for number in range(count)))
    await until(lambda: len(taken) == 2 * count)
    assert taken == list(range(2 * count))
    client.close()


async def test_what_waits_for_its_turn_counts_as_held(start: StartBookie) -> None:
    client, session, connection = await served(start, v2.encode_read_request(1, 0))
    frames = v2.encode_read_request(1, 0) * 10_000
    session.data_received(frames)
    assert connection.held_bytes >= len(frames)
    await until(lambda: not connection.held_bytes)
    client.close()


async def test_what_waits_for_its_turn_goes_with_the_connection(start: StartBookie) -> None:
    client, session, connection = await served(start, v2.encode_read_request(1, 0))
    session.data_received(v2.encode_read_request(1, 0) * 10 * TURN_FRAMES_MAX)
    connection.abort()
    await until(lambda: connection.closed)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not session._splitter.pending_bytes
    assert not session._requests._queue
    client.close()


async def test_large_requests_that_wait_are_bounded_by_their_bytes(start: StartBookie) -> None:
    """And the client is read again once they are answered, whatever it has asked before."""
    request = v2.encode_auth("plugin", bytes(QUEUE_BYTES_MAX // 2 + 1))
    client, session, connection = await served(start, request)
    for _ in range(3):
        session.data_received(request * 2)
        assert connection.reading_paused
        await until(lambda: not connection.reading_paused)
    client.close()
