"""One seed: owners, clients and troubles for a while, then everything is well again, and what was promised is looked
for."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.core.errors import MagnetarError
from magnetar.sim.trace import Trace
from magnetar.sim.virtual_time import VirtualTimeLoop

from e2e.managed_histories.clients import PublishingClient, Subscriber
from e2e.managed_histories.mistakes import MISTAKES
from e2e.managed_histories.parameters import PAUSES_SECONDS, PRODUCERS, SUBSCRIPTIONS, draw_parameters
from e2e.managed_histories.world import NAME, Owner, ToldLeftOver, World, named_ledgers
from e2e.simulation.planting import planted

PATIENCE_SECONDS: Final = 2_000.0
"""Virtual: how long what was begun may take once nothing fails any more."""

SETTLING_SECONDS: Final = 10.0
"""Virtual: after this nothing of former owners is under way."""

ENDING_SECONDS: Final = 100.0
"""Virtual: after this what was cancelled is cancelled again."""

OWED_SECONDS: Final = 30.0
"""Virtual: longer than any lag."""

CLIENT_STEPS_MEANWHILE: Final = 8
"""What clients ask of the former owner while another one opens the topic."""

MOMENT_SHARE: Final = 0.25
"""Takeovers during which some bookies are away for a moment."""

ATTEMPTS_MAX: Final = 20


@dataclass(slots=True)
class Verdict:
    """What came of one seed."""

    seed: int
    violations: list[str]
    trace_digest: str
    trace_lines: list[str] = field(repr=False)
    """Empty unless the trace was to be kept."""
    looks: int = 0
    published: int = 0
    owners: int = 0
    virtual_seconds: float = 0.0
    real_seconds: float = 0.0


def run_seed(seed: int, *, mistake: str | None = None, keep_trace: bool = False) -> Verdict:
    """The same verdict and the same trace, whenever and wherever it runs."""
    parameters = draw_parameters(seed)
    trace = Trace(keep=keep_trace)
    began = time.perf_counter()
    with planted(MISTAKES[mistake] if mistake else None), _loop() as loop:
        trace.follow(loop.time)
        world = World(parameters, trace)
        trace.remark("history", repr(parameters))
        with ToldLeftOver(world):
            history = History(world)
            try:
                loop.run_until_complete(history.run())
                virtual_seconds = loop.time()
                loop.run_until_complete(_look(world))
            except Exception as error:  # noqa: BLE001  (whatever it is, the seed must be named)
                world.violated(f"the history failed with {error!r}")
                virtual_seconds = loop.time()
    return Verdict(
        seed=seed,
        violations=world.violations,
        trace_digest=trace.digest,
        trace_lines=trace.lines,
        looks=len(world.looks),
        published=len(world.promises.published),
        owners=history.owners,
        virtual_seconds=virtual_seconds,
        real_seconds=time.perf_counter() - began,
    )


_NO_LOG: Final = logging.NullHandler()
"""What a seed logs is in its trace."""


def run_batch(work: tuple[range, str | None]) -> list[Verdict]:
    """Some seeds in a row, with a planted mistake or none; for a pool of processes."""
    logging.getLogger().addHandler(_NO_LOG)
    seeds, mistake = work
    return [run_seed(seed, mistake=mistake) for seed in seeds]


@contextlib.contextmanager
def _loop() -> Iterator[VirtualTimeLoop]:
    loop = VirtualTimeLoop()
    asyncio.set_event_loop(loop)
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield loop
    finally:
        while tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            # Once more: as it ends, a dead owner's work asks again for something, and is not answered.
            loop.run_until_complete(asyncio.wait(tasks, timeout=ENDING_SECONDS))
        asyncio.set_event_loop(None)
        loop.close()
        if collecting:
            gc.enable()


async def _look(world: World) -> None:
    """Whether at each look a fresh owner would have found what was promised."""
    for look in world.looks:
        world.violations += await look.broken()


class History:
    """Drives one world."""

    def __init__(self, world: World) -> None:
        self.owners = 0
        self._world = world
        self._rng = world.rng
        self._producers = [PublishingClient(world, name) for name in PRODUCERS]
        self._subscribers = [Subscriber(world, name) for name in SUBSCRIPTIONS]
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """All of it."""
        world = self._world
        await self._take_over()
        for _ in range(world.parameters.steps):
            await self._step()
            await asyncio.sleep(self._rng.choice(PAUSES_SECONDS))
        await world.heal()
        await self._finish_tasks()
        await self._serve_again()
        await self._end()

    async def _step(self) -> None:
        world, rng = self._world, self._rng
        world.promises.release()
        owner = world.owners[-1] if world.owners else None
        if owner is None or not owner.usable:
            await self._take_over()
            return
        if rng.random() < world.parameters.trouble_share:
            await self._trouble()
            return
        if len(world.owners) > 1 and rng.random() < 0.3:
            owner = rng.choice(world.owners)  # Clients that do not know better.
            if not owner.usable:
                return
        tiered, chance = world.parameters.tiered, world.tiered_rng
        if tiered is not None and chance.random() < tiered.steps_share:
            await self._tiered_step(owner)
            return
        kind = rng.choices(("client", "control", "time", "upkeep"), (80, 10, 5, 5))[0]
        if kind == "client":
            self._client_step(owner)
        elif kind == "control":
            self._control(owner, rng.choice(self._subscribers))
        elif kind == "time":
            await asyncio.sleep(rng.choice((1.0, 30.0, 130.0)))
        else:
            self._upkeep(owner)

    def _client_step(self, owner: Owner) -> None:
        """A producer or a subscriber asks for something, if the owner still takes it."""
        rng = self._rng
        if not owner.usable:
            return
        subscriber = rng.choice(self._subscribers)
        kind = rng.choices(("send", "acknowledge", "persist"), (3, 2, 3))[0]
        if kind == "send":
            rng.choice(self._producers).send(owner, rng.randint(1, 4))
            return
        subscriber.acknowledge(owner)
        if kind == "persist":
            subscriber.persist(owner)

    def _control(self, owner: Owner, subscriber: Subscriber) -> None:
        """What an administrator or a new consumer does. With a former owner alive nobody is deleted: a cursor that is
        made anew begins at version 0 again, as in Pulsar, and compare-and-set does not tell it from the one before."""
        rng, world = self._rng, self._world
        alone = len(world.owners) == 1 and not any(each.session.late_writes for each in world.dead)
        if subscriber.cursor(owner) is None:
            if alone and world.owners[-1] is owner:
                self._start(owner, subscriber.subscribe(owner))
            return
        kinds = ["reset", "skip", "properties", *(["delete", "delete"] if alone else [])]
        kind = rng.choice(kinds)
        if kind == "reset":
            self._start(owner, subscriber.reset(owner))
        elif kind == "skip" and not subscriber.promised.busy:
            self._start(owner, subscriber.skip(owner))
        elif kind == "properties" and not subscriber.promised.busy:
            self._start(owner, subscriber.set_properties(owner))
        elif kind == "delete":
            self._start(owner, subscriber.delete(owner))

    def _upkeep(self, owner: Owner) -> None:
        assert owner.ledger is not None
        kind = self._rng.choice(("roll", "property", "trim", "snapshot", "silence"))
        if kind == "roll":
            self._start(owner, owner.ledger.roll())
        elif kind == "property":
            self._start(owner, owner.ledger.set_property("k", str(self._rng.random())))
        elif kind == "trim":
            owner.ledger.trim_later()
        elif kind == "silence":
            self._start(owner, owner.ledger.roll_if_due())
        elif owner.deduplication is not None:
            owner.deduplication.maintain(1)

    async def _tiered_step(self, owner: Owner) -> None:
        """Something that has to do with tiered storage."""
        world, chance = self._world, self._world.tiered_rng
        assert owner.ledger is not None
        kind = chance.choice(("roll", "ask", "ask", "due", "trouble", "time", "look", "death"))
        if kind == "roll":
            self._start(owner, owner.ledger.roll())
        elif kind == "ask":
            ledger_id = chance.choice(owner.ledger.ledgers.ids)
            world.note(owner.name, f"is asked to offload what is before ledger {ledger_id}")
            self._start(owner, owner.ledger.offloads.offload_before((ledger_id, 0)))
        elif kind == "due":
            owner.ledger.offloads.later()
        elif kind == "trouble":
            world.objects.trouble = not world.objects.trouble
            world.note("objects", "are in trouble" if world.objects.trouble else "are well")
        elif kind == "time":
            await asyncio.sleep(chance.choice((0.1, 1.0, 12.0, 25.0)))
        elif kind == "look":
            await world.witness.look_at_list("while it is used")
        elif owner.ledger.offloads.under_way is not None:
            await owner.kill()

    async def _trouble(self) -> None:
        world, rng = self._world, self._rng
        kind = rng.choice(("store", "store", "ledgers", "ledgers", "owner"))
        if kind == "store":
            world.trouble = not world.trouble
            world.note("store", "is in trouble" if world.trouble else "is well")
        elif kind == "ledgers":
            if rng.random() < 0.5:
                world.storage.heal()
                world.note("ledgers", "are well")
            else:
                world.note("ledgers", world.storage.trouble(rng))
        else:
            await self._take_over()

    async def _take_over(self) -> None:
        """Another owner opens the topic. The one before dies, closes it first, or lives on."""
        world, rng = self._world, self._rng
        if world.owners:
            if rng.random() >= world.parameters.zombie_share:
                if rng.random() < 0.5:
                    await world.owners[-1].kill()
                else:
                    await world.owners[-1].close()
            while len(world.owners) > 2:
                await world.owners[0].kill()
        owner = Owner(world, self.owners)
        self.owners += 1
        former = world.owners[-1] if world.owners else None
        world.owners.append(owner)
        if rng.random() < MOMENT_SHARE:
            world.note("ledgers", world.storage.trouble(rng, for_a_moment=True))
            asyncio.get_running_loop().call_later(rng.uniform(0.5, 3.0), world.storage.heal)
        opening = asyncio.get_running_loop().create_task(owner.open())
        for _ in range(CLIENT_STEPS_MEANWHILE):
            if former is not None and not opening.done():
                self._client_step(former)
            await asyncio.sleep(rng.random() * world.parameters.delay_seconds)
        if not await opening:
            await owner.kill()

    async def _finish_tasks(self) -> None:
        if self._tasks:
            _, unfinished = await asyncio.wait(self._tasks, timeout=PATIENCE_SECONDS)
            stuck = [task for task in unfinished if task.get_name() not in {each.name for each in self._world.dead}]
            if stuck:
                self._world.violated(f"{len(stuck)} requests of clients do not come to an end")

    async def _serve_again(self) -> None:
        """Nothing fails any more: whoever owns the topic must take messages and acknowledgements."""
        world = self._world
        if not world.owners or not world.owners[-1].usable:
            await self._take_over()
        for attempt in range(ATTEMPTS_MAX):
            owner = world.owners[-1]
            if not owner.usable:
                owner.check_fence(None)
                await self._take_over()
                continue
            for producer in self._producers:
                producer.send(owner, 1 if attempt == 0 else 0)
            for subscriber in self._subscribers:
                if subscriber.cursor(owner) is None and len(world.owners) == 1:
                    await subscriber.subscribe(owner)
                subscriber.acknowledge(owner)
                subscriber.persist(owner)
            await asyncio.sleep(10.0)
            if all(producer.answered for producer in self._producers) and owner.usable:
                break
        else:
            world.violated("producers get no receipts though nothing fails any more")
        world.look_later("the end")

    async def _end(self) -> None:
        """Everybody goes; the topic is opened and closed once more, or deleted: then no ledger may be left over."""
        world = self._world
        for owner in list(reversed(world.owners)):
            await owner.close()
        await asyncio.sleep(SETTLING_SECONDS)
        world.look_later("the end, after all owners have gone")
        last = Owner(world, self.owners)
        world.owners.append(last)
        self.owners += 1
        if not await last.open():
            world.violated("nobody can open the topic at the end")
            return
        if world.parameters.tiered is not None:
            await self._settle_objects(last)
        if world.parameters.delete_at_end:
            world.witness.deleting = True
            try:
                await last.factory.delete(NAME)
            except MagnetarError as error:
                world.violated(f"the topic cannot be deleted: {error!r}")
        await last.close()
        named = await named_ledgers(world.store)
        stored = await world.storage.stored(world.store)
        if world.parameters.delete_at_end:
            world.looks = [look for look in world.looks if "the end" not in look.why]
            if named:
                world.violated(f"the topic is deleted, and names {sorted(named)}")
        if left := sorted(stored - named - world.excused):
            world.violated(f"the ledgers {left} are left over, and nobody told of them")
        if missing := sorted(named - stored):
            world.violated(f"the ledgers {missing} are named, and are not there")
        for what in (*world.witness.violations, *await world.witness.left_over()):
            world.violated(what)

    async def _settle_objects(self, last: Owner) -> None:
        """What is owed is done within a while, by an owner that came when all was well."""
        assert last.ledger is not None
        offloads = last.ledger.offloads
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await offloads.until_idle()
                await asyncio.sleep(OWED_SECONDS)
                await offloads.until_idle()
        except TimeoutError:
            self._world.violated("offloads do not come to an end though nothing fails any more")
        await self._world.witness.look_at_list("at the end")

    def _start(self, owner: Owner, request: Coroutine[Any, Any, None]) -> None:
        async def guarded() -> None:
            with contextlib.suppress(MagnetarError):
                await request

        task = asyncio.get_running_loop().create_task(guarded(), name=owner.name)
        self._tasks.append(task)
