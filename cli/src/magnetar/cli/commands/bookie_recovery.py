"""`magnetar bookie recover|decommission`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from magnetar.cli.commands.options import BookieConfOption, ClusterStoreOption, JsonOption, with_cluster
from magnetar.cli.commands.output import complain, note, progress, show_object, warn
from magnetar.core.exit_codes import EXIT_FAILED
from magnetar.core.text import human_bytes

if TYPE_CHECKING:
    from magnetar.bookie.operations import BookieDrainState
    from magnetar.cli.tools.cluster import ClusterAccess
    from magnetar.cli.tools.recovery import RecoveryRequest, RecoveryTotals

BLOCKERS_SHOWN_MAX = 20
"""Ledgers that are named as keeping a drain from its end; more are only counted."""

RateOption = Annotated[
    int, typer.Option("--bytes-per-second", min=0, help="Copy no faster than this; 0 is as fast as it goes.")
]


def recover(
    bookies: Annotated[list[str], typer.Argument(metavar="BOOKIE_ID…", help="The bookies that are lost.")],
    ledger: Annotated[int | None, typer.Option("--ledger", "-L", min=0, help="Only this ledger.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "--query", "-q", help="Only print which ledgers name the bookies.")
    ] = False,
    skip_open: Annotated[
        bool,
        typer.Option("--skip-open-ledgers", help="Leave ledgers alone that are being written; else they are closed."),
    ] = False,
    delete_cookie: Annotated[
        bool, typer.Option("--delete-cookie", "-d", help="Remove the bookies' cookies afterwards, if all went well.")
    ] = False,
    rate: RateOption = 0,
    yes: Annotated[bool, typer.Option("--yes", "-y", "--force", help="Do not ask.")] = False,
    conf: BookieConfOption = None,
    metadata_store: ClusterStoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy what lost bookies had to others, ledger by ledger.

    AutoRecovery does the same by itself; this does it now. It can be stopped and run again at any time.
    Exit code: 0 every ledger is whole again, 1 some are not (they are named), 2 wrong options or settings.

    [dim]Examples:[/]
      magnetar bookie recover 10.0.0.5:3181 --dry-run
      magnetar bookie recover 10.0.0.5:3181 10.0.0.6:3181 --yes \\
        --bytes-per-second 50000000
    """
    from magnetar.cli.commands.running import complete
    from magnetar.cli.tools.recovery import RecoveryRequest

    if not (yes or dry_run):
        typer.confirm(f"Copy everything that {', '.join(bookies)} had to other bookies?", abort=True)
    wish = RecoveryRequest(
        bookie_ids=frozenset(bookies),
        ledger_id=ledger,
        dry_run=dry_run,
        skip_open_ledgers=skip_open,
        delete_cookies=delete_cookie and ledger is None,
        bytes_per_second=rate,
    )
    totals = complete(with_cluster(partial(_recover, wish=wish), conf, metadata_store))
    _show_recovery(totals, dry_run=dry_run, as_json=as_json)
    if totals.failed:
        raise typer.Exit(EXIT_FAILED)


async def _recover(cluster: ClusterAccess, wish: RecoveryRequest) -> RecoveryTotals:
    from magnetar.cli.tools.recovery import recover as run

    for bookie in sorted(wish.bookie_ids.intersection(cluster.connections.writable_bookies())):
        warn(f"{bookie} is up and takes writes: new ledgers may name it again")
    with progress("ledgers recovered") as report:
        return await run(
            cluster,
            wish,
            lambda now: report(now.ledgers_done, now.ledgers_total, f"{human_bytes(now.bytes_copied)} copied"),
        )


def _show_recovery(totals: RecoveryTotals, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        show_object(totals, as_json=True)
    elif dry_run:
        for ledger_id in totals.planned:
            typer.echo(str(ledger_id))
        note(f"{len(totals.planned)} ledgers name the bookies")
    else:
        typer.echo(
            f"{totals.ledgers_done - len(totals.failed)} of {totals.ledgers_total} ledgers are whole, "
            f"{totals.entries_copied} entries, {human_bytes(totals.bytes_copied)} copied"
        )
    for ledger_id, reason in sorted(totals.failed.items()):
        complain(f"ledger {ledger_id}: {reason}")


def decommission(
    bookie_id: Annotated[str, typer.Argument(metavar="BOOKIE_ID", help="The bookie; it must be stopped.")],
    keep_cookie: Annotated[
        bool, typer.Option("--keep-cookie", help="Only move everything: the bookie may come back, empty-handed.")
    ] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="The bookie stays after all.")] = False,
    seconds_max: Annotated[
        float, typer.Option("--timeout", min=0, help="Stop after so many seconds; run it again to go on. 0 is never.")
    ] = 0,
    rate: RateOption = 0,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    conf: BookieConfOption = None,
    metadata_store: ClusterStoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a stopped bookie out of the cluster for good.

    Its replicas are moved to others; once no ledger names it any more its cookie is removed. Stop this command, kill
    it, run it again: it goes on where things stand. What holds it up is named, ledger by ledger.
    A bookie that runs drains itself, see `magnetar bookie drain`.
    Exit code: 0 done, 1 not done (yet), 2 wrong options or settings.

    [dim]Example:[/]
      magnetar bookie decommission 10.0.0.5:3181 --yes
    """
    from magnetar.bookie.operations import BookieDrainStep
    from magnetar.cli.commands.running import complete
    from magnetar.cli.tools.bookies import read_cookie
    from magnetar.cli.tools.recovery import decommission as run
    from magnetar.cli.tools.recovery import open_drain

    if not (yes or cancel):
        typer.confirm(f"Take {bookie_id} out of the cluster for good?", abort=True)

    async def work(cluster: ClusterAccess) -> tuple[BookieDrainState, bool]:
        known = await read_cookie(cluster.store, bookie_id) is not None
        async with open_drain(cluster, bookie_id, rate) as drain:
            if cancel:
                await drain.cancel()
                return drain.progress(), known
            await drain.start(remove_cookie=not keep_cookie)
            with progress(f"ledgers moved off {bookie_id}") as report:
                return await run(drain, lambda now: report(*drain_report(now)), seconds_max), known

    state, known = complete(with_cluster(work, conf, metadata_store))
    if cancel:
        note(f"{bookie_id} stays")
        return
    show_drain(state, as_json=as_json)
    if not (known or state.ledgers_total):
        warn(f"the cluster knows no bookie {bookie_id}: no cookie and no ledger names it; `list-bookies --all` has all")
    if state.step is not BookieDrainStep.DONE:
        raise typer.Exit(EXIT_FAILED)


def drain_report(state: BookieDrainState) -> tuple[int, int, str]:
    """(ledgers done, ledgers in all, what goes on) for a progress bar."""
    detail = f"{state.step.value} {human_bytes(state.bytes_per_second)}/s"
    if state.blockers:
        ledger_id, reason = state.blockers[0]
        detail += f"; held up by {_blocker(ledger_id, reason)}"
    return state.ledgers_total - state.ledgers_left, state.ledgers_total, detail


def show_drain(state: BookieDrainState, *, as_json: bool) -> None:
    """Where it stands, and what holds it up."""
    if as_json:
        show_object(state, as_json=True)
    else:
        moved = state.ledgers_total - state.ledgers_left
        typer.echo(
            f"{state.bookie_id}: {state.step.value}, {moved} of {state.ledgers_total} ledgers moved, "
            f"{human_bytes(state.bytes_copied)} copied"
        )
    for ledger_id, reason in state.blockers[:BLOCKERS_SHOWN_MAX]:
        complain(_blocker(ledger_id, reason))
    if len(state.blockers) > BLOCKERS_SHOWN_MAX:
        complain(f"… and {len(state.blockers) - BLOCKERS_SHOWN_MAX} more")


def _blocker(ledger_id: int, reason: str) -> str:
    return reason if ledger_id < 0 else f"ledger {ledger_id}: {reason}"
