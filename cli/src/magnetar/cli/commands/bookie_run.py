"""`magnetar bookie run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from magnetar.cli.commands.options import (
    AcceptLossOption,
    AssignmentsOption,
    BookieConfOption,
    CheckOption,
    LogLevel,
    LogLevelOption,
    MetadataStoreOption,
    settings_given,
)
from magnetar.cli.commands.starting import serve


def run(
    conf: BookieConfOption = None,
    metadata_store: MetadataStoreOption = None,
    port: Annotated[
        int | None,
        typer.Option("--port", "-p", min=0, max=65535, help="Port to listen on.", rich_help_panel="Settings"),
    ] = None,
    bookie_id: Annotated[
        str | None, typer.Option("--bookie-id", help="Its id, if not address:port.", rich_help_panel="Settings")
    ] = None,
    advertised_address: Annotated[
        str | None,
        typer.Option("--advertised-address", help="Where others reach it.", rich_help_panel="Settings"),
    ] = None,
    journal: Annotated[
        list[Path] | None,
        typer.Option("--journal", help="Journal directory. May be repeated.", rich_help_panel="Settings"),
    ] = None,
    ledgers: Annotated[
        list[Path] | None,
        typer.Option("--ledgers", help="Ledger directory. May be repeated.", rich_help_panel="Settings"),
    ] = None,
    assignments: AssignmentsOption = None,
    accept_loss: AcceptLossOption = False,
    check: CheckOption = False,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Run a bookie: storage for messages, in Apache BookKeeper's protocol and files.

    Settings come from a bookkeeper.conf as Apache's bookies read it, then from the environment
    (journalSyncData=true, PULSAR_PREFIX_bookieId=…), then from --set, then from the other options.
    A setting that nobody knows is an error; one that has no effect here is named at the start.

    One line on standard output tells when it serves. Ctrl-C or SIGTERM stops it cleanly, a second one at once.
    Exit code: 0 stopped, 1 cannot run, 2 wrong options or settings, 3 a directory is empty that should not be, 4 a
    directory is another bookie's or cluster's, 5 the bookie was taken out of the cluster.

    [dim]Examples:[/]
      magnetar bookie run --conf conf/bookkeeper.conf
      magnetar bookie run -m zk:localhost:2181 --advertised-address 127.0.0.1 \\
        --journal /fast/j --ledgers /big/l
    """
    from magnetar.bookie.process.bookie import bookie_service

    options = settings_given(
        metadataServiceUri=("--metadata-store", metadata_store),
        bookiePort=("--port", port),
        bookieId=("--bookie-id", bookie_id),
        advertisedAddress=("--advertised-address", advertised_address),
        journalDirectories=("--journal", journal or None),
        ledgerDirectories=("--ledgers", ledgers or None),
    )
    serve(bookie_service(accept_loss=accept_loss), conf, assignments, options, check=check, log_level=log_level)
