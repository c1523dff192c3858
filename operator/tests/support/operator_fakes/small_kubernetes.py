"""A small API server and pods that answer: for tests of what passes do with them, not of what servers do."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from magnetar.balance.model import LoadSnapshot
from magnetar.control.errors import ControlUnavailable
from magnetar.operator.children.naming import FIELD_MANAGER, OwnerResource
from magnetar.operator.control.controls import Driver
from magnetar.operator.kubernetes.errors import AlreadyExists, Conflict, NotFound
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.plan.actions import EmitEvent
from magnetar.operator.plan.facts import (
    BookieFacts,
    BrokerFacts,
    EnsembleFacts,
    LostBookieFacts,
    ReadOnlyBrokerFacts,
    ZookeeperFacts,
)
from magnetar.operator.resources.cluster import BundleMove

Answer = TypeVar("Answer")


class SettableClock:
    """Stands still until it is moved."""

    def __init__(self, now_seconds: float = 1_760_000_000.0) -> None:
        self.now_seconds = now_seconds

    def now_ms(self) -> int:
        return int(self.now_seconds * 1000)

    def monotonic_seconds(self) -> float:
        return self.now_seconds

    def advance(self, seconds: float) -> None:
        self.now_seconds += seconds


class SmallApiServer:
    """`ApiServer` in a dict. `calls` says what was asked of it; `failures` is raised instead, once each."""

    def __init__(self, known: Sequence[str] = ()) -> None:
        self.objects: dict[tuple[str, str, str], Manifest] = {}
        self.calls: list[tuple[str, str, str]] = []
        self.failures: dict[tuple[str, str], list[Exception]] = {}
        self.known = set(known)
        self._number = 0

    def put(self, manifest: Manifest) -> Manifest:
        """Have it there, whatever was."""
        metadata = manifest["metadata"]
        key = (manifest["kind"], metadata.get("namespace", ""), metadata["name"])
        before = self.objects.get(key)
        self._number += 1
        stored = copy.deepcopy(manifest)
        stored["metadata"].setdefault("uid", before["metadata"]["uid"] if before else f"uid-{self._number}")
        stored["metadata"]["resourceVersion"] = str(self._number)
        generation = before["metadata"].get("generation", 1) if before else 1
        changed = before is not None and before.get("spec") != stored.get("spec")
        stored["metadata"]["generation"] = generation + changed
        self.objects[key] = stored
        return copy.deepcopy(stored)

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        self._asked("get", kind, name)
        return copy.deepcopy(self.objects.get((kind, namespace, name)))

    async def list(self, kind: str, namespace: str | None, selector: str = "") -> Sequence[Manifest]:
        self._asked("list", kind, selector)
        found = []
        for (its_kind, its_namespace, _), manifest in sorted(self.objects.items()):
            if its_kind == kind and namespace in (None, its_namespace) and _selected(manifest, selector):
                found.append(copy.deepcopy(manifest))
        return found

    async def warnings(self, namespace: str, uid: str) -> Sequence[Manifest]:
        self._asked("warnings", "Event", uid)
        events = (
            event for (kind, its, _), event in sorted(self.objects.items()) if (kind, its) == ("Event", namespace)
        )
        return [copy.deepcopy(event) for event in events if event["involvedObject"]["uid"] == uid]

    async def apply(self, manifest: Manifest, *, manager: str = FIELD_MANAGER, dry_run: bool = False) -> Manifest:
        del manager
        self._asked("check" if dry_run else "apply", manifest["kind"], manifest["metadata"]["name"])
        before = self._find(manifest)
        if dry_run:
            return copy.deepcopy({**(before or {}), **manifest})
        return self.put({**(before or {}), **manifest, "metadata": {**manifest["metadata"], **_kept(before)}})

    async def apply_status(self, manifest: Manifest) -> Manifest:
        self._asked("apply_status", manifest["kind"], manifest["metadata"]["name"])
        before = self._find(manifest)
        if before is None:
            raise NotFound("no such object")
        return self.put({**before, "status": manifest["status"]})

    async def create(self, manifest: Manifest) -> Manifest:
        self._asked("create", manifest["kind"], manifest["metadata"]["name"])
        if self._find(manifest) is not None:
            raise AlreadyExists("it is there")
        return self.put(manifest)

    async def patch(self, kind: str, namespace: str, name: str, patch: Mapping[str, Any], *, uid: str) -> Manifest:
        self._asked("patch", kind, name)
        before = self.objects.get((kind, namespace, name))
        if before is None:
            raise NotFound("no such object")
        version = (patch.get("metadata") or {}).get("resourceVersion")
        if before["metadata"]["uid"] != uid or version not in (None, before["metadata"]["resourceVersion"]):
            raise Conflict("another one")
        return self.put(_merged(before, patch))

    async def delete(self, kind: str, namespace: str, name: str, *, uid: str, orphan: bool = False) -> None:
        del orphan
        self._asked("delete", kind, name)
        before = self.objects.get((kind, namespace, name))
        if before is not None and before["metadata"]["uid"] != uid:
            raise Conflict("another one")
        self.objects.pop((kind, namespace, name), None)

    async def knows(self, kind: str) -> bool:
        return kind in self.known

    def _find(self, manifest: Manifest) -> Manifest | None:
        metadata = manifest["metadata"]
        return self.objects.get((manifest["kind"], metadata.get("namespace", ""), metadata["name"]))

    def _asked(self, verb: str, kind: str, name: str) -> None:
        self.calls.append((verb, kind, name))
        if failures := self.failures.get((verb, kind)):
            raise failures.pop(0)


def _selected(manifest: Manifest, selector: str) -> bool:
    its_labels = manifest["metadata"].get("labels") or {}
    for part in filter(None, selector.split(",")):
        name, _, value = part.partition("=")
        if part.startswith("!") and part[1:] in its_labels:
            return False
        if not part.startswith("!") and its_labels.get(name) != value:
            return False
    return True


def _kept(before: Manifest | None) -> dict[str, Any]:
    return {name: before["metadata"][name] for name in ("uid", "generation")} if before else {}


def _merged(before: Any, patch: Any) -> Any:
    if not isinstance(patch, Mapping):
        return patch
    found = dict(before) if isinstance(before, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = _merged(found.get(name), value)
    return found


class SmallControls:
    """`Controls` of pods that answer by their addresses; those that are not listed do not. `calls` says what was told
    to whom."""

    def __init__(self) -> None:
        self.bookies: dict[str, BookieFacts] = {}
        self.brokers: dict[str, BrokerFacts] = {}
        self.read_only: dict[str, ReadOnlyBrokerFacts] = {}
        self.servers: dict[str, ZookeeperFacts] = {}
        self.lost: dict[str, LostBookieFacts] = {}
        self.under_replicated = 0
        self.ensembles: dict[str, EnsembleFacts] = {}
        self.latest: Sequence[BundleMove] = ()
        self.driven_by: Driver = "leader"
        self.load = LoadSnapshot(now_ms=0, brokers={})
        self.calls: list[tuple[str, ...]] = []
        self.refusals: list[Exception] = []

    async def bookie(self, address: str, token: str) -> BookieFacts:
        return self._answer(self.bookies, address)

    async def start_bookie_drain(self, address: str, token: str) -> None:
        self._told("start_bookie_drain", address, token)

    async def cancel_bookie_drain(self, address: str, token: str) -> None:
        self._told("cancel_bookie_drain", address, token)

    async def lost_bookie(self, address: str, token: str, bookie_id: str) -> LostBookieFacts:
        self._told("lost_bookie", address, bookie_id)
        return self._answer(self.lost, bookie_id)

    async def retire_lost_bookie(self, address: str, token: str, bookie_id: str) -> LostBookieFacts:
        self._told("retire_lost_bookie", address, bookie_id)
        return self._answer(self.lost, bookie_id)

    async def under_replicated_ledgers(self, address: str, token: str) -> int:
        self._told("under_replicated_ledgers", address)
        return self.under_replicated

    async def broker(self, address: str, token: str) -> BrokerFacts:
        return self._answer(self.brokers, address)

    async def read_only_broker(self, address: str) -> ReadOnlyBrokerFacts:
        return self._answer(self.read_only, address)

    async def largest_ensemble(self, address: str, token: str) -> EnsembleFacts:
        return self._answer(self.ensembles, address)

    async def start_broker_drain(self, address: str, token: str) -> None:
        self._told("start_broker_drain", address, token)

    async def cancel_broker_drain(self, address: str, token: str) -> None:
        self._told("cancel_broker_drain", address, token)

    async def moves(self, address: str, token: str) -> Sequence[BundleMove]:
        self._told("moves", address)
        return self.latest

    async def driver(self, address: str, token: str) -> Driver:
        self._told("driver", address)
        return self.driven_by

    async def set_driver(self, address: str, token: str, driver: Driver) -> None:
        self._told("set_driver", address, driver)

    async def load_snapshot(self, addresses: Sequence[str], token: str) -> LoadSnapshot:
        self._told("load_snapshot", *addresses)
        return self.load

    async def transfer_bundle(self, address: str, token: str, bundle: str, destination_broker_id: str) -> None:
        self._told("transfer_bundle", address, bundle, destination_broker_id)

    async def split_bundle(
        self, address: str, token: str, bundle: str, *, algorithm: str, boundaries: Sequence[int] = ()
    ) -> None:
        self._told("split_bundle", address, bundle, algorithm)

    async def zookeeper(self, address: str) -> ZookeeperFacts:
        return self._answer(self.servers, address)

    def _told(self, *call: str) -> None:
        self.calls.append(call)
        if self.refusals and call[0].startswith(("start", "cancel", "set", "retire", "transfer", "split")):
            raise self.refusals.pop(0)

    def _answer(self, answers: Mapping[str, Answer], name: str) -> Answer:
        if name not in answers:
            raise ControlUnavailable(f"{name}: no answer")
        return answers[name]


class RecordedEvents:
    """Events in a list."""

    def __init__(self) -> None:
        self.events: list[EmitEvent] = []
        self.forgotten: list[str] = []

    async def tell(self, owner: OwnerResource, event: EmitEvent) -> None:
        self.events.append(event)

    def forget(self, namespace: str, kind: str, name: str) -> None:
        self.forgotten.append(name)
