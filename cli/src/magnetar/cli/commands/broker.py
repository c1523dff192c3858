"""`magnetar broker …`: a broker's process, and what those who run a cluster of them need."""

from __future__ import annotations

from typing import Annotated, Final

import typer
from magnetar.cli.commands import broker_bundles, broker_cluster
from magnetar.cli.commands.lazy import command_group
from magnetar.cli.commands.options import (
    AssignmentsOption,
    BrokerConfOption,
    CheckOption,
    LogLevel,
    LogLevelOption,
    MetadataStoreOption,
    processes_option,
    settings_given,
)
from magnetar.cli.commands.starting import process_start, serve

ClusterOption = Annotated[str | None, typer.Option("--cluster", help="The cluster's name.", rich_help_panel="Settings")]
AddressOption = Annotated[
    str | None, typer.Option("--address", help="Address to listen on.", rich_help_panel="Settings")
]
AdvertisedAddressOption = Annotated[
    str | None, typer.Option("--advertised-address", help="Where clients reach it.", rich_help_panel="Settings")
]
PortOption = Annotated[
    int | None,
    typer.Option("--port", "-p", min=0, max=65535, help="Pulsar protocol; 0 is any.", rich_help_panel="Settings"),
]
HttpPortOption = Annotated[
    int | None,
    typer.Option("--http-port", min=0, max=65535, help="Admin API and metrics; 0 is any.", rich_help_panel="Settings"),
]

ProcessesOption = Annotated[int, processes_option("Brokers")]
DEFAULT_METRICS_PORT: Final = 8081
MetricsPortOption = Annotated[
    int,
    typer.Option(
        "--processes-metrics-port",
        min=0,
        max=65535,
        envvar="MAGNETAR_PROCESSES_METRICS_PORT",
        help="Metrics of all processes; 0 is any.",
        rich_help_panel="Processes",
    ),
]

application = command_group("broker", "Run a broker, and look after a cluster's brokers and bundles.")


@application.callback()
def _group() -> None:
    """Keeps this a group."""


def run(
    conf: BrokerConfOption = None,
    metadata_store: MetadataStoreOption = None,
    cluster: ClusterOption = None,
    address: AddressOption = None,
    advertised_address: AdvertisedAddressOption = None,
    port: PortOption = None,
    http_port: HttpPortOption = None,
    processes: ProcessesOption = 1,
    metrics_port: MetricsPortOption = DEFAULT_METRICS_PORT,
    assignments: AssignmentsOption = None,
    check: CheckOption = False,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Run a broker on a cluster's metadata store and bookies.

    Brokers of one cluster, also Apache's among them, share its topics between them. The cluster must have been
    prepared, by `magnetar init-metadata` or by Apache's `pulsar initialize-cluster-metadata`.

    Settings come from a broker.conf as Apache's brokers read it, then from the environment
    (PULSAR_PREFIX_clusterName=…), then from --set, then from the other options.

    One line on standard output tells when it serves. Ctrl-C or SIGTERM stops it cleanly, with its topics handed over
    to other brokers (brokerShutdownTimeoutMs at most), a second one at once.

    A broker uses one core. --processes N starts N brokers, each with ports of its own, which clients find at the ports
    that are set; a supervisor starts those again that end, and tells the health and the metrics of all.

    Exit code: 0 stopped, 1 cannot run, 2 wrong options or settings.

    [dim]Examples:[/]
      magnetar broker run --conf conf/broker.conf
      magnetar broker run -m zk:localhost:2181 --cluster test \\
        --set managedLedgerDefaultEnsembleSize=3
    """
    from magnetar.broker.process import BROKER_SERVICE

    options = settings_given(
        metadataStoreUrl=("--metadata-store", metadata_store),
        clusterName=("--cluster", cluster),
        bindAddress=("--address", address),
        advertisedAddress=("--advertised-address", advertised_address),
        brokerServicePort=("--port", port),
        webServicePort=("--http-port", http_port),
    )
    if processes == 1:
        serve(BROKER_SERVICE, conf, assignments, options, check=check, log_level=log_level)
    from magnetar.broker.process_group import broker_group

    process = process_start("broker", conf, assignments, options, log_level)
    group = broker_group(processes, process, metrics_port)
    serve(group, conf, assignments, options, check=check, log_level=log_level)


BROKERS = "Brokers"
BUNDLES = "Bundles"

application.command("run")(run)
for panel, commands in (
    (
        BROKERS,
        (
            ("list", broker_cluster.list_brokers),
            ("drain", broker_cluster.drain),
            ("decisions", broker_cluster.decisions),
        ),
    ),
    (
        BUNDLES,
        (
            ("transfer", broker_bundles.transfer),
            ("split", broker_bundles.split),
            ("unload", broker_bundles.unload),
        ),
    ),
):
    for name, command in commands:
        application.command(name, rich_help_panel=panel)(command)
