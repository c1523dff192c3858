"""`kubectl pulsar logs`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from magnetar.operator.plugin.options import ClusterArgument, ComponentName, Output, OutputOption, kubernetes_command
from magnetar.operator.plugin.running import note, run, warn
from magnetar.operator.plugin.target import Target

if TYPE_CHECKING:
    from magnetar.operator.plugin.kubernetes import Kubernetes
    from magnetar.operator.plugin.logs.merge import Line, LogSource
    from magnetar.operator.plugin.logs.view import LineDrawing
    from magnetar.operator.plugin.views import ClusterSummary, PodView
    from rich.console import Console

LOOK_SECONDS = 3.0
"""Between two looks for pods that have come, while logs are followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRequest:
    """Whose lines, and which."""

    component: str | None
    pods: Sequence[str]
    everything: bool
    previous: bool
    follow: bool
    tail: int
    since_seconds: int | None
    output: Output
    times: bool


@kubernetes_command
def logs(
    where: Target,
    cluster: ClusterArgument = None,
    component: Annotated[
        ComponentName | None, typer.Option("--component", "-c", help="All pods of it.", show_default=False)
    ] = None,
    pod: Annotated[
        list[str] | None, typer.Option("--pod", metavar="POD", help="This one. May be repeated.", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="All pods of the cluster.")] = False,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Of the containers before their last restart.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Stay, with pods that come later too; Ctrl-C ends it.")
    ] = False,
    tail: Annotated[int, typer.Option("--tail", min=-1, help="Lines of each pod to begin with; -1: all.")] = 100,
    since: Annotated[
        str | None, typer.Option("--since", metavar="SPAN", help="Such as 30s, 10m, 2h.", show_default=False)
    ] = None,
    times: Annotated[bool, typer.Option("--timestamps", "-t", help="With the time of each line.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show the logs of what hurts, merged by time: pods that are not ready, were restarted, or are named by conditions.

    What was chosen and why is said on standard error. With -o json there is an object for each line.

    [dim]Examples:[/]
      kubectl pulsar logs
      kubectl pulsar logs demo --component broker -f
      kubectl pulsar logs --pod demo-bookie-1 --previous
    """
    from magnetar.operator.plugin.running import guarded

    with guarded():
        wish = LogRequest(
            component=component.value if component is not None else None,
            pods=pod or (),
            everything=everything,
            previous=previous,
            follow=follow,
            tail=tail,
            since_seconds=_seconds(since),
            output=output,
            times=times,
        )
    run(where, lambda kubernetes: _logs(kubernetes, cluster, wish))


def _seconds(span: str | None) -> int | None:
    from magnetar.core.errors import SettingError

    if span is None:
        return None
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    if not (span[:-1].isascii() and span[:-1].isdigit()) or span[-1] not in units or not int(span[:-1]):
        raise SettingError(f"--since {span}: it must be a number and s, m, h or d, such as 10m")
    return int(span[:-1]) * units[span[-1]]


async def _logs(kubernetes: Kubernetes, cluster: str | None, wish: LogRequest) -> None:
    from magnetar.operator.plugin.collect import see_cluster
    from magnetar.operator.plugin.logs.view import LineDrawing
    from magnetar.operator.plugin.running import console

    view = await see_cluster(kubernetes, cluster)
    chosen = _chosen(view, wish, quiet=False)
    if not chosen and not (wish.follow and wish.component):
        return
    printer = _Printer(console(), LineDrawing(times=wish.times), wish.output)
    if wish.follow:
        await _follow(kubernetes, view, wish, printer, [pod.name for pod in chosen])
    else:
        await _once(kubernetes, wish, printer, _sources(view, wish, chosen))


def _chosen(view: ClusterSummary, wish: LogRequest, *, quiet: bool) -> list[PodView]:
    from magnetar.core.errors import SettingError
    from magnetar.operator.plugin.logs.choice import hurting

    if wish.pods:
        missing = set(wish.pods) - {pod.name for pod in view.pods}
        if missing and not quiet:
            names = ", ".join(pod.name for pod in view.pods)
            raise SettingError(
                f"no pod {', '.join(sorted(missing))} of cluster {view.name}; there are: {names or 'none'}"
            )
        return [pod for pod in view.pods if pod.name in wish.pods]
    if wish.component is not None or wish.everything:
        found = [pod for pod in view.pods if wish.component in (None, pod.component)]
        if not found and not quiet:
            note(f"{view.name} has no pod of that kind")
        return found
    hurt = hurting(view, time.time())
    if not quiet:
        for pod, why in hurt:
            note(f"{pod.name}: {why}")
        if not hurt:
            note(f"Nothing hurts in {view.name}: all pods are ready. --component or --all shows their logs.")
    return [pod for pod, _ in hurt]


def _sources(view: ClusterSummary, wish: LogRequest, pods: Iterable[PodView]) -> list[LogSource]:
    """The component's own container of each."""
    from magnetar.operator.kubernetes.pods import LogOptions
    from magnetar.operator.plugin.logs.merge import LogSource

    return [
        LogSource(
            name=pod.name,
            options=LogOptions(
                namespace=view.namespace,
                pod=pod.name,
                container=pod.containers[0],
                follow=wish.follow,
                previous=wish.previous,
                tail_lines=wish.tail if wish.tail >= 0 else None,
                since_seconds=wish.since_seconds,
            ),
        )
        for pod in pods
        if pod.containers
    ]


class _Printer:
    def __init__(self, out: Console, drawing: LineDrawing, output: Output) -> None:
        self._out = out
        self._drawing = drawing
        self._json = output is Output.JSON

    def sources(self, sources: Iterable[LogSource]) -> None:
        self._drawing.sources(source.name for source in sources)

    def print(self, lines: Iterable[Line]) -> None:
        for line in lines:
            if self._json:
                self._out.file.write(json.dumps(line._asdict(), ensure_ascii=False) + "\n")
            else:
                self._out.print(self._drawing.draw(line), soft_wrap=True)
        self._out.file.flush()


async def _once(kubernetes: Kubernetes, wish: LogRequest, printer: _Printer, sources: Sequence[LogSource]) -> None:
    from magnetar.core.errors import MagnetarError
    from magnetar.operator.plugin.logs.merge import merged, read_log

    printer.sources(sources)
    results = await asyncio.gather(
        *(read_log(kubernetes, source.options, source.name) for source in sources), return_exceptions=True
    )
    found = []
    for source, result in zip(sources, results, strict=True):
        if isinstance(result, MagnetarError):
            warn(f"{source.name}: {result}")
        elif isinstance(result, BaseException):
            raise result
        else:
            found.append(result)
            if not result and not wish.previous:
                note(f"{source.name} has said nothing")
    printer.print(merged(found))


async def _follow(
    kubernetes: Kubernetes, view: ClusterSummary, wish: LogRequest, printer: _Printer, first: Sequence[str]
) -> None:
    """Those that were chosen, for as long as they are there; with a component or all of it, also those that come."""
    from magnetar.core.errors import Unavailable
    from magnetar.operator.plugin.collect import see_again
    from magnetar.operator.plugin.logs.merge import Follower

    follower = Follower(kubernetes, warn)

    async def look() -> None:
        seen = view
        known = set(first)
        while True:
            hurting_too = not (wish.pods or wish.component or wish.everything)
            chosen = _chosen(seen, wish, quiet=True)
            if hurting_too:
                known |= {pod.name for pod in chosen}
                chosen = [pod for pod in seen.pods if pod.name in known]
            sources = _sources(seen, wish, chosen)
            printer.sources(sources)
            follower.follow(sources)
            await asyncio.sleep(LOOK_SECONDS)
            try:
                seen = await see_again(kubernetes, seen)
            except Unavailable as error:
                warn(f"{error}; trying again")

    async def show() -> None:
        async for lines in follower.lines():
            printer.print(lines)

    tasks = [asyncio.create_task(look()), asyncio.create_task(show())]
    try:
        # Neither ends by itself; a cluster that is gone must not wait for a line that nobody will say.
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await follower.close()
