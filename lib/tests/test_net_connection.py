"""What a connection does about a peer that takes little, on virtual time and without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
from magnetar.core.errors import Misuse
from magnetar.net.connection import (
    ANSWERS_BEHIND_BYTES_MAX,
    BEHIND_BYTES,
    CAUGHT_UP_BYTES,
    CLOSE_SECONDS_MAX,
    OUTBOX_HIGH_WATER_BYTES,
    OUTBOX_LOW_WATER_BYTES,
    Connection,
)
from magnetar.net.held_bytes import PAUSED_FOR_ALL, HeldBytes
from magnetar.net.places import PATIENT_SECONDS
from magnetar.net.requests import (
    LARGE_ANSWERS_AT_ONCE,
    READINGS_IN_ALL,
    READINGS_LATE_MAX,
    READINGS_OF_ONE,
    REQUESTS_BYTES_MAX,
    TURN_SECONDS_MAX,
    ConnectionRequests,
    Place,
    Readings,
    ServerRequests,
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
        self.reading = True

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

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


async def test_who_says_no_end_is_cut_though_nothing_was_left_to_take(
    connection: Connection, transport: StuckTransport
) -> None:
    """Such as asyncio's TLS, over which a peer hung up while it was not read."""
    connection.close()
    await asyncio.sleep(CLOSE_SECONDS_MAX - 1)
    assert (transport.closing, transport.aborted) == (True, False)
    await asyncio.sleep(2)
    assert transport.aborted


async def test_a_connection_that_has_ended_is_cut_no_more(connection: Connection, transport: StuckTransport) -> None:
    connection.close()
    connection.connection_lost(None)
    await asyncio.sleep(2 * CLOSE_SECONDS_MAX)
    assert not transport.aborted


class Closing(Mute):
    """A handler that gives a peer up which falls behind."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def writable_changed(self, writable: bool) -> None:
        self.connection.close()


class Full(StuckTransport):
    """Its peer is behind as soon as anything is written."""

    connection: Connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        super().write(data)
        self.connection.pause_writing()


async def test_a_handler_may_close_while_the_last_words_are_sent() -> None:
    made = Connection(asyncio.get_running_loop(), Closing)
    transport = Full()
    transport.connection = made
    made.connection_made(transport)
    made.write(b"the end")
    made.close()
    assert (made.closing, transport.closing, transport.unsent_bytes) == (True, True, 7)


async def test_a_handler_that_closes_while_the_last_clear_words_are_sent_is_not_upgraded() -> None:
    made = Connection(asyncio.get_running_loop(), Closing)
    transport = Full()
    transport.connection = made
    made.connection_made(transport)
    made.write(b"the end")
    with pytest.raises(Misuse, match="is not open and cannot be upgraded"):
        made.begin_upgrade()
    assert (made.closing, transport.closing) == (True, True)


async def test_a_peer_that_was_behind_before_tls_is_served_and_read_after_it(
    connection: Connection, transport: StuckTransport
) -> None:
    """The transport below tells TLS that it has caught up, and nobody tells the connection."""
    connection.write(bytes(BEHIND_BYTES + 1))
    connection.flush()
    for _ in range(2):
        connection.write(bytes(ANSWERS_BEHIND_BYTES_MAX))
        connection.flush()
    connection.pause_writing()
    connection.write(b"one more")
    assert (connection.throttled, connection.writable) == (True, False)
    connection.begin_upgrade()
    secured = StuckTransport()
    connection.upgraded(secured)
    assert (connection.throttled, connection.writable, secured.reading) == (False, True, True)


async def test_only_pauses_of_its_own_are_counted(connection: Connection, transport: StuckTransport) -> None:
    """A dead client is told from one that waits by these; where all connections share turns, all wait a little."""
    connection.pause_reading(PAUSED_FOR_ALL)
    assert (connection.pauses, connection.throttled, transport.reading) == (0, False, False)
    connection.pause_reading("full")
    assert (connection.pauses, connection.throttled) == (1, True)
    connection.resume_reading("full")
    assert (connection.throttled, transport.reading) == (False, False)
    connection.resume_reading(PAUSED_FOR_ALL)
    assert (connection.pauses, transport.reading) == (1, True)


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
    requests = ConnectionRequests(connection, ServerRequests())
    full = []
    for take, size_bytes in ((requests.begin, REQUESTS_BYTES_MAX), (requests.begin, 1), (requests.end, 1)):
        take(size_bytes)
        full.append(requests.full)
    assert full == [False, True, False], "one of any size is taken"


async def test_an_answer_that_waits_for_who_has_gone_is_not_made(
    connection: Connection, transport: StuckTransport
) -> None:
    requests = ConnectionRequests(connection, ServerRequests())
    made: list[str] = []

    async def work(place: Place) -> None:
        await place.take()
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


async def all_answered(in_all: ServerRequests) -> None:
    async with asyncio.timeout(10):
        while in_all.count:
            await asyncio.sleep(0)


async def test_requests_that_wait_for_a_large_answer_are_no_tasks_and_keep_their_order(connection: Connection) -> None:
    in_all = ServerRequests()
    requests = ConnectionRequests(connection, in_all)
    made: list[int] = []
    tasks: set[asyncio.Task[None]] = set()

    def ask(number: int, size_bytes: int) -> None:
        async def work(place: Place) -> None:
            await place.take()
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
    in_all = ServerRequests()
    requests = ConnectionRequests(connection, in_all)
    begun: list[int] = []
    requests.begin(1)
    for number in range(3):
        requests.begin_large(10, lambda number=number: begun.append(number))  # type: ignore[misc]
    assert (begun, in_all.count) == ([0], 4)
    requests.close()
    assert (in_all.count, requests.held_bytes) == (2, 11), "who runs ends its request itself"
    made: list[str] = []

    async def work(place: Place) -> None:
        await place.take()
        made.append("an answer")

    await requests.answer_large(work)
    assert (begun, made) == ([0], [])


async def test_work_that_fails_holds_up_nobody_who_waits_for_a_turn() -> None:
    in_all = ServerRequests()
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


async def test_large_answers_from_memory_share_turns(connection: Connection) -> None:
    """However many clients are answered at once."""
    now_seconds = 0.0
    in_all = ServerRequests(lambda: now_seconds)
    made: list[int] = []

    async def work(place: Place) -> None:
        nonlocal now_seconds
        await place.take()
        now_seconds += 0.6 * TURN_SECONDS_MAX
        made.append(1)

    count = 100
    answering = [asyncio.ensure_future(ConnectionRequests(connection, in_all).answer_large(work)) for _ in range(count)]
    while len(made) < count:
        before = len(made)
        await asyncio.sleep(0)
        assert len(made) - before <= 2 + LARGE_ANSWERS_AT_ONCE
    await asyncio.gather(*answering)


async def test_small_answers_of_one_turn_wait_for_no_other_turn(connection: Connection) -> None:
    in_all = ServerRequests(lambda: 0.0)
    made: list[int] = []

    async def work(place: Place) -> None:
        await place.take()
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

    async def work(place: Place) -> None:
        await place.take()
        made.append("answer")

    await ConnectionRequests(connection, ServerRequests()).answer_large(work)
    assert transport.closing
    assert not made


async def test_an_answer_for_who_goes_while_others_are_answered_is_not_made(connection: Connection) -> None:
    in_all = ServerRequests()
    made: list[str] = []
    go = asyncio.Event()

    async def slowly(place: Place) -> None:
        await place.take()
        await go.wait()

    async def work(place: Place) -> None:
        await place.take()
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


class Answers:
    """Large answers, each of a connection of its own, and what they read."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._in_all = ServerRequests()
        self._readings = Readings()
        self.begun: list[str] = []
        """Sources that were asked."""
        self.made: list[str] = []
        self.go = asyncio.Event()
        """Until then sources do not answer."""
        self.tasks: list[asyncio.Task[None]] = []

    def ask(self, source: str, *, slow: bool = True) -> ConnectionRequests:
        """For an answer that is made of what is read from the source."""

        async def read() -> str:
            self.begun.append(source)
            if slow:
                await self.go.wait()
            return source

        async def work(place: Place) -> None:
            self.made.append(await place.read(self._readings, source, read))

        return self.answer(work)

    def answer(self, work: Callable[[Place], Coroutine[Any, Any, None]]) -> ConnectionRequests:
        requests = ConnectionRequests(self._connection, self._in_all)
        self.tasks.append(asyncio.ensure_future(requests.answer_large(work)))
        return requests

    async def all_made(self) -> None:
        self.go.set()
        async with asyncio.timeout(10):
            await asyncio.gather(*self.tasks)


@pytest.fixture
async def answers(connection: Connection) -> Answers:
    return Answers(connection)


async def test_who_waits_for_a_client_keeps_nobody_from_an_answer(answers: Answers) -> None:
    async def wait(place: Place) -> None:
        await answers.go.wait()
        await place.take()
        answers.made.append("later")

    async def work(place: Place) -> None:
        await place.take()
        answers.made.append("at once")

    for _ in range(10 * LARGE_ANSWERS_AT_ONCE):
        answers.answer(wait)
    answers.answer(work)
    await asyncio.sleep(1)
    assert answers.made == ["at once"]
    await answers.all_made()
    assert len(answers.made) == 1 + 10 * LARGE_ANSWERS_AT_ONCE


async def test_who_reads_from_a_slow_source_keeps_nobody_from_an_answer(answers: Answers) -> None:
    """However many do: a few read, the others wait for these."""
    for _ in range(100):
        answers.ask("slow")
    await asyncio.sleep(1)
    answers.ask("quick", slow=False)
    await asyncio.sleep(1)
    assert answers.begun == ["slow"] * READINGS_OF_ONE + ["quick"]
    assert answers.made == ["quick"]
    await answers.all_made()
    assert answers.made == ["quick"] + ["slow"] * 100


async def test_the_place_is_others_while_a_source_is_read(answers: Answers) -> None:
    """Also when it was taken before that."""

    async def read() -> None:
        await answers.go.wait()

    async def work(place: Place, source: int) -> None:
        await place.take()
        await place.read(answers._readings, source, read)
        answers.made.append("slow")

    for source in range(LARGE_ANSWERS_AT_ONCE):
        answers.answer(partial(work, source=source))
    answers.ask("quick", slow=False)
    await asyncio.sleep(1)
    assert answers.made == ["quick"]
    await answers.all_made()


async def test_what_is_read_from_all_sources_is_bounded_until_it_is_written(answers: Answers) -> None:
    count = 10 * READINGS_IN_ALL
    for number in range(count):
        answers.ask(f"slow {number}")
    await asyncio.sleep(PATIENT_SECONDS / 2)
    assert len(answers.begun) == READINGS_IN_ALL
    answers.go.set()
    while len(answers.made) < count:
        assert len(answers.begun) - len(answers.made) <= READINGS_IN_ALL
        await asyncio.sleep(0)
    await answers.all_made()
    assert not answers._readings._of_sources


async def test_sources_that_say_nothing_keep_nobody_for_long_from_the_others(answers: Answers) -> None:
    for number in range(READINGS_IN_ALL):
        answers.ask(f"slow {number}")
    answers.ask("quick", slow=False)
    await asyncio.sleep(2 * PATIENT_SECONDS)
    assert answers.made == ["quick"]
    for number in range(10 * READINGS_LATE_MAX):
        answers.ask(f"slower {number}")
    await asyncio.sleep(20 * PATIENT_SECONDS)
    assert len(answers.begun) - len(answers.made) == READINGS_IN_ALL + READINGS_LATE_MAX
    await answers.all_made()
    assert answers._readings.in_all.late == 0


async def test_nothing_is_read_for_who_went_while_others_did(answers: Answers) -> None:
    gone = [answers.ask("slow") for _ in range(READINGS_OF_ONE + 5)]
    await asyncio.sleep(1)
    for requests in gone:
        requests.close()
    await answers.all_made()
    assert len(answers.begun) == READINGS_OF_ONE
    assert not answers.made, "and nothing is made for who went while it was read"


async def test_a_source_that_fails_is_left_to_the_next(answers: Answers) -> None:
    async def fail() -> None:
        raise ValueError("a source's")

    async def work(place: Place) -> None:
        await place.read(answers._readings, "source", fail)

    for _ in range(3 * READINGS_IN_ALL):
        answers.answer(work)
    async with asyncio.timeout(10):
        results = await asyncio.gather(*answers.tasks, return_exceptions=True)
    assert {str(result) for result in results} == {"a source's"}
    answers.tasks.clear()
    answers.ask("source", slow=False)
    await answers.all_made()
    assert answers.made == ["source"]
