"""What fails in a Kubernetes cluster: ZooKeeper's pod, the kubelet, the operator itself."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from e2e.kube.clusters import DeployedCluster
from e2e.kube.kubectl import Kubernetes, is_ready, name_of, wait_for
from e2e.kube.load import under_load
from e2e.kube.release import OperatorRelease
from e2e.kubernetes.current import KIND_CLUSTER, current

BACK_SECONDS_MAX = 120.0


def test_zookeepers_pod_is_killed_under_load(
    new_cluster: Callable[..., DeployedCluster], tmp_path: Path, note: Callable[[str], None]
) -> None:
    cluster = new_cluster()
    with under_load(cluster, tmp_path) as load, load.disturbed():
        [pod] = cluster.pods("zookeeper")
        cluster.namespace("delete", "pod", name_of(pod), "--grace-period=0", "--force")
        wait_for("ZooKeeper is back", lambda: back(cluster, pod["metadata"]["uid"]), BACK_SECONDS_MAX)
        wait_for("the cluster is ready", cluster.is_ready, BACK_SECONDS_MAX)
    note(f"longest wait for a receipt {load.longest_wait_seconds():.1f} s")


def back(cluster: DeployedCluster, uid_before: str) -> bool:
    return any(is_ready(pod) and pod["metadata"]["uid"] != uid_before for pod in cluster.pods("zookeeper"))


def restart_kubelet() -> None:
    """Of our own node, or of kind's, whose nodes are containers with systemd in them."""
    chosen = current()
    if chosen.node is not None:
        chosen.node.restart_kubelet()
        return
    assert chosen.kind == "kind", "the kubelet of a cluster that is not ours is left alone: choose this test away by -k"
    node = ["docker", "exec", f"{KIND_CLUSTER}-control-plane"]
    subprocess.run([*node, "systemctl", "restart", "kubelet"], check=True, capture_output=True)


def test_the_kubelet_restarts_under_load(
    kubernetes: Kubernetes, new_cluster: Callable[..., DeployedCluster], tmp_path: Path
) -> None:
    """Pods go on while the kubelet is away, and are found again."""
    cluster = new_cluster()
    before = {pod["metadata"]["uid"] for component in ("bookie", "broker", "proxy") for pod in cluster.pods(component)}
    with under_load(cluster, tmp_path) as load:
        restart_kubelet()
        load.wait_for_flow()
        wait_for("the node is ready", lambda: "Ready" in kubernetes("get", "nodes"), BACK_SECONDS_MAX)
        wait_for("the cluster is ready", cluster.is_ready, BACK_SECONDS_MAX)
        after = {
            pod["metadata"]["uid"] for component in ("bookie", "broker", "proxy") for pod in cluster.pods(component)
        }
        assert after == before


def test_without_the_operator_all_goes_on_and_with_it_the_missing_is_made_again(
    operator: OperatorRelease, new_cluster: Callable[..., DeployedCluster], tmp_path: Path
) -> None:
    cluster = new_cluster()
    operator.namespace("scale", "deployment", "magnetar-operator", "--replicas=0")
    try:
        with under_load(cluster, tmp_path) as load:
            cluster.namespace("delete", "service", f"{cluster.name}-broker")
            time.sleep(5)
            load.wait_for_flow()
    finally:
        operator.namespace("scale", "deployment", "magnetar-operator", "--replicas=1")
        operator.wait_ready()
    wait_for(
        "the Service is there again",
        lambda: cluster.namespace.find("service", f"{cluster.name}-broker"),
        BACK_SECONDS_MAX,
    )


def test_what_somebody_changed_by_hand_is_put_right(new_cluster: Callable[..., DeployedCluster]) -> None:
    cluster = new_cluster()
    cluster.namespace.patch("service", f"{cluster.name}-proxy", {"spec": {"selector": {"app.kubernetes.io/name": "x"}}})
    cluster.namespace("delete", "poddisruptionbudget", f"{cluster.name}-broker")
    wait_for("the budget is there", lambda: budget(cluster), BACK_SECONDS_MAX)
    wait_for("the selector is right", lambda: selector(cluster) == "magnetar", BACK_SECONDS_MAX)


def budget(cluster: DeployedCluster) -> object:
    return cluster.namespace.find("poddisruptionbudget", f"{cluster.name}-broker")


def selector(cluster: DeployedCluster) -> str:
    found = cluster.namespace.get("service", f"{cluster.name}-proxy")
    return str(found["spec"]["selector"]["app.kubernetes.io/name"])
