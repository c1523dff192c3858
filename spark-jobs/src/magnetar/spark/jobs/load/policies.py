"""What the admin API says about a cluster that its load history does not: for how long messages are kept, in how many
copies, when bundles count as too large, and where the topics of a bundle lie. Some GETs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, Self
from urllib.parse import quote

from magnetar.balance.settings import SplitSettings
from magnetar.core.bundle import BundleName
from magnetar.core.limits import MIB
from magnetar.spark.brokers.admin_api import AdminApi
from magnetar.spark.errors import TopicMissing
from magnetar.spark.options.connection import ConnectionOptions
from magnetar.spark.runtime import run

NAMESPACES_MAX: Final = 5_000
"""Asked about one after the other, some milliseconds each. Beyond it the defaults are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """For how long messages stay that nobody needs any more; None: without an end."""

    seconds: float | None
    bytes_per_topic: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoragePolicies:
    """How a cluster keeps messages."""

    retention: Retention
    """The retention of namespaces that say nothing."""
    write_quorum: int
    """Likewise: how many copies of each entry there are."""
    retentions: Mapping[str, Retention] = field(default_factory=dict)
    write_quorums: Mapping[str, int] = field(default_factory=dict)

    def retention_of(self, namespace: str) -> Retention:
        """The retention of a namespace: its own, or that of those that say nothing."""
        return self.retentions.get(namespace, self.retention)

    def write_quorum_of(self, namespace: str) -> int:
        """The copies of each entry in a namespace: its own number, or that of those that say nothing."""
        return self.write_quorums.get(namespace, self.write_quorum)


class AdminReader(Protocol):
    """GETs of the admin API."""

    def get(self, path: str) -> Any:
        """The JSON below `/admin/v2`; None when there is nothing of the kind. `ClusterUnreachable`, `AccessRefused`."""
        ...


class HttpAdmin:
    """The admin API, for a plain thread. A context manager."""

    def __init__(self, options: ConnectionOptions) -> None:
        """Takes the addresses of the admin API from the options. `BadOption`."""
        self._api = AdminApi(options)

    def get(self, path: str) -> Any:
        """The JSON below `/admin/v2`; None when there is nothing of the kind. Raises `ClusterUnreachable` and
        `AccessRefused`."""
        try:
            return run(self._api.get(f"/admin/v2/{path}", path))
        except TopicMissing:
            return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        run(self._api.close())


def retention_of_document(document: Mapping[str, Any]) -> Retention:
    """The retention that Pulsar's `RetentionPolicies` mean; -1 in it is without an end."""
    minutes = int(document.get("retentionTimeInMinutes", 0))
    megabytes = int(document.get("retentionSizeInMB", 0))
    if minutes == 0 or megabytes == 0:
        # Pulsar: either is 0, and nothing is kept.
        minutes = megabytes = 0
    return Retention(
        seconds=None if minutes < 0 else minutes * 60.0, bytes_per_topic=None if megabytes < 0 else megabytes * MIB
    )


def storage_policies(admin: AdminReader, namespaces: Iterable[str], defaults: StoragePolicies) -> StoragePolicies:
    """What is set for each namespace, over what the brokers' settings and then `defaults` say. As `AdminReader`."""
    settings = runtime_settings(admin)
    retention, write_quorum = defaults.retention, defaults.write_quorum
    minutes = settings.get("defaultRetentionTimeInMinutes")
    if minutes is not None:
        document = {
            "retentionTimeInMinutes": minutes,
            "retentionSizeInMB": settings.get("defaultRetentionSizeInMB", 0),
        }
        retention = retention_of_document(document)
    quorum = settings.get("managedLedgerDefaultWriteQuorum")
    if quorum is not None:
        write_quorum = int(quorum)
    retentions: dict[str, Retention] = {}
    quorums: dict[str, int] = {}
    for namespace in sorted(namespaces)[:NAMESPACES_MAX]:
        found = admin.get(f"namespaces/{namespace}/retention")
        if isinstance(found, dict):
            retentions[namespace] = retention_of_document(found)
        found = admin.get(f"namespaces/{namespace}/persistence")
        if isinstance(found, dict) and int(found.get("bookkeeperWriteQuorum") or 0) > 0:
            quorums[namespace] = int(found["bookkeeperWriteQuorum"])
    return StoragePolicies(retention=retention, write_quorum=write_quorum, retentions=retentions, write_quorums=quorums)


def runtime_settings(admin: AdminReader) -> Mapping[str, Any]:
    """What the brokers run with; empty when they do not tell."""
    found = admin.get("brokers/configuration/runtime")
    return found if isinstance(found, dict) else {}


def split_settings(settings: Mapping[str, Any], base: SplitSettings) -> SplitSettings:
    """The limits of bundles that brokers run with, over `base`."""
    changes: dict[str, Any] = {}
    for name, (field_name, factor) in {
        "loadBalancerNamespaceBundleMaxTopics": ("bundle_topics_max", 1),
        "loadBalancerNamespaceBundleMaxSessions": ("bundle_sessions_max", 1),
        "loadBalancerNamespaceBundleMaxMsgRate": ("bundle_msg_rate_max", 1),
        "loadBalancerNamespaceBundleMaxBandwidthMbytes": ("bundle_bandwidth_bytes_max", MIB),
        "loadBalancerNamespaceMaximumBundles": ("namespace_bundles_max", 1),
    }.items():
        try:
            changes[field_name] = int(settings[name]) * factor
        except (KeyError, TypeError, ValueError):
            continue
    return replace(base, **changes)


def topic_positions(admin: AdminReader, bundle: BundleName) -> list[int]:
    """Where the topics of a bundle lie in the hash space; empty when its owner does not tell. As `AdminReader`."""
    found = admin.get(f"namespaces/{bundle.namespace}/{quote(str(bundle.range))}/topicHashPositions")
    positions = found.get("topicHashPositions") if isinstance(found, dict) else None
    values = positions.values() if isinstance(positions, dict) else ()
    return sorted(value for value in values if isinstance(value, int) and value in bundle.range)
