"""A broker's load report as Apache's brokers and proxies write and read it: `/loadbalance/brokers/<brokerId>`.

JSON of `LocalBrokerData`. Its readers pass over fields that they do not know, so ours adds one object, `magnetar`.
`loadReportType` must be there: readers of the general type choose by it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from magnetar.broker.bundles.statistics import BundleStats
from magnetar.broker.load.host_usage import HostUsage, Usage
from magnetar.broker.peers.addresses import BrokerAddresses, listeners_document, listeners_of_document
from magnetar.core.errors import PeerError

LOAD_MANAGER_CLASS: Final = "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl"
"""Apache's brokers hand bundles only to brokers that say the same class as they do (`BrokerLoadManagerClassFilter`)."""

CHANNEL_OWNERSHIP: Final = "ExtensibleLoadManager"
"""In the class name of Apache's load manager that keeps owners of bundles in a system topic (or below
`/service_unit_state`): who goes by owners' nodes, as ours and the modular one, would not see them."""

REPORT_BYTES_MAX: Final = 900_000
"""ZooKeeper takes nodes of less than 1 MiB. Beyond it the statistics of the least busy bundles are left out."""

RESOURCES: Final = {
    "cpu": "cpu",
    "memory": "memory",
    "directMemory": "direct_memory",
    "bandwidthIn": "bandwidth_in",
    "bandwidthOut": "bandwidth_out",
}


class BrokerReport:
    """One report. `bundles` has a name for every bundle that the broker serves, `stats` what is known of each."""

    def __init__(self, addresses: BrokerAddresses) -> None:
        self.addresses = addresses
        self.host = HostUsage()
        self.stats: dict[str, BundleStats] = {}
        self.bundles: list[str] = []
        self.bundle_gains: list[str] = []
        self.bundle_losses: list[str] = []
        self.persistent_topics = True
        self.non_persistent_topics = True
        self.version = ""
        self.load_manager_class = LOAD_MANAGER_CLASS
        self.protocols: dict[str, str] = {}
        self.started_ms = 0
        self.updated_ms = 0
        self.seen_seconds: float | None = None
        """When this broker saw it first, by its own clock that never goes back: clocks of brokers differ, and jump."""
        self.draining = False
        self.lag_seconds = 0.0
        """By how much the topics of a broker that only reads are behind, at most; 0 of others."""
        self.ours = False
        """Whether a Magnetar broker wrote it."""

    @property
    def broker_id(self) -> str:
        """Whose it is."""
        return self.addresses.broker_id

    @property
    def owns_by_channel(self) -> bool:
        """Whether the broker keeps who owns a bundle elsewhere than in the owners' nodes."""
        return CHANNEL_OWNERSHIP in self.load_manager_class

    def total(self, name: str) -> float:
        """The sum of one quantity of `BundleStats` over the bundles."""
        values: list[float] = [getattr(stats, name) for stats in self.stats.values()]
        return sum(values)

    def document(self) -> dict[str, Any]:
        """The report in JSON, in the order of Apache's `LocalBrokerData`."""
        addresses = self.addresses
        document: dict[str, Any] = {
            "webServiceUrl": addresses.web_service_url,
            "webServiceUrlTls": addresses.web_service_url_tls,
            "pulsarServiceUrl": addresses.service_url,
            "pulsarServiceUrlTls": addresses.service_url_tls,
            "persistentTopicsEnabled": self.persistent_topics,
            "nonPersistentTopicsEnabled": self.non_persistent_topics,
        }
        for name, field in RESOURCES.items():
            usage: Usage = getattr(self.host, field)
            document[name] = {"usage": usage.usage, "limit": usage.limit}
        document |= {
            "msgThroughputIn": self.total("throughput_in"),
            "msgThroughputOut": self.total("throughput_out"),
            "msgRateIn": self.total("msg_rate_in"),
            "msgRateOut": self.total("msg_rate_out"),
            "lastUpdate": self.updated_ms,
            "lastStats": {name: stats.document() for name, stats in self.stats.items()},
            "numTopics": int(self.total("topics")),
            "numBundles": len(self.bundles),
            "numConsumers": int(self.total("consumers")),
            "numProducers": int(self.total("producers")),
            "bundles": self.bundles,
            "lastBundleGains": self.bundle_gains,
            "lastBundleLosses": self.bundle_losses,
            "brokerVersionString": self.version,
            "protocols": self.protocols,
            "advertisedListeners": listeners_document(addresses.listeners),
            "loadManagerClassName": self.load_manager_class,
            "startTimestamp": self.started_ms,
            "maxResourceUsage": max(self.host.percents()) / 100,
            "loadReportType": "LocalBrokerData",
            "magnetar": {"draining": self.draining} | ({"lagSeconds": self.lag_seconds} if self.lag_seconds else {}),
        }
        return {name: value for name, value in document.items() if value is not None}

    def encode(self, *, size_bytes_max: int = REPORT_BYTES_MAX) -> bytes:
        """The node's value. Too large a report loses the statistics of its least busy bundles, never their names."""
        document = self.document()
        value = _dumps(document)
        if len(value) <= size_bytes_max:
            return value
        stats = document.pop("lastStats")
        room = size_bytes_max - len(_dumps(document))
        kept: dict[str, Any] = {}
        busy = sorted(stats.items(), key=lambda item: -item[1]["msgThroughputIn"] - item[1]["msgThroughputOut"])
        for name, one in busy:
            room -= len(_dumps({name: one}))
            if room <= 0:
                break
            kept[name] = one
        return _dumps({**document, "lastStats": kept})

    @staticmethod
    def decode(broker_id: str, value: bytes) -> BrokerReport:
        """The report of any broker, ours or Apache's. `PeerError` when it is none."""
        try:
            document = json.loads(value)
            return _from_document(broker_id, document)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise PeerError(f"the load report of {broker_id} is not what it should be: {error}") from error


def _dumps(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def addresses_of(broker_id: str, document: Mapping[str, Any]) -> BrokerAddresses:
    """The addresses in a report."""
    return BrokerAddresses(
        broker_id=broker_id,
        service_url=document.get("pulsarServiceUrl"),
        service_url_tls=document.get("pulsarServiceUrlTls"),
        web_service_url=document.get("webServiceUrl"),
        web_service_url_tls=document.get("webServiceUrlTls"),
        listeners=listeners_of_document(document.get("advertisedListeners")),
    )


def _from_document(broker_id: str, document: Mapping[str, Any]) -> BrokerReport:
    report = BrokerReport(addresses_of(broker_id, document))
    for name, field in RESOURCES.items():
        usage = document.get(name) or {}
        setattr(report.host, field, Usage(float(usage.get("usage", 0)), float(usage.get("limit", 0))))
    stats = document.get("lastStats") or {}
    report.stats = {name: BundleStats.from_document(one) for name, one in stats.items()}
    report.bundles = sorted({*(document.get("bundles") or ()), *stats})
    report.persistent_topics = bool(document.get("persistentTopicsEnabled", True))
    report.non_persistent_topics = bool(document.get("nonPersistentTopicsEnabled", True))
    report.version = document.get("brokerVersionString") or ""
    report.load_manager_class = document.get("loadManagerClassName") or ""
    report.protocols = dict(document.get("protocols") or {})
    report.started_ms = int(document.get("startTimestamp", 0))
    report.updated_ms = int(document.get("lastUpdate", 0))
    own = document.get("magnetar")
    report.ours = isinstance(own, dict)
    report.draining = isinstance(own, dict) and bool(own.get("draining"))
    report.lag_seconds = float(own.get("lagSeconds") or 0) if isinstance(own, dict) else 0.0
    return report
