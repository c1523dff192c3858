"""Who waits for a place at which broker, in virtual time and without any."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection

import pytest
from magnetar.proxy.broker_places import LOOKED_AT_MAX, OF_ALL_BROKERS, OF_ONE_BROKER, BrokerPlaces
from magnetar.proxy.discovery import BrokerChoice, KnownBroker, NoBroker
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop


class Listed:
    """Brokers that come and go."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def all(self) -> list[KnownBroker]:
        return [KnownBroker(service_url=name) for name in self.names]

    serving = all

    async def reread(self) -> None:
        """They are as they are."""


class World:
    """Those who ask, and keep their places until they are let go."""

    def __init__(self, *names: str) -> None:
        self.brokers = Listed(*names)
        self.places = BrokerPlaces(BrokerChoice(self.brokers, self.brokers, tls=False))
        self.held: dict[int, tuple[str, asyncio.Event]] = {}
        """Where each has its place, by its number."""
        self.tasks: list[asyncio.Task[None]] = []

    async def ask(self, count: int = 1, tried: Collection[str] = ()) -> None:
        for _ in range(count):
            number = len(self.tasks)
            self.tasks.append(asyncio.ensure_future(self._hold(number, tried)))
        await asyncio.sleep(0.1)

    async def _hold(self, number: int, tried: Collection[str]) -> None:
        async with self.places.place(tried) as url:
            go = asyncio.Event()
            self.held[number] = url, go
            await go.wait()
            del self.held[number]

    @property
    def count(self) -> Counter[str]:
        """Of places that are taken, by broker."""
        return Counter(url for url, _ in self.held.values())

    async def let_go(self, number: int) -> str:
        url, go = self.held[number]
        go.set()
        await asyncio.sleep(0.1)
        return url

    async def end(self) -> None:
        self.brokers.names = self.brokers.names or ("any",)
        while self.held:
            for number in list(self.held):
                await self.let_go(number)
        async with asyncio.timeout(10):
            await asyncio.gather(*self.tasks, return_exceptions=True)
        assert (self.places._count, self.places._asked, self.places._waiting) == (0, {}, {})


async def test_each_broker_is_asked_in_its_turn_and_for_a_few() -> None:
    world = World("a", "b", "c")
    await world.ask(3)
    assert world.count == {"a": 1, "b": 1, "c": 1}
    await world.ask(3 * OF_ONE_BROKER)
    assert world.count == dict.fromkeys("abc", OF_ONE_BROKER)
    await world.end()


async def test_brokers_take_turns_also_when_one_asks_after_the_other() -> None:
    world = World("a", "b")
    asked = []
    for number in range(4):
        await world.ask(1)
        asked.append(await world.let_go(number))
    assert asked in (["a", "b"] * 2, ["b", "a"] * 2)
    await world.end()


async def test_a_place_goes_to_who_waits_longest() -> None:
    world = World("a", "b")
    await world.ask(2 * OF_ONE_BROKER + 3)
    waiting = [number for number in range(len(world.tasks)) if number not in world.held]
    for number in waiting:
        left = await world.let_go(0 if 0 in world.held else min(world.held))
        assert world.held[number][0] == left
    await world.end()


async def test_all_brokers_together_are_asked_for_a_bounded_number() -> None:
    world = World(*map(str, range(2 * OF_ALL_BROKERS)))
    await world.ask(2 * OF_ALL_BROKERS)
    assert len(world.held) == OF_ALL_BROKERS
    await world.let_go(0)
    assert len(world.held) == OF_ALL_BROKERS
    await world.end()


async def test_who_has_tried_a_broker_in_vain_waits_for_another_one() -> None:
    """Not so those behind."""
    world = World("a", "b")
    await world.ask(OF_ONE_BROKER, tried=["a"])
    assert world.count == {"b": OF_ONE_BROKER}
    await world.ask(1, tried=["a"])
    await world.ask(1)
    assert world.count == {"b": OF_ONE_BROKER, "a": 1}
    await world.let_go(0)
    assert world.held[OF_ONE_BROKER][0] == "b"
    # Who has tried them all begins again.
    await world.ask(1, tried=["a", "b"])
    assert world.count == {"b": OF_ONE_BROKER, "a": 2}
    await world.end()


async def test_a_place_costs_little_however_many_wait_for_another_broker() -> None:
    world = World("a", "b")
    await world.ask(OF_ONE_BROKER, tried=["a"])
    looks = 0

    class Tried(list[str]):
        def __contains__(self, url: object) -> bool:
            nonlocal looks
            looks += 1
            return super().__contains__(url)

    await world.ask(10 * LOOKED_AT_MAX, tried=Tried(["a"]))
    looks = 0
    world.places._give()
    assert looks <= 2 * LOOKED_AT_MAX
    await world.end()


async def test_who_gives_up_takes_no_place() -> None:
    world = World("a")
    await world.ask(OF_ONE_BROKER + 2)
    first, second = world.tasks[-2:]
    first.cancel()
    await world.let_go(0)
    assert OF_ONE_BROKER + 1 in world.held
    # Nor does who gives up just when it is given one: that goes to the next.
    await world.ask(2)
    third, fourth = world.tasks[-2:]
    world.held[1][1].set()
    while 1 in world.held:
        await asyncio.sleep(0)
    third.cancel()
    await asyncio.sleep(0.1)
    assert world.tasks.index(fourth) in world.held
    assert world.count == {"a": OF_ONE_BROKER}
    assert not second.done()
    await world.end()


async def test_a_broker_that_comes_is_asked_by_those_who_wait() -> None:
    world = World("a")
    await world.ask(OF_ONE_BROKER + 1)
    world.brokers.names = ("a", "b")
    await world.ask(1)
    assert world.count == {"a": OF_ONE_BROKER, "b": 2}
    await world.end()


async def test_who_waits_is_told_that_no_broker_is_left() -> None:
    world = World("a")
    await world.ask(OF_ONE_BROKER + 2)
    world.brokers.names = ()
    await world.let_go(0)
    for task in world.tasks[-2:]:
        with pytest.raises(NoBroker):
            await task
    await world.end()
