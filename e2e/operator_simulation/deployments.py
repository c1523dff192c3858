"""The controller of Deployments, with what ReplicaSets do in it: one pod more while it rolls, none fewer that serve.

(Kubernetes: pkg/controller/deployment/rolling.go, and controller_utils.go for the order in which pods go.)
"""

from __future__ import annotations

import random
from typing import Any, Final

from magnetar.operator.children.configuration import digest
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.sim.loop import SimulatedLoop

from e2e.operator_simulation.objects.store import ObjectStore
from e2e.operator_simulation.workloads import CONTROLLERS, Worker, is_leaving, is_ready, owned, pod_from

HASH_LABEL: Final = "pod-template-hash"
COST_ANNOTATION: Final = "controller.kubernetes.io/pod-deletion-cost"

_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"


class Deployments:
    """All of them."""

    def __init__(self, loop: SimulatedLoop, store: ObjectStore, rng: random.Random) -> None:
        self._loop = loop
        self._store = store
        self._rng = rng
        self.worker = Worker(loop, rng, self._sync)
        self._ready_since: dict[str, float] = {}
        self._progress: dict[str, tuple[Any, float]] = {}
        self.scaled_away: list[tuple[str, str]] = []
        """Pods that went because there were to be fewer, by uid and name; taken by who judges them."""

    def changed(self, before: Manifest | None, manifest: Manifest) -> None:
        """Something that may concern a Deployment."""
        metadata = manifest["metadata"]
        if manifest["kind"] == "Deployment":
            self.worker.wake(metadata["namespace"], metadata["name"])
        elif manifest["kind"] == "Pod":
            uid = metadata["uid"]
            if not is_ready(manifest):
                self._ready_since.pop(uid, None)
            elif uid not in self._ready_since:
                self._ready_since[uid] = self._loop.time()
            for reference in metadata.get("ownerReferences", ()):
                if reference["kind"] == "Deployment":
                    self.worker.wake(metadata["namespace"], reference["name"])

    def _sync(self, namespace: str, name: str) -> None:
        found = self._store.get("Deployment", namespace, name)
        if found is None or is_leaving(found):
            return
        wanted: int = found["spec"]["replicas"]
        current = digest(found["spec"]["template"])
        pods = [pod for pod in owned(self._store, found) if not is_leaving(pod)]
        new = [pod for pod in pods if pod["metadata"]["labels"][HASH_LABEL] == current]
        old = [pod for pod in pods if pod["metadata"]["labels"][HASH_LABEL] != current]
        available = [pod for pod in pods if self._available(found, pod)]
        if len(new) > wanted:
            self._remove(new, len(new) - wanted, scaled=True)
        surge = 1 if old else 0
        for _ in range(min(wanted - len(new), wanted + surge - len(pods))):
            self._make(found, current)
        if old:
            self._shrink_old(old, wanted, len(pods), len(available))
        self._tell(found, current)

    def _shrink_old(self, old: list[Manifest], wanted: int, total: int, available: int) -> None:
        """Those that do not serve are not missed; others go as far as enough are left."""
        excess = total - wanted
        broken = [pod for pod in old if not is_ready(pod)]
        removed = min(len(broken), max(0, excess))
        # A scale-in in the middle of a roll takes from the old ones, too.
        self._remove(broken, removed, scaled=False)
        left = [pod for pod in old if is_ready(pod)]
        self._remove(left, min(len(left), max(0, available - wanted)), scaled=False)

    def _remove(self, pods: list[Manifest], count: int, *, scaled: bool) -> None:
        for pod in sorted(pods, key=self._order)[: max(0, count)]:
            metadata = pod["metadata"]
            if scaled:
                self.scaled_away.append((metadata["uid"], metadata["name"]))
            self._store.delete(("Pod", metadata["namespace"], metadata["name"]), uid=metadata["uid"])

    def _order(self, pod: Manifest) -> tuple[Any, ...]:
        metadata = pod["metadata"]
        return (
            bool(pod["spec"].get("nodeName")),
            pod.get("status", {}).get("phase", "Pending") == "Running",
            is_ready(pod),
            int(metadata.get("annotations", {}).get(COST_ANNOTATION, "0")),
            -self._ready_since.get(metadata["uid"], 0.0),
            metadata["name"],
        )

    def _make(self, found: Manifest, current: str) -> None:
        tail = "".join(self._rng.choice(_LETTERS) for _ in range(5))
        name = f"{found['metadata']['name']}-{current}-{tail}"
        self._store.create(pod_from(found, name, **{HASH_LABEL: current}), CONTROLLERS)

    def _available(self, found: Manifest, pod: Manifest) -> bool:
        since = self._ready_since.get(pod["metadata"]["uid"])
        least: float = found["spec"].get("minReadySeconds", 0)
        if since is None:
            return False
        left = since + least - self._loop.time()
        if left > 0:
            self.worker.wake(found["metadata"]["namespace"], found["metadata"]["name"], left + 0.01)
        return left <= 0

    def _tell(self, found: Manifest, current: str) -> None:
        namespace, name = found["metadata"]["namespace"], found["metadata"]["name"]
        pods = [pod for pod in owned(self._store, found) if not is_leaving(pod)]
        updated = sum(pod["metadata"]["labels"][HASH_LABEL] == current for pod in pods)
        available = sum(self._available(found, pod) for pod in pods)
        wanted = found["spec"]["replicas"]
        done = updated == wanted == len(pods) == available
        state = (updated, available, len(pods), current)
        if self._progress.get(name, (None, 0.0))[0] != state:
            self._progress[name] = (state, self._loop.time())
        waited = self._loop.time() - self._progress[name][1]
        deadline = found["spec"]["progressDeadlineSeconds"]
        late = not done and waited >= deadline
        if not done and not late:
            self.worker.wake(namespace, name, deadline - waited + 0.01)
        progressing = {
            "type": "Progressing",
            "status": "False" if late else "True",
            "reason": "ProgressDeadlineExceeded" if late else "NewReplicaSetAvailable" if done else "ReplicaSetUpdated",
            "message": f'Deployment "{name}" has timed out progressing.' if late else "",
        }
        is_available = {"type": "Available", "status": "True" if available >= wanted else "False"}
        status = {
            "observedGeneration": found["metadata"]["generation"],
            "replicas": len(pods),
            "updatedReplicas": updated,
            "readyReplicas": sum(is_ready(pod) for pod in pods),
            "availableReplicas": available,
            "unavailableReplicas": max(0, wanted - available),
            "conditions": [progressing, is_available],
        }
        self._store.set_status("Deployment", namespace, name, status)
