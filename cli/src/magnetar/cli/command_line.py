"""The commands of `magnetar` and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

import typer
from magnetar.cli.commands.lazy import Deferred, LazyGroup
from magnetar.cli.commands.options import AcceptLossOption, LogLevel


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


@application.command(short_help="Run a whole cluster in this process.")
def standalone(
    data: Annotated[
        Path, typer.Option("--data", "-d", help="Folder for everything that is stored.", rich_help_panel="Storage")
    ] = Path("data/standalone"),
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help="Empty the data folder first. Refused if it holds anything that is not Magnetar's.",
            rich_help_panel="Storage",
        ),
    ] = False,
    sync: Annotated[
        bool,
        typer.Option(
            "--sync/--no-sync",
            help="Force messages to disk before acknowledging them. Without, a power cut may lose some.",
            rich_help_panel="Storage",
        ),
    ] = True,
    accept_loss: AcceptLossOption = False,
    address: Annotated[
        str, typer.Option(help="Address to listen on and to give to clients.", rich_help_panel="Network")
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option("--port", "-p", min=0, max=65535, help="Pulsar protocol; 0 is any.", rich_help_panel="Network"),
    ] = 6650,
    http_port: Annotated[
        int,
        typer.Option(
            "--http-port", min=0, max=65535, help="Admin API and metrics; 0 is any.", rich_help_panel="Network"
        ),
    ] = 8080,
    log_level: Annotated[LogLevel, typer.Option("--log-level", "-l", help="How much to log.")] = LogLevel.WARNING,
) -> None:
    """Run a whole cluster in this process: metadata, bookie, broker and admin API.

    Its data stays in a folder. Stop it, kill it, start it again: it has every acknowledged message that a
    subscription or the retention still wants.

    Standard output says where it serves. Ctrl-C stops it cleanly, a second one at once.
    Exit code: 0 stopped, 1 cannot run, 2 wrong options.

    [dim]Examples:[/]
      magnetar standalone
      magnetar standalone --data /tmp/try --fresh --port 0 --http-port 0
    """
    from magnetar.standalone.run import run_standalone
    from magnetar.standalone.settings import StandaloneSettings

    settings = StandaloneSettings(
        data_directory=data,
        address=address,
        broker_service_port=port,
        web_service_port=http_port,
        journal_sync=sync,
        accept_loss=accept_loss,
    )
    raise typer.Exit(run_standalone(settings, fresh=fresh, log_level=log_level.value))
