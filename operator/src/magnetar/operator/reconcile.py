"""One pass over one resource: look, plan, carry out, tell."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec
from magnetar.core.clock import Clock
from magnetar.operator.api import ApiServer
from magnetar.operator.apply import ActionExecutor, Applied, Subject
from magnetar.operator.children.context import Defaults
from magnetar.operator.children.naming import OwnerResource
from magnetar.operator.control.controls import Controls
from magnetar.operator.custom import owner_of, read_status
from magnetar.operator.failures import failure_of, together, unreadable
from magnetar.operator.kubernetes.errors import AlreadyExists, Conflict, NotFound, Refused, ServerUnavailable
from magnetar.operator.kubernetes.kinds import PULSAR_CLUSTER, Manifest
from magnetar.operator.observe import Observer
from magnetar.operator.plan.actions import VOLUME_GROWN, Action, BundleAction, EmitEvent, Plan, SetFinalizer
from magnetar.operator.plan.cluster.status import without_moves
from magnetar.operator.plan.conditions import Obstacle, hindered, says
from magnetar.operator.plans import BalancePlanner, Plans
from magnetar.operator.resources.bookie import BookieStatus
from magnetar.operator.resources.cluster import BalanceSpec, PulsarClusterStatus

LOOK_AGAIN_SECONDS: Final = 1.0
"""After somebody else has changed what the pass was about to."""
INTERRUPTIONS_MAX: Final = 20
"""Passes in a row that ended so. A view that was old is not after that many: what is in the way stays there."""
MOVES_SECONDS_MAX: Final = 60.0
"""How long a pass moves and splits bundles, half of what it may take: each may take 30 s if a broker hangs, and the
status comes after them. What is left over is decided anew."""

logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One resource that is looked after."""

    kind: str
    """The resource's kind: PulsarCluster or Bookie."""
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def _always() -> bool:
    return True


def _untold(*_: object) -> None:
    """There are no metrics."""


class EventWriter(Protocol):
    """Where Events of resources go."""

    async def tell(self, owner: OwnerResource, event: EmitEvent) -> None:
        """Write it, or count it up. Never fails: what cannot be written is dropped."""
        ...

    def forget(self, namespace: str, kind: str, name: str) -> None:
        """Forget a resource that is gone."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """All that a pass touches."""

    api: ApiServer
    controls: Controls
    clock: Clock
    defaults: Defaults
    events: EventWriter
    make_token: Callable[[], str]
    """A new secret for control ports."""
    plans: Plans = field(default_factory=Plans)
    carried_out: Callable[[Key, Action], None] = _untold
    """Told of each action, for the metrics."""
    found: Callable[[Key, PulsarClusterStatus | BookieStatus | None], None] = _untold
    """Told what is so now, for the metrics; None: the resource is gone."""
    may_act: Callable[[], bool] = _always
    """Whether anything may be done yet: a process that was stopped for a while goes on in the middle of a pass, and
    another operator may lead by then. What reaches pods is not fenced off by anybody else."""


@dataclass(slots=True, eq=False)
class _Memory:
    """What spares work on one resource, and what balancing has seen. A new process does without."""

    applied: Applied = field(default_factory=Applied)
    balancing: BalancePlanner | None = None
    balance_spec: BalanceSpec | None = None
    balanced_seconds: float = 0.0
    failures: int = 0
    """Passes in a row that did not get to their end, all for the same kind of reason."""
    failure: str = ""
    """The kind of reason for which the last passes failed."""
    planned: dict[str, Any] | None = None
    """The status by the plan of the pass that is under way, if there is one already."""
    undone: list[BundleAction] = field(default_factory=list)
    """The moves that were just decided and that the pass has not tried, or that failed."""

    def failed(self, failure: str) -> int:
        """One more of this kind. Gives how many there were in a row."""
        self.failures = self.failures + 1 if failure == self.failure else 1
        self.failure = failure
        return self.failures


class Reconciler:
    """Passes. It runs on any event loop: no threads, no other clock than the given one, no sleeping but `asyncio`'s."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        self._observer = Observer(
            dependencies.api, dependencies.controls, dependencies.clock, dependencies.defaults, dependencies.plans
        )
        self._memories: dict[tuple[Key, str], _Memory] = {}
        """By resource and its uid; as many as there are resources."""

    async def reconcile(self, key: Key) -> float | None:
        """Do one pass. Gives the seconds after which to look again at the latest; None: the resource is gone.

        Raises `ServerUnavailable`, `Refused`, `ControlRefused`, `ControlUnavailable`, `SettingError` (a resource that
        this version cannot read, nor could before): try again later. What others have changed meanwhile is no error:
        the next pass sees it. Whatever ends a pass for good, or time and again, stands in the status."""
        manifest = await self._dependencies.api.get(key.kind, key.namespace, key.name)
        if manifest is None:
            self._forget(key)
            return None
        memory = self._memory(key, manifest)
        memory.planned = None
        try:
            manifest = await self._keep_spec(key, manifest)
            if key.kind == PULSAR_CLUSTER:
                wait_seconds = await self._cluster(key, manifest, memory)
            else:
                wait_seconds = await self._pool(key, manifest, memory)
        except (NotFound, AlreadyExists, Conflict) as error:
            logger.debug("%s: %s", key, error)
            if memory.failed("interrupted") < INTERRUPTIONS_MAX:
                return LOOK_AGAIN_SECONDS
            stays = Refused(_in_the_way(error))
            await self._tell_failure(key, manifest, memory, stays)
            raise stays from None
        except Exception as error:
            memory.failed(type(error).__name__)
            await self._tell_failure(key, manifest, memory, error)
            raise
        memory.failures = 0
        return wait_seconds

    async def _keep_spec(self, key: Key, manifest: Manifest) -> Manifest:
        """Before anything is done by it: another process must not go back to an older one. Gives the resource as it is
        then. One that may not be annotated is looked after all the same. `Conflict` if it has changed by now."""
        metadata = manifest["metadata"]
        changes = self._observer.specs.to_keep(manifest) if "deletionTimestamp" not in metadata else {}
        if not changes:
            return manifest
        patch = {"metadata": {"annotations": changes, "resourceVersion": metadata["resourceVersion"]}}
        try:
            return await self._dependencies.api.patch(key.kind, key.namespace, key.name, patch, uid=metadata["uid"])
        except Refused as error:
            logger.info("%s: its spec is not kept for other processes: %s", key, error)
            return manifest

    async def _tell_failure(self, key: Key, manifest: Manifest, memory: _Memory, error: Exception) -> None:
        """By an Event, and in the status: what that says otherwise is not looked after any more."""
        failure = failure_of(error, memory.failures)
        owner = owner_of(manifest)
        if failure.event is not None and not self._says(key, manifest, failure.obstacle):
            await self._dependencies.events.tell(owner, failure.event)
        status = memory.planned
        if failure.obstacle is None and (status is None or not failure.planned):
            return
        if status is None:
            status = manifest["status"] if _status(key, manifest.get("status")) is not None else {}
        try:
            await self._write_status(key, manifest, status, failure.obstacle)
        except (NotFound, Conflict, Refused, ServerUnavailable) as unwritten:
            # The next pass says it.
            logger.debug("%s: its status is not written: %s", key, unwritten)

    async def _cluster(self, key: Key, manifest: Manifest, memory: _Memory) -> float:
        spec = (manifest.get("spec") or {}).get("balance")
        due_seconds = self._balance_due(memory, spec)
        with_load = due_seconds is not None and due_seconds <= 0
        view = await self._observer.cluster(manifest, with_load=with_load)
        seen = view.seen
        moves: Sequence[BundleAction] = ()
        if seen.load is not None:
            moves = self._balance(memory, seen.cluster.spec.balance).round(seen.load)
            memory.balanced_seconds = self._dependencies.clock.monotonic_seconds()
            due_seconds = seen.cluster.spec.balance.interval_seconds
        elif with_load:
            # No broker answers: the next pass asks again, which comes as soon as one is ready.
            due_seconds = None
        plan = self._dependencies.plans.cluster(seen, moves)
        subject = Subject(owner=seen.cluster.owner, manifest=manifest, cluster=seen.cluster, view=view)
        memory.undone = list(moves)
        # Whoever deletes a paused cluster wants it gone.
        paused = seen.cluster.spec.paused and not seen.resource.deleting
        try:
            await self._carry_out(key, plan, subject, memory, paused=paused)
        finally:
            for move in memory.undone:
                self._move_failed(memory, move)
        requeue_after = plan.requeue_after_seconds
        return requeue_after if due_seconds is None else min(requeue_after, max(due_seconds, LOOK_AGAIN_SECONDS))

    async def _pool(self, key: Key, manifest: Manifest, memory: _Memory) -> float:
        view = await self._observer.pool(manifest)
        seen = view.seen
        plan = self._dependencies.plans.pool(seen)
        subject = Subject(owner=seen.owner, manifest=manifest, cluster=seen.cluster, view=view)
        # As above: of a pool, what goes with its cluster.
        going = seen.cluster_resource is not None and seen.cluster_resource.deleting
        paused = seen.cluster is not None and seen.cluster.spec.paused and not going
        await self._carry_out(key, plan, subject, memory, paused=paused)
        return plan.requeue_after_seconds

    async def _carry_out(self, key: Key, plan: Plan, subject: Subject, memory: _Memory, *, paused: bool) -> None:
        """Actions, then the status: it is told even if an action failed, so that people see what is the matter."""
        memory.applied.keep(subject.view.versions)
        memory.planned = plan.status
        obstacle = unreadable(subject.view.unreadable) if subject.view.unreadable else None
        if obstacle is not None:
            memory.planned = self._hindered(key, subject.manifest, plan.status, obstacle)
            if not self._says(key, subject.manifest, obstacle):
                await self._dependencies.events.tell(
                    subject.owner, EmitEvent("Warning", obstacle.reason, obstacle.message)
                )
        try:
            await self._act(key, plan, subject, memory, paused=paused)
        finally:
            if memory.planned is not None:
                memory.planned = without_moves(memory.planned, memory.undone, subject.view.seen.now_seconds)
        await self._write_status(key, subject.manifest, memory.planned)

    async def _act(self, key: Key, plan: Plan, subject: Subject, memory: _Memory, *, paused: bool) -> None:
        """All of the plan, but for what depends on what the API server refuses: that is raised in the end."""
        executor = ActionExecutor(self._dependencies.api, self._dependencies.controls, subject, memory.applied)

        def allowed(actions: Sequence[Action]) -> list[Action]:
            return [action for action in actions if not paused or isinstance(action, EmitEvent | SetFinalizer)]

        await self._act_in_order(key, allowed(plan.first), executor, memory)
        refusals: list[Refused] = []
        for group in plan.groups:
            try:
                await self._act_in_order(key, allowed(group), executor, memory)
            except Refused as error:
                refusals.append(error)
        if executor.growth_refused is not None:
            refusals.append(executor.growth_refused)
        rest = plan.asked if refusals or subject.view.unreadable else [*plan.told, *plan.asked]
        await self._act_in_order(key, allowed(rest), executor, memory)
        if refusals:
            raise together(refusals)

    async def _act_in_order(
        self, key: Key, actions: Sequence[Action], executor: ActionExecutor, memory: _Memory
    ) -> None:
        for action in actions:
            if not self._dependencies.may_act():
                raise ServerUnavailable("this operator does not lead any more")
            if isinstance(action, EmitEvent):
                if executor.growth_refused is None or action.reason != VOLUME_GROWN:
                    await self._dependencies.events.tell(executor.owner, action)
            elif isinstance(action, BundleAction):
                await self._move(key, action, executor, memory)
            elif await executor.carry_out(action, self._dependencies.make_token):
                self._dependencies.carried_out(key, action)

    async def _move(self, key: Key, action: BundleAction, executor: ActionExecutor, memory: _Memory) -> None:
        if self._dependencies.clock.monotonic_seconds() - memory.balanced_seconds > MOVES_SECONDS_MAX:
            return
        memory.undone = [move for move in memory.undone if move != action]
        if await executor.move(action):
            self._dependencies.carried_out(key, action)
        else:
            memory.undone.append(action)

    def _says(self, key: Key, manifest: Manifest, obstacle: Obstacle | None) -> bool:
        """Whether the status says it already: what lasts is told once."""
        before = _status(key, manifest.get("status"))
        return before is not None and obstacle is not None and says(before.conditions, obstacle)

    def _hindered(self, key: Key, manifest: Manifest, status: dict[str, Any], obstacle: Obstacle) -> dict[str, Any]:
        before = _status(key, manifest.get("status"))
        previous = before.conditions if before is not None else ()
        generation = manifest["metadata"].get("generation", 0)
        return hindered(status, previous, obstacle, generation, self._dependencies.clock.now_ms() / 1000)

    async def _write_status(
        self, key: Key, manifest: Manifest, status: dict[str, Any], obstacle: Obstacle | None = None
    ) -> None:
        if obstacle is not None:
            status = self._hindered(key, manifest, status, obstacle)
        wanted = _status(key, status)
        self._dependencies.found(key, wanted)
        if wanted is None or _in_order(wanted) == _in_order(_status(key, manifest.get("status"))):
            return
        owner = owner_of(manifest)
        metadata = {"name": owner.name, "namespace": owner.namespace, "uid": owner.uid}
        identity = {"apiVersion": manifest["apiVersion"], "kind": owner.kind, "metadata": metadata}
        try:
            await self._dependencies.api.apply_status({**identity, "status": status})
        except NotFound:
            # It went with its last finalizer.
            return

    def _balance_due(self, memory: _Memory, spec: object) -> float | None:
        """In how many seconds a round of balancing is due; None: the operator does not balance this cluster, or nobody
        can read whether it does."""
        if not isinstance(spec, dict) or spec.get("driver") != "Operator":
            memory.balancing = None
            return None
        if memory.balancing is None:
            return 0.0
        assert memory.balance_spec is not None
        passed = self._dependencies.clock.monotonic_seconds() - memory.balanced_seconds
        return memory.balance_spec.interval_seconds - passed

    def _balance(self, memory: _Memory, spec: BalanceSpec) -> BalancePlanner:
        if memory.balancing is None or memory.balance_spec != spec:
            memory.balancing, memory.balance_spec = self._dependencies.plans.balancing(spec), spec
        return memory.balancing

    def _move_failed(self, memory: _Memory, action: BundleAction) -> None:
        if memory.balancing is not None:
            memory.balancing.failed(action)

    def _memory(self, key: Key, manifest: Manifest) -> _Memory:
        uid = manifest["metadata"]["uid"]
        found = self._memories.get((key, uid))
        if found is None:
            self._forget(key)
            found = self._memories[key, uid] = _Memory()
        return found

    def _forget(self, key: Key) -> None:
        self._memories = {known: memory for known, memory in self._memories.items() if known[0] != key}
        self._observer.specs.forget(key.kind, key.namespace, key.name)
        self._dependencies.events.forget(key.namespace, key.kind, key.name)
        self._dependencies.found(key, None)


def _in_the_way(error: NotFound | AlreadyExists | Conflict) -> str:
    if isinstance(error, AlreadyExists):
        return f"{error}; it is not this resource's, or has lost the operator's labels: delete or rename it"
    return str(error)


def _status(key: Key, status: Any) -> PulsarClusterStatus | BookieStatus | None:
    if key.kind == PULSAR_CLUSTER:
        return read_status(status, PulsarClusterStatus)
    return read_status(status, BookieStatus)


def _in_order(status: PulsarClusterStatus | BookieStatus | None) -> PulsarClusterStatus | BookieStatus | None:
    """To be compared: the API server keeps conditions in the order in which each was first written."""
    if status is None:
        return None
    return msgspec.structs.replace(status, conditions=sorted(status.conditions, key=lambda one: one.type))
