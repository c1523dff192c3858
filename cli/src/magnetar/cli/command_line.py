"""The commands of `magnetar` and their options."""

from __future__ import annotations

from typing import Annotated, ClassVar

import typer
from magnetar.cli.commands import standalone
from magnetar.cli.commands.lazy import Deferred, LazyGroup

AddressOption = Annotated[
    str, typer.Option(help="Address to listen on and to give to clients.", rich_help_panel="Network")
]
TransactionsOption = Annotated[
    bool, typer.Option("--transactions", help="Run a transaction coordinator.", rich_help_panel="Features")
]


class _Commands(LazyGroup):
    deferred: ClassVar = {
        "bookie": Deferred("magnetar.cli.commands.bookie", "Run a bookie, look into its files, look after ledgers."),
        "autorecovery": Deferred(
            "magnetar.cli.commands.autorecovery", "Give lost replicas back: run it, look at it, switch it."
        ),
        "broker": Deferred("magnetar.cli.commands.broker", "Run a broker, look after a cluster's brokers and bundles."),
        "proxy": Deferred("magnetar.cli.commands.proxy", "Run a proxy."),
        "tokens": Deferred("magnetar.cli.commands.tokens", "Make and look at clients' tokens."),
        "init-metadata": Deferred("magnetar.cli.commands.init_metadata", "Prepare a metadata store for a new cluster."),
        "smoke-test": Deferred("magnetar.cli.commands.smoke_test", "Publish to a cluster, read back and compare."),
    }


application = typer.Typer(
    name="magnetar",
    cls=_Commands,
    help="Magnetar: messaging that speaks Apache Pulsar's and BookKeeper's own protocols.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        import importlib.metadata  # 10 ms that only this option needs.

        typer.echo(f"magnetar {importlib.metadata.version('magnetar-cli')}")
        raise typer.Exit


@application.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    del version


application.command("standalone", short_help="Run a whole cluster in this process.")(standalone.run)
