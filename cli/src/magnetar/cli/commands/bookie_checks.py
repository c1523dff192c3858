"""`magnetar bookie sanity-test|simple-test`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer
from magnetar.cli.commands.options import (
    BookieConfOption,
    ClusterStoreOption,
    JsonOption,
    bookie_given,
    with_cluster,
)
from magnetar.cli.commands.output import Column, progress, show_object

if TYPE_CHECKING:
    from pathlib import Path

    from magnetar.bookie.operating.sanity import CheckResult
    from magnetar.cli.tools.cluster import ClusterAccess

EntriesOption = Annotated[int, typer.Option("--entries", "-n", min=1, max=10_000_000, help="Entries to write.")]

LABELS = (
    Column("ledger", lambda row: f"{row.ledger_id}, deleted again"),
    Column("entries", lambda row: row.entries),
    Column("bookies", lambda row: " ".join(row.bookies)),
    Column("written in", lambda row: f"{row.write_seconds:.3f} s"),
    Column("read in", lambda row: f"{row.read_seconds:.3f} s"),
)


def sanity_test(
    bookie_id: Annotated[
        str | None, typer.Argument(metavar="[BOOKIE_ID]", help="Which bookie; without: the one that --conf describes.")
    ] = None,
    entries: EntriesOption = 10,
    conf: BookieConfOption = None,
    metadata_store: ClusterStoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Test one bookie: write a ledger to it alone, read it back, delete it.

    [dim]Examples:[/]
      magnetar bookie sanity-test --conf bookkeeper.conf
      magnetar bookie sanity-test 10.0.0.5:3181 -m zk:localhost:2181 --entries 100
    """
    from magnetar.bookie.operating.sanity import check_bookie
    from magnetar.cli.commands.running import guarded

    with guarded():
        name = bookie_id or configured_bookie_id(conf)

    async def work(cluster: ClusterAccess, report: Callable[[int, int], None]) -> CheckResult:
        return await check_bookie(cluster.store, cluster.connections, name, entries, report)

    _run(work, conf, metadata_store, as_json)


def simple_test(
    ensemble: Annotated[int, typer.Option("--ensemble", "-e", min=1, help="Bookies to spread the ledger over.")] = 3,
    write_quorum: Annotated[int, typer.Option("--write-quorum", "-w", min=1, help="Copies of each entry.")] = 2,
    ack_quorum: Annotated[int, typer.Option("--ack-quorum", "-a", min=1, help="Copies to wait for.")] = 2,
    entries: EntriesOption = 1000,
    conf: BookieConfOption = None,
    metadata_store: ClusterStoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Test the cluster: write a ledger, read it back, delete it.

    [dim]Example:[/]
      magnetar bookie simple-test -m zk:localhost:2181 \\
        --ensemble 3 --write-quorum 3 --ack-quorum 2
    """
    from magnetar.bookie.operating.sanity import check
    from magnetar.ledger.api import LedgerOptions

    if not ensemble >= write_quorum >= ack_quorum:
        raise typer.BadParameter("it must be that --ensemble >= --write-quorum >= --ack-quorum")
    options = LedgerOptions(ensemble_size=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)

    async def work(cluster: ClusterAccess, report: Callable[[int, int], None]) -> CheckResult:
        connections = cluster.connections
        return await check(cluster.store, connections, options, entries, report, connections.places)

    _run(work, conf, metadata_store, as_json)


def _run(
    work: Callable[[ClusterAccess, Callable[[int, int], None]], Awaitable[CheckResult]],
    conf: Path | None,
    metadata_store: str | None,
    as_json: bool,
) -> None:
    from magnetar.cli.commands.running import complete

    with progress("entries written and read") as report:

        def told(done: int, total: int) -> None:
            report(done, total, "")

        result = complete(with_cluster(lambda cluster: work(cluster, told), conf, metadata_store))
    show_object(result, as_json=as_json, labels=LABELS)


def configured_bookie_id(conf: Path | None) -> str:
    """The id of the bookie that a settings file describes. `SettingError`."""
    from magnetar.bookie.process.bookie import bookie_process_settings

    return bookie_process_settings(bookie_given(conf)).bookie.registered_id
