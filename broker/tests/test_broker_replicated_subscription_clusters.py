"""Replicated subscriptions between clusters that are lists: who acknowledges in one passes over nothing in another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import pytest
from magnetar.broker.replicated_subscriptions import controller as controllers
from magnetar.broker.replicated_subscriptions.controller import LOOKS_OF_PATIENCE, SnapshotController, SnapshotSettings
from magnetar.broker.replicated_subscriptions.figures import SnapshotFigures
from magnetar.broker.replicated_subscriptions.kept_snapshots import KeptSnapshots
from magnetar.core.clock import TimerHandle
from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.core.ids import Position
from magnetar.wire.pulsar.enums import SNAPSHOT_MARKER
from magnetar.wire.pulsar.metadata import full_metadata, metadata_bounds
from magnetar.wire.pulsar.subscription_markers import (
    ClusterSnapshot,
    SubscriptionUpdate,
    read_marker,
    subscription_update,
)

LEDGER: Final = 5
SUBSCRIPTION: Final = "sub"
SECONDS: Final = 40


class Timer:
    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due, self.callback, self.cancelled = due, callback, False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class World:
    """Time, and every cluster."""

    now: float = 1_000.0
    timers: list[Timer] = field(default_factory=list)
    clusters: dict[str, Cluster] = field(default_factory=dict)
    ids: int = 0

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic_seconds(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> TimerHandle:
        self.timers.append(Timer(self.now + delay, callback))
        return self.timers[-1]

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [timer for timer in self.timers if timer.due <= end and not timer.cancelled]:
            first = min(due, key=lambda timer: timer.due)
            self.timers.remove(first)
            self.now = max(self.now, first.due)
            first.callback()
        self.now = end

    def new_id(self) -> str:
        self.ids += 1
        return f"snapshot-{self.ids}"

    def settle(self) -> None:
        """Everything is replicated, with what is written because of it."""
        moved = True
        while moved:
            moved = any(cluster.replicate(to) for cluster in self.clusters.values() for to in self.clusters)


@dataclass
class Cluster:
    """A topic, its replicators, and one subscription."""

    world: World
    name: str
    connected: bool = True
    failing: bool = False
    entries: list[bytes | str] = field(default_factory=list)
    """Markers as bytes, messages as texts."""
    came_from: list[str] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)
    read: int = 0
    mark_delete: Position = (LEDGER, -1)
    made: bool = False

    def __post_init__(self) -> None:
        self.kept = KeptSnapshots(30, lambda first, last: last[1] - first[1])
        self.figures = SnapshotFigures()
        world, settings = self.world, SnapshotSettings()
        self.controller = SnapshotController(
            self, self.name, settings, world, world.call_later, self.run, world.new_id, self.figures
        )

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        with pytest.raises(StopIteration):
            work.send(None)

    @property
    def last_position(self) -> Position:
        return (LEDGER, len(self.entries) - 1)

    @property
    def connected_clusters(self) -> frozenset[str] | None:
        return frozenset(self.world.clusters) - {self.name} if self.connected else None

    def write_marker(self, entry: bytes, stored: Callable[[MagnetarError | None, Position], None]) -> None:
        if self.failing:
            stored(Unavailable("no bookies"), (-1, -1))
            return
        self.store(entry, self.name)
        stored(None, self.last_position)

    async def follow_subscription(self, name: str, position: Position) -> None:
        assert name == SUBSCRIPTION
        if self.failing:
            raise Unavailable("no bookies")
        self.made = True
        self.mark_delete = max(self.mark_delete, position)

    async def follow_single_entries(self, name: str, acknowledged: object) -> None:
        raise AssertionError(f"nobody acknowledges single entries here: {name}, {acknowledged}")

    def store(self, entry: bytes | str, source: str) -> None:
        self.entries.append(entry)
        self.came_from.append(source)
        self.controller.appended()

    def replicate(self, to: str) -> bool:
        """The replicator takes the next entry; False when there is none."""
        at = self.sent.get(to, 0)
        if to == self.name or at == len(self.entries):
            return False
        self.sent[to] = at + 1
        entry, source = self.entries[at], self.came_from[at]
        if source != self.name:
            if source == to and isinstance(entry, bytes):
                _, payload_start = metadata_bounds(entry)
                self.controller.marker_received((LEDGER, at), full_metadata(entry).marker_type, entry[payload_start:])
            return True
        only_for = list(full_metadata(entry).replicate_to) if isinstance(entry, bytes) else []
        if not only_for or to in only_for:
            self.world.clusters[to].store(entry, self.name)
        return True

    def read_on(self, count: int) -> None:
        """The subscription's consumer is sent so many entries."""
        for _ in range(min(count, len(self.entries) - self.read)):
            entry = self.entries[self.read]
            if isinstance(entry, bytes) and full_metadata(entry).marker_type == SNAPSHOT_MARKER:
                _, payload_start = metadata_bounds(entry)
                snapshot = read_marker(SNAPSHOT_MARKER, entry[payload_start:])
                assert isinstance(snapshot, ClusterSnapshot)
                self.kept.add(snapshot)
            self.read += 1

    def acknowledge(self, count: int) -> None:
        """It acknowledges so many of these."""
        self.mark_delete = (LEDGER, min(self.mark_delete[1] + count, self.read - 1))
        if (found := self.kept.take(self.mark_delete)) is not None:
            self.controller.acknowledged(SUBSCRIPTION, found)

    def consume(self) -> None:
        self.read_on(1_000)
        self.acknowledge(1_000)

    @property
    def acknowledged_messages(self) -> set[str]:
        return {entry for entry in self.entries[: self.mark_delete[1] + 1] if isinstance(entry, str)}


def world_of(*names: str) -> World:
    world = World()
    for name in names:
        world.clusters[name] = Cluster(world, name)
    for cluster in world.clusters.values():
        cluster.controller.start()
    return world


@pytest.mark.parametrize("names", [("east", "west"), ("east", "west", "north")])
def test_other_clusters_follow_to_the_last_message(names: tuple[str, ...]) -> None:
    world = world_of(*names)
    for index in range(10):
        for name in names:
            world.clusters[name].store(f"{name}-{index}", name)
    for _ in range(6):
        world.pass_time(1)
        world.settle()
        world.clusters["east"].consume()
    world.settle()
    for name in names[1:]:
        assert len(world.clusters[name].acknowledged_messages) == 10 * len(names)


def test_idle_clusters_fall_silent() -> None:
    world = world_of("east", "west", "north")
    world.clusters["west"].store("message", "west")
    for _ in range(10 + LOOKS_OF_PATIENCE):
        world.pass_time(1)
        world.settle()
        world.clusters["east"].consume()
    before = [len(cluster.entries) for cluster in world.clusters.values()]
    world.pass_time(SECONDS)
    world.settle()
    assert [len(cluster.entries) for cluster in world.clusters.values()] == before
    # Nor do they look whether there is anything.
    assert [timer for timer in world.timers if not timer.cancelled] == []


def test_nothing_is_asked_while_a_cluster_is_away_and_it_is_when_it_is_back() -> None:
    world = world_of("east", "west")
    east = world.clusters["east"]
    east.store("message", "east")
    east.connected = False
    east.controller.close()
    east.controller.start()
    before = len(east.entries)
    world.pass_time(5)
    assert len(east.entries) == before
    east.connected = True
    world.pass_time(1)
    assert len(east.entries) == before + 1


def test_a_question_that_nobody_answers_is_given_up_and_asked_again() -> None:
    world = world_of("east", "west")
    east = world.clusters["east"]
    east.store("message", "east")
    world.pass_time(25)
    assert east.figures.pending == 1
    assert len(east.entries) == 2
    world.pass_time(10)
    assert east.figures.timed_out == 1
    assert len(east.entries) == 3


def test_markers_that_cannot_be_stored_delay_and_break_nothing() -> None:
    world = world_of("east", "west")
    east, west = world.clusters.values()
    east.store("first", "east")
    east.failing = west.failing = True
    for _ in range(3):
        world.pass_time(1)
        world.settle()
    east.failing = west.failing = False
    for _ in range(SECONDS):
        world.pass_time(1)
        world.settle()
        east.consume()
    assert west.acknowledged_messages == {"first"}
    assert west.made


def test_a_damaged_marker_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    world = world_of("east", "west")
    world.clusters["east"].controller.marker_received((LEDGER, 3), 13, b"\xff")
    assert "passing over the marker at 5:3" in caplog.text


def disturb(world: World, rng: Random, label: str) -> None:
    """One thing that happens."""
    names = list(world.clusters)
    cluster, east, step = world.clusters[rng.choice(names)], world.clusters["east"], rng.random()
    if step < 0.1:
        cluster.store(f"{cluster.name}-{label}", cluster.name)
    elif step < 0.72:
        other = rng.choice(names)
        for _ in range(rng.randrange(40)):
            cluster.replicate(other)
    elif step < 0.76:
        world.pass_time(5 * rng.random())
    elif step < 0.9:
        east.read_on(rng.randrange(20))
    elif step < 0.98:
        east.acknowledge(rng.randrange(20))
    elif step < 0.99:
        world.settle()
    else:
        cluster.failing = rng.random() < 0.1


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_no_cluster_passes_over_a_message_and_all_follow_to_the_end(seed: int) -> None:
    rng = Random(seed)
    world = world_of(*["east", "west", "north"][: 2 + seed % 2])
    east, *others = world.clusters.values()
    looked_at = dict.fromkeys(world.clusters, east.mark_delete)
    for index in range(1_500):
        disturb(world, rng, str(index))
        for other in others:
            if other.mark_delete != looked_at[other.name]:
                looked_at[other.name] = other.mark_delete
                assert other.acknowledged_messages <= east.acknowledged_messages
    for cluster in world.clusters.values():
        cluster.failing = False
    for _ in range(SECONDS + 2 * LOOKS_OF_PATIENCE):
        world.pass_time(1)
        world.settle()
        east.consume()
    for cluster in world.clusters.values():
        assert cluster.acknowledged_messages == {entry for entry in cluster.entries if isinstance(entry, str)}


class Slow:
    """A topic whose subscriptions follow as soon as they are let."""

    name = "t"
    last_position = (LEDGER, -1)
    connected_clusters = None

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.followed: list[tuple[str, Any]] = []

    def write_marker(self, entry: bytes, stored: object) -> None:
        raise AssertionError("nothing is asked or answered here")

    async def follow_subscription(self, name: str, position: Position) -> None:
        await self.goes_on.wait()
        self.followed.append((name, position))

    async def follow_single_entries(self, name: str, acknowledged: object) -> None:
        self.followed.append((name, acknowledged))


def tell(controller: SnapshotController, name: str, entry_id: int, singles: int | None = None) -> None:
    acknowledged = {} if singles is None else {"west": [(9, singles, singles)]}
    entry = subscription_update(SubscriptionUpdate(name, {"east": (LEDGER, entry_id)}, acknowledged), 1)
    controller.marker_received((LEDGER, 0), 13, entry[metadata_bounds(entry)[1] :])


def slow() -> tuple[Slow, SnapshotController, list[Coroutine[Any, Any, None]]]:
    world, topic, work = World(), Slow(), list[Coroutine[Any, Any, None]]()
    figures, settings = SnapshotFigures(), SnapshotSettings()
    return (
        topic,
        SnapshotController(topic, "east", settings, world, world.call_later, work.append, world.new_id, figures),
        work,
    )


async def test_what_is_told_faster_than_it_can_be_done_is_done_once_with_the_furthest_position() -> None:
    topic, controller, work = slow()
    tell(controller, "a", 1)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(work.pop())
        await asyncio.sleep(0)
        for entry_id, single in [(2, 20), (7, 21), (5, 22), (6, None)]:
            tell(controller, "a", entry_id, single)
        assert not work
        topic.goes_on.set()
    assert topic.followed == [("a", (LEDGER, 1)), ("a", (LEDGER, 7)), ("a", {"west": [(9, 22, 22)]})]
    tell(controller, "a", 8)
    assert len(work) == 1
    work.pop().close()


async def test_no_more_subscriptions_wait_than_memory_has_room_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(controllers, "UPDATES_MAX", 2)
    monkeypatch.setattr(controllers, "SINGLES_MAX", 1)
    topic, controller, work = slow()
    topic.goes_on.set()
    for name in ("a", "b", "c"):
        tell(controller, name, 1, 5)
    assert "subscription c does not follow" in caplog.text
    await asyncio.gather(*work)
    assert topic.followed == [("a", (LEDGER, 1)), ("a", {"west": [(9, 5, 5)]}), ("b", (LEDGER, 1))]
