"""Custom resources as their types."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from magnetar.core.errors import SettingError
from magnetar.operator.children.naming import Manifest, Owner
from magnetar.operator.resources.bookie import BookieSpec, BookieStatus
from magnetar.operator.resources.cluster import PulsarClusterSpec, PulsarClusterStatus
from magnetar.operator.resources.common import Part

Spec = TypeVar("Spec", bound=Part)


def cluster_spec(manifest: Manifest) -> PulsarClusterSpec:
    """`SettingError` for what this version of the operator cannot read."""
    return _spec(manifest, PulsarClusterSpec)


def pool_spec(manifest: Manifest) -> BookieSpec:
    """`SettingError` for what this version of the operator cannot read."""
    return _spec(manifest, BookieSpec)


def _spec(manifest: Manifest, type_: type[Spec]) -> Spec:
    try:
        return msgspec.convert(manifest.get("spec") or {}, type_)
    except msgspec.ValidationError as error:
        raise SettingError(f"{manifest['kind']} {manifest['metadata']['name']}: {error}") from None


def cluster_status(manifest: Manifest) -> PulsarClusterStatus:
    """As it was written last; as if nothing was, if another version wrote what this one cannot read."""
    try:
        return msgspec.convert(manifest.get("status") or {}, PulsarClusterStatus)
    except msgspec.ValidationError:
        return PulsarClusterStatus()


def pool_status(manifest: Manifest) -> BookieStatus:
    """As `cluster_status`."""
    try:
        return msgspec.convert(manifest.get("status") or {}, BookieStatus)
    except msgspec.ValidationError:
        return BookieStatus()


def owner_of(manifest: Manifest) -> Owner:
    """The custom resource as its children refer to it."""
    metadata = manifest["metadata"]
    return Owner(kind=manifest["kind"], name=metadata["name"], namespace=metadata["namespace"], uid=metadata["uid"])
