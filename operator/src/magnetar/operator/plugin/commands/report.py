"""`kubectl pulsar report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from magnetar.operator.plugin.options import ClusterArgument, kubernetes_command
from magnetar.operator.plugin.running import done, note, run
from magnetar.operator.plugin.target import Target

if TYPE_CHECKING:
    from magnetar.operator.plugin.kubernetes import Kubernetes


@kubernetes_command
def report(
    where: Target,
    cluster: ClusterArgument = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="By default CLUSTER-TIME.tar.gz here.", show_default=False),
    ] = None,
    logs: Annotated[bool, typer.Option("--logs/--no-logs", help="With the pods' logs.")] = True,
) -> None:
    """Write all that helps with a problem into one file: resources, objects, events, logs, the operator's too.

    Secrets are not read, and values of settings and variables that are named like secrets are blotted out. Logs are
    taken as they are: look through them before you publish the file. What you may not read is left out and named.

    [dim]Example:[/]
      kubectl pulsar report demo
    """
    run(where, lambda kubernetes: _report(kubernetes, cluster, file, logs=logs))


async def _report(kubernetes: Kubernetes, cluster: str | None, file: Path | None, *, logs: bool) -> None:
    import asyncio
    from datetime import UTC, datetime

    from magnetar.operator.plugin.collect import find_cluster, see_cluster
    from magnetar.operator.plugin.reporting import collect_report

    manifest = await find_cluster(kubernetes, cluster)
    name = manifest["metadata"]["name"]
    view = await see_cluster(kubernetes, name)
    found = await collect_report(kubernetes, view, manifest, logs=logs)
    folder = f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    where = file or Path(f"{folder}.tar.gz")
    await asyncio.to_thread(where.write_bytes, found.packed(folder))
    for text in found.missing:
        note(f"left out: {text}")
    done(f"{where} has {len(found.files)} files about {name}; read through its logs before you publish it")
