"""Which way a driver asks when one of them fails, over clusters that are made up."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from magnetar.core.errors import Misuse
from magnetar.spark import cluster as cluster_module
from magnetar.spark.bookies.access import DirectAccess
from magnetar.spark.cluster import ClusterConnections
from magnetar.spark.errors import ClusterUnreachable
from magnetar.spark.options.connection import ConnectionOptions
from magnetar.spark.options.offsets import AtTime, Earliest
from magnetar.spark.options.reading import SourceOptions, parse_source_options
from magnetar.spark.planning.planner import ReadPlanner, TopicRange
from magnetar.spark.planning.read_failover import ReadFailover
from magnetar.spark.positions import MessagePosition
from magnetar.spark.topics import TopicLedger, TopicSelection, TopicState

TOPIC = "persistent://public/default/t"
OPTIONS = {"service.url": "pulsar://127.0.0.1:1", "metadata.url": "zk:127.0.0.1:1", "topic": "t"}
END = MessagePosition(2, 3)


class Access:
    """One session with the store, which answers as long as it is well."""

    def __init__(self) -> None:
        self.well = True
        self.closed = False

    async def close(self) -> None:
        self.closed = True


class World(ClusterConnections):
    """A cluster whose direct way opens and fails as the test says; brokers tell no ledgers."""

    def __init__(self) -> None:
        super().__init__(ConnectionOptions(service_url=OPTIONS["service.url"]))
        self.can_be_opened = True
        self.well_when_opened = True
        self.brokers_answer = True
        self.accesses: list[Access] = []
        self.attempts = 0

    async def open(self, *_: object) -> DirectAccess:
        self.attempts += 1
        if not self.can_be_opened:
            raise ClusterUnreachable("the store cannot be reached from here")
        self.accesses.append(Access())
        self.accesses[-1].well = self.well_when_opened
        return cast("DirectAccess", self.accesses[-1])

    async def catalog(self, *, direct: bool) -> Any:
        access = cast("Access", await self.direct()) if direct else None
        return Catalog(self, access)

    async def direct_catalog(self) -> Any:
        return await self.catalog(direct=True)


class Catalog:
    """By the store, or by brokers."""

    def __init__(self, world: World, access: Access | None) -> None:
        self.world = world
        self.access = access

    def _ask(self) -> None:
        if self.access is not None and (self.access.closed or not self.access.well):
            raise ClusterUnreachable("no connection to ZooKeeper")
        if self.access is None and not self.world.brokers_answer:
            raise ClusterUnreachable("no broker answers well")

    async def topics(self, selection: TopicSelection) -> list[str]:
        self._ask()
        return [TOPIC]

    async def states(self, topics: Sequence[str]) -> dict[str, TopicState]:
        self._ask()
        ledgers = [TopicLedger(ledger_id=2, entries=3, size_bytes=30)]
        if self.access is not None:
            ledgers.insert(0, TopicLedger(ledger_id=1, entries=5, size_bytes=50, closed_ms=1))
        return {TOPIC: TopicState(topic=TOPIC, ledgers=tuple(ledgers), end=END, ledgers_known=self.access is not None)}

    async def with_metadata(self, state: TopicState, ledger_ids: set[int]) -> TopicState:
        self._ask()
        return replace(state, ledgers=tuple(replace(each, metadata=b"there") for each in state.ledgers))


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    made = World()
    monkeypatch.setattr(cluster_module, "open_direct", made.open)
    yield made
    await made.close()


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "magnetar.spark.planning.read_failover")
    return caplog


async def planner_of(world: World, **more: str) -> ReadPlanner:
    options: SourceOptions = parse_source_options({**OPTIONS, **more})
    await world.direct()
    return ReadPlanner(options, world, direct=True)


async def test_a_session_that_has_failed_is_opened_anew(world: World, warnings: pytest.LogCaptureFixture) -> None:
    planner = await planner_of(world)
    world.accesses[0].well = False
    assert await planner.topics(planner.options.filters) == [TOPIC]
    assert planner.direct
    assert [access.closed for access in world.accesses] == [True, False]
    (line,) = warnings.messages
    assert "reached again by a new session: no connection to ZooKeeper (given up after 0.0 s)" in line


async def test_brokers_are_asked_while_the_store_is_away(world: World, warnings: pytest.LogCaptureFixture) -> None:
    planner = await planner_of(world)
    world.accesses[0].well = world.can_be_opened = False
    assert (await planner.states([TOPIC]))[TOPIC].end == END
    assert not planner.direct
    assert await planner.addresses() == {}
    await planner.states([TOPIC])
    assert world.attempts == 2
    assert warnings.messages == [
        "reading through brokers from here on: no connection to ZooKeeper (given up after 0.0 s); trying again: the "
        "store cannot be reached from here"
    ]
    # Another planner of the process does not wait for it either.
    other = ReadPlanner(planner.options, world, direct=True)
    await other.states([TOPIC])
    assert not other.direct
    assert world.attempts == 2


async def test_a_session_that_opens_and_does_not_answer_is_left_for_brokers(world: World) -> None:
    planner = await planner_of(world)
    world.accesses[0].well = world.well_when_opened = False
    await planner.states([TOPIC])
    assert not planner.direct
    assert all(access.closed for access in world.accesses)
    assert world.attempts == 2
    with pytest.raises(ClusterUnreachable, match="no connection to ZooKeeper"):
        await world.direct()


async def test_when_nobody_answers_both_are_told(world: World) -> None:
    planner = await planner_of(world)
    world.accesses[0].well = world.can_be_opened = world.brokers_answer = False
    with pytest.raises(
        ClusterUnreachable, match=r"no broker answers well\. Before, past the brokers: no connection to"
    ):
        await planner.states([TOPIC])


async def test_only_bookies(world: World) -> None:
    planner = await planner_of(world, readMode="bookies")
    world.accesses[0].well = False
    text = r"no connection to ZooKeeper \(given up after 0\.0 s\); with readMode=bookies nobody else is asked"
    with pytest.raises(ClusterUnreachable, match=text):
        await planner.states([TOPIC])
    # The session comes back by itself.
    world.accesses[0].well = True
    assert await planner.states([TOPIC])
    assert world.attempts == 1


async def test_a_plan_that_began_directly_is_ended_through_brokers(world: World) -> None:
    planner = await planner_of(world)
    states = await planner.states([TOPIC])
    world.accesses[0].well = world.can_be_opened = False
    first = (await planner.positions(Earliest(), states.values(), "startingOffsets"))[TOPIC]
    slices = await planner.slices([TopicRange(states[TOPIC], first, END)], {})
    assert not planner.direct
    assert [(one.first, one.end) for one in slices] == [((1, 0, 0), END)]
    assert [part.metadata for one in slices for part in one.ranges] == [b"", b""]
    # What only ledgers tell is waited for.
    states = await planner.states([TOPIC])
    with pytest.raises(ClusterUnreachable, match=r"only the metadata store tells .* were asked: the store"):
        await planner.positions(AtTime(5), states.values(), "startingTime")


async def test_bookies_are_read_from_again(world: World, warnings: pytest.LogCaptureFixture) -> None:
    def time_passes() -> None:
        assert world._refused is not None
        assert world._look_at_seconds - time.monotonic() > 55
        world._refused, world._look_at_seconds = None, 0.0

    planner = await planner_of(world)
    world.accesses[0].well = world.can_be_opened = False
    await planner.states([TOPIC])
    warnings.clear()
    await planner.states([TOPIC])
    assert world.attempts == 2
    time_passes()
    # Nobody waits for the look at it, and there is one at a time.
    for _ in range(3):
        await planner.states([TOPIC])
    await asyncio.sleep(0)
    await planner.states([TOPIC])
    assert world.attempts == 3
    assert world._look_pauses.next_seconds() == 240  # Ever less often.
    time_passes()
    world.can_be_opened = True
    await planner.states([TOPIC])
    await asyncio.sleep(0)
    assert len(world.accesses) == 2
    # What is planned is planned to its end as it was begun.
    assert await planner.addresses() == {}
    await planner.states([TOPIC])
    assert planner.direct
    assert warnings.messages == ["reading from bookies again: metadata store and bookies can be reached again"]
    # Brokers that were asked for are asked.
    chosen = ReadPlanner(replace(planner.options, read_mode="brokers"), world, direct=False)
    await chosen.states([TOPIC])
    assert not chosen.direct


async def test_bugs_change_nothing(world: World) -> None:
    failover = ReadFailover(world, "auto", direct=True)

    async def call() -> bool:
        raise Misuse("a bug")

    with pytest.raises(Misuse):
        await failover.ask(call)
    assert failover.direct
    assert world.attempts == 0
