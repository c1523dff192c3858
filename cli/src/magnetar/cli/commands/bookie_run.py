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
    processes_option,
    settings_given,
)
from magnetar.cli.commands.starting import process_start, serve

PortOption = Annotated[
    int | None, typer.Option("--port", "-p", min=0, max=65535, help="Port to listen on.", rich_help_panel="Settings")
]
BookieIdOption = Annotated[
    str | None, typer.Option("--bookie-id", help="Its id, if not address:port.", rich_help_panel="Settings")
]
AdvertisedAddressOption = Annotated[
    str | None, typer.Option("--advertised-address", help="Where others reach it.", rich_help_panel="Settings")
]
JournalOption = Annotated[
    list[Path] | None,
    typer.Option("--journal", help="Journal directory. May be repeated.", rich_help_panel="Settings"),
]
LedgersOption = Annotated[
    list[Path] | None,
    typer.Option("--ledgers", help="Ledger directory. May be repeated.", rich_help_panel="Settings"),
]
ProcessesOption = Annotated[int, processes_option("Bookies")]


def run(
    conf: BookieConfOption = None,
    metadata_store: MetadataStoreOption = None,
    port: PortOption = None,
    bookie_id: BookieIdOption = None,
    advertised_address: AdvertisedAddressOption = None,
    journal: JournalOption = None,
    ledgers: LedgersOption = None,
    processes: ProcessesOption = 1,
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

    A bookie uses one core. --processes N starts N bookies of this one configuration: the first as it stands there, each
    further one with its own id, ports and folders (process-2 …) in the same directories. Copies of one entry are never
    on two of them. A supervisor starts those again that end, and tells the health and the metrics of all.

    Exit code: 0 stopped, 1 cannot run, 2 wrong options or settings, 3 a directory is empty that should not be, 4 a
    directory is another bookie's or cluster's, 5 the bookie was taken out of the cluster.

    [dim]Examples:[/]
      magnetar bookie run --conf conf/bookkeeper.conf
      magnetar bookie run -m zk:localhost:2181 --advertised-address 127.0.0.1 \\
        --journal /fast/j --ledgers /big/l
    """
    options = settings_given(
        metadataServiceUri=("--metadata-store", metadata_store),
        bookiePort=("--port", port),
        bookieId=("--bookie-id", bookie_id),
        advertisedAddress=("--advertised-address", advertised_address),
        journalDirectories=("--journal", journal or None),
        ledgerDirectories=("--ledgers", ledgers or None),
    )
    if processes == 1:
        from magnetar.bookie.process.bookie import bookie_service
        from magnetar.process.supervision.end_with_supervisor import has_supervisor

        # Of damage that is to be given up, one bookie of several is rid by itself.
        alone = not has_supervisor() and not accept_loss
        service = bookie_service(accept_loss=accept_loss, alone=alone)
        serve(service, conf, assignments, options, check=check, log_level=log_level)
    if accept_loss:
        raise typer.BadParameter("it is for one bookie: start the one that is damaged without --processes, once")
    from magnetar.bookie.process.group import bookie_group

    process = process_start("bookie", conf, assignments, options, log_level)
    serve(bookie_group(processes, process), conf, assignments, options, check=check, log_level=log_level)
