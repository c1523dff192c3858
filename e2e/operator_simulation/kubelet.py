"""Pods: scheduled, running, ready, crashing and gone, as the kubelet tells it in their status."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from magnetar.operator.children.configuration import digest
from magnetar.operator.children.naming import BOOKIE, BROKER, COMPONENT_LABEL, INIT, PROXY, ZOOKEEPER
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.sim.loop import SimulatedLoop

from e2e.operator_simulation.objects.store import ObjectStore, timestamp
from e2e.operator_simulation.programs import (
    BookieProgram,
    BrokerProgram,
    InitProgram,
    Program,
    ProxyProgram,
    Software,
    Zookeeper,
)
from e2e.operator_simulation.storage import Exit

KUBELET: Final = "kubelet"

BAD_IMAGE: Final = "broken"
"""An image whose name has this cannot be pulled."""
CRASHING_IMAGE: Final = "crashes"
"""One whose name has this ends at once."""

BACK_OFF_SECONDS: Final = (0.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Before a container is started again; the last one goes on. (Kubernetes: ten seconds to five minutes.)"""
HEALTHY_SECONDS: Final = 60.0
"""After which a crash counts as the first again."""


@dataclass(slots=True)
class Running:
    """One pod on a node."""

    uid: str
    namespace: str
    name: str
    component: str
    address: str = ""
    program: Program | None = None
    """None while its container does not run."""
    ready_at: float = 0.0
    began_at: float = 0.0
    crashes: int = 0
    restarts: int = 0
    hung_until: float = 0.0
    """Until then it does not answer anybody."""
    told: bool | None = None
    """What its status says about being ready."""
    last: Exit | None = None
    stopping: bool = False


class Kubelet:
    """All nodes' together, and the scheduler."""

    def __init__(self, loop: SimulatedLoop, store: ObjectStore, software: Software, rng: random.Random) -> None:
        self._loop = loop
        self._store = store
        self._software = software
        self._rng = rng
        self.pods: dict[str, Running] = {}
        """By uid."""
        self.addresses: dict[str, Running] = {}
        self.reuse_addresses = True
        self.start_seconds_max = 4.0
        self._addresses_given = 0
        self.restarted: Callable[[Running], None] = lambda pod: None
        store.listeners.append(self._changed)

    # --- what happens

    def _changed(self, before: Manifest | None, after: Manifest | None) -> None:
        pod = after if after is not None else before
        assert pod is not None
        if pod["kind"] != "Pod":
            return
        uid = pod["metadata"]["uid"]
        if before is None:
            self._later(0.05, 0.6, self._schedule, uid)
            metadata = pod["metadata"]
            self.pods[uid] = Running(
                uid, metadata["namespace"], metadata["name"], metadata["labels"].get(COMPONENT_LABEL, "")
            )
        elif after is None:
            self._gone(uid)
        elif "deletionTimestamp" in after["metadata"] and not self.pods[uid].stopping:
            self.pods[uid].stopping = True
            self._later(0.1, 3.0 if self._rng.random() < 0.9 else 20.0, self._stopped, uid)
            running = self.pods[uid]
            if running.program is not None and running.component != BROKER:
                self._end(running, graceful=True)
            elif running.program is not None:
                # It hands its bundles over while it stops.
                self._later(0.05, 0.1, self._end_if_there, uid)

    def tick(self) -> None:
        """A second has passed: probes."""
        for pod in list(self.pods.values()):
            if pod.program is None or pod.stopping:
                continue
            ended = pod.program.poll()
            if ended is not None:
                self._crashed(pod, ended)
                continue
            now = self._loop.time()
            ready = now >= pod.ready_at and now >= pod.hung_until and pod.program.ready()
            if ready != pod.told:
                self._tell(pod)

    def crash(self, pod: Running, code: int = 137) -> None:
        """Its process is killed."""
        if pod.program is not None and not pod.stopping:
            self._end(pod, graceful=False)
            self._crashed(pod, Exit(code, "killed"))

    def at(self, address: str) -> Running | None:
        """Who answers there."""
        pod = self.addresses.get(address)
        if pod is None or pod.program is None or self._loop.time() < pod.hung_until:
            return None
        return pod

    # --- steps of a pod

    def _schedule(self, uid: str) -> None:
        pod, manifest = self._find(uid)
        if pod is None or manifest is None:
            return
        if pod.stopping:
            self._stopped(uid)
            return
        problem = self._missing_claim(manifest)
        if problem is not None:
            status = {"phase": "Pending", "conditions": [_unschedulable(problem)]}
            self._store.set_status("Pod", pod.namespace, pod.name, status)
            self._later(0.5, 2.0, self._schedule, uid)
            return
        self._store.set_spec("Pod", pod.namespace, pod.name, nodeName=f"node-{self._rng.randint(1, 3)}")
        self._set_waiting(pod, "ContainerCreating", "")
        self._later(0.1, 1.0, self._pull, uid)

    def _pull(self, uid: str) -> None:
        pod, manifest = self._find(uid)
        if pod is None or manifest is None or pod.stopping:
            return
        problem = self._missing_files(manifest)
        image = manifest["spec"]["containers"][0]["image"]
        if problem:
            # The pod's status says nothing of it.
            self._warn(pod, "FailedMount", problem)
            self._later(1.0, 3.0, self._pull, uid)
        elif BAD_IMAGE in image:
            reason = self._rng.choice(("ErrImagePull", "ImagePullBackOff"))
            self._set_waiting(pod, reason, f"Back-off pulling image {image}")
            self._later(10.0, 20.0, self._pull, uid)
        else:
            self._run(uid)

    def _run(self, uid: str) -> None:
        pod, manifest = self._find(uid)
        if pod is None or manifest is None or pod.stopping:
            return
        if not pod.address:
            pod.address = self._new_address()
            self.addresses[pod.address] = pod
        if CRASHING_IMAGE in manifest["spec"]["containers"][0]["image"]:
            self._crashed(pod, Exit(2, "a setting is unknown: fooBar"))
            return
        pod.began_at = self._loop.time()
        pod.ready_at = pod.began_at + self._rng.uniform(0.3, self.start_seconds_max)
        program = self._program(pod, manifest)
        ended = program.begin()
        if ended is not None:
            self._crashed(pod, ended)
            return
        pod.program = program
        self._tell(pod)

    def _crashed(self, pod: Running, ended: Exit) -> None:
        pod.program = None
        pod.last = ended
        if pod.component == INIT and ended.code == 0:
            status = {"phase": "Succeeded", "podIP": pod.address, "conditions": _conditions(False)}
            status |= {"containerStatuses": [self._container(pod, {"terminated": _terminated(ended)})]}
            self._store.set_status("Pod", pod.namespace, pod.name, status)
            return
        if self._loop.time() - pod.began_at > HEALTHY_SECONDS:
            pod.crashes = 0
        wait = BACK_OFF_SECONDS[min(pod.crashes, len(BACK_OFF_SECONDS) - 1)]
        pod.crashes += 1
        pod.restarts += 1
        if wait:
            self._set_waiting(pod, "CrashLoopBackOff", f"back-off {wait:.0f}s restarting failed container")
        else:
            self._tell(pod)
        self._later(wait + 0.1, wait + 1.0, self._run, pod.uid)

    def _end(self, pod: Running, *, graceful: bool) -> None:
        if pod.program is not None:
            program, pod.program = pod.program, None
            program.stop(graceful=graceful)

    def _end_if_there(self, uid: str) -> None:
        if uid in self.pods:
            self._end(self.pods[uid], graceful=True)

    def _stopped(self, uid: str) -> None:
        if uid in self.pods:
            pod = self.pods[uid]
            self._end(pod, graceful=True)
            self._store.remove("Pod", pod.namespace, pod.name, uid)

    def _gone(self, uid: str) -> None:
        pod = self.pods.pop(uid)
        self._end(pod, graceful=False)
        if self.addresses.get(pod.address) is pod:
            del self.addresses[pod.address]

    # --- what it looks up

    def _find(self, uid: str) -> tuple[Running | None, Manifest | None]:
        pod = self.pods.get(uid)
        if pod is None:
            return None, None
        return pod, self._store.get("Pod", pod.namespace, pod.name)

    def _missing_claim(self, manifest: Manifest) -> str | None:
        for claim_name in claims_of(manifest):
            claim = self._store.get("PersistentVolumeClaim", manifest["metadata"]["namespace"], claim_name)
            if claim is None:
                return f'persistentvolumeclaim "{claim_name}" not found'
            if "deletionTimestamp" in claim["metadata"]:
                return f'persistentvolumeclaim "{claim_name}" is being deleted'
            if claim.get("status", {}).get("phase") != "Bound":
                return "pod has unbound immediate PersistentVolumeClaims"
        return None

    def _missing_files(self, manifest: Manifest) -> str:
        namespace = manifest["metadata"]["namespace"]
        for volume in manifest["spec"].get("volumes", ()):
            failed = f'MountVolume.SetUp failed for volume "{volume["name"]}" :'
            name = volume.get("configMap", {}).get("name")
            if name is not None and self._store.get("ConfigMap", namespace, name) is None:
                return f'{failed} configmap "{name}" not found'
            name = volume.get("secret", {}).get("secretName")
            if name is not None and self._store.get("Secret", namespace, name) is None:
                return f'{failed} secret "{name}" not found'
        return ""

    def _program(self, pod: Running, manifest: Manifest) -> Program:
        software = self._software
        disks = []
        for name in claims_of(manifest):
            claim = self._store.get("PersistentVolumeClaim", pod.namespace, name)
            assert claim is not None
            disks.append(software.disks.of(name, claim["metadata"]["uid"]))
        if pod.component == ZOOKEEPER:
            workload = self._store.get("StatefulSet", pod.namespace, pod.name.rpartition("-")[0])
            servers = _servers(workload)
            return Zookeeper(software, pod.name, disks[0], servers)
        if pod.component == BOOKIE:
            domain = f"{manifest['spec']['subdomain']}.{pod.namespace}.svc.cluster.local"
            return BookieProgram(software, pod.name, domain, disks)
        if pod.component == BROKER:
            return BrokerProgram(software, pod.name, pod.address)
        if pod.component == PROXY:
            return ProxyProgram(software)
        return InitProgram(software)

    def _new_address(self) -> str:
        number = 1
        if self.reuse_addresses:
            while f"10.0.0.{number}" in self.addresses:
                number += 1
        else:
            self._addresses_given += 1
            number = self._addresses_given
        return f"10.0.{number // 250}.{number % 250}"

    # --- what it tells

    def _tell(self, pod: Running) -> None:
        now = self._loop.time()
        ready = pod.program is not None and now >= pod.ready_at and now >= pod.hung_until and pod.program.ready()
        pod.told = ready
        running = {"running": {"startedAt": timestamp(pod.began_at)}}
        state = running if pod.program is not None else {"terminated": _terminated(pod.last or Exit(1, ""))}
        status = {
            "phase": "Running",
            "podIP": pod.address,
            "conditions": _conditions(ready),
            "containerStatuses": [self._container(pod, state, ready=ready)],
        }
        self._store.set_status("Pod", pod.namespace, pod.name, status)

    def _warn(self, pod: Running, reason: str, message: str) -> None:
        """An Event, counted up if it is there."""
        name, now = f"{pod.name}.{digest([pod.uid, reason, message])}", timestamp(self._loop.time())
        found = self._store.get("Event", pod.namespace, name)
        if found is not None:
            patch = {"count": found["count"] + 1, "lastTimestamp": now}
            self._store.patch(("Event", pod.namespace, name), patch, KUBELET)
            return
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": pod.namespace},
            "involvedObject": {"kind": "Pod", "name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
            "type": "Warning",
            "reason": reason,
            "message": message,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        self._store.create(event, KUBELET)

    def _set_waiting(self, pod: Running, reason: str, message: str) -> None:
        pod.told = False
        waiting = {"reason": reason} | ({"message": message} if message else {})
        status = {
            "phase": "Running" if pod.address else "Pending",
            "conditions": _conditions(False),
            "containerStatuses": [self._container(pod, {"waiting": waiting})],
        }
        if pod.address:
            status["podIP"] = pod.address
        self._store.set_status("Pod", pod.namespace, pod.name, status)

    def _container(self, pod: Running, state: dict[str, Any], *, ready: bool = False) -> dict[str, Any]:
        found: dict[str, Any] = {
            "name": pod.component,
            "ready": ready,
            "restartCount": pod.restarts,
            "state": state,
            "lastState": {},
        }
        if pod.last is not None and "terminated" not in state:
            found["lastState"] = {"terminated": _terminated(pod.last)}
        return found

    def _later(self, least: float, most: float, what: Callable[[str], None], uid: str) -> None:
        self._loop.call_later(self._rng.uniform(least, most), what, uid)


def claims_of(manifest: Manifest) -> list[str]:
    """The claims that a pod's volumes are from, the journal's first."""
    volumes = manifest["spec"].get("volumes", ())
    return [volume["persistentVolumeClaim"]["claimName"] for volume in volumes if "persistentVolumeClaim" in volume]


def _servers(workload: Manifest | None) -> int:
    return 3 if workload is None else max(1, int(workload["spec"]["replicas"]))


def _conditions(ready: bool) -> list[dict[str, Any]]:
    return [
        {"type": "PodScheduled", "status": "True"},
        {"type": "Ready", "status": "True" if ready else "False"},
        {"type": "ContainersReady", "status": "True" if ready else "False"},
    ]


def _unschedulable(message: str) -> dict[str, Any]:
    return {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}


def _terminated(ended: Exit) -> dict[str, Any]:
    reason = "Completed" if ended.code == 0 else "Error"
    return {"exitCode": ended.code, "reason": reason, "message": ended.message}
