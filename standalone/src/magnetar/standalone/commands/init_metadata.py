"""`magnetar init-metadata`."""

from __future__ import annotations

from typing import Annotated

import typer

application = typer.Typer(
    add_completion=False, rich_markup_mode="rich", context_settings={"help_option_names": ["-h", "--help"]}
)


def init_metadata(
    cluster: Annotated[str, typer.Option("--cluster", "-c", help="The cluster's name.")],
    metadata_store: Annotated[
        str, typer.Option("--metadata-store", "-m", "-md", metavar="URL", help="Such as zk:host:2181,host:2181/chroot.")
    ],
    web_service_url: Annotated[
        str, typer.Option("--web-service-url", "-uw", help="Where admin tools of other clusters reach this one.")
    ],
    broker_service_url: Annotated[
        str, typer.Option("--broker-service-url", "-ub", help="Where clients of other clusters reach this one.")
    ] = "",
    transaction_coordinators: Annotated[
        int,
        typer.Option(
            "--initial-num-transaction-coordinators", min=1, max=10_000, help="Partitions of the coordinators' topic."
        ),
    ] = 16,
) -> None:
    """Prepare a metadata store for a new cluster: what bookies and brokers expect to find there.

    The same nodes as Apache's `pulsar initialize-cluster-metadata` makes, so that either side's processes can start on
    them. Running it again changes nothing but the cluster's URLs.
    Exit code: 0 done, 1 failed, 2 wrong options or settings.

    [dim]Example:[/]
      magnetar init-metadata --cluster test --metadata-store zk:localhost:2181 \\\\
        --web-service-url http://broker:8080 --broker-service-url pulsar://broker:6650
    """
    from magnetar.standalone.cluster_metadata import NewCluster, prepare_cluster
    from magnetar.standalone.commands.running import complete

    wanted = NewCluster(
        name=cluster,
        web_service_url=web_service_url,
        broker_service_url=broker_service_url,
        transaction_coordinators=transaction_coordinators,
    )
    made = complete(prepare_cluster(metadata_store, wanted))
    typer.echo(f"cluster {cluster} is prepared; instance {made}")


application.command()(init_metadata)
