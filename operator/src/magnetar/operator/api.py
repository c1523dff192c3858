"""Kubernetes' API server, as the operator uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from magnetar.core.errors import MagnetarError, Misuse, PeerError, Unavailable
from magnetar.operator.children.naming import API_VERSIONS, FIELD_MANAGER, Manifest
from magnetar.operator.resources.common import API_VERSION

PULSAR_CLUSTER: Final = "PulsarCluster"
BOOKIE_POOL: Final = "Bookie"

KINDS: Final[Mapping[str, str]] = API_VERSIONS | {
    PULSAR_CLUSTER: API_VERSION,
    "Event": "v1",
    "Lease": "coordination.k8s.io/v1",
    "StorageClass": "storage.k8s.io/v1",
}
"""Every kind that `ApiServer` takes, with its API version."""

CLUSTER_SCOPED: Final = frozenset({"StorageClass"})
"""Kinds without a namespace: it is the empty string for them."""


class NotFound(PeerError):
    """The object that was to be changed is not there."""


class AlreadyExists(PeerError):
    """An object of that name is there."""


class Conflict(PeerError):
    """The object is not the one that was meant (another uid), or has changed since it was read (another
    resourceVersion): look again."""


class Refused(Misuse):
    """The server does not take it: invalid (400, 422, and 500 for what its kind has no field for) or not allowed (403).
    The text is the server's own."""


class NamespaceTerminating(Refused):
    """Nothing can be made in a namespace that is being deleted; what is there can still be changed."""


class ServerUnavailable(Unavailable):
    """No answer in time, no connection, too many requests, or the server failed. It may have been carried out."""

    def __init__(self, text: str, *, retry_after_seconds: float = 0.0) -> None:
        """`retry_after_seconds`: how long the server wants to be left alone; 0: it did not say."""
        super().__init__(text)
        self.retry_after_seconds = retry_after_seconds


API_ERRORS: Final[tuple[type[MagnetarError], ...]] = (NotFound, AlreadyExists, Conflict, Refused, ServerUnavailable)
"""What every call may raise."""


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
        """The same of `status`, which is a subresource. `NotFound`; `Conflict` for another uid."""
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
