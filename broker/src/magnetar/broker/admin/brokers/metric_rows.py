"""The rows of one page of metrics, as they are gathered topic by topic, and what they come to altogether."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from magnetar.broker.admin.brokers.compaction_metrics import COMPACTION_METRICS, compaction_values
from magnetar.broker.admin.brokers.metric_text import Definition, Row, escape, labelled, metric
from magnetar.broker.admin.brokers.offload_metrics import OFFLOAD_METRICS, offload_values
from magnetar.broker.admin.brokers.replication_metrics import (
    DROPPED_METRICS,
    REPLICATION_METRICS,
    dropped_values,
    replication_values,
)
from magnetar.broker.admin.brokers.storage_metrics import (
    NAMESPACE_METRICS,
    WRITE_METRICS,
    namespace_values,
    write_values,
)
from magnetar.broker.admin.brokers.topic_metrics import (
    CONSUMER_METRICS,
    NO_SUMS,
    OF_NAMESPACES,
    STORED_METRICS,
    SUBSCRIPTION_METRICS,
    TOPIC_METRICS,
    TRANSACTIONAL_METRICS,
    consumer_values,
    stored_values,
    subscription_values,
    topic_labels,
    topic_values,
    transactional_values,
)
from magnetar.broker.dispatch.consumer import Consumer
from magnetar.broker.settings.admin import AdminSettings
from magnetar.broker.subscriptions.statistics import consumer_statistics
from magnetar.broker.topics.topic import PersistentTopic, Topic

BROKER_TOTALS: Final = (
    "pulsar_subscriptions_count",
    "pulsar_producers_count",
    "pulsar_consumers_count",
    "pulsar_rate_in",
    "pulsar_rate_out",
    "pulsar_throughput_in",
    "pulsar_throughput_out",
    "pulsar_msg_backlog",
)
"""Of all topics of a broker, as `pulsar_broker_…`."""

STORED_TOTALS: Final = (
    "pulsar_storage_size",
    "pulsar_storage_logical_size",
    "pulsar_storage_write_rate",
    "pulsar_storage_read_rate",
    "pulsar_storage_read_cache_misses_rate",
)

NAMESPACE_KIND: Final = "/persistent"
"""What Apache puts behind a namespace's name in the labels of its managed ledgers."""


FAMILIES: Final[Mapping[str, Sequence[Definition]]] = {
    "topic": TOPIC_METRICS,
    "stored": STORED_METRICS,
    "written": WRITE_METRICS,
    "transactional": TRANSACTIONAL_METRICS,
    "compaction": COMPACTION_METRICS,
    "offload": OFFLOAD_METRICS,
    "replication": REPLICATION_METRICS,
    "dropped": DROPPED_METRICS,
    "subscription": SUBSCRIPTION_METRICS,
    "consumer": CONSUMER_METRICS,
    "ledger": NAMESPACE_METRICS,
}
"""By what their rows are of."""


class GatheredRows:
    """One page of metrics while it is gathered."""

    def __init__(self, cluster: str, settings: AdminSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._rows: dict[str, list[Row]] = {kind: [] for kind in FAMILIES}
        self._sums: dict[str, dict[str, list[float]]] = {kind: {} for kind in FAMILIES}
        """By kind and namespace: where there are no lines for each topic, and what is never told by topic."""
        self._topics: dict[str, int] = {}
        """Topics by namespace."""
        self._of_topics = [0.0] * len(TOPIC_METRICS)
        self._of_stored = [0.0] * len(STORED_METRICS)
        self.ledgers = 0
        """Topics that are stored."""

    @property
    def with_consumers(self) -> bool:
        """Whether consumers have rows of their own."""
        return self._settings.topic_metrics and self._settings.consumer_metrics

    def add_subscription(self, topic: Topic, name: str, stats: dict[str, Any], consumers_count: int) -> None:
        """One subscription of a topic, with its statistics; those need not have its consumers."""
        labels = self._subscription_labels(topic, name) if self._settings.topic_metrics else ""
        self._add("subscription", topic, labels, subscription_values(stats, consumers_count))

    def add_consumer(self, topic: Topic, subscription: str, consumer: Consumer) -> None:
        """One consumer of a subscription, where those have rows."""
        more = f'consumer_name="{escape(consumer.name)}",consumer_id="{consumer.identity.consumer_id}"'
        labels = f"{self._subscription_labels(topic, subscription)[:-1]},{more}}}"
        self._rows["consumer"].append((labels, consumer_values(consumer_statistics(consumer))))

    def _subscription_labels(self, topic: Topic, name: str) -> str:
        return f'{topic_labels(self._cluster, topic)[:-1]},subscription="{escape(name)}"}}'

    def add_topic(self, topic: Topic, subscriptions: list[dict[str, Any]], consumers_count: int) -> None:
        """One topic, with the statistics of all its subscriptions."""
        namespace = str(topic.name.namespace_name)
        self._topics[namespace] = self._topics.get(namespace, 0) + 1
        labels = topic_labels(self._cluster, topic)
        values = topic_values(topic, subscriptions, consumers_count)
        _add(self._of_topics, values)
        self._add("topic", topic, labels, values)
        for kind, found in (("replication", replication_values(topic)), ("dropped", dropped_values(topic))):
            for cluster, figures in found:
                self._add(kind, topic, f'{labels[:-1]},remote_cluster="{escape(cluster)}"}}', figures)
        if not isinstance(topic, PersistentTopic):
            return
        self.ledgers += 1
        stored = stored_values(topic)
        _add(self._of_stored, stored)
        self._add("stored", topic, labels, stored)
        self._add_sums("ledger", namespace, namespace_values(topic))
        for kind, some in (
            ("written", write_values(topic)),
            ("transactional", transactional_values(topic)),
            ("compaction", compaction_values(topic)),
            ("offload", offload_values(topic)),
        ):
            if some is not None:
                self._add(kind, topic, labels, some)

    def _add(self, kind: str, topic: Topic, labels: str, values: list[float]) -> None:
        if self._settings.topic_metrics:
            self._rows[kind].append((labels, values))
        else:
            self._add_sums(kind, str(topic.name.namespace_name), values)

    def _add_sums(self, kind: str, namespace: str, values: list[float]) -> None:
        sums = self._sums[kind].get(namespace)
        if sums is None:
            self._sums[kind][namespace] = list(values)
        else:
            _add(sums, values)

    def families(self) -> list[tuple[Sequence[Definition], list[Row]]]:
        """The rows, with the families that they have values of."""
        found: list[tuple[Sequence[Definition], list[Row]]] = [
            (definitions, self._rows[kind]) for kind, definitions in FAMILIES.items()
        ]
        for kind, sums in self._sums.items():
            suffix = NAMESPACE_KIND if kind == "ledger" else ""
            kept = [index for index, (name, _, _) in enumerate(FAMILIES[kind]) if _adds_up(kind, name)]
            rows: list[Row] = [
                (labelled(cluster=self._cluster, namespace=namespace + suffix), [values[index] for index in kept])
                for namespace, values in sums.items()
            ]
            found.append(([FAMILIES[kind][index] for index in kept], rows))
        return [(definitions, rows) for definitions, rows in found if rows]

    def totals(self) -> Iterator[str]:
        """Lines about namespaces, and about all topics together."""
        yield from metric(
            "pulsar_topics_count",
            "gauge",
            "Topics that are loaded.",
            [(labelled(cluster=self._cluster, namespace=name), count) for name, count in self._topics.items()],
        )
        labels = labelled(cluster=self._cluster)
        loaded = sum(self._topics.values())
        yield from metric("pulsar_broker_topics_count", "gauge", "Topics that are loaded.", [(labels, loaded)])
        for names, definitions, values in (
            (BROKER_TOTALS, TOPIC_METRICS, self._of_topics),
            (STORED_TOTALS, STORED_METRICS, self._of_stored),
        ):
            for (name, kind, text), value in zip(definitions, values, strict=True):
                if name in names:
                    public = name.replace("pulsar_", "pulsar_broker_", 1)
                    yield from metric(public, kind, f"All topics together: {text}", [(labels, value)])


def _adds_up(kind: str, name: str) -> bool:
    """Whether namespaces have the sum of their topics, or subscriptions."""
    if kind == "subscription":
        return name in OF_NAMESPACES or name.startswith("pulsar_out_")
    return name not in NO_SUMS


def _add(sums: list[float], values: list[float]) -> None:
    for index, value in enumerate(values):
        sums[index] += value
