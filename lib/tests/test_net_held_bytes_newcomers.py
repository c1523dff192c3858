"""While much is held, peers that have not moved much yet bring and are answered more at a pace."""

from __future__ import annotations

import asyncio
import math
from itertools import pairwise

import pytest
from magnetar.core.limits import KIB, MIB
from magnetar.net.connection import Connection
from magnetar.net.held_bytes import (
    CUT_PACE_SECONDS,
    LOOK_SECONDS,
    NEWCOMER_BYTES,
    NEWCOMER_PACE_SECONDS,
    QUICKER_AGAIN,
    SLOW_PACE_SECONDS,
    UNANSWERED_BYTES,
    HeldBytes,
)
from magnetar.net.requests import SENT_IN_TURN_BYTES, ConnectionRequests, Place, ServerRequests
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop

BYTES_MAX = 64 * MIB
READ_BYTES = 256 * KIB


class TakingTransport(asyncio.Transport):
    """The peer takes everything at once."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False


class Deaf:
    """A handler to which nothing matters."""

    def connection_made(self) -> None:
        pass

    def data_received(self, data: bytes) -> None:
        pass

    def writable_changed(self, writable: bool) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        pass


class Peer:
    """Brings a piece whenever it is read."""

    def __init__(self, held: HeldBytes, name: str, moved_bytes: int = 0) -> None:
        self._held = held
        self.peer_address = name
        self.held_bytes = 0
        self.incoming_bytes = 0
        self.moved_bytes = moved_bytes
        self._reasons: set[str] = set()
        self.aborted = False
        self.pieces = 0
        self.piece_bytes = READ_BYTES
        """What it brings whenever it is read again."""

    @property
    def paused(self) -> bool:
        return bool(self._reasons)

    def bring(self, size_bytes: int = READ_BYTES) -> None:
        self.pieces += 1
        self.held_bytes += size_bytes
        self.incoming_bytes = self.held_bytes
        self._held.note(self, self.held_bytes)

    def narrow(self) -> bool:
        return True

    def pause_reading(self, reason: str) -> None:
        self._reasons.add(reason)

    def resume_reading(self, reason: str) -> None:
        self._reasons.remove(reason)
        if not self.paused:
            self.moved_bytes += self.piece_bytes
            self.bring(self.piece_bytes)

    def abort(self) -> None:
        self.aborted = True
        self._held.forget(self)


@pytest.fixture
async def held() -> HeldBytes:
    return HeldBytes(asyncio.get_running_loop(), BYTES_MAX)


def press(held: HeldBytes) -> Peer:
    """Somebody holds half of all, and a little more."""
    peer = Peer(held, "much", UNANSWERED_BYTES + 1)
    peer.bring(BYTES_MAX // 2 + 1)
    return peer


async def test_while_little_is_held_newcomers_are_read_as_others_are(held: HeldBytes) -> None:
    newcomer = Peer(held, "newcomer")
    newcomer.bring()
    assert not newcomer.paused


async def test_newcomers_bring_more_one_after_the_other(held: HeldBytes) -> None:
    press(held)
    await asyncio.sleep(0)
    newcomers = [Peer(held, str(index)) for index in range(5)]
    for each in newcomers:
        each.bring()
    assert all(each.paused for each in newcomers)
    for turn in range(1, 6):
        await asyncio.sleep(NEWCOMER_PACE_SECONDS)
        assert sum(each.pieces - 1 for each in newcomers) <= turn
    await asyncio.sleep(NEWCOMER_PACE_SECONDS / 2)
    assert [each.pieces for each in newcomers] == 5 * [2], "each has its turn, in order"


async def test_a_newcomer_waits_for_no_line_of_another_host(held: HeldBytes) -> None:
    """A thousand that only come to be held make those of their own address wait."""
    press(held)
    await asyncio.sleep(0)
    for index in range(60):
        Peer(held, f"/10.0.0.1:{index}").bring(READ_BYTES // 8)
        if not index % 10:
            await asyncio.sleep(0)
    newcomer = Peer(held, "/10.0.0.2:1")
    newcomer.bring()
    assert newcomer.paused
    await asyncio.sleep(3 * NEWCOMER_PACE_SECONDS)
    assert not newcomer.paused


async def test_the_longest_line_is_cut_first(held: HeldBytes) -> None:
    """Whoever came last of another host is not the first to go."""
    much = press(held)
    await asyncio.sleep(LOOK_SECONDS - NEWCOMER_PACE_SECONDS / 2)
    line = []
    for index in range(140):
        line.append(Peer(held, f"/10.0.0.1:{index}"))
        line[-1].bring(READ_BYTES - 100 * index)
    last = Peer(held, "/10.0.0.2:1")
    last.bring()
    assert held.held_bytes > BYTES_MAX
    much.moved_bytes += MIB
    await asyncio.sleep(NEWCOMER_PACE_SECONDS)
    await asyncio.sleep(held.cuts * CUT_PACE_SECONDS)
    assert sum(each.aborted for each in line) == held.cuts > 10
    assert not last.aborted


async def let_in(held: HeldBytes, seconds: float) -> int:
    """How many of a long line have their turn in so long."""
    line = []
    for index in range(int(2 * seconds / NEWCOMER_PACE_SECONDS)):
        line.append(Peer(held, str(index)))
        line[-1].piece_bytes = 1
        line[-1].bring(READ_BYTES // 2)
        if not index % 10:
            await asyncio.sleep(0)  # More is not read in one turn.
    await asyncio.sleep(seconds)
    for each in line:
        held.forget(each)
    return sum(each.pieces - 1 for each in line)


async def have_one_cut(held: HeldBytes) -> None:
    """One of two that hold more than all may."""
    cuts = held.cuts
    two = [Peer(held, str(index), UNANSWERED_BYTES + 1) for index in range(2)]
    for each in two:
        each.bring(BYTES_MAX // 2 + 1)
    while held.cuts == cuts:
        await asyncio.sleep(LOOK_SECONDS)
    for each in two:
        held.forget(each)


async def test_newcomers_go_on_slower_while_connections_are_cut_and_quicker_by_and_by(held: HeldBytes) -> None:
    for pace_seconds in (NEWCOMER_PACE_SECONDS, 2 * NEWCOMER_PACE_SECONDS, SLOW_PACE_SECONDS, SLOW_PACE_SECONDS):
        much = press(held)
        await asyncio.sleep(0)
        assert await let_in(held, 0.9 * LOOK_SECONDS) == pytest.approx(0.9 * LOOK_SECONDS / pace_seconds, rel=0.15)
        held.forget(much)
        await have_one_cut(held)
    press(held)
    looks = math.log(SLOW_PACE_SECONDS / NEWCOMER_PACE_SECONDS) / math.log(QUICKER_AGAIN)
    await asyncio.sleep(looks / 2 * LOOK_SECONDS)
    assert 20 < await let_in(held, LOOK_SECONDS) < 40
    await asyncio.sleep((looks + 2) * LOOK_SECONDS)
    assert await let_in(held, LOOK_SECONDS) == pytest.approx(LOOK_SECONDS / NEWCOMER_PACE_SECONDS, rel=0.05)


async def test_the_pace_gets_quicker_while_nothing_is_held(held: HeldBytes) -> None:
    """Whoever comes hours later would else find it as slow."""
    for _ in range(3):
        await have_one_cut(held)
    looks = math.log(SLOW_PACE_SECONDS / NEWCOMER_PACE_SECONDS) / math.log(QUICKER_AGAIN)
    await asyncio.sleep((looks + 2) * LOOK_SECONDS)
    press(held)
    await asyncio.sleep(0)
    seconds = 0.9 * LOOK_SECONDS
    assert await let_in(held, seconds) == pytest.approx(seconds / NEWCOMER_PACE_SECONDS, rel=0.15)


async def test_a_newcomer_waits_once(held: HeldBytes) -> None:
    """Else those that bring a byte at each turn stand in line for ever, and a large message takes several turns."""
    press(held)
    await asyncio.sleep(0)
    slow = [Peer(held, str(index)) for index in range(50)]
    for each in slow:
        each.bring()
        each.piece_bytes = 1
    await asyncio.sleep(60 * NEWCOMER_PACE_SECONDS)
    assert [each.pieces for each in slow] == 50 * [2]
    for each in slow:
        each.bring(1)
    assert not any(each.paused for each in slow)
    newcomer = Peer(held, "newcomer")
    newcomer.bring()
    newcomer.piece_bytes = READ_BYTES // 4
    assert newcomer.paused
    await asyncio.sleep(2 * NEWCOMER_PACE_SECONDS)
    assert not newcomer.paused


async def test_who_has_waited_in_line_for_longest_is_cut_last(held: HeldBytes) -> None:
    """It does not move because of us. Who had its turn and brings nothing goes first, though it holds less."""
    still = Peer(held, "had its turn")
    still.piece_bytes = 1
    still.bring(READ_BYTES // 2)
    much = press(held)
    await asyncio.sleep(LOOK_SECONDS - 2 * NEWCOMER_PACE_SECONDS)
    assert (still.pieces, still.paused) == (2, False)
    line = []
    for index in range(140):
        line.append(Peer(held, str(index)))
        line[-1].bring(READ_BYTES - 100 * index)
        if not index % 10:
            await asyncio.sleep(0)  # More is not read in one turn.
    assert held.held_bytes > BYTES_MAX
    much.moved_bytes += MIB
    while not held.cuts:
        await asyncio.sleep(CUT_PACE_SECONDS)
    await asyncio.sleep(held.cuts * CUT_PACE_SECONDS)
    assert still.aborted
    aborted = [each.aborted for each in line]
    assert aborted == sorted(aborted), "the line's end"
    assert held.cuts - 1 == sum(aborted) > 10


async def test_whoever_comes_back_waits_again(held: HeldBytes) -> None:
    press(held)
    await asyncio.sleep(0)
    peer = Peer(held, "again")
    peer.bring()
    await asyncio.sleep(2 * NEWCOMER_PACE_SECONDS)
    assert not peer.paused
    held.forget(peer)
    peer.held_bytes = 0
    peer.bring()
    assert peer.paused


async def test_who_has_moved_something_is_not_held_up_by_newcomers(held: HeldBytes) -> None:
    press(held)
    await asyncio.sleep(0)
    for index in range(100):
        Peer(held, str(index)).bring(READ_BYTES // 8)
    await asyncio.sleep(0)
    known = Peer(held, "known", NEWCOMER_BYTES + 1)
    known.bring()
    assert not known.paused


async def test_a_new_consumer_that_is_sent_much_is_read(held: HeldBytes) -> None:
    """Its permits and acknowledgements are small."""
    press(held)
    await asyncio.sleep(0)
    consumer = Peer(held, "consumer")
    held.note(consumer, READ_BYTES)
    assert not consumer.paused


async def test_newcomers_go_on_at_once_when_less_is_held(held: HeldBytes) -> None:
    much = press(held)
    await asyncio.sleep(0)
    newcomers = [Peer(held, str(index)) for index in range(40)]
    for each in newcomers:
        each.bring()
    held.forget(much)
    await asyncio.sleep(2 * NEWCOMER_PACE_SECONDS)
    assert not any(each.paused for each in newcomers)


async def test_a_newcomer_that_leaves_is_not_read_again(held: HeldBytes) -> None:
    press(held)
    await asyncio.sleep(0)
    newcomer = Peer(held, "newcomer")
    newcomer.bring()
    held.forget(newcomer)
    await asyncio.sleep(5 * NEWCOMER_PACE_SECONDS)
    assert newcomer.pieces == 1


def connected(held: HeldBytes, transport: asyncio.Transport | None = None) -> Connection:
    connection = Connection(asyncio.get_running_loop(), lambda _: Deaf(), held=held)
    connection.connection_made(transport or TakingTransport())
    return connection


async def test_who_waits_in_line_is_one_that_is_throttled(held: HeldBytes) -> None:
    """The line may be longer than the keep-alive waits for an answer, which is not read before."""
    press(held)
    await asyncio.sleep(0)
    connection = connected(held)
    connection.hold_incoming(READ_BYTES)
    assert connection.throttled
    assert connection.pauses == 1
    await asyncio.sleep(2 * NEWCOMER_PACE_SECONDS)
    assert not connection.reading_paused


async def test_large_answers_to_newcomers_are_made_at_a_pace(held: HeldBytes) -> None:
    in_all = ServerRequests()
    answered = []

    async def answer(place: Place) -> None:
        await place.take()
        answered.append(asyncio.get_running_loop().time())

    async def ask() -> None:
        await ConnectionRequests(connected(held), in_all).answer_large(answer)

    await ask()
    assert len(answered) == 1, "little is held"
    press(held)
    await asyncio.sleep(0)
    await asyncio.gather(*(ask() for _ in range(10)))
    paces = [later - earlier for earlier, later in pairwise(answered[1:])]
    assert min(paces) >= 0.99 * NEWCOMER_PACE_SECONDS


async def test_who_has_taken_much_is_answered_at_once(held: HeldBytes) -> None:
    press(held)
    await asyncio.sleep(0)
    connection = connected(held)
    connection.write(bytes(UNANSWERED_BYTES + 1))
    await asyncio.sleep(0)
    assert not connection.paces_answer(lambda: None)
    assert connected(held).paces_answer(lambda: None)


async def test_a_newcomer_that_leaves_is_answered_no_more(held: HeldBytes) -> None:
    press(held)
    await asyncio.sleep(0)
    connection = connected(held)
    requests = ConnectionRequests(connection, ServerRequests())
    begun = []

    async def answer(place: Place) -> None:
        begun.append(place)

    answering = asyncio.ensure_future(requests.answer_large(answer))
    await asyncio.sleep(0)
    connection.connection_lost(None)
    requests.close()
    await asyncio.wait_for(answering, timeout=1.0)
    assert not begun


class HoldingTransport(TakingTransport):
    """The peer takes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.unsent_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.unsent_bytes += len(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes


async def test_small_answers_to_a_newcomer_take_one_turn(held: HeldBytes) -> None:
    """A client asks for the schema of each of a thousand topics, one after the other."""
    press(held)
    await asyncio.sleep(0)
    connection = connected(held)
    requests = ConnectionRequests(connection, ServerRequests())
    answered = []

    async def answer(place: Place) -> None:
        await place.take()
        connection.write(bytes(SENT_IN_TURN_BYTES // 100))
        answered.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0)

    for _ in range(300):
        await requests.answer_large(answer)
    turns = sum(later - earlier > NEWCOMER_PACE_SECONDS / 2 for earlier, later in pairwise(answered))
    assert turns == 2, "one in a hundred"


async def test_who_falls_behind_while_it_waits_in_line_is_answered_when_it_has_caught_up(held: HeldBytes) -> None:
    press(held)
    await asyncio.sleep(0)
    transport = HoldingTransport()
    connection = connected(held, transport)
    requests = ConnectionRequests(connection, ServerRequests())
    answered = []

    async def answer(place: Place) -> None:
        answered.append(place)

    answering = asyncio.ensure_future(requests.answer_large(answer))
    await asyncio.sleep(0)
    connection.write(bytes(MIB))  # To a consumer.
    await asyncio.sleep(0)
    connection.pause_writing()
    await asyncio.sleep(3 * NEWCOMER_PACE_SECONDS)
    assert not answered
    transport.unsent_bytes = 0
    connection.resume_writing()
    requests.caught_up()
    await asyncio.wait_for(answering, timeout=1.0)
    assert len(answered) == 1
