"""`magnetar autorecovery …`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from magnetar.cli.commands.lazy import command_group
from magnetar.cli.commands.options import (
    AssignmentsOption,
    BookieConfOption,
    CheckOption,
    ClusterStoreOption,
    JsonOption,
    LogLevel,
    LogLevelOption,
    MetadataStoreOption,
    settings_given,
    with_store,
)
from magnetar.cli.commands.output import Column, human_time, note, show_object, show_rows
from magnetar.cli.commands.starting import serve
from magnetar.core.exit_codes import EXIT_FAILED

application = command_group("autorecovery", "Give lost replicas back: run AutoRecovery, look at it, switch it.")


@application.command()
def run(
    conf: BookieConfOption = None,
    metadata_store: MetadataStoreOption = None,
    assignments: AssignmentsOption = None,
    check: CheckOption = False,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Run AutoRecovery in a process of its own: it may audit, and it copies what is missing.

    Bookies run it themselves unless autoRecoveryDaemonEnabled=false. Settings as `magnetar bookie run`.
    One line on standard output tells when it works. Ctrl-C or SIGTERM stops it cleanly, a second one at once.
    Exit code: 0 stopped, 1 cannot run, 2 wrong options or settings.

    [dim]Example:[/]
      magnetar autorecovery run --conf conf/bookkeeper.conf
    """
    from magnetar.bookie.process.autorecovery import AUTORECOVERY_SERVICE

    options = settings_given(metadataServiceUri=("--metadata-store", metadata_store))
    serve(AUTORECOVERY_SERVICE, conf, assignments, options, check=check, log_level=log_level)


@application.command()
def status(
    conf: BookieConfOption = None, metadata_store: ClusterStoreOption = None, as_json: JsonOption = False
) -> None:
    """Show whether AutoRecovery is on, who audits, and how much is left to do.

    [dim]Example:[/]
      magnetar autorecovery status -m zk:localhost:2181 --json
    """
    from magnetar.cli.commands.running import complete
    from magnetar.cli.tools.autorecovery import status as ask

    labels = (
        Column("AutoRecovery", lambda row: "on" if row.enabled else "off"),
        Column("auditor", lambda row: " ".join(auditor.bookie_id for auditor in row.auditors) or "none"),
        Column("ledgers left", lambda row: row.ledgers_left),
        Column("delay", lambda row: _seconds(row.lost_bookie_recovery_delay_seconds)),
        Column("last check of ledgers", lambda row: _last_check(row.last_ledgers_check_ms)),
        Column("last check of placement", lambda row: _last_check(row.last_placement_check_ms)),
        Column("last check of replicas", lambda row: _last_check(row.last_replicas_check_ms)),
    )
    show_object(complete(with_store(ask, conf, metadata_store)), as_json=as_json, labels=labels)


def _last_check(time_ms: int | None) -> str:
    from magnetar.bookie.autorecovery.underreplication import CHECK_ASKED_FOR_MS

    return "asked for" if time_ms == CHECK_ASKED_FOR_MS else human_time(time_ms) or "never"


def _seconds(count: int | None) -> str:
    return "not set" if count is None else f"{count} s"


@application.command()
def enable(conf: BookieConfOption = None, metadata_store: ClusterStoreOption = None) -> None:
    """Switch AutoRecovery on in the whole cluster."""
    _switch(conf, metadata_store, enabled=True)


@application.command()
def disable(conf: BookieConfOption = None, metadata_store: ClusterStoreOption = None) -> None:
    """Switch AutoRecovery off in the whole cluster, such as for maintenance. What is being copied is finished."""
    _switch(conf, metadata_store, enabled=False)


def _switch(conf: Path | None, metadata_store: str | None, *, enabled: bool) -> None:
    from magnetar.cli.commands.running import complete
    from magnetar.cli.tools.autorecovery import switch

    changed = complete(with_store(partial(switch, enabled=enabled), conf, metadata_store))
    note(f"AutoRecovery is {'on' if enabled else 'off'}{'' if changed else ', as it was'}")


@application.command()
def audit(
    entries: Annotated[
        bool, typer.Option("--entries", help="Also have the bookies asked for the entries that they should hold.")
    ] = False,
    conf: BookieConfOption = None,
    metadata_store: ClusterStoreOption = None,
) -> None:
    """Have the auditor look for lost bookies now, without waiting for the delay.

    With --entries it also checks what bookies hold: of all ledgers the first and last entries of each fragment (more by
    auditorLedgerVerificationPercentage), which it has copied where they are missing; and of closed ledgers all entries
    by the bookies' own lists, which it counts and logs. `magnetar autorecovery status` tells when these have ended.

    [dim]Example:[/]
      magnetar autorecovery audit --entries -m zk:localhost:2181
    """
    from magnetar.cli.commands.running import complete
    from magnetar.cli.tools.autorecovery import request_audit

    complete(with_store(partial(request_audit, entries=entries), conf, metadata_store))
    note("the auditor is asked")


@application.command("who-is-auditor")
def who_is_auditor(
    conf: BookieConfOption = None, metadata_store: ClusterStoreOption = None, as_json: JsonOption = False
) -> None:
    """Print the bookie that audits.

    Exit code: 0 done, 1 nobody audits or the command failed, 2 wrong options or settings.
    """
    from magnetar.cli.commands.running import complete
    from magnetar.cli.tools.autorecovery import auditors

    found = complete(with_store(auditors, conf, metadata_store))
    columns = (Column("auditor", lambda row: row.bookie_id), Column("election", lambda row: row.election))
    if not show_rows(found, columns, as_json=as_json, none="nobody audits: AutoRecovery runs nowhere"):
        raise typer.Exit(EXIT_FAILED)


@application.command("lost-bookie-recovery-delay")
def lost_bookie_recovery_delay(
    seconds: Annotated[int | None, typer.Argument(min=0, max=31_536_000, help="Set it; without: print it.")] = None,
    conf: BookieConfOption = None,
    metadata_store: ClusterStoreOption = None,
) -> None:
    """Print or set how many seconds a lost bookie may take to come back before its ledgers are copied.

    Setting the value that it has makes the auditor look at once.

    [dim]Examples:[/]
      magnetar autorecovery lost-bookie-recovery-delay
      magnetar autorecovery lost-bookie-recovery-delay 3600
    """
    from magnetar.cli.commands.running import complete
    from magnetar.cli.tools.autorecovery import recovery_delay

    found = complete(with_store(partial(recovery_delay, seconds=seconds), conf, metadata_store))
    if found is None:
        note("nobody has set it; the auditor's own setting counts")
    else:
        typer.echo(str(found))


@application.command("list-under-replicated")
def list_under_replicated(
    missing: Annotated[str | None, typer.Option("--missing-replica", help="Only those that lack this bookie.")] = None,
    not_missing: Annotated[
        str | None, typer.Option("--exclude-missing-replica", help="Only those that do not lack this bookie.")
    ] = None,
    conf: BookieConfOption = None,
    metadata_store: ClusterStoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the ledgers that are marked as lacking replicas, and who repairs them.

    [dim]Example:[/]
      magnetar autorecovery list-under-replicated \\
        --missing-replica 10.0.0.5:3181 --json
    """
    from magnetar.cli.commands.running import complete
    from magnetar.cli.tools.autorecovery import marked_ledgers

    columns = (
        Column("ledger", lambda row: row.ledger_id, right=True),
        Column("missing", lambda row: " ".join(row.missing_replicas)),
        Column("marked", lambda row: human_time(row.marked_ms)),
        Column("worker", lambda row: row.worker),
        Column("problem", lambda row: row.problem),
    )
    find = partial(marked_ledgers, missing=missing, not_missing=not_missing)
    rows = complete(with_store(find, conf, metadata_store))
    show_rows(rows, columns, as_json=as_json, none="no ledger lacks a replica, as far as is known")
