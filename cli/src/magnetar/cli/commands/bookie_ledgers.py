"""`magnetar bookie list-ledgers|list-unnamed-ledgers|ledger-metadata|read-ledger|delete-ledger`."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from magnetar.cli.commands.options import BookieConfOption, ClusterStoreOption, JsonOption, with_cluster, with_store
from magnetar.cli.commands.output import (
    BodyFormat,
    Column,
    RowPrinter,
    body_lines,
    complain,
    human_time,
    note,
    progress,
    to_json,
)
from magnetar.core.exit_codes import EXIT_FAILED
from magnetar.core.text import human_bytes

if TYPE_CHECKING:
    from magnetar.cli.tools.cluster import ClusterAccess
    from magnetar.cli.tools.ledgers import ReadEntry
    from magnetar.metadata.store import MetadataStore
    from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata

LedgerArgument = Annotated[int, typer.Argument(metavar="LEDGER", min=0, help="The ledger's id.")]
PasswordOption = Annotated[
    str, typer.Option("--password", envvar="MAGNETAR_LEDGER_PASSWORD", help="The ledger's, if it has one.")
]


def list_ledgers(
    bookie: Annotated[
        str | None, typer.Option("--bookie", "-b", help="Only those that this bookie is named in.")
    ] = None,
    metadata: Annotated[bool, typer.Option("--metadata", "-M", help="Show what the metadata says.")] = False,
    conf: BookieConfOption = None,
    metadata_store: ClusterStoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the cluster's ledgers. This may take long: a large cluster has millions.

    [dim]Examples:[/]
      magnetar bookie list-ledgers -m zk:localhost:2181 --metadata
      magnetar bookie list-ledgers --bookie 10.0.0.5:3181 --json
    """
    from magnetar.cli.commands.running import complete
    from magnetar.cli.tools.ledgers import list_ledgers as find

    columns = [Column("ledger", lambda row: row.ledger_id, right=True)]
    if metadata:
        columns += [
            Column("state", lambda row: row.problem or row.state),
            Column("last entry", lambda row: row.last_entry_id, right=True),
            Column("length", lambda row: "" if row.length_bytes is None else human_bytes(row.length_bytes), right=True),
            Column("E/Qw/Qa", lambda row: f"{row.ensemble_size}/{row.write_quorum}/{row.ack_quorum}"),
            Column("created", lambda row: human_time(row.created_ms)),
            Column("bookies", lambda row: " ".join(row.bookies or ())),
        ]

    async def work(cluster: ClusterAccess) -> int:
        with RowPrinter(columns, as_json=as_json) as printer, progress("ledgers read") as report:
            rows = find(cluster.ledgers, bookie, metadata=metadata, on_read=lambda seen: report(seen, 0, ""))
            async for row in rows:
                printer.add(row)
        return printer.count

    if not complete(with_cluster(work, conf, metadata_store)):
        note("no such ledger")


def list_unnamed_ledgers(
    hours: Annotated[
        float, typer.Option("--older-than-hours", min=1.0, help="Younger ones may be about to be used.")
    ] = 24.0,
    conf: BookieConfOption = None,
    metadata_store: ClusterStoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List ledgers that were made for a topic or a subscription which does not name them: their space is lost.

    A broker that dies between making a ledger and writing down its id leaves one. Nothing is deleted:
    `magnetar bookie delete-ledger` does that. First make sure that no other cluster keeps its messages on these
    bookies, and its topics in another metadata store.

    [dim]Examples:[/]
      magnetar bookie list-unnamed-ledgers -m zk:localhost:2181
      magnetar bookie list-unnamed-ledgers --older-than-hours 168 --json
    """
    from magnetar.cli.commands.running import complete
    from magnetar.cli.tools.unnamed_ledgers import unnamed_ledgers as find
    from magnetar.core.clock import SystemClock

    columns = (
        Column("ledger", lambda row: row.ledger_id, right=True),
        Column("topic", lambda row: row.topic),
        Column("subscription", lambda row: row.cursor),
        Column("last entry", lambda row: row.last_entry_id, right=True),
        Column("length", lambda row: human_bytes(row.length_bytes), right=True),
        Column("created", lambda row: human_time(row.created_ms)),
        Column("why", lambda row: "names others" if row.node_exists else "is not there"),
    )
    created_before_ms = SystemClock().now_ms() - int(hours * 3_600_000)

    async def work(store: MetadataStore) -> int:
        with RowPrinter(columns, as_json=as_json) as printer, progress("ledgers read") as report:
            async for row in find(store, created_before_ms, lambda seen: report(seen, 0, "")):
                printer.add(row)
        return printer.count

    if not complete(with_store(work, conf, metadata_store)):
        note("every ledger that is old enough is named")


def ledger_metadata(
    ledger: LedgerArgument,
    conf: BookieConfOption = None,
    metadata_store: ClusterStoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a ledger's metadata: its state, where its entries are, and whose it is.

    --json prints what BookKeeper's HTTP API answers.

    [dim]Examples:[/]
      magnetar bookie ledger-metadata 12 -m zk:localhost:2181
      magnetar bookie ledger-metadata 12 --json
    """
    from magnetar.cli.commands.running import complete
    from magnetar.ledger.metadata_ops import LedgerMetadataOps

    found, _ = complete(with_store(lambda store: LedgerMetadataOps(store).read(ledger), conf, metadata_store))
    if as_json:
        from magnetar.bookie.admin.ledger_routes import metadata_fields

        typer.echo(to_json({str(ledger): metadata_fields(ledger, found)}, indent=2))
        return
    for title, value in metadata_lines(ledger, found):
        typer.echo(f"{title:14}{value}")


def metadata_lines(ledger: int, metadata: LedgerMetadata) -> list[tuple[str, str]]:
    """Metadata for people: (title, text)."""
    lines = [
        ("ledger", str(ledger)),
        ("state", metadata.state.name),
        ("last entry", str(metadata.last_entry_id)),
        ("length", f"{metadata.length_bytes} ({human_bytes(metadata.length_bytes)})"),
        ("E/Qw/Qa", f"{metadata.ensemble_size}/{metadata.write_quorum}/{metadata.ack_quorum}"),
        ("digest", metadata.digest_type or "unknown"),
        ("password", base64.b64encode(metadata.password).decode() if metadata.password else "none"),
        ("created", human_time(metadata.created_ms) or "unknown"),
    ]
    for first_entry_id, bookies in metadata.ensembles:
        lines.append((f"from {first_entry_id}", " ".join(bookies)))
    lines += [(key, value.decode("utf-8", "replace")) for key, value in sorted(metadata.custom_metadata.items())]
    return [(f"{title}  " if len(title) > 12 else title, value) for title, value in lines]


def read_ledger(
    ledger: LedgerArgument,
    first: Annotated[int, typer.Option("--from", min=0, help="First entry.")] = 0,
    last: Annotated[int | None, typer.Option("--to", min=0, help="Last entry; without: the last there is.")] = None,
    body_format: Annotated[
        BodyFormat, typer.Option("--format", "-f", help="How to show the entries.")
    ] = BodyFormat.HEX,
    bookie: Annotated[str | None, typer.Option("--bookie", "-b", help="Ask only this bookie.")] = None,
    force_recovery: Annotated[
        bool,
        typer.Option("--force-recovery", "-r", help="Fence and close the ledger first: its writer cannot go on."),
    ] = False,
    password: PasswordOption = "",
    conf: BookieConfOption = None,
    metadata_store: ClusterStoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read a ledger's entries.

    Without --force-recovery an open ledger is read as far as its entries are known to be confirmed, and nothing
    changes. An entry that cannot be read is named, and reading goes on.
    Exit code: 0 done, 1 entries could not be read, 2 wrong options or settings.

    [dim]Examples:[/]
      magnetar bookie read-ledger 12 --from 5 --to 9 --format text
      magnetar bookie read-ledger 12 --bookie 10.0.0.5:3181 --format none
    """
    from magnetar.cli.commands.running import complete
    from magnetar.cli.tools.ledgers import EntryRange, read_from_bookie
    from magnetar.cli.tools.ledgers import read_ledger as read

    wanted = EntryRange(first_entry_id=first, last_entry_id=last)

    async def work(cluster: ClusterAccess) -> int:
        if bookie is None:
            entries = read(cluster, ledger, wanted, password=password.encode(), recover=force_recovery)
        else:
            connection = cluster.connections.connection(bookie)
            entries = read_from_bookie(cluster.ledgers, connection, ledger, wanted, password=password.encode())
        return await _print_entries(entries, body_format, as_json=as_json)

    if complete(with_cluster(work, conf, metadata_store)):
        raise typer.Exit(EXIT_FAILED)


async def _print_entries(entries: AsyncIterator[ReadEntry], body_format: BodyFormat, *, as_json: bool) -> int:
    """How many could not be read."""
    problems = 0
    with RowPrinter((), as_json=as_json, plain=True) as printer:
        async for entry in entries:
            if entry.problem:
                problems += 1
                complain(f"entry {entry.entry_id}: {entry.problem}")
            if as_json:
                printer.add(_json_entry(entry, body_format))
            elif not entry.problem:
                typer.echo(f"entry {entry.entry_id}, {len(entry.payload)} bytes")
                for line in body_lines(entry.payload, body_format):
                    typer.echo(f"    {line}")
    return problems


def _json_entry(entry: ReadEntry, body_format: BodyFormat) -> dict[str, Any]:
    found: dict[str, Any] = {"entry_id": entry.entry_id, "size_bytes": len(entry.payload), "problem": entry.problem}
    if body_format is BodyFormat.TEXT:
        found["text"] = entry.payload.decode("utf-8", "replace")
    elif body_format is BodyFormat.HEX:
        found["hex"] = entry.payload.hex()
    return found


def delete_ledger(
    ledger: LedgerArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    conf: BookieConfOption = None,
    metadata_store: ClusterStoreOption = None,
) -> None:
    """Delete a ledger for good. Its entries go with the bookies' next garbage collection."""
    from magnetar.cli.commands.running import complete
    from magnetar.ledger.metadata_ops import LedgerMetadataOps

    async def work(store: MetadataStore) -> None:
        ledgers = LedgerMetadataOps(store)
        metadata, _ = await ledgers.read(ledger)
        if not yes:
            owner = metadata.custom_metadata.get("pulsar/managed-ledger", b"").decode("utf-8", "replace")
            whose = f", a part of {owner}" if owner else ""
            typer.confirm(f"Delete ledger {ledger}{whose}, {metadata.length_bytes} bytes?", abort=True)
        await ledgers.delete(ledger)

    complete(with_store(work, conf, metadata_store))
    note(f"ledger {ledger} is deleted")
