"""What may happen a million times is told in few lines, and all of it."""

from __future__ import annotations

import asyncio

from magnetar.net.throttled_report import BURST_SECONDS, TOLD_SECONDS, ThrottledReport, connections
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop


async def test_a_burst_is_one_line_and_what_follows_another() -> None:
    told: list[int] = []
    seldom = ThrottledReport(told.append)
    for _ in range(20):
        seldom.happened()
    assert told == []
    await asyncio.sleep(BURST_SECONDS)
    assert told == [20]
    seldom.happened(3)
    seldom.happened()
    await asyncio.sleep(TOLD_SECONDS / 2)
    assert told == [20]
    await asyncio.sleep(TOLD_SECONDS)
    assert told == [20, 4], "though nothing more has happened"
    await asyncio.sleep(2 * TOLD_SECONDS)
    seldom.happened()
    await asyncio.sleep(BURST_SECONDS)
    assert told == [20, 4, 1]


def test_one_is_told_in_the_singular() -> None:
    assert connections(1) == "1 connection"
    assert connections(20) == "20 connections"
