"""`magnetar bookie …`: a bookie's process, and what `bookkeeper shell` is used for."""

from __future__ import annotations

import typer
from magnetar.standalone.commands import bookie_run

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


application.command("run")(bookie_run.run)
