"""What the operator must never do, looked at in the very moment in which each of its calls is carried out.

A pass may have seen things as they were some seconds before it began. What was allowed then is allowed, but for what
would lose data: that must not be so even when it is carried out late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from magnetar.operator.children.context import BOOKIE_PORT
from magnetar.operator.children.naming import BOOKIE, COMPONENT_LABEL, FINALIZER, INSTANCE_LABEL, POOL_LABEL, ZOOKEEPER
from magnetar.operator.kubernetes.kinds import BOOKIE_POOL, PULSAR_CLUSTER, Manifest
from magnetar.operator.plan.actions import EmitEvent
from magnetar.sim.trace import Trace

from e2e.operator_simulation.metadata import Disk
from e2e.operator_simulation.objects.store import ObjectStore
from e2e.operator_simulation.order import END, SLEEP, left_behind
from e2e.operator_simulation.programs import Software
from e2e.operator_simulation.workloads import is_leaving, is_ready
from e2e.operator_simulation.writes import Looks, Wishes, Write

STALE_SECONDS: Final = 6.0
"""How old what a pass sees may be when it begins, with something to spare."""
STATUS_SECONDS: Final = 30.0
"""How old what it learns of others by their status may be."""
LATE_SECONDS: Final = 15.0
"""A call that is carried out so long after its pass began may be about what is not so any more."""
SAME_EVENTS_MAX: Final = 40
"""How often the very same may be told in a run."""
EVENTS_PER_MINUTE_MAX: Final = 60
"""That are written, of all resources."""
REFUSALS_TOLD_SECONDS: Final = 900.0
"""Until it must stand in the status that something was refused for good, where calls fail."""
REFUSALS_TOLD_CALM_SECONDS: Final = 20.0
"""The same where none does."""
VIOLATIONS_KEPT: Final = 40


class Promises:
    """Watches everything. `violations` is what was broken."""

    def __init__(self, store: ObjectStore, software: Software, trace: Trace, now: Callable[[], float]) -> None:
        self.violations: list[str] = []
        self.events: dict[tuple[str, EmitEvent], int] = {}
        """How often each was told, by resource."""
        self.writes = 0
        self.refusals = 0
        self._store = store
        self._software = software
        self._trace = trace
        self._now = now
        self._paused: dict[str, Wishes] = {}
        self._hibernated: dict[str, Wishes] = {}
        self._deleting: dict[str, Wishes] = {}
        self._with_volumes: dict[str, Wishes] = {}
        self._restarted: dict[tuple[str, str], tuple[str, float]] = {}
        """Pods that the operator deleted and that are not ready again: by kind of component and name, their uid and
        when that was."""
        self._ready_since: dict[str, float] = {}
        """Of pods of StatefulSets that serve now."""
        self._made_at: dict[str, float] = {}
        self._born: dict[str, float] = {}
        """When each object was made, by uid."""
        self._grown_at: dict[str, float] = {}
        """When a StatefulSet was last told to run more pods, by uid."""
        self._recent_events: list[float] = []
        self._refused: dict[tuple[str, str, str], tuple[int, float]] = {}
        """Resources of which something was refused for good: of which generation, and since when."""
        self.refusals_told_seconds = REFUSALS_TOLD_SECONDS
        self._last_scale_in: tuple[float, float] = (-1e9, 0.0)
        store.listeners.append(self._changed)

    # --- called by the server

    def before(self, write: Write) -> Looks:
        """Just before it is carried out."""
        self.writes += 1
        looks = Looks()
        before = write.before
        if write.kind == "Event":
            self._check_events(write)
        self._check_paused(write)
        if before is None:
            return looks
        uid = write.manifest["metadata"].get("uid")
        if uid and before["metadata"]["uid"] != uid:
            return looks
        if write.kind in ("StatefulSet", "Deployment"):
            looks.replicas = before["spec"]["replicas"]
        if write.verb == "delete":
            if not uid and self._came_late(before, write):
                self.broken("something is deleted that the pass cannot have seen", write)
            self._check_delete(write, before)
        elif write.kind == BOOKIE_POOL and write.verb in ("patch", "apply"):
            looks.problems = self._letting_go(write, before)
        return looks

    def after(self, write: Write, looks: Looks) -> None:
        """Just after it was carried out."""
        now = self._store.get(write.kind, write.namespace, write.name)
        if write.kind == BOOKIE_POOL and looks.problems:
            left = now["metadata"].get("finalizers", ()) if now is not None else ()
            if FINALIZER not in left:
                for problem in looks.problems:
                    self.broken(f"the pool {write.name} was let go of: {problem}", write)
        if looks.replicas is None or now is None or write.verb == "delete":
            return
        replicas = now["spec"]["replicas"]
        if replicas >= looks.replicas:
            return
        if replicas == 0:
            self._check_order(write, now, SLEEP.get(self._component(now), ()), STATUS_SECONDS)
        if write.kind == "Deployment":
            self._last_scale_in = (self._now(), write.pass_began)
        elif self._component(now) == BOOKIE and not self._may_stop(now, write):
            for ordinal in range(replicas, looks.replicas):
                pod = f"{write.name}-{ordinal}"
                grown = self._grown_at.get(now["metadata"]["uid"], 0.0) > write.pass_began
                if (undrained := self._undrained(pod, write.namespace)) and (grown or not self._is_new(pod, write)):
                    cut = f"{write.name} was cut from {looks.replicas} to {replicas}"
                    self.broken(f"{cut}: {undrained}", write)
        elif self._component(now) == ZOOKEEPER and not self._may_stop(now, write):
            self.broken(f"ZooKeeper was cut from {looks.replicas} to {replicas}", write)

    def refused(self, write: Write, message: str) -> None:
        """The server did not take it, which no correct operator brings about; but for what comes very late."""
        self.refusals += 1
        if self._now() - write.pass_began < LATE_SECONDS:
            self.broken(f"the server refused it: {message}", write)

    def refused_for_good(self, write: Write) -> None:
        """The server will never take it: a person has to correct the resource, whose status must say so by then. A pass
        may fail before it can, but not for ever."""
        key = self._resource_of(write)
        resource = self._store.get(*key)
        if resource is None or is_leaving(resource):
            return
        generation = resource["metadata"]["generation"]
        known, since = self._refused.get(key, (0, 0.0))
        if known != generation:
            self._refused[key] = (generation, self._now())
        elif self._now() - since > self.refusals_told_seconds and not _asks_for_a_person(resource):
            self.broken(f"{key[0]} {key[2]} does not say that it needs a person", write)
            self._refused[key] = (generation, self._now())

    def _resource_of(self, write: Write) -> tuple[str, str, str]:
        references = write.manifest["metadata"].get("ownerReferences", ())
        owner = next(reference for reference in references if reference.get("controller"))
        return owner["kind"], write.namespace, owner["name"]

    def told(self, resource: str, event: EmitEvent) -> None:
        """An Event."""
        self.note("events", f"{resource} {event.type} {event.reason}: {event.message}")
        count = self.events[resource, event] = self.events.get((resource, event), 0) + 1
        if count == SAME_EVENTS_MAX:
            self.broken(f"{resource} had {count} events {event.reason}: {event.message!r}")

    def asked(self, operator: str, namespace: str, cluster: str, what: str, began: float) -> None:
        """A pod was told by its control port to do something."""
        self.note(operator, what)
        if self._is_paused(cluster, began):
            self.broken(f"{cluster} is paused: {what}")

    def broker_goes(self, name: str, bundles: int, busy_since: float, cluster: str) -> None:
        """A Deployment's controller removes a broker because there are to be fewer, and it answers and has bundles."""
        _, began = self._last_scale_in
        wished = [*self._hibernated.values(), *self._deleting.values()]
        if busy_since < began - STALE_SECONDS and not any(wish.held_since(began - STALE_SECONDS) for wish in wished):
            self.broken(f"broker {name} of {cluster} was scaled away with {bundles} bundles")

    def disk_goes(self, uid: str) -> None:
        """A claim is gone, and its volume goes with it. Accidents never take the last copy."""
        software = self._software
        disk, metadata = software.disks.known(uid), software.last_metadata
        if disk is None or disk.cookie is None or metadata is None or disk.cookie[1] != metadata.instance:
            return
        if any(wish.held_since(self._now() - 120.0) for wish in self._with_volumes.values()):
            return
        for ledger in sorted(disk.ledgers):
            if software.disks.with_copy(metadata, ledger) == [disk]:
                self.broken(f"the last copy of ledger {ledger} is gone with {disk.claim}")

    def broken(self, what: str, write: Write | None = None) -> None:
        """A promise was."""
        text = f"at {self._now():.1f} s: {what}"
        if write is not None:
            text += f" (by {write.operator}: {write.verb} {write.kind} {write.name}, pass of {write.pass_began:.1f})"
        self._trace.note("promises", f"BROKEN {text}")
        if len(self.violations) < VIOLATIONS_KEPT:
            self.violations.append(text)

    def note(self, who: str, what: str) -> None:
        """For the trace."""
        self._trace.note(who, what)

    def remark(self, who: str, what: str) -> None:
        """For the trace's readers."""
        self._trace.remark(who, what)

    # --- single promises

    def _check_events(self, write: Write) -> None:
        self._recent_events = [when for when in self._recent_events if when > self._now() - 60] + [self._now()]
        if len(self._recent_events) == EVENTS_PER_MINUTE_MAX:
            self.broken(f"{EVENTS_PER_MINUTE_MAX} events were written in a minute", write)

    def _check_paused(self, write: Write) -> None:
        if write.verb == "apply_status" or write.kind in ("Event", "Lease") or _is_finalizer(write):
            return
        manifest = write.before if write.before is not None else write.manifest
        cluster = self._cluster_of(manifest)
        if cluster and self._is_paused(cluster, write.pass_began):
            self.broken(f"{cluster} is paused", write)

    def _is_paused(self, cluster: str, began: float) -> bool:
        paused, deleting = self._paused.get(cluster), self._deleting.get(cluster)
        if paused is None or (deleting is not None and deleting.holds):
            return False
        return paused.held_all_along_since(began - STALE_SECONDS)

    def _check_delete(self, write: Write, before: Manifest) -> None:
        if write.kind in ("StatefulSet", BOOKIE_POOL) and not write.manifest["orphan"]:
            component = self._component(before) or BOOKIE
            self._check_order(write, before, END.get(component, ()), STALE_SECONDS)
        if write.kind == "PersistentVolumeClaim":
            self._check_claim(write, before)
        elif write.kind == "StatefulSet" and not write.manifest["orphan"]:
            self._check_set(write, before)
        elif write.kind == "Pod" and self._component(before) in (BOOKIE, ZOOKEEPER) and not is_leaving(before):
            self._check_restart(write, before)
        elif write.kind == BOOKIE_POOL and not self._may_stop(before, write):
            self.broken("the operator deletes a pool of its own accord", write)

    def _check_order(self, write: Write, stops: Manifest, components: tuple[str, ...], seconds: float) -> None:
        cluster, since = self._cluster_of(stops), write.pass_began - seconds
        left = left_behind(self._store, self._born, (write.namespace, cluster), components, since)
        if left and self._may_stop(stops, write):
            self.broken(f"{write.name} stops while {', '.join(left)} is there", write)

    def _check_claim(self, write: Write, claim: Manifest) -> None:
        cluster = self._cluster_of(claim)
        wishes = self._with_volumes.get(cluster)
        if wishes is not None and wishes.held_since(write.pass_began - STALE_SECONDS):
            return
        disk = self._software.disks.known(claim["metadata"]["uid"])
        if disk is None:
            return
        if disk.metadata is not None:
            self.broken("a ZooKeeper server's claim is deleted", write)
            return
        pod = f"{claim['metadata']['labels'][POOL_LABEL]}-{BOOKIE}-{write.name.rpartition('-')[2]}"
        if disk.cookie is not None and (problem := self._needed(disk, pod, claim["metadata"]["namespace"])):
            self.broken(f"a claim is deleted that is needed: {problem}", write)

    def _needed(self, disk: Disk, pod: str, namespace: str) -> str | None:
        """Why a disk must not go."""
        metadata = self._software.last_metadata
        cookie = disk.cookie
        assert cookie is not None
        expected = _bookie_id(pod, namespace)
        if cookie[0] != expected:
            return f"it is {cookie[0]}'s, not {expected}'s"
        if metadata is None or cookie[1] != metadata.instance:
            return None
        if metadata.cookies.get(cookie[0]) == cookie:
            return f"the cluster knows {cookie[0]}"
        named = [ledger for ledger in metadata.naming(cookie[0]) if ledger in disk.ledgers]
        if named and metadata.cookies.get(cookie[0]) is None:
            return f"ledgers {named} name {cookie[0]}"
        return None

    def _check_set(self, write: Write, found: Manifest) -> None:
        if self._may_stop(found, write):
            return
        if self._component(found) == ZOOKEEPER:
            self.broken("ZooKeeper's StatefulSet is deleted with its pods", write)
        for ordinal in range(found["spec"]["replicas"]):
            if undrained := self._undrained(f"{write.name}-{ordinal}", write.namespace):
                self.broken(f"the StatefulSet is deleted with its pods: {undrained}", write)

    def _check_restart(self, write: Write, pod: Manifest) -> None:
        component, name = self._component(pod), write.name
        cluster = self._cluster_of(pod)
        if self._is_without_cluster(pod, write):
            return
        down = self._down(f"{cluster}/{component}", name, write)
        # One that the pass may have seen not working may be restarted at any time.
        since = self._ready_since.get(name, 0.0)
        seen_to_serve = since < write.pass_began - STALE_SECONDS
        made_since = self._made_at.get(name, 0.0) > write.pass_began
        served = is_ready(pod) and (seen_to_serve or made_since)
        if served and down and self._is_needed(component, name, write.namespace):
            self.broken(f"{name} is restarted while {', '.join(down)} is not back yet", write)
        if served and component == ZOOKEEPER and not down:
            self._check_quorum(write, cluster)
        self._restarted[f"{cluster}/{component}", name] = (pod["metadata"]["uid"], self._now())

    def _is_without_cluster(self, pod: Manifest, write: Write) -> bool:
        """It goes with its cluster, which is being deleted or gone, though there may be another of the same name."""
        cluster = self._store.get(PULSAR_CLUSTER, write.namespace, self._cluster_of(pod))
        if cluster is None or self._deleting[self._cluster_of(pod)].held_since(write.pass_began - STALE_SECONDS):
            return True
        pool = self._store.get(BOOKIE_POOL, write.namespace, pod["metadata"]["labels"].get(POOL_LABEL, ""))
        return pool is not None and is_leaving(pool) and self._is_of_an_earlier(pool, cluster)

    @staticmethod
    def _is_of_an_earlier(pool: Manifest, cluster: Manifest) -> bool:
        owners = {owner["uid"] for owner in pool["metadata"].get("ownerReferences", ())}
        return bool(owners) and cluster["metadata"]["uid"] not in owners

    def _down(self, group: str, name: str, write: Write) -> list[str]:
        """Pods that the operator has restarted and that are not back yet. What another pool does is seen by its status
        only, which may be some seconds old."""
        own = name.rpartition("-")[0]
        return [
            other
            for (of, other), (_, when) in self._restarted.items()
            if of == group
            and other != name
            and (other.rpartition("-")[0] == own or when < write.pass_began - STALE_SECONDS)
        ]

    def _check_quorum(self, write: Write, cluster: str) -> None:
        others = [
            pod
            for pod in self._store.all("Pod")
            if self._component(pod) == ZOOKEEPER
            and self._cluster_of(pod) == cluster
            and pod["metadata"]["name"] != write.name
        ]
        kubelet_says = [pod for pod in others if is_ready(pod) and not is_leaving(pod)]
        since = [
            self._unready_since.get(pod["metadata"]["name"], self._now()) for pod in others if pod not in kubelet_says
        ]
        if since and min(since) < write.pass_began - STALE_SECONDS:
            self.broken(f"{write.name} is restarted while another ZooKeeper server does not serve", write)

    def _is_needed(self, component: str, pod: str, namespace: str) -> bool:
        """A bookie that is drained may go at any time."""
        return component != BOOKIE or self._undrained(pod, namespace) is not None

    def _undrained(self, pod: str, namespace: str) -> str | None:
        """Why a bookie must not go for good."""
        metadata = self._software.last_metadata
        if metadata is None:
            return None
        bookie_id = _bookie_id(pod, namespace)
        if bookie_id in metadata.cookies:
            return f"{pod} is not drained: it has its cookie"
        if named := metadata.naming(bookie_id):
            return f"{pod} is not drained: ledgers {named} name it"
        return None

    def _is_new(self, pod: str, write: Write) -> bool:
        """A bookie that has come into being since the pass may have looked. It is stopped with nothing lost, and the
        claims stay until it is drained after all."""
        metadata = self._software.last_metadata
        assert metadata is not None
        made = metadata.cookies_made.get(_bookie_id(pod, write.namespace), 0.0)
        return made > write.pass_began - STALE_SECONDS

    def _came_late(self, found: Manifest, write: Write) -> bool:
        """It was made after the pass began. Those that name its uid have seen it all the same."""
        return self._born.get(found["metadata"]["uid"], 0.0) > write.pass_began

    def _letting_go(self, write: Write, pool: Manifest) -> list[str]:
        """Why a pool's finalizer must stay."""
        cluster = self._store.get(PULSAR_CLUSTER, write.namespace, pool["spec"]["clusterName"])
        if cluster is None or is_leaving(cluster) or FINALIZER not in pool["metadata"].get("finalizers", ()):
            return []
        if self._is_of_an_earlier(pool, cluster):
            return []
        found = self._store.get("StatefulSet", write.namespace, f"{write.name}-bookie")
        if found is None:
            return []
        ordinals = range(found["spec"]["replicas"])
        problems = [self._undrained(f"{write.name}-bookie-{ordinal}", write.namespace) for ordinal in ordinals]
        return [problem for problem in problems if problem]

    def _may_stop(self, manifest: Manifest, write: Write) -> bool:
        """The cluster was to hibernate, or to be deleted, when the pass saw it."""
        cluster = self._cluster_of(manifest)
        if self._store.get(PULSAR_CLUSTER, write.namespace, cluster) is None:
            return True
        wishes = [self._hibernated.get(cluster), self._deleting.get(cluster)]
        return any(wish is not None and wish.held_since(write.pass_began - STALE_SECONDS) for wish in wishes)

    # --- what is going on

    @property
    def _unready_since(self) -> dict[str, float]:
        return self._software.unready_since

    def _changed(self, before: Manifest | None, after: Manifest | None) -> None:
        manifest = after if after is not None else before
        assert manifest is not None
        now = self._now()
        uid = manifest["metadata"]["uid"]
        if before is None:
            self._born[uid] = now
        elif after is None:
            self._born.pop(uid, None)
        if manifest["kind"] == PULSAR_CLUSTER:
            self._wished(manifest, now, exists=after is not None)
        elif manifest["kind"] == "Pod" and self._component(manifest) in (BOOKIE, ZOOKEEPER):
            name = manifest["metadata"]["name"]
            group = f"{self._cluster_of(manifest)}/{self._component(manifest)}"
            if before is None:
                self._made_at[name] = now
            serves = after is not None and is_ready(after) and not is_leaving(after)
            if not serves:
                self._unready_since.setdefault(name, now)
                self._ready_since.pop(name, None)
            else:
                self._unready_since.pop(name, None)
                self._ready_since.setdefault(name, now)
                if self._restarted.get((group, name), (manifest["metadata"]["uid"],))[0] != manifest["metadata"]["uid"]:
                    del self._restarted[group, name]
        elif manifest["kind"] == "StatefulSet":
            replicas = after["spec"]["replicas"] if after is not None else 0
            if before is None or replicas > before["spec"]["replicas"]:
                self._grown_at[uid] = now
            # Whoever is not to be there any more is not waited for.
            for group, name in list(self._restarted):
                of, _, ordinal = name.rpartition("-")
                if of == manifest["metadata"]["name"] and int(ordinal) >= replicas:
                    del self._restarted[group, name]

    def _wished(self, cluster: Manifest, now: float, *, exists: bool) -> None:
        name = cluster["metadata"]["name"]
        spec = cluster["spec"]
        leaving = is_leaving(cluster) or not exists
        self._paused.setdefault(name, Wishes()).set(bool(spec.get("paused")) and exists, now)
        self._hibernated.setdefault(name, Wishes()).set(bool(spec.get("hibernated")), now)
        self._deleting.setdefault(name, Wishes()).set(leaving, now)
        volumes = leaving and spec.get("deletionPolicy") == "Delete"
        self._with_volumes.setdefault(name, Wishes()).set(volumes, now)

    @staticmethod
    def _component(manifest: Manifest) -> str:
        found: str = manifest["metadata"].get("labels", {}).get(COMPONENT_LABEL, "")
        return found

    @staticmethod
    def _cluster_of(manifest: Manifest) -> str:
        if manifest["kind"] == PULSAR_CLUSTER:
            name: str = manifest["metadata"]["name"]
            return name
        if manifest["kind"] == BOOKIE_POOL and "spec" in manifest:
            cluster: str = manifest["spec"].get("clusterName", "")
            return cluster
        found: str = manifest["metadata"].get("labels", {}).get(INSTANCE_LABEL, "")
        return found


def _is_finalizer(write: Write) -> bool:
    """It is about the operator's own hold on a resource, and nothing else."""
    patch = write.manifest.get("patch", {})
    return write.kind in (PULSAR_CLUSTER, BOOKIE_POOL) and set(patch) == {"metadata"}


def _asks_for_a_person(resource: Manifest) -> bool:
    status = resource.get("status", {})
    conditions = {found["type"]: found for found in status.get("conditions", ())}
    stalled, ready = conditions.get("Stalled", {}), conditions.get("Ready", {})
    newest = status.get("observedGeneration") == resource["metadata"]["generation"]
    return bool(newest) and stalled.get("status") == "True" and ready.get("status") == "False"


def _bookie_id(pod: str, namespace: str) -> str:
    service = pod.rpartition("-")[0]
    return f"{pod}.{service}.{namespace}.svc.cluster.local:{BOOKIE_PORT}"
