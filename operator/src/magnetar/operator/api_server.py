"""`ApiServer` over HTTP: how each of the operator's calls is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from magnetar.core.clock import Clock
from magnetar.operator.children.naming import FIELD_MANAGER
from magnetar.operator.kubernetes.client import APPLY_PATCH, JSON, MERGE_PATCH, KubernetesClient, trimmed, uncounted
from magnetar.operator.kubernetes.errors import Conflict, NotFound, ServerUnavailable
from magnetar.operator.kubernetes.kinds import KINDS, Manifest, path
from magnetar.operator.kubernetes.login import Login

WARNINGS_MAX: Final = 50
"""Warnings about one object: what happens again is counted up in the same Event."""
DISCOVERY_SECONDS: Final = 300.0
"""How long it is believed that a kind is known or not: after that a CRD installed meanwhile is found."""


class HttpApiServer(KubernetesClient):
    """`ApiServer` over one pool of connections. `close` it."""

    def __init__(self, login: Login, *, clock: Clock, asked: Callable[[str, str], None] = uncounted) -> None:
        """`asked` is told the verb and the kind of each request."""
        super().__init__(login, asked=asked)
        self._clock = clock
        self._known: dict[str, tuple[float, bool]] = {}
        """By kind: when it was asked, and the answer."""
        self._may_write: Callable[[], bool] = lambda: True

    def fence(self, may_write: Callable[[], bool]) -> None:
        """From now on nothing is written unless this says so, but for Leases: a process that was stopped for a while
        goes on in the middle of a pass, and another may lead by then."""
        self._may_write = may_write

    async def list(self, kind: str, namespace: str | None, selector: str = "") -> Sequence[Manifest]:
        """All objects of a kind; None: of all namespaces. `selector` has `name=value` and `!name` (without that label),
        separated by commas. Empty for a kind that the server does not know."""
        try:
            return await super().list(kind, namespace, selector)
        except NotFound:
            return []

    async def warnings(self, namespace: str, uid: str) -> Sequence[Manifest]:
        """Events of type Warning about one object; some of the many where there are many."""
        selector = f"involvedObject.uid={uid},type=Warning"
        query = {"limit": str(WARNINGS_MAX), "fieldSelector": selector}
        page = await self.ask("list", "Event", path("Event", namespace), query=query)
        return [trimmed(item) for item in page.get("items") or []]

    async def apply(self, manifest: Manifest, *, manager: str = FIELD_MANAGER, dry_run: bool = False) -> Manifest:
        """Server-side apply, made if it is not there. Fields that others own become ours; fields that we had set and
        that are not in the manifest any more go, unless others own them too. `Conflict` for another uid, if the
        manifest has one. With `dry_run` nothing is changed, and the answer is what would be."""
        return await self._apply("apply", manifest, manager, "", {"dryRun": "All"} if dry_run else {})

    async def apply_status(self, manifest: Manifest) -> Manifest:
        """Write the subresource `status`. `NotFound`; `Conflict` for another uid. The server leaves a status's uid
        unread, so it is looked at here; the version then holds until the status is written."""
        kind, namespace, name = _identity(manifest)
        metadata = manifest["metadata"]
        if "uid" in metadata:
            found = await self.ask("get", kind, path(kind, namespace, name))
            if found["metadata"]["uid"] != metadata["uid"]:
                raise Conflict(f"apply_status {kind}: {name} has been made anew")
            manifest = manifest | {
                "metadata": metadata | {"resourceVersion": found["metadata"]["resourceVersion"]},
            }
        return await self._apply("apply_status", manifest, FIELD_MANAGER, "/status", {})

    async def create(self, manifest: Manifest) -> Manifest:
        """Make it. `AlreadyExists`; `Refused`, too, for a field that its kind does not have."""
        kind, namespace, _ = _identity(manifest)
        # A field that the kind does not have is left out without a word else, and refused only when it is applied.
        parameters = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        return await self._write("create", kind, path(kind, namespace), manifest, parameters)

    async def patch(self, kind: str, namespace: str, name: str, patch: Mapping[str, Any], *, uid: str) -> Manifest:
        """JSON merge patch (RFC 7396): null removes, lists are replaced. `NotFound`; `Conflict` if the object has
        another uid, or another `metadata.resourceVersion` than the patch."""
        body = {**patch, "metadata": {**patch.get("metadata", {}), "uid": uid}}
        parameters = {"fieldManager": FIELD_MANAGER}
        return await self._write("patch", kind, path(kind, namespace, name), body, parameters, MERGE_PATCH)

    async def delete(self, kind: str, namespace: str, name: str, *, uid: str, orphan: bool = False) -> None:
        """Delete it in the background, with what it owns or, if `orphan`, without. No error if it is not there.
        `Conflict` if the object has another uid."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Orphan" if orphan else "Background",
        }
        try:
            await self._write("delete", kind, path(kind, namespace, name), options)
        except NotFound:
            return

    async def knows(self, kind: str) -> bool:
        """Whether the server has this kind."""
        asked_seconds, known = self._known.get(kind, (-DISCOVERY_SECONDS, False))
        now_seconds = self._clock.monotonic_seconds()
        if now_seconds - asked_seconds < DISCOVERY_SECONDS:
            return known
        try:
            answer = await self.ask("discover", kind, KINDS[kind].root)
            known = any(resource.get("kind") == kind for resource in answer.get("resources") or [])
        except NotFound:
            known = False
        self._known[kind] = (now_seconds, known)
        return known

    async def _apply(
        self, verb: str, manifest: Manifest, manager: str, subresource: str, further: Mapping[str, str]
    ) -> Manifest:
        kind, namespace, name = _identity(manifest)
        parameters = {"fieldManager": manager, "force": "true", **further}
        where = path(kind, namespace, name) + subresource
        try:
            return await self._write(verb, kind, where, manifest, parameters, APPLY_PATCH)
        except NotFound:
            # Perhaps its CRD is gone: that is to be found out before the next pass.
            self._known.pop(kind, None)
            raise

    async def _write(
        self,
        verb: str,
        kind: str,
        where: str,
        body: Mapping[str, Any],
        query: Mapping[str, str] | None = None,
        content_type: str = JSON,
    ) -> Manifest:
        if kind != "Lease" and not self._may_write():
            raise ServerUnavailable(f"{verb} {kind}: this operator does not lead any more")
        return await self.ask(verb, kind, where, query=query, body=body, content_type=content_type)


def _identity(manifest: Manifest) -> tuple[str, str, str]:
    metadata = manifest["metadata"]
    return manifest["kind"], metadata.get("namespace", ""), metadata.get("name", "")
