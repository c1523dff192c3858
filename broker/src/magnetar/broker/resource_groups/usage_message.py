"""Reports of brokers about resource groups as the system topic has them. Pure.

Apache's brokers count what was used in one interval (`resourceUsageTransportPublishIntervalInSecs`), and leave out what
has hardly changed. Ours tell as soon as something changes, and scale what they tell to an interval.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from magnetar.broker.resource_groups.group import GroupReport, Rates
from magnetar.wire.pulsar.generated.resource_usage_pb2 import NetworkUsage, ResourceUsage, ResourceUsageInfo
from magnetar.wire.pulsar.resource_usage import BadResourceUsage, decode, encode

UINT64_MAX: Final = 2**64 - 1

REPORTS_MAX: Final = 4_000
"""In one message: a third more than a message that is read has of groups with names of usual length. They take 20 ms;
as many as could be empty take half a second."""

WAITS_FOR_MESSAGES: Final = 1
WAITS_FOR_BYTES: Final = 2
DISPATCH_SHIFT: Final = 2
"""The bits of `waits` that are about dispatch stand above those about publishing."""


def encode_reports(broker: str, reports: Iterable[GroupReport], interval_seconds: float) -> bytes:
    """One message of this broker; `broker` is its service URL."""
    return encode(
        ResourceUsageInfo(
            broker=broker,
            usageMap=[
                ResourceUsage(
                    owner=report.group,
                    publish=_usage(report.publish, interval_seconds),
                    dispatch=_usage(report.dispatch, interval_seconds),
                    waits=_waits(report.publish) | _waits(report.dispatch) << DISPATCH_SHIFT,
                )
                for report in reports
            ],
        )
    )


def decode_reports(payload: bytes, interval_seconds: float) -> tuple[str, list[GroupReport]]:
    """The broker, and what it tells of each group; None for a direction that it leaves out. `BadResourceUsage`."""
    info = decode(payload)
    if len(info.usageMap) > REPORTS_MAX:
        raise BadResourceUsage(f"a report of {len(info.usageMap)} groups, where {REPORTS_MAX} are the most")
    return info.broker, [
        GroupReport(
            usage.owner,
            _rates(usage.publish, usage.waits, interval_seconds) if usage.HasField("publish") else None,
            _rates(usage.dispatch, usage.waits >> DISPATCH_SHIFT, interval_seconds)
            if usage.HasField("dispatch")
            else None,
            usage.HasField("waits"),
        )
        for usage in info.usageMap
    ]


def _usage(rates: Rates | None, interval_seconds: float) -> NetworkUsage | None:
    if rates is None:
        return None
    return NetworkUsage(
        bytesPerPeriod=min(UINT64_MAX, round(rates.size_bytes * interval_seconds)),
        messagesPerPeriod=min(UINT64_MAX, round(rates.messages * interval_seconds)),
    )


def _waits(rates: Rates | None) -> int:
    if rates is None:
        return 0
    return WAITS_FOR_MESSAGES * rates.messages_wait | WAITS_FOR_BYTES * rates.bytes_wait


def _rates(usage: NetworkUsage, waits: int, interval_seconds: float) -> Rates:
    return Rates(
        usage.messagesPerPeriod / interval_seconds,
        usage.bytesPerPeriod / interval_seconds,
        bool(waits & WAITS_FOR_MESSAGES),
        bool(waits & WAITS_FOR_BYTES),
    )
