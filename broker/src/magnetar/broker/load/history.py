"""What the leader publishes of all brokers now and then, for people and programs that plan ahead. Pure.

One message for each broker and round in `LOAD_HISTORY`, under the broker's id as its key and the time of the round as
its event time: JSON under a registered JSON schema, so that whatever knows schemas reads it as columns. Rates are per
second, throughputs bytes per second, usages and limits in the units of load reports, which stand in the names; a limit
of 0 is not known, and what a broker reports as no number is 0.

What it costs: a message is about 750 bytes, and 180 more for each bundle in which a topic is loaded. Three brokers with
a hundred such bundles write 6 MB a day at one round in five minutes, uncompressed; batches are compressed, to about a
tenth. Readers must expect a round twice, as after a leader that died while it wrote.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from magnetar.broker.bundles.statistics import BundleStats
from magnetar.broker.load.broker_report import BrokerReport
from magnetar.broker.load.snapshot import parse_bundle

SCHEMA_NAME: Final = "LoadHistory"

BUNDLES_PER_MESSAGE_MAX: Final = 4_000
"""Below a megabyte: what fits into any message. The busiest are told, the others counted."""

BATCH_BYTES_MAX: Final = 1_000_000
"""Uncompressed: receivers refuse batches that would unpack to more than a message may have."""

_BUNDLE_FIELDS: Final = {
    "namespace": "string",
    "range": "string",
    "msgRateIn": "double",
    "msgRateOut": "double",
    "msgThroughputIn": "double",
    "msgThroughputOut": "double",
    "topics": "int",
    "producers": "int",
    "consumers": "int",
}
_FIELDS: Final = {
    "takenMillis": "long",
    "intervalSeconds": "int",
    "cluster": "string",
    "brokerId": "string",
    "version": "string",
    "startedMillis": "long",
    "reportedMillis": "long",
    "cpuUsagePercent": "double",
    "cpuLimitPercent": "double",
    "memoryUsageMib": "double",
    "memoryLimitMib": "double",
    "directMemoryUsageMib": "double",
    "directMemoryLimitMib": "double",
    "bandwidthInUsageKbits": "double",
    "bandwidthInLimitKbits": "double",
    "bandwidthOutUsageKbits": "double",
    "bandwidthOutLimitKbits": "double",
    "msgRateIn": "double",
    "msgRateOut": "double",
    "msgThroughputIn": "double",
    "msgThroughputOut": "double",
    "numTopics": "int",
    "numProducers": "int",
    "numConsumers": "int",
    "numBundles": "int",
    "numBundlesLeftOut": "int",
}


def schema_definition() -> bytes:
    """The Avro record that Pulsar takes for a JSON schema."""

    def record(name: str, fields: Mapping[str, str]) -> dict[str, Any]:
        return {
            "type": "record",
            "name": name,
            "namespace": "magnetar.load",
            "fields": [{"name": field, "type": kind} for field, kind in fields.items()],
        }

    definition = record(SCHEMA_NAME, _FIELDS)
    bundles = {"type": "array", "items": record("BundleLoad", _BUNDLE_FIELDS)}
    definition["fields"].append({"name": "bundles", "type": bundles})
    return _dumps(definition)


def history_of(report: BrokerReport, *, cluster: str, taken_ms: int, interval_seconds: int) -> bytes:
    """The message about one broker. Bundles without a loaded topic are only counted, and a broker's own for health
    checks are left out."""
    bundles = [
        (parsed, stats)
        for name, stats in report.stats.items()
        if stats.topics and (parsed := parse_bundle(name)) is not None
    ]
    bundles.sort(key=lambda one: (-_busyness(one[1]), str(one[0])))
    host = report.host
    document: dict[str, Any] = {
        "takenMillis": taken_ms,
        "intervalSeconds": interval_seconds,
        "cluster": cluster,
        "brokerId": report.broker_id,
        "version": report.version,
        "startedMillis": report.started_ms,
        "reportedMillis": report.updated_ms,
    }
    for name, unit, usage in (
        ("cpu", "Percent", host.cpu),
        ("memory", "Mib", host.memory),
        ("directMemory", "Mib", host.direct_memory),
        ("bandwidthIn", "Kbits", host.bandwidth_in),
        ("bandwidthOut", "Kbits", host.bandwidth_out),
    ):
        document[f"{name}Usage{unit}"] = _rounded(usage.usage)
        document[f"{name}Limit{unit}"] = _rounded(usage.limit)
    document |= {
        "msgRateIn": _rounded(report.total("msg_rate_in")),
        "msgRateOut": _rounded(report.total("msg_rate_out")),
        "msgThroughputIn": _rounded(report.total("throughput_in")),
        "msgThroughputOut": _rounded(report.total("throughput_out")),
        "numTopics": int(report.total("topics")),
        "numProducers": int(report.total("producers")),
        "numConsumers": int(report.total("consumers")),
        "numBundles": len(report.bundles),
        "numBundlesLeftOut": max(0, len(bundles) - BUNDLES_PER_MESSAGE_MAX),
        "bundles": [
            {
                "namespace": str(bundle.namespace),
                "range": str(bundle.range),
                "msgRateIn": _rounded(stats.msg_rate_in),
                "msgRateOut": _rounded(stats.msg_rate_out),
                "msgThroughputIn": _rounded(stats.throughput_in),
                "msgThroughputOut": _rounded(stats.throughput_out),
                "topics": stats.topics,
                "producers": stats.producers,
                "consumers": stats.consumers,
            }
            for bundle, stats in bundles[:BUNDLES_PER_MESSAGE_MAX]
        ],
    }
    return _dumps(document)


def batches(messages: Iterable[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    """Keys and messages in groups that may become one entry each."""
    group: list[tuple[str, bytes]] = []
    size_bytes = 0
    for key, message in messages:
        if group and size_bytes + len(message) > BATCH_BYTES_MAX:
            yield group
            group, size_bytes = [], 0
        group.append((key, message))
        size_bytes += len(message)
    if group:
        yield group


def _busyness(stats: BundleStats) -> float:
    return stats.throughput_in + stats.throughput_out


def _rounded(value: float) -> float:
    # What is finer is noise, and twice the bytes. JSON has no NaN, which Java's brokers report now and then.
    return round(value, 2) if math.isfinite(value) else 0.0


def _dumps(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
