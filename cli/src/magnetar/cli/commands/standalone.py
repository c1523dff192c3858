"""`magnetar standalone`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from magnetar.cli.commands.options import (
    AcceptLossOption,
    AssignmentsOption,
    CheckOption,
    LogLevel,
    StandaloneConfOption,
    prefixed_environment,
    settings_given,
)


def _folder(given: str | Path) -> Path:
    """An empty one would be the current folder, as where a variable of a script is not set."""
    if not str(given).strip():
        raise typer.BadParameter("the name of a folder is wanted")
    return Path(given)


DataOption = Annotated[
    Path,
    typer.Option(
        "--data",
        "-d",
        metavar="<path>",
        parser=_folder,
        help="Folder for everything that is stored.",
        rich_help_panel="Storage",
    ),
]
FreshOption = Annotated[
    bool,
    typer.Option(
        "--fresh",
        help="Empty the data folder first. Refused if it holds anything that is not Magnetar's.",
        rich_help_panel="Storage",
    ),
]
SyncOption = Annotated[
    bool | None,
    typer.Option(
        "--sync/--no-sync",
        help="Force messages to disk before acknowledging them. Without, a power cut may lose some. \\[default: sync]",
        rich_help_panel="Storage",
    ),
]


def _not_empty(value: str | None) -> str | None:
    """An empty one would be all addresses of the machine, which is said by 0.0.0.0."""
    if value is not None and not value.strip():
        raise typer.BadParameter("an address or the name of a host is wanted")
    return value


TransactionsOption = Annotated[
    bool, typer.Option("--transactions", help="Run a transaction coordinator.", rich_help_panel="Features")
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        help="Address to listen on and to give to clients. 0.0.0.0 listens on all; clients are given --set "
        "advertisedAddress=HOST, else 127.0.0.1. \\[default: 127.0.0.1]",
        callback=_not_empty,
        rich_help_panel="Network",
    ),
]
PortOption = Annotated[
    int | None,
    typer.Option(
        "--port", "-p", min=0, max=65535, help="Pulsar protocol; 0 is any. \\[default: 6650]", rich_help_panel="Network"
    ),
]
HttpPortOption = Annotated[
    int | None,
    typer.Option(
        "--http-port",
        min=0,
        max=65535,
        help="Admin API and metrics; 0 is any. \\[default: 8080]",
        rich_help_panel="Network",
    ),
]


def run(
    data: DataOption = Path("data/standalone"),
    fresh: FreshOption = False,
    sync: SyncOption = None,
    accept_loss: AcceptLossOption = False,
    transactions: TransactionsOption = False,
    address: AddressOption = None,
    port: PortOption = None,
    http_port: HttpPortOption = None,
    conf: StandaloneConfOption = None,
    assignments: AssignmentsOption = None,
    check: CheckOption = False,
    log_level: Annotated[LogLevel, typer.Option("--log-level", "-l", help="How much to log.")] = LogLevel.WARNING,
) -> None:
    """Run a whole cluster in this process: metadata, bookie, broker and admin API.

    Its data stays in a folder. Stop it, kill it, start it again: it has every acknowledged message that a
    subscription or the retention still wants.

    Settings are those of a broker and of a bookie: from a standalone.conf or
    broker.conf as Apache's read it, then from the environment
    (PULSAR_PREFIX_maxTenants=…), then from --set, then from the other options.

    Standard output says where it serves. Ctrl-C stops it cleanly, a second one at once.
    Exit code: 0 stopped, 1 cannot run, 2 wrong options or settings.

    [dim]Examples:[/]
      magnetar standalone
      magnetar standalone --data /tmp/try --fresh --port 0 --http-port 0
      magnetar standalone --conf standalone.conf --set maxMessageSize=1048576
    """
    from magnetar.standalone.run import run_standalone
    from magnetar.standalone.settings import ADDRESS, SHOWN_OF_ANY, StandaloneSettings

    environment = prefixed_environment()
    if not (conf or assignments or environment or check or address in SHOWN_OF_ANY):
        settings = StandaloneSettings(
            data_directory=data,
            address=address if address is not None else ADDRESS,
            broker_service_port=port if port is not None else 6650,
            web_service_port=http_port if http_port is not None else 8080,
            journal_sync=sync is not False,
            accept_loss=accept_loss,
            transactions=transactions,
        )
        raise typer.Exit(run_standalone(settings, fresh=fresh, log_level=log_level.value))
    from magnetar.process.service import SettingSources
    from magnetar.standalone.configured import FolderOptions, run_configured

    options = settings_given(
        bindAddress=("--address", address),
        advertisedAddress=("--address", None if address in SHOWN_OF_ANY else address),
        brokerServicePort=("--port", port),
        webServicePort=("--http-port", http_port),
        transactionCoordinatorEnabled=("--transactions", "true" if transactions else None),
        journalSyncData=("--sync", None if sync is None else str(sync).lower()),
    )
    sources = SettingSources(file=conf, environment=environment, assignments=assignments or [], options=options)
    folder = FolderOptions(data_directory=data, accept_loss=accept_loss)
    raise typer.Exit(run_configured(sources, folder, fresh=fresh, check_only=check, log_level=log_level.value))
