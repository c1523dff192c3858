"""The API server over HTTP. lightkube finds it and logs in; objects stay JSON, without models of every kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import httpx2
import msgspec
from lightkube.config.client_adapter import AsyncClient, ConnectionParams
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.exceptions import ConfigError
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, SettingError
from magnetar.operator.api import (
    CLUSTER_SCOPED,
    KINDS,
    AlreadyExists,
    Conflict,
    NamespaceTerminating,
    NotFound,
    Refused,
    ServerUnavailable,
)
from magnetar.operator.children.naming import FIELD_MANAGER, Manifest

CALL_SECONDS_MAX: Final = 15.0
"""Of one request. The server's own limit is 60 s; a pass would rather try again."""
LIST_PAGE: Final = 500
"""Objects of one answer, as kubectl asks."""
WARNINGS_MAX: Final = 50
"""Of one object: what happens again is counted up in the same Event."""
DISCOVERY_SECONDS: Final = 300.0
"""How long it is believed that a kind is known or not: after that a CRD installed meanwhile is found."""

_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_JSON: Final = "application/json"

_TRY_AGAIN: Final = frozenset({401, 410, 429})
"""Beside 5xx: a token that is being renewed, a list's page that is too old, too many requests."""

_NOT_OF_THE_SCHEMA: Final = ("failed to create typed ", "failed to convert new object ")
"""How the message begins if an applied object has a field that its kind does not have, or a value of another type.
Servers answer that with 500 and without a reason (kubernetes/kubernetes#139253), as they do when etcd changes its
leader."""


class CallCounter(Protocol):
    """Where calls are counted."""

    def api_call(self, verb: str, kind: str) -> None:
        """One more."""
        ...


class LightkubeApiServer:
    """`ApiServer` over one pool of connections. `close` it."""

    def __init__(self, client: httpx2.AsyncClient, *, clock: Clock, counter: CallCounter) -> None:
        self._client = client
        self._clock = clock
        self._counter = counter
        self._known: dict[str, tuple[float, bool]] = {}
        """By kind: when it was asked, and the answer."""
        self._may_write: Callable[[], bool] = lambda: True

    def fence(self, may_write: Callable[[], bool]) -> None:
        """From now on nothing is written unless this says so, but for Leases: a process that was stopped for a while
        goes on in the middle of a pass, and another may lead by then."""
        self._may_write = may_write

    @classmethod
    def connect(cls, *, clock: Clock, counter: CallCounter) -> LightkubeApiServer:
        """As kubectl does: inside a pod with its account, else by KUBECONFIG or ~/.kube/config. `SettingError` if there
        is neither."""
        try:
            config = KubeConfig.from_env().get()
        except (ConfigError, OSError) as error:
            raise SettingError(f"no Kubernetes to connect to: {error}") from None
        if config is None:
            raise SettingError("the kubeconfig has no current context")
        parameters = ConnectionParams(timeout=httpx2.Timeout(CALL_SECONDS_MAX))
        return cls(AsyncClient(config, parameters), clock=clock, counter=counter)

    async def close(self) -> None:
        """Let the connections go."""
        await self._client.aclose()

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """`ApiServer.get`."""
        try:
            return await self._ask("get", kind, _path(kind, namespace, name))
        except NotFound:
            return None

    async def list(self, kind: str, namespace: str | None, selector: str = "") -> Sequence[Manifest]:
        """`ApiServer.list`."""
        found: list_[Manifest] = []
        parameters: dict[str, str] = {"limit": str(LIST_PAGE)} | ({"labelSelector": selector} if selector else {})
        while True:
            try:
                page = await self._ask("list", kind, _path(kind, namespace), parameters)
            except NotFound:
                return []
            for item in page.get("items") or []:
                found.append(_trimmed({"apiVersion": KINDS[kind], "kind": kind} | item))
            rest = page.get("metadata", {}).get("continue")
            if not rest:
                return found
            parameters["continue"] = rest

    async def warnings(self, namespace: str, uid: str) -> Sequence[Manifest]:
        """`ApiServer.warnings`."""
        selector = f"involvedObject.uid={uid},type=Warning"
        parameters = {"limit": str(WARNINGS_MAX), "fieldSelector": selector}
        page = await self._ask("list", "Event", _path("Event", namespace), parameters)
        return [_trimmed(item) for item in page.get("items") or []]

    async def apply(self, manifest: Manifest, *, manager: str = FIELD_MANAGER, dry_run: bool = False) -> Manifest:
        """`ApiServer.apply`."""
        return await self._apply("apply", manifest, manager, "", {"dryRun": "All"} if dry_run else {})

    async def apply_status(self, manifest: Manifest) -> Manifest:
        """`ApiServer.apply_status`. The server leaves a status's uid unread, so it is looked at here; the version then
        holds until the status is written."""
        kind, namespace, name = _identity(manifest)
        metadata = manifest["metadata"]
        if "uid" in metadata:
            found = await self._ask("get", kind, _path(kind, namespace, name))
            if found["metadata"]["uid"] != metadata["uid"]:
                raise Conflict(f"apply_status {kind}: {name} has been made anew")
            manifest = manifest | {
                "metadata": metadata | {"resourceVersion": found["metadata"]["resourceVersion"]},
            }
        return await self._apply("apply_status", manifest, FIELD_MANAGER, "/status", {})

    async def create(self, manifest: Manifest) -> Manifest:
        """`ApiServer.create`."""
        kind, namespace, _ = _identity(manifest)
        # A field that the kind does not have is left out without a word else, and refused only when it is applied.
        parameters = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        return await self._ask("create", kind, _path(kind, namespace), parameters, manifest)

    async def patch(self, kind: str, namespace: str, name: str, patch: Mapping[str, Any], *, uid: str) -> Manifest:
        """`ApiServer.patch`."""
        body = {**patch, "metadata": {**patch.get("metadata", {}), "uid": uid}}
        parameters = {"fieldManager": FIELD_MANAGER}
        return await self._ask("patch", kind, _path(kind, namespace, name), parameters, body, _MERGE)

    async def delete(self, kind: str, namespace: str, name: str, *, uid: str, orphan: bool = False) -> None:
        """`ApiServer.delete`."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Orphan" if orphan else "Background",
        }
        try:
            await self._ask("delete", kind, _path(kind, namespace, name), body=options)
        except NotFound:
            return

    async def knows(self, kind: str) -> bool:
        """`ApiServer.knows`."""
        asked_seconds, known = self._known.get(kind, (-DISCOVERY_SECONDS, False))
        now_seconds = self._clock.monotonic_seconds()
        if now_seconds - asked_seconds < DISCOVERY_SECONDS:
            return known
        try:
            answer = await self._ask("discover", kind, _root(kind))
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
        path = _path(kind, namespace, name) + subresource
        try:
            return await self._ask(verb, kind, path, parameters, manifest, _APPLY)
        except NotFound:
            # Perhaps its CRD is gone: that is to be found out before the next pass.
            self._known.pop(kind, None)
            raise

    async def _ask(
        self,
        verb: str,
        kind: str,
        path: str,
        parameters: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = _JSON,
    ) -> Manifest:
        if _METHODS[verb] != "GET" and kind != "Lease" and not self._may_write():
            raise ServerUnavailable(f"{verb} {kind}: this operator does not lead any more")
        self._counter.api_call(verb, kind)
        request = self._client.build_request(
            _METHODS[verb],
            path,
            params=dict(parameters or {}),
            content=msgspec.json.encode(body) if body is not None else None,
            headers={"Content-Type": content_type, "Accept": _JSON},
        )
        try:
            async with asyncio.timeout(CALL_SECONDS_MAX):
                response = await self._client.send(request)
        except (httpx2.HTTPError, OSError, TimeoutError, ConfigError) as error:
            # ConfigError: the account's token is not to be read just now.
            text = str(error) or type(error).__name__
            raise ServerUnavailable(f"the Kubernetes API server does not answer to {verb} {kind}: {text}") from None
        if response.status_code >= 300:
            raise failure(f"{verb} {kind}", response)
        try:
            answer: Manifest = msgspec.json.decode(response.content, type=dict[str, Any])
        except msgspec.DecodeError as error:
            # Of something between it and us.
            raise ServerUnavailable(f"{verb} {kind}: no answer of a Kubernetes API server: {error}") from None
        return _trimmed(answer)


list_ = list
"""The type, where a method has its name."""

_METHODS: Final[Mapping[str, str]] = {
    "apply": "PATCH",
    "apply_status": "PATCH",
    "create": "POST",
    "delete": "DELETE",
    "discover": "GET",
    "get": "GET",
    "list": "GET",
    "patch": "PATCH",
}


def _identity(manifest: Manifest) -> tuple[str, str, str]:
    metadata = manifest["metadata"]
    return manifest["kind"], metadata.get("namespace", ""), metadata.get("name", "")


def _root(kind: str) -> str:
    version = KINDS[kind]
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def _path(kind: str, namespace: str | None, name: str = "") -> str:
    parts = [_root(kind)]
    if namespace and kind not in CLUSTER_SCOPED:
        parts += ["namespaces", namespace]
    parts.append(plural(kind))
    return "/".join(parts + ([name] if name else []))


def plural(kind: str) -> str:
    """A kind's name in paths and rules."""
    lowered = kind.lower()
    if lowered.endswith("s"):
        return lowered + "es"
    return lowered[:-1] + "ies" if lowered.endswith("y") else lowered + "s"


def _trimmed(manifest: Manifest) -> Manifest:
    """Without who owns which field: as large as all the rest, and nobody here reads it."""
    if isinstance(metadata := manifest.get("metadata"), dict):
        metadata.pop("managedFields", None)
    return manifest


def failure(what: str, response: httpx2.Response) -> MagnetarError:
    """An answer that is an error, as one of ours. The text is the server's."""
    code, content = response.status_code, response.content
    try:
        status: dict[str, Any] = msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.DecodeError:
        status = {}
    message = str(status.get("message") or "")
    text = f"{what}: {message or content[:300].decode(errors='replace')} ({code})"
    if code == 500 and message.startswith(_NOT_OF_THE_SCHEMA):
        return Refused(text)
    if code in _TRY_AGAIN or code >= 500:
        return ServerUnavailable(text, retry_after_seconds=_retry_after(response.headers.get("Retry-After", "")))
    if code == 404:
        return NotFound(text)
    if code == 409:
        return AlreadyExists(text) if status.get("reason") == "AlreadyExists" else Conflict(text)
    causes = (status.get("details") or {}).get("causes") or []
    if code == 422 and any(cause.get("field") == "metadata.uid" for cause in causes):
        # How patches of an object that was made anew fail: its uid cannot be changed.
        return Conflict(text)
    if code == 403 and any(cause.get("reason") == "NamespaceTerminating" for cause in causes):
        return NamespaceTerminating(text)
    return Refused(text)


def _retry_after(text: str) -> float:
    """The API server says seconds, never a date."""
    return float(text) if text.isascii() and text.isdigit() else 0.0
