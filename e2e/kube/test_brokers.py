"""Brokers come and go under load, and no publish fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from e2e.kube.clusters import DeployedCluster
from e2e.kube.kubectl import wait_for
from e2e.kube.load import under_load

SCALE_SECONDS_MAX = 180.0


def settled(cluster: DeployedCluster, replicas: int) -> bool:
    return len(cluster.ready_pods("broker")) == len(cluster.pods("broker")) == replicas and cluster.is_ready()


def test_one_to_three_to_one_under_load_without_a_failed_publish(
    new_cluster: Callable[..., DeployedCluster], tmp_path: Path, note: Callable[[str], None]
) -> None:
    cluster = new_cluster()
    with under_load(cluster, tmp_path) as load:
        with load.disturbed():
            cluster.namespace("scale", "pulsarcluster", cluster.name, "--replicas=3")
            cluster.spec["broker"]["replicas"] = 3
            wait_for("three brokers are ready", lambda: settled(cluster, 3), SCALE_SECONDS_MAX)
            # All bundles are with the first broker: the others get theirs as clients would have it, by unloading.
            cluster.admin("PUT", "/admin/v2/namespaces/public/default/unload")
        with load.disturbed():
            cluster.namespace("scale", "pulsarcluster", cluster.name, "--replicas=1")
            cluster.spec["broker"]["replicas"] = 1
            wait_for("one broker is left", lambda: settled(cluster, 1), SCALE_SECONDS_MAX)
        load.wait_for_flow()
    note(f"longest wait for a receipt {load.longest_wait_seconds():.1f} s")
    assert any("drain" in event.lower() for event in cluster.events())


def test_a_broker_that_is_killed_costs_seconds_and_no_message(
    new_cluster: Callable[..., DeployedCluster], tmp_path: Path, note: Callable[[str], None]
) -> None:
    cluster = new_cluster(broker={"replicas": 2})
    with under_load(cluster, tmp_path) as load, load.disturbed():
        for pod in cluster.ready_pods("broker")[:1]:
            cluster.namespace("delete", "pod", pod, "--grace-period=0", "--force")
        wait_for("two brokers are ready", lambda: settled(cluster, 2), SCALE_SECONDS_MAX)
    note(f"longest wait for a receipt {load.longest_wait_seconds():.1f} s")
