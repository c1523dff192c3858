"""`status`: a cluster as a tree. Pure: views in, what rich draws out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from magnetar.core.text import human_bytes
from magnetar.operator.children.naming import READ_ONLY_BROKER
from magnetar.operator.plugin.drawing import BAD, BUSY, GOOD, QUIET, UNICODE, Signs, age, bar, sign
from magnetar.operator.plugin.parse import seconds
from magnetar.operator.plugin.views import ClusterSummary, PodView, PoolSummary
from magnetar.operator.resources.bookie import BookieMember, DrainProgress
from magnetar.operator.resources.cluster import BrokerMember
from magnetar.operator.resources.common import ComponentStatus, Condition
from magnetar.operator.resources.read_only import ReadOnlyBrokerMember, ReadOnlyBrokersStatus
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

UNSEEN_SECONDS: Final = 30.0
"""After that long a change should have been seen by the operator."""
FRESH_SECONDS: Final = 600.0
"""A restart that long ago is still worth a word."""

_ABNORMAL: Final = frozenset({"Reconciling", "Stalled", "Paused", "Hibernated"})
"""Conditions that are true when something is not as usual (the first two: kstatus)."""
_MILD: Final = frozenset({"Reconciling", "Paused", "Hibernated"})
_MESSAGE_LENGTH_MAX: Final = 100
"""In the line of a cluster among several."""
_STATES: Final[Mapping[str, str]] = {
    "Writable": GOOD,
    "Ready": GOOD,
    "Draining": BUSY,
    "Stopping": BUSY,
    "Drained": BUSY,
    "Starting": BUSY,
    "ReadOnly": BUSY,
    "Down": BAD,
    "DeadDisk": BAD,
    "WrongVolume": BAD,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """What drawing goes by beside the view."""

    now_seconds: float
    signs: Signs = UNICODE
    remaining_seconds: Mapping[str, float] = field(default_factory=dict)
    """How long drains will take, by pod, where it is known."""
    events: bool = True


def draw_status(view: ClusterSummary, drawing: Drawing) -> RenderableType:
    """Everything of one cluster."""
    tree = Tree(_title(view, drawing), guide_style=QUIET)
    if view.spec.metadata.url is None:
        _draw_plain(tree, "ZooKeeper", view.status.zookeeper, view.of("zookeeper"), drawing)
    else:
        tree.add(Text.assemble(sign(drawing.signs, ""), " metadata  ", (view.spec.metadata.url, QUIET)))
    if (attach := view.spec.attach) is not None:
        words = f"{attach.cluster_name or view.name}, which others run"
        tree.add(Text.assemble(sign(drawing.signs, ""), " attached to  ", (words, QUIET)))
    else:
        _draw_bookies(tree, view, drawing)
        _draw_brokers(tree, view, drawing)
        if view.spec.proxy.replicas or view.of("proxy"):
            _draw_plain(tree, "proxies", view.status.proxies, view.of("proxy"), drawing)
    if view.status.read_only_brokers is not None or view.of(READ_ONLY_BROKER):
        _draw_read_only(tree, view, drawing)
    _draw_jobs(tree, view, drawing)
    parts: list[RenderableType] = [tree]
    if matters := [*_unseen(view, drawing), *_conditions(view)]:
        parts += ["", _section(drawing, "Conditions", matters)]
    if drawing.events and (events := _events(view, drawing)):
        parts += ["", events]
    return Group(*parts)


def _title(view: ClusterSummary, drawing: Drawing) -> Text:
    status = view.status
    words = [status.phase or ("Deleting" if view.deleting else "not looked at yet"), f"namespace {view.namespace}"]
    words += [f"version {status.version}"] if status.version else []
    words += [age(drawing.now_seconds - view.created_seconds)] if view.created_seconds else []
    title = Text.assemble(sign(drawing.signs, colour_of(view)), " ", (view.name, "bold"), "  ", " · ".join(words))
    for flag, name, undo in (
        (view.spec.paused, "paused", "resume"),
        (view.spec.hibernated, "hibernated", "wake"),
    ):
        if flag:
            title.append(f" · {name} (`kubectl pulsar {undo} {view.name}` ends that)", style=BUSY)
    endpoints = [("clients", status.service_url), ("admin", status.web_service_url)]
    for what, url in endpoints:
        if url:
            title.append(f"\n  {what:8}", style=QUIET).append(url)
    if view.addresses:
        title.append(f"\n  {'outside':8}", style=QUIET).append(", ".join(view.addresses))
    return title


def colour_of(view: ClusterSummary) -> str:
    """How the cluster is in a word: what Ready and Stalled say."""
    ready, stalled = view.condition("Ready"), view.condition("Stalled")
    if stalled is not None and stalled.status == "True":
        return BAD
    if ready is None or view.deleting:
        return BUSY
    reconciling = view.condition("Reconciling")
    if ready.status == "True":
        return BUSY if reconciling is not None and reconciling.status == "True" else GOOD
    return BUSY if reconciling is not None and reconciling.status == "True" else BAD


def _head(name: str, ready: int, desired: int, message: str, drawing: Drawing, more: str = "") -> Text:
    colour = "" if not desired and not ready else GOOD if ready >= desired else BUSY if ready else BAD
    text = Text.assemble(sign(drawing.signs, colour), " ", (name, "bold"), f"  {ready}/{desired} ready{more}")
    return text.append(f"  {message}", style=BUSY) if message else text


def _draw_plain(tree: Tree, name: str, status: ComponentStatus, pods: Sequence[PodView], drawing: Drawing) -> None:
    branch = tree.add(_head(name, status.ready_replicas, status.desired_replicas, _rollout(status), drawing))
    width = max((len(pod.name) for pod in pods), default=0)
    told = {status.message: ""}
    for pod in pods:
        line = Text.assemble(sign(drawing.signs, pod_colour(pod)), " ", pod.name.ljust(width), "  ", pod_state(pod))
        branch.add(_with_trouble(line, pod, _untold(pod, told), drawing))


def _rollout(status: ComponentStatus) -> str:
    behind = status.replicas - status.updated_replicas
    words = [f"{behind} not up to date yet"] if behind > 0 and status.updated_replicas < status.desired_replicas else []
    return "; ".join([*words, *([status.message] if status.message else [])])


def _untold(pod: PodView, told: dict[str, str]) -> str:
    """What is to be said of a pod that is not ready, where others have said something already."""
    if pod.ready or not pod.message:
        return ""
    before = next((name for message, name in told.items() if pod.message in message), None)
    if before is None:
        told[pod.message] = pod.name
        return pod.message
    return f"as {before}" if before else ""


def pod_colour(pod: PodView) -> str:
    """How a pod is."""
    if pod.ready and not pod.deleting:
        return GOOD
    return BAD if pod.reason and not pod.deleting else BUSY


def pod_state(pod: PodView) -> str:
    """The state of a pod in a word."""
    if pod.deleting:
        return "Terminating"
    if pod.reason:
        return pod.reason
    if pod.phase == "Running":
        return "Ready" if pod.ready else "Starting"
    return pod.phase


def _with_trouble(line: Text, pod: PodView | None, message: str, drawing: Drawing) -> Text:
    """The line, and what is the matter."""
    if pod is not None and pod.restarts and pod.restarted_seconds is not None:
        ago = drawing.now_seconds - pod.restarted_seconds
        if ago < FRESH_SECONDS or not pod.ready:
            times = "once" if pod.restarts == 1 else f"{pod.restarts} times"
            line.append(f"  restarted {times}, {age(ago)} ago", style=BUSY)
    return line.append(f"\n  {message}", style=BUSY) if message else line


def _draw_bookies(tree: Tree, view: ClusterSummary, drawing: Drawing) -> None:
    status = view.status.bookies
    more = f", {sum(pool.status.writable_replicas for pool in view.pools)} writable"
    branch = tree.add(
        _head(
            "bookies",
            status.ready_replicas,
            status.desired_replicas,
            _rollout(status),
            drawing,
            more,
        )
    )
    only = len(view.pools) == 1 and view.pools[0].name == view.name
    for pool in view.pools:
        _draw_pool(branch if only else branch.add(_pool_title(pool, drawing)), view, pool, drawing)


def _pool_title(pool: PoolSummary, drawing: Drawing) -> Text:
    status = pool.status
    more = f", {status.writable_replicas} writable" + (f"  {status.phase}" if status.phase else "")
    title = _head(f"pool {pool.name}", status.ready_replicas, pool.spec.replicas, "", drawing, more)
    return title.append("  being deleted", style=BUSY) if pool.deleting else title


def _draw_pool(branch: Tree, view: ClusterSummary, pool: PoolSummary, drawing: Drawing) -> None:
    pods = {pod.name: pod for pod in view.of("bookie", pool.name)}
    names = [*(member.name for member in pool.status.members), *pods]
    ordered = sorted(dict.fromkeys(names), key=lambda name: PodView(name=name).ordinal)
    width = max(map(len, ordered), default=0)
    for name in ordered:
        pod = pods.get(name)
        member = pool.member(name) or BookieMember(name=name, state=pod_state(pod) if pod is not None else "Down")
        colour = _STATES.get(member.state, pod_colour(pod) if pod is not None else BUSY)
        if view.spec.hibernated and member.state == "Down":
            colour = ""
        branch.add(_bookie_line(member, pod, _LineStyle(colour, width), drawing))


class _LineStyle(NamedTuple):
    colour: str
    width: int
    """The width of the names."""


def _bookie_line(member: BookieMember, pod: PodView | None, look: _LineStyle, drawing: Drawing) -> Text:
    mark = sign(drawing.signs, look.colour)
    line = Text.assemble(mark, " ", member.name.ljust(look.width), "  ", member.state.ljust(11))
    if member.disk_usage_percent is not None:
        line.append("  disk ", style=QUIET).append_text(bar(drawing.signs, member.disk_usage_percent))
        line.append(f" {member.disk_usage_percent:3d} %")
    if pod is not None and pod.reason not in ("", member.state) and not pod.ready:
        line.append(f"  {pod.reason}", style=BAD)
    if member.drain is not None and member.drain.step != "None":
        line.append("\n  ").append_text(drain_line(member.drain, drawing, drawing.remaining_seconds.get(member.name)))
        return _with_trouble(line, pod, member.drain.message or member.message, drawing)
    return _with_trouble(line, pod, member.message or (_untold(pod, {}) if pod is not None else ""), drawing)


def drain_line(drain: DrainProgress, drawing: Drawing, remaining_seconds: float | None) -> Text:
    """How far a drain is: the bar, what is left, how fast, how long."""
    done = drain.ledgers_total - drain.ledgers_left
    percent = 100.0 if drain.step == "Done" else 100 * done / drain.ledgers_total if drain.ledgers_total else 0.0
    line = Text.assemble("drain ", bar(drawing.signs, percent, 20, "cyan"), f" {percent:3.0f} %  {drain.step}")
    if drain.ledgers_total and drain.step != "Done":
        line.append(f"  {drain.ledgers_left} of {drain.ledgers_total} ledgers left")
    if drain.bytes_per_second:
        line.append(f"  {human_bytes(drain.bytes_per_second)}/s")
    if remaining_seconds is not None:
        line.append(f"  about {age(remaining_seconds)} more")
    return line


def _draw_brokers(tree: Tree, view: ClusterSummary, drawing: Drawing) -> None:
    status = view.status.brokers
    branch = tree.add(_head("brokers", status.ready_replicas, status.desired_replicas, _rollout(status), drawing))
    pods = {pod.name: pod for pod in view.of("broker")}
    names = sorted({*pods, *(member.name for member in view.status.broker_members)})
    width = max(map(len, names), default=0)
    for name in names:
        pod = pods.get(name)
        member = view.broker(name) or BrokerMember(name=name, state=pod_state(pod) if pod is not None else "Down")
        state = "Terminating" if pod is not None and pod.deleting else member.state
        colour = BUSY if state == "Terminating" else _STATES.get(state, BAD if pod is None else pod_colour(pod))
        line = Text.assemble(sign(drawing.signs, colour), " ", name.ljust(width), "  ", state.ljust(11))
        if member.load_percent is not None:
            line.append("  load ", style=QUIET).append_text(bar(drawing.signs, member.load_percent))
            line.append(f" {member.load_percent:3d} %")
        line.append(f"  {member.bundles} bundle{'' if member.bundles == 1 else 's'}")
        branch.add(_with_trouble(line, pod, member.message or (_untold(pod, {}) if pod is not None else ""), drawing))


def _draw_read_only(tree: Tree, view: ClusterSummary, drawing: Drawing) -> None:
    status = view.status.read_only_brokers or ReadOnlyBrokersStatus()
    head = _head("read-only brokers", status.ready_replicas, status.desired_replicas, _rollout(status), drawing)
    if status.service_url and view.spec.attach is None:
        head.append(f"  {status.service_url}", style=QUIET)
    branch = tree.add(head)
    if (last := status.last_scale) is not None:
        ago = age(drawing.now_seconds - seconds(last.time))
        branch.add(Text(f"{last.before} to {last.after}, {ago} ago: {last.reason}", style=QUIET))
    pods = {pod.name: pod for pod in view.of(READ_ONLY_BROKER)}
    names = sorted({*pods, *(member.name for member in status.members)})
    width = max(map(len, names), default=0)
    for name in names:
        pod = pods.get(name)
        state = pod_state(pod) if pod is not None else "Down"
        member = view.read_only_broker(name) or ReadOnlyBrokerMember(name=name, state=state)
        state = "Terminating" if pod is not None and pod.deleting else member.state
        colour = BUSY if state == "Terminating" else _STATES.get(state, BAD if pod is None else pod_colour(pod))
        line = Text.assemble(sign(drawing.signs, colour), " ", name.ljust(width), "  ", state.ljust(11))
        if member.connections is not None:
            line.append(f"  {member.connections} connection{'' if member.connections == 1 else 's'}")
        if member.lag_seconds is not None:
            line.append(f"  {member.lag_seconds} s behind")
        branch.add(_with_trouble(line, pod, member.message or (_untold(pod, {}) if pod is not None else ""), drawing))


def _draw_jobs(tree: Tree, view: ClusterSummary, drawing: Drawing) -> None:
    """The metadata Job's pod is of interest until it is done."""
    for pod in view.of("init"):
        if pod.phase != "Succeeded":
            line = Text.assemble(sign(drawing.signs, pod_colour(pod)), f" {pod.name}  {pod_state(pod)}")
            tree.add(_with_trouble(line, pod, _untold(pod, {}), drawing))


def _unseen(view: ClusterSummary, drawing: Drawing) -> list[tuple[str, str, str]]:
    status = view.status
    if status.observed_generation >= view.generation and view.generation:
        return []
    if not view.generation or (not status.observed_generation and _young(view, drawing)):
        return []
    what = "no operator has looked at it" if not status.observed_generation else "the latest change is not seen yet"
    return [(BUSY, "Operator", f"{what}: does the operator run, and does it watch namespace {view.namespace}?")]


def _young(view: ClusterSummary, drawing: Drawing) -> bool:
    return drawing.now_seconds - view.created_seconds < UNSEEN_SECONDS


def _conditions(view: ClusterSummary) -> list[tuple[str, str, str]]:
    """(colour, what, message) of conditions that say that something is not as usual; none that says what another one,
    or the tree, has said."""
    parts = [view.status.zookeeper, *_parts(view), view.status.read_only_brokers or ComponentStatus()]
    told = [part.message for part in parts if part.message]
    found: list[tuple[str, str, str]] = []
    sources: list[tuple[str, Sequence[Condition]]] = [("", view.status.conditions)]
    sources += [(f"pool {pool.name}: ", pool.status.conditions) for pool in view.pools]
    for prefix, conditions in sources:
        for condition in filter(matters, conditions):
            if condition.message and any(condition.message in words or words in condition.message for words in told):
                continue
            mild = condition.type in _MILD or condition.status == "Unknown" or view.spec.hibernated
            mild = mild or (condition.type == "Ready" and _reconciling(conditions))
            name = condition.type if condition.status == "True" else f"not {condition.type}"
            found.append((BUSY if mild else BAD, f"{prefix}{name} ({condition.reason})", condition.message))
            told += [condition.message] if condition.message else []
    return found


def matters(condition: Condition) -> bool:
    """Whether it says that something is not as it should be."""
    return condition.status == "True" if condition.type in _ABNORMAL else condition.status != "True"


def _reconciling(conditions: Iterable[Condition]) -> bool:
    return any(found.type == "Reconciling" and found.status == "True" for found in conditions)


def _section(drawing: Drawing, title: str, rows: Iterable[tuple[str, str, str]]) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    for _ in range(3):
        table.add_column(overflow="fold")
    for colour, what, message in rows:
        table.add_row(sign(drawing.signs, colour), Text(what, style="bold"), Text(message))
    return Group(Text(title, style=QUIET), table)


def _events(view: ClusterSummary, drawing: Drawing) -> RenderableType | None:
    if not view.events:
        return None
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style=QUIET)
    table.add_column()
    table.add_column(overflow="fold")
    for event in view.events:
        reason = Text(event.reason, style=BAD if event.type != "Normal" else "")
        times = f" ({event.count} times)" if event.count > 1 else ""
        about = "" if event.about == f"PulsarCluster/{view.name}" else f"{event.about.partition('/')[2]}: "
        table.add_row(age(drawing.now_seconds - event.seconds), reason, Text(f"{about}{event.message}{times}"))
    return Group(Text("Events", style=QUIET), table)


def draw_overview(views: Sequence[ClusterSummary], drawing: Drawing, *, namespaces: bool) -> RenderableType:
    """A line for each cluster."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=QUIET)
    read_only = any(view.status.read_only_brokers is not None for view in views)
    titles = ["", *(["namespace"] if namespaces else []), "cluster", "phase", "bookies", "brokers", "proxies"]
    for title in [*titles, *(["read-only"] if read_only else []), "version", "age", "message"]:
        table.add_column(title, overflow="fold")
    for view in views:
        status = view.status
        ready = view.condition("Ready")
        parts = [*_parts(view), *([status.read_only_brokers or ComponentStatus()] if read_only else [])]
        counts = [f"{part.ready_replicas}/{part.desired_replicas}" for part in parts]
        message = ready.message if ready is not None and ready.status != "True" else ""
        row = [*([view.namespace] if namespaces else []), view.name, status.phase or "not looked at yet", *counts]
        message = message if len(message) <= _MESSAGE_LENGTH_MAX else f"{message[: _MESSAGE_LENGTH_MAX - 1]}…"
        row += [status.version, age(drawing.now_seconds - view.created_seconds), message]
        table.add_row(sign(drawing.signs, colour_of(view)), *(Text(cell) for cell in row))
    return table


def _parts(view: ClusterSummary) -> tuple[ComponentStatus, ...]:
    return view.status.bookies, view.status.brokers, view.status.proxies
