"""What all connections of a server hold is bounded: who is asked to hold less, and who is cut."""

from __future__ import annotations

import asyncio
import logging

import pytest
from magnetar.core.limits import KIB, MIB
from magnetar.net.held_bytes import (
    BROUGHT_IN_TURN_BYTES_MAX,
    BURST_SHARE,
    CUT_IN_TURN_MAX,
    CUT_PACE_SECONDS,
    LOOK_SECONDS,
    LOOKED_AT_IN_TURN_MAX,
    MOVING_BYTES,
    NOTED_BYTES,
    PAUSED_FOR_ALL,
    READ_AGAIN_IN_TURN_MAX,
    UNANSWERED_BYTES,
    URGENT_SHARE,
    HeldBytes,
)
from magnetar.net.refused_connections import LimitKind, RefusedConnections
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop

BYTES_MAX = 10 * NOTED_BYTES
SIZE = NOTED_BYTES + 1


KNOWN_BYTES = UNANSWERED_BYTES + 1
"""Who has moved so much is no newcomer."""


class FakeConnection:
    """Holds and moves what a test says."""

    def __init__(self, held: HeldBytes, name: str, held_bytes: int = SIZE) -> None:
        self._held = held
        self.peer_address = name
        self.held_bytes = held_bytes
        self.incoming_bytes = 0
        self.moved_bytes = KNOWN_BYTES
        self.narrowed = False
        self.aborted = False
        self.paused: set[str] = set()
        held.note(self, held_bytes)

    def narrow(self) -> bool:
        self.narrowed = True
        return True

    def pause_reading(self, reason: str) -> None:
        self.paused.add(reason)

    def resume_reading(self, reason: str) -> None:
        self.paused.discard(reason)

    def abort(self) -> None:
        self.aborted = True
        self._held.forget(self)


@pytest.fixture
async def held() -> HeldBytes:
    return HeldBytes(asyncio.get_running_loop(), BYTES_MAX)


async def looks(count: int = 1) -> None:
    await asyncio.sleep((count + 0.5) * LOOK_SECONDS)


def cut(connections: list[FakeConnection]) -> list[str]:
    return [each.peer_address for each in connections if each.aborted]


async def test_below_the_bound_nobody_is_cut(held: HeldBytes) -> None:
    connections = [FakeConnection(held, str(index)) for index in range(9)]
    await looks(5)
    assert cut(connections) == []
    assert held.held_bytes == 9 * SIZE
    assert all(each.narrowed for each in connections), "but above its half they hold less"


async def test_little_is_no_longer_counted(held: HeldBytes) -> None:
    connection = FakeConnection(held, "a")
    connection.held_bytes = NOTED_BYTES
    await looks()
    assert (held.held_bytes, held.holders) == (0, 0)


async def test_those_that_move_least_are_cut(held: HeldBytes, caplog: pytest.LogCaptureFixture) -> None:
    held.refused_connections = refused = RefusedConnections()
    connections = [FakeConnection(held, str(index)) for index in range(14)]
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            for index, each in enumerate(connections):
                each.moved_bytes += index * MOVING_BYTES
            await asyncio.sleep(LOOK_SECONDS)
    assert cut(connections) == [str(index) for index in range(7)]
    assert held.held_bytes <= 0.75 * BYTES_MAX
    assert held.cuts == refused.counts[LimitKind.MEMORY] == 7
    assert refused.total == 0, "they were not refused"
    assert len(caplog.records) == 1


async def test_who_holds_most_is_cut_among_those_that_do_not_move(held: HeldBytes) -> None:
    small = [FakeConnection(held, f"small {index}") for index in range(7)]
    large = FakeConnection(held, "large", 4 * SIZE)
    await looks(2)
    assert cut([*small, large]) == ["large"]


async def all_cut(count: int) -> None:
    """As long as it takes."""
    await asyncio.sleep(count * CUT_PACE_SECONDS)


async def a_cut_begins(held: HeldBytes) -> None:
    """By the next look."""
    await asyncio.sleep(LOOK_SECONDS)
    while not held.cuts:
        await asyncio.sleep(0)


async def test_a_burst_does_not_wait_for_the_next_look(held: HeldBytes) -> None:
    connections = [FakeConnection(held, str(index)) for index in range(40)]
    assert held.held_bytes == 40 * SIZE
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert held.held_bytes <= 0.75 * BYTES_MAX
    await all_cut(33)
    assert len(cut(connections)) == 33
    again = [FakeConnection(held, str(index)) for index in range(40)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert held.held_bytes <= 0.75 * BYTES_MAX, "nor does the next one"
    assert held.cuts >= 66
    await all_cut(66)
    assert len(cut(again)) >= 33


async def test_who_moves_is_not_cut_in_a_burst_of_others(held: HeldBytes) -> None:
    """Of those that have only come nothing is known."""
    moving = [FakeConnection(held, f"moving {index}") for index in range(4)]
    still = FakeConnection(held, "still")
    for each in moving:
        each.moved_bytes += MOVING_BYTES
    await asyncio.sleep(1.01 * LOOK_SECONDS)
    many = [FakeConnection(held, f"many {index}") for index in range(40)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await all_cut(held.cuts)
    assert still.aborted
    assert len(cut(many)) == held.cuts - 1
    assert cut(moving) == []


async def test_a_burst_that_is_sent_in_its_turn_cuts_nobody(held: HeldBytes) -> None:
    connections = [FakeConnection(held, str(index)) for index in range(40)]
    for each in connections:
        each.held_bytes = 0
    await looks(2)
    assert cut(connections) == []
    assert held.held_bytes == 0


async def test_who_leaves_is_forgotten(held: HeldBytes) -> None:
    connection = FakeConnection(held, "a")
    held.forget(connection)
    held.forget(connection)
    assert (held.held_bytes, held.holders) == (0, 0)
    await looks(2)


class NotingConnection(FakeConnection):
    """Sends what waits in its outbox when it is asked, as connections do."""

    looks = 0

    @property
    def moved_bytes(self) -> int:
        self.looks += 1
        self._held.note(self, SIZE)
        return KNOWN_BYTES

    @moved_bytes.setter
    def moved_bytes(self, _: int) -> None:
        pass


async def test_a_look_that_has_connections_send_begins_no_other_one(held: HeldBytes) -> None:
    connections = [NotingConnection(held, str(index)) for index in range(3)]
    for each in connections:
        each.looks = 0
    await looks(10)
    assert [each.looks for each in connections] == [10, 10, 10]


async def test_who_brings_more_in_a_burst_is_read_no_further_until_it_is_over(held: HeldBytes) -> None:
    """The loop reads all of them in one turn: what each has sent so far is in its socket's buffer."""
    connections = [FakeConnection(held, str(index)) for index in range(16)]
    assert [each.paused for each in connections] == 14 * [set()] + 2 * [{PAUSED_FOR_ALL}]
    held.note(connections[3], 2 * SIZE)
    assert connections[3].paused == {PAUSED_FOR_ALL}
    for each in connections:
        each.held_bytes = NOTED_BYTES
    await asyncio.sleep(0)
    assert [each.paused for each in connections] == 16 * [set()]


async def test_very_many_are_cut_in_turns_and_none_of_them_is_read_meanwhile(held: HeldBytes) -> None:
    count = 10 * CUT_IN_TURN_MAX + 7
    connections = [FakeConnection(held, str(index)) for index in range(count)]
    while not cut(connections):
        await asyncio.sleep(0)
    assert len(cut(connections)) == CUT_IN_TURN_MAX
    turns = 0
    while sum(not each.aborted for each in connections) * SIZE > URGENT_SHARE * BYTES_MAX:
        before = len(cut(connections))
        await asyncio.sleep(0)
        assert len(cut(connections)) - before <= CUT_IN_TURN_MAX
        turns += 1
    assert 8 <= turns <= 9
    assert held.held_bytes <= 0.75 * BYTES_MAX
    assert held.cuts == count - 7
    await all_cut(count)
    assert [each.paused for each in connections if not each.aborted] == 7 * [set()]
    assert len(cut(connections)) == held.cuts


async def test_the_last_of_those_that_are_cut_go_one_after_the_other(held: HeldBytes) -> None:
    """They would come back together. None of them is read meanwhile, and what it holds counts once."""
    connections = [FakeConnection(held, str(index)) for index in range(12)]
    await a_cut_begins(held)
    assert held.cuts == 5
    first = len(cut(connections))
    assert first == 1
    going = [each for each in connections if PAUSED_FOR_ALL in each.paused and not each.aborted]
    assert len(going) == held.cuts - first
    held.note(going[0], 2 * SIZE)
    assert held.held_bytes <= 0.75 * BYTES_MAX
    await asyncio.sleep(CUT_PACE_SECONDS)
    assert len(cut(connections)) - first <= 1
    await all_cut(5)
    assert len(cut(connections)) == held.cuts == 5


async def test_what_those_that_are_cut_are_sent_meanwhile_counts(held: HeldBytes) -> None:
    """Consumers have permits for much. Hundreds of them that wait to be cut would be sent gigabytes."""
    connections = [FakeConnection(held, str(index)) for index in range(12)]
    await a_cut_begins(held)
    going = [each for each in connections if PAUSED_FOR_ALL in each.paused and not each.aborted]
    assert len(going) == 4
    for each in going:
        each.narrowed = False
        held.note(each, 2 * SIZE)
    assert all(each.narrowed for each in going)
    assert not any(each.aborted for each in going)
    for each in going:
        held.note(each, 4 * SIZE)
    stays = next(each for each in connections if not each.paused)
    held.note(stays, 2 * SIZE)
    assert PAUSED_FOR_ALL in stays.paused, "too much is held together"
    await asyncio.sleep(CUT_PACE_SECONDS)
    await asyncio.sleep(0)
    assert len(cut(connections)) == held.cuts == 5, "there is no time for a pace"
    await asyncio.sleep(0)
    assert not stays.paused


async def test_who_ends_before_it_is_cut_is_not_cut_again(held: HeldBytes) -> None:
    connections = [FakeConnection(held, str(index)) for index in range(12)]
    await a_cut_begins(held)
    going = next(each for each in connections if PAUSED_FOR_ALL in each.paused and not each.aborted)
    held.forget(going)
    await all_cut(5)
    assert not going.aborted
    assert len(cut(connections)) == 4


class LookedAtConnection(FakeConnection):
    """Notes after how many looks the first turn ends in which any such connection is looked at."""

    looks = 0
    after_first_turn: list[int]

    @property
    def moved_bytes(self) -> int:
        if not LookedAtConnection.looks:
            asyncio.get_running_loop().call_soon(lambda: self.after_first_turn.append(LookedAtConnection.looks))
        LookedAtConnection.looks += 1
        return KNOWN_BYTES

    @moved_bytes.setter
    def moved_bytes(self, _: int) -> None:
        pass


async def test_a_look_at_very_many_takes_turns() -> None:
    held, count = HeldBytes(asyncio.get_running_loop()), LOOKED_AT_IN_TURN_MAX + 5
    connections: list[FakeConnection] = [LookedAtConnection(held, str(index)) for index in range(count)]
    await asyncio.sleep(0)
    LookedAtConnection.looks, LookedAtConnection.after_first_turn = 0, []
    await looks()
    assert LookedAtConnection.after_first_turn == [LOOKED_AT_IN_TURN_MAX]
    assert LookedAtConnection.looks == count
    assert not cut(connections)


async def test_a_second_burst_while_connections_are_cut_waits_for_their_end(held: HeldBytes) -> None:
    """Else what is not cut yet would come on top of the bound."""
    many = [FakeConnection(held, f"many {index}") for index in range(10 * CUT_IN_TURN_MAX)]
    while not cut(many):
        await asyncio.sleep(0)
    assert held.held_bytes < BYTES_MAX
    newcomer = FakeConnection(held, "newcomer")
    assert newcomer.paused
    await all_cut(held.cuts)
    assert not newcomer.paused or newcomer.aborted


async def test_what_is_brought_in_one_turn_is_bounded_and_all_have_their_turn() -> None:
    """A loop tells of what it has read of thousands of connections, one after the other, before anything else runs."""
    held = HeldBytes(asyncio.get_running_loop(), 1024 * MIB)
    count = 4 * READ_AGAIN_IN_TURN_MAX
    connections = [FakeConnection(held, str(index)) for index in range(count)]
    brought_bytes = [0]

    def read_all() -> None:
        """What a loop reads in a turn: of each that is not paused, as much as it may."""
        for each in connections:
            if not each.paused:
                each.held_bytes += 256 * KIB
                brought_bytes[-1] += 256 * KIB
                held.note(each, each.held_bytes)

    for _ in range(40):
        await asyncio.sleep(0)
        brought_bytes.append(0)
        read_all()
    # One that holds nothing yet is read once; then all are known.
    assert max(brought_bytes[2:]) <= BROUGHT_IN_TURN_BYTES_MAX + 256 * KIB
    sizes = {each.held_bytes // (256 * KIB) for each in connections}
    assert min(sizes) >= 5
    assert max(sizes) - min(sizes) <= 2
    for _ in range(10):
        await asyncio.sleep(0)
    assert not any(each.paused for each in connections)
    assert not cut(connections)


async def test_who_moved_long_ago_and_no_more_is_cut_first(held: HeldBytes) -> None:
    """What counts is what it moved between the last two looks."""
    once = FakeConnection(held, "once")
    once.moved_bytes += 100 * MOVING_BYTES
    others = [FakeConnection(held, str(index)) for index in range(8)]
    await looks()
    others += [FakeConnection(held, f"later {index}") for index in range(4)]
    for each in others:
        each.moved_bytes += MOVING_BYTES
    await looks()
    assert once.aborted
    assert held.cuts == 6


class EndingConnection(FakeConnection):
    """Asked what it holds, it sends that, and ends of it."""

    ends = False

    @property
    def held_bytes(self) -> int:
        if self.ends:
            self._held.forget(self)
            return 0
        return SIZE

    @held_bytes.setter
    def held_bytes(self, _: int) -> None:
        pass


async def test_who_ends_when_it_is_asked_what_it_holds_is_forgotten_once(held: HeldBytes) -> None:
    ending, other = EndingConnection(held, "ending"), FakeConnection(held, "other")
    ending.ends = True
    await looks()
    assert (held.held_bytes, held.holders) == (SIZE, 1)
    assert not other.aborted


async def test_what_those_held_that_end_before_they_are_cut_counts_no_more(held: HeldBytes) -> None:
    connections = [FakeConnection(held, str(index)) for index in range(12)]
    await a_cut_begins(held)
    going = [each for each in connections if PAUSED_FOR_ALL in each.paused and not each.aborted]
    for each in going:
        held.note(each, 20 * SIZE)
        held.forget(each)
    assert not FakeConnection(held, "later").paused


async def test_who_brought_much_in_a_turn_goes_on_though_no_look_has_decided_who_is_cut() -> None:
    held = HeldBytes(asyncio.get_running_loop(), 16 * MIB)
    connections = [FakeConnection(held, str(index), 3 * MIB) for index in range(7)]
    assert URGENT_SHARE * 16 * MIB < held.held_bytes < BURST_SHARE * 16 * MIB
    assert any(each.paused for each in connections)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not any(each.paused for each in connections)


async def test_below_half_of_the_bound_nobody_has_to_hold_less(held: HeldBytes) -> None:
    connections = [FakeConnection(held, str(index)) for index in range(4)]
    await looks(2)
    assert not any(each.narrowed for each in connections)


async def test_a_burst_most_of_which_is_sent_in_its_turn_cuts_nobody_of_whom_nothing_is_known(held: HeldBytes) -> None:
    """What is left is above the bound, and no burst any more: there is time for a look."""
    connections = [FakeConnection(held, str(index)) for index in range(40)]
    for each in connections[12:]:
        each.held_bytes = 0
    for _ in range(3):
        await asyncio.sleep(0)
    assert held.held_bytes == 12 * SIZE
    assert held.cuts == 0
    await looks()
    assert held.cuts == 5


async def test_a_second_cut_begins_no_second_line_of_those_that_are_cut(held: HeldBytes) -> None:
    connections = [FakeConnection(held, str(index)) for index in range(12)]
    await a_cut_begins(held)
    connections += [FakeConnection(held, f"later {index}") for index in range(5)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert held.cuts == 10
    await asyncio.sleep(1.5 * CUT_PACE_SECONDS)
    for _ in range(2):
        before = len(cut(connections))
        await asyncio.sleep(CUT_PACE_SECONDS)
        assert len(cut(connections)) - before == 1


async def test_those_that_wait_to_be_cut_have_nobody_else_cut(held: HeldBytes) -> None:
    """What they hold is given back soon."""
    connections = [FakeConnection(held, str(index)) for index in range(12)]
    await a_cut_begins(held)
    for each in connections:
        if PAUSED_FOR_ALL in each.paused and not each.aborted:
            held.note(each, 4 * SIZE)
    stays = next(each for each in connections if not each.paused)
    stays.held_bytes = 2 * SIZE
    held.note(stays, stays.held_bytes)
    for _ in range(3):
        await asyncio.sleep(0)
    assert held.cuts == 5
