"""The operator's processes: the real `Reconciler`, woken by changes as by a watch, killed and doubled at any moment."""

from __future__ import annotations

import asyncio
import random
import traceback
from collections.abc import Callable
from typing import Final

from magnetar.core.errors import MagnetarError
from magnetar.operator.api import BOOKIE_POOL, PULSAR_CLUSTER
from magnetar.operator.children.context import Defaults
from magnetar.operator.children.naming import INSTANCE_LABEL, POOL_LABEL, Manifest, Owner
from magnetar.operator.plan.actions import Tell
from magnetar.operator.reconcile import Key, Reconciler
from magnetar.operator.reconcile import World as Surroundings
from magnetar.sim.process import Process

from e2e.operator_simulation.admission import ORIGIN_SECONDS
from e2e.operator_simulation.api_server import SimulatedApi
from e2e.operator_simulation.controls import SimulatedControls
from e2e.operator_simulation.deciding import plans
from e2e.operator_simulation.fates import pass_began
from e2e.operator_simulation.world import World

PASS_SECONDS_MAX: Final = 120.0
BETWEEN_PASSES_SECONDS: Final = 0.2
BACK_OFF_SECONDS_MAX: Final = 60.0
LEASE_SECONDS: Final = (1.0, 15.0)
"""How long it takes until another one leads."""
OVERLAP_SECONDS: Final = (3.0, 25.0)
"""How long one that does not lead any more may go on without knowing it."""
PASSES_MAX: Final = 20_000
"""In one run, of all operators: more is a loop that never comes to rest."""

DEFAULTS: Final = Defaults(image_repository="registry.example/magnetar", version="1.0")


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


class Events:
    """See `magnetar.operator.reconcile.EventWriter`: they are counted."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def tell(self, owner: Owner, event: Tell) -> None:
        """See `EventWriter`."""
        self._world.promises.told(f"{owner.kind} {owner.name}", event)

    def forget(self, namespace: str, kind: str, name: str) -> None:
        """See `EventWriter`."""


class Operator:
    """One process."""

    def __init__(self, world: World, name: str, kill: Callable[[Operator], None]) -> None:
        self.name = name
        self.process = Process(name, name)
        self.passes = 0
        self._world = world
        self._rng = random.Random(f"{world.parameters.seed} {name}")
        self._wakers: dict[Key, asyncio.Event] = {}
        self._running: dict[Key, asyncio.Task[float | None]] = {}

        def die() -> None:
            kill(self)

        self._reconciler = Reconciler(
            Surroundings(
                api=SimulatedApi(world.server, world.network, name, die),
                controls=SimulatedControls(world, name, die),
                clock=SimulatedClock(world.loop.time),
                defaults=DEFAULTS,
                events=Events(world),
                make_token=lambda: f"token-{self._rng.getrandbits(64):016x}",
                plans=plans(),
            )
        )

    def wake(self, key: Key) -> None:
        """Something about this resource has changed, or it is new."""
        if not self.process.alive:
            return
        waker = self._wakers.get(key)
        if waker is None:
            self._wakers[key] = asyncio.Event()
            self.process.start(self._look_after(key), f"{key.kind} {key.name}")
        else:
            waker.set()

    def cancel_a_pass(self) -> None:
        """As when a pass takes too long."""
        for task in list(self._running.values()):
            task.cancel()

    async def _look_after(self, key: Key) -> None:
        waker = self._wakers[key]
        failures = 0
        while True:
            waker.clear()
            pass_began.set(self._world.loop.time())
            self.passes += 1
            seconds, failed = await self._pass(key)
            if seconds is None:
                del self._wakers[key]
                return
            failures = failures + 1 if failed else 0
            if failed:
                await asyncio.sleep(min(BACK_OFF_SECONDS_MAX, 2.0 ** (failures - 1)) * self._rng.uniform(0.5, 1.0))
                continue
            await asyncio.sleep(BETWEEN_PASSES_SECONDS)
            try:
                async with asyncio.timeout(seconds):
                    await waker.wait()
            except TimeoutError:
                continue

    async def _pass(self, key: Key) -> tuple[float | None, bool]:
        """The seconds until the next, and whether it failed."""
        world = self._world
        task = asyncio.ensure_future(self._reconciler.reconcile(key))
        self._running[key] = task
        try:
            async with asyncio.timeout(PASS_SECONDS_MAX):
                return await task, False
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            return 1.0, True
        except (MagnetarError, TimeoutError) as error:
            world.promises.remark(self.name, f"the pass over {key.kind} {key.name} failed: {error!r}")
            return 1.0, True
        except Exception as error:  # noqa: BLE001  (any other is a fault of the operator)
            world.promises.broken(f"a pass over {key.kind} {key.name} failed with {error!r}")
            for line in traceback.format_exception(error):
                world.promises.remark(self.name, line.rstrip())
            return 1.0, True
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
        for key in self._keys():
            operator.wake(key)

    def kill(self, operator: Operator) -> None:
        """Its process is gone; if there is no other, there will be."""
        if operator not in self.running or not self.faults:
            return
        self._world.loop.trace.note(operator.name, "is killed")
        operator.process.alive = False
        self._passes_before += operator.passes
        self.running.remove(operator)
        if not self.running:
            self._world.loop.call_later(self._rng.uniform(*LEASE_SECONDS), self._start_if_none)

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
            operator.cancel_a_pass()

    def heal(self) -> None:
        """One is left, and lives."""
        for operator in self.running[:-1]:
            self.kill(operator)
        self.faults = False
        self._start_if_none()

    def _start_if_none(self) -> None:
        if not self.running:
            self.start()

    def _keys(self) -> list[Key]:
        return [
            Key(kind, manifest["metadata"]["namespace"], manifest["metadata"]["name"])
            for kind in (PULSAR_CLUSTER, BOOKIE_POOL)
            for manifest in self._world.store.all(kind)
        ]

    def _changed(self, before: Manifest | None, after: Manifest | None) -> None:
        manifest = after if after is not None else before
        assert manifest is not None
        is_resource = manifest["kind"] in (PULSAR_CLUSTER, BOOKIE_POOL)
        # Resources that are new are never missed: the watch begins with a list.
        if not (is_resource and before is None) and self._rng.random() < self._world.parameters.watch_loses:
            return
        for key in self._concerned(manifest):
            for operator in self.running:
                self._world.loop.call_later(self._rng.uniform(0.02, 0.4), operator.wake, key)

    def _concerned(self, manifest: Manifest) -> list[Key]:
        metadata = manifest["metadata"]
        namespace, kind = metadata.get("namespace", ""), manifest["kind"]
        labels = metadata.get("labels", {})
        keys = []
        if kind in (PULSAR_CLUSTER, BOOKIE_POOL):
            keys.append(Key(kind, namespace, metadata["name"]))
        if kind == PULSAR_CLUSTER:
            keys += [key for key in self._keys() if key.kind == BOOKIE_POOL]
        if INSTANCE_LABEL in labels:
            keys.append(Key(PULSAR_CLUSTER, namespace, labels[INSTANCE_LABEL]))
        if POOL_LABEL in labels:
            keys.append(Key(BOOKIE_POOL, namespace, labels[POOL_LABEL]))
        # What is not there is nobody's to look after.
        return [key for key in keys if self._world.store.get(*_where(key)) is not None or key in self._watched()]

    def _watched(self) -> set[Key]:
        return {key for operator in self.running for key in operator._wakers}  # noqa: SLF001


def _where(key: Key) -> tuple[str, str, str]:
    return key.kind, key.namespace, key.name
