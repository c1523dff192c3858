"""How long producers and consumers that lost their broker wait between two attempts, on virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import Any, cast

import pytest
from magnetar.client.client import PulsarClient
from magnetar.client.connection import BrokerConnection
from magnetar.client.errors import ConnectionFailed
from magnetar.client.pauses import LONGEST_SECONDS_MIN, Pauses
from magnetar.client.settings import ClientSettings
from magnetar.client.topic_end import ClientParts, TopicEnd
from magnetar.core.errors import MagnetarError
from magnetar.core.topic_name import TopicName
from magnetar.sim.virtual_time import LoopClock, VirtualTimeLoop

TOPIC = TopicName.parse("persistent://public/default/t")
SETTLED_SECONDS = 30.0
"""Until then pauses grow."""
OUTAGE_SECONDS = 50.0

new_event_loop = VirtualTimeLoop


class Attempts(TopicEnd):
    """Comes to a broker that is away for a while; notes when it tries."""

    def __init__(self, parts: ClientParts) -> None:
        super().__init__(parts, TOPIC)
        self.at_seconds: list[float] = []
        self._open_seconds_max = None

    async def _attach_once(self) -> None:
        now_seconds = asyncio.get_running_loop().time()
        self.at_seconds.append(now_seconds)
        if now_seconds < OUTAGE_SECONDS:
            raise ConnectionFailed("nobody is there")
        self._attached.set()

    async def _attach(self, connection: BrokerConnection) -> None:
        raise NotImplementedError

    def _has_attached(self, connection: BrokerConnection) -> None:
        raise NotImplementedError

    def _has_ended(self, error: MagnetarError) -> None:
        """Nobody waits."""

    async def _take_leave(self, connection: BrokerConnection) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("count", "back_seconds_max", "attempts_per_second_max"),
    [(1, 1.0, 2.0), (300, 1.0, 600.0), (3_000, 3.0, 1_050.0)],
)
async def test_who_waits_is_soon_back_and_thousands_do_not_storm(
    count: int, back_seconds_max: float, attempts_per_second_max: float
) -> None:
    client = PulsarClient(lambda: "pulsar://nobody", LoopClock(), rng=Random(7))
    ends: list[Attempts] = []

    def make(parts: ClientParts) -> Attempts:
        ends.append(Attempts(parts))
        return ends[-1]

    await asyncio.gather(*(client.attach(make) for _ in range(count)))
    assert max(end.at_seconds[-1] for end in ends) <= OUTAGE_SECONDS + back_seconds_max
    late = [seconds for end in ends for seconds in end.at_seconds if SETTLED_SECONDS <= seconds < OUTAGE_SECONDS]
    assert len(late) / (OUTAGE_SECONDS - SETTLED_SECONDS) <= attempts_per_second_max


async def test_thousands_that_are_lost_together_come_back_at_the_pace_of_the_settings_from_the_first_second() -> None:
    client = PulsarClient(lambda: "pulsar://nobody", LoopClock(), rng=Random(7))
    ends: list[Attempts] = []

    def make(parts: ClientParts) -> Attempts:
        ends.append(Attempts(parts))
        return ends[-1]

    await asyncio.gather(*(client.attach(make) for _ in range(5_000)))
    first_attempts = len(ends)  # Each tries at once, as it does not know that its broker is away.
    in_first_second = sum(seconds < 1.0 for end in ends for seconds in end.at_seconds)
    assert first_attempts < in_first_second <= first_attempts + 1.1 * ClientSettings().attempts_per_second_max


def test_the_longest_pause_is_that_of_the_settings() -> None:
    settings = ClientSettings(backoff_seconds_min=0.005, backoff_seconds_max=0.05)
    assert Pauses(settings, Random(1)).longest_seconds() == 0.05


async def test_those_that_wait_no_more_make_nobody_wait_longer() -> None:
    pauses = Pauses(ClientSettings(), Random(1))
    waiting = [asyncio.create_task(pauses.wait(pauses.backoff())) for _ in range(10_000)]
    await asyncio.sleep(0)
    assert pauses.longest_seconds() > LONGEST_SECONDS_MIN
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert pauses.longest_seconds() == LONGEST_SECONDS_MIN


def test_no_two_come_back_at_the_same_moment() -> None:
    pauses = Pauses(ClientSettings(), Random(1))
    assert len({pauses.backoff().next_seconds() for _ in range(100)}) == 100


class Flapping(TopicEnd):
    """Attaches whenever it tries, to a connection that is there as often as a test says."""

    def __init__(self, parts: ClientParts) -> None:
        super().__init__(replace(parts, pool=cast(Any, self)), TOPIC)

    async def get(self, _: object) -> object:
        """As the pool."""
        return object()

    async def _address(self) -> Any:
        return None

    async def _attach(self, connection: BrokerConnection) -> None:
        pass

    def _has_attached(self, connection: BrokerConnection) -> None:
        pass

    def _has_ended(self, error: MagnetarError) -> None:
        pass

    async def _take_leave(self, connection: BrokerConnection) -> None:
        pass

    async def back_after_seconds(self) -> float:
        """How long it takes until it has come back."""
        loop = asyncio.get_running_loop()
        lost_seconds = loop.time()
        self.detached("")
        await self._attached.wait()
        return loop.time() - lost_seconds


async def test_pauses_grow_while_a_broker_flaps_and_are_short_again_when_it_has_stood_for_long() -> None:
    settings = ClientSettings(backoff_seconds_min=0.1, backoff_seconds_max=60.0)
    client = PulsarClient(lambda: "pulsar://nobody", LoopClock(), settings, rng=Random(7))
    ends: list[Flapping] = []

    def make(parts: ClientParts) -> Flapping:
        ends.append(Flapping(parts))
        return ends[-1]

    await asyncio.sleep(2 * settings.backoff_seconds_max)
    await client.attach(make)
    (end,) = ends
    pauses = [await end.back_after_seconds() for _ in range(6)]
    assert pauses[0] <= 0.1
    assert pauses[-1] >= 0.5
    await asyncio.sleep(settings.backoff_seconds_max + 1.0)
    assert await end.back_after_seconds() <= 0.1
