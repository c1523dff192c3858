"""`magnetar init-metadata`."""

from __future__ import annotations

from typing import Annotated, Final

import typer
from magnetar.cli.commands.lazy import command_group

application = command_group()

ADDRESSES: Final = "Addresses, for other clusters"
STORES: Final = "Where the metadata is"
BOOKIES: Final = "Bookies of another cluster"
SIZES: Final = "What is made at first"
"""Panels of the help page. In one panel the longest names would be cut at 80 columns."""

ClusterOption = Annotated[str, typer.Option("--cluster", "-c", metavar="NAME", help="The cluster's name.")]
MetadataStoreOption = Annotated[
    str,
    typer.Option(
        "--metadata-store",
        "-m",
        "-md",
        metavar="URL",
        rich_help_panel=STORES,
        help="Such as zk:host:2181/chroot.",
    ),
]
WebServiceUrlOption = Annotated[
    str,
    typer.Option(
        "--web-service-url",
        "-uw",
        metavar="URL",
        rich_help_panel=ADDRESSES,
        help="Where admin tools of other clusters reach this one.",
    ),
]
BrokerServiceUrlOption = Annotated[
    str | None,
    typer.Option(
        "--broker-service-url",
        "-ub",
        metavar="URL",
        rich_help_panel=ADDRESSES,
        help="Where clients of other clusters reach this one.",
    ),
]
ConfigurationStoreOption = Annotated[
    str | None,
    typer.Option(
        "--configuration-metadata-store",
        "-cms",
        metavar="URL",
        rich_help_panel=STORES,
        help="Where the clusters of an instance keep what they share; without it, in the metadata store.",
    ),
]
BookkeeperUriOption = Annotated[
    str | None,
    typer.Option(
        "--existing-bk-metadata-service-uri",
        metavar="URL",
        rich_help_panel=BOOKIES,
        help="Use the bookies that are there.",
    ),
]
WebServiceUrlTlsOption = Annotated[
    str | None,
    typer.Option("--web-service-url-tls", "-tw", metavar="URL", rich_help_panel=ADDRESSES, help="The same by TLS."),
]
BrokerServiceUrlTlsOption = Annotated[
    str | None,
    typer.Option("--broker-service-url-tls", "-tb", metavar="URL", rich_help_panel=ADDRESSES, help="The same by TLS."),
]
ProxyUrlOption = Annotated[
    str | None,
    typer.Option(
        "--proxy-url", "-pp", metavar="URL", rich_help_panel=ADDRESSES, help="The proxy that others have to go through."
    ),
]
ProxyProtocolOption = Annotated[
    str | None, typer.Option("--proxy-protocol", "-pr", metavar="NAME", rich_help_panel=ADDRESSES, help="How: SNI.")
]
NamespaceBundlesOption = Annotated[
    int,
    typer.Option(
        "--default-namespace-bundle-number",
        "-nb",
        metavar="N",
        rich_help_panel=SIZES,
        min=1,
        max=4_096,
        help="Bundles of public/default.",
    ),
]
TransactionCoordinatorsOption = Annotated[
    int,
    typer.Option(
        "--initial-num-transaction-coordinators",
        metavar="N",
        rich_help_panel=SIZES,
        min=1,
        max=10_000,
        help="Partitions of the coordinators' topic.",
    ),
]


def init_metadata(
    cluster: ClusterOption,
    metadata_store: MetadataStoreOption,
    web_service_url: WebServiceUrlOption,
    broker_service_url: BrokerServiceUrlOption = None,
    configuration_store: ConfigurationStoreOption = None,
    bookkeeper_uri: BookkeeperUriOption = None,
    web_service_url_tls: WebServiceUrlTlsOption = None,
    broker_service_url_tls: BrokerServiceUrlTlsOption = None,
    proxy_url: ProxyUrlOption = None,
    proxy_protocol: ProxyProtocolOption = None,
    namespace_bundles: NamespaceBundlesOption = 16,
    transaction_coordinators: TransactionCoordinatorsOption = 16,
) -> None:
    """Prepare a metadata store for a new cluster: what bookies and brokers expect to find there.

    The same nodes as Apache's `pulsar initialize-cluster-metadata` makes, so that either side's processes can start on
    them. Running it again changes nothing but the cluster's URLs, and only those that are given; empty ones are taken
    away.
    Exit code: 0 done, 1 failed, 2 wrong options or settings.

    [dim]Examples:[/]
      magnetar init-metadata --cluster test --metadata-store zk:localhost:2181 \\
        --web-service-url http://broker:8080 \\
        --broker-service-url pulsar://broker:6650
      magnetar init-metadata --cluster east \\
        --metadata-store zk:localhost:2181/east \\
        --configuration-metadata-store zk:localhost:2181/instance \\
        --existing-bk-metadata-service-uri zk:localhost:2181 \\
        --web-service-url http://east:8080
    """
    from magnetar.broker.resources import CLUSTER_DEFAULTS
    from magnetar.cli.commands.running import complete
    from magnetar.cli.tools.cluster_metadata import NewCluster, StoreUrls, prepare_cluster

    addresses = {
        "serviceUrl": web_service_url,
        "serviceUrlTls": web_service_url_tls,
        "brokerServiceUrl": broker_service_url,
        "brokerServiceUrlTls": broker_service_url_tls,
        "proxyServiceUrl": proxy_url,
        "proxyProtocol": proxy_protocol,
    }
    wanted = NewCluster(
        name=cluster,
        data={**CLUSTER_DEFAULTS, **{name: value for name, value in addresses.items() if value is not None}},
        transaction_coordinators=transaction_coordinators,
        namespace_bundles=namespace_bundles,
    )
    stores = StoreUrls(metadata=metadata_store, configuration=configuration_store, bookkeeper=bookkeeper_uri)
    made = complete(prepare_cluster(stores, wanted))
    typer.echo(f"cluster {cluster} is prepared; instance {made}")


application.command()(init_metadata)
