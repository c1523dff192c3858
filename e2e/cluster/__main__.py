"""Runs a whole cluster on this machine until it is told to stop: `python -m e2e.cluster --help`."""

from __future__ import annotations

import shutil
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer
from magnetar.metadata.testing import EtcdServer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from e2e import processes
from e2e.cluster.local import FREE_PORTS, LocalCluster, Ports, Size

PORTS = Ports(bookies=3181, brokers=6660, brokers_http=8090, proxies=6650, proxies_http=8080)
REFRESH_SECONDS = 1.0
CONSOLE = Console()


def main(
    brokers: Annotated[int, typer.Option(min=1, max=50, help="How many brokers.")] = 3,
    bookies: Annotated[
        int, typer.Option(min=1, max=50, help="How many bookies; three copies where there are three.")
    ] = 4,
    proxies: Annotated[int, typer.Option(min=0, max=50, help="How many proxies.")] = 1,
    zookeepers: Annotated[int, typer.Option(min=1, max=7, help="How many ZooKeeper servers.")] = 1,
    etcd: Annotated[bool, typer.Option("--etcd", help="Metadata in etcd instead of ZooKeeper.")] = False,
    data: Annotated[Path, typer.Option(help="Where everything is kept.")] = Path("build/cluster"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what an earlier cluster kept there.")] = False,
    free_ports: Annotated[
        bool, typer.Option("--free-ports", help="Take free ports instead of the usual ones.")
    ] = False,
) -> None:
    """Run ZooKeeper, bookies, brokers and a proxy as processes of this machine, until Ctrl-C.

    Clients connect to pulsar://127.0.0.1:6650, tools to http://127.0.0.1:8080; both are the proxy's. Logs and settings
    files stand in the data folder, each beside its part."""
    if fresh:
        shutil.rmtree(data, ignore_errors=True)
    size = Size(zookeepers=zookeepers, bookies=bookies, brokers=brokers, proxies=proxies)
    told_to_stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: told_to_stop.set())
    data = data.resolve()
    metadata = EtcdServer(data / "etcd") if etcd else None
    with LocalCluster(data, size, ports=FREE_PORTS if free_ports else PORTS, metadata=metadata) as cluster:
        with CONSOLE.status("starting") as status:
            cluster.start(lambda what: status.update(f"starting {what}"))
        CONSOLE.print(
            f"[bold green]ready[/]  clients: [bold]{cluster.service_url}[/]  tools: [bold]{cluster.admin_url}[/]"
        )
        if CONSOLE.is_terminal:
            with Live(console=CONSOLE, auto_refresh=False) as live:
                while not told_to_stop.wait(REFRESH_SECONDS):
                    live.update(table(cluster), refresh=True)
        else:
            CONSOLE.print(table(cluster))
            told_to_stop.wait()
        with CONSOLE.status("stopping"):
            cluster.stop()


def table(cluster: LocalCluster) -> Table:
    """Each part: where it is and what it costs."""
    shown = Table(box=None, header_style="bold")
    for column in ("part", "pid", "state"):
        shown.add_column(column)
    for column in ("memory", "CPU s"):
        shown.add_column(column, justify="right")
    shown.add_column("address")
    for part in cluster.parts:
        pids = part.pids
        state = "[green]running[/]" if pids else "[red]down[/]"
        memory = f"{processes.memory(pids).pss_bytes / 2**20:.0f} MB" if pids else ""
        seconds = f"{processes.cpu_seconds(pids):.1f}" if pids else ""
        shown.add_row(part.folder.name, str(pids[0]) if pids else "", state, memory, seconds, part.address)
    shown.add_row("metadata", "", "", "", "", cluster.settings.metadata_url)
    return shown


if __name__ == "__main__":
    typer.run(main)
