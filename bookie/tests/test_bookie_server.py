"""Byte by byte conversations with the TCP server, in both versions."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from magnetar.bookie.app import RunningBookie
from magnetar.bookie.availability import decode_availability
from magnetar.bookie.server import requests_v3
from magnetar.net.testing import until
from magnetar.wire.bookkeeper import v2, v3
from magnetar.wire.bookkeeper.codes import BookieCode
from magnetar.wire.bookkeeper.entry import EntryCodec

from lib.tests import v3_client

StartBookie = Callable[..., Awaitable[RunningBookie]]
CODEC = EntryCodec(1, "CRC32C")
KEY = CODEC.master_key
ENTRIES = CODEC.encode_many(0, -1, 0, [b"first", b"second", b"third"])


class Client:
    """Frames out, frames in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.transaction_id = 100

    async def frame(self) -> bytes:
        (size,) = struct.unpack(">I", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def ask(self, body: v3.RequestBody, operation: v3.Operation, priority: int = 0) -> v3.Response:
        self.transaction_id += 1
        request = v3.Request(operation=operation, transaction_id=self.transaction_id, priority=priority, body=body)
        self.writer.write(v3_client.encode_request(request))
        response = v3_client.decode_response(await self.frame())
        assert (response.operation, response.transaction_id) == (operation, self.transaction_id)
        return response

    async def add_v3(self, entry_id: int, entry: bytes, key: bytes = KEY, *, recovery: bool = False) -> BookieCode:
        body = v3.AddRequest(ledger_id=1, entry_id=entry_id, master_key=key, entry=entry, recovery=recovery)
        response = await self.ask(body, v3.Operation.ADD_ENTRY)
        assert (response.ledger_id, response.entry_id) == (1, entry_id)
        return response.code


@contextlib.asynccontextmanager
async def connect(running: RunningBookie) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def add_frame(entry: bytes, flags: int = 0, key: bytes = KEY) -> bytes:
    return struct.pack(">II", 24 + len(entry), 2 << 24 | 1 << 16 | flags) + key + entry


async def test_version_2_add_and_read(start: StartBookie) -> None:
    running = await start(serve_tcp=True)
    async with connect(running) as client:
        for chunk in [b"".join(map(add_frame, ENTRIES))[i : i + 7] for i in range(0, 3 * 100, 7)]:
            client.writer.write(chunk)
            await asyncio.sleep(0)
        answers = [await client.frame() for _ in range(3)]
        assert answers == [struct.pack(">Iiqq", 2 << 24 | 1 << 16, 0, 1, i) for i in range(3)]
        client.writer.write(struct.pack(">IIqq", 20, 2 << 24 | 2 << 16, 1, 1))
        assert await client.frame() == struct.pack(">Iiqq", 2 << 24 | 2 << 16, 0, 1, 1) + ENTRIES[1]
        client.writer.write(struct.pack(">IIqq", 20, 2 << 24 | 2 << 16, 1, -1))
        assert await client.frame() == struct.pack(">Iiqq", 2 << 24 | 2 << 16, 0, 1, -1) + ENTRIES[2]
        client.writer.write(struct.pack(">IIqq", 20, 2 << 24 | 2 << 16, 1, 3))
        assert await client.frame() == struct.pack(">Iiqq", 2 << 24 | 2 << 16, 2, 1, 3)
        client.writer.write(struct.pack(">IIqq", 20, 2 << 24 | 2 << 16, 77, 0))
        assert await client.frame() == struct.pack(">Iiqq", 2 << 24 | 2 << 16, 1, 77, 0)


async def test_an_add_is_answered_without_another_turn(start: StartBookie) -> None:
    running = await start(serve_tcp=True)
    assert running.server is not None
    outboxes = running.server.outboxes
    waiting: list[int] = []
    running.parts.journals.when_told(lambda: waiting.append(len(outboxes)))
    async with connect(running) as client:
        client.writer.write(add_frame(ENTRIES[0]))
        assert await client.frame() == struct.pack(">Iiqq", 2 << 24 | 1 << 16, 0, 1, 0)
    assert waiting == [0], "the journal has told of the add, and its answer was sent"


async def test_version_2_fencing_and_batch_read(start: StartBookie) -> None:
    running = await start(serve_tcp=True)
    async with connect(running) as client:
        client.writer.write(b"".join(map(add_frame, ENTRIES)))
        for _ in range(3):
            await client.frame()
        client.writer.write(v2.encode_batch_read_request(1, 0, 42, 10, 1_000_000))
        expected = struct.pack(">Iiqqq", 2 << 24 | 7 << 16, 0, 1, 0, 42)
        assert await client.frame() == expected + b"".join(struct.pack(">I", len(e)) + e for e in ENTRIES)
        client.writer.write(v2.encode_batch_read_request(1, 9, 43, 10, 1_000_000))
        assert await client.frame() == struct.pack(">Iiqqq", 2 << 24 | 7 << 16, 2, 1, 9, 43)
        client.writer.write(struct.pack(">IIqq", 40, 2 << 24 | 2 << 16 | 1, 1, -1) + b"x" * 20)
        assert await client.frame() == struct.pack(">Iiqq", 2 << 24 | 2 << 16, 102, 1, -1)
        client.writer.write(struct.pack(">IIqq", 40, 2 << 24 | 2 << 16 | 1, 1, -1) + KEY)
        assert await client.frame() == struct.pack(">Iiqq", 2 << 24 | 2 << 16, 0, 1, -1) + ENTRIES[2]
        client.writer.write(add_frame(ENTRIES[2]))
        assert await client.frame() == struct.pack(">Iiqq", 2 << 24 | 1 << 16, 104, 1, 2)
        client.writer.write(add_frame(ENTRIES[2], flags=6))
        assert await client.frame() == struct.pack(">Iiqq", 2 << 24 | 1 << 16, 0, 1, 2)


async def test_version_2_authentication_is_answered_as_disabled(start: StartBookie) -> None:
    running = await start(serve_tcp=True)
    async with connect(running) as client:
        client.writer.write(v2.encode_auth("some", b"token"))
        answer = await client.frame()
        (auth,) = v2.decode_responses(answer, [0, len(answer)])
        assert isinstance(auth, v2.Auth)
        assert (auth.plugin_name, auth.payload) == ("AuthDisabledPlugin", b"")


async def test_version_3_add_read_fence(start: StartBookie) -> None:
    running = await start(serve_tcp=True)
    async with connect(running) as client:
        for entry_id, entry in enumerate(ENTRIES):
            assert await client.add_v3(entry_id, entry) is BookieCode.EOK
        assert await client.add_v3(7, ENTRIES[0]) is BookieCode.EBADREQ
        assert await client.add_v3(0, b"short") is BookieCode.EBADREQ
        assert await client.add_v3(0, ENTRIES[0], key=b"other") is BookieCode.EUA
        read = await client.ask(v3.ReadRequest(ledger_id=1, entry_id=1), v3.Operation.READ_ENTRY)
        assert (read.code, read.entry_id, read.body, read.last_add_confirmed) == (BookieCode.EOK, 1, ENTRIES[1], -1)
        fenced = await client.ask(
            v3.ReadRequest(ledger_id=1, entry_id=-1, master_key=KEY, fence=True), v3.Operation.READ_ENTRY
        )
        assert (fenced.code, fenced.body) == (BookieCode.EOK, ENTRIES[2])
        assert await client.add_v3(3, CODEC.encode_many(3, 2, 0, [b"x"])[0]) is BookieCode.EFENCED
        assert await client.add_v3(3, CODEC.encode_many(3, 2, 0, [b"x"])[0], recovery=True) is BookieCode.EOK
        missing = await client.ask(v3.ReadRequest(ledger_id=9, entry_id=0), v3.Operation.READ_ENTRY)
        assert (missing.code, missing.ledger_id) == (BookieCode.ENOLEDGER, 9)


async def test_version_3_the_rest(start: StartBookie) -> None:
    running = await start(serve_tcp=True)
    packet = CODEC.encode_explicit_lac(2)
    async with connect(running) as client:
        for entry_id, entry in enumerate(ENTRIES):
            await client.add_v3(entry_id, entry)
        write = v3.WriteLacRequest(ledger_id=1, last_add_confirmed=2, master_key=KEY, packet=packet)
        assert (await client.ask(write, v3.Operation.WRITE_LAC)).code is BookieCode.EOK
        lac = await client.ask(v3.ReadLacRequest(ledger_id=1), v3.Operation.READ_LAC)
        assert (lac.lac_packet, lac.body) == (packet, ENTRIES[2])
        info = await client.ask(v3.GetBookieInfoRequest(requested=3), v3.Operation.GET_BOOKIE_INFO)
        assert (info.total_disk_capacity_bytes or 0) > (info.free_disk_space_bytes or 0) > 0
        force = await client.ask(v3.ForceLedgerRequest(ledger_id=1), v3.Operation.FORCE_LEDGER)
        assert (force.code, force.ledger_id) == (BookieCode.EOK, 1)
        listed = await client.ask(v3.ListEntriesRequest(ledger_id=1), v3.Operation.GET_LIST_OF_ENTRIES_OF_LEDGER)
        assert decode_availability(listed.body) == [0, 1, 2]
        auth = await client.ask(v3.AuthRequest(plugin_name="p", payload=b"x"), v3.Operation.AUTH)
        assert auth.plugin_name == "AuthDisabledPlugin"
        tls = await client.ask(v3.StartTlsRequest(), v3.Operation.START_TLS)
        assert tls.code is BookieCode.EBADREQ
        piggyback = v3.ReadRequest(ledger_id=1, entry_id=-1, piggyback=True)
        assert (await client.ask(piggyback, v3.Operation.READ_ENTRY)).code is BookieCode.EBADREQ


async def test_tls_is_not_offered_and_the_connection_goes_on(start: StartBookie) -> None:
    running = await start(serve_tcp=True)
    async with connect(running) as client:
        response = await client.ask(v3.StartTlsRequest(), v3.Operation.START_TLS)
        assert response.code is BookieCode.EBADREQ
        client.writer.write(add_frame(ENTRIES[0]))
        assert await client.frame() == struct.pack(">Iiqq", 2 << 24 | 1 << 16, 0, 1, 0)


async def test_version_3_long_poll(start: StartBookie) -> None:
    running = await start(serve_tcp=True)
    async with connect(running) as writer, connect(running) as reader:
        await writer.add_v3(0, ENTRIES[0])
        poll = v3.ReadRequest(ledger_id=1, entry_id=-1, piggyback=True, previous_lac=-1, timeout_ms=10_000)
        waiting = asyncio.ensure_future(reader.ask(poll, v3.Operation.READ_ENTRY))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        await writer.add_v3(1, CODEC.encode_many(1, 0, 5, [b"second"])[0])
        told = await waiting
        assert (told.code, told.last_add_confirmed, told.entry_id, told.body) == (BookieCode.EOK, 0, 0, ENTRIES[0])
        at_once = await reader.ask(poll, v3.Operation.READ_ENTRY)
        assert at_once.last_add_confirmed == 0
        short = v3.ReadRequest(ledger_id=1, entry_id=-1, piggyback=True, previous_lac=0, timeout_ms=10)
        late = await reader.ask(short, v3.Operation.READ_ENTRY)
        assert (late.code, late.last_add_confirmed, late.body) == (BookieCode.EOK, 0, b"")
        wrong = v3.ReadRequest(ledger_id=1, entry_id=0, piggyback=True, previous_lac=0, timeout_ms=10)
        assert (await reader.ask(wrong, v3.Operation.READ_ENTRY)).code is BookieCode.EBADREQ


async def test_version_3_long_poll_waits_for_what_the_client_lacks(start: StartBookie) -> None:
    running = await start(serve_tcp=True)
    async with connect(running) as writer, connect(running) as reader:
        await writer.add_v3(0, ENTRIES[0])
        poll = v3.ReadRequest(ledger_id=1, entry_id=-1, piggyback=True, previous_lac=1, timeout_ms=10_000)
        waiting = asyncio.ensure_future(reader.ask(poll, v3.Operation.READ_ENTRY))
        await asyncio.sleep(0.02)
        for entry_id in (1, 2, 3):
            assert not waiting.done()
            await writer.add_v3(entry_id, CODEC.encode_many(entry_id, entry_id - 1, 5, [b"next"])[0])
            await asyncio.sleep(0.02)
        told = await waiting
        assert (told.code, told.last_add_confirmed, told.entry_id) == (BookieCode.EOK, 2, 2)


async def test_negative_ids_are_refused(start: StartBookie) -> None:
    # In the journal the second one of these would be the fence of the ledger.
    running = await start(serve_tcp=True)
    for ledger_id, entry_id in ((-1, 5), (1, -0x2000), (-0xEEFD, -0xEEFD)):
        entry = struct.pack(">qqqq", ledger_id, entry_id, -1, 0) + b"digest and payload"
        async with connect(running) as client:
            add = v3.AddRequest(ledger_id=ledger_id, entry_id=entry_id, master_key=KEY, entry=entry)
            assert (await client.ask(add, v3.Operation.ADD_ENTRY)).code is BookieCode.EBADREQ
            fence = v3.ReadRequest(ledger_id=-abs(ledger_id), entry_id=0, fence=True, master_key=KEY)
            assert (await client.ask(fence, v3.Operation.READ_ENTRY)).code is BookieCode.EBADREQ
            client.writer.write(add_frame(entry))
            with pytest.raises(asyncio.IncompleteReadError):
                await client.frame()
    assert running.bookie.counters.add.success.count == 0


async def test_a_connection_may_begin_in_version_3_and_go_on_in_version_2(start: StartBookie) -> None:
    running = await start(serve_tcp=True)
    async with connect(running) as client:
        assert await client.add_v3(0, ENTRIES[0]) is BookieCode.EOK
        client.writer.write(add_frame(ENTRIES[1]) + add_frame(ENTRIES[2]))
        assert await client.frame() == struct.pack(">Iiqq", 2 << 24 | 1 << 16, 0, 1, 1)
        assert await client.frame() == struct.pack(">Iiqq", 2 << 24 | 1 << 16, 0, 1, 2)
        request = v3.Request(operation=v3.Operation.READ_LAC, transaction_id=1, body=v3.ReadLacRequest(ledger_id=1))
        client.writer.write(v3_client.encode_request(request))
        with contextlib.suppress(ConnectionError):
            assert await client.reader.read() == b""


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n" * 10, struct.pack(">I", 5) + b"\xff" * 5, struct.pack(">II", 4, 2 << 24 | 9 << 16)],
)
async def test_garbage_ends_the_connection(start: StartBookie, garbage: bytes) -> None:
    running = await start(serve_tcp=True)
    async with connect(running) as client:
        client.writer.write(garbage)
        with contextlib.suppress(ConnectionError):
            assert await client.reader.read() == b""


@pytest.mark.slow
async def test_a_client_that_pushes_without_reading_gets_everything_in_the_end(start: StartBookie) -> None:
    running = await start(serve_tcp=True)
    count, size = 400, 100_000
    entries = CODEC.encode_many(0, -1, 0, [b"x" * size] * count)
    async with connect(running) as client:
        writer = client.writer
        for entry in entries:
            writer.write(add_frame(entry))
        await writer.drain()
        codes = {struct.unpack_from(">i", await client.frame(), 4)[0] for _ in range(count)}
        assert codes == {0}
        for entry_id in range(count):
            writer.write(v2.encode_read_request(1, entry_id))
        found = {}
        for _ in range(count):
            answer = await client.frame()
            found[struct.unpack_from(">q", answer, 16)[0]] = answer[24:]
        assert found == dict(enumerate(entries))


async def test_what_stays_in_memory_for_each_ledger_is_small(start: StartBookie) -> None:
    # With 5 MB for each ledger a few hundred of them filled a bookie's memory, and again when it started.
    running = await start(serve_tcp=True)
    long_key = KEY + b"k"
    requests: list[tuple[v3.Operation, v3.RequestBody]] = [
        (v3.Operation.READ_ENTRY, v3.ReadRequest(ledger_id=1, entry_id=0, fence=True, master_key=long_key)),
        (v3.Operation.ADD_ENTRY, v3.AddRequest(ledger_id=1, entry_id=0, master_key=long_key, entry=ENTRIES[0])),
        *(
            (
                v3.Operation.WRITE_LAC,
                v3.WriteLacRequest(ledger_id=1, last_add_confirmed=2, master_key=key, packet=packet),
            )
            for key, packet in ((long_key, bytes(20)), (KEY, bytes(15)), (KEY, bytes(37)))
        ),
    ]
    async with connect(running) as client:
        for operation, body in requests:
            assert (await client.ask(body, operation)).code is BookieCode.EBADREQ
        assert running.parts.states.known(1) is None
        largest = v3.WriteLacRequest(ledger_id=1, last_add_confirmed=2, master_key=KEY, packet=bytes(36))
        assert (await client.ask(largest, v3.Operation.WRITE_LAC)).code is BookieCode.EOK


async def test_long_polls_end_with_their_connection_and_leave_room_for_others(
    start: StartBookie, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests_v3, "LONG_POLLS_OF_ONE_MAX", 3)
    running = await start(serve_tcp=True)
    poll = v3.ReadRequest(ledger_id=1, entry_id=-1, piggyback=True, previous_lac=7, timeout_ms=300_000)
    async with connect(running) as other, connect(running) as reader:
        await other.add_v3(0, ENTRIES[0])
        state = running.parts.states.known(1)
        assert state is not None
        async with connect(running) as many:
            for transaction_id in range(5):
                request = v3.Request(operation=v3.Operation.READ_ENTRY, transaction_id=transaction_id, body=poll)
                many.writer.write(v3_client.encode_request(request))
            for _ in range(2):  # Those beyond what one may have.
                assert v3_client.decode_response(await many.frame()).last_add_confirmed == -1
            await until(lambda: len(state.lac_waiters) == 3)
            waiting = asyncio.ensure_future(reader.ask(poll, v3.Operation.READ_ENTRY))
            await until(lambda: len(state.lac_waiters) == 4)
        await until(lambda: len(state.lac_waiters) == 1)
        assert not waiting.done()
        await other.add_v3(1, CODEC.encode_many(1, 8, 5, [b"second"])[0])
        assert (await waiting).last_add_confirmed == 8


async def test_long_polls_that_ended_leave_their_places(start: StartBookie, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_v3, "LONG_POLLS_MAX", 2)
    running = await start(serve_tcp=True)

    def poll(timeout_ms: int) -> v3.ReadRequest:
        return v3.ReadRequest(ledger_id=1, entry_id=-1, piggyback=True, previous_lac=7, timeout_ms=timeout_ms)

    async with connect(running) as other, connect(running) as reader:
        await other.add_v3(0, ENTRIES[0])
        state = running.parts.states.known(1)
        assert state is not None
        for _ in range(5):
            await reader.ask(poll(1), v3.Operation.READ_ENTRY)
        waiting = asyncio.ensure_future(reader.ask(poll(300_000), v3.Operation.READ_ENTRY))
        await until(lambda: len(state.lac_waiters) == 1 or waiting.done())
        assert not waiting.done()
        await other.add_v3(1, CODEC.encode_many(1, 8, 5, [b"second"])[0])
        assert (await waiting).last_add_confirmed == 8
