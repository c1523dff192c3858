"""`magnetar bookie list-bookies|cookie …|instance-id`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from magnetar.cli.commands.lazy import command_group
from magnetar.cli.commands.options import BookieConfOption, ClusterStoreOption, JsonOption, with_cluster, with_store
from magnetar.cli.commands.output import Column, complain, note, show_rows, warn
from magnetar.core.exit_codes import EXIT_FAILED
from magnetar.core.text import human_bytes

BookieArgument = Annotated[str, typer.Argument(metavar="BOOKIE_ID", help="The bookie's id, such as 10.0.0.5:3181.")]


def list_bookies(
    writable: Annotated[bool, typer.Option("--writable", "-rw", help="Those that take writes.")] = False,
    read_only: Annotated[bool, typer.Option("--read-only", "-ro", help="Those that are read-only.")] = False,
    everyone: Annotated[
        bool, typer.Option("--all", "-a", help="Those that are down as well: every one that has a cookie.")
    ] = False,
    usage: Annotated[bool, typer.Option("--usage/--no-usage", help="Ask them how full their disks are.")] = True,
    conf: BookieConfOption = None,
    metadata_store: ClusterStoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the cluster's bookies: who is up, in which rack, on which machine if several share one, how full.

    [dim]Examples:[/]
      magnetar bookie list-bookies -m zk:localhost:2181
      magnetar bookie list-bookies -ro --json
    """
    from magnetar.cli.commands.running import complete
    from magnetar.cli.tools.bookies import BookieMode
    from magnetar.cli.tools.bookies import list_bookies as find

    chosen = {BookieMode.WRITABLE: writable, BookieMode.READ_ONLY: read_only, BookieMode.DOWN: False}
    modes = {mode for mode, wanted in chosen.items() if wanted} or {BookieMode.WRITABLE, BookieMode.READ_ONLY}
    wanted = frozenset(BookieMode if everyone else modes)

    rows = complete(with_cluster(partial(find, modes=wanted, ask=usage), conf, metadata_store))
    columns = [
        Column("bookie", lambda row: row.bookie_id),
        Column("mode", lambda row: row.mode.value),
        Column("address", lambda row: "" if row.address == row.bookie_id else row.address),
        Column("rack", lambda row: row.rack),
    ]
    if any(row.machine for row in rows):
        columns.append(Column("machine", lambda row: row.machine))
    if usage:
        columns += [
            Column("disk", lambda row: _bytes(row.total_bytes), right=True),
            Column("free", lambda row: _bytes(row.free_bytes), right=True),
            Column("used", lambda row: _share(row.free_bytes, row.total_bytes), right=True),
        ]
    show_rows(rows, columns, as_json=as_json, none="no such bookie")
    for row in rows:
        if row.problem:
            warn(f"{row.bookie_id} does not say how full it is: {row.problem}")


def _bytes(count: int | None) -> str:
    return "" if count is None else human_bytes(count)


def _share(free: int | None, total: int | None) -> str:
    return "" if free is None or not total else f"{1 - free / total:.1%}"


cookie = command_group(
    "cookie", "Look at, restore or remove bookies' cookies: the proof that id, directories and cluster belong together."
)


@cookie.command("get")
def get_cookie(
    bookie_id: BookieArgument, conf: BookieConfOption = None, metadata_store: ClusterStoreOption = None
) -> None:
    """Print a bookie's cookie as the metadata store has it."""
    from magnetar.cli.commands.running import complete
    from magnetar.cli.tools.bookies import read_cookie

    found = complete(with_store(partial(read_cookie, bookie_id=bookie_id), conf, metadata_store))
    if found is None:
        complain(f"{bookie_id} has no cookie")
        raise typer.Exit(EXIT_FAILED)
    typer.echo(found.rstrip("\n"))


@cookie.command("create")
def create_cookie(
    bookie_id: BookieArgument,
    file: Annotated[Path, typer.Argument(help="Its file, such as current/VERSION of one of its directories.")],
    conf: BookieConfOption = None,
    metadata_store: ClusterStoreOption = None,
) -> None:
    """Give a bookie that has no cookie the one that a file holds.

    Do it only when nobody has taken its place meanwhile: a bookie with a cookie counts as one that has its entries.
    """
    from magnetar.cli.commands.running import complete, guarded
    from magnetar.cli.tools.bookies import create_cookie as create

    with guarded():
        content = file.read_bytes()
    complete(with_store(partial(create, bookie_id=bookie_id, content=content), conf, metadata_store))
    note(f"{bookie_id} has its cookie")


@cookie.command("delete")
def delete_cookie(
    bookie_id: BookieArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    conf: BookieConfOption = None,
    metadata_store: ClusterStoreOption = None,
) -> None:
    """Remove the cookie of a bookie that is stopped.

    Only for one whose entries are all elsewhere: `magnetar bookie decommission` checks that, and does this itself.
    """
    from magnetar.cli.commands.running import complete
    from magnetar.cli.tools.bookies import delete_cookie as delete

    if not yes:
        typer.confirm(f"Remove the cookie of {bookie_id}, so that it cannot start on its data any more?", abort=True)
    complete(with_store(partial(delete, bookie_id=bookie_id), conf, metadata_store))
    note(f"the cookie of {bookie_id} is gone")


def instance_id(conf: BookieConfOption = None, metadata_store: ClusterStoreOption = None) -> None:
    """Print the cluster's instance id, which stands in every cookie."""
    from magnetar.bookie.cookie import INSTANCE_ID_PATH
    from magnetar.cli.commands.running import complete

    found = complete(with_store(lambda store: store.get(INSTANCE_ID_PATH), conf, metadata_store))
    if found is None:
        complain("no cluster here: `magnetar init-metadata` prepares one")
        raise typer.Exit(EXIT_FAILED)
    typer.echo(found.value.decode("utf-8", "replace"))
