"""The plan for the coming week: everything together, as JSON, and as settings to take over. Pure but for `read_plan`'s
questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from magnetar.core.bundle import BundleName
from magnetar.core.limits import MIB
from magnetar.spark.errors import AccessRefused, ClusterUnreachable
from magnetar.spark.jobs.load.capacity import (
    GIB,
    BookiePlan,
    BrokerPlan,
    PlanOptions,
    bookie_plan,
    broker_plan,
    hours_of_week,
)
from magnetar.spark.jobs.load.forecast import Forecast
from magnetar.spark.jobs.load.model import LoadHistory
from magnetar.spark.jobs.load.policies import (
    AdminReader,
    runtime_settings,
    split_settings,
    storage_policies,
    topic_positions,
)
from magnetar.spark.jobs.load.splits import FindPositions, SplitAdvice, split_advice


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What the coming week needs."""

    history: LoadHistory
    options: PlanOptions
    brokers: BrokerPlan
    bookies: BookiePlan
    splits: list[SplitAdvice]
    notes: list[str]


def make_plan(
    history: LoadHistory,
    options: PlanOptions,
    find_positions: FindPositions | None = None,
    notes: list[str] | None = None,
) -> LoadPlan:
    """Decide. The history must not be empty."""
    brokers = broker_plan(history, options)
    splits = split_advice(
        history,
        options.split,
        brokers=brokers.recommended,
        share=options.share,
        find_positions=find_positions,
    )
    hours = history.hours
    missing = hours[-1] - hours[0] + 1 - len(hours)
    notes = list(notes or ())
    notes.append(brokers.resources[0].forecast.note)
    if missing:
        notes.append(f"{missing} hours within the history are missing: nobody led, or nothing could be written")
    bookies = bookie_plan(history, options)
    return LoadPlan(history=history, options=options, brokers=brokers, bookies=bookies, splits=splits, notes=notes)


def ask_and_plan(history: LoadHistory, options: PlanOptions, admin: AdminReader | None) -> LoadPlan:
    """Make the plan with what the cluster's admin API says of limits, retention, copies and positions of topics. What
    it does not say is left at `options`, and noted."""
    if admin is None:
        note = "without --admin-url: retention, copies and limits are those of the options, and splits go by ranges"
        return make_plan(history, options, notes=[note])
    notes: list[str] = []
    try:
        namespaces = {one.namespace for one in history.bundle_days}
        options = replace(
            options,
            storage=storage_policies(admin, namespaces, options.storage),
            split=split_settings(runtime_settings(admin), options.split),
        )
    except (ClusterUnreachable, AccessRefused) as error:
        notes.append(f"retention, copies and limits are those of the options: {error}")

    def find_positions(bundle: BundleName) -> list[int]:
        try:
            return topic_positions(admin, bundle)
        except (ClusterUnreachable, AccessRefused) as error:
            notes.append(f"where topics of {bundle} lie is not known: {error}")
            return []

    plan = make_plan(history, options, find_positions)
    return replace(plan, notes=[*notes, *plan.notes])


def time_of(hour: int) -> datetime:
    """When an hour begins."""
    return datetime.fromtimestamp(hour * 3600, UTC)


def document(plan: LoadPlan) -> dict[str, Any]:
    """The plan as the object of `plan.json`."""
    brokers, hours = plan.brokers, plan.history.hours
    return {
        "history": {
            "from": time_of(hours[0]).isoformat(),
            "to": time_of(hours[-1] + 1).isoformat(),
            "hours": len(hours),
        },
        "week": {"from": time_of(brokers.first_hour).isoformat(), "hours": len(brokers.needed)},
        "brokers": _brokers_document(brokers, plan.options),
        "bookies": _bookies_document(plan.bookies),
        "splits": [_split_document(one) for one in plan.splits],
        "notes": plan.notes,
        "suggested": cluster_resource(plan),
    }


def _brokers_document(brokers: BrokerPlan, options: PlanOptions) -> dict[str, Any]:
    return {
        "now": brokers.now,
        "neededAtPeak": brokers.peak,
        "peakAt": time_of(brokers.peak_hour).isoformat(),
        "recommended": brokers.recommended,
        "autoscaling": {"minReplicas": brokers.autoscaling[0], "maxReplicas": brokers.autoscaling[1]},
        "boundBy": brokers.binding,
        "targetPercent": options.target_percent,
        "neededByHour": brokers.needed,
        "neededByHourOfWeek": hours_of_week(brokers.needed, brokers.first_hour),
        "resources": [
            {
                "name": one.name,
                "unit": one.unit,
                "limitOfOneBroker": one.limit,
                "idleOfOneBroker": round(one.idle, 2),
                "forecast": _forecast_document(one.forecast),
            }
            for one in brokers.resources
        ],
        "notes": brokers.notes,
    }


def _bookies_document(bookies: BookiePlan) -> dict[str, Any]:
    return {
        "recommended": bookies.recommended,
        "forDisks": bookies.for_disks,
        "forWrites": bookies.for_writes,
        "storedBytes": round(bookies.stored_bytes),
        "diskBytes": round(bookies.disk_bytes),
        "diskGibOfOneBookie": bookies.disk_gib,
        "growthBytesPerDay": round(bookies.growth_bytes_per_day),
        "ingressBytesPerSecond": _forecast_document(bookies.ingress),
        "namespaces": [
            {
                "namespace": one.namespace,
                "ingressBytesPerSecond": round(one.ingress_bytes_per_second, 1),
                "kept": one.kept,
                "writeQuorum": one.write_quorum,
                "storedBytes": round(one.stored_bytes),
                "endless": one.endless,
            }
            for one in bookies.namespaces
        ],
        "notes": bookies.notes,
    }


def _split_document(advice: SplitAdvice) -> dict[str, Any]:
    return {
        "bundle": advice.bundle,
        "parts": advice.parts,
        "boundaries": [f"0x{boundary:08x}" for boundary in advice.boundaries],
        "algorithm": advice.algorithm,
        "boundariesByTopics": advice.by_topics,
        "certain": advice.certain,
        "reason": advice.reason,
        "topics": advice.topics,
        "command": advice.command,
    }


def _forecast_document(found: Forecast) -> dict[str, Any]:
    backtest: Mapping[str, float] | None = None
    if found.backtest is not None:
        backtest = {
            "errorPercent": round(found.backtest.error_percent, 1),
            "coveredPercent": round(found.backtest.covered_percent, 1),
            "widened": round(found.backtest.widened, 2),
        }
    return {
        "method": found.method.value,
        "growthPerWeek": round(found.growth_per_week, 2),
        "expected": [round(value, 1) for value in found.expected],
        "low": [round(value, 1) for value in found.low],
        "high": [round(value, 1) for value in found.high],
        "lastWeekForetold": backtest,
    }


def cluster_resource(plan: LoadPlan) -> dict[str, Any]:
    """The parts of a `PulsarCluster` that follow from the plan."""
    least, most = plan.brokers.autoscaling
    broker: dict[str, Any] = {"replicas": plan.brokers.recommended}
    if least < most:
        broker = {
            "autoscaling": {
                "minReplicas": least,
                "maxReplicas": most,
                "loadPercentMax": min(95, max(10, round(plan.options.target_percent))),
            }
        }
    return {
        "spec": {
            "broker": broker,
            "bookkeeper": {
                "replicas": plan.bookies.recommended,
                "storage": {"ledgers": {"size": f"{plan.bookies.disk_gib:.0f}Gi"}},
            },
        }
    }


def yaml_of(value: Mapping[str, Any], indent: int = 0) -> str:
    """Mappings of mappings, numbers and plain words: all that a suggestion has."""
    lines: list[str] = []
    for name, one in value.items():
        if isinstance(one, dict):
            lines += [f"{' ' * indent}{name}:", yaml_of(one, indent + 2)]
        else:
            lines.append(f"{' ' * indent}{name}: {one}")
    return "\n".join(lines)


def mib(value: float) -> str:
    """Bytes for people."""
    if value >= GIB:
        return f"{value / GIB:,.1f} GiB"
    return f"{value / MIB:,.1f} MiB"
