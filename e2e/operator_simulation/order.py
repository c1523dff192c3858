"""In which order a cluster stops, put to sleep or deleted with its volumes: nobody is to miss what it leans on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from magnetar.operator.children.naming import BOOKIE, BROKER, COMPONENT_LABEL, INSTANCE_LABEL, PROXY, ZOOKEEPER
from magnetar.operator.kubernetes.kinds import PULSAR_CLUSTER

from e2e.operator_simulation.objects.store import Name, ObjectStore

SLEEP: Final = {BROKER: (PROXY,), BOOKIE: (BROKER, PROXY), ZOOKEEPER: (BOOKIE, BROKER, PROXY)}
"""Who is to have stopped before whom."""
END: Final = {BOOKIE: (BROKER, PROXY), ZOOKEEPER: (BROKER, PROXY)}
"""The same where nothing is to be kept: bookies and ZooKeeper go together. Where volumes stay there is no order."""


def left_behind(
    store: ObjectStore, born: Mapping[str, float], cluster: Name, components: tuple[str, ...], since: float
) -> list[str]:
    """Pods of these components that were there by then already, and are there still. Those of an earlier cluster of the
    same name are nobody's."""
    owner = store.get(PULSAR_CLUSTER, *cluster)
    made = born[owner["metadata"]["uid"]] if owner is not None else 0.0
    found = []
    for pod in store.all("Pod"):
        metadata = pod["metadata"]
        labels = metadata.get("labels", {})
        is_one = labels.get(INSTANCE_LABEL) == cluster[1] and labels.get(COMPONENT_LABEL) in components
        if is_one and made < born[metadata["uid"]] < since:
            found.append(metadata["name"])
    return found
