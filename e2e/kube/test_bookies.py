"""Pools of bookies grow, shrink and mend themselves, and no byte is lost."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

from e2e.kube.clusters import DeployedCluster, small
from e2e.kube.kubectl import Kubernetes, Manifest, Namespace, is_ready, name_of, wait_for
from e2e.kube.load import StoredBytes
from e2e.kube.release import OperatorRelease

DRAIN_SECONDS_MAX = 300.0


def members(cluster: DeployedCluster) -> dict[str, Manifest]:
    return {member["name"]: member for member in cluster.pool()["status"].get("members", ())}


def scale(cluster: DeployedCluster, replicas: int) -> None:
    """As people do it who left the number out of the cluster's own resource."""
    cluster.namespace("scale", "bookie.pulsar.magnetar.dev", cluster.name, f"--replicas={replicas}")


def settled(cluster: DeployedCluster, replicas: int) -> bool:
    return (
        len(cluster.ready_pods("bookie")) == replicas and len(cluster.pods("bookie")) == replicas and cluster.is_ready()
    )


def free_number(cluster: DeployedCluster) -> None:
    """Leave the number of bookies to `kubectl scale`."""
    del cluster.spec["bookkeeper"]["replicas"]


def test_three_to_five_to_three_with_every_byte_read_back_and_the_operator_killed_at_each_step(
    operator: OperatorRelease, scratch: Namespace, note: Callable[[str], None]
) -> None:
    cluster = DeployedCluster(scratch, "blue", small())
    free_number(cluster)
    cluster.apply()
    try:
        cluster.wait_ready()
        stored = StoredBytes(cluster, topics=6, megabytes=60)
        scale(cluster, 5)
        wait_for("five bookies are ready", lambda: settled(cluster, 5), 120)
        stored.publish()
        with killed_at_each_step(operator, cluster) as steps:
            scale(cluster, 3)
            wait_for("two bookies are drained and gone", lambda: settled(cluster, 3), DRAIN_SECONDS_MAX)
        note(f"{len(steps)} kills")
        assert len(steps) >= 3
        wait_for("their volumes are gone", lambda: len(bookie_claims(cluster)) == 6, 60)
        assert stored.read_back() > 50_000_000
    finally:
        cluster.delete()


def bookie_claims(cluster: DeployedCluster) -> list[str]:
    return [claim for claim in cluster.claims() if "-bookie-" in claim]


class killed_at_each_step:  # noqa: N801  (reads as a statement)
    """Kills the operator whenever the state of the members that go is one that it was not killed at before."""

    def __init__(self, operator: OperatorRelease, cluster: DeployedCluster) -> None:
        self._operator, self._cluster = operator, cluster
        self._over = threading.Event()
        self._steps: set[str] = set()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> set[str]:
        self._thread.start()
        return self._steps

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            for step in self._seen():
                if step not in self._steps:
                    self._steps.add(step)
                    self._operator.kill()

    def _seen(self) -> list[str]:
        found = self._cluster.namespace.find("bookie.pulsar.magnetar.dev", self._cluster.name)
        if found is None or "status" not in found:
            return []
        replicas = self._cluster.namespace.get("statefulset", f"{self._cluster.name}-bookie")["spec"]["replicas"]
        steps = [f"{replicas} replicas"]
        for member in found["status"].get("members", ()):
            if member["state"] in {"Draining", "Drained"}:
                step = member.get("drain", {}).get("step", "")
                steps.append(f"{member['name']} {member['state']} {step}")
        return steps


def test_a_bookie_is_replaced_by_draining_it(new_cluster: Callable[..., DeployedCluster]) -> None:
    cluster = new_cluster()
    stored = StoredBytes(cluster, topics=3, megabytes=20)
    stored.publish()
    victim = name_of(cluster.pods("bookie")[1])
    before = cluster.namespace.get("pod", victim)["metadata"]["uid"]
    cluster.namespace("annotate", "pod", victim, "pulsar.magnetar.dev/replace=true")
    wait_for("the bookie is back with empty volumes", lambda: replaced(cluster, victim, before), DRAIN_SECONDS_MAX)
    assert stored.read_back() > 15_000_000


def replaced(cluster: DeployedCluster, pod: str, uid_before: str) -> bool:
    found = cluster.namespace.find("pod", pod)
    return found is not None and found["metadata"]["uid"] != uid_before and is_ready(found) and cluster.is_ready()


def test_a_bookie_whose_pod_and_volumes_are_lost_is_made_whole(new_cluster: Callable[..., DeployedCluster]) -> None:
    cluster = new_cluster()
    stored = StoredBytes(cluster, topics=3, megabytes=20)
    stored.publish()
    victim = name_of(cluster.pods("bookie")[0])
    before = cluster.namespace.get("pod", victim)["metadata"]["uid"]
    lost = [claim for claim in bookie_claims(cluster) if claim.endswith(victim)]
    cluster.namespace("delete", "persistentvolumeclaim", *lost, "--wait=false")
    cluster.namespace("delete", "pod", victim, "--grace-period=0", "--force")
    wait_for("the operator has seen it", lambda: saw_dead_disk(cluster), 120)
    wait_for("the bookie is back", lambda: replaced(cluster, victim, before), DRAIN_SECONDS_MAX)
    assert stored.read_back() > 15_000_000


def saw_dead_disk(cluster: DeployedCluster) -> bool:
    return any("disk" in event.lower() for event in cluster.events())


def test_a_bookie_that_is_killed_comes_back_with_all_it_had(new_cluster: Callable[..., DeployedCluster]) -> None:
    cluster = new_cluster()
    stored = StoredBytes(cluster, topics=3, megabytes=20)
    stored.publish()
    for pod in cluster.pods("bookie"):
        cluster.namespace("delete", "pod", name_of(pod), "--grace-period=0", "--force")
    wait_for("all bookies are back", lambda: settled(cluster, 3), 120)
    assert stored.read_back() > 15_000_000


def test_too_few_bookies_for_an_ensemble_are_refused_and_nothing_is_drained(
    operator: OperatorRelease, scratch: Namespace
) -> None:
    cluster = DeployedCluster(scratch, "blue", small())
    free_number(cluster)
    cluster.apply()
    try:
        cluster.wait_ready()
        scale(cluster, 1)
        kind = "bookie.pulsar.magnetar.dev"
        found = cluster.wait_condition("Stalled", "True", "ensemble", kind=kind)
        assert "2" in found["message"]
        time.sleep(5)
        assert len(cluster.ready_pods("bookie")) == 3
        scale(cluster, 3)
        cluster.wait_condition("Ready", "True", kind=kind)
    finally:
        cluster.delete()


def test_volumes_grow_while_bookies_serve_or_it_is_told_that_they_cannot(
    kubernetes: Kubernetes, new_cluster: Callable[..., DeployedCluster], note: Callable[[str], None]
) -> None:
    """Which of the two is a matter of the default storage class."""
    cluster = new_cluster()
    before = {name_of(pod): pod["metadata"]["uid"] for pod in cluster.pods("bookie")}
    classes = json.loads(kubernetes("get", "storageclasses", "-o", "json"))["items"]
    grows = all(each.get("allowVolumeExpansion") for each in classes)
    cluster.apply(bookkeeper={"storage": {"ledgers": {"size": "3Gi"}}})
    if grows:
        wait_for("all volumes have the new size", lambda: sizes(cluster) == {"3Gi"} and cluster.is_ready(), 180)
        note("they grow")
    else:
        found = cluster.wait_condition("Stalled", "True", "volume", kind="bookie.pulsar.magnetar.dev")
        assert "storage" in found["message"].lower()
        note("they cannot")
    assert {name_of(pod): pod["metadata"]["uid"] for pod in cluster.pods("bookie")} == before
    assert len(cluster.ready_pods("bookie")) == 3


def sizes(cluster: DeployedCluster) -> set[str]:
    claims = cluster.namespace.all("persistentvolumeclaims", f"app.kubernetes.io/instance={cluster.name}")
    found = [claim for claim in claims if name_of(claim).startswith("ledgers-")]
    return {claim["status"]["capacity"]["storage"] for claim in found}
