"""`magnetar proxy …`."""

from __future__ import annotations

from typing import Annotated

import typer
from magnetar.cli.commands.lazy import command_group
from magnetar.cli.commands.options import (
    AssignmentsOption,
    CheckOption,
    LogLevel,
    LogLevelOption,
    MetadataStoreOption,
    ProxyConfOption,
    settings_given,
)
from magnetar.cli.commands.starting import serve

application = command_group("proxy", "Run a proxy.")


@application.callback()
def _group() -> None:
    """Keeps this a group."""


def run(
    conf: ProxyConfOption = None,
    metadata_store: MetadataStoreOption = None,
    broker: Annotated[
        str | None,
        typer.Option(
            "--broker", metavar="URL", help="pulsar://host:6650, if none are registered.", rich_help_panel="Settings"
        ),
    ] = None,
    broker_http: Annotated[
        str | None,
        typer.Option("--broker-http", metavar="URL", help="http://host:8080.", rich_help_panel="Settings"),
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", help="Address to listen on.", rich_help_panel="Settings")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", "-p", min=0, max=65535, help="Pulsar protocol; 0 is any.", rich_help_panel="Settings"),
    ] = None,
    http_port: Annotated[
        int | None,
        typer.Option("--http-port", min=0, max=65535, help="Admin API; 0 is any.", rich_help_panel="Settings"),
    ] = None,
    assignments: AssignmentsOption = None,
    check: CheckOption = False,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Run a proxy: one address for clients and tools in front of a cluster of brokers, Apache's or Magnetar's.

    Brokers are found in the metadata store, or named by --broker and --broker-http.
    Clients may be connected with ports 6650 and 6651 of brokers; set brokerProxyAllowedTargetPorts for others.

    Settings come from a proxy.conf as Apache's proxies read it, then from the environment
    (PULSAR_PREFIX_servicePort=…), then from --set, then from the other options.

    One line on standard output tells when it serves. Ctrl-C or SIGTERM stops it cleanly: it takes no connections
    any more, lets those that stand go on for drainTimeoutSeconds, then closes them. A second signal ends it at once.
    Exit code: 0 stopped, 1 cannot run, 2 wrong options or settings.

    [dim]Examples:[/]
      magnetar proxy run --conf conf/proxy.conf
      magnetar proxy run -m zk:localhost:2181 --port 6650 \\
        --set maxConcurrentInboundConnections=20000
    """
    from magnetar.proxy.process import PROXY_SERVICE

    options = settings_given(
        metadataStoreUrl=("--metadata-store", metadata_store),
        brokerServiceURL=("--broker", broker),
        brokerWebServiceURL=("--broker-http", broker_http),
        bindAddress=("--address", address),
        servicePort=("--port", port),
        webServicePort=("--http-port", http_port),
    )
    serve(PROXY_SERVICE, conf, assignments, options, check=check, log_level=log_level)


application.command("run")(run)
