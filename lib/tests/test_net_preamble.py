"""How many connections may be at their preamble, and which of them have to go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from magnetar.net import preamble
from magnetar.net.descriptors import HANDSHAKES_MIN
from magnetar.net.preamble import CUT_IN_TURN_MAX, LOOK_SECONDS, PendingPreambles
from magnetar.net.refused_connections import LimitKind, RefusedConnections
from magnetar.sim.virtual_time import VirtualTimeLoop


class Came:
    """A connection that tells its number when it is cut."""

    def __init__(self, number: int, cut: list[int]) -> None:
        self.peer_address = f"/10.0.0.9:{number}"
        self._number = number
        self._cut = cut

    def abort(self) -> None:
        self._cut.append(self._number)


class Arriving:
    """Some that have sent nothing yet."""

    def __init__(self, left: Callable[[], int] | None = None) -> None:
        self.pending = PendingPreambles(left)
        self.pending.refused_connections = RefusedConnections(call_later=lambda *_: None)
        self.cut: list[int] = []
        self.came: list[Came] = []

    def enter(self, count: int) -> None:
        for _ in range(count):
            self.came.append(Came(len(self.came), self.cut))
            self.pending.enter(self.came[-1])

    def leave(self, *numbers: int) -> None:
        for number in numbers:
            self.pending.leave(self.came[number])

    @property
    def counted(self) -> int:
        assert self.pending.refused_connections is not None
        return self.pending.refused_connections.counts[LimitKind.PREAMBLES]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.Runner]:
    monkeypatch.setattr(preamble, "handshakes_max", lambda: 100)
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        yield runner


def test_the_oldest_go_when_they_were_looked_at_twice(run: asyncio.Runner) -> None:
    async def test() -> None:
        arriving = Arriving()
        arriving.enter(150)
        await asyncio.sleep(1.5 * LOOK_SECONDS)
        assert not arriving.cut, "the loop may not have read them"
        arriving.enter(30)
        await asyncio.sleep(LOOK_SECONDS)
        assert arriving.cut == list(range(80))
        assert arriving.counted == 80
        await asyncio.sleep(60)
        assert len(arriving.pending) == 100

    run.run(test())


def test_a_herd_whose_preambles_come_stays(run: asyncio.Runner) -> None:
    """However long the loop takes for each of them."""

    async def test() -> None:
        arriving = Arriving()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        arriving.enter(1_000)
        loop.now_seconds += 30  # One long turn, in which the kernel has them all.
        await asyncio.sleep(0)
        arriving.enter(1_000)
        await asyncio.sleep(0)
        arriving.leave(*range(2_000))
        await asyncio.sleep(60)
        assert not arriving.cut

    run.run(test())


def test_those_that_may_stay_are_not_cut_for_being_old(run: asyncio.Runner) -> None:
    async def test() -> None:
        arriving = Arriving()
        arriving.enter(100)
        await asyncio.sleep(20)
        arriving.leave(0, 0)
        arriving.enter(1)
        await asyncio.sleep(20)
        assert not arriving.cut

    run.run(test())


def test_some_are_cut_in_each_turn(run: asyncio.Runner) -> None:
    async def test() -> None:
        arriving = Arriving()
        arriving.enter(100 + 10 * CUT_IN_TURN_MAX)
        turns = []
        await asyncio.sleep(LOOK_SECONDS)
        while len(arriving.pending) > 100:
            before = len(arriving.cut)
            await asyncio.sleep(LOOK_SECONDS if not before else 0)
            turns.append(len(arriving.cut) - before)
        assert max(turns) <= 2 * CUT_IN_TURN_MAX
        assert sum(turns) == 10 * CUT_IN_TURN_MAX

    run.run(test())


def test_no_more_begin_than_may_come_to_stand(run: asyncio.Runner) -> None:
    """At the server's bound of connections, too, some may begin, to be told so."""
    left = 50

    async def test() -> None:
        nonlocal left
        arriving = Arriving(lambda: left)
        arriving.enter(60)
        assert arriving.cut == list(range(10))
        left = -1
        arriving.leave(*range(10, 40))
        arriving.enter(HANDSHAKES_MIN)
        assert arriving.cut == list(range(10)) + list(range(40, 60))
        assert arriving.counted == 30

    run.run(test())
