"""What the API server stores: objects with their versions, as everybody else in the simulation sees and changes them.

Objects are replaced, never changed: whoever holds one holds a version of it. Nothing here fails by chance or takes
time; `api_server` adds that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import msgspec
from magnetar.operator.kubernetes.errors import AlreadyExists, Conflict, NotFound
from magnetar.operator.kubernetes.kinds import Manifest

from e2e.operator_simulation.objects import ownership
from e2e.operator_simulation.objects.admission import ORIGIN_SECONDS, admit, with_defaults

Name: TypeAlias = tuple[str, str]
"""Namespace and name."""

PAST_SECONDS: Final = 60.0
"""How long older versions are kept for those who look at the past."""

HELD_UNTIL_STOPPED: Final = "Pod"
"""Objects of this kind go when their processes have ended, which is the kubelet's to say."""

PROTECTION: Final = "kubernetes.io/pvc-protection"


def timestamp(now_seconds: float) -> str:
    """As Kubernetes writes times, in whole seconds."""
    return datetime.fromtimestamp(ORIGIN_SECONDS + int(now_seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Stored:
    """One version of an object."""

    __slots__ = ("data", "encoded", "owners")

    def __init__(self, data: Manifest, owners: ownership.Owners) -> None:
        self.data = data
        self.owners = owners
        self.encoded = msgspec.json.encode(data)

    def copy(self) -> Manifest:
        """For those who may change it."""
        found: Manifest = msgspec.json.decode(self.encoded)
        return found


Listener: TypeAlias = Callable[[Manifest | None, Manifest | None], None]
"""Called with the versions before and after a change; None: it did not exist, or does not any more."""


class ObjectStore:
    """All objects of a simulated Kubernetes."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._objects: dict[str, dict[Name, Stored]] = {}
        self._past: dict[str, deque[tuple[float, Name, Stored | None]]] = {}
        self._numbers = 100
        self._uids = 0
        self.listeners: list[Listener] = []

    # --- looking

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """The object as it is, not to be changed."""
        stored = self._objects.get(kind, {}).get((namespace, name))
        return stored.data if stored is not None else None

    def all(self, kind: str) -> list[Manifest]:
        """All of a kind, not to be changed, in the order of their names."""
        return [stored.data for _, stored in sorted(self._objects.get(kind, {}).items())]

    def kinds(self) -> list[str]:
        """That have ever had an object."""
        return list(self._objects)

    def as_of(self, kind: str, age_seconds: float) -> dict[Name, Stored]:
        """All of a kind as it was so long ago."""
        found = dict(self._objects.get(kind, {}))
        if age_seconds <= 0:
            return found
        since = self._now() - age_seconds
        for when, name, before in reversed(self._past.get(kind, ())):
            if when <= since:
                break
            if before is None:
                found.pop(name, None)
            else:
                found[name] = before
        return found

    def children(self, uid: str) -> Iterator[tuple[str, Manifest]]:
        """Everything that names this owner, with its kind."""
        for kind, objects in self._objects.items():
            for _, stored in sorted(objects.items()):
                references = stored.data["metadata"].get("ownerReferences", ())
                if any(reference["uid"] == uid for reference in references):
                    yield kind, stored.data

    def uids(self) -> set[str]:
        """Of everything that exists."""
        return {stored.data["metadata"]["uid"] for objects in self._objects.values() for stored in objects.values()}

    # --- changing, as clients do

    def create(self, manifest: Manifest, who: str) -> Manifest:
        """`AlreadyExists`, `Refused`."""
        key = _key(manifest)
        if self._find(key) is not None:
            raise AlreadyExists(f"{key[0]} {key[2]} already exists")
        body = _without_identity(manifest)
        owners: ownership.Owners = {(who, "Update"): frozenset(ownership.fields_of(body))}
        if "status" in manifest and key[0] != "Event":
            manifest = {name: value for name, value in manifest.items() if name != "status"}
        return self._write(key, None, manifest, owners)

    def apply(self, manifest: Manifest, who: str, *, dry: bool = False) -> Manifest:
        """Server-side apply, with force; `dry`: only whether it would be taken."""
        key = _key(manifest)
        before = self._find(key)
        metadata = manifest["metadata"]
        if before is None:
            if metadata.get("uid") or metadata.get("resourceVersion"):
                raise Conflict(f"{key[0]} {key[2]} is gone")
        else:
            _check_identity(key, before, metadata.get("uid"), metadata.get("resourceVersion"))
        body = _without_identity({name: value for name, value in manifest.items() if name != "status"})
        owners = dict(before.owners) if before is not None else {}
        current = _without_identity(before.data) if before is not None else {}
        after = ownership.apply(current, body, owners, (who, "Apply"))
        after = _with_identity(after, before.data if before is not None else manifest)
        if dry:
            after = with_defaults(after, before.data if before is not None else None)
            admit(before.data if before is not None else None, after)
            return after
        return self._write(key, before, after, owners)

    def apply_status(self, manifest: Manifest, who: str) -> Manifest:
        """The same of the status alone."""
        key = _key(manifest)
        before = self._existing(key)
        metadata = manifest["metadata"]
        _check_identity(key, before, metadata.get("uid"), metadata.get("resourceVersion"))
        owners = dict(before.owners)
        current = {"status": before.data.get("status", {})}
        wanted = {"status": manifest.get("status", {})}
        status = ownership.apply(current, wanted, owners, (who, "Status")).get("status", {})
        return self._write(key, before, before.data | {"status": status}, owners)

    def patch(self, key: tuple[str, str, str], patch: dict[str, Any], who: str, *, uid: str = "") -> Manifest:
        """JSON merge patch."""
        before = self._existing(key)
        metadata = patch.get("metadata", {})
        for wanted in (uid, metadata.get("uid")):
            _check_identity(key, before, wanted, metadata.get("resourceVersion"))
        patch = _without_identity({name: value for name, value in patch.items() if name != "status"})
        current = _without_identity(before.data)
        after = ownership.merge_patched(current, patch)
        owners = dict(before.owners)
        ownership.updated_owners(current, after, owners, (who, "Update"))
        if "managedFields" in metadata:
            owners = _owners_from(metadata["managedFields"])
        return self._write(key, before, _with_identity(after, before.data), owners)

    def delete(self, key: tuple[str, str, str], *, uid: str = "", orphan: bool = False) -> bool:
        """Whether there was one. `Conflict`."""
        before = self._find(key)
        if before is None:
            return False
        _check_identity(key, before, uid, None)
        if orphan:
            self._orphan(before.data["metadata"]["uid"])
        metadata = before.data["metadata"]
        if "deletionTimestamp" in metadata:
            return True
        metadata = metadata | {"deletionTimestamp": timestamp(self._now())}
        if "generation" in metadata:
            metadata["generation"] += 1
        self._put(key, before, before.data | {"metadata": metadata}, before.owners)
        return True

    # --- changing, as Kubernetes itself does

    def set_status(self, kind: str, namespace: str, name: str, status: dict[str, Any]) -> None:
        """Nothing if it is gone, or is so already."""
        before = self._find((kind, namespace, name))
        if before is not None and before.data.get("status") != status:
            self._put((kind, namespace, name), before, before.data | {"status": status}, before.owners)

    def set_metadata(self, kind: str, namespace: str, name: str, **fields: Any) -> None:
        """Nothing if it is gone; None removes."""
        before = self._find((kind, namespace, name))
        if before is not None:
            metadata = {field: value for field, value in (before.data["metadata"] | fields).items() if value}
            self._put((kind, namespace, name), before, before.data | {"metadata": metadata}, before.owners)

    def set_spec(self, kind: str, namespace: str, name: str, **fields: Any) -> None:
        """Nothing if it is gone; generations are left alone."""
        before = self._find((kind, namespace, name))
        if before is not None:
            after = before.data | {"spec": before.data["spec"] | fields}
            self._put((kind, namespace, name), before, after, before.owners)

    def remove(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """A pod whose processes have ended is gone."""
        before = self._find((kind, namespace, name))
        if before is not None and before.data["metadata"]["uid"] == uid:
            self._drop((kind, namespace, name), before)

    # --- within

    def _write(
        self, key: tuple[str, str, str], before: Stored | None, after: Manifest, owners: ownership.Owners
    ) -> Manifest:
        """What a client wrote: checked, completed, with its generation."""
        after = with_defaults(after, before.data if before is not None else None)
        admit(before.data if before is not None else None, after)
        metadata = dict(after["metadata"])
        if before is None:
            self._uids += 1
            metadata["uid"] = f"uid-{self._uids}"
            metadata["creationTimestamp"] = timestamp(self._now())
            if "spec" in after:
                metadata["generation"] = 1
            if key[0] == "PersistentVolumeClaim":
                metadata["finalizers"] = [PROTECTION]
        elif "spec" in after and after["spec"] != before.data.get("spec"):
            metadata["generation"] = before.data["metadata"]["generation"] + 1
        return self._put(key, before, after | {"metadata": metadata}, owners)

    def _put(
        self, key: tuple[str, str, str], before: Stored | None, after: Manifest, owners: ownership.Owners
    ) -> Manifest:
        metadata = after["metadata"]
        if before is not None and after == before.data:
            before.owners = owners
            return before.data
        self._numbers += 1
        after = after | {"metadata": metadata | {"resourceVersion": str(self._numbers)}}
        leaves = "deletionTimestamp" in metadata and not metadata.get("finalizers")
        held = key[0] == HELD_UNTIL_STOPPED and bool(after["spec"].get("nodeName"))
        if leaves and not held and before is not None:
            self._drop(key, before)
            return after
        stored = Stored(after, owners)
        self._remember(key, before)
        self._objects.setdefault(key[0], {})[key[1:]] = stored
        self._tell(before.data if before is not None else None, after)
        return after

    def _drop(self, key: tuple[str, str, str], before: Stored) -> None:
        self._numbers += 1
        self._remember(key, before)
        del self._objects[key[0]][key[1:]]
        self._tell(before.data, None)

    def _orphan(self, uid: str) -> None:
        for kind, data in list(self.children(uid)):
            metadata = data["metadata"]
            left = [reference for reference in metadata["ownerReferences"] if reference["uid"] != uid]
            self.set_metadata(kind, metadata["namespace"], metadata["name"], ownerReferences=left or None)

    def _remember(self, key: tuple[str, str, str], before: Stored | None) -> None:
        past = self._past.setdefault(key[0], deque())
        past.append((self._now(), key[1:], before))
        while past[0][0] < self._now() - PAST_SECONDS:
            past.popleft()

    def _tell(self, before: Manifest | None, after: Manifest | None) -> None:
        for listener in self.listeners:
            listener(before, after)

    def _find(self, key: tuple[str, str, str]) -> Stored | None:
        return self._objects.get(key[0], {}).get(key[1:])

    def _existing(self, key: tuple[str, str, str]) -> Stored:
        found = self._find(key)
        if found is None:
            raise NotFound(f"{key[0]} {key[2]} not found")
        return found


def _key(manifest: Manifest) -> tuple[str, str, str]:
    metadata = manifest["metadata"]
    return manifest["kind"], metadata.get("namespace", ""), metadata["name"]


def _owners_from(managed_fields: list[dict[str, Any]]) -> ownership.Owners:
    """What a client writes there is taken at its word."""
    owners: ownership.Owners = {}
    for entry in managed_fields:
        fields = frozenset(_paths(entry.get("fieldsV1", {})))
        owners[entry["manager"], "Status" if entry.get("subresource") else entry["operation"]] = fields
    return owners


def _paths(fields: dict[str, Any], at: ownership.Path = ()) -> Iterator[ownership.Path]:
    """Of FieldsV1, where names begin with `f:`. Items of lists are not needed."""
    for name, below in fields.items():
        path = (*at, name.removeprefix("f:"))
        if below:
            yield from _paths(below, path)
        else:
            yield path


def _check_identity(key: tuple[str, str, str], stored: Stored, uid: str | None, version: str | None) -> None:
    metadata = stored.data["metadata"]
    if uid and metadata["uid"] != uid:
        raise Conflict(f"{key[0]} {key[2]}: the UID in the precondition ({uid}) is not that of the object")
    if version and metadata["resourceVersion"] != version:
        raise Conflict(f"{key[0]} {key[2]}: the object has been modified")


_IDENTITY: Final = (
    "creationTimestamp",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "name",
    "namespace",
    "resourceVersion",
    "uid",
)


def _without_identity(manifest: Manifest) -> Manifest:
    """Only what managers can own."""
    found = {name: value for name, value in manifest.items() if name not in ("apiVersion", "kind", "status")}
    if "metadata" in found:
        metadata = {name: value for name, value in found["metadata"].items() if name not in _IDENTITY}
        found["metadata"] = metadata
    return found


def _with_identity(body: Manifest, before: Manifest) -> Manifest:
    identity = {name: before["metadata"][name] for name in _IDENTITY if name in before["metadata"]}
    found = {"apiVersion": before["apiVersion"], "kind": before["kind"]} | body
    found["metadata"] = (body.get("metadata") or {}) | identity
    if "status" in before:
        found["status"] = before["status"]
    return found
