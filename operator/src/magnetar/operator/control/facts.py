"""Pods' answers as facts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from magnetar.balance.model import BrokerLoad, BundleLoad, LoadSnapshot, ResourceUsages
from magnetar.control.errors import ControlUnavailable
from magnetar.control.generated import bookie_pb2, broker_pb2
from magnetar.core.bundle import BundleName
from magnetar.operator.control.controls import Driver
from magnetar.operator.plan.conditions import timestamp
from magnetar.operator.plan.facts import BookieFacts, BrokerFacts, DrainStep, LostBookieFacts, ZookeeperFacts
from magnetar.operator.resources.cluster import BundleMove

BrokerReport: TypeAlias = tuple[broker_pb2.LoadReport, Sequence[broker_pb2.OwnedBundle], broker_pb2.BrokerDrain]

BLOCKERS_MAX: Final = 5
"""Ledgers or bundles that are named as a drain's blockers, as many as fit into a message."""

_BOOKIE_STEPS: Final[Mapping[int, DrainStep]] = {
    bookie_pb2.DRAIN_STEP_READ_ONLY: "ReadOnly",
    bookie_pb2.DRAIN_STEP_REPLICATE: "Replicate",
    bookie_pb2.DRAIN_STEP_VERIFY: "Verify",
    bookie_pb2.DRAIN_STEP_REMOVE_COOKIE: "RemoveCookie",
    bookie_pb2.DRAIN_STEP_DONE: "Done",
}

_MODE: Final = re.compile(r"^Mode: (\w+)", re.MULTILINE)


def bookie(state: bookie_pb2.StorageState, drain: bookie_pb2.Drain) -> BookieFacts:
    """What both answers say together."""
    ledgers = [directory for directory in state.directories if directory.kind == "ledgers"]
    return BookieFacts(
        bookie_id=state.bookie_id,
        writable=state.running and not state.read_only and not state.shutting_down,
        read_only_reasons=tuple(state.read_only_reasons),
        used_bytes=sum(directory.total_bytes - directory.free_bytes for directory in ledgers),
        total_bytes=sum(directory.total_bytes for directory in ledgers),
        disk_usage_percent=max((_percent_used(directory) for directory in ledgers), default=0),
        ledgers=state.ledgers,
        drain=_BOOKIE_STEPS.get(drain.step, "None"),
        ledgers_total=drain.ledgers_total,
        ledgers_left=drain.ledgers_left,
        bytes_per_second=round(drain.bytes_per_second),
        blockers=tuple(f"ledger {blocker.ledger_id}: {blocker.reason}" for blocker in drain.blockers[:BLOCKERS_MAX]),
        limbo_ledgers=state.limbo.ledgers,
        limbo_ledgers_unhealed=state.limbo.ledgers_unhealed,
        limbo_entries_lost=state.limbo.entries_lost,
    )


def _percent_used(directory: bookie_pb2.Directory) -> int:
    if not directory.total_bytes:
        return 0
    return round(100 * (directory.total_bytes - directory.free_bytes) / directory.total_bytes)


def lost_bookie(answer: bookie_pb2.LostBookie) -> LostBookieFacts:
    """What a bookie that runs says of another."""
    return LostBookieFacts(
        bookie_id=answer.bookie_id,
        registered=answer.registered,
        has_cookie=answer.has_cookie,
        ledgers_left=answer.ledgers_left,
    )


def broker(report: broker_pb2.LoadReport, drain: broker_pb2.BrokerDrain) -> BrokerFacts:
    """What both answers say together."""
    usages = report.usages
    step = drain.step
    return BrokerFacts(
        broker_id=report.broker_id,
        registered=report.registered,
        leading=report.leading,
        bundles=report.bundles,
        load_percent=round(max(usages.cpu, usages.memory, usages.bandwidth_in, usages.bandwidth_out)),
        drain=(
            "Done"
            if step == broker_pb2.BROKER_DRAIN_STEP_DONE
            else "Running"
            if step == broker_pb2.BROKER_DRAIN_STEP_RUNNING
            else "None"
        ),
        bundles_left=drain.bundles_left,
        blockers=tuple(f"{blocker.bundle}: {blocker.reason}" for blocker in drain.blockers[:BLOCKERS_MAX]),
    )


def move(decision: broker_pb2.BalanceDecision) -> BundleMove:
    """A decision as a status tells it."""
    failed = f"; it failed: {decision.error}" if decision.outcome == "failed" else ""
    return BundleMove(
        time=timestamp(decision.decided_ms / 1000),
        kind=decision.kind,
        bundle=decision.bundle,
        source=decision.broker_id,
        destination=decision.destination_broker_id,
        reason=decision.reason + failed,
    )


def driver(answer: str) -> Driver:
    """One of those that are known."""
    return "control" if answer == "control" else "leader"


def load_snapshot(answers: Sequence[BrokerReport], now_ms: int) -> LoadSnapshot:
    """What all brokers say together. Bundles that nobody owns are in nobody's answer."""
    brokers = {report.broker_id: _broker_load(report, bundles, drain) for report, bundles, drain in answers}
    counts = Counter(str(bundle.namespace) for load in brokers.values() for bundle in load.bundles)
    return LoadSnapshot(now_ms=now_ms, brokers=brokers, bundle_counts=counts)


def _broker_load(
    report: broker_pb2.LoadReport, bundles: Sequence[broker_pb2.OwnedBundle], drain: broker_pb2.BrokerDrain
) -> BrokerLoad:
    usages = report.usages
    return BrokerLoad(
        broker_id=report.broker_id,
        started_ms=report.started_ms,
        usages=ResourceUsages(
            cpu=usages.cpu, memory=usages.memory, bandwidth_in=usages.bandwidth_in, bandwidth_out=usages.bandwidth_out
        ),
        bundles={BundleName.parse(bundle.bundle): _bundle_load(bundle) for bundle in bundles},
        draining=not report.registered or drain.step != broker_pb2.BROKER_DRAIN_STEP_NONE,
        version=report.version,
    )


def _bundle_load(bundle: broker_pb2.OwnedBundle) -> BundleLoad:
    return BundleLoad(
        msg_rate_in=bundle.msg_rate_in,
        msg_rate_out=bundle.msg_rate_out,
        msg_throughput_in=bundle.msg_throughput_in,
        msg_throughput_out=bundle.msg_throughput_out,
        topics=bundle.topics,
        producers=bundle.producers,
        consumers=bundle.consumers,
    )


def zookeeper(answer: str) -> ZookeeperFacts:
    """What `srvr` says of a server. `ControlUnavailable` for one that does not take part (yet)."""
    found = _MODE.search(answer)
    match found[1] if found else "":
        case "leader" | "follower" | "observer" | "standalone" as mode:
            return ZookeeperFacts(mode=mode)
        case _:
            raise ControlUnavailable(f"ZooKeeper does not serve: {answer.strip()[:200]}")
