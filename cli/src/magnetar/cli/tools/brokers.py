"""What those who run brokers ask of them, and what comes back, as our own types."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

from magnetar.admin_client.errors import AdminRefused, AdminUnreachable
from magnetar.cli.tools.admin_api import AdminCaller
from magnetar.core.bundle import BundleName
from magnetar.core.errors import PeerError, SettingError
from magnetar.core.topic_name import InvalidTopicName, TopicName, java_url_encode

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

BROKERS: Final = "/admin/v2/brokers"
NOT_FOUND: Final = 404
_RANGE_BEGIN: Final = "/0x"
POLL_SECONDS: Final = 0.25
"""Between two looks at a drain."""
FOLLOW_SECONDS: Final = 1.0
"""Between two looks at the decisions, which the leader makes once a minute."""
NOT_OURS: Final = "{url} does not say how its brokers are: it is no Magnetar broker, or an older one. Choose another."


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRow:
    """One broker as it reported itself last: usages in percent, rates per second, throughputs in bytes per second."""

    broker: str
    state: str
    """"serving" or "draining"."""
    leader: bool
    magnetar: bool
    version: str
    service_url: str
    web_service_url: str
    cpu: float
    memory: float
    bandwidth_in: float
    bandwidth_out: float
    msg_rate_in: float
    msg_rate_out: float
    msg_throughput_in: float
    msg_throughput_out: float
    topics: int
    producers: int
    consumers: int
    bundles: int
    started_ms: int
    updated_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDrainState:
    """How far a drain is."""

    broker: str
    step: str
    """"none", "running" or "done"."""
    bundles_total: int
    bundles_left: int
    blockers: tuple[tuple[str, str], ...]
    """Bundle and why it stays for now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRow:
    """One decision of load management."""

    decided_ms: int
    kind: str
    """"unload", "split" or "place"."""
    bundle: str
    broker: str | None
    destination: str | None
    outcome: str
    """"running", "done" or "failed"."""
    took_ms: int
    reason: str
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderDecisions:
    """What the leader decided lately, oldest first."""

    leader: str | None
    driver: str
    outlook: tuple[str, ...]
    """What its last round saw, and why it did nothing."""
    decisions: tuple[DecisionRow, ...]


async def list_brokers(api: AdminCaller) -> list[BrokerRow]:
    """All brokers that are alive or drain, by id. `AdminRefused`, `AdminUnreachable`."""
    return [
        _row(BrokerRow, one, service_url=one["serviceUrl"] or "", web_service_url=one["webServiceUrl"] or "")
        for one in await _reports(api)
    ]


async def list_bundles(api: AdminCaller) -> list[str]:
    """The bundles that somebody serves, by name, as the brokers reported them."""
    found = await _reports(api, bundles="true")
    return sorted({name for one in found for name in one.get("bundleNames", ())})


async def _reports(api: AdminCaller, **query: str) -> list[dict[str, Any]]:
    # Apache's brokers take the path's last word for a cluster's name, and answer with the ids of its brokers or refuse.
    try:
        found = await api.call("GET", f"{BROKERS}/load-reports", query)
    except AdminRefused as error:
        if error.status not in (NOT_FOUND, 412):
            raise
        found = None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise AdminRefused(NOT_FOUND, NOT_OURS.format(url=api.url))
    return found


def _row(kind: type[T], document: dict[str, Any], **given: object) -> T:
    """A row: each of its fields is given, or what the admin API calls by its name: `started_ms` is `startedMillis`."""
    for one in fields(kind):
        first, *rest = one.name.removesuffix("_ms").split("_")
        name = first + "".join(map(str.capitalize, rest)) + ("Millis" if one.name.endswith("_ms") else "")
        if one.name not in given:
            given[one.name] = document[name]
    return kind(**given)


# --- drains


async def drain_state(api: AdminCaller, broker: str, method: str = "GET") -> BrokerDrainState:
    """How far a drain is; POST begins it, DELETE cancels it."""
    found = await api.call(method, f"{BROKERS}/{broker}/drain")
    if not isinstance(found, dict):
        raise AdminRefused(NOT_FOUND, NOT_OURS.format(url=api.url))
    blockers = tuple((one["bundle"], one["reason"]) for one in found["blockers"])
    return _row(BrokerDrainState, found, blockers=blockers)


async def follow_drain(api: AdminCaller, broker: str) -> AsyncIterator[BrokerDrainState]:
    """A drain that was just begun, again and again, until it is done or cancelled."""
    while True:
        state = await drain_state(api, broker)
        yield state
        if state.step != "running":
            return
        await asyncio.sleep(POLL_SECONDS)


# --- bundles


def bundle_named(text: str) -> BundleName:
    """The bundle of a name `tenant/namespace/0x…_0x…`. `SettingError`."""
    try:
        return BundleName.parse(text)
    except (InvalidTopicName, ValueError):
        raise SettingError(
            f"{text!r} is no bundle: TENANT/NAMESPACE/RANGE, such as public/default/0x40000000_0x80000000"
        ) from None


def _bundle_path(bundle: BundleName) -> str:
    return f"/admin/v2/namespaces/{bundle.namespace}/{bundle.range}"


async def transfer(api: AdminCaller, bundle: BundleName, broker: str) -> None:
    """Have a bundle's owner hand it to another broker. `AdminRefused`, also when it did not get there."""
    alive = await api.call("GET", BROKERS)
    if broker not in alive:
        raise AdminRefused(NOT_FOUND, f"no broker {broker} takes bundles; there are {', '.join(alive) or 'none'}")
    await api.call("PUT", f"{_bundle_path(bundle)}/unload", {"destinationBroker": broker})
    owned = await api.call("GET", f"{BROKERS}/any/{broker}/ownedNamespaces")
    if str(bundle) not in owned:
        raise AdminRefused(
            409,
            f"{broker} does not have {bundle}: nobody served it, so that it is placed when somebody asks for one of "
            "its topics, or it was moved on meanwhile",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitOptions:
    """How a bundle is to be cut."""

    algorithm: str
    positions: tuple[int, ...] = ()
    unload: bool = False


async def split(api: AdminCaller, bundle: BundleName, wish: SplitOptions) -> list[str]:
    """Cut a bundle; returns its parts, or itself when there was nothing to cut. `AdminRefused` for one that is none."""
    if str(bundle) not in await _cut(api, bundle):
        raise AdminRefused(NOT_FOUND, f"there is no bundle {bundle}: it may have been split")
    query = {"unload": str(wish.unload).lower(), "splitAlgorithmName": wish.algorithm}
    await api.call("PUT", f"{_bundle_path(bundle)}/split", query, list(wish.positions) or None)
    return [name for name in await _cut(api, bundle) if _within(BundleName.parse(name), bundle)]


def _within(part: BundleName, whole: BundleName) -> bool:
    return whole.range.low <= part.range.low and part.range.high <= whole.range.high


async def _cut(api: AdminCaller, bundle: BundleName) -> list[str]:
    found = await api.call("GET", f"/admin/v2/namespaces/{bundle.namespace}/bundles")
    edges: Sequence[str] = found["boundaries"]
    return [f"{bundle.namespace}/{low}_{high}" for low, high in itertools.pairwise(edges)]


async def unload(api: AdminCaller, name: str) -> str:
    """Have a bundle let go of, or a topic closed and loaded again; returns its full name. `SettingError`."""
    if "://" not in name and _RANGE_BEGIN in name:
        bundle = bundle_named(name)
        await api.call("PUT", f"{_bundle_path(bundle)}/unload")
        return str(bundle)
    try:
        topic = TopicName.parse(name)
    except PeerError as error:
        raise SettingError(f"{name!r} is neither a topic nor a bundle: {error}") from None
    path = f"/admin/v2/{topic.domain}/{topic.namespace_name}/{java_url_encode(topic.local_name)}/unload"
    await api.call("PUT", path)
    return str(topic)


# --- decisions


async def decisions(api: AdminCaller, *, placements: bool) -> LeaderDecisions:
    """What the leader decided lately; with `placements` also where it put bundles that nobody owned."""
    try:
        found = await api.call("GET", f"{BROKERS}/load-decisions")
    except AdminRefused as error:
        if error.status not in (NOT_FOUND, 412):
            raise
        found = None
    if not isinstance(found, dict):
        raise AdminRefused(NOT_FOUND, NOT_OURS.format(url=api.url))
    rows = [_row(DecisionRow, one) for one in (*found["decisions"], *(found["placements"] if placements else ()))]
    rows.sort(key=lambda row: row.decided_ms)
    return LeaderDecisions(
        leader=found["leader"], driver=found["driver"], outlook=tuple(found["outlook"]), decisions=tuple(rows)
    )


async def follow_decisions(
    api: AdminCaller, *, latest: int, placements: bool, lost: Callable[[AdminUnreachable], None]
) -> AsyncIterator[DecisionRow]:
    """The latest decisions, then each when it is seen, and again when its outcome is another one. Without end: `lost`
    is told when nobody answers, as brokers may be restarted the while; from the beginning it is an error."""
    told: dict[tuple[int, str, str], str] = {}
    begun = reachable = False
    while True:
        try:
            log = await decisions(api, placements=placements)
        except AdminUnreachable as error:
            if not begun:
                raise
            if reachable:
                lost(error)
            reachable = False
            await asyncio.sleep(FOLLOW_SECONDS)
            continue
        now = {(row.decided_ms, row.kind, row.bundle): row for row in log.decisions}
        if not begun:
            told = {key: row.outcome for key, row in list(now.items())[: max(0, len(now) - latest)]}
        begun = reachable = True
        for key, row in now.items():
            if told.get(key) != row.outcome:
                yield row
        # Only what the leader still keeps can come again.
        told = {key: row.outcome for key, row in now.items()}
        await asyncio.sleep(FOLLOW_SECONDS)
