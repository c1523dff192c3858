"""`/metrics`: Prometheus text under the names that Pulsar's dashboards read. Counters are read when scraped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from aiohttp import web
from magnetar.broker.admin.load_metrics import load_metrics
from magnetar.broker.context import BrokerContext
from magnetar.broker.service import Topic
from magnetar.broker.topic import PersistentTopic
from magnetar.core.crashes import CRASHES, METRIC_NAME, METRIC_TEXT

CONTENT_TYPE = "text/plain"

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

    async def metrics(_: web.Request) -> web.Response:
        """Everything that is measured, as Prometheus reads it."""
        from prometheus_client import REGISTRY, generate_latest

        process = await asyncio.to_thread(generate_latest, REGISTRY)
        return web.Response(body=broker_metrics(context).encode() + process, content_type=CONTENT_TYPE)

    return [web.get("/metrics", metrics), web.get("/metrics/", metrics)]


def broker_metrics(context: BrokerContext) -> str:
    """The broker's own metrics as Prometheus text."""
    topics = list(context.service.topics.values())
    cluster = context.settings.cluster_name
    lines: list[str] = []
    broker = f'{{cluster="{escape(cluster)}"}}'
    lines += metric("pulsar_topics_count", "gauge", "Topics that are loaded.", [(broker, len(topics))])
    lines += metric(METRIC_NAME, "counter", METRIC_TEXT, [(broker, CRASHES.count)])
    lines += load_metrics(context, metric, escape)
    rows = [(topic_labels(cluster, topic), topic_values(topic)) for topic in topics]
    for index, (name, kind, text) in enumerate(TOPIC_METRICS):
        lines += metric(name, kind, text, [(labels, values[index]) for labels, values in rows])
    subscription_rows = [row for topic in topics for row in subscription_values(cluster, topic)]
    for index, (name, kind, text) in enumerate(SUBSCRIPTION_METRICS):
        lines += metric(name, kind, text, [(labels, values[index]) for labels, values in subscription_rows])
    return "\n".join(lines) + "\n"


def metric(name: str, kind: str, text: str, samples: Iterable[tuple[str, float]]) -> list[str]:
    """One family: help, type, samples."""
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *(f"{name}{labels} {value}" for labels, value in samples)]


def topic_labels(cluster: str, topic: Topic) -> str:
    """The labels of a topic."""
    return (
        f'{{cluster="{escape(cluster)}",namespace="{escape(str(topic.name.namespace_name))}",'
        f'topic="{escape(str(topic.name))}"}}'
    )


def topic_values(topic: Topic) -> list[float]:
    """Values in the order of TOPIC_METRICS."""
    producers = list(topic.producers.by_name.values())
    subscriptions = [subscription.statistics() for subscription in topic.subscriptions.values()]
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
        topic.ledger.total_size_bytes if isinstance(topic, PersistentTopic) else 0,
        sum(subscription["msgBacklog"] for subscription in subscriptions),
    ]


def subscription_values(cluster: str, topic: Topic) -> list[tuple[str, list[float]]]:
    """Labels and values in the order of SUBSCRIPTION_METRICS, for each subscription."""
    rows: list[tuple[str, list[float]]] = []
    for name, subscription in topic.subscriptions.items():
        labels = f'{topic_labels(cluster, topic)[:-1]},subscription="{escape(name)}"}}'
        stats = subscription.statistics()
        rows.append(
            (
                labels,
                [
                    stats["msgBacklog"],
                    stats["msgRateOut"],
                    stats["msgThroughputOut"],
                    stats["unackedMessages"],
                    len(stats["consumers"]),
                ],
            )
        )
    return rows


def escape(value: str) -> str:
    """A label value in Prometheus' text format."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
