"""Averages that the leader keeps for all: `/loadbalance/bundle-data/<bundle>`, `/loadbalance/broker-time-average/<id>`.

Apache's leaders read them when they take over, and so do ours. JSON: `BundleData`, `TimeAverageBrokerData`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from magnetar.broker.bundles.statistics import BundleStats
from magnetar.broker.load.broker_report import BrokerReport
from magnetar.core.errors import PeerError
from magnetar.metadata.store import MetadataStore, NodeNotFound

logger: Final = logging.getLogger(__name__)

BUNDLES_PATH: Final = "/loadbalance/bundle-data"
BROKERS_PATH: Final = "/loadbalance/broker-time-average"
SHORT_SAMPLES: Final = 10
LONG_SAMPLES: Final = 1_000
"""Samples that long-term averages go back, as Pulsar's (`ModularLoadManagerImpl.NUM_LONG_SAMPLES`); short-term ones
have `NUM_SHORT_SAMPLES`."""

DEFAULT_RATE: Final = 50.0
DEFAULT_THROUGHPUT: Final = 50_000.0
"""What Pulsar takes a bundle to do, in either direction, of which nothing is known."""

AT_ONCE_MAX: Final = 32
"""Reads and writes under way; a leader takes over with all bundles of the cluster."""

QUANTITIES: Final = {
    "msgThroughputIn": "throughput_in",
    "msgThroughputOut": "throughput_out",
    "msgRateIn": "msg_rate_in",
    "msgRateOut": "msg_rate_out",
}


class TimeAverage:
    """A mean in which the last `samples_max` samples count (`TimeAverageMessageData`)."""

    __slots__ = ("samples", "samples_max", "values")

    def __init__(self, samples_max: int) -> None:
        self.samples = 0
        self.samples_max = samples_max
        self.values = dict.fromkeys(QUANTITIES, 0.0)

    def add(self, stats: BundleStats) -> None:
        """One more sample."""
        self.samples = min(self.samples + 1, self.samples_max)
        for name, field in QUANTITIES.items():
            self.values[name] = ((self.samples - 1) * self.values[name] + getattr(stats, field)) / self.samples

    def document(self) -> dict[str, Any]:
        """The averages as Apache stores them in JSON (`TimeAverageMessageData`)."""
        return {"maxSamples": self.samples_max, "numSamples": self.samples, **self.values}

    def load(self, document: Mapping[str, Any]) -> None:
        """Go on from what was stored."""
        self.samples = min(int(document.get("numSamples", 0)), self.samples_max)
        for name in QUANTITIES:
            self.values[name] = float(document.get(name, 0.0))


class BundleAverages:
    """The averages of one bundle over a short and a long time (`BundleData`)."""

    __slots__ = ("long_term", "short_term", "topics")

    def __init__(self) -> None:
        self.short_term = TimeAverage(SHORT_SAMPLES)
        self.long_term = TimeAverage(LONG_SAMPLES)
        self.topics = 0

    def add(self, stats: BundleStats) -> None:
        """One more sample."""
        self.short_term.add(stats)
        self.long_term.add(stats)
        self.topics = stats.topics

    @property
    def busyness(self) -> float:
        """For choosing whose averages are stored."""
        return self.long_term.values["msgThroughputIn"] + self.long_term.values["msgThroughputOut"]

    def encode(self) -> bytes:
        """The node's value."""
        return _dumps(
            {
                "shortTermData": self.short_term.document(),
                "longTermData": self.long_term.document(),
                "topics": self.topics,
            }
        )

    @staticmethod
    def decode(value: bytes) -> BundleAverages:
        """`PeerError` when it is something else."""
        averages = BundleAverages()
        try:
            document = json.loads(value)
            averages.short_term.load(document.get("shortTermData") or {})
            averages.long_term.load(document.get("longTermData") or {})
            averages.topics = int(document.get("topics", 0))
        except (ValueError, TypeError, AttributeError) as error:
            raise PeerError(f"no averages of a bundle: {error}") from error
        return averages


class LoadAverages:
    """What the leader knows of all bundles; empty when it begins to lead."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._bundles: dict[str, BundleAverages] = {}
        self._stored_brokers: set[str] = set()
        self._sampled_ms: dict[str, int] = {}
        """By broker: the time of the report from which samples were taken last, in ms since 1970."""

    @property
    def bundles(self) -> Mapping[str, BundleAverages]:
        """The averages of bundles, by the bundle's name."""
        return self._bundles

    async def sample(self, reports: Mapping[str, BrokerReport]) -> None:
        """Take a sample of each report that was not sampled yet; forget bundles that nobody has. `StoreUnavailable`."""
        fresh = [one for one in reports.values() if self._sampled_ms.get(one.broker_id) != one.updated_ms]
        await self._load({name for report in fresh for name in report.stats if name not in self._bundles})
        for report in fresh:
            self._sampled_ms[report.broker_id] = report.updated_ms
            for name, stats in report.stats.items():
                self._bundles[name].add(stats)
        active = {name for report in reports.values() for name in report.bundles}
        gone = [name for name in self._bundles if name not in active]
        for name in gone:
            del self._bundles[name]
        await _each(self._remove(f"{BUNDLES_PATH}/{name}") for name in gone)
        for broker_id in set(self._sampled_ms).difference(reports):
            del self._sampled_ms[broker_id]

    async def store_all(self, reports: Mapping[str, BrokerReport], bundles_per_broker_max: int) -> None:
        """Write the averages of the busiest bundles and of all brokers; remove those of dead ones. `StoreUnavailable`.

        Pulsar: `writeBundleDataOnZooKeeper`."""
        count = bundles_per_broker_max * max(1, len(reports)) if bundles_per_broker_max > 0 else len(self._bundles)
        busiest = sorted(self._bundles.items(), key=lambda item: -item[1].busyness)[:count]
        await _each(self._store_one(f"{BUNDLES_PATH}/{name}", one.encode()) for name, one in busiest)
        await _each(
            self._store_one(f"{BROKERS_PATH}/{report.broker_id}", _dumps(self.broker_document(report)))
            for report in reports.values()
        )
        dead = self._stored_brokers.difference(reports)
        await _each(self._remove(f"{BROKERS_PATH}/{broker_id}") for broker_id in dead)
        self._stored_brokers = set(reports)

    def broker_document(self, report: BrokerReport) -> dict[str, float]:
        """`TimeAverageBrokerData`: sums over the broker's bundles; those without averages count as Pulsar's default."""
        document = {f"{term}TermM{name[1:]}": 0.0 for term in ("short", "long") for name in QUANTITIES}
        for name in report.stats:
            averages = self._bundles.get(name)
            for term, average in (
                ("short", averages.short_term if averages else None),
                ("long", averages.long_term if averages else None),
            ):
                for quantity in QUANTITIES:
                    default = DEFAULT_RATE if "Rate" in quantity else DEFAULT_THROUGHPUT
                    value = average.values[quantity] if average is not None else default
                    document[f"{term}TermM{quantity[1:]}"] += value
        return document

    async def _load(self, names: Iterable[str]) -> None:
        async def load(name: str) -> None:
            # Not watched: nobody but the leader writes them.
            node = await self._store.get(f"{BUNDLES_PATH}/{name}", watch=False)
            averages = BundleAverages()
            if node is not None:
                try:
                    averages = BundleAverages.decode(node.value)
                except PeerError as error:
                    logger.warning("%s/%s is passed over: %s", BUNDLES_PATH, name, error)
            self._bundles[name] = averages

        await _each(load(name) for name in names)

    async def _store_one(self, path: str, value: bytes) -> None:
        await self._store.put(path, value)

    async def _remove(self, path: str) -> None:
        with contextlib.suppress(NodeNotFound):
            await self._store.delete(path)


async def _each(work: Iterable[Any]) -> None:
    """Do all of it, so many at a time."""
    waiting = iter(work)

    async def take() -> None:
        for one in waiting:
            await one

    workers = [asyncio.ensure_future(take()) for _ in range(AT_ONCE_MAX)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        for one in waiting:
            one.close()


def _dumps(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
