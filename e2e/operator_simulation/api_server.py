"""The API server as one running operator reaches it: the `ApiServer` of the simulation, where calls go wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
from magnetar.operator.children.naming import FIELD_MANAGER
from magnetar.operator.kubernetes.errors import Answer, Conflict, Refused, ServerUnavailable, failure
from magnetar.operator.kubernetes.kinds import KINDS, Manifest
from magnetar.operator.rbac import rules

from e2e.operator_simulation.fates import READS_SHARE, Network, pass_began
from e2e.operator_simulation.objects.admission import answer_to_undeclared, undeclared_field
from e2e.operator_simulation.objects.store import ObjectStore
from e2e.operator_simulation.promises import Promises
from e2e.operator_simulation.writes import Write

T = TypeVar("T")

WRITES: Final = ("apply", "apply_status", "create", "patch", "delete")

_ALLOWED: Final = {
    (resource, verb) for rule in rules(cluster_wide=True) for resource in rule["resources"] for verb in rule["verbs"]
}


class Server:
    """The server itself, which all operators share."""

    def __init__(self, store: ObjectStore, promises: Promises) -> None:
        self.store = store
        self.promises = promises
        self.unknown_kinds: set[str] = set()
        self.calls: dict[str, int] = {}
        """By what was asked."""


class SimulatedApi:
    """What one operator holds. See `magnetar.operator.api.ApiServer`."""

    def __init__(self, server: Server, network: Network, name: str, kill: Callable[[], None]) -> None:
        self._server = server
        self._network = network
        self._name = name
        self._kill = kill

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """See `ApiServer`."""
        age = self._network.age_seconds()

        def work() -> Manifest | None:
            _check(kind, namespace, "get")
            stored = self._server.store.as_of(kind, age).get((namespace, name))
            return stored.copy() if stored is not None else None

        return await self._call("get", kind, work)

    async def list(self, kind: str, namespace: str | None, selector: str = "") -> Sequence[Manifest]:
        """See `ApiServer`."""
        age = self._network.age_seconds()

        def work() -> Sequence[Manifest]:
            if kind in self._server.unknown_kinds:
                return []
            _check(kind, None, "list")
            found = self._server.store.as_of(kind, age)
            return [
                stored.copy()
                for key, stored in sorted(found.items())
                if namespace in (None, key[0]) and _selected(stored.data, selector)
            ]

        return await self._call("list", kind, work)

    async def warnings(self, namespace: str, uid: str) -> Sequence[Manifest]:
        """See `ApiServer`."""
        age = self._network.age_seconds()

        def work() -> Sequence[Manifest]:
            _check("Event", None, "list")
            found = self._server.store.as_of("Event", age)
            events = [stored.copy() for key, stored in sorted(found.items()) if key[0] == namespace]
            return [event for event in events if event["type"] == "Warning" and event["involvedObject"]["uid"] == uid]

        return await self._call("list", "Event", work)

    async def apply(self, manifest: Manifest, *, manager: str = FIELD_MANAGER, dry_run: bool = False) -> Manifest:
        """See `ApiServer`."""
        if dry_run:
            return await self._check_apply(manifest, manager)
        return await self._write("apply", manifest, lambda store, sent: store.apply(sent, manager))

    async def apply_status(self, manifest: Manifest) -> Manifest:
        """See `ApiServer`."""
        return await self._write("apply_status", manifest, lambda store, sent: store.apply_status(sent, FIELD_MANAGER))

    async def create(self, manifest: Manifest) -> Manifest:
        """See `ApiServer`."""
        return await self._write("create", manifest, lambda store, sent: store.create(sent, FIELD_MANAGER))

    async def patch(self, kind: str, namespace: str, name: str, patch: Mapping[str, Any], *, uid: str) -> Manifest:
        """See `ApiServer`."""
        sent = {"kind": kind, "metadata": {"namespace": namespace, "name": name, "uid": uid}, "patch": dict(patch)}
        key = (kind, namespace, name)
        return await self._write(
            "patch", sent, lambda store, sent: store.patch(key, sent["patch"], FIELD_MANAGER, uid=uid)
        )

    async def delete(self, kind: str, namespace: str, name: str, *, uid: str, orphan: bool = False) -> None:
        """See `ApiServer`."""
        sent = {"kind": kind, "metadata": {"namespace": namespace, "name": name, "uid": uid}, "orphan": orphan}

        def work(store: ObjectStore, sent: Manifest) -> Manifest:
            store.delete((kind, namespace, name), uid=uid, orphan=orphan)
            return sent

        await self._write("delete", sent, work)

    async def knows(self, kind: str) -> bool:
        """See `ApiServer`."""
        return await self._call("knows", kind, lambda: kind not in self._server.unknown_kinds)

    async def _check_apply(self, manifest: Manifest, manager: str) -> Manifest:
        """Refused as the real one would be; nothing is stored."""
        sent: Manifest = msgspec.json.decode(msgspec.json.encode(manifest))
        _check(sent["kind"], sent["metadata"]["namespace"], "patch")
        name, kind, began = sent["metadata"]["name"], sent["kind"], pass_began.get()

        def work() -> Manifest:
            if field := undeclared_field(sent):
                self._server.promises.refused_for_good(Write(self._name, "check", sent, None, began))
                raise _undeclared("apply", sent, field)
            return self._server.store.apply(sent, manager, dry=True)

        return await self._call("check", kind, work, name)

    async def _write(
        self, verb: str, manifest: Manifest, work: Callable[[ObjectStore, Manifest], Manifest]
    ) -> Manifest:
        # As it is now: what the caller does with it afterwards is not seen by the server.
        sent: Manifest = msgspec.json.decode(msgspec.json.encode(manifest))
        kind, metadata = sent["kind"], sent["metadata"]
        began = pass_began.get()

        def carry_out() -> Manifest:
            store, promises = self._server.store, self._server.promises
            _check(kind, metadata.get("namespace", ""), "patch" if verb.startswith("apply") else verb)
            if verb == "apply_status":
                _check(kind, metadata.get("namespace", ""), "patch", "/status")
            before = store.get(kind, metadata.get("namespace", ""), metadata["name"])
            if verb == "apply" and before is None:
                _check(kind, metadata.get("namespace", ""), "create")
            write = Write(self._name, verb, sent, before, began)
            look = promises.before(write)
            if verb in ("apply", "create") and (field := undeclared_field(sent)):
                promises.refused_for_good(write)
                raise _undeclared(verb, sent, field)
            try:
                found = work(store, sent)
            except Conflict:
                raise
            except Refused as error:
                promises.refused(write, str(error))
                raise
            promises.after(write, look)
            copy: Manifest = msgspec.json.decode(msgspec.json.encode(found))
            return copy

        return await self._call(verb, kind, carry_out, metadata["name"])

    async def _call(self, verb: str, kind: str, work: Callable[[], T], name: str = "") -> T:
        calls = self._server.calls
        calls[f"{verb} {kind}"] = calls.get(f"{verb} {kind}", 0) + 1
        promises = self._server.promises
        if verb in WRITES:
            promises.note(self._name, f"{verb} {kind} {name}")

        def noted() -> T:
            try:
                found = work()
            except Exception as error:
                promises.remark(self._name, f"{verb} {kind} {name}: {error!r}")
                raise
            if verb in WRITES:
                promises.remark(self._name, f"{verb} {kind} {name}: carried out")
            return found

        share = 1.0 if verb in WRITES else READS_SHARE
        return await self._network.call(noted, ServerUnavailable, self._kill, what=f"{verb} {kind}", share=share)


def _undeclared(verb: str, manifest: Manifest, field: str) -> Exception:
    """As the operator's own client makes it of the answer."""
    code, body = answer_to_undeclared(verb, manifest, field)
    return failure(f"{verb} {manifest['kind']}", Answer(code, msgspec.json.encode(body)))


def _check(kind: str, namespace: str | None, verb: str, subresource: str = "") -> None:
    if kind not in KINDS:
        raise Refused(f"the server does not know {kind}")
    if namespace is not None and (namespace == "") != (not KINDS[kind].namespaced):
        raise Refused(f"{kind} is not looked for in namespace {namespace!r}")
    plural = KINDS[kind].plural
    if (plural + subresource, verb) not in _ALLOWED:
        raise Refused(f"{plural}{subresource} is forbidden: the operator cannot {verb} it")


def _selected(manifest: Manifest, selector: str) -> bool:
    labels = manifest["metadata"].get("labels", {})
    for part in filter(None, selector.split(",")):
        if part.startswith("!"):
            if part[1:] in labels:
                return False
        else:
            name, _, value = part.partition("=")
            if labels.get(name) != value:
                return False
    return True
