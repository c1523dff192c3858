"""Topics that the coordinator's broker has loaded hear of the end of a transaction without the network."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from typing import Any, cast

import pytest
from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.testing.clusters import until
from magnetar.broker.transactions.api import EndedTransaction
from magnetar.broker.transactions.coordinator_participants import EndingTopic, NearParticipants
from magnetar.broker.transactions.names import TransactionId
from magnetar.client.errors import TimedOut
from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.core.topic_name import TopicName
from magnetar.managed.errors import ManagedLedgerFenced
from magnetar.sim.virtual_time import VirtualTimeLoop
from magnetar.wire.pulsar.errors import PulsarError, ServerError

TOPIC = "persistent://public/default/topic"
ENDED = EndedTransaction(TransactionId(7, 300), commit=True, low_water_mark=-1)
ABORTED = ENDED._replace(commit=False, low_water_mark=5)
REQUEST_SECONDS = 30.0

new_event_loop = VirtualTimeLoop


class Ending:
    """Stands for a transaction buffer and for the handle of a subscription."""

    def __init__(self) -> None:
        self.ends: list[tuple[object, bool, int]] = []
        self.ready = asyncio.Event()
        self.ready.set()
        self.error: BaseException | None = None
        self.ended = 0

    async def end(self, transaction: object, *, commit: bool, low_water_mark: int) -> None:
        self.ends.append((transaction, commit, low_water_mark))
        await self.ready.wait()
        self.ended += 1
        if self.error is not None:
            raise self.error

    def of(self, _: object) -> Ending:
        return self

    async def check_owner(self) -> None:
        if isinstance(self.error, ManagedLedgerFenced):
            raise self.error


class Topic:
    """A loaded topic with the subscription "s"."""

    def __init__(self) -> None:
        self.name = TopicName.parse(TOPIC)
        self.buffer: Ending | None = Ending()
        self.pending_acks: Ending | None = Ending()
        self.subscriptions = {"s": object()}


class Others:
    """A `Participants` that remembers."""

    def __init__(self) -> None:
        self.told: list[tuple[EndedTransaction, str, str]] = []

    async def end_on_partition(self, ended: EndedTransaction, topic: str) -> None:
        self.told.append((ended, topic, ""))

    async def end_on_subscription(self, ended: EndedTransaction, topic: str, subscription: str) -> None:
        self.told.append((ended, topic, subscription))


class World:
    """One loaded topic, and who tells others."""

    def __init__(self) -> None:
        self.topic = Topic()
        self.others = Others()
        self.closes_after: list[asyncio.Task[None]] = []
        self.near = NearParticipants(
            lambda name: cast(EndingTopic, self.topic) if name == TOPIC else None,
            self.others,
            TransactionSettings(enabled=True, request_timeout_ms=int(1000 * REQUEST_SECONDS)),
            self.closes_after.append,
        )

    def ways(self) -> list[tuple[Ending, Callable[[], Any]]]:
        """Both that can be told, with what tells it."""
        assert self.topic.buffer is not None
        assert self.topic.pending_acks is not None
        return [
            (self.topic.buffer, lambda: self.near.end_on_partition(ENDED, TOPIC)),
            (self.topic.pending_acks, lambda: self.near.end_on_subscription(ENDED, TOPIC, "s")),
        ]


@pytest.fixture
async def world() -> World:
    return World()


async def test_a_loaded_topic_hears_itself(world: World) -> None:
    for ending, tell in world.ways():
        await tell()
        assert ending.ends == [((7, 300), True, -1)]
    await world.near.end_on_partition(ABORTED, TOPIC)
    await world.near.end_on_subscription(ABORTED, TOPIC, "s")
    for ending, _ in world.ways():
        assert ending.ends[1:] == [((7, 300), False, 5)]
    assert not world.others.told


async def test_others_hear_by_the_network(world: World) -> None:
    other = "persistent://public/default/other"
    await world.near.end_on_partition(ENDED, other)
    await world.near.end_on_subscription(ENDED, other, "s")
    world.topic.buffer = world.topic.pending_acks = None  # One whose messages no transaction has.
    await world.near.end_on_partition(ENDED, TOPIC)
    await world.near.end_on_subscription(ENDED, TOPIC, "s")
    assert world.others.told == [(ENDED, topic, name) for topic in (other, TOPIC) for name in ("", "s")]


async def test_a_subscription_that_is_gone_need_not_hear(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.near.end_on_subscription(ENDED, TOPIC, "gone")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "no subscription 'gone' any more" in caplog.text
    pending, _ = world.ways()[1]
    assert pending.ends == []
    pending.error = ManagedLedgerFenced("another broker")
    with pytest.raises(PulsarError) as refusal:  # It may be there at the next owner.
        await world.near.end_on_subscription(ENDED, TOPIC, "gone")
    assert refusal.value.code is ServerError.SERVICE_NOT_READY


@pytest.mark.parametrize(
    ("mistake", "told"), [(RuntimeError("a mistake"), "RuntimeError('a mistake')"), (asyncio.CancelledError(), "ours")]
)
async def test_a_mistake_at_one_topic_is_a_refusal_of_this_one(world: World, mistake: BaseException, told: str) -> None:
    """The coordinator tells the others, and tries this one again."""
    for ending, tell in world.ways():
        ending.error = mistake
        with pytest.raises(PulsarError) as refusal:
            await tell()
        assert refusal.value.code is ServerError.UNKNOWN_ERROR
        assert told in refusal.value.message


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PulsarError(ServerError.SERVICE_NOT_READY, "is being unloaded"), ServerError.SERVICE_NOT_READY),
        (ManagedLedgerFenced("another broker"), ServerError.SERVICE_NOT_READY),
        (Unavailable("no bookie"), ServerError.PERSISTENCE_ERROR),
    ],
)
async def test_a_refusal_has_the_code_that_the_network_would_give_it(
    world: World, error: MagnetarError, code: ServerError
) -> None:
    for ending, tell in world.ways():
        ending.error = error
        with pytest.raises(PulsarError) as refusal:
            await tell()
        assert refusal.value.code is code
        ending.error = None
        await tell()
        assert ending.ended == 2


async def test_a_topic_that_cannot_store_it_is_not_waited_for_and_not_told_twice_meanwhile(world: World) -> None:
    for ending, tell in world.ways():
        ending.ready.clear()
        for _ in range(3):
            started = asyncio.get_running_loop().time()
            with pytest.raises(TimedOut, match="is not told within"):
                await tell()
            assert asyncio.get_running_loop().time() - started == pytest.approx(REQUEST_SECONDS)
        assert len(ending.ends) == 1
        ending.error = Unavailable("nobody hears this")
        ending.ready.set()
        await until(lambda ending=ending: ending.ended == 1)  # type: ignore[misc]
        await asyncio.sleep(0)
        ending.error = None
        await tell()
        assert len(ending.ends) == 2


async def test_who_gives_up_cuts_nothing_off_and_the_broker_closes_after_it(world: World) -> None:
    for ending, tell in world.ways():
        ending.ready.clear()
        telling = asyncio.create_task(tell())
        await until(lambda ending=ending: bool(ending.ends))  # type: ignore[misc]
        telling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await telling
        (task,) = world.closes_after
        assert not task.done()
        ending.ready.set()
        await task
        assert ending.ended == 1
        world.closes_after.clear()


async def test_two_endings_and_two_loads_of_a_topic_are_told_apart(world: World) -> None:
    before, after = world.topic, Topic()
    assert before.buffer is not None
    assert after.buffer is not None
    before.buffer.ready.clear()
    telling = [
        asyncio.create_task(world.near.end_on_partition(ENDED._replace(id=TransactionId(7, number)), TOPIC))
        for number in range(3)
    ]
    await until(lambda: len(world.closes_after) == 3)
    world.topic = after
    await world.near.end_on_partition(ENDED._replace(id=TransactionId(7, 0)), TOPIC)
    assert len(after.buffer.ends) == 1
    before.buffer.ready.set()
    await asyncio.gather(*telling)
    assert [one for one, _, _ in before.buffer.ends] == [(7, 0), (7, 1), (7, 2)]


async def test_subscriptions_loads_and_ends_are_told_apart(world: World) -> None:
    """Each of them hears, while the end of another one is under way."""
    before, after = world.topic, Topic()
    before.subscriptions["t"] = object()
    for ending, _ in world.ways():
        ending.ready.clear()
    near = world.near
    telling = [
        asyncio.create_task(near.end_on_subscription(ENDED, TOPIC, "s")),
        asyncio.create_task(near.end_on_subscription(ENDED, TOPIC, "t")),
        asyncio.create_task(near.end_on_subscription(ABORTED, TOPIC, "s")),
        asyncio.create_task(near.end_on_partition(ENDED, TOPIC)),
        asyncio.create_task(near.end_on_partition(ABORTED, TOPIC)),
    ]
    await until(lambda: len(world.closes_after) == len(telling))
    buffer, pending = (ending for ending, _ in world.ways())
    assert [commit for _, commit, _ in buffer.ends] == [True, False]
    assert [commit for _, commit, _ in pending.ends] == [True, True, False]
    world.topic = after
    await near.end_on_subscription(ENDED, TOPIC, "s")
    await near.end_on_partition(ENDED, TOPIC)
    assert [len(ending.ends) for ending, _ in world.ways()] == [1, 1]
    for ending in (buffer, pending):
        ending.ready.set()
    await asyncio.gather(*telling)


async def test_a_failure_that_nobody_waits_for_and_an_end_that_is_cancelled_are_no_errors_of_the_loop(
    world: World,
) -> None:
    loop = asyncio.get_running_loop()
    errors: list[object] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    for ending, tell in world.ways():
        ending.ready.clear()
        with pytest.raises(TimedOut):
            await tell()
        ending.error = Unavailable("nobody hears this")
        ending.ready.set()
        await asyncio.sleep(1.0)
        ending.ready.clear()
        with pytest.raises(TimedOut):
            await tell()
        world.closes_after[-1].cancel()
        await asyncio.sleep(1.0)
        world.closes_after.clear()
    gc.collect()
    assert errors == []


async def test_a_refusal_is_passed_on_as_it_is(world: World) -> None:
    for ending, tell in world.ways():
        ending.error = PulsarError(ServerError.SERVICE_NOT_READY, "is being unloaded")
        with pytest.raises(PulsarError) as refusal:
            await tell()
        assert refusal.value.message == "is being unloaded"
