"""Claims of volumes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.resources.common import Volume


def volume_names(name: str, volume: Volume) -> list[str]:
    """The names of one kind of volume in a pod: the name alone for one, numbered for several."""
    return [name] if volume.count == 1 else [f"{name}-{number}" for number in range(volume.count)]


def claim_templates(volumes: Mapping[str, Volume], its_labels: Mapping[str, str]) -> list[Manifest]:
    """A StatefulSet's `volumeClaimTemplates`. Labels stay as they are for good: the field is immutable."""
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim, "labels": dict(its_labels)},
            "spec": _claim(volume),
        }
        for name, volume in volumes.items()
        for claim in volume_names(name, volume)
    ]


def _claim(volume: Volume) -> dict[str, Any]:
    found: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "volumeMode": "Filesystem",
        "resources": {"requests": {"storage": str(volume.size)}},
    }
    if volume.storage_class_name is not None:
        found["storageClassName"] = volume.storage_class_name
    return found
