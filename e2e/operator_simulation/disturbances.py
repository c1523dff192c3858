"""People who change their minds, and accidents: everything that happens to a cluster from outside, by name."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final

from magnetar.operator.children.naming import BOOKIE, BROKER, COMPONENT_LABEL, POOL_LABEL, REPLACE_ANNOTATION, ZOOKEEPER
from magnetar.operator.kubernetes.errors import NotFound
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.resources.common import API_VERSION
from magnetar.operator.resources.quantities import format_bytes, size_bytes

from e2e.operator_simulation.kubelet import BAD_IMAGE, CRASHING_IMAGE, Running, claims_of
from e2e.operator_simulation.metadata import Disk
from e2e.operator_simulation.objects.admission import MISSPELT, STORAGE_CLASSES
from e2e.operator_simulation.operators import Operators
from e2e.operator_simulation.parameters import SLIPS
from e2e.operator_simulation.workloads import is_leaving
from e2e.operator_simulation.world import CLUSTER, NAMESPACE, USER, World

EXTRA_POOL: Final = "extra"
FOREIGN: Final = "bookie-of-somebody-else:3181"
TEN_GIBIBYTES: Final = 10 << 30
HELD_BACK_SECONDS: Final = (11.0, 45.0)
"""How long calls are on their way that arrive when nobody thinks of them any more."""


class Disturbances:
    """Each method does one thing once, if that is possible now."""

    def __init__(self, world: World, operators: Operators) -> None:
        self._world = world
        self._operators = operators
        self._rng = random.Random(f"{world.parameters.seed} disturbances")
        self._versions = 0
        self._wrong: list[tuple[Disk, Any]] = []
        self._settled = False
        self.grown_too_far = False
        """A volume was to grow whose class cannot: that is for people to solve."""

    async def run(self) -> None:
        """Some of them, one after the other."""
        parameters = self._world.parameters
        await asyncio.sleep(self._rng.uniform(0.0, 20.0))
        for _ in range(parameters.steps):
            await asyncio.sleep(self._rng.expovariate(1 / parameters.pause_seconds))
            name = self._rng.choice(parameters.actions)
            action: Callable[[], str | None] = getattr(self, name)
            what = action()
            if what:
                self._world.loop.trace.note("outside", f"{name}: {what}")

    def settle(self) -> None:
        """Nothing goes wrong any more, and what is wished can be had."""
        world = self._world
        self._settled = True
        world.network.heal()
        self._operators.heal()
        for disk, cookie in self._wrong:
            if disk.cookie is not None and disk.cookie[0] == FOREIGN:
                disk.cookie = cookie
        self._wrong.clear()
        if world.cluster() is None:
            world.make_cluster()
        self.repair_image()
        if any(slip in world.parameters.actions for slip in SLIPS):
            self._correct()
        size = world.parameters.ensemble_size
        self._patch({"paused": False, "hibernated": False})
        wanted = self._rng.randint(size, max(size, world.parameters.bookies_max))
        if self._replacements_wanted():
            # Without one more bookie than an ensemble has nobody could take over what is on one of them.
            wanted = max(wanted, size + 1)
        self._set_replicas(max(wanted, size))
        world.loop.trace.note("outside", f"everything is well from now on: {wanted} bookies are wanted")

    def _replacements_wanted(self) -> bool:
        """By pods, or remembered of pods that are gone."""
        members = (member for pool in self._world.pools() for member in pool.get("status", {}).get("members", ()))
        pods = (pod["metadata"].get("annotations", {}) for pod in self._pods(BOOKIE))
        return any("replacement" in member for member in members) or any(REPLACE_ANNOTATION in pod for pod in pods)

    # --- people

    def annotate_replace(self) -> str | None:
        """A bookie is to start anew."""
        pod = self._any(self._pods(BOOKIE))
        if pod is None:
            return None
        self._annotate(pod, "true")
        return str(pod["metadata"]["name"])

    def bad_image(self) -> str | None:
        """An image that is not there, or that cannot start."""
        self._versions += 1
        image = f"{self._rng.choice((BAD_IMAGE, CRASHING_IMAGE))}:{self._versions}"
        where = self._rng.choice(("version", "bookkeeper", "broker", "zookeeper"))
        if where == "version":
            return self._patch({"version": image.replace(":", "-")})
        if where == "zookeeper":
            return self._patch({"metadata": {"zookeeper": {"image": image}}})
        return self._patch({where: {"image": image}})

    def change_settings(self) -> str | None:
        """A setting of one component, or of all."""
        self._versions += 1
        settings = {"maxPendingThings": self._versions}
        where = self._rng.choice(("all", "bookkeeper", "broker", "proxy", "zookeeper"))
        if where == "all":
            return self._patch({"settings": settings})
        if where == "zookeeper":
            return self._patch({"metadata": {"zookeeper": {"settings": settings}}})
        return self._patch({where: {"settings": settings}})

    def delete_pod(self) -> str | None:
        """Somebody deletes a pod."""
        pod = self._any([pod for pod in self._world.store.all("Pod") if not is_leaving(pod)])
        if pod is None:
            return None
        self._world.store.delete(("Pod", NAMESPACE, pod["metadata"]["name"]))
        return str(pod["metadata"]["name"])

    def misspell(self) -> str | None:
        """A field of Kubernetes' that there is not, in one of the free parts of a spec; or rightly again."""
        pod: dict[str, Any] | None = None if self._rng.random() < 0.4 else {"affinity": {MISSPELT: {}}}
        where = self._rng.choice(("bookkeeper", "broker", "proxy", "zookeeper"))
        if where == "zookeeper":
            return self._patch({"metadata": {"zookeeper": {"pod": pod}}})
        return self._patch({where: {"pod": pod}})

    def unreadable(self) -> str | None:
        """A list where a setting has one value; or none any more."""
        value = None if self._rng.random() < 0.4 else [1]
        return self._patch({self._rng.choice(("broker", "proxy")): {"settings": {"maxPendingLists": value}}})

    def _correct(self) -> None:
        for where in ("bookkeeper", "broker", "proxy"):
            self._patch({where: {"pod": None}})
        for where in ("broker", "proxy"):
            self._patch({where: {"settings": {"maxPendingLists": None}}})
        self._patch({"metadata": {"zookeeper": {"pod": None}}})

    def grow_volumes(self) -> str | None:
        """Larger ones."""
        which, parameters = "ledgers", self._world.parameters
        if self._rng.random() < 0.2:
            which = "journal"
        class_name = parameters.storage_class if which == "ledgers" else parameters.journal_class
        if not STORAGE_CLASSES[class_name or next(iter(STORAGE_CLASSES))]:
            if self._rng.random() < 0.7:
                return None
            self.grown_too_far = True
        cluster = self._world.cluster()
        if cluster is None:
            return None
        size = size_bytes(cluster["spec"]["bookkeeper"]["storage"][which]["size"]) + TEN_GIBIBYTES
        return self._patch({"bookkeeper": {"storage": {which: {"size": format_bytes(size)}}}})

    def hibernate(self) -> str | None:
        """Nothing is to run."""
        return self._patch({"hibernated": True})

    def wake(self) -> str | None:
        """Everything is to run, and the operator to work."""
        return self._patch({"hibernated": False, "paused": False})

    def pause(self) -> str | None:
        """The operator is to leave it alone, or not any more."""
        cluster = self._world.cluster()
        return self._patch({"paused": cluster is None or not cluster["spec"].get("paused")})

    def new_version(self) -> str | None:
        """An image that is good."""
        self._versions += 1
        return self._patch({"version": f"1.{self._versions}"})

    def repair_image(self) -> str | None:
        """Good images again."""
        self._versions += 1
        image = {"image": None}
        zookeeper = {"zookeeper": image}
        change: dict[str, Any] = {"bookkeeper": image, "broker": image, "metadata": zookeeper}
        cluster = self._world.cluster()
        if cluster is not None and any(word in cluster["spec"].get("version", "") for word in _BAD):
            change["version"] = f"2.{self._versions}"
        return self._patch(change)

    def recreate(self) -> str | None:
        """Delete the cluster, and make it again once it is gone."""
        cluster = self._world.cluster()
        if cluster is None or is_leaving(cluster):
            # Whoever wants to keep volumes when half of them are gone is beyond help.
            return None
        if self._rng.random() < 0.3:
            self._patch({"deletionPolicy": self._rng.choice(("Retain", "Delete"))})
        self._world.store.delete(("PulsarCluster", NAMESPACE, CLUSTER))
        self._world.loop.call_later(self._rng.uniform(0.0, self._world.parameters.made_again_seconds), self._make_again)
        return "deleted"

    def scale_brokers(self) -> str | None:
        """In the resource if it says how many, else in the Deployment."""
        wanted = self._rng.randint(1, 4)
        if self._world.parameters.brokers is not None:
            return self._patch({"broker": {"replicas": wanted}})
        name = f"{CLUSTER}-{BROKER}"
        deployment = self._world.store.get("Deployment", NAMESPACE, name)
        if deployment is None or is_leaving(deployment) or deployment["spec"]["replicas"] == 0:
            return None
        self._world.store.patch(("Deployment", NAMESPACE, name), {"spec": {"replicas": wanted}}, USER)
        return f"kubectl scale to {wanted}"

    def scale_pool(self) -> str | None:
        """More bookies or fewer, sometimes fewer than there may be; sometimes the mind is changed soon."""
        parameters = self._world.parameters
        least = parameters.ensemble_size
        if not parameters.replicas_in_cluster and self._rng.random() < 0.15:
            least = 0
        wanted = self._rng.randint(least, parameters.bookies_max)
        if self._rng.random() < 0.4:
            other = self._rng.randint(parameters.ensemble_size, parameters.bookies_max)
            self._world.loop.call_later(self._rng.uniform(0.5, 25.0), self._change_mind, other)
        return self._set_replicas(wanted)

    def second_pool(self) -> str | None:
        """Make another pool of bookies, scale it, or delete it."""
        store = self._world.store
        key = ("Bookie", NAMESPACE, EXTRA_POOL)
        found = store.get(*key)
        replicas = self._rng.randint(1, 3)
        if found is None:
            if self._world.cluster() is None:
                return None
            manifest = {
                "apiVersion": API_VERSION,
                "kind": "Bookie",
                "metadata": {"name": EXTRA_POOL, "namespace": NAMESPACE},
                "spec": {"clusterName": CLUSTER, "replicas": replicas},
            }
            store.create(manifest, USER)
            return f"made with {replicas}"
        if self._rng.random() < 0.6:
            store.delete(key)
            return "deleted"
        store.patch(key, {"spec": {"replicas": replicas}}, USER)
        return f"scaled to {replicas}"

    # --- accidents

    def crash_bookie(self) -> str | None:
        """A process is killed."""
        return self._crash(BOOKIE)

    def crash_broker(self) -> str | None:
        """As above."""
        return self._crash(BROKER)

    def crash_zookeeper(self) -> str | None:
        """As above."""
        return self._crash(ZOOKEEPER)

    def hang_pod(self) -> str | None:
        """A node is away for a while."""
        return self._hang([pod for pod in self._world.kubelet.pods.values() if pod.program is not None])

    def hang_bookie(self) -> str | None:
        """The same of one with a bookie."""
        return self._hang([pod for pod in self._world.kubelet.pods.values() if pod.program and pod.component == BOOKIE])

    def _hang(self, pods: list[Running]) -> str | None:
        pod: Running | None = self._any(pods)
        if pod is None:
            return None
        pod.hung_until = self._world.loop.time() + self._rng.uniform(3.0, 60.0)
        return f"{pod.name} until {pod.hung_until:.1f}"

    def lose_volume(self) -> str | None:
        """A node takes a bookie and its disks with it, or one of them; never the last copy of anything."""
        pods = [pod for pod in self._pods(BOOKIE) if not is_leaving(pod) and self._can_lose(pod)]
        pod = self._any(pods)
        if pod is None:
            return None
        claims = claims_of(pod)
        lost = claims if self._rng.random() < 0.6 else [self._rng.choice(claims)]
        store = self._world.store
        for claim in lost:
            store.delete(("PersistentVolumeClaim", NAMESPACE, claim))
        store.delete(("Pod", NAMESPACE, pod["metadata"]["name"]))
        return f"{pod['metadata']['name']} loses {', '.join(lost)}"

    def wrong_volume(self) -> str | None:
        """Somebody has mixed up disks."""
        running = [pod for pod in self._world.kubelet.pods.values() if pod.component == BOOKIE and pod.program]
        pod: Running | None = self._any(running)
        manifest = self._world.store.get("Pod", NAMESPACE, pod.name) if pod is not None else None
        if pod is None or manifest is None:
            return None
        claim = self._world.store.get("PersistentVolumeClaim", NAMESPACE, claims_of(manifest)[-1])
        disk = self._world.software.disks.known(claim["metadata"]["uid"]) if claim is not None else None
        if disk is None or disk.cookie is None or not self._can_lose(manifest):
            return None
        self._wrong.append((disk, disk.cookie))
        disk.cookie = (FOREIGN, 0, 0)
        self._world.kubelet.crash(pod)
        return pod.name

    # --- the operator

    def kill_operator(self) -> str | None:
        """Its process is gone."""
        self._operators.kill_any()
        return "killed"

    def two_operators(self) -> str | None:
        """Two work at a time."""
        self._operators.overlap()
        return "another one leads"

    def cancel_pass(self) -> str | None:
        """A pass is cut off."""
        self._operators.cancel_passes()
        return "cut off"

    def late_apply(self) -> str | None:
        """The next call that changes a StatefulSet is on its way for long."""
        return self._hold_back("apply StatefulSet")

    def late_delete(self) -> str | None:
        """The same of one that deletes something."""
        return self._hold_back(self._rng.choice(("delete Pod", "delete PersistentVolumeClaim")))

    # --- within

    def _hold_back(self, what: str) -> str:
        seconds = self._rng.uniform(*HELD_BACK_SECONDS)
        self._world.network.hold_back(what, seconds)
        return f"{what} by {seconds:.1f} s"

    def _patch(self, spec: dict[str, Any]) -> str | None:
        cluster = self._world.cluster()
        if cluster is None:
            return None
        self._world.store.patch(("PulsarCluster", NAMESPACE, CLUSTER), {"spec": spec}, USER)
        return str(spec)

    def _set_replicas(self, wanted: int) -> str | None:
        if self._world.parameters.replicas_in_cluster:
            return self._patch({"bookkeeper": {"replicas": max(wanted, self._world.parameters.ensemble_size)}})
        try:
            self._world.store.patch(("Bookie", NAMESPACE, CLUSTER), {"spec": {"replicas": wanted}}, USER)
        except NotFound:
            return None
        return f"kubectl scale to {wanted}"

    def _change_mind(self, wanted: int) -> None:
        if not self._settled:
            self._set_replicas(wanted)

    def _annotate(self, pod: Manifest, value: str | None) -> None:
        patch = {"metadata": {"annotations": {REPLACE_ANNOTATION: value}}}
        self._world.store.patch(("Pod", NAMESPACE, pod["metadata"]["name"]), patch, USER)

    def _make_again(self) -> None:
        cluster = self._world.cluster()
        if cluster is None:
            self._world.make_cluster()
        elif is_leaving(cluster):
            self._world.loop.call_later(5.0, self._make_again)

    def _pods(self, component: str) -> list[Manifest]:
        pods = self._world.store.all("Pod")
        found = [pod for pod in pods if pod["metadata"].get("labels", {}).get(COMPONENT_LABEL) == component]
        return [pod for pod in found if component != BOOKIE or POOL_LABEL in pod["metadata"]["labels"]]

    def _crash(self, component: str) -> str | None:
        pods = [pod for pod in self._world.kubelet.pods.values() if pod.component == component]
        pod: Running | None = self._any([pod for pod in pods if pod.program is not None])
        if pod is None:
            return None
        self._world.kubelet.crash(pod)
        return pod.name

    def _can_lose(self, pod: Manifest) -> bool:
        """Everything on its disks is on another bookie's, which is not lost itself."""
        software = self._world.software
        metadata = software.last_metadata
        if metadata is None:
            return False
        claims = [self._world.store.get("PersistentVolumeClaim", NAMESPACE, name) for name in claims_of(pod)]
        if any(claim is None or is_leaving(claim) for claim in claims):
            return False
        uids = {claim["metadata"]["uid"] for claim in claims if claim is not None}
        for uid in uids:
            disk = software.disks.known(uid)
            for ledger in disk.ledgers if disk is not None else ():
                holders = [other for other in software.disks.with_copy(metadata, ledger) if other.uid not in uids]
                alive = [other for other in holders if other.cookie and other.cookie[0] in software.storage.running]
                if ledger in metadata.ledgers and not alive:
                    return False
        return True

    def _any(self, choices: list[Any]) -> Any:
        return self._rng.choice(choices) if choices else None


_BAD: Final = (BAD_IMAGE, CRASHING_IMAGE)
