"""`magnetar bookie …`: a bookie's process, and what `bookkeeper shell` is used for."""

from __future__ import annotations

import typer
from magnetar.standalone.commands import bookie_offline, bookie_run

application = typer.Typer(
    name="bookie",
    help="Run a bookie, look into its files, and look after a cluster's ledgers.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@application.callback()
def _group() -> None:
    """Keeps this a group."""


FILES = "A bookie's files"

application.command("run")(bookie_run.run)
for name, command in (
    ("read-journal", bookie_offline.read_journal),
    ("read-entry-log", bookie_offline.read_entry_log),
    ("read-index", bookie_offline.read_index),
    ("list-entries", bookie_offline.list_entries),
    ("list-files", bookie_offline.list_files),
    ("disk-usage", bookie_offline.disk_usage),
    ("last-mark", bookie_offline.last_mark),
):
    application.command(name, rich_help_panel=FILES)(command)
