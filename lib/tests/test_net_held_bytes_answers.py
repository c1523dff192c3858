"""While much is held, peers that have not taken much yet are given large answers at a pace."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import pairwise

import pytest
from magnetar.core.limits import MIB
from magnetar.net.held_bytes import (
    NEWCOMER_BYTES,
    NEWCOMER_PACE_SECONDS,
    UNANSWERED_BYTES,
    HeldBytes,
)
from magnetar.net.requests import SENT_IN_TURN_BYTES, ConnectionRequests, Place, ServerRequests
from magnetar.sim.virtual_time import VirtualTimeLoop

from lib.tests.held_bytes_world import (
    BYTES_MAX,
    HoldingTransport,
    Peer,
    connected,
    press,
)

new_event_loop = VirtualTimeLoop


@pytest.fixture
async def held() -> HeldBytes:
    return HeldBytes(asyncio.get_running_loop(), BYTES_MAX)


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


async def test_who_has_moved_some_and_may_have_read_nothing_is_answered_at_a_pace(held: HeldBytes) -> None:
    press(held)
    await asyncio.sleep(0)
    assert held.paces_answer(Peer(held, "some", NEWCOMER_BYTES + 1), lambda: None)
    assert held.paces_answer(Peer(held, "just not", UNANSWERED_BYTES), lambda: None)
    assert not held.paces_answer(Peer(held, "enough", UNANSWERED_BYTES + 1), lambda: None)


async def test_who_ends_before_its_answer_is_not_called(held: HeldBytes) -> None:
    press(held)
    await asyncio.sleep(0)
    peer = Peer(held, "ends")
    called: list[int] = []
    assert held.paces_answer(peer, lambda: called.append(1))
    held.forget(peer)
    await asyncio.sleep(3 * NEWCOMER_PACE_SECONDS)
    assert not called


async def test_hosts_take_turns_with_answers(held: HeldBytes) -> None:
    press(held)
    await asyncio.sleep(0)
    called: list[str] = []
    for address in (*(f"/10.0.0.1:{port}" for port in range(10)), "/10.0.0.2:1"):
        assert held.paces_answer(Peer(held, address), partial(called.append, address))
    await asyncio.sleep(2.5 * NEWCOMER_PACE_SECONDS)
    assert called == ["/10.0.0.1:0", "/10.0.0.2:1"]


async def test_who_waits_to_bring_more_and_for_an_answer_has_both(held: HeldBytes) -> None:
    press(held)
    await asyncio.sleep(0)
    peer = Peer(held, "both")
    peer.bring()
    assert peer.paused
    called: list[int] = []
    assert held.paces_answer(peer, lambda: called.append(1))
    await asyncio.sleep(2.5 * NEWCOMER_PACE_SECONDS)
    assert (peer.paused, called) == (False, [1])


async def test_who_catches_up_while_it_waits_in_line_has_not_had_its_turn(held: HeldBytes) -> None:
    press(held)
    await asyncio.sleep(0)
    for index in range(100):
        assert held.paces_answer(Peer(held, f"/10.0.0.1:{index}"), lambda: None)
    connection = connected(held)
    connection.peer_address = "/10.0.0.1:100"
    requests = ConnectionRequests(connection, ServerRequests())
    answered: list[float] = []

    async def answer(_: Place) -> None:
        answered.append(asyncio.get_running_loop().time())

    began_seconds = asyncio.get_running_loop().time()
    answering = asyncio.create_task(requests.answer_large(answer))
    for _ in range(10):
        await asyncio.sleep(0.01)
        requests.caught_up()
    await answering
    assert answered[0] - began_seconds >= 100 * NEWCOMER_PACE_SECONDS
