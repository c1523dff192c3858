"""Controllers of StatefulSets, Jobs, claims and owners: each looks at what is and does the next step, some time after
something has changed. (Kubernetes: pkg/controller/statefulset, job, volume, garbagecollector.)"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from magnetar.operator.children.configuration import digest
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.resources.quantities import size_bytes
from magnetar.sim.loop import SimulatedLoop

from e2e.operator_simulation.kubelet import claims_of
from e2e.operator_simulation.metadata import Disks
from e2e.operator_simulation.objects.admission import STORAGE_CLASSES
from e2e.operator_simulation.objects.store import PROTECTION, ObjectStore

CONTROLLERS: Final = "kube-controller-manager"
REVISION_LABEL: Final = "controller-revision-hash"


class Worker:
    """Calls a function for a name once, some time after it was asked to, however often it was asked."""

    def __init__(self, loop: SimulatedLoop, rng: random.Random, work: Callable[[str, str], None]) -> None:
        self._loop = loop
        self._rng = rng
        self._work = work
        self._waiting: set[tuple[str, str]] = set()
        self.delay_seconds_max = 0.5

    def wake(self, namespace: str, name: str, after_seconds: float = 0.0) -> None:
        """Soon."""
        if after_seconds:
            self._loop.call_later(after_seconds, self.wake, namespace, name)
        elif (namespace, name) not in self._waiting:
            self._waiting.add((namespace, name))
            # Mostly soon, sometimes late.
            delay = self._rng.uniform(0.01, self.delay_seconds_max) * (10 if self._rng.random() < 0.03 else 1)
            self._loop.call_later(delay, self._run, namespace, name)

    def _run(self, namespace: str, name: str) -> None:
        self._waiting.discard((namespace, name))
        self._work(namespace, name)


def owned(store: ObjectStore, owner: Manifest, kind: str = "Pod") -> list[Manifest]:
    """An object's own, by name."""
    uid = owner["metadata"]["uid"]
    namespace = owner["metadata"]["namespace"]
    return [
        child
        for child in store.all(kind)
        if child["metadata"]["namespace"] == namespace and controller_uid(child) == uid
    ]


def controller_uid(child: Manifest) -> str | None:
    """Who looks after it."""
    for reference in child["metadata"].get("ownerReferences", ()):
        if reference.get("controller"):
            uid: str = reference["uid"]
            return uid
    return None


def reference_to(owner: Manifest) -> list[dict[str, Any]]:
    """The owner references of what it makes."""
    metadata = owner["metadata"]
    return [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def pod_from(owner: Manifest, name: str, **extra_labels: str) -> Manifest:
    """A pod of a workload's template."""
    template = owner["spec"]["template"]
    metadata = dict(template["metadata"])
    metadata["labels"] = {**metadata.get("labels", {}), **extra_labels}
    metadata |= {
        "name": name,
        "namespace": owner["metadata"]["namespace"],
        "ownerReferences": reference_to(owner),
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": dict(template["spec"])}


def is_ready(pod: Manifest) -> bool:
    """By its condition."""
    conditions = pod.get("status", {}).get("conditions", ())
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def is_leaving(manifest: Manifest) -> bool:
    """It is being deleted."""
    return "deletionTimestamp" in manifest["metadata"]


class StatefulSets:
    """With parallel pods that nobody but their deletion restarts, and claims that are kept."""

    def __init__(self, loop: SimulatedLoop, store: ObjectStore, rng: random.Random) -> None:
        self._store = store
        self.worker = Worker(loop, rng, self._sync)

    def changed(self, manifest: Manifest) -> None:
        """Something that may concern a StatefulSet."""
        metadata = manifest["metadata"]
        if manifest["kind"] == "StatefulSet":
            self.worker.wake(metadata["namespace"], metadata["name"])
        elif manifest["kind"] == "Pod" and _ordinal(metadata["name"]) is not None:
            self.worker.wake(metadata["namespace"], metadata["name"].rpartition("-")[0])

    def _sync(self, namespace: str, name: str) -> None:
        found = self._store.get("StatefulSet", namespace, name)
        if found is None or is_leaving(found):
            return
        self._adopt(found)
        pods = {_ordinal(pod["metadata"]["name"]): pod for pod in owned(self._store, found)}
        for ordinal in range(found["spec"]["replicas"]):
            pod = pods.get(ordinal)
            if pod is None:
                self._make(found, ordinal)
            elif pod.get("status", {}).get("phase") == "Failed" and not is_leaving(pod):
                self._store.delete(("Pod", namespace, pod["metadata"]["name"]))
        for pod_ordinal, pod in pods.items():
            if pod_ordinal is not None and pod_ordinal >= found["spec"]["replicas"] and not is_leaving(pod):
                self._store.delete(("Pod", namespace, pod["metadata"]["name"]))
        self._tell(found)

    def _adopt(self, found: Manifest) -> None:
        wanted = found["spec"]["selector"]["matchLabels"]
        namespace, name = found["metadata"]["namespace"], found["metadata"]["name"]
        for pod in self._store.all("Pod"):
            metadata = pod["metadata"]
            if metadata["namespace"] != namespace or metadata["name"].rpartition("-")[0] != name:
                continue
            if controller_uid(pod) is None and not is_leaving(pod) and wanted.items() <= metadata["labels"].items():
                self._store.set_metadata("Pod", namespace, metadata["name"], ownerReferences=reference_to(found))

    def _make(self, found: Manifest, ordinal: int) -> None:
        namespace, name = found["metadata"]["namespace"], f"{found['metadata']['name']}-{ordinal}"
        if self._store.get("Pod", namespace, name) is not None:
            # Another owner's, which is about to go.
            self.worker.wake(namespace, found["metadata"]["name"], 1.0)
            return
        volumes = []
        for template in found["spec"].get("volumeClaimTemplates", ()):
            claim_name = f"{template['metadata']['name']}-{name}"
            claim = self._store.get("PersistentVolumeClaim", namespace, claim_name)
            if claim is not None and is_leaving(claim):
                self.worker.wake(namespace, found["metadata"]["name"], 1.0)
                return
            if claim is None:
                self._make_claim(found, template, claim_name)
            source = {"name": template["metadata"]["name"], "persistentVolumeClaim": {"claimName": claim_name}}
            volumes.append(source)
        pod = pod_from(
            found,
            name,
            **{
                "statefulset.kubernetes.io/pod-name": name,
                "apps.kubernetes.io/pod-index": str(ordinal),
                REVISION_LABEL: f"{found['metadata']['name']}-{digest(found['spec']['template'])}",
            },
        )
        pod["spec"] |= {
            "hostname": name,
            "subdomain": found["spec"]["serviceName"],
            "volumes": [*volumes, *pod["spec"].get("volumes", ())],
        }
        self._store.create(pod, CONTROLLERS)

    def _make_claim(self, found: Manifest, template: Manifest, name: str) -> None:
        labels = {**template["metadata"].get("labels", {}), **found["spec"]["selector"]["matchLabels"]}
        metadata = {"name": name, "namespace": found["metadata"]["namespace"], "labels": labels}
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": metadata,
            "spec": template["spec"],
        }
        self._store.create(claim, CONTROLLERS)

    def _tell(self, found: Manifest) -> None:
        pods = owned(self._store, found)
        revision = f"{found['metadata']['name']}-{digest(found['spec']['template'])}"
        ready = sum(is_ready(pod) and not is_leaving(pod) for pod in pods)
        status = {
            "observedGeneration": found["metadata"]["generation"],
            "replicas": len(pods),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "updatedReplicas": sum(pod["metadata"]["labels"].get(REVISION_LABEL) == revision for pod in pods),
            "updateRevision": revision,
        }
        self._store.set_status("StatefulSet", found["metadata"]["namespace"], found["metadata"]["name"], status)


class Jobs:
    """One pod each, which is run until it has done its work."""

    def __init__(self, loop: SimulatedLoop, store: ObjectStore, rng: random.Random) -> None:
        self._store = store
        self._made = 0
        self.worker = Worker(loop, rng, self._sync)

    def changed(self, manifest: Manifest) -> None:
        """Something that may concern a Job."""
        metadata = manifest["metadata"]
        if manifest["kind"] == "Job":
            self.worker.wake(metadata["namespace"], metadata["name"])
        elif manifest["kind"] == "Pod":
            for reference in metadata.get("ownerReferences", ()):
                if reference["kind"] == "Job":
                    self.worker.wake(metadata["namespace"], reference["name"])

    def _sync(self, namespace: str, name: str) -> None:
        found = self._store.get("Job", namespace, name)
        if found is None or is_leaving(found):
            return
        pods = owned(self._store, found)
        done = any(pod.get("status", {}).get("phase") == "Succeeded" for pod in pods)
        done = done or bool(found.get("status", {}).get("succeeded"))
        if not pods and not done:
            self._made += 1
            self._store.create(pod_from(found, f"{name}-{digest(self._made)[:5]}"), CONTROLLERS)
        status: dict[str, Any] = {"active": 0 if done else 1}
        if done:
            complete = {"type": "Complete", "status": "True"}
            status = {"succeeded": 1, "conditions": [complete]}
        self._store.set_status("Job", namespace, name, status)


class Claims:
    """Binding, growing, and protection while a pod uses a claim."""

    def __init__(self, loop: SimulatedLoop, store: ObjectStore, disks: Disks, rng: random.Random) -> None:
        self._store = store
        self._disks = disks
        self.destroyed: Callable[[str], None] = lambda uid: None
        """Called just before a claim's volume goes with it."""
        self.worker = Worker(loop, rng, self._sync)
        store.listeners.append(self._gone)

    def changed(self, manifest: Manifest) -> None:
        """Something that may concern a claim."""
        metadata = manifest["metadata"]
        if manifest["kind"] == "PersistentVolumeClaim":
            self.worker.wake(metadata["namespace"], metadata["name"])
        elif manifest["kind"] == "Pod":
            for name in claims_of(manifest):
                self.worker.wake(metadata["namespace"], name)

    def _sync(self, namespace: str, name: str) -> None:
        claim = self._store.get("PersistentVolumeClaim", namespace, name)
        if claim is None:
            return
        if is_leaving(claim):
            users = [pod for pod in self._store.all("Pod") if name in claims_of(pod)]
            if not any(user["metadata"]["namespace"] == namespace for user in users):
                left = [held for held in claim["metadata"].get("finalizers", ()) if held != PROTECTION]
                self._store.set_metadata("PersistentVolumeClaim", namespace, name, finalizers=left or None)
            return
        wanted = claim["spec"]["resources"]["requests"]["storage"]
        has = claim.get("status", {}).get("capacity", {}).get("storage")
        grows = has is not None and STORAGE_CLASSES.get(claim["spec"]["storageClassName"], False)
        capacity = wanted if has is None or (grows and size_bytes(wanted) > size_bytes(has)) else has
        self._store.set_status(
            "PersistentVolumeClaim", namespace, name, {"phase": "Bound", "capacity": {"storage": capacity}}
        )

    def _gone(self, before: Manifest | None, after: Manifest | None) -> None:
        if before is not None and after is None and before["kind"] == "PersistentVolumeClaim":
            self.destroyed(before["metadata"]["uid"])
            self._disks.destroy(before["metadata"]["uid"])


class Owners:
    """Who is left behind by its owner goes as well."""

    def __init__(self, loop: SimulatedLoop, store: ObjectStore, rng: random.Random) -> None:
        self._store = store
        self.worker = Worker(loop, rng, self._sync)

    def changed(self, before: Manifest | None, after: Manifest | None) -> None:
        """Any change."""
        if after is None and before is not None:
            for kind, child in self._store.children(before["metadata"]["uid"]):
                self.worker.wake(kind, f"{child['metadata']['namespace']}/{child['metadata']['name']}")
        elif after is not None:
            metadata = after["metadata"]
            known = before["metadata"].get("ownerReferences") if before is not None else None
            # One that is named late may be gone by then.
            if metadata.get("ownerReferences", known) != known:
                self.worker.wake(after["kind"], f"{metadata['namespace']}/{metadata['name']}")

    def _sync(self, kind: str, where: str) -> None:
        namespace, _, name = where.partition("/")
        child = self._store.get(kind, namespace, name)
        if child is None or is_leaving(child):
            return
        references = child["metadata"].get("ownerReferences", ())
        alive = self._store.uids()
        if references and not any(reference["uid"] in alive for reference in references):
            self._store.delete((kind, namespace, name), uid=child["metadata"]["uid"])


def _ordinal(name: str) -> int | None:
    tail = name.rpartition("-")[2]
    return int(tail) if tail.isdigit() else None
