"""Restarts as `kubectl rollout restart` asks for them: the time as an annotation of the pods' template. Pure."""

from __future__ import annotations

from typing import Any, Final

from magnetar.core.errors import SettingError
from magnetar.operator.children.naming import READ_ONLY_BROKER
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.resources.common import GROUP

RESTARTED_ANNOTATION: Final = f"{GROUP}/restarted-at"


def pool_patch(at: str) -> dict[str, Any]:
    """The patch of a pool's spec that restarts its bookies."""
    return {"pod": {"annotations": {RESTARTED_ANNOTATION: at}}}


def cluster_patch(cluster: Manifest, component: str, at: str) -> dict[str, Any]:
    """The patch of a cluster's spec that restarts a component. `SettingError` for what the operator does not run."""
    part = pool_patch(at)
    if component == "zookeeper":
        if cluster.get("spec", {}).get("metadata", {}).get("url"):
            raise SettingError("the metadata are in a store that the operator does not run: restart that by yourself")
        return {"metadata": {"zookeeper": part}}
    if component == READ_ONLY_BROKER:
        if cluster.get("spec", {}).get("readOnlyBrokers") is None:
            raise SettingError(
                "the cluster has no read-only brokers: spec.readOnlyBrokers says how many there are to be"
            )
        return {"readOnlyBrokers": part}
    if cluster.get("spec", {}).get("attach") is not None:
        raise SettingError("others run that cluster: only its read-only brokers are the operator's")
    return {"bookkeeper" if component == "bookie" else component: part}
