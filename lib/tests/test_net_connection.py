"""What a connection does about a peer that takes little, on virtual time and without sockets."""

from __future__ import annotations

import asyncio

import pytest
from magnetar.net.connection import (
    BEHIND_BYTES,
    CAUGHT_UP_BYTES,
    CLOSE_SECONDS_MAX,
    OUTBOX_HIGH_WATER_BYTES,
    OUTBOX_LOW_WATER_BYTES,
    Connection,
)
from magnetar.net.held_bytes import HeldBytes
from magnetar.net.requests import REQUESTS_BYTES_MAX, ConnectionRequests, RequestsInAll
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop


class StuckTransport(asyncio.Transport):
    """Sends nothing of what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.unsent_bytes = 0
        self.limits: list[tuple[int | None, int | None]] = []
        self.closing = False
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.unsent_bytes += len(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits.append((high, low))

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.aborted = True


class Mute:
    def connection_made(self) -> None:
        pass

    def data_received(self, data: bytes) -> None:
        raise AssertionError(data)

    def writable_changed(self, writable: bool) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        pass


@pytest.fixture
async def transport() -> StuckTransport:
    return StuckTransport()


@pytest.fixture
async def connection(transport: StuckTransport) -> Connection:
    loop = asyncio.get_running_loop()
    made = Connection(loop, lambda _: Mute(), held=HeldBytes(loop))
    made.connection_made(transport)
    return made


async def test_who_does_not_take_the_last_words_is_cut(connection: Connection, transport: StuckTransport) -> None:
    connection.write(b"the end")
    connection.close()
    await asyncio.sleep(CLOSE_SECONDS_MAX - 1)
    assert (transport.closing, transport.aborted) == (True, False)
    await asyncio.sleep(2)
    assert transport.aborted


async def test_who_has_caught_up_has_a_large_outbox_again(connection: Connection, transport: StuckTransport) -> None:
    connection.write(bytes(BEHIND_BYTES + 1))
    connection.narrow()
    connection.pause_writing()
    transport.unsent_bytes = CAUGHT_UP_BYTES
    connection.resume_writing()
    large = (OUTBOX_HIGH_WATER_BYTES, OUTBOX_LOW_WATER_BYTES)
    assert transport.limits == [large, (BEHIND_BYTES, CAUGHT_UP_BYTES), large]
    connection.abort()


async def test_a_few_large_requests_are_as_much_as_many_small_ones(connection: Connection) -> None:
    requests = ConnectionRequests(connection, RequestsInAll())
    full = []
    for take, size_bytes in ((requests.begin, REQUESTS_BYTES_MAX), (requests.begin, 1), (requests.end, 1)):
        take(size_bytes)
        full.append(requests.full)
    assert full == [False, True, False], "one of any size is taken"


async def test_an_answer_that_waits_for_who_has_gone_is_not_made(
    connection: Connection, transport: StuckTransport
) -> None:
    requests = ConnectionRequests(connection, RequestsInAll())
    made: list[str] = []

    async def work() -> None:
        made.append("an answer")

    connection.write(bytes(BEHIND_BYTES + 1))
    connection.narrow()
    connection.pause_writing()
    answering = asyncio.ensure_future(requests.answer_large(work))
    await asyncio.sleep(1)
    assert not answering.done()
    transport.abort()
    requests.close()
    async with asyncio.timeout(10):
        await answering
    assert not made


async def test_work_that_fails_holds_up_nobody_who_waits_for_a_turn() -> None:
    in_all = RequestsInAll()
    done: list[str] = []
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    mistake = ValueError("a mistake of ours")

    def fail() -> None:
        raise mistake

    for work in (lambda: done.append("first"), fail, lambda: done.append("second")):
        in_all.in_turn(work)
    for _ in range(3):
        await asyncio.sleep(0)
    in_all.in_turn(lambda: done.append("later"))
    await asyncio.sleep(0)
    assert done == ["first", "second", "later"]
    assert told == [mistake]
    assert not in_all.crowded
