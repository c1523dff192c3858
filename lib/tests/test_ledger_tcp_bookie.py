"""The TCP connection to a bookie, against a small server that speaks version 2 over a bookie in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from magnetar.core.limits import BOOKKEEPER_FRAME_BYTES_MAX
from magnetar.ledger.bookie_client.addressed_bookies import AddressedBookies
from magnetar.ledger.bookie_client.bookie_connection import READ_FLAG_FENCE, BookieConnection
from magnetar.ledger.bookie_client.contract import (
    KEY,
    LEDGER,
    NOT_THERE,
    Answers,
    BookieConnectionContract,
    add,
    entries_of,
)
from magnetar.ledger.bookie_client.tcp_bookie import TcpBookie, TcpBookieSettings
from magnetar.ledger.testing import MemoryBookie
from magnetar.managed.testing import ManualClock
from magnetar.net.connection import Connection
from magnetar.net.endpoints import Listener, listen
from magnetar.wire.bookkeeper import v2
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.framing import FrameSplitter

QUICK = TcpBookieSettings(
    add_timeout_seconds=0.08, read_timeout_seconds=0.08, backoff_seconds_min=0.01, backoff_seconds_max=0.02
)


class Server:
    """Serves a bookie in memory; `silent` swallows requests, `knows_batches` off refuses batch reads."""

    def __init__(self) -> None:
        self.bookie = MemoryBookie("served:3181")
        self.silent = False
        self.knows_batches = True
        self.requests: list[v2.Request] = []
        self.connections: list[Connection] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.listener: Listener | None = None

    async def start(self, port: int = 0) -> int:
        self.listener = await listen("127.0.0.1", port, self.handler)
        return self.listener.port

    def handler(self, connection: Connection) -> ServerLink:
        self.connections.append(connection)
        return ServerLink(self, connection)

    async def stop(self) -> None:
        for connection in self.connections:
            connection.abort()
        if self.listener is not None:
            await self.listener.close()
        await asyncio.gather(*self.tasks, return_exceptions=True)


class ServerLink:
    def __init__(self, server: Server, connection: Connection) -> None:
        self.server = server
        self.connection = connection
        self.splitter = FrameSplitter(BOOKKEEPER_FRAME_BYTES_MAX)

    def connection_made(self) -> None: ...

    def writable_changed(self, writable: bool) -> None: ...

    def connection_lost(self, error: Exception | None) -> None: ...

    def data_received(self, data: bytes) -> None:
        for request in v2.decode_requests(*self.splitter.feed(data)):
            self.server.requests.append(request)
            if self.server.silent:
                continue
            if isinstance(request, v2.AddGroup):
                self.server.bookie.add_entries(
                    request.ledger_id,
                    request.master_key,
                    request.entry_ids,
                    request.entries,
                    request.flags,
                    lambda *answer: self.connection.write(v2.encode_add_responses(*answer)),
                )
            else:
                task = asyncio.ensure_future(self.read(request))
                self.server.tasks.add(task)
                task.add_done_callback(self.server.tasks.discard)

    async def read(self, request: v2.Request) -> None:
        bookie = self.server.bookie
        if isinstance(request, v2.Read):
            try:
                entry = await bookie.read_entry(request.ledger_id, request.entry_id, request.flags, request.master_key)
                answer = v2.encode_read_response(0, request.ledger_id, request.entry_id, entry)
            except BookieError as error:
                answer = v2.encode_read_response(error.code, request.ledger_id, request.entry_id)
            self.connection.write(answer)
        elif isinstance(request, v2.BatchRead):
            where = (request.ledger_id, request.first_entry_id, request.request_id)
            if not self.server.knows_batches:
                self.connection.write_parts(v2.encode_batch_read_response(BookieCode.EBADREQ, *where, []))
                return
            try:
                entries = await bookie.read_entries(
                    request.ledger_id, request.first_entry_id, request.count_max, request.size_bytes_max
                )
                parts = v2.encode_batch_read_response(0, *where, entries)
            except BookieError as error:
                parts = v2.encode_batch_read_response(error.code, *where, [])
            self.connection.write_parts(parts)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    started = Server()
    await started.start()
    yield started
    await started.stop()


def connect_to(server: Server, clock: ManualClock, settings: TcpBookieSettings = QUICK) -> TcpBookie:
    assert server.listener is not None
    address = ("127.0.0.1", server.listener.port)
    return TcpBookie("served:3181", lambda bookie_id: address, clock, settings)


@pytest.fixture
def clock() -> ManualClock:
    """Stands still: however long a busy machine takes, no timeout and no back-off passes before a test says so."""
    return ManualClock()


@pytest.fixture
async def bookie(server: Server, clock: ManualClock) -> AsyncIterator[TcpBookie]:
    opened = connect_to(server, clock)
    yield opened
    await opened.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


class TestTcpBookieContract(BookieConnectionContract):
    @pytest.fixture
    async def bookie(self, server: Server, clock: ManualClock) -> AsyncIterator[BookieConnection]:
        opened = connect_to(server, clock, TcpBookieSettings())
        yield opened
        await opened.close()


class TestTcpBookieWithoutBatchReads(BookieConnectionContract):
    @pytest.fixture
    async def bookie(self, server: Server, clock: ManualClock) -> AsyncIterator[BookieConnection]:
        server.knows_batches = False
        opened = connect_to(server, clock, TcpBookieSettings())
        yield opened
        await opened.close()


async def test_a_silent_bookie_is_unreachable_after_the_timeout(
    server: Server, bookie: TcpBookie, clock: ManualClock
) -> None:
    server.silent = True
    adding = asyncio.ensure_future(add(bookie, 0, entries_of(LEDGER, 0, [b"x", b"y"])))
    await until(lambda: server.requests)
    clock.ms += 70
    await asyncio.sleep(0.03)
    assert not adding.done()
    clock.ms += 20
    async with asyncio.timeout(30):
        assert await adding == {BookieCode.UNREACHABLE}
    # Only the adds were given up; the connection stands.
    server.silent = False
    assert await add(bookie, 2, entries_of(LEDGER, 2, [b"z"])) == {BookieCode.EOK}
    assert len(server.connections) == 1


async def test_a_read_without_answer_costs_the_connection(
    server: Server, bookie: TcpBookie, clock: ManualClock
) -> None:
    server.silent = True
    for read in (bookie.read_entry(LEDGER, 0), bookie.read_entries(LEDGER, 0, 2, 100)):
        server.requests.clear()
        reading = asyncio.ensure_future(read)
        await until(lambda: server.requests)
        clock.ms += 90
        with pytest.raises(BookieError) as raised:
            await reading
        assert raised.value.code is BookieCode.UNREACHABLE
        clock.ms += 30
    server.silent = False
    assert await add(bookie, 0, entries_of(LEDGER, 0, [b"z"])) == {BookieCode.EOK}
    assert len(server.connections) >= 2


async def test_a_lost_connection_fails_what_is_outstanding(
    server: Server, bookie: TcpBookie, clock: ManualClock
) -> None:
    await add(bookie, 0, entries_of(LEDGER, 0, [b"x"]))
    server.silent = True
    answers = Answers()
    bookie.add_entries(LEDGER, KEY, [1], entries_of(LEDGER, 1, [b"y"]), 0, answers)
    bookie.add_entries(LEDGER, KEY, [1], entries_of(LEDGER, 1, [b"y"]), 0, lambda *answer: None)
    read = asyncio.ensure_future(bookie.read_entry(LEDGER, 0))
    await until(lambda: any(isinstance(request, v2.Read) for request in server.requests))
    server.connections[0].abort()
    with pytest.raises(BookieError):
        await read
    await answers.until(1)
    assert answers.codes == {1: BookieCode.UNREACHABLE}
    # Within the back-off there is no attempt; afterwards it connects again.
    assert await add(bookie, 1, entries_of(LEDGER, 1, [b"y"])) == {BookieCode.UNREACHABLE}
    assert len(server.connections) == 1
    server.silent = False
    clock.ms += 30
    assert await add(bookie, 1, entries_of(LEDGER, 1, [b"y"])) == {BookieCode.EOK}


async def test_nobody_listens(server: Server, clock: ManualClock) -> None:
    bookie = connect_to(server, clock)
    await server.stop()
    assert await add(bookie, 0, entries_of(LEDGER, 0, [b"x"])) == {BookieCode.UNREACHABLE}
    with pytest.raises(BookieError):
        await bookie.read_entry(LEDGER, 0)
    await bookie.close()


async def test_no_address_is_known(clock: ManualClock) -> None:
    bookie = TcpBookie("nameless", lambda bookie_id: None, clock, QUICK)
    assert await add(bookie, 0, entries_of(LEDGER, 0, [b"x"])) == {BookieCode.UNREACHABLE}
    await bookie.close()


async def test_garbage_costs_the_connection(server: Server, bookie: TcpBookie) -> None:
    await add(bookie, 0, entries_of(LEDGER, 0, [b"x"]))
    server.connections[0].write(b"\xff" * 20)
    await until(lambda: server.connections[0].closed)


async def test_a_fencing_read_is_never_answered_by_a_plain_one(server: Server, bookie: TcpBookie) -> None:
    await add(bookie, 0, entries_of(LEDGER, 0, [b"x"]))
    server.requests.clear()
    plain = asyncio.ensure_future(bookie.read_entry(LEDGER, 0))
    fencing = asyncio.ensure_future(bookie.read_entry(LEDGER, 0, READ_FLAG_FENCE, KEY))
    await plain
    assert [request.flags for request in server.requests if isinstance(request, v2.Read)][:1] == [0]
    await fencing
    assert server.bookie.ledgers[LEDGER].fenced


async def test_a_cancelled_read_leaves_its_place_in_line(server: Server, bookie: TcpBookie) -> None:
    entries = entries_of(LEDGER, 0, [b"x"])
    await add(bookie, 0, entries)
    first = asyncio.ensure_future(bookie.read_entry(LEDGER, 0))
    second = asyncio.ensure_future(bookie.read_entry(LEDGER, 0))
    third = asyncio.ensure_future(bookie.read_entry(LEDGER, 0))
    await asyncio.sleep(0)
    first.cancel()
    second.cancel()
    assert await third == entries[0]
    assert (await code_of_missing(bookie)) in NOT_THERE


async def code_of_missing(bookie: TcpBookie) -> BookieCode:
    with pytest.raises(BookieError) as raised:
        await bookie.read_entry(LEDGER, 77)
    return raised.value.code


async def test_a_bookie_that_does_not_know_batch_reads_is_asked_singly_for_a_while(
    server: Server, bookie: TcpBookie
) -> None:
    server.knows_batches = False
    entries = entries_of(LEDGER, 0, [b"%d" % number for number in range(5)])
    await add(bookie, 0, entries)
    for _ in range(3):
        assert await bookie.read_entries(LEDGER, 0, 5, 1 << 20) == entries
    assert sum(isinstance(request, v2.BatchRead) for request in server.requests) == 1


async def test_closing_fails_what_is_outstanding(server: Server, bookie: TcpBookie) -> None:
    server.silent = True
    read = asyncio.ensure_future(bookie.read_entry(LEDGER, 0))
    answers = Answers()
    bookie.add_entries(LEDGER, KEY, [1], entries_of(LEDGER, 1, [b"y"]), 0, answers)
    await asyncio.sleep(0.01)
    await bookie.close()
    with pytest.raises(BookieError):
        await read
    assert answers.codes == {1: BookieCode.UNREACHABLE}


async def test_entries_one_by_one(server: Server, bookie: TcpBookie) -> None:
    entries = entries_of(LEDGER, 0, [b"a", b"b", b"c"])
    await add(bookie, 0, entries)
    # Beside another read of one of them, whose answer version 2 could not tell apart.
    alone, results = await asyncio.gather(bookie.read_entry(LEDGER, 2), bookie.read_each(LEDGER, [2, 7, 0]))
    assert alone == entries[2]
    assert [results[0], results[2]] == [entries[2], entries[0]]
    assert isinstance(results[1], BookieError)
    assert results[1].code in NOT_THERE
    assert await bookie.read_each(LEDGER, []) == []


async def test_entries_one_by_one_of_a_bookie_that_goes_away(server: Server, bookie: TcpBookie) -> None:
    server.silent = True
    reading = asyncio.create_task(bookie.read_each(LEDGER, [0, 1]))
    await until(lambda: len(server.requests) == 2)
    await server.stop()
    results = await reading
    assert [result.code for result in results if isinstance(result, BookieError)] == [BookieCode.UNREACHABLE] * 2
    again = await bookie.read_each(LEDGER, [0])
    assert isinstance(again[0], BookieError)


async def test_who_stops_waiting_for_entries_leaves_nothing_behind(server: Server, bookie: TcpBookie) -> None:
    await add(bookie, 0, entries_of(LEDGER, 0, [b"a", b"b"]))
    server.silent = True
    reading = asyncio.create_task(bookie.read_each(LEDGER, [0, 1]))
    await until(lambda: sum(isinstance(request, v2.Read) for request in server.requests) == 2)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    for connection in server.connections:
        connection.abort()
    await asyncio.sleep(0.01)


async def test_bookies_by_given_addresses(server: Server) -> None:
    assert server.listener is not None
    address = ("127.0.0.1", server.listener.port)
    bookies = AddressedBookies({"some name": address})
    entries = entries_of(LEDGER, 0, [b"a"])
    await add(bookies.connection("some name"), 0, entries)
    assert await bookies.connection("some name").read_entry(LEDGER, 0) == entries[0]
    assert await bookies.connection(f"127.0.0.1:{address[1]}").read_entry(LEDGER, 0) == entries[0]
    with pytest.raises(BookieError):
        await bookies.connection("nobody knows").read_entry(LEDGER, 0)
    bookies.add_addresses({"nobody knows": address})
    assert await bookies.connection("nobody knows").read_entry(LEDGER, 0) == entries[0]
    await bookies.close()
    await bookies.close()
