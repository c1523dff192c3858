"""What the metadata says about where bundles may be: isolation policies, failure domains, anti-affinity groups, and the
cluster's dynamic settings. Read once, then again when the store tells of a change."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from magnetar.balance.isolation import PATTERNS_KEPT_MAX, USAGE_THRESHOLD_MAX, IsolationPolicy, refusal
from magnetar.broker.resources import Document, Resources, decode_document
from magnetar.core.errors import PeerError
from magnetar.core.topic_name import NamespaceName
from magnetar.metadata.node_cache import NodeCache
from magnetar.metadata.store import MetadataStore

logger: Final = logging.getLogger(__name__)

DYNAMIC_PATH: Final = "/admin/configuration"
"""The cluster's dynamic settings, a map of texts."""

READS_AT_ONCE_MAX: Final = 64
"""Of namespaces' local policies, so that a new leader does not ask the store for thousands at a time."""


class NamespaceFacts:
    """What placement needs of a namespace: its anti-affinity group and where it is cut."""

    __slots__ = ("anti_affinity_group", "boundaries")

    def __init__(self, boundaries: tuple[str, ...], anti_affinity_group: str | None) -> None:
        self.boundaries = boundaries
        self.anti_affinity_group = anti_affinity_group

    @property
    def bundle_count(self) -> int:
        """How many bundles it has."""
        return max(0, len(self.boundaries) - 1)

    def bundle_names(self, namespace: str) -> list[str]:
        """The full names of its bundles."""
        return [f"{namespace}/{low}_{high}" for low, high in itertools.pairwise(self.boundaries)]


class ClusterPolicies:
    """Caches in front of both stores. Documents that make no sense count as not there, which is logged."""

    def __init__(self, store: MetadataStore, configuration_store: MetadataStore, cluster: str) -> None:
        self._local: NodeCache[Document] = NodeCache(store, decode_document)
        self._configuration: NodeCache[Document] = NodeCache(configuration_store, decode_document)
        self._configuration_store = configuration_store
        self._cluster_path = Resources.cluster_path(cluster)
        self._looked_at: set[str] = set()
        """Expressions of isolation policies of which was told what is wrong with them."""

    def close(self) -> None:
        """Listen to the stores no more."""
        self._local.close()
        self._configuration.close()

    async def dynamic_settings(self) -> Mapping[str, Any]:
        """What was set while brokers run, by name."""
        return await _document(self._local, DYNAMIC_PATH)

    async def isolation_policies(self) -> tuple[IsolationPolicy, ...]:
        """In the order of their names."""
        document = await _document(self._configuration, f"{self._cluster_path}/namespaceIsolationPolicies")
        found: list[IsolationPolicy] = []
        for name, data in sorted(document.items()):
            try:
                policy = isolation_policy(name, data)
            except (TypeError, ValueError, AttributeError) as error:
                logger.warning("the namespace isolation policy %s is passed over: %s", name, error)
                continue
            self._tell_refused(policy)
            found.append(policy)
        return tuple(found)

    def _tell_refused(self, policy: IsolationPolicy) -> None:
        """Once of each expression that other brokers have stored and that is not matched here."""
        for text in (*policy.namespaces, *policy.primary, *policy.secondary):
            if text not in self._looked_at:
                if len(self._looked_at) >= PATTERNS_KEPT_MAX:
                    self._looked_at.clear()
                self._looked_at.add(text)
                reason = refusal(text)
                if reason is not None:
                    logger.warning(
                        "in the namespace isolation policy %s %r stands for its own text alone: %s",
                        policy.name,
                        text,
                        reason,
                    )

    async def failure_domains(self) -> dict[str, str]:
        """Broker id to the domain that it belongs to."""
        parent = f"{self._cluster_path}/failureDomain"
        found: dict[str, str] = {}
        for name in await self._configuration_store.children(parent):
            document = await _document(self._configuration, f"{parent}/{name}")
            found.update(dict.fromkeys(document.get("brokers") or (), name))
        return found

    async def namespaces(self, names: Iterable[str]) -> dict[str, NamespaceFacts]:
        """The facts of several namespaces, by name; what stands nowhere yet has no bundles. `StoreUnavailable`."""
        wanted = list(names)
        found: dict[str, NamespaceFacts] = {}
        for begin in range(0, len(wanted), READS_AT_ONCE_MAX):
            part = wanted[begin : begin + READS_AT_ONCE_MAX]
            found.update(zip(part, await asyncio.gather(*map(self.namespace, part)), strict=True))
        return found

    async def namespace(self, name: str) -> NamespaceFacts:
        """The facts of one namespace. `StoreUnavailable`."""
        document = await _document(self._local, Resources.local_policies_path(NamespaceName.parse(name)))
        boundaries = (document.get("bundles") or {}).get("boundaries") or ()
        return NamespaceFacts(tuple(boundaries), document.get("namespaceAntiAffinityGroup") or None)


async def _document(cache: NodeCache[Document], path: str) -> Document:
    try:
        return await cache.get(path) or {}
    except PeerError as error:
        logger.warning("passed over: %s", error)
        return {}


def isolation_policy(name: str, data: Mapping[str, Any]) -> IsolationPolicy:
    """From `NamespaceIsolationData`. ValueError, TypeError when it is none."""
    failover = data.get("auto_failover_policy") or {}
    parameters = failover.get("parameters") or {}
    return IsolationPolicy(
        name=name,
        namespaces=tuple(map(str, data.get("namespaces") or ())),
        primary=tuple(map(str, data.get("primary") or ())),
        secondary=tuple(map(str, data.get("secondary") or ())),
        primaries_min=int(parameters.get("min_limit", 0)),
        usage_threshold=int(parameters.get("usage_threshold", USAGE_THRESHOLD_MAX)),
    )
