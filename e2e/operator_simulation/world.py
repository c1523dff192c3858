"""One simulated Kubernetes with everything in it but the operator."""

from __future__ import annotations

import random
from typing import Final

from magnetar.operator.children.naming import INSTANCE_LABEL
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.resources.common import API_VERSION
from magnetar.sim.loop import SimulatedLoop

from e2e.operator_simulation.api_server import Server
from e2e.operator_simulation.deployments import Deployments
from e2e.operator_simulation.fates import Network
from e2e.operator_simulation.kubelet import Kubelet
from e2e.operator_simulation.objects.admission import STORAGE_CLASSES
from e2e.operator_simulation.objects.store import ObjectStore
from e2e.operator_simulation.parameters import Parameters
from e2e.operator_simulation.programs import BrokerProgram, Software
from e2e.operator_simulation.promises import REFUSALS_TOLD_CALM_SECONDS, Promises
from e2e.operator_simulation.replacements import Replacements
from e2e.operator_simulation.workloads import Claims, Jobs, Owners, StatefulSets

NAMESPACE: Final = "messaging"
CLUSTER: Final = "demo"
USER: Final = "kubectl"
TICK_SECONDS: Final = 1.0
TICK_AT_REST_SECONDS: Final = 5.0


class World:
    """Everything that goes on by itself, once `start` is called."""

    def __init__(self, loop: SimulatedLoop, parameters: Parameters) -> None:
        self.loop = loop
        self.parameters = parameters
        seed = parameters.seed
        self.rng = random.Random(f"{seed} operator world")
        self.store = ObjectStore(loop.time)
        self.software = Software(random.Random(f"{seed} software"), loop.time)
        self.promises = Promises(self.store, self.software, loop.trace, loop.time)
        rates = parameters.rates
        if not any((rates.fails, rates.loses_answer, rates.slow, rates.stale, rates.kills)):
            self.promises.refusals_told_seconds = REFUSALS_TOLD_CALM_SECONDS
        self.replacements = Replacements(self.store, loop.time)
        self.server = Server(self.store, self.promises)
        self.kubelet = Kubelet(loop, self.store, self.software, random.Random(f"{seed} kubelet"))
        rng = random.Random(f"{seed} controllers")
        self.stateful_sets = StatefulSets(loop, self.store, rng)
        self.deployments = Deployments(loop, self.store, rng)
        self.jobs = Jobs(loop, self.store, rng)
        self.claims = Claims(loop, self.store, self.software.disks, rng)
        self.owners = Owners(loop, self.store, rng)
        self.network = Network(loop, random.Random(f"{seed} network"), parameters.rates)
        self.rests = False
        """Nothing is to happen any more, and need not be looked at so often."""
        self._set_up()

    def _set_up(self) -> None:
        parameters = self.parameters
        for controller in (self.stateful_sets, self.deployments, self.jobs, self.claims, self.owners):
            controller.worker.delay_seconds_max = parameters.delay_seconds
        self.kubelet.start_seconds_max = parameters.start_seconds
        self.kubelet.reuse_addresses = parameters.reuse_addresses
        storage = self.software.storage
        storage.ensemble_size = parameters.ensemble_size
        storage.copies_per_second = parameters.copies_per_second
        storage.lost_after_seconds = parameters.lost_after_seconds
        storage.clients_write = lambda: bool(self.software.brokers.running)
        if not parameters.knows_monitors:
            self.server.unknown_kinds.add("PodMonitor")
        for name, grows in STORAGE_CLASSES.items():
            manifest = {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {"name": name},
                "allowVolumeExpansion": grows,
            }
            self.store.create(manifest, USER)
        self.claims.destroyed = self.promises.disk_goes
        self.store.listeners.append(self._changed)

    def start(self) -> None:
        """Time goes by."""
        self.loop.call_later(TICK_SECONDS, self._tick)

    def make_cluster(self) -> None:
        """As people do with `kubectl apply`."""
        metadata = {"name": CLUSTER, "namespace": NAMESPACE}
        spec = self.parameters.cluster_spec()
        manifest = {"apiVersion": API_VERSION, "kind": "PulsarCluster", "metadata": metadata, "spec": spec}
        self.store.create(manifest, USER)

    def cluster(self) -> Manifest | None:
        """The PulsarCluster, if there is one."""
        return self.store.get("PulsarCluster", NAMESPACE, CLUSTER)

    def pools(self) -> list[Manifest]:
        """All Bookie resources."""
        return self.store.all("Bookie")

    def _tick(self) -> None:
        self.software.tick()
        self.kubelet.tick()
        self.loop.call_later(TICK_AT_REST_SECONDS if self.rests else TICK_SECONDS, self._tick)

    def _changed(self, before: Manifest | None, after: Manifest | None) -> None:
        manifest = after if after is not None else before
        assert manifest is not None
        self.stateful_sets.changed(manifest)
        self.deployments.changed(before, manifest)
        self.jobs.changed(manifest)
        self.claims.changed(manifest)
        self.owners.changed(before, after)
        metadata = manifest["metadata"]
        if before is None or after is None:
            what = "made" if before is None else "gone"
            self.loop.trace.note("kubernetes", f"{manifest['kind']} {metadata['name']} is {what}")
        elif "deletionTimestamp" in after["metadata"] and "deletionTimestamp" not in before["metadata"]:
            self.loop.trace.note("kubernetes", f"{manifest['kind']} {metadata['name']} is to go")
            if manifest["kind"] == "Pod":
                self._judge_scale_in(manifest)

    def _judge_scale_in(self, pod: Manifest) -> None:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        if (uid, name) not in self.deployments.scaled_away:
            return
        self.deployments.scaled_away.remove((uid, name))
        running = self.kubelet.pods.get(uid)
        if running is None or not isinstance(running.program, BrokerProgram) or running.program.broker is None:
            return
        broker = running.program.broker
        answers = self.loop.time() >= running.hung_until
        if broker.bundles and answers:
            cluster = pod["metadata"]["labels"][INSTANCE_LABEL]
            self.promises.broker_goes(name, len(broker.bundles), broker.busy_since, cluster)
