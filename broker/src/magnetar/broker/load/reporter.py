"""When this broker's load report is renewed, and what then stands in it. Pure but for what it is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from magnetar.broker.bundles.namespace_bundles import named_broker
from magnetar.broker.bundles.statistics import BundleStats
from magnetar.broker.load.broker_report import BrokerReport
from magnetar.broker.load.host_usage import HostUsage
from magnetar.broker.peers.addresses import BrokerAddresses
from magnetar.broker.settings.load import LoadSettings
from magnetar.core.topic_name import NamespaceName

LAG_CHANGE_SECONDS: Final = 1.0
"""By so much the lag of a broker that only reads differs from what it told, before it tells again."""


def change_percent(before: float, now: float) -> float:
    """How much a quantity changed; from nothing to something is infinitely much."""
    if before == 0:
        return 0.0 if now == 0 else float("inf")
    return 100.0 * abs((before - now) / before)


def report_due(before: BrokerReport, now: BrokerReport, settings: LoadSettings, age_seconds: float) -> bool:
    """Whether `now` is to replace `before`, the report that was written last, so long ago.

    Pulsar: `ModularLoadManagerImpl.needBrokerDataUpdate`; there topics, clients, and bundles that came and went in
    equal numbers wait for the next change, here they count, as the leader decides by them."""
    if age_seconds * 1000 < settings.report_interval_ms_min:
        return False
    if age_seconds > settings.report_interval_seconds_max or before.bundles != now.bundles:
        return True
    changes = (
        change_percent(_both_ways(before, "msg_rate"), _both_ways(now, "msg_rate")),
        change_percent(_both_ways(before, "throughput"), _both_ways(now, "throughput")),
        change_percent(before.total("topics"), now.total("topics")),
        change_percent(_sessions(before), _sessions(now)),
        abs(max(before.host.percents()) - max(now.host.percents())),
    )
    lag_changed = abs(before.lag_seconds - now.lag_seconds) > LAG_CHANGE_SECONDS
    return max(changes) > settings.report_change_percent or before.draining != now.draining or lag_changed


def _both_ways(report: BrokerReport, quantity: str) -> float:
    return report.total(f"{quantity}_in") + report.total(f"{quantity}_out")


def is_named(bundle: str) -> bool:
    """Whether it is a broker's by its name, for health checks. Without topics it is not worth a word: others would
    only take it for one that they could move."""
    return named_broker(NamespaceName.parse(bundle.rpartition("/")[0])) is not None


def _sessions(report: BrokerReport) -> float:
    return report.total("producers") + report.total("consumers")


class Reporter:
    """Makes reports of one broker, each with what came and went since the one before."""

    def __init__(self, addresses: BrokerAddresses, version: str, started_ms: int) -> None:
        self.written = BrokerReport(addresses)
        """The last one that was written."""
        self.written_seconds = float("-inf")
        """When, by a clock that never goes back."""
        self._addresses = addresses
        self._version = version
        self._started_ms = started_ms

    def wrote(self, report: BrokerReport, now_seconds: float) -> None:
        """Others see this one now."""
        self.written = report
        self.written_seconds = now_seconds

    def report(self, host: HostUsage, stats: Mapping[str, BundleStats], now_ms: int, *, draining: bool) -> BrokerReport:
        """What is so now."""
        report = BrokerReport(self._addresses)
        report.version = self._version
        report.started_ms = self._started_ms
        report.updated_ms = now_ms
        report.ours = True
        report.draining = draining
        report.host = host
        report.stats = {name: one for name, one in stats.items() if one.topics or not is_named(name)}
        report.bundles = sorted(report.stats)
        before = set(self.written.bundles)
        report.bundle_gains = [name for name in report.bundles if name not in before]
        report.bundle_losses = sorted(before.difference(report.bundles))
        return report
