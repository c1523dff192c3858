"""Places for few at a time: bounded, and not kept by those who wait."""

from __future__ import annotations

import asyncio

from magnetar.net.places import PATIENT_SECONDS, Places
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop


class Visitors:
    """Some take places, and wait there for what may never come."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.inside = 0
        self.go = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    def come(self, count: int) -> None:
        self.tasks += [asyncio.create_task(self._visit()) for _ in range(count)]

    async def _visit(self) -> None:
        place = await self.places.take()
        self.inside += 1
        try:
            with place:
                await self.go.wait()
        finally:
            self.inside -= 1
            place.leave()

    async def all_left(self) -> None:
        await asyncio.gather(*self.tasks, return_exceptions=True)
        assert (self.inside, self.places.late) == (0, 0)


async def test_so_many_have_a_place_while_nobody_is_late() -> None:
    visitors = Visitors(Places(3, 4))
    visitors.come(20)
    await asyncio.sleep(PATIENT_SECONDS / 2)
    assert visitors.inside == 3
    visitors.go.set()
    await visitors.all_left()


async def test_who_is_late_gives_his_place_to_others_up_to_a_bound() -> None:
    visitors = Visitors(Places(3, 4))
    visitors.come(20)
    await asyncio.sleep(1.5 * PATIENT_SECONDS)
    assert (visitors.inside, visitors.places.late) == (6, 3)
    await asyncio.sleep(10 * PATIENT_SECONDS)
    assert (visitors.inside, visitors.places.late) == (7, 4)
    visitors.go.set()
    await visitors.all_left()


async def test_all_places_are_there_again_however_their_visits_ended() -> None:
    visitors = Visitors(Places(3, 4))
    visitors.come(10)
    await asyncio.sleep(5 * PATIENT_SECONDS)
    for task in visitors.tasks:
        task.cancel()
    await visitors.all_left()
    again = Visitors(visitors.places)
    again.come(10)
    await asyncio.sleep(PATIENT_SECONDS / 2)
    assert again.inside == 3
    again.go.set()
    await again.all_left()


async def test_who_works_in_his_place_keeps_it() -> None:
    """The time counts only while he waits for somebody."""
    places = Places(1, 1)
    place = await places.take()
    with place:
        await asyncio.sleep(PATIENT_SECONDS / 2)
    waiting = asyncio.create_task(places.take())
    await asyncio.sleep(3 * PATIENT_SECONDS)
    assert not waiting.done()
    place.leave()
    (await waiting).leave()
