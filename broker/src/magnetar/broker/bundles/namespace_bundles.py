"""How the namespaces' hash spaces are cut into bundles (Pulsar `NamespaceBundleFactory`).

The cuts in force are those of the local policies; the policies' own are only where a cluster starts from.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Final

from magnetar.broker.resources import LOCAL_POLICIES_ROOT, Document, Resources, decode_document
from magnetar.core.bundle import BundleName, BundleRange, NamespaceBundles
from magnetar.core.errors import MagnetarError
from magnetar.core.topic_name import FULL_RANGE, NamespaceName, TopicName, is_valid_name_part
from magnetar.metadata.node_cache import NodeCache
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore, Node, StoreUnavailable, VersionConflict

logger: Final = logging.getLogger(__name__)

NAMESPACES_KEPT_MAX: Final = 10_000
"""Namespaces whose cuts are kept in memory, some 30 bytes per bundle; others are read again."""

WHOLE_RANGE: Final = ["0x00000000", f"0x{FULL_RANGE:08x}"]
"""One bundle: what a namespace without policies has, such as a broker's own."""

ATTEMPTS_MAX: Final = 7
"""Compare-and-set rounds of a split, as many as Apache's."""

HEARTBEAT_TENANT: Final = "pulsar"
SLA_MONITOR_TENANT: Final = "sla-monitor"

_BROKER_ID: Final = re.compile(r"(?:[^:]+|[0-9A-Fa-f:.]+):[0-9]+")
"""A host or an address of IPv6, and a port."""


class CutUnknown(StoreUnavailable):
    """The store went away under a split: the namespace may be cut so by now, or not."""


class BundleNotFound(MagnetarError):
    """The namespace is cut in another way by now."""


def named_broker(namespace: NamespaceName) -> str | None:
    """The broker that a namespace belongs to by its name: `pulsar/<broker id>` and `sla-monitor/<broker id>`."""
    if namespace.tenant in (HEARTBEAT_TENANT, SLA_MONITOR_TENANT) and _BROKER_ID.fullmatch(namespace.name):
        return namespace.name
    return None


def namespace_of_cuts(path: str) -> NamespaceName | None:
    """Whose cut is stored at a path; None for a path of something else."""
    if not path.startswith(LOCAL_POLICIES_ROOT):
        return None
    parts = path.removeprefix(LOCAL_POLICIES_ROOT).split("/")
    return NamespaceName(*parts) if len(parts) == 2 and all(map(is_valid_name_part, parts)) else None


def heartbeat_bundle(broker_id: str) -> BundleName:
    """The one bundle of a broker's own namespace, in which its health is checked."""
    return BundleName(NamespaceName(HEARTBEAT_TENANT, broker_id), BundleRange(0, FULL_RANGE))


class Bundles:
    """The cuts of all namespaces, kept in memory until they change."""

    def __init__(self, store: MetadataStore, resources: Resources) -> None:
        self._store = store
        self._resources = resources
        self._cache: NodeCache[NamespaceBundles | None] = NodeCache(store, _decode, entries_max=NAMESPACES_KEPT_MAX)

    async def of_namespace(self, namespace: NamespaceName) -> NamespaceBundles:
        """How a namespace is cut; on first use the local policies are made after its policies.

        A namespace without policies is one bundle, and nothing is stored for it."""
        path = Resources.local_policies_path(namespace)
        found = await self._cache.get(path)
        if found is not None:
            return found
        if named_broker(namespace) is not None:
            return NamespaceBundles(namespace, WHOLE_RANGE)
        return await self._copy(namespace, path)

    def peek(self, namespace: NamespaceName) -> NamespaceBundles | None:
        """What is in memory; None when it has to be read."""
        return self._cache.peek(Resources.local_policies_path(namespace))

    async def bundle_of(self, topic: TopicName) -> BundleName:
        """The bundle that a topic belongs to."""
        return (await self.of_namespace(topic.namespace_name)).bundle_of(topic)

    async def read_again(self, namespace: NamespaceName) -> NamespaceBundles:
        """How a namespace is cut, read from the store in any case. Raises what `of_namespace` raises."""
        self._cache.forget(Resources.local_policies_path(namespace))
        return await self.of_namespace(namespace)

    async def split(self, bundle: BundleName, boundaries: list[int]) -> tuple[BundleName, ...]:
        """Cut a bundle at these hashes; returns the parts. `BundleNotFound` when there is no such bundle (any more),
        `CutUnknown`.

        Other fields of the local policies stay. The policies' own cuts follow, as Apache's do, for whoever reads them.
        """
        cuts = sorted({cut for cut in boundaries if bundle.range.low < cut < bundle.range.high})
        if not cuts:
            return (bundle,)
        path = Resources.local_policies_path(bundle.namespace)
        for _ in range(ATTEMPTS_MAX):
            before = await self.read_again(bundle.namespace)
            if bundle not in before:
                raise BundleNotFound(f"{bundle} is not a bundle of {bundle.namespace}")
            node = await self._store.get(path)
            document = decode_document(path, node) if node is not None else {}
            if node is not None and _boundaries(document) != list(before.boundaries):
                continue
            after = sorted({int(each, 16) for each in before.boundaries}.union(cuts))
            document["bundles"] = _document([f"0x{each:08x}" for each in after])
            version = MUST_NOT_EXIST if node is None else node.stat.version
            try:
                await self._resources.local_documents.write(path, document, version)
            except VersionConflict:
                continue
            except StoreUnavailable as error:
                raise CutUnknown(f"whether {bundle} is split is not known: {error}") from error
            finally:
                self._cache.forget(path)
            await self._follow(bundle.namespace, document["bundles"])
            return bundle.cut(cuts)
        raise VersionConflict(f"{path} kept changing while {bundle} was split")

    def close(self) -> None:
        """Forget everything and listen no more."""
        self._cache.close()

    async def _copy(self, namespace: NamespaceName, path: str) -> NamespaceBundles:
        policies = await self._resources.policies(namespace)
        if policies is None:
            return NamespaceBundles(namespace, WHOLE_RANGE)
        bundles = policies.get("bundles") or _document(WHOLE_RANGE)

        def fill(document: Document) -> Document:
            return document if document.get("bundles") else {**document, "bundles": bundles}

        try:
            await self._resources.local_documents.create(path, {"bundles": bundles})
        except VersionConflict:
            # Somebody made it meanwhile, perhaps without bundles.
            await self._resources.local_documents.update(path, fill)
        found = await self._cache.get(path)
        return found if found is not None else NamespaceBundles(namespace, bundles["boundaries"])

    async def _follow(self, namespace: NamespaceName, bundles: Document) -> None:
        try:
            await self._resources.documents.update(
                Resources.namespace_path(namespace), lambda policies: {**policies, "bundles": bundles}
            )
        except MagnetarError as error:
            # Nothing is decided by them once there are local policies.
            logger.warning("the policies of %s still tell the former bundles: %s", namespace, error)


def _boundaries(document: Document) -> list[str]:
    bundles: Any = document.get("bundles") or {}
    found: list[str] = bundles.get("boundaries") or []
    return found


def _document(boundaries: list[str]) -> Document:
    return {"boundaries": boundaries, "numBundles": len(boundaries) - 1}


def _decode(path: str, node: Node) -> NamespaceBundles | None:
    boundaries = _boundaries(decode_document(path, node))
    if not boundaries:
        return None
    tenant, _, name = path.removeprefix(LOCAL_POLICIES_ROOT).partition("/")
    return NamespaceBundles(NamespaceName(tenant, name), boundaries)
