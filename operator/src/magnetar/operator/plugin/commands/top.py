"""`kubectl pulsar top brokers|bundles|bookies`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from magnetar.operator.plugin.options import (
    ClusterArgument,
    Output,
    OutputOption,
    WatchOption,
    command_group,
    kubernetes_command,
)
from magnetar.operator.plugin.running import note, print_json, run, warn
from magnetar.operator.plugin.table_view import TableColumn, draw_table, number, percent, rate, size, sorted_rows, words
from magnetar.operator.plugin.target import Target

if TYPE_CHECKING:
    from magnetar.operator.plugin.control_ports import ControlPorts
    from magnetar.operator.plugin.kubernetes import Kubernetes
    from magnetar.operator.plugin.views import ClusterSummary
    from rich.console import RenderableType

WIDE_COLUMNS_MIN: Final = 130
"""A terminal with fewer gets fewer columns."""

BROKERS: Final = (
    words("broker", lambda row: row.pod),
    words("state", lambda row: f"{row.state}, leader" if row.leading else row.state),
    TableColumn("load", lambda row: row.load_percent, lambda share: f"{share:.0f}", bar=True),
    number("bundles", lambda row: row.bundles),
    number("topics", lambda row: row.topics),
    number("producers", lambda row: row.producers, wide=True),
    number("consumers", lambda row: row.consumers, wide=True),
    rate("msg/s in", lambda row: row.msg_rate_in),
    rate("msg/s out", lambda row: row.msg_rate_out),
    size("B/s in", lambda row: row.bytes_in, wide=True),
    size("B/s out", lambda row: row.bytes_out, wide=True),
    percent("cpu %", lambda row: row.cpu_percent, wide=True),
    percent("memory %", lambda row: row.memory_percent, wide=True),
    percent("network %", lambda row: row.network_percent, wide=True),
)
BUNDLES: Final = (
    words("bundle", lambda row: row.bundle),
    words("broker", lambda row: row.pod),
    words("state", lambda row: row.state, wide=True),
    number("topics", lambda row: row.topics),
    number("producers", lambda row: row.producers, wide=True),
    number("consumers", lambda row: row.consumers, wide=True),
    rate("msg/s in", lambda row: row.msg_rate_in),
    rate("msg/s out", lambda row: row.msg_rate_out),
    size("B/s in", lambda row: row.bytes_in),
    size("B/s out", lambda row: row.bytes_out),
)
BOOKIES: Final = (
    words("bookie", lambda row: row.pod),
    words("pool", lambda row: row.pool, wide=True),
    words("state", lambda row: row.state),
    TableColumn("disk", lambda row: row.disk_percent, lambda share: f"{share:.0f}", bar=True),
    size("used", lambda row: row.used_bytes),
    size("size", lambda row: row.total_bytes),
    number("ledgers", lambda row: row.ledgers),
    number("entries", lambda row: row.entries, wide=True),
    percent("write cache %", lambda row: row.write_cache_percent, wide=True),
    size("journal queue", lambda row: row.journal_queue_bytes, wide=True),
    words("message", lambda row: row.message, wide=True),
)

application = command_group("top", "Who has how much to do: brokers, bundles, bookies.")

SortOption = Annotated[
    str | None, typer.Option("--sort", metavar="COLUMN", help="By its title; numbers largest first.")
]
CountOption = Annotated[int | None, typer.Option("--count", "-c", min=1, help="Only so many rows.")]

Rows = Callable[["ClusterSummary", "ControlQueries"], Awaitable[Sequence[Any]]]


class ControlQueries:
    """Asks pods by their control ports, if the user may; says once why some do not answer."""

    def __init__(self, kubernetes: Kubernetes, view: ClusterSummary) -> None:
        self._kubernetes = kubernetes
        self._view = view
        self._ports: ControlPorts | None = None
        self._said: set[str] = set()

    async def each(self, component: str, ask: Callable[[Any], Awaitable[Any]]) -> dict[str, Any]:
        """What running pods of brokers or bookies answer on their control ports, by name."""
        from magnetar.core.errors import MagnetarError
        from magnetar.operator.plugin.control_ports import ControlPorts, ask_all

        try:
            if self._ports is None:
                self._ports = await ControlPorts.of(self._kubernetes, self._view.namespace, self._view.name)
        except MagnetarError as error:
            self._say(f"no live numbers: {error}")
            return {}
        ports = self._ports
        pods = [pod.name for pod in self._view.of(component) if pod.phase == "Running" and not pod.deleting]

        async def one(pod: str) -> Any:
            async with ports.broker(pod) if component == "broker" else ports.bookie(pod) as control:
                return await ask(control)

        answers, failures = await ask_all(pods, one)
        for pod, text in sorted(failures.items()):
            self._say(f"no live numbers: {text if text.startswith(pod) else f'{pod}: {text}'}")
        return answers

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            warn(text)

    def see(self, view: ClusterSummary) -> None:
        """From now on, pods as they are here."""
        self._view = view


async def _broker_rows(view: ClusterSummary, asked: ControlQueries) -> Sequence[Any]:
    from magnetar.operator.plugin.top_rows import broker_rows

    return broker_rows(view, await asked.each("broker", lambda control: control.load_report()))


async def _bundle_rows(_: ClusterSummary, asked: ControlQueries) -> Sequence[Any]:
    from magnetar.operator.plugin.top_rows import bundle_rows

    return bundle_rows(await asked.each("broker", lambda control: control.bundles()))


async def _bookie_rows(view: ClusterSummary, asked: ControlQueries) -> Sequence[Any]:
    from magnetar.operator.plugin.top_rows import bookie_rows

    return bookie_rows(view, await asked.each("bookie", lambda control: control.storage_state()))


class _Top:
    """One table."""

    def __init__(self, rows: Rows, columns: Sequence[TableColumn], sort: str, count: int | None) -> None:
        self._rows = rows
        self._columns = columns
        self._sort = sort
        self._count = count

    def show(self, wanted: Target, cluster: str | None, output: Output, watch: bool) -> None:
        """Once, or again and again."""
        run(wanted, lambda kubernetes: self._show(kubernetes, cluster, output, watch))

    async def _show(self, kubernetes: Kubernetes, cluster: str | None, output: Output, watch: bool) -> None:
        from magnetar.operator.plugin.collect import see_again, see_cluster
        from magnetar.operator.plugin.drawing import signs_for
        from magnetar.operator.plugin.running import console
        from magnetar.operator.plugin.watching import watch as watching

        sorted_rows([], self._columns, self._sort)
        view = await see_cluster(kubernetes, cluster)
        asked = ControlQueries(kubernetes, view)

        async def look() -> list[Any]:
            seen = await see_again(kubernetes, view) if watch else view
            asked.see(seen)
            return sorted_rows(await self._rows(seen, asked), self._columns, self._sort)[: self._count]

        async def draw() -> RenderableType:
            out = console()
            return draw_table(await look(), self._columns, signs_for(out.encoding), wide=out.width >= WIDE_COLUMNS_MIN)

        if output is Output.JSON:
            print_json(await look())
        elif watch:
            await watching(draw)
        else:
            rows = await look()
            out = console()
            if rows:
                wide = out.width >= WIDE_COLUMNS_MIN
                out.print(draw_table(rows, self._columns, signs_for(out.encoding), wide=wide))
            else:
                note("there are none")


@application.command()
@kubernetes_command
def brokers(
    where: Target,
    cluster: ClusterArgument = None,
    sort: SortOption = None,
    count: CountOption = None,
    watch: WatchOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Brokers by load: the fullest of their resources, bundles, topics, rates.

    Who may not read the cluster's control token sees what the operator saw last.

    [dim]Examples:[/]
      kubectl pulsar top brokers
      kubectl pulsar top brokers demo --sort bundles --watch
    """
    _Top(_broker_rows, BROKERS, sort or "load", count).show(where, cluster, output, watch)


@application.command()
@kubernetes_command
def bundles(
    where: Target,
    cluster: ClusterArgument = None,
    sort: SortOption = None,
    count: CountOption = 30,
    watch: WatchOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Bundles by incoming bytes: who serves them, how many topics, at which rates.

    [dim]Examples:[/]
      kubectl pulsar top bundles
      kubectl pulsar top bundles demo --sort topics -c 100 -o json
    """
    _Top(_bundle_rows, BUNDLES, sort or "B/s in", count).show(where, cluster, output, watch)


@application.command()
@kubernetes_command
def bookies(
    where: Target,
    cluster: ClusterArgument = None,
    sort: SortOption = None,
    count: CountOption = None,
    watch: WatchOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Bookies by disk use: how full, how many ledgers, whether they take writes and why not.

    Who may not read the cluster's control token sees what the operator saw last.

    [dim]Examples:[/]
      kubectl pulsar top bookies
      kubectl pulsar top bookies demo --sort ledgers -o json
    """
    _Top(_bookie_rows, BOOKIES, sort or "disk", count).show(where, cluster, output, watch)
