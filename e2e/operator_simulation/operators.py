"""The operator's processes: its real loops, passes, events and sweep, woken as by a watch, killed at any moment, and
doubled. Only the Lease and the watches themselves are simulated."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable
from typing import Final

from magnetar.operator.children.context import Defaults
from magnetar.operator.children.naming import INSTANCE_LABEL, OwnerResource
from magnetar.operator.events import ApiEvents
from magnetar.operator.handlers import WATCHED, EventRouter
from magnetar.operator.kubernetes.kinds import BOOKIE_POOL, PULSAR_CLUSTER, Manifest
from magnetar.operator.loops import Loops
from magnetar.operator.plan.actions import EmitEvent
from magnetar.operator.reconcile import Dependencies, Key, Reconciler
from magnetar.operator.sweep import Sweep
from magnetar.sim.process import Process

from e2e.operator_simulation.api_server import SimulatedApi
from e2e.operator_simulation.controls import SimulatedControls
from e2e.operator_simulation.fates import pass_began
from e2e.operator_simulation.objects.admission import ORIGIN_SECONDS
from e2e.operator_simulation.world import NAMESPACE, World

LEASE_SECONDS: Final = (1.0, 15.0)
"""How long it takes until another one leads."""
OVERLAP_SECONDS: Final = (3.0, 25.0)
"""How long one that does not lead any more may go on without knowing it."""
PASSES_MAX: Final = 20_000
"""In one run, of all operators: more is a loop that never comes to rest."""

DEFAULTS: Final = Defaults(image_repository="registry.example/magnetar", version="1.0")
RESOURCES: Final = (PULSAR_CLUSTER, BOOKIE_POOL)


class SimulatedClock:
    """See `magnetar.core.clock.Clock`."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now

    def now_ms(self) -> int:
        """See `Clock`."""
        return int((ORIGIN_SECONDS + self._now()) * 1000)

    def monotonic_seconds(self) -> float:
        """See `Clock`."""
        return self._now()


class JudgedEvents:
    """The operator's own Events; what they are to tell is counted."""

    def __init__(self, world: World, events: ApiEvents) -> None:
        self._world = world
        self._events = events

    async def tell(self, owner: OwnerResource, event: EmitEvent) -> None:
        """See `magnetar.operator.reconcile.EventWriter`."""
        self._world.promises.told(f"{owner.kind} {owner.name}", event)
        await self._events.tell(owner, event)

    def forget(self, namespace: str, kind: str, name: str) -> None:
        """See `EventWriter`."""
        self._events.forget(namespace, kind, name)


class Operator:
    """One process."""

    def __init__(self, world: World, name: str, kill: Callable[[Operator], None]) -> None:
        self.name = name
        self.process = Process(name, name)
        world.loop.register(self.process)
        self.passes = 0
        self._world = world
        self._running: dict[Key, asyncio.Task[float | None]] = {}

        def die() -> None:
            kill(self)

        self._die = die
        rng = random.Random(f"{world.parameters.seed} {name}")
        clock = SimulatedClock(world.loop.time)
        self._api = SimulatedApi(world.server, world.network, name, die)
        self._reconciler = Reconciler(
            Dependencies(
                api=self._api,
                controls=SimulatedControls(world, name, die),
                clock=clock,
                defaults=DEFAULTS,
                events=JudgedEvents(world, ApiEvents(self._api, clock, name)),
                make_token=lambda: f"token-{rng.getrandbits(64):016x}",
            )
        )
        self._loops = Loops(self._pass, clock=clock, passed=self.passed, chance=rng)
        self._router = EventRouter(self._loops)

    def start(self) -> None:
        """What watches give first is all that there is."""
        self.process.start(self._sweep(), "sweep")
        for kind in (*RESOURCES, *WATCHED):
            for manifest in self._world.store.all(kind):
                self.hear(kind, None, manifest)

    def hear(self, kind: str, event_type: str | None, manifest: Manifest) -> None:
        """A watch tells of something."""
        if self.process.alive:
            self.process.context.copy().run(self._hear, kind, event_type, manifest)

    def passed(self, key: Key, seconds: float, failure: str) -> None:
        """One more is over."""
        self.passes += 1

    def cancel_passes(self) -> None:
        """As when they take too long."""
        for task in list(self._running.values()):
            task.cancel()

    def _hear(self, kind: str, event_type: str | None, manifest: Manifest) -> None:
        if kind in RESOURCES:
            self._router.resource(kind, event_type, manifest)
        else:
            self._router.child(manifest)

    async def _sweep(self) -> None:
        why = await Sweep(self._api, self._router, [NAMESPACE]).run()
        self._world.loop.trace.note(self.name, f"gives up: {why}")
        self._die()

    async def _pass(self, key: Key) -> float | None:
        pass_began.set(self._world.loop.time())
        task = self._running[key] = asyncio.ensure_future(self._reconciler.reconcile(key))
        try:
            return await task
        except asyncio.CancelledError:
            if task.cancelled():
                raise TimeoutError from None
            raise
        finally:
            del self._running[key]


class Operators:
    """Those that run, as the Lease would have it if nothing went wrong: one."""

    def __init__(self, world: World) -> None:
        self.running: list[Operator] = []
        self.started = 0
        self.faults = True
        self._world = world
        self._rng = random.Random(f"{world.parameters.seed} operators")
        self._passes_before = 0
        # A process may bring its own end about; what follows is not its own work.
        self._outside = contextvars.copy_context()
        world.store.listeners.append(self._changed)

    @property
    def passes(self) -> int:
        """Of all that ever ran."""
        return self._passes_before + sum(operator.passes for operator in self.running)

    def start(self) -> None:
        """Another one leads from now on."""
        self.started += 1
        operator = Operator(self._world, f"operator-{self.started}", self.kill)
        self.running.append(operator)
        self._world.loop.trace.note(operator.name, "leads")
        operator.start()

    def kill(self, operator: Operator) -> None:
        """Its process is gone; if there is no other, there will be."""
        if operator not in self.running:
            return
        self._world.loop.trace.note(operator.name, "is killed")
        operator.process.alive = False
        self._passes_before += operator.passes
        self.running.remove(operator)
        if not self.running:
            delay = self._rng.uniform(*LEASE_SECONDS)
            self._world.loop.call_later(delay, self._start_if_none, context=self._outside)

    def kill_any(self) -> None:
        """One of those that run."""
        if self.running:
            self.kill(self._rng.choice(self.running))

    def overlap(self) -> None:
        """Another one leads, and the one that did does not know yet."""
        if len(self.running) == 1:
            old = self.running[0]
            self.start()
            self._world.loop.call_later(self._rng.uniform(*OVERLAP_SECONDS), self.kill, old)

    def cancel_passes(self) -> None:
        """What is under way is cut off."""
        for operator in self.running:
            operator.cancel_passes()

    def heal(self) -> None:
        """One is left, and lives."""
        for operator in self.running[:-1]:
            self.kill(operator)
        self.faults = False
        self._start_if_none()

    def _start_if_none(self) -> None:
        if not self.running:
            self.start()

    def _changed(self, before: Manifest | None, after: Manifest | None) -> None:
        manifest = after if after is not None else before
        assert manifest is not None
        kind = manifest["kind"]
        if kind not in RESOURCES and (kind not in WATCHED or not _is_ours(manifest)):
            return
        event_type = "ADDED" if before is None else "MODIFIED" if after is not None else "DELETED"
        for operator in self.running:
            if not self.faults or self._rng.random() >= self._world.parameters.watch_loses:
                delay = self._rng.uniform(0.02, 0.4)
                self._world.loop.call_later(delay, operator.hear, kind, event_type, manifest)


def _is_ours(manifest: Manifest) -> bool:
    return INSTANCE_LABEL in manifest["metadata"].get("labels", {})
