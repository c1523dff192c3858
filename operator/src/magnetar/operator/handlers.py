"""What wakes loops: changes of the custom resources and of their children. kopf watches, and does nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import kopf
from magnetar.core.backoff import Backoff
from magnetar.operator.children.naming import INSTANCE_LABEL, NAME_LABEL, POOL_LABEL
from magnetar.operator.kubernetes.kinds import BOOKIE_POOL, KINDS, PULSAR_CLUSTER
from magnetar.operator.kubernetes.login import AUTHORIZATION, Login
from magnetar.operator.loops import Loops
from magnetar.operator.reconcile import Key

WATCHED: Final = ("ConfigMap", "Deployment", "Job", "PersistentVolumeClaim", "Pod", "Service", "StatefulSet")
"""Children whose changes are seen at once; the others are looked at in each pass."""

CHILDREN_SELECTOR: Final = f"{NAME_LABEL}=magnetar"

WATCH_SECONDS: Final = 300
"""After which the server ends a watch, and a new one begins. One that fell silent without ending is noticed by its
bookmarks, which come every minute."""
CONNECT_SECONDS_MAX: Final = 15.0
REQUEST_SECONDS_MAX: Final = 30.0
LIST_PAGE: Final = 250
"""Objects of one answer when watching begins. All pods of 500 large clusters in one would take a gigabyte, and hold the
process up for longer than it may go without renewing its Lease."""
IDLE_SECONDS: Final = 0.5
"""How long kopf keeps a task and the latest version of each object of which nothing is heard."""
RETRY_SECONDS_FIRST: Final = 1.0
RETRY_SECONDS_MAX: Final = 60.0

_IGNORED: Final = frozenset({"managedFields", "resourceVersion"})
"""Fields of metadata that change with the status, too."""


class EventRouter:
    """Which loops a change wakes. A status that only the operator writes wakes those that go by it, and not its own."""

    def __init__(self, loops: Loops) -> None:
        self._loops = loops
        self._wanted: dict[Key, int] = {}
        """For each custom resource, a digest of all but its status, as it was last."""
        self._pools: dict[Key, Key] = {}
        """The cluster of each pool."""

    def resource(self, kind: str, event_type: str | None, manifest: Mapping[str, Any]) -> None:
        """A custom resource was made, changed or deleted, or is listed at the start."""
        key = _key(kind, manifest)
        if kind == BOOKIE_POOL:
            cluster_name = (manifest.get("spec") or {}).get("clusterName", "")
            cluster = self._pools[key] = Key(PULSAR_CLUSTER, key.namespace, cluster_name)
            self._loops.wake_known(cluster)
        else:
            for pool, cluster in self._pools.items():
                if cluster == key:
                    self._loops.wake_known(pool)
        if event_type == "DELETED":
            self._wanted.pop(key, None)
            self._pools.pop(key, None)
            self._loops.wake_known(key)
            return
        wanted = _digest(manifest)
        if self._wanted.get(key) != wanted:
            self._wanted[key] = wanted
            self._loops.wake(key)

    def behind(self, kind: str, manifest: Mapping[str, Any]) -> dict[Key, int]:
        """If no change has told of a resource as it is now: its loop is woken, and it is given with a digest of it."""
        key = _key(kind, manifest)
        wanted = _digest(manifest)
        if self._wanted.get(key) == wanted:
            # Its loop has ended if it was told that there is no such resource, by an answer older than it is.
            if not self._loops.looks_after(key):
                self._loops.wake(key)
            return {}
        self._loops.wake(key)
        return {key: wanted}

    def child(self, manifest: Mapping[str, Any]) -> None:
        """Something with the labels of a cluster's children."""
        metadata = manifest["metadata"]
        its_labels = metadata.get("labels") or {}
        namespace = metadata["namespace"]
        if cluster := its_labels.get(INSTANCE_LABEL):
            self._loops.wake_known(Key(PULSAR_CLUSTER, namespace, cluster))
        if pool := its_labels.get(POOL_LABEL):
            self._loops.wake_known(Key(BOOKIE_POOL, namespace, pool))


def _key(kind: str, manifest: Mapping[str, Any]) -> Key:
    metadata = manifest["metadata"]
    return Key(kind, metadata["namespace"], metadata["name"])


def _digest(manifest: Mapping[str, Any]) -> int:
    metadata = {name: value for name, value in manifest["metadata"].items() if name not in _IGNORED}
    return hash(repr((sorted(metadata.items()), manifest.get("spec"))))


class WatchBackoff:
    """Pauses between the tries of what kopf asks, without an end. kopf ends as a whole when it gives one up: a right
    that is missing in one namespace, or for one kind, would end the work in all others."""

    def __iter__(self) -> Iterator[float]:
        pauses = Backoff(RETRY_SECONDS_FIRST, RETRY_SECONDS_MAX)
        while True:
            yield pauses.next_seconds()


class NoDifferences(kopf.DiffBaseStorage):
    """What kopf would tell handlers of changes by: copies of an object, several for each event, which took four fifths
    of the time that watching takes. Handlers of events go without."""

    def build(self, *, body: kopf.Body, extra_fields: Any = None) -> kopf.BodyEssence:
        """Nothing: no version of an object is kept."""
        del body, extra_fields
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> None:
        """Nothing: there is no version before."""

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Keep nothing of the version that was told."""


def watch_settings(*, cluster_wide: bool) -> kopf.OperatorSettings:
    """kopf's, with all that it would do by itself switched off."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    # In single namespaces it may not read what is of the whole Kubernetes cluster: CRDs, namespaces.
    settings.scanning.disabled = not cluster_wide
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.client_timeout = WATCH_SECONDS + 30
    settings.watching.connect_timeout = CONNECT_SECONDS_MAX
    settings.networking.request_timeout = REQUEST_SECONDS_MAX
    settings.networking.connect_timeout = CONNECT_SECONDS_MAX
    settings.networking.error_backoffs = WatchBackoff()
    settings.watching.chunk_size = LIST_PAGE
    settings.queueing.idle_timeout = IDLE_SECONDS
    settings.persistence.diffbase_storage = NoDifferences()
    for kind in WATCHED:
        group, version = _group_version(kind)
        settings.watching.label_selectors[group, version, KINDS[kind].plural] = CHILDREN_SELECTOR
    return settings


def registry(router: EventRouter, login: Login) -> kopf.OperatorRegistry:
    """What is watched, by the login that calls go by. Handlers are coroutines: others would run in threads."""
    found = kopf.OperatorRegistry()
    kopf.on.login(registry=found, id="login")(ConnectionsOfWatches(login).next)
    for kind in (PULSAR_CLUSTER, BOOKIE_POOL):
        group, version = _group_version(kind)

        async def on_resource(event: kopf.RawEvent, body: kopf.Body, kind: str = kind, **_: Any) -> None:
            router.resource(kind, event["type"], body)

        kopf.on.event(group, version, KINDS[kind].plural, registry=found, id=f"wake-{kind}")(on_resource)
    for kind in WATCHED:
        group, version = _group_version(kind)

        async def on_child(body: kopf.Body, **_: Any) -> None:
            router.child(body)

        kopf.on.event(group, version, KINDS[kind].plural, registry=found, id=f"wake-by-{kind}")(on_child)
    return found


class ConnectionsOfWatches:
    """What kopf connects by: what calls go by. Its own ways to log in know neither programs nor files of tokens, and
    may lead to another API server."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._begun = False

    async def next(self, **_: Any) -> kopf.ConnectionInfo:
        """kopf asks again when the server does not take its credentials any more."""
        if self._begun:
            await self._login.renew()
        self._begun = True
        configuration = self._login.configuration
        scheme, _space, token = (await configuration.get_api_key_with_prefix(AUTHORIZATION) or "").partition(" ")
        return kopf.ConnectionInfo(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            insecure=not configuration.verify_ssl,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
            scheme=scheme or None,
            token=token or None,
            default_namespace=self._login.namespace,
            proxy_url=self._login.proxy,
        )


def _group_version(kind: str) -> tuple[str, str]:
    group, _, version = KINDS[kind].api_version.rpartition("/")
    return group, version
