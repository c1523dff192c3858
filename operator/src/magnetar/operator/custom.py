"""Custom resources as their types."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from magnetar.core.errors import Misuse, SettingError
from magnetar.operator.children.naming import READABLE_ANNOTATION, OwnerResource
from magnetar.operator.kubernetes.kinds import PULSAR_CLUSTER, Manifest
from magnetar.operator.resources.bookie import BookieSpec, BookieStatus
from magnetar.operator.resources.cluster import PulsarClusterSpec, PulsarClusterStatus
from magnetar.operator.resources.common import Part
from magnetar.operator.resources.quantities import size_bytes

Spec = TypeVar("Spec", bound=Part)
Status = TypeVar("Status", bound=Part)

_Resource: TypeAlias = tuple[str, str, str]
"""A resource's kind, namespace and name."""

_SETTINGS: Final = (
    ("settings",),
    ("metadata", "zookeeper", "settings"),
    ("bookkeeper", "settings"),
    ("broker", "settings"),
    ("proxy", "settings"),
    ("readOnlyBrokers", "settings"),
)
"""Where specs of either kind have settings. The API server takes anything as the value of one."""
_SIZES: Final = (
    ("metadata", "zookeeper", "storage", "size"),
    ("bookkeeper", "storage", "journal", "size"),
    ("bookkeeper", "storage", "ledgers", "size"),
    ("bookkeeper", "drainBytesPerSecondMax"),
    ("storage", "journal", "size"),
    ("storage", "ledgers", "size"),
    ("drainBytesPerSecondMax",),
)
"""Where they have quantities that the operator computes with."""
_POLICIES: Final = ("Retain", "Delete")
KEPT_BYTES_MAX: Final = 64 * 1024
"""Bytes of a spec that is kept in an annotation: Kubernetes allows 256 KiB for all of an object's. A spec has a few."""
_NAME: Final = re.compile(r"[^\s=:#!\\\x00-\x1f\x7f]+")
"""The name of a setting: in its file another character would end it, and what follows would be read as something
else."""
_JSON_TYPES: Final = {list: "a list", dict: "an object", type(None): "null"}


def cluster_spec(manifest: Manifest) -> PulsarClusterSpec:
    """`SettingError` for what this version of the operator cannot read."""
    return _spec(manifest, PulsarClusterSpec)


def pool_spec(manifest: Manifest) -> BookieSpec:
    """`SettingError` for what this version of the operator cannot read."""
    return _spec(manifest, BookieSpec)


class SpecReader:
    """Specs of resources, each as it was when it could be read last: what runs is looked after by that one while a
    person corrects it. Of each resource only the latest is kept: here, and for the next process in an annotation."""

    def __init__(self) -> None:
        self._good: dict[_Resource, tuple[str, Mapping[str, Any]]] = {}
        """With the resource's uid."""

    def cluster(self, manifest: Manifest) -> tuple[PulsarClusterSpec, str]:
        """A PulsarCluster's, and what is wrong with the newest, empty for nothing. `SettingError` if none could be read
        yet."""
        return self._read(manifest, cluster_spec)

    def pool(self, manifest: Manifest) -> tuple[BookieSpec, str]:
        """A Bookie's, and what is wrong with the newest, or empty. `SettingError` if none could be read yet."""
        return self._read(manifest, pool_spec)

    def to_keep(self, manifest: Manifest) -> dict[str, str | None]:
        """What the resource's annotations are to be changed by, before anything is done by its spec; empty: nothing.
        None takes away what would be wrong by then, of a spec that is too large."""
        newest = manifest.get("spec") or {}
        read: Callable[[Manifest], object] = cluster_spec if manifest["kind"] == PULSAR_CLUSTER else pool_spec
        try:
            read(manifest)
        except SettingError:
            return {}
        text: str | None = json.dumps(newest, separators=(",", ":"), sort_keys=True)
        if len(text or "") > KEPT_BYTES_MAX:
            text = None
        return {} if _annotation(manifest) == text else {READABLE_ANNOTATION: text}

    def forget(self, kind: str, namespace: str, name: str) -> None:
        """Forget a resource that is gone."""
        self._good.pop((kind, namespace, name), None)

    def _read(self, manifest: Manifest, read: Callable[[Manifest], Spec]) -> tuple[Spec, str]:
        metadata = manifest["metadata"]
        resource, uid = (manifest["kind"], metadata["namespace"], metadata["name"]), metadata["uid"]
        newest = manifest.get("spec") or {}
        try:
            spec = read(manifest)
        except SettingError as error:
            in_memory = self._good.get(resource)
            known = in_memory[1] if in_memory is not None and in_memory[0] == uid else _kept(manifest, read)
            if known is None:
                if manifest["kind"] != PULSAR_CLUSTER or "deletionTimestamp" not in metadata:
                    raise
                # Of one that goes, nothing else is asked.
                policy = {name: newest[name] for name in ("deletionPolicy",) if newest.get(name) in _POLICIES}
                return read({**manifest, "spec": policy}), str(error)
            # Whoever wants the operator to leave it alone means at once.
            paused = {"paused": newest["paused"]} if isinstance(newest.get("paused"), bool) else {}
            return read({**manifest, "spec": {**known, **paused}}), str(error)
        self._good[resource] = (uid, newest)
        return spec, ""


def _annotation(manifest: Manifest) -> str | None:
    text = (manifest["metadata"].get("annotations") or {}).get(READABLE_ANNOTATION)
    return text if isinstance(text, str) else None


def _kept(manifest: Manifest, read: Callable[[Manifest], object]) -> Mapping[str, Any] | None:
    """What an earlier process could read; None if it has kept nothing, or nothing that this one can read."""
    try:
        spec = json.loads(_annotation(manifest) or "null")
        if not isinstance(spec, dict):
            return None
        read({**manifest, "spec": spec})
    except (ValueError, RecursionError, SettingError):
        return None
    return spec


def _spec(manifest: Manifest, type_: type[Spec]) -> Spec:
    spec = manifest.get("spec") or {}
    who = f"{manifest['kind']} {manifest['metadata']['name']}"
    try:
        found = msgspec.convert(spec, type_)
    except msgspec.ValidationError as error:
        raise SettingError(f"{who}: {_wrong_setting(spec) or _in_words(error)}") from None
    if words := _wrong_setting(spec) or _wrong_size(spec):
        raise SettingError(f"{who}: {words}")
    return found


def _wrong_setting(spec: Mapping[str, Any]) -> str:
    for path in _SETTINGS:
        settings = _at(spec, path)
        for name, value in settings.items() if isinstance(settings, dict) else ():
            if type(value) in _JSON_TYPES:
                what = _JSON_TYPES[type(value)]
                return f"spec.{'.'.join(path)}.{name} is {what}: a setting has one text, number, true or false"
            if not _NAME.fullmatch(name):
                return f"spec.{'.'.join(path)} has {name[:40]!r}: no setting has such a name"
    return ""


def _wrong_size(spec: Mapping[str, Any]) -> str:
    for path in _SIZES:
        size = _at(spec, path)
        try:
            if size is not None:
                size_bytes(size)
        except Misuse as error:
            return f"spec.{'.'.join(path)}: {error}"
    return ""


def _at(spec: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        spec = spec.get(name) if isinstance(spec, dict) else None
    return spec


def _in_words(error: msgspec.ValidationError) -> str:
    """`Expected `int`, got `str` - at `$.broker.replicas``, the place first."""
    what, _, where = str(error).partition(" - at ")
    return f"spec{where.strip('`').removeprefix('$')}: {what}" if where else what


def cluster_status(manifest: Manifest) -> PulsarClusterStatus:
    """The status of a PulsarCluster as it was written last; an empty one if another version wrote what this one cannot
    read."""
    return read_status(manifest.get("status"), PulsarClusterStatus) or PulsarClusterStatus()


def pool_status(manifest: Manifest) -> BookieStatus:
    """The status of a Bookie as a type; what cannot be read of it is left out."""
    return read_status(manifest.get("status"), BookieStatus) or BookieStatus()


def read_status(status: Any, type_: type[Status]) -> Status | None:
    """A resource's status as a type, in which what is left out is what it is by default: so the API server gives it
    back. None for none, or one that another version has written."""
    try:
        return msgspec.convert(status, type_) if status else None
    except msgspec.ValidationError:
        return None


def owner_of(manifest: Manifest) -> OwnerResource:
    """The custom resource as its children refer to it."""
    metadata = manifest["metadata"]
    return OwnerResource(
        kind=manifest["kind"], name=metadata["name"], namespace=metadata["namespace"], uid=metadata["uid"]
    )
