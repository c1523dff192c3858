"""Which field of a custom resource a person has to correct when the API server does not take a child. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from magnetar.operator.children.naming import BOOKIE, BROKER, COMPONENT_LABEL, INIT, PROXY, READ_ONLY_BROKER, ZOOKEEPER

_BOOKIE_KIND: Final = "Bookie"

_PARTS: Final = {
    BROKER: "broker",
    PROXY: "proxy",
    READ_ONLY_BROKER: "readOnlyBrokers",
    ZOOKEEPER: "metadata.zookeeper",
    BOOKIE: "",
    INIT: "broker",
}
"""The part of a spec that a component has. A pool's own spec has what is a bookie's at its top."""

_POD: Final = r"spec\.template\."
_CONTAINER: Final = _POD + r"spec\.containers\[[^\]]*\]\."
_SAME_NAME: Final = (
    *("affinity", "tolerations", "topologySpreadConstraints", "nodeSelector", "priorityClassName", "schedulerName"),
    *("runtimeClassName", "serviceAccountName", "securityContext", "terminationGracePeriodSeconds", "initContainers"),
    "volumes",
)
_FIELDS: Final = (
    (_POD + r"metadata\.labels", "pod.labels"),
    (_POD + r"metadata\.annotations", "pod.annotations"),
    *((_POD + rf"spec\.{name}", f"pod.{name}") for name in _SAME_NAME),
    (_CONTAINER + r"env\b", "pod.env"),
    (_CONTAINER + r"volumeMounts", "pod.volumeMounts"),
    (_CONTAINER + r"resources", "resources"),
    (_CONTAINER + r"image\b", "image"),
    (_POD + r"spec\.containers", "pod.sidecars"),
    (r"spec\.volumeClaimTemplates", "storage"),
)
"""The field of a component's part, by what the API server's words have of a workload's path. The first that is
found."""


def what_to_correct(owner_kind: str, manifest: Mapping[str, Any], words: str) -> str:
    """In a sentence; empty where nothing in the resource is known to be at fault, such as for a quota."""
    metadata = manifest["metadata"]
    component = (metadata.get("labels") or {}).get(COMPONENT_LABEL, "")
    if component not in _PARTS:
        return ""
    field = next((field for pattern, field in _FIELDS if re.search(pattern, words)), "")
    if not field and manifest["kind"] == "Service" and component in (PROXY, READ_ONLY_BROKER) and "spec." in words:
        field = "service"
    if not field:
        return ""
    part = _PARTS[component]
    path = ".".join(filter(None, ("spec", part, field)))
    if component == BOOKIE and owner_kind == _BOOKIE_KIND:
        of_cluster = f"; of a cluster's own pool, spec.bookkeeper.{field} of the PulsarCluster"
        return f"Correct {path} of the Bookie{of_cluster}"
    return f"Correct {path}"
