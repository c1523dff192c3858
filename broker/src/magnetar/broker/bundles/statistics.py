"""What each bundle of this broker does, summed up from its topics when a report is due: nothing is counted twice and
nothing is done per message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from magnetar.broker.bundles.loaded_topic import MeasuredTopic
from magnetar.core.bundle import BundleName
from magnetar.core.clock import Clock

SLICE_SECONDS: Final = 0.002
"""How long the loop is held before others get their turn."""

TOPICS_BETWEEN_LOOKS: Final = 64
"""Topics between two looks at the clock; they take a fraction of a slice unless they have thousands of clients."""

COST_SHARE: Final = 100
"""Summing up may take one part in so many of the time: then the idle load of many topics is not load reports."""


class BundleStats:
    """What one bundle does: rates per second, throughputs in bytes per second (`NamespaceBundleStats`)."""

    __slots__ = ("consumers", "msg_rate_in", "msg_rate_out", "producers", "throughput_in", "throughput_out", "topics")

    def __init__(self) -> None:
        self.msg_rate_in = 0.0
        self.msg_rate_out = 0.0
        self.throughput_in = 0.0
        self.throughput_out = 0.0
        self.topics = 0
        self.producers = 0
        self.consumers = 0

    def document(self) -> dict[str, Any]:
        """The statistics of a bundle under the names of load reports (`NamespaceBundleStats`); rates per second."""
        return {
            "msgRateIn": self.msg_rate_in,
            "msgThroughputIn": self.throughput_in,
            "msgRateOut": self.msg_rate_out,
            "msgThroughputOut": self.throughput_out,
            "consumerCount": self.consumers,
            "producerCount": self.producers,
            "topics": self.topics,
            "cacheSize": 0,
        }

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> BundleStats:
        """What is missing is 0."""
        stats = BundleStats()
        stats.msg_rate_in = float(document.get("msgRateIn", 0))
        stats.msg_rate_out = float(document.get("msgRateOut", 0))
        stats.throughput_in = float(document.get("msgThroughputIn", 0))
        stats.throughput_out = float(document.get("msgThroughputOut", 0))
        stats.topics = int(document.get("topics", 0))
        stats.producers = int(document.get("producerCount", 0))
        stats.consumers = int(document.get("consumerCount", 0))
        return stats


class Bundle(Protocol):
    """An owned bundle."""

    @property
    def topics(self) -> Mapping[str, MeasuredTopic]: ...


class BundleStatistics:
    """Sums up on request; a request that comes too early for what the last one cost gets the last sums."""

    def __init__(self, owned: Callable[[], Mapping[BundleName, Bundle]], clock: Clock) -> None:
        self._owned = owned
        self._clock = clock
        self._sums: dict[str, BundleStats] = {}
        self._fresh_until_seconds = 0.0
        self._slice_began_seconds = 0.0
        self._cost_seconds = 0.0

    async def collect(self, *, at_once: bool = False) -> Mapping[str, BundleStats]:
        """The sums of every bundle that is owned, by name. Other work goes on in between.

        `at_once`: whatever the last one cost, for somebody who asks by hand."""
        if self._clock.monotonic_seconds() < self._fresh_until_seconds and not at_once:
            return self.last()
        self._slice_began_seconds = self._clock.monotonic_seconds()
        self._cost_seconds = 0.0
        sums: dict[str, BundleStats] = {}
        looked_at = 0
        for bundle, owned in list(self._owned().items()):
            stats = sums[str(bundle)] = BundleStats()
            for topic in list(owned.topics.values()):
                add_topic(stats, topic)
                looked_at += 1
                if looked_at % TOPICS_BETWEEN_LOOKS == 0:
                    await self._give_way(self._clock.monotonic_seconds())
        self._sums = sums
        now_seconds = self._clock.monotonic_seconds()
        self._cost_seconds += now_seconds - self._slice_began_seconds
        self._fresh_until_seconds = now_seconds + self._cost_seconds * COST_SHARE
        return sums

    def last(self) -> Mapping[str, BundleStats]:
        """The sums of every bundle that is owned as they were when a report last needed them."""
        return {name: self._sums.get(name) or BundleStats() for name in map(str, self._owned())}

    async def _give_way(self, now_seconds: float) -> None:
        if now_seconds - self._slice_began_seconds >= SLICE_SECONDS:
            self._cost_seconds += now_seconds - self._slice_began_seconds
            await asyncio.sleep(0)
            self._slice_began_seconds = self._clock.monotonic_seconds()


def bundle_metrics(advertised: str, stats: Mapping[str, BundleStats]) -> list[dict[str, Any]]:
    """What bundles do, under the names and in the groups of Pulsar's `ModularLoadManagerImpl`."""
    return [
        {
            "dimensions": {"broker": advertised, "bundle": name, "metric": "bundle"},
            "metrics": {
                "brk_bundle_msg_rate_in": one.msg_rate_in,
                "brk_bundle_msg_rate_out": one.msg_rate_out,
                "brk_bundle_topics_count": one.topics,
                "brk_bundle_consumer_count": one.consumers,
                "brk_bundle_producer_count": one.producers,
                "brk_bundle_msg_throughput_in": one.throughput_in,
                "brk_bundle_msg_throughput_out": one.throughput_out,
            },
        }
        for name, one in stats.items()
    ]


def add_topic(stats: BundleStats, topic: MeasuredTopic) -> None:
    """Add what one topic does now."""
    stats.topics += 1
    producers = topic.producers.by_name
    if producers:
        stats.producers += len(producers)
        for producer in producers.values():
            stats.msg_rate_in += producer.message_rate_in
            stats.throughput_in += producer.byte_rate_in
    for subscription in topic.subscriptions.values():
        consumers = subscription.consumers
        if consumers:
            stats.consumers += len(consumers)
            for consumer in consumers:
                stats.msg_rate_out += consumer.rates.messages_out.per_second
                stats.throughput_out += consumer.rates.bytes_out.per_second
