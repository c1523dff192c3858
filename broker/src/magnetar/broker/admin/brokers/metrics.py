"""`/metrics`: Prometheus text under the names that Pulsar's dashboards read. Counters are read when scraped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from aiohttp import web
from magnetar.broker.admin.brokers.load_metrics import load_metrics
from magnetar.broker.context import BrokerContext
from magnetar.broker.slices import TimeSlice
from magnetar.broker.topics.topic import PersistentTopic, Topic
from magnetar.core.crashes import CRASHES, METRIC_NAME, METRIC_TEXT
from magnetar.net.refused_connections import METRIC_TEXT as REFUSED_TEXT

CONTENT_TYPE = "text/plain"

REFUSED_NAME: Final = "pulsar_broker_rejected_connections_total"

ROWS_AT_ONCE: Final = 1_000
"""Rows that are written without a look at the event loop: a millisecond."""

Row: TypeAlias = tuple[str, list[float]]
"""Labels, and the values of one topic or subscription."""

TOPIC_METRICS: tuple[tuple[str, str, str], ...] = (
    ("pulsar_subscriptions_count", "gauge", "Subscriptions of the topic."),
    ("pulsar_producers_count", "gauge", "Producers of the topic."),
    ("pulsar_consumers_count", "gauge", "Consumers of the topic."),
    ("pulsar_rate_in", "gauge", "Messages per second published."),
    ("pulsar_rate_out", "gauge", "Messages per second dispatched."),
    ("pulsar_throughput_in", "gauge", "Bytes per second published."),
    ("pulsar_throughput_out", "gauge", "Bytes per second dispatched."),
    ("pulsar_in_messages_total", "counter", "Messages published."),
    ("pulsar_in_bytes_total", "counter", "Bytes published."),
    ("pulsar_out_messages_total", "counter", "Messages dispatched."),
    ("pulsar_out_bytes_total", "counter", "Bytes dispatched."),
    ("pulsar_storage_size", "gauge", "Bytes stored."),
    ("pulsar_msg_backlog", "gauge", "Entries that a subscription has not acknowledged, over all subscriptions."),
)

SUBSCRIPTION_METRICS: tuple[tuple[str, str, str], ...] = (
    ("pulsar_subscription_back_log", "gauge", "Entries not acknowledged."),
    ("pulsar_subscription_msg_rate_out", "gauge", "Messages per second dispatched."),
    ("pulsar_subscription_msg_throughput_out", "gauge", "Bytes per second dispatched."),
    ("pulsar_subscription_unacked_messages", "gauge", "Messages dispatched and not acknowledged."),
    ("pulsar_subscription_consumers_count", "gauge", "Consumers connected."),
)


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""

    gathered = CollectedMetrics(context)

    async def metrics(_: web.Request) -> web.Response:
        """Everything that is measured, as Prometheus reads it."""
        return web.Response(body=await gathered.text(), content_type=CONTENT_TYPE)

    return [web.get("/metrics", metrics), web.get("/metrics/", metrics)]


class CollectedMetrics:
    """What is measured, gathered once for all who ask at the same time: they get the same bytes.

    Nobody has to say who he is for it, and of ten thousand topics it is megabytes."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._one_at_a_time = asyncio.Lock()
        self._text: bytes | None = None
        self._gatherings = 0

    async def text(self) -> bytes:
        """What was gathered since this was called."""
        before = self._gatherings
        async with self._one_at_a_time:
            if self._gatherings == before or self._text is None:
                from prometheus_client import REGISTRY, generate_latest

                self._gatherings += 1
                self._text = None
                process = await asyncio.to_thread(generate_latest, REGISTRY)
                self._text = await broker_metrics(self._context, process)
            return self._text


async def broker_metrics(context: BrokerContext, process: bytes = b"") -> bytes:
    """The broker's own metrics as Prometheus text, then those of its process; gathered in turns with what clients send.

    The text is put together once: of ten thousand topics it is 25 MB, of which each copy takes ten milliseconds."""
    turn = TimeSlice()
    topics = list(context.service.topics.values())
    cluster = context.settings.cluster_name
    lines: list[str] = []
    broker = f'{{cluster="{escape(cluster)}"}}'
    lines += metric("pulsar_topics_count", "gauge", "Topics that are loaded.", [(broker, len(topics))])
    lines += metric(METRIC_NAME, "counter", METRIC_TEXT, [(broker, CRASHES.count)])
    lines += metric(REFUSED_NAME, "counter", REFUSED_TEXT, refused_rows(context))
    lines += load_metrics(context, metric, escape)
    topic_rows: list[Row] = []
    subscription_rows: list[Row] = []
    for topic in topics:
        labels = topic_labels(cluster, topic)
        subscriptions: list[dict[str, Any]] = []
        for name in list(topic.subscriptions):
            if turn.over:
                await turn.pause()
            subscription = topic.subscriptions.get(name)
            if subscription is None:
                continue  # Removed meanwhile.
            stats = subscription.statistics()
            subscriptions.append(stats)
            subscription_rows.append((f'{labels[:-1]},subscription="{escape(name)}"}}', subscription_values(stats)))
        topic_rows.append((labels, topic_values(topic, subscriptions)))
        if turn.over:
            await turn.pause()
    text = ["\n".join(lines).encode()]
    for metrics, rows in ((TOPIC_METRICS, topic_rows), (SUBSCRIPTION_METRICS, subscription_rows)):
        for index, (name, kind, about) in enumerate(metrics):
            text += [line.encode() for line in metric(name, kind, about, [])]
            for first in range(0, len(rows), ROWS_AT_ONCE):
                some = rows[first : first + ROWS_AT_ONCE]
                text.append("\n".join([f"{name}{labels} {values[index]}" for labels, values in some]).encode())
                if turn.over:
                    await turn.pause()
    text.append(process)
    return b"\n".join(text)


def refused_rows(context: BrokerContext) -> list[tuple[str, float]]:
    """Connections refused, by the kind of limit."""
    cluster = escape(context.settings.cluster_name)
    counts = context.service.limits.connections.refused.counts
    return [(f'{{cluster="{cluster}",reason="{kind}"}}', count) for kind, count in counts.items()]


def metric(name: str, kind: str, text: str, samples: Iterable[tuple[str, float]]) -> list[str]:
    """One family: help, type, samples."""
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *(f"{name}{labels} {value}" for labels, value in samples)]


def topic_labels(cluster: str, topic: Topic) -> str:
    """The labels of a topic."""
    return (
        f'{{cluster="{escape(cluster)}",namespace="{escape(str(topic.name.namespace_name))}",'
        f'topic="{escape(str(topic.name))}"}}'
    )


def topic_values(topic: Topic, subscriptions: list[dict[str, Any]]) -> list[float]:
    """Values in the order of TOPIC_METRICS, with what its subscriptions tell."""
    producers = list(topic.producers.by_name.values())
    return [
        len(subscriptions),
        len(producers),
        sum(len(subscription["consumers"]) for subscription in subscriptions),
        sum(producer.message_rate_in for producer in producers),
        sum(subscription["msgRateOut"] for subscription in subscriptions),
        sum(producer.byte_rate_in for producer in producers),
        sum(subscription["msgThroughputOut"] for subscription in subscriptions),
        topic.messages_in,
        topic.bytes_in,
        sum(subscription["msgOutCounter"] for subscription in subscriptions),
        sum(subscription["bytesOutCounter"] for subscription in subscriptions),
        topic.ledger.ledgers.total_size_bytes() if isinstance(topic, PersistentTopic) else 0,
        sum(subscription["msgBacklog"] for subscription in subscriptions),
    ]


def subscription_values(stats: dict[str, Any]) -> list[float]:
    """Values in the order of SUBSCRIPTION_METRICS."""
    return [
        stats["msgBacklog"],
        stats["msgRateOut"],
        stats["msgThroughputOut"],
        stats["unackedMessages"],
        len(stats["consumers"]),
    ]


def escape(value: str) -> str:
    """A label value in Prometheus' text format."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
