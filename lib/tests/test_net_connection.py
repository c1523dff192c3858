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
from magnetar.net.requests import (
    LARGE_ANSWERS_AT_ONCE,
    REQUESTS_BYTES_MAX,
    TURN_SECONDS_MAX,
    ConnectionRequests,
    RequestsInAll,
)
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


FAILING = 2
"""Of the requests below."""


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


async def all_answered(in_all: RequestsInAll) -> None:
    async with asyncio.timeout(10):
        while in_all.count:
            await asyncio.sleep(0)


async def test_requests_that_wait_for_a_large_answer_are_no_tasks_and_keep_their_order(connection: Connection) -> None:
    in_all = RequestsInAll()
    requests = ConnectionRequests(connection, in_all)
    made: list[int] = []
    tasks: set[asyncio.Task[None]] = set()

    def ask(number: int, size_bytes: int) -> None:
        async def work() -> None:
            made.append(number)
            if number == FAILING:
                raise ValueError("of ours")

        async def answer() -> None:
            try:
                await requests.answer_large(work)
            finally:
                requests.end(size_bytes)

        requests.begin_large(size_bytes, lambda: tasks.add(asyncio.ensure_future(answer())))

    connection.write(bytes(BEHIND_BYTES + 1))
    for number in range(5):
        ask(number, 10)
    assert (len(tasks), in_all.count, requests.held_bytes) == (1, 5, 50)
    await all_answered(in_all)
    assert made == [0, 1, 2, 3, 4], "one that fails holds up none"
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(result) for result in results if result is not None] == ["of ours"]
    ask(5, 10)
    await all_answered(in_all)
    assert made[-1] == 5


async def test_the_end_of_a_connection_is_the_end_of_what_waits_for_a_large_answer(connection: Connection) -> None:
    in_all = RequestsInAll()
    requests = ConnectionRequests(connection, in_all)
    begun: list[int] = []
    requests.begin(1)
    for number in range(3):
        requests.begin_large(10, lambda number=number: begun.append(number))  # type: ignore[misc]
    assert (begun, in_all.count) == ([0], 4)
    requests.close()
    assert (in_all.count, requests.held_bytes) == (2, 11), "who runs ends its request itself"
    made: list[str] = []

    async def work() -> None:
        made.append("an answer")

    await requests.answer_large(work)
    assert (begun, made) == ([0], [])


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


async def test_large_answers_from_memory_share_turns(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many clients are answered at once."""
    now_seconds = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now_seconds)
    in_all = RequestsInAll()
    made: list[int] = []

    async def work() -> None:
        nonlocal now_seconds
        now_seconds += 0.6 * TURN_SECONDS_MAX
        made.append(1)

    count = 100
    answering = [asyncio.ensure_future(ConnectionRequests(connection, in_all).answer_large(work)) for _ in range(count)]
    while len(made) < count:
        before = len(made)
        await asyncio.sleep(0)
        assert len(made) - before <= 2 + LARGE_ANSWERS_AT_ONCE
    await asyncio.gather(*answering)


async def test_small_answers_of_one_turn_wait_for_no_other_turn(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.perf_counter", lambda: 0.0)
    in_all = RequestsInAll()
    made: list[int] = []

    async def work() -> None:
        made.append(1)

    assert not in_all.spent()
    for _ in range(3):
        with pytest.raises(StopIteration):
            ConnectionRequests(connection, in_all).answer_large(work).send(None)
    assert len(made) == 3
    await asyncio.sleep(0)
    assert not in_all.spent(), "a turn has its own share"


async def test_large_answers_for_a_connection_that_is_closing_are_not_made(
    connection: Connection, transport: StuckTransport
) -> None:
    """It could not be made to take those before, so that all would be in memory."""
    connection.write(b"the end")
    connection.close()
    made: list[str] = []

    async def work() -> None:
        made.append("answer")

    await ConnectionRequests(connection, RequestsInAll()).answer_large(work)
    assert transport.closing
    assert not made


async def test_an_answer_for_who_goes_while_others_are_answered_is_not_made(connection: Connection) -> None:
    in_all = RequestsInAll()
    made: list[str] = []
    go = asyncio.Event()

    async def slowly() -> None:
        await go.wait()

    async def work() -> None:
        made.append("an answer")

    others = [ConnectionRequests(connection, in_all).answer_large(slowly) for _ in range(LARGE_ANSWERS_AT_ONCE)]
    answering = [asyncio.ensure_future(other) for other in others]
    requests = ConnectionRequests(connection, in_all)
    answering.append(asyncio.ensure_future(requests.answer_large(work)))
    await asyncio.sleep(1)
    requests.close()
    go.set()
    async with asyncio.timeout(10):
        await asyncio.gather(*answering)
    assert not made
