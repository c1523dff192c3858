"""`/admin/v2/broker-stats`: what this broker measures of itself and its topics, for tools of long ago and for dumps.

Shapes: Apache's `BrokerStats`, `NamespaceStats`, `AllocatorStats`, and what its topics print (`updateRates`)."""

from __future__ import annotations

import gc
import os
import threading
from collections import defaultdict
from typing import Any, Final

import msgspec
from aiohttp import web
from magnetar.broker.admin.topics.stats import largest_backlog_bytes, publisher_stats, replication_stats, without_nulls
from magnetar.broker.admin.web.handlers import Handlers
from magnetar.broker.admin.web.responses import CONFLICT, NOT_ACCEPTABLE, AdminError, json, namespace_of
from magnetar.broker.context import BrokerContext
from magnetar.broker.slices import TimeSlice
from magnetar.broker.subscriptions.non_persistent_subscription import NonPersistentSubscription
from magnetar.broker.subscriptions.statistics import consumer_statistics
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.topic import PersistentTopic, Topic
from magnetar.core.process_memory import resident_bytes
from magnetar.core.topic_name import NamespaceName

BASE: Final = "/admin/v2/broker-stats"

ALLOCATORS: Final = ("default", "ml-cache")

LOAD_MANAGER: Final = "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerWrapper"

OF_SUBSCRIPTION: Final = (
    "consumers",
    "msgBacklog",
    "msgRateExpired",
    "msgRateOut",
    "messageAckRate",
    "msgThroughputOut",
    "msgRateRedeliver",
    "type",
)
OF_CONSUMER: Final = (
    "address",
    "consumerName",
    "availablePermits",
    "connectedSince",
    "msgRateOut",
    "msgThroughputOut",
    "msgRateRedeliver",
    "avgMessagesPerEntry",
    "messageAckRate",
    "clientVersion",
    "metadata",
)
OF_REPLICATOR: Final = (
    "connected",
    "msgRateExpired",
    "msgRateIn",
    "msgRateOut",
    "msgThroughputIn",
    "msgThroughputOut",
    "replicationBacklog",
    "replicationDelayInSeconds",
    "inboundConnection",
    "inboundConnectedSince",
    "outboundConnection",
    "outboundConnectedSince",
)
OF_PUBLISHER: Final = (
    "msgRateIn",
    "msgThroughputIn",
    "averageMsgSize",
    "address",
    "producerId",
    "producerName",
    "connectedSince",
    "clientVersion",
    "metadata",
)
"""What the list of all topics has of each, which is less than the statistics of one topic."""

NO_OPERATIONS: Final = {
    "dataLedgerOpenOp": 0,
    "dataLedgerCloseOp": 0,
    "dataLedgerCreateOp": 0,
    "dataLedgerDeleteOp": 0,
    "cursorLedgerOpenOp": 0,
    "cursorLedgerCloseOp": 0,
    "cursorLedgerCreateOp": 0,
    "cursorLedgerDeleteOp": 0,
}


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = BrokerStatsHandlers(context)
    return [
        web.get(BASE + "/topics", handlers.topics),
        web.get(BASE + "/destinations", handlers.topics),
        web.get(BASE + "/metrics", handlers.metrics),
        web.get(BASE + "/mbeans", handlers.beans),
        web.get(BASE + "/allocator-stats/{allocator}", handlers.allocator),
        web.get(BASE + "/bookieops", handlers.pending_operations),
        web.get(BASE + "/load-report", handlers.load_report),
        web.get(BASE + "/broker-resource-availability/{tenant}/{namespace}", handlers.resource_availability),
    ]


class BrokerStatsHandlers(Handlers):
    """The handlers, over one broker."""

    async def topics(self, request: web.Request) -> web.StreamResponse:
        """Every topic of this broker with its clients, by namespace and bundle; written as it is gathered."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(b"{")
        turn = TimeSlice()
        for number, (namespace, topics) in enumerate(self._by_namespace().items()):
            bundles = await self._context.bundles.of_namespace(namespace)
            by_bundle: dict[str, dict[str, dict[str, msgspec.Raw]]] = {}
            for topic in topics:
                document = await topic_document(topic, turn)
                of_bundle = by_bundle.setdefault(str(bundles.bundle_of(topic.name).range), {})
                # Encoded one by one, as all of them at once would take long.
                of_bundle.setdefault(topic.name.domain, {})[str(topic.name)] = msgspec.Raw(
                    msgspec.json.encode(document)
                )
            separator = b"," if number else b""
            await response.write(
                separator + msgspec.json.encode(str(namespace)) + b":" + msgspec.json.encode(by_bundle)
            )
        await response.write(b"}")
        await response.write_eof()
        return response

    async def metrics(self, request: web.Request) -> web.Response:
        """What `/metrics` has of namespaces and of the cache of entries, in the form of before Prometheus."""
        cluster = self._context.settings.cluster_name
        cache = self._service.ledgers.cache
        found: list[dict[str, Any]] = [
            {
                "metrics": {
                    "brk_ml_cache_used_size": cache.size_bytes,
                    "brk_ml_count": sum(isinstance(topic, PersistentTopic) for topic in self._service.topics.values()),
                },
                "dimensions": {},
            }
        ]
        for namespace, topics in self._by_namespace().items():
            found.append(
                {
                    "metrics": await namespace_metrics(topics),
                    "dimensions": {"cluster": cluster, "namespace": str(namespace)},
                }
            )
        return json(found)

    async def beans(self, request: web.Request) -> web.Response:
        """What the process says of itself; there is no virtual machine with beans of its own."""
        return json([{"metrics": process_metrics(), "dimensions": {"MBean": "magnetar:type=Process"}}])

    async def allocator(self, request: web.Request) -> web.Response:
        """How much memory the process (`default`) or the cache of entries (`ml-cache`) has; there are no arenas."""
        name = request.match_info["allocator"]
        if name not in ALLOCATORS:
            raise AdminError(NOT_ACCEPTABLE, f"Invalid allocator name : {name}")
        used = resident_bytes() if name == "default" else self._service.ledgers.cache.size_bytes
        return json(
            {
                "numDirectArenas": 0,
                "numHeapArenas": 0,
                "numThreadLocalCaches": 0,
                "normalCacheSize": 0,
                "smallCacheSize": 0,
                "usedDirectMemory": 0,
                "usedHeapMemory": used,
                "directArenas": [],
                "heapArenas": [],
            }
        )

    async def pending_operations(self, request: web.Request) -> web.Response:
        """Operations on ledgers that topics wait for, by namespace and topic."""
        found: dict[str, dict[str, Any]] = defaultdict(dict)
        for name, topic in self._service.topics.items():
            if isinstance(topic, PersistentTopic):
                creating = int(topic.ledger.state.value == "CreatingLedger")
                found[str(topic.name.namespace_name)][name] = {**NO_OPERATIONS, "dataLedgerCreateOp": creating}
        return json(found)

    async def load_report(self, request: web.Request) -> web.Response:
        """What this broker tells the others of its load."""
        return json(await self._context.load.load_report())

    async def resource_availability(self, request: web.Request) -> web.Response:
        """Refused, as by every broker with a modular load manager."""
        namespace_of(request)
        raise AdminError(CONFLICT, f"{LOAD_MANAGER} does not support this operation")

    def _by_namespace(self) -> dict[NamespaceName, list[Topic]]:
        found: dict[NamespaceName, list[Topic]] = defaultdict(list)
        for topic in self._service.topics.values():
            found[topic.name.namespace_name].append(topic)
        return found


async def topic_document(topic: Topic, turn: TimeSlice) -> dict[str, Any]:
    """A topic as the list of all topics has it, gathered in turns with what clients send."""
    subscriptions: dict[str, dict[str, Any]] = {}
    for name in list(topic.subscriptions):
        if turn.over:
            await turn.pause()
        subscription = topic.subscriptions.get(name)
        if subscription is not None:  # Not removed meanwhile.
            subscriptions[name] = await subscription_document(subscription, turn)
    if turn.over:
        await turn.pause()
    publishers = [publisher_stats(one) for one in topic.producers.by_name.values() if not one.is_replicator]
    stored = topic.ledger if isinstance(topic, PersistentTopic) else None
    document = {
        "publishers": [without_nulls({name: one[name] for name in OF_PUBLISHER}) for one in publishers],
        "replication": {
            remote: {name: one[name] for name in OF_REPLICATOR if name in one}
            for remote, one in replication_stats(topic).items()
        },
        "subscriptions": subscriptions,
        "producerCount": len(publishers),
        "averageMsgSize": topic.bytes_in / topic.messages_in if topic.messages_in else 0.0,
        "msgRateIn": sum((one["msgRateIn"] for one in publishers), 0.0),
        "msgRateOut": sum((one["msgRateOut"] for one in subscriptions.values()), 0.0),
        "msgInCount": topic.messages_in,
        "bytesInCount": topic.bytes_in,
        "msgOutCount": sum(one.pop("msgOutCounter") for one in subscriptions.values()),
        "bytesOutCount": sum(one.pop("bytesOutCounter") for one in subscriptions.values()),
        "msgThroughputIn": sum((one["msgThroughputIn"] for one in publishers), 0.0),
        "msgThroughputOut": sum((one["msgThroughputOut"] for one in subscriptions.values()), 0.0),
        "storageSize": 0,
        "backlogSize": 0,
        "pendingAddEntriesCount": 0,
        "filteredEntriesCount": 0,
    }
    if stored is not None:
        document["storageSize"] = stored.ledgers.total_size_bytes()
        document["backlogSize"] = largest_backlog_bytes(stored, stored.cursors.values())
    return document


async def subscription_document(
    subscription: Subscription | NonPersistentSubscription, turn: TimeSlice
) -> dict[str, Any]:
    """A subscription as the list of all topics has it, and the counters of what it was sent."""
    stats = subscription.statistics(with_consumers=False)
    document = {key: stats[key] for key in (*OF_SUBSCRIPTION, "msgOutCounter", "bytesOutCounter")}
    found: dict[str, Any] = without_nulls(
        {
            **document,
            "numberOfEntriesSinceFirstNotAckedMessage": stats["msgBacklog"],
            "totalNonContiguousDeletedMessagesRange": stats["nonContiguousDeletedMessagesRanges"],
        }
    )
    found["consumers"] = consumers = []
    for consumer in subscription.consumers:
        one = consumer_statistics(consumer)
        consumers.append({key: one[key] for key in OF_CONSUMER if one[key] is not None})
        if turn.over:
            await turn.pause()
    return found


async def namespace_metrics(topics: list[Topic]) -> dict[str, Any]:
    """A namespace's part of the metrics, added up over its topics here."""
    turn = TimeSlice()
    documents = [await topic_document(topic, turn) for topic in topics]
    subscriptions = [one for document in documents for one in document["subscriptions"].values()]
    replicators = [one for topic in topics for one in topic.all_replicators.values()]
    return {
        "brk_in_rate": sum(document["msgRateIn"] for document in documents),
        "brk_in_tp_rate": sum(document["msgThroughputIn"] for document in documents),
        "brk_out_rate": sum(document["msgRateOut"] for document in documents),
        "brk_out_tp_rate": sum(document["msgThroughputOut"] for document in documents),
        "brk_storage_size": sum(document["storageSize"] for document in documents),
        "brk_msg_backlog": float(sum(one["msgBacklog"] for one in subscriptions)),
        "brk_no_of_consumers": sum(len(one["consumers"]) for one in subscriptions),
        "brk_no_of_producers": sum(document["producerCount"] for document in documents),
        "brk_no_of_subscriptions": len(subscriptions),
        "brk_no_of_replicators": len(replicators),
        "brk_replication_backlog": sum(one.backlog for one in replicators),
        "brk_max_replication_delay_second": max((one.delay_seconds() for one in replicators), default=0.0),
    }


def process_metrics() -> dict[str, Any]:
    """What can be told of a process without asking the system much."""
    times = os.times()
    return {
        "residentMemoryBytes": resident_bytes(),
        "processCpuTimeNanos": int((times.user + times.system) * 1e9),
        "threadCount": threading.active_count(),
        "collections": [generation["collections"] for generation in gc.get_stats()],
    }
