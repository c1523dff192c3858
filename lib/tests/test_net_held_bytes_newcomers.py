"""While much is held, peers that have not moved much yet bring more at a pace."""

from __future__ import annotations

import asyncio
import math

import pytest
from magnetar.core.limits import KIB, MIB
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
from magnetar.sim.virtual_time import VirtualTimeLoop

from lib.tests.held_bytes_world import (
    BYTES_MAX,
    READ_BYTES,
    Peer,
    connected,
    press,
)

new_event_loop = VirtualTimeLoop


@pytest.fixture
async def held() -> HeldBytes:
    return HeldBytes(asyncio.get_running_loop(), BYTES_MAX)


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


async def test_a_new_consumer_that_holds_what_it_is_sent_is_read(held: HeldBytes) -> None:
    """As test_a_new_consumer_that_is_sent_much_is_read, which leaves the consumer's held_bytes 0."""
    press(held)
    await asyncio.sleep(0)
    consumer = Peer(held, "consumer")
    consumer.held_bytes = READ_BYTES
    held.note(consumer, READ_BYTES)
    assert not consumer.paused


async def test_who_waits_in_line_is_paused_once(held: HeldBytes) -> None:
    """Each time is counted as one that is throttled."""
    press(held)
    await asyncio.sleep(0)
    connection = connected(held)
    connection.hold_incoming(READ_BYTES)
    Peer(held, "known", UNANSWERED_BYTES + 1).bring(5 * MIB)
    assert connection.pauses == 1


async def test_in_a_burst_the_line_is_cut_before_those_of_whom_nothing_is_known(held: HeldBytes) -> None:
    much = press(held)
    await asyncio.sleep(0)
    line = [Peer(held, str(index)) for index in range(140)]
    for each in line:
        each.bring()
    known = Peer(held, "known", UNANSWERED_BYTES + 1)
    known.bring(BYTES_MAX // 2)
    for _ in range(3):
        await asyncio.sleep(0)
    await asyncio.sleep(held.cuts * CUT_PACE_SECONDS)
    assert all(each.aborted for each in line)
    assert [much.aborted, known.aborted] == [True, False]


async def test_the_pace_is_slower_at_once_when_somebody_is_cut(held: HeldBytes) -> None:
    """And not one look later."""
    much = press(held)
    other = Peer(held, "other", UNANSWERED_BYTES + 1)
    much.piece_bytes = other.piece_bytes = 0
    other.bring(BYTES_MAX // 2 + 1)
    while not held.cuts:
        await asyncio.sleep(CUT_PACE_SECONDS)
    assert [much.aborted, other.aborted].count(True) == 1
    seconds = 0.9 * LOOK_SECONDS
    assert await let_in(held, seconds) == pytest.approx(seconds / (2 * NEWCOMER_PACE_SECONDS), rel=0.15)


async def test_who_has_just_had_its_turn_is_not_cut_for_having_waited(held: HeldBytes) -> None:
    press(held)
    await asyncio.sleep(0)
    for index in range(80):
        before = Peer(held, f"/10.0.0.9:{index}")
        before.piece_bytes = 0
        before.bring(66 * KIB)
        await asyncio.sleep(0)
    honest = Peer(held, "/10.0.0.9:80")
    honest.piece_bytes = 0
    honest.bring()
    while honest.paused:  # Over a look.
        await asyncio.sleep(NEWCOMER_PACE_SECONDS)
    for _ in range(8):
        honest.moved_bytes += READ_BYTES
        honest.bring()
        await asyncio.sleep(0.002)
    flood: list[Peer] = []
    while not held.cuts:
        flood.append(Peer(held, f"/10.6.6.6:{len(flood)}"))
        flood[-1].piece_bytes = 0
        flood[-1].bring()
        if not len(flood) % 16:
            await asyncio.sleep(0)
    await asyncio.sleep(held.cuts * CUT_PACE_SECONDS)
    assert any(each.aborted for each in flood)
    assert not honest.aborted


async def test_all_addresses_of_an_ipv6_network_are_one_line(held: HeldBytes) -> None:
    """One machine may have them all."""
    press(held)
    await asyncio.sleep(0)
    for index in range(60):
        Peer(held, f"/2001:db8::1:{index:x}:7000").bring(READ_BYTES // 8)
        if not index % 10:
            await asyncio.sleep(0)
    newcomer = Peer(held, "/2001:db8:0:1::1:7000")
    newcomer.bring()
    assert newcomer.paused
    await asyncio.sleep(3 * NEWCOMER_PACE_SECONDS)
    assert not newcomer.paused
