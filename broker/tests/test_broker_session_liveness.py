"""Whether a client is there: one that is held back is not asked for what it cannot show."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from magnetar.broker.session.liveness import Liveness
from magnetar.broker.session.server_session import ServerSession
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.core.limits import MIB
from magnetar.net.connection import Connection
from magnetar.net.held_bytes import (
    BROUGHT_IN_TURN_BYTES_MAX,
    HELD_BYTES_MAX,
    NEWCOMER_PACE_SECONDS,
    NOTED_BYTES,
    PAUSED_FOR_ALL,
    HeldBytes,
)
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop

KEEP_ALIVE_SECONDS = 30.0
CHECK_SECONDS = 5.0
HELD = "publish rate"
SENT_BYTES = 5 * MIB


class Client(asyncio.Transport):
    """The other end: it answers each PING at once, but what it says is read only while the broker reads."""

    def __init__(self) -> None:
        super().__init__()
        self.read = True
        self.unread = 0
        self.asked = 0
        self.takes = True
        self.untaken_bytes = 0
        self.answers = True
        self.aborted = False
        self.heard: Callable[[], None] = lambda: None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.asked += 1
        self.untaken_bytes += 0 if self.takes else len(data)
        if self.answers:
            self.unread += 1
            self._give()

    def pause_reading(self) -> None:
        self.read = False

    def resume_reading(self) -> None:
        self.read = True
        # As from the kernel: in a later turn.
        asyncio.get_running_loop().call_soon(self._give)

    def get_write_buffer_size(self) -> int:
        return self.untaken_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def _give(self) -> None:
        while self.read and self.unread:
            self.unread -= 1
            self.heard()


class Mute:
    """Whoever serves the connection."""

    def connection_made(self) -> None:
        pass

    def data_received(self, data: bytes) -> None:
        raise AssertionError(data)

    def writable_changed(self, writable: bool) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        pass


@dataclass
class World:
    """A session's liveness over a real connection."""

    keep_alive_seconds: float = KEEP_ALIVE_SECONDS
    client: Client = field(default_factory=Client)

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        # As those of every server are counted.
        self.held_bytes = HeldBytes(loop)
        self.connection = Connection(loop, lambda _: Mute(), held=self.held_bytes)
        self.connection.connection_made(self.client)
        settings = BrokerSettings(
            keep_alive_seconds=self.keep_alive_seconds, connection_liveness_check_seconds=CHECK_SECONDS
        )
        session: Any = SimpleNamespace(
            connection=self.connection,
            context=SimpleNamespace(settings=settings),
            connecting=False,
            protocol_version=19,
            peer_address="/127.0.0.1:1",
        )
        self.liveness = Liveness(cast(ServerSession, session))
        self.client.heard = self.liveness.received
        self.liveness.start()

    async def fall_behind(self) -> None:
        """The client does not take what it is sent."""
        self.client.takes = False
        self.connection.write(bytes(SENT_BYTES))
        await asyncio.sleep(0)
        assert self.client.untaken_bytes == SENT_BYTES
        self.connection.pause_writing()

    async def held(self, begin_seconds: float, end_seconds: float, until_seconds: float) -> None:
        """Read nothing between these times, counted from the first look."""
        loop = asyncio.get_running_loop()
        begun = loop.time() + KEEP_ALIVE_SECONDS
        loop.call_at(begun + begin_seconds, self.connection.pause_reading, HELD)
        loop.call_at(begun + end_seconds, self.connection.resume_reading, HELD)
        await asyncio.sleep(KEEP_ALIVE_SECONDS + until_seconds)


@pytest.fixture
async def world() -> World:
    return World()


async def test_a_client_that_answers_stays(world: World) -> None:
    await asyncio.sleep(10 * KEEP_ALIVE_SECONDS)
    assert not world.client.aborted


async def test_without_a_keep_alive_nobody_is_asked() -> None:
    world = World(keep_alive_seconds=0)
    world.client.answers = False
    await asyncio.sleep(10 * KEEP_ALIVE_SECONDS)
    assert (world.client.asked, world.client.aborted) == (0, False)


async def test_nothing_is_asked_of_a_client_that_has_gone(world: World) -> None:
    await asyncio.sleep(KEEP_ALIVE_SECONDS + 1)
    world.client.answers = False
    asked = world.client.asked
    assert asked == 1
    world.liveness.stop()
    await asyncio.sleep(3 * KEEP_ALIVE_SECONDS)
    assert world.client.asked == asked
    assert not world.client.aborted


async def test_a_client_that_does_not_answer_goes(world: World) -> None:
    world.client.answers = False
    await asyncio.sleep(2 * KEEP_ALIVE_SECONDS + 1)
    assert world.client.aborted


@pytest.mark.parametrize(
    ("begin_seconds", "end_seconds"),
    [
        pytest.param(-1.0, 29.999_999_9, id="from before one look until just before the next"),
        pytest.param(-1.0, 31.0, id="beyond two looks"),
        pytest.param(-1.0, 1_000.0, id="for long"),
        pytest.param(-1.0, 30.0, id="until the next look itself"),
        pytest.param(-1.0, 60.0, id="until the look after the next one"),
    ],
)
async def test_a_client_that_is_held_back_stays(world: World, begin_seconds: float, end_seconds: float) -> None:
    """A rate of its topic lets its connection be read no further: its answers wait behind what it has published."""
    await world.held(begin_seconds, end_seconds, end_seconds + 3 * KEEP_ALIVE_SECONDS)
    assert not world.client.aborted
    assert world.client.unread == 0


async def test_a_client_that_was_held_back_and_is_dead_goes(world: World) -> None:
    world.client.answers = False
    await world.held(-1.0, 1.0, 2 * KEEP_ALIVE_SECONDS + 1)
    assert world.client.aborted


class Flood:
    """Another client of the same server, which brings more than is read in one turn."""

    peer_address = "/127.0.0.1:2"
    held_bytes = 2 * BROUGHT_IN_TURN_BYTES_MAX
    incoming_bytes = 0
    moved_bytes = 0

    def narrow(self) -> bool:
        return False

    def pause_reading(self, reason: str) -> None:
        pass

    def resume_reading(self, reason: str) -> None:
        pass

    def abort(self) -> None:
        pass


@pytest.mark.parametrize("answers", [False, True])
async def test_a_dead_client_goes_though_all_are_read_in_turns(world: World, *, answers: bool) -> None:
    """Else a server that takes much now and then would keep it, with what it was sent, until TCP gives it up."""
    world.client.answers, world.client.takes = answers, False
    world.connection.write(bytes(2 * NOTED_BYTES))
    await asyncio.sleep(0)
    for _ in range(int(3 * KEEP_ALIVE_SECONDS)):
        flood = Flood()
        world.held_bytes.note(flood, flood.held_bytes)
        assert world.connection.reading_paused
        world.held_bytes.forget(flood)
        await asyncio.sleep(1)
        assert not world.connection.reading_paused
    assert world.client.aborted is not answers


async def test_a_client_that_is_held_back_all_between_two_looks_stays(world: World) -> None:
    """Held and let go of again and again: nothing of what waits before its answer is read at either look."""
    world.client.answers = False  # What is read is not its answer yet, and nothing else comes.
    loop = asyncio.get_running_loop()
    await asyncio.sleep(KEEP_ALIVE_SECONDS + 1)
    loop.call_later(1, world.connection.pause_reading, HELD)
    loop.call_later(2, world.connection.resume_reading, HELD)
    await asyncio.sleep(KEEP_ALIVE_SECONDS)
    assert not world.client.aborted
    world.liveness.received()
    await asyncio.sleep(1)
    assert not world.client.aborted


async def test_who_is_held_back_keeps_its_name(world: World) -> None:
    """Another producer asks for the name; the holder's answer is not read before the rate allows."""
    world.connection.pause_reading(HELD)
    async with asyncio.timeout(CHECK_SECONDS / 2):  # There is nothing to wait for.
        assert await world.liveness.alive()


async def test_who_is_held_back_while_it_is_asked_keeps_its_name(world: World) -> None:
    world.client.read = False  # Its answer is under way.
    asking = asyncio.create_task(world.liveness.alive())
    await asyncio.sleep(CHECK_SECONDS / 2)
    world.connection.pause_reading(HELD)
    async with asyncio.timeout(CHECK_SECONDS):
        assert await asking
    assert not world.client.aborted


async def test_who_does_not_answer_loses_its_name(world: World) -> None:
    world.client.answers = False
    asking = asyncio.create_task(world.liveness.alive())
    await asyncio.sleep(CHECK_SECONDS + 1)
    assert world.client.aborted
    world.liveness.stop()
    async with asyncio.timeout(1):
        assert not await asking


async def test_a_client_that_speaks_but_takes_nothing_goes(world: World) -> None:
    await world.fall_behind()
    await asyncio.sleep(2 * KEEP_ALIVE_SECONDS + 1)
    assert world.client.unread == 0  # It has answered every PING.
    assert world.client.aborted


async def test_a_client_that_takes_little_at_a_time_stays(world: World) -> None:
    await world.fall_behind()
    for _ in range(10):
        await asyncio.sleep(KEEP_ALIVE_SECONDS)
        world.client.untaken_bytes -= 1
    assert not world.connection.writable
    assert not world.client.aborted


async def test_a_client_that_catches_up_between_two_looks_stays(world: World) -> None:
    await world.fall_behind()
    await asyncio.sleep(KEEP_ALIVE_SECONDS + 1)
    world.client.takes, world.client.untaken_bytes = True, 0
    world.connection.resume_writing()
    await asyncio.sleep(3 * KEEP_ALIVE_SECONDS)
    assert not world.client.aborted


async def pause_for_all(world: World, begin_seconds: float, end_seconds: float) -> None:
    """All connections share the turns of the loop, and this one's is not yet."""
    loop = asyncio.get_running_loop()
    loop.call_at(loop.time() + begin_seconds, world.connection.pause_reading, PAUSED_FOR_ALL)
    loop.call_at(loop.time() + end_seconds, world.connection.resume_reading, PAUSED_FOR_ALL)
    await asyncio.sleep(begin_seconds)


@pytest.mark.parametrize(
    ("begin_seconds", "end_seconds"),
    [
        pytest.param(0, 0.01, id="while it is asked"),
        pytest.param(CHECK_SECONDS - 0.5, CHECK_SECONDS + 0.5, id="at the first look"),
        pytest.param(0, 1_000, id="all the while"),
    ],
)
async def test_who_is_dead_loses_its_name_though_all_are_read_in_turns(
    world: World, begin_seconds: float, end_seconds: float
) -> None:
    world.client.answers = False
    pausing = asyncio.create_task(pause_for_all(world, begin_seconds, end_seconds))
    await asyncio.sleep(0.001)
    asking = asyncio.create_task(world.liveness.alive())
    await asyncio.sleep(2 * CHECK_SECONDS + 1)
    assert world.client.aborted
    world.liveness.stop()
    async with asyncio.timeout(1):
        assert not await asking
    await pausing


async def test_who_is_read_late_because_all_are_read_in_turns_keeps_its_name(world: World) -> None:
    pausing = asyncio.create_task(pause_for_all(world, 0, CHECK_SECONDS + 0.5))
    await asyncio.sleep(0.001)
    async with asyncio.timeout(2 * CHECK_SECONDS):
        assert await world.liveness.alive()
    await pausing
    assert not world.client.aborted


class Newcomer(Flood):
    """It has brought the beginning of a message."""

    held_bytes = incoming_bytes = NOTED_BYTES + 1


async def test_who_waits_in_line_with_other_newcomers_keeps_its_name(world: World) -> None:
    """While much is held they are read one by one. Its answer comes behind the message that it brings."""
    holder = Flood()
    holder.held_bytes = HELD_BYTES_MAX // 2 + 1
    world.held_bytes.note(holder, holder.held_bytes)
    await asyncio.sleep(0)
    for _ in range(int(3 * CHECK_SECONDS / NEWCOMER_PACE_SECONDS)):
        newcomer = Newcomer()
        world.held_bytes.note(newcomer, newcomer.held_bytes)
    world.connection.hold_incoming(2 * NOTED_BYTES)
    assert not world.client.read
    async with asyncio.timeout(3 * CHECK_SECONDS):
        assert await world.liveness.alive()
    assert not world.client.aborted
    await asyncio.sleep(4 * CHECK_SECONDS)
    assert world.client.read
