"""`/metrics`: Prometheus text under the names that Pulsar's dashboards read. Counters are read when scraped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from aiohttp import web
from magnetar.broker.admin.brokers.group_metrics import group_metrics
from magnetar.broker.admin.brokers.load_metrics import load_metrics
from magnetar.broker.admin.brokers.metric_rows import GatheredRows
from magnetar.broker.admin.brokers.metric_text import escape, labelled, metric
from magnetar.broker.admin.brokers.replication_metrics import snapshot_metrics
from magnetar.broker.admin.brokers.storage_metrics import cache_metrics
from magnetar.broker.admin.brokers.transaction_metrics import transaction_metrics
from magnetar.broker.context import BrokerContext
from magnetar.broker.settings.broker import SERVER_VERSION, VERSION_PREFIX
from magnetar.broker.slices import TimeSlice
from magnetar.broker.topics.topic import Topic
from magnetar.core.crashes import CRASHES, METRIC_NAME, METRIC_TEXT
from magnetar.core.histogram import QUANTILES, Windows
from magnetar.core.slow_turns import SLOW_TURNS
from magnetar.net.refused_connections import METRIC_TEXT as REFUSED_TEXT

logger: Final = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain"

REFUSED_NAME: Final = "pulsar_broker_rejected_connections_total"

LATENCY_NAME: Final = "pulsar_broker_publish_latency"
MILLISECONDS: Final = 1000.0

PAGES_MAX: Final = 3
"""Pages that are kept at a time, being sent: of ten thousand topics, each takes 100 MB. Who asks then waits."""

SEND_SECONDS_MAX: Final = 30.0
"""For one page to be read: Prometheus itself takes ten seconds by default."""

COMMIT: Final = "magnetar"
"""In the place of the commit that Apache's broker was built from."""

ROWS_AT_ONCE: Final = 1_000
"""Rows that are written without a look at the event loop: a millisecond."""


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""

    gathered = CollectedMetrics(context)

    async def metrics(request: web.Request) -> web.StreamResponse:
        """Everything that is measured, as Prometheus reads it."""
        async with gathered.page() as parts:
            return await send(request, parts)

    return [web.get("/metrics", metrics), web.get("/metrics/", metrics)]


async def send(request: web.Request, parts: list[bytes]) -> web.StreamResponse:
    """Answer with what the parts make together, as fast as the client reads it."""
    response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE})
    response.content_length = sum(map(len, parts))
    try:
        async with asyncio.timeout(SEND_SECONDS_MAX):
            await response.prepare(request)
            for part in parts:
                await response.write(part)
            await response.write_eof()
    except ConnectionResetError:
        logger.debug("%s has gone before it had all metrics", request.remote)
    except TimeoutError:
        logger.warning("%s has not read all metrics within %g s", request.remote, SEND_SECONDS_MAX)
        if request.transport is not None:
            request.transport.abort()
    return response


class CollectedMetrics:
    """What is measured, gathered once for all who ask at the same time: they get the same parts.

    Nobody has to say who he is for it, and of ten thousand topics it is 100 MB."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._one_at_a_time = asyncio.Lock()
        self._text: list[bytes] | None = None
        self._windows = Windows()
        self._readers: dict[int, int] = {}
        """How many are being sent each page that is kept, by the page's identity."""
        self._fewer_pages = asyncio.Event()
        self._gatherings = 0

    @asynccontextmanager
    async def page(self) -> AsyncIterator[list[bytes]]:
        """What was gathered since this was called, kept while it is being sent."""
        parts = await self.text()
        key = id(parts)
        self._readers[key] = self._readers.get(key, 0) + 1
        try:
            yield parts
        finally:
            self._readers[key] -= 1
            if not self._readers[key]:
                del self._readers[key]
                self._fewer_pages.set()

    async def text(self) -> list[bytes]:
        """What was gathered since this was called."""
        before = self._gatherings
        async with self._one_at_a_time:
            if self._gatherings == before or self._text is None:
                self._text = None
                while len(self._readers) >= PAGES_MAX:
                    self._fewer_pages.clear()
                    await self._fewer_pages.wait()
                self._gatherings += 1
                process = await asyncio.to_thread(process_metrics)
                self._text = await broker_metrics(self._context, self._latencies() + process)
            return self._text

    def _latencies(self) -> bytes:
        """How long messages took to be stored: milliseconds, as Apache's brokers have it (`PulsarStats`)."""
        histogram = self._context.service.publish_latencies
        self._windows.begin(self._context.clock.monotonic_seconds())
        since, greatest = self._windows.since(histogram)
        cluster = self._context.settings.cluster_name
        quantiles = [
            (labelled(cluster=cluster, quantile=word), MILLISECONDS * histogram.quantile(share, since, greatest))
            for word, share in QUANTILES
        ]
        labels = labelled(cluster=cluster)
        lines = metric(LATENCY_NAME, "summary", "From the append of messages to their confirmation, in ms.", quantiles)
        lines += (f"{LATENCY_NAME}_count{labels} {histogram.count}",)
        lines += (f"{LATENCY_NAME}_sum{labels} {MILLISECONDS * histogram.total}\n",)
        return "\n".join(lines).encode()


def process_metrics() -> bytes:
    """Those of the process, as Prometheus text. Not on the loop: the library takes a while to load."""
    from prometheus_client import REGISTRY, generate_latest

    return generate_latest(REGISTRY)


async def broker_metrics(context: BrokerContext, process: bytes = b"") -> list[bytes]:
    """The broker's own metrics as Prometheus text, then those of its process; gathered in turns with what clients send.

    In parts that make one text: of ten thousand topics it is 100 MB, and to put that together would take too long."""
    turn = TimeSlice()
    gathered = GatheredRows(context.settings.cluster_name, context.settings.admin)
    for topic in list(context.service.topics.values()):
        await gather_topic(topic, gathered, turn)
        if turn.over:
            await turn.pause()
    lines = [*broker_lines(context), *gathered.totals(), *cache_metrics(context, gathered.ledgers)]
    text = ["\n".join(lines).encode()]
    for metrics, rows in gathered.families():
        for index, (name, kind, about) in enumerate(metrics):
            text += [line.encode() for line in metric(name, kind, about, [])]
            for first in range(0, len(rows), ROWS_AT_ONCE):
                some = rows[first : first + ROWS_AT_ONCE]
                text.append("\n".join([f"{name}{labels} {values[index]}" for labels, values in some]).encode())
                if turn.over:
                    await turn.pause()
        while rows:  # All at once would take long.
            del rows[-ROWS_AT_ONCE:]
            if turn.over:
                await turn.pause()
    text.append(process)
    return [part for one in text for part in (one, b"\n")]


async def gather_topic(topic: Topic, gathered: GatheredRows, turn: TimeSlice) -> None:
    """The rows of a topic, of its subscriptions and of their consumers, in turns with what clients send."""
    subscriptions: list[dict[str, Any]] = []
    consumers_count = 0
    for name in list(topic.subscriptions):
        if turn.over:
            await turn.pause()
        subscription = topic.subscriptions.get(name)
        if subscription is None:
            continue  # Removed meanwhile.
        stats, consumers = subscription.statistics(with_consumers=False), subscription.consumers
        subscriptions.append(stats)
        consumers_count += len(consumers)
        gathered.add_subscription(topic, name, stats, len(consumers))
        for consumer in consumers if gathered.with_consumers else ():
            gathered.add_consumer(topic, name, consumer)
            if turn.over:
                await turn.pause()
    gathered.add_topic(topic, subscriptions, consumers_count)


def broker_lines(context: BrokerContext) -> list[str]:
    """What is of the broker itself: connections, load, transactions, crashes, slow turns."""
    cluster = context.settings.cluster_name
    labels = labelled(cluster=cluster)
    version = labelled(cluster=cluster, version=SERVER_VERSION.removeprefix(VERSION_PREFIX), commit=COMMIT)
    lines = metric("pulsar_version_info", "gauge", "The version of Pulsar that this broker is like.", [(version, 1)])
    lines += metric(METRIC_NAME, "counter", METRIC_TEXT, [(labels, CRASHES.count)])
    for name, kind, text, seconds in SLOW_TURNS.metrics():
        lines += metric(name, kind, text, [(labels, seconds)])
    lines += metric(REFUSED_NAME, "counter", REFUSED_TEXT, refused_rows(context))
    connections = context.service.limits.connections
    of_connections = labelled(cluster=cluster, broker=context.settings.advertised_address, metric="broker_connection")
    for name, kind, text, value in (
        ("active_connections", "gauge", "Connections of clients that are open.", connections.total),
        (
            "connection_created_total_count",
            "counter",
            "Connections of clients that were opened.",
            connections.opened_total,
        ),
        ("connection_create_success_count", "counter", "Connections that were not refused.", connections.opened_total),
        ("connection_create_fail_count", "counter", "Connections that were refused.", connections.refused.total),
        (
            "connection_closed_total_count",
            "counter",
            "Connections of clients that were closed.",
            connections.opened_total - connections.total,
        ),
    ):
        lines += metric(f"pulsar_{name}", kind, text, [(of_connections, value)])
    if (lag_seconds := context.load.lag_seconds) is not None:
        text = "By how much the topics of a read-only broker are behind their owners, at most."
        lines += metric("pulsar_read_only_broker_lag_seconds", "gauge", text, [(labels, lag_seconds)])
    lines += load_metrics(context, metric, escape)
    lines += group_metrics(context, metric, escape)
    lines += transaction_metrics(context)
    lines += snapshot_metrics(cluster, context.service.upkeep.replication.snapshots)
    return lines


def refused_rows(context: BrokerContext) -> list[tuple[str, float]]:
    """Connections refused, by the kind of limit."""
    cluster = escape(context.settings.cluster_name)
    counts = context.service.limits.connections.refused.counts
    return [(f'{{cluster="{cluster}",reason="{kind}"}}', count) for kind, count in counts.items()]
