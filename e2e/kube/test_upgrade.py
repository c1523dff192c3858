"""Images and settings change under load; what goes wrong stops before it does harm."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from e2e.kube.clusters import DeployedCluster
from e2e.kube.conftest import VERSION
from e2e.kube.kubectl import Manifest, name_of, wait_for
from e2e.kube.load import under_load

NEXT_VERSION = os.environ.get("MAGNETAR_E2E_NEXT_VERSION", f"{VERSION}-next")
"""The same images under another name, which is all that a roll-out goes by."""
ROLL_SECONDS_MAX = 420.0
COMPONENTS = ("zookeeper", "bookie", "broker", "proxy")


def images(cluster: DeployedCluster) -> set[str]:
    found = [pod for component in COMPONENTS for pod in cluster.pods(component)]
    return {pod["spec"]["containers"][0]["image"].rpartition(":")[2] for pod in found}


def identities(cluster: DeployedCluster, *components: str) -> dict[str, str]:
    pods: list[Manifest] = [pod for component in components for pod in cluster.pods(component)]
    return {name_of(pod): pod["metadata"]["uid"] for pod in pods}


def test_a_rolling_upgrade_under_load(
    new_cluster: Callable[..., DeployedCluster], tmp_path: Path, note: Callable[[str], None]
) -> None:
    cluster = new_cluster(broker={"replicas": 2}, proxy={"replicas": 2})
    with under_load(cluster, tmp_path) as load, load.disturbed():
        began = time.monotonic()
        cluster.apply(version=NEXT_VERSION)
        wait_for("every pod is of the next version", lambda: upgraded(cluster), ROLL_SECONDS_MAX)
        note(f"{time.monotonic() - began:.0f} s")
    note(f"longest wait for a receipt {load.longest_wait_seconds():.1f} s")


def upgraded(cluster: DeployedCluster) -> bool:
    return images(cluster) == {NEXT_VERSION} and cluster.is_ready()


def test_an_image_that_is_not_there_stops_the_roll_out_and_harms_nobody(
    new_cluster: Callable[..., DeployedCluster], tmp_path: Path
) -> None:
    cluster = new_cluster(broker={"replicas": 2})
    before = identities(cluster, "broker", "proxy")
    with under_load(cluster, tmp_path) as load:
        cluster.apply(broker={"image": "localhost/nowhere/broker:1"})
        found = cluster.wait_condition("Stalled", "True", "image", seconds_max=240)
        assert "localhost/nowhere/broker:1" in found["message"]
        after = identities(cluster, "broker")
        assert set(before) & set(after) == {name for name in before if "-broker-" in name}
        load.wait_for_flow()
        with load.disturbed():
            cluster.apply(broker={"image": None})
            wait_for("all is well again", cluster.is_ready, ROLL_SECONDS_MAX)


def test_a_setting_that_does_not_exist_is_quoted_and_harms_nobody(new_cluster: Callable[..., DeployedCluster]) -> None:
    cluster = new_cluster()
    cluster.apply(broker={"settings": {"maxMesageSize": 1_000_000}})
    found = cluster.wait_condition("Stalled", "True", "maxMesageSize", seconds_max=240)
    assert "maxMessageSize" in found["message"]
    assert cluster.ready_pods("broker")
    cluster.apply(broker={"settings": None})
    wait_for("all is well again", cluster.is_ready, ROLL_SECONDS_MAX)


def test_a_brokers_setting_restarts_brokers_alone(new_cluster: Callable[..., DeployedCluster]) -> None:
    cluster = new_cluster()
    others = identities(cluster, "zookeeper", "bookie", "proxy")
    brokers = identities(cluster, "broker")
    cluster.apply(broker={"settings": {"maxMessageSize": 1_000_000}})
    wait_for(
        "the brokers are new ones",
        lambda: not set(brokers.values()) & set(identities(cluster, "broker").values()) and cluster.is_ready(),
        ROLL_SECONDS_MAX,
    )
    assert identities(cluster, "zookeeper", "bookie", "proxy") == others
    values = cluster.admin("GET", "/admin/v2/brokers/configuration/runtime")
    assert str(values["maxMessageSize"]) == "1000000"


def test_a_bookies_setting_restarts_bookies_one_by_one(
    new_cluster: Callable[..., DeployedCluster], tmp_path: Path
) -> None:
    cluster = new_cluster()
    others = identities(cluster, "zookeeper", "broker", "proxy")
    bookies = identities(cluster, "bookie")
    fewest = 3
    with under_load(cluster, tmp_path) as load, load.disturbed():
        cluster.apply(bookkeeper={"settings": {"journalMaxGroupWaitMSec": 2}})
        deadline = time.monotonic() + ROLL_SECONDS_MAX
        while set(bookies.values()) & set(identities(cluster, "bookie").values()) or not cluster.is_ready():
            fewest = min(fewest, len(cluster.ready_pods("bookie")))
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert fewest >= 2
    assert identities(cluster, "zookeeper", "broker", "proxy") == others
