"""`kubectl pulsar status`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer
from magnetar.operator.plugin.options import ClusterArgument, Output, OutputOption, WatchOption, kubernetes_command
from magnetar.operator.plugin.running import EXIT_FAILED, note, print_json, run
from magnetar.operator.plugin.target import Target

if TYPE_CHECKING:
    from magnetar.operator.plugin.drawing import RemainingTime, Signs
    from magnetar.operator.plugin.kubernetes import Kubernetes
    from magnetar.operator.plugin.status_view import Drawing
    from magnetar.operator.plugin.views import ClusterSummary
    from rich.console import RenderableType


@kubernetes_command
def status(
    where: Target,
    cluster: ClusterArgument = None,
    watch: WatchOption = False,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="A line for each cluster of all namespaces.")
    ] = False,
    events: Annotated[bool, typer.Option("--events/--no-events", help="With what happened lately.")] = True,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a cluster: its parts, what is under way and what it waits for, what is wrong, where clients connect.

    Without a name, and with several clusters, a line for each. Needs no more than to read.
    Exit code: 0 shown, 1 Kubernetes does not answer or does not allow it, 2 wrong options or no such cluster.

    [dim]Examples:[/]
      kubectl pulsar status
      kubectl pulsar status demo -n messaging --watch
      kubectl pulsar status -A -o json
    """
    run(
        where,
        lambda kubernetes: _Status(kubernetes, cluster, everywhere=all_namespaces, events=events).show(output, watch),
    )


class _Status:
    def __init__(self, kubernetes: Kubernetes, cluster: str | None, *, everywhere: bool, events: bool) -> None:
        from magnetar.operator.plugin.drawing import RemainingTime, signs_for
        from magnetar.operator.plugin.running import console

        self._kubernetes = kubernetes
        self._cluster = cluster
        self._everywhere = everywhere
        self._events = events
        self._pace: RemainingTime = RemainingTime()
        self._signs: Signs = signs_for(console().encoding)

    async def show(self, output: Output, watch: bool) -> None:
        """Once, or again and again."""
        from magnetar.operator.plugin.running import console
        from magnetar.operator.plugin.watching import watch as watching

        if output is Output.JSON:
            found = await self._see()
            print_json(found[0] if self._is_one(found) else found)
        elif watch:
            await watching(self._draw)
        else:
            console().print(await self._draw())

    async def _see(self) -> list[ClusterSummary]:
        from magnetar.operator.plugin.collect import see_cluster, see_clusters

        if self._cluster is None:
            found = await see_clusters(self._kubernetes, everywhere=self._everywhere)
            if len(found) != 1 or self._everywhere:
                if not found:
                    await self._nothing()
                return found
        return [await see_cluster(self._kubernetes, self._cluster)]

    async def _nothing(self) -> None:
        from magnetar.operator.plugin.collect import find_cluster

        if not self._everywhere:
            await find_cluster(self._kubernetes, None)
        note("there is no cluster in any namespace")
        raise typer.Exit(EXIT_FAILED)

    def _is_one(self, found: list[ClusterSummary]) -> bool:
        return len(found) == 1 and not self._everywhere

    async def _draw(self) -> RenderableType:
        from magnetar.operator.plugin.status_view import draw_overview, draw_status

        found = await self._see()
        if self._is_one(found):
            return draw_status(found[0], self._drawing(found[0]))
        return draw_overview(found, self._drawing(None), namespaces=self._everywhere)

    def _drawing(self, view: ClusterSummary | None) -> Drawing:
        from magnetar.operator.plugin.status_view import Drawing

        now = time.time()
        remaining: dict[str, float] = {}
        for pool in view.pools if view is not None else ():
            for member in pool.status.members:
                if member.drain is not None:
                    seconds = self._pace.remaining_seconds(member.name, member.drain.ledgers_left, now)
                    if seconds is not None:
                        remaining[member.name] = seconds
        return Drawing(now_seconds=now, signs=self._signs, remaining_seconds=remaining, events=self._events)
