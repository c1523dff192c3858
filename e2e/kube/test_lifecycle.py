"""Clusters are deleted and made again, paused, put to sleep; several live side by side; the operator is upgraded."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from e2e.kube.clusters import DeployedCluster, small
from e2e.kube.conftest import REPOSITORY, VERSION
from e2e.kube.kubectl import Kubernetes, Namespace, condition, wait_for
from e2e.kube.load import StoredBytes, under_load
from e2e.kube.release import OperatorRelease
from e2e.kube.test_install import first_message
from e2e.kube.test_upgrade import NEXT_VERSION

SLEEP_SECONDS_MAX = 180.0
DELETED_SECONDS_MAX = 30.0
"""Processes end within five of them; one that waited for ZooKeeper's session would take more."""
COMPONENTS = ("zookeeper", "bookie", "broker", "proxy")


def running(cluster: DeployedCluster) -> int:
    return sum(len(cluster.pods(component)) for component in COMPONENTS)


def test_a_deleted_cluster_whose_volumes_were_kept_comes_back_with_all_it_had(
    new_cluster: Callable[..., DeployedCluster], note: Callable[[str], None]
) -> None:
    cluster = new_cluster(deletionPolicy="Retain")
    stored = StoredBytes(cluster, topics=3, megabytes=10)
    stored.publish()
    claims = cluster.claims()
    seconds = cluster.delete()
    note(f"{seconds:.1f} s")
    assert seconds <= DELETED_SECONDS_MAX
    assert cluster.claims() == claims
    cluster.apply()
    cluster.wait_ready()
    assert stored.read_back() > 8_000_000
    cluster.apply(deletionPolicy="Delete")
    cluster.wait_ready()


def test_a_deleted_cluster_takes_its_volumes_along_if_told_to(
    new_cluster: Callable[..., DeployedCluster], note: Callable[[str], None]
) -> None:
    cluster = new_cluster()
    assert len(cluster.claims()) == 7
    seconds = cluster.delete()
    note(f"{seconds:.1f} s")
    assert seconds <= DELETED_SECONDS_MAX
    wait_for("no volume is left", lambda: not cluster.claims(), 60)
    cluster.apply()
    cluster.wait_ready()
    first_message(cluster)


def test_a_paused_cluster_is_left_alone(new_cluster: Callable[..., DeployedCluster]) -> None:
    cluster = new_cluster()
    cluster.apply(paused=True)
    wait_for("it is known to be paused", lambda: condition(cluster.resource(), "Paused").get("status") == "True", 60)
    cluster.namespace("delete", "service", f"{cluster.name}-broker")
    cluster.apply(broker={"replicas": 2})
    time.sleep(8)
    assert cluster.namespace.find("service", f"{cluster.name}-broker") is None
    assert len(cluster.pods("broker")) == 1
    cluster.apply(paused=False)
    wait_for("two brokers are ready", lambda: len(cluster.ready_pods("broker")) == 2 and cluster.is_ready(), 120)


def test_a_cluster_sleeps_and_wakes_with_all_it_had(
    new_cluster: Callable[..., DeployedCluster], note: Callable[[str], None]
) -> None:
    cluster = new_cluster()
    stored = StoredBytes(cluster, topics=3, megabytes=10)
    stored.publish()
    claims = cluster.claims()
    cluster.apply(hibernated=True)
    wait_for("no pod is left", lambda: running(cluster) == 0, SLEEP_SECONDS_MAX)
    assert cluster.claims() == claims
    began = time.monotonic()
    cluster.apply(hibernated=False)
    cluster.wait_ready()
    note(f"awake after {time.monotonic() - began:.0f} s")
    assert stored.read_back() > 8_000_000


def test_two_clusters_in_two_namespaces_do_not_know_each_other(
    kubernetes: Kubernetes, operator: OperatorRelease, scratch: Namespace, shared_namespace: Namespace
) -> None:
    clusters = [DeployedCluster(namespace, "blue", small()) for namespace in (scratch, shared_namespace)]
    for cluster in clusters:
        cluster.apply()
    try:
        for cluster in clusters:
            cluster.wait_ready()
        stored = [StoredBytes(cluster, topics=2, megabytes=5) for cluster in clusters]
        for each in stored:
            each.publish()
        clusters[0].delete()
        assert stored[1].read_back() > 4_000_000
    finally:
        for cluster in clusters:
            cluster.delete()


def test_the_operator_is_upgraded_under_a_cluster_that_works(
    operator: OperatorRelease, new_cluster: Callable[..., DeployedCluster], tmp_path: Path
) -> None:
    """The cluster names its version, so that only the operator changes."""
    cluster = new_cluster(version=VERSION, imageRepository=REPOSITORY)
    before = {pod["metadata"]["uid"] for component in COMPONENTS for pod in cluster.pods(component)}
    try:
        with under_load(cluster, tmp_path):
            operator.version = NEXT_VERSION
            operator.install()
            cluster.apply(proxy={"replicas": 2})
            cluster.wait_ready()
    finally:
        operator.version = VERSION
        operator.install()
    after = {pod["metadata"]["uid"] for component in COMPONENTS for pod in cluster.pods(component)}
    assert before <= after
