"""What each bundle of this broker does, summed up from its topics when a report is due: nothing is counted twice and
nothing is done per message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from magnetar.broker.load.broker_report import BundleStats
from magnetar.core.bundle import BundleName
from magnetar.core.clock import Clock

SLICE_SECONDS: Final = 0.002
"""How long the loop is held before others get their turn."""

TOPICS_BETWEEN_LOOKS: Final = 64
"""Topics between two looks at the clock; they take a fraction of a slice unless they have thousands of clients."""

COST_SHARE: Final = 100
"""Summing up may take one part in so many of the time: then the idle load of many topics is not load reports."""


class Rates(Protocol):
    """Of one producer."""

    @property
    def message_rate_in(self) -> float: ...
    @property
    def byte_rate_in(self) -> float: ...


class Producers(Protocol):
    """Of one topic."""

    @property
    def by_name(self) -> Mapping[str, Rates]: ...


class Rate(Protocol):
    """How fast a counter grows."""

    @property
    def per_second(self) -> float: ...


class ConsumerRates(Protocol):
    """Of one consumer."""

    @property
    def messages_out(self) -> Rate: ...
    @property
    def bytes_out(self) -> Rate: ...


class Consumer(Protocol):
    """Of one subscription."""

    @property
    def rates(self) -> ConsumerRates: ...


class Subscription(Protocol):
    """Of one topic."""

    @property
    def consumers(self) -> Sequence[Consumer]: ...


class LoadedTopic(Protocol):
    """A topic, as far as it matters here."""

    @property
    def producers(self) -> Producers: ...
    @property
    def subscriptions(self) -> Mapping[str, Subscription]: ...


class Bundle(Protocol):
    """An owned bundle."""

    @property
    def topics(self) -> Mapping[str, LoadedTopic]: ...


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
            return {name: self._sums.get(name) or BundleStats() for name in map(str, self._owned())}
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

    async def _give_way(self, now_seconds: float) -> None:
        if now_seconds - self._slice_began_seconds >= SLICE_SECONDS:
            self._cost_seconds += now_seconds - self._slice_began_seconds
            await asyncio.sleep(0)
            self._slice_began_seconds = self._clock.monotonic_seconds()


def add_topic(stats: BundleStats, topic: LoadedTopic) -> None:
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
