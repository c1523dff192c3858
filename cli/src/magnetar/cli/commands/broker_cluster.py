"""`magnetar broker list|drain|decisions`."""

from __future__ import annotations

import shutil
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from magnetar.cli.commands.admin_options import (
    AdminUrlOption,
    AuthParamsOption,
    AuthPluginOption,
    BrokerArgument,
    ClientConfOption,
    with_brokers,
)
from magnetar.cli.commands.options import JsonOption
from magnetar.cli.commands.output import (
    Column,
    RowPrinter,
    complain,
    human_time,
    note,
    progress,
    show_object,
    show_rows,
    to_json,
    warn,
)
from magnetar.core.exit_codes import EXIT_FAILED
from magnetar.core.text import human_bytes

if TYPE_CHECKING:
    from magnetar.cli.tools.admin_api import AdminCaller
    from magnetar.cli.tools.brokers import BrokerDrainState, BrokerRow, DecisionRow

BLOCKERS_SHOWN_MAX = 20
"""Bundles that are named as keeping a drain from its end; more are only counted."""

WIDE_COLUMNS_MIN = 150
"""A terminal with fewer gets `NARROW` columns."""

NARROW = (
    Column("broker", lambda row: row.broker),
    Column("state", lambda row: "leader" if row.leader else row.state),
    Column("bundles", lambda row: row.bundles, right=True),
    Column("topics", lambda row: row.topics, right=True),
    Column("load %", lambda row: f"{max(_usages(row)):.0f}", right=True),
    Column("msg/s", lambda row: f"{row.msg_rate_in + row.msg_rate_out:.0f}", right=True),
    Column("version", lambda row: row.version if row.magnetar else f"{row.version} (Apache)"),
)
WIDE = (
    Column("broker", lambda row: row.broker),
    Column("state", lambda row: row.state),
    Column("leader", lambda row: "leader" if row.leader else ""),
    Column("bundles", lambda row: row.bundles, right=True),
    Column("topics", lambda row: row.topics, right=True),
    Column("cpu %", lambda row: f"{row.cpu:.0f}", right=True),
    Column("memory %", lambda row: f"{row.memory:.0f}", right=True),
    Column("network %", lambda row: f"{_usages(row)[2]:.0f}", right=True),
    Column("in msg/s", lambda row: f"{row.msg_rate_in:.0f}", right=True),
    Column("out msg/s", lambda row: f"{row.msg_rate_out:.0f}", right=True),
    Column("in B/s", lambda row: human_bytes(row.msg_throughput_in), right=True),
    Column("out B/s", lambda row: human_bytes(row.msg_throughput_out), right=True),
    Column("version", lambda row: row.version if row.magnetar else f"{row.version} (Apache)"),
    Column("since", lambda row: human_time(row.started_ms)),
)


def _usages(row: BrokerRow) -> tuple[float, float, float]:
    return row.cpu, row.memory, max(row.bandwidth_in, row.bandwidth_out)


def _columns() -> tuple[Column, ...]:
    """Programs, and people with room for it, get everything."""
    narrow = sys.stdout.isatty() and shutil.get_terminal_size().columns < WIDE_COLUMNS_MIN
    return NARROW if narrow else WIDE


def list_brokers(
    admin_url: AdminUrlOption = None,
    client_conf: ClientConfOption = None,
    auth_plugin: AuthPluginOption = None,
    auth_params: AuthParamsOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the cluster's brokers: who is up or drains, how loaded, how many bundles.

    Numbers are those of each broker's last report, which is renewed when they change; usages are in percent.

    [dim]Examples:[/]
      magnetar broker list
      magnetar broker list --admin-url http://10.0.0.7:8080 --json
    """
    from magnetar.cli.commands.running import complete
    from magnetar.cli.tools.brokers import list_brokers as find

    rows = complete(with_brokers(find, admin_url, client_conf, auth_plugin, auth_params))
    show_rows(rows, _columns(), as_json=as_json, none="no broker is registered")


def drain(
    broker: BrokerArgument,
    status: Annotated[bool, typer.Option("--status", help="Only show how far it is.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Stop it: the broker takes bundles again.")] = False,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Stay until it is done.")] = True,
    admin_url: AdminUrlOption = None,
    client_conf: ClientConfOption = None,
    auth_plugin: AuthPluginOption = None,
    auth_params: AuthParamsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move all bundles of a broker to the others, so that it can be stopped unnoticed.

    The broker does it by itself and takes no bundles from then on; Ctrl-C only ends the watching. Run it again to
    watch again. Restarted, a broker takes bundles as before.
    Exit code: 0 done (with --status, --cancel or --no-follow: answered), 1 not done, 2 wrong options.

    [dim]Examples:[/]
      magnetar broker drain 10.0.0.7:8080
      magnetar broker drain 10.0.0.7:8080 --status --json
      magnetar broker drain 10.0.0.7:8080 --cancel
    """
    from magnetar.cli.commands.running import complete

    watching = follow and not (status or cancel)
    method = "GET" if status else "DELETE" if cancel else "POST"
    work = partial(_drain, broker=broker, method=method, watching=watching)
    found = complete(with_brokers(work, admin_url, client_conf, auth_plugin, auth_params))
    show_drain(found, as_json=as_json)
    if watching and found.step != "done":
        raise typer.Exit(EXIT_FAILED)


async def _drain(api: AdminCaller, broker: str, method: str, *, watching: bool) -> BrokerDrainState:
    from magnetar.cli.tools.brokers import drain_state, follow_drain

    found = await drain_state(api, broker, method)
    if watching and found.step == "running":
        note(f"{broker} goes on by itself when this ends; --cancel stops it")
        with progress(f"bundles moved off {broker}") as report:
            async for found in follow_drain(api, broker):
                report(*drain_report(found))
    return found


def drain_report(state: BrokerDrainState) -> tuple[int, int, str]:
    """(bundles done, bundles in all, what goes on) for a progress bar."""
    detail = f"held up by {state.blockers[0][0]}: {state.blockers[0][1]}" if state.blockers else ""
    return state.bundles_total - state.bundles_left, state.bundles_total, detail


def show_drain(state: BrokerDrainState, *, as_json: bool) -> None:
    """Where it stands, and what holds it up."""
    if as_json:
        show_object(state, as_json=True)
    elif state.step == "none":
        typer.echo(f"{state.broker}: no drain runs, it takes bundles")
    else:
        moved = state.bundles_total - state.bundles_left
        typer.echo(f"{state.broker}: {state.step}, {moved} of {state.bundles_total} bundles moved")
    for bundle, reason in state.blockers[:BLOCKERS_SHOWN_MAX]:
        complain(f"{bundle}: {reason}")
    if len(state.blockers) > BLOCKERS_SHOWN_MAX:
        complain(f"… and {len(state.blockers) - BLOCKERS_SHOWN_MAX} more")


def decisions(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Stay, and print what comes.")] = False,
    placements: Annotated[
        bool, typer.Option("--placements", help="Also who was given bundles that nobody had.")
    ] = False,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="How many of the latest.")] = 20,
    admin_url: AdminUrlOption = None,
    client_conf: ClientConfOption = None,
    auth_plugin: AuthPluginOption = None,
    auth_params: AuthParamsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what load management decided lately, why, and how it went.

    They are the leader's memory: another leader begins anew, the logs have all of them. With --follow a decision
    comes again when it is done; with --json then, one object a line.

    [dim]Examples:[/]
      magnetar broker decisions
      magnetar broker decisions --follow --placements
    """
    from magnetar.cli.commands.running import complete
    from magnetar.cli.tools.brokers import decisions as find

    access = (admin_url, client_conf, auth_plugin, auth_params)
    if follow:
        work = partial(_follow, count=count, placements=placements, as_json=as_json)
        complete(with_brokers(work, *access))
        return
    log = complete(with_brokers(partial(find, placements=placements), *access))
    with RowPrinter((), as_json=as_json, plain=True) as printer:
        for row in log.decisions[-count:] if count else ():
            printer.add(row)
            if not as_json:
                typer.echo(decision_text(row))
    if not log.decisions:
        note("nothing was decided yet")
    for line in (f"leader: {log.leader or 'none'}, driver: {log.driver}", *log.outlook):
        note(line)


async def _follow(api: AdminCaller, count: int, *, placements: bool, as_json: bool) -> None:
    from magnetar.cli.tools.brokers import follow_decisions

    def lost(error: Exception) -> None:
        warn(f"{error}; trying again")

    async for row in follow_decisions(api, latest=count, placements=placements, lost=lost):
        typer.echo(to_json(row) if as_json else decision_text(row))


def decision_text(row: DecisionRow) -> str:
    """One decision in a few lines, as names of bundles and reasons are long."""
    way = " ".join(f"{word} {broker}" for word, broker in (("from", row.broker), ("to", row.destination)) if broker)
    took = f" after {row.took_ms} ms" if row.took_ms else ""
    lines = [f"{human_time(row.decided_ms)}  {row.kind} {row.bundle}  {row.outcome}{took}", way, row.reason]
    if row.error is not None:
        lines.append(row.error)
    return "\n    ".join(line for line in lines if line)
