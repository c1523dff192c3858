"""How long the watch of a machine's drain waits for a bookie that is away, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest
from magnetar.bookie.process.group_drain import AWAY_SECONDS_MAX, GroupDrains
from magnetar.control.client import BookieControl
from magnetar.control.errors import ControlUnavailable
from magnetar.control.generated import bookie_pb2 as messages
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop


class Bookie:
    """What a watch asks."""

    def __init__(self) -> None:
        self.away = False
        self.left = 10

    async def drain(self) -> messages.Drain:
        if self.away:
            raise ControlUnavailable("nobody answers")
        return messages.Drain(step=messages.DRAIN_STEP_REPLICATE, ledgers_left=self.left)


def watch(*bookies: Bookie) -> AsyncIterator[messages.Drain]:
    drains = GroupDrains(cast("list[BookieControl]", list(bookies)), asyncio.Event())
    return drains.watch_drain(messages.WatchDrainRequest(interval_ms=1000), None)


async def test_a_bookie_may_be_away_for_a_while_again_and_again() -> None:
    """What counts is how long nothing is known, not how long the watch lasts."""
    bookies = Bookie(), Bookie()
    watched = watch(*bookies)
    assert (await anext(watched)).ledgers_left == 20
    for left in (9, 8, 7):
        bookies[1].away = True
        following = asyncio.ensure_future(anext(watched))
        await asyncio.sleep(AWAY_SECONDS_MAX - 5)
        assert not following.done()
        bookies[1].away, bookies[1].left = False, left
        assert (await following).ledgers_left == 10 + left


async def test_a_bookie_that_does_not_come_back_ends_the_watch() -> None:
    loop = asyncio.get_running_loop()
    bookie = Bookie()
    watched = watch(bookie)
    await anext(watched)
    bookie.away = True
    began = loop.time()
    with pytest.raises(ControlUnavailable, match="bookie process 1 of 1 is away: nobody answers"):
        await anext(watched)
    assert AWAY_SECONDS_MAX < loop.time() - began < AWAY_SECONDS_MAX + 3
