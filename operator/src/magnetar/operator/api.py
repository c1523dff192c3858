"""Kubernetes' API server, as the operator uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from magnetar.operator.children.naming import FIELD_MANAGER
from magnetar.operator.kubernetes.kinds import Manifest


class ApiServer(Protocol):
    """All calls of the operator. Each may raise `Refused` and `ServerUnavailable`.

    Manifests are JSON objects with apiVersion, kind and metadata; so are those of lists.
    """

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """An object, as it is now; None if it is not there."""
        ...

    async def list(self, kind: str, namespace: str | None, selector: str = "") -> Sequence[Manifest]:
        """All objects of a kind; None: of all namespaces. `selector` has `name=value` and `!name` (without that
        label), separated by commas. Empty for a kind that the server does not know."""
        ...

    async def warnings(self, namespace: str, uid: str) -> Sequence[Manifest]:
        """Events of type Warning about one object; some of the many where there are many."""
        ...

    async def apply(self, manifest: Manifest, *, manager: str = FIELD_MANAGER, dry_run: bool = False) -> Manifest:
        """Server-side apply, made if it is not there. Fields that others own become ours; fields that we had set and
        that are not in the manifest any more go, unless others own them too. `Conflict` for another uid, if the
        manifest has one. With `dry_run` nothing is changed, and the answer is what would be."""
        ...

    async def apply_status(self, manifest: Manifest) -> Manifest:
        """Write the subresource `status`. `NotFound`; `Conflict` for another uid."""
        ...

    async def create(self, manifest: Manifest) -> Manifest:
        """Make it. `AlreadyExists`; `Refused`, too, for a field that its kind does not have."""
        ...

    async def patch(self, kind: str, namespace: str, name: str, patch: Mapping[str, Any], *, uid: str) -> Manifest:
        """JSON merge patch (RFC 7396): null removes, lists are replaced. `NotFound`; `Conflict` if the object has
        another uid, or another `metadata.resourceVersion` than the patch."""
        ...

    async def delete(self, kind: str, namespace: str, name: str, *, uid: str, orphan: bool = False) -> None:
        """Delete it in the background, with what it owns or, if `orphan`, without. No error if it is not there.
        `Conflict` if the object has another uid."""
        ...

    async def knows(self, kind: str) -> bool:
        """Whether the server has this kind."""
        ...
