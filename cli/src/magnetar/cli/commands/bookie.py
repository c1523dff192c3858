"""`magnetar bookie …`: a bookie's process, and what `bookkeeper shell` is used for."""

from __future__ import annotations

from magnetar.cli.commands import (
    autorecovery,
    bookie_checks,
    bookie_cluster,
    bookie_control,
    bookie_ledgers,
    bookie_offline,
    bookie_recovery,
    bookie_run,
)
from magnetar.cli.commands.lazy import command_group

application = command_group("bookie", "Run a bookie, look into its files, and look after a cluster's ledgers.")


@application.callback()
def _group() -> None:
    """Keeps this a group."""


FILES = "A bookie's files"
LEDGERS = "Ledgers"
RUNNING = "A running bookie"
BOOKIES = "Bookies"

application.command("run")(bookie_run.run)
for panel, commands in (
    (
        BOOKIES,
        (
            ("list-bookies", bookie_cluster.list_bookies),
            ("sanity-test", bookie_checks.sanity_test),
            ("simple-test", bookie_checks.simple_test),
            ("recover", bookie_recovery.recover),
            ("decommission", bookie_recovery.decommission),
            ("instance-id", bookie_cluster.instance_id),
        ),
    ),
    (
        RUNNING,
        (
            ("state", bookie_control.state),
            ("read-only", bookie_control.read_only),
            ("drain", bookie_control.drain),
            ("trigger-gc", bookie_control.trigger_gc),
        ),
    ),
    (
        LEDGERS,
        (
            ("list-ledgers", bookie_ledgers.list_ledgers),
            ("list-unnamed-ledgers", bookie_ledgers.list_unnamed_ledgers),
            ("ledger-metadata", bookie_ledgers.ledger_metadata),
            ("read-ledger", bookie_ledgers.read_ledger),
            ("delete-ledger", bookie_ledgers.delete_ledger),
            ("list-under-replicated", autorecovery.list_under_replicated),
        ),
    ),
    (
        FILES,
        (
            ("read-journal", bookie_offline.read_journal),
            ("read-entry-log", bookie_offline.read_entry_log),
            ("read-index", bookie_offline.read_index),
            ("list-entries", bookie_offline.list_entries),
            ("list-files", bookie_offline.list_files),
            ("disk-usage", bookie_offline.disk_usage),
            ("last-mark", bookie_offline.last_mark),
        ),
    ),
):
    for name, command in commands:
        application.command(name, rich_help_panel=panel)(command)
application.add_typer(bookie_cluster.cookie, rich_help_panel=BOOKIES)
# Where people look who know BookKeeper's shell; the same as `magnetar autorecovery`.
application.add_typer(autorecovery.application, rich_help_panel=LEDGERS)
