"""What `top` shows: rows out of what pods answer and of what status says. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from magnetar.operator.plugin.views import ClusterSummary, JsonView, ordinal

if TYPE_CHECKING:
    from magnetar.control.generated import bookie_pb2, broker_pb2


class BrokerUsageRow(JsonView, kw_only=True, frozen=True):
    """One broker; rates per second, usages in percent. None: it did not answer."""

    pod: str
    broker_id: str = ""
    state: str = ""
    leading: bool = False
    bundles: int = 0
    load_percent: float | None = None
    """The load of its fullest resource."""
    topics: int | None = None
    producers: int | None = None
    consumers: int | None = None
    msg_rate_in: float | None = None
    msg_rate_out: float | None = None
    bytes_in: float | None = None
    bytes_out: float | None = None
    cpu_percent: float | None = None
    memory_percent: float | None = None
    network_percent: float | None = None


class BundleUsageRow(JsonView, kw_only=True, frozen=True):
    """One bundle of those that are served."""

    bundle: str
    pod: str
    state: str
    topics: int
    producers: int
    consumers: int
    msg_rate_in: float
    msg_rate_out: float
    bytes_in: float
    bytes_out: float


class BookieUsageRow(JsonView, kw_only=True, frozen=True):
    """One bookie. None: it did not answer."""

    pod: str
    pool: str
    state: str = ""
    disk_percent: float | None = None
    used_bytes: int | None = None
    total_bytes: int | None = None
    ledgers: int | None = None
    entries: int | None = None
    write_cache_percent: float | None = None
    journal_queue_bytes: int | None = None
    message: str = ""


def broker_rows(view: ClusterSummary, answers: Mapping[str, broker_pb2.LoadReport]) -> list[BrokerUsageRow]:
    """A row for each broker's pod."""
    return [_broker_row(view, name, answers.get(name)) for name in _broker_names(view)]


def _broker_names(view: ClusterSummary) -> list[str]:
    return sorted({*(pod.name for pod in view.of("broker")), *(one.name for one in view.status.broker_members)})


def _broker_row(view: ClusterSummary, name: str, report: broker_pb2.LoadReport | None) -> BrokerUsageRow:
    member = view.broker(name)
    state = member.state if member is not None else ""
    if report is None:
        load = member.load_percent if member is not None else None
        return BrokerUsageRow(
            pod=name, state=state, bundles=member.bundles if member is not None else 0, load_percent=load
        )
    usages = report.usages
    network = max(usages.bandwidth_in, usages.bandwidth_out)
    return BrokerUsageRow(
        pod=name,
        broker_id=report.broker_id,
        state=state or ("Ready" if report.registered else "Draining"),
        leading=report.leading,
        bundles=report.bundles,
        load_percent=max(usages.cpu, usages.memory, network),
        topics=report.topics,
        producers=report.producers,
        consumers=report.consumers,
        msg_rate_in=report.msg_rate_in,
        msg_rate_out=report.msg_rate_out,
        bytes_in=report.msg_throughput_in,
        bytes_out=report.msg_throughput_out,
        cpu_percent=usages.cpu,
        memory_percent=usages.memory,
        network_percent=network,
    )


def bundle_rows(answers: Mapping[str, Sequence[broker_pb2.OwnedBundle]]) -> list[BundleUsageRow]:
    """A row for each bundle that a broker owns."""
    return [
        BundleUsageRow(
            bundle=bundle.bundle,
            pod=pod,
            state=bundle.state,
            topics=bundle.topics,
            producers=bundle.producers,
            consumers=bundle.consumers,
            msg_rate_in=bundle.msg_rate_in,
            msg_rate_out=bundle.msg_rate_out,
            bytes_in=bundle.msg_throughput_in,
            bytes_out=bundle.msg_throughput_out,
        )
        for pod, bundles in sorted(answers.items())
        for bundle in bundles
    ]


def bookie_rows(view: ClusterSummary, answers: Mapping[str, bookie_pb2.StorageState]) -> list[BookieUsageRow]:
    """A row for each bookie that status or a pod tells of."""
    found = []
    for pool in view.pools:
        names = {*(member.name for member in pool.status.members), *(pod.name for pod in view.of("bookie", pool.name))}
        found += [_bookie_row(view, pool.name, name, answers.get(name)) for name in sorted(names, key=ordinal)]
    return found


def _bookie_row(view: ClusterSummary, pool: str, name: str, state: bookie_pb2.StorageState | None) -> BookieUsageRow:
    member = next((found for one in view.pools if one.name == pool if (found := one.member(name))), None)
    words = member.state if member is not None else ""
    message = member.message if member is not None else ""
    if state is None:
        disk = member.disk_usage_percent if member is not None else None
        return BookieUsageRow(pod=name, pool=pool, state=words, disk_percent=disk, message=message)
    disks = [one for one in state.directories if one.kind == "ledgers" and one.total_bytes]
    cache = state.write_cache_bytes_max
    return BookieUsageRow(
        pod=name,
        pool=pool,
        state=words or ("ReadOnly" if state.read_only else "Writable"),
        disk_percent=max((100 * (1 - one.free_bytes / one.total_bytes) for one in disks), default=None),
        used_bytes=sum(one.total_bytes - one.free_bytes for one in disks),
        total_bytes=sum(one.total_bytes for one in disks),
        ledgers=state.ledgers,
        entries=state.entries,
        write_cache_percent=100 * state.write_cache_bytes / cache if cache else None,
        journal_queue_bytes=state.journal_queue_bytes,
        message=message or "; ".join(state.read_only_reasons),
    )
