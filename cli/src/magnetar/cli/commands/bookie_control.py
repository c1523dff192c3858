"""`magnetar bookie state|drain|trigger-gc|read-only`: a running bookie, through its control port."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from magnetar.cli.commands.bookie_recovery import drain_report, show_drain
from magnetar.cli.commands.options import JsonOption
from magnetar.cli.commands.output import Column, human_time, note, progress, show_object
from magnetar.core.exit_codes import EXIT_FAILED
from magnetar.core.text import human_bytes

if TYPE_CHECKING:
    from magnetar.bookie.operations import BookieDrainState
    from magnetar.cli.tools.control import RunningState
    from magnetar.control.client import BookieControl
    from magnetar.control.settings import ControlClientTls

ControlArgument = Annotated[str, typer.Argument(metavar="HOST:PORT", help="The bookie's control port.")]
TokenOption = Annotated[
    str,
    typer.Option(
        "--token", envvar="MAGNETAR_CONTROL_TOKEN", show_default=False, help="Its token.", rich_help_panel="Connection"
    ),
]
AuthorityOption = Annotated[
    Path | None,
    typer.Option("--tls-authority", help="Use TLS; the authority's certificate.", rich_help_panel="Connection"),
]
CertificateOption = Annotated[
    Path | None, typer.Option("--tls-certificate", help="Our own certificate.", rich_help_panel="Connection")
]
KeyOption = Annotated[Path | None, typer.Option("--tls-key", help="Its key.", rich_help_panel="Connection")]


PORT_MAX: Final = 65_535
"""The largest port there is; gRPC would take a larger one for the rest of a division."""
PROBLEMS_NAMED_MAX: Final = 5
"""In the table; JSON has all that the bookie tells."""


def _control(address: str, token: str, tls: ControlClientTls | None) -> BookieControl:
    from magnetar.control.client import BookieControl
    from magnetar.core.errors import SettingError

    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port[:6]) <= PORT_MAX:
        raise SettingError(f"{address!r} is no HOST:PORT, such as 10.0.0.5:3182")
    return BookieControl.to(address, token=token, tls=tls)


def _tls(authority: Path | None, certificate: Path | None, key: Path | None) -> ControlClientTls | None:
    from magnetar.control.settings import ControlClientTls

    if authority is None and certificate is None:
        return None
    return ControlClientTls(authority_file=authority, certificate_file=certificate, key_file=key)


def _limbo(row: RunningState) -> str:
    limbo = row.limbo
    if not limbo.in_limbo:
        return "no"
    of = f" of {limbo.ledgers_total}" if limbo.ledgers_total else ""
    since = f", since {human_time(limbo.since_ms)}" if limbo.since_ms else ""
    return f"ledgers: {limbo.ledgers}{of}{since}; entries fetched from the other bookies: {limbo.entries_fetched}"


def _unhealed(row: RunningState) -> str:
    limbo = row.limbo
    if not limbo.ledgers_unhealed:
        return ""
    named = "; ".join(
        f"ledger {problem.ledger_id}: {problem.reason}" for problem in limbo.problems[:PROBLEMS_NAMED_MAX]
    )
    return f"ledgers: {limbo.ledgers_unhealed}; entries lost for certain: {limbo.entries_lost}; {named}"


STATE_LABELS = (
    Column("bookie", lambda row: row.bookie_id),
    Column("state", lambda row: "running" if row.running else "stopping" if row.shutting_down else "not running"),
    Column("mode", lambda row: "read-only" if row.read_only else "writable"),
    Column("because", lambda row: "; ".join(row.read_only_reasons)),
    Column("limbo", _limbo),
    Column("not healed", _unhealed),
    Column("damage", lambda row: "; ".join(row.limbo.damage)),
    Column("ledgers", lambda row: row.ledgers),
    Column("entries", lambda row: row.entries),
    Column("entry logs", lambda row: f"{human_bytes(row.entry_log_bytes)} at the last collection"),
    Column(
        "write cache", lambda row: f"{human_bytes(row.write_cache_bytes)} of {human_bytes(row.write_cache_bytes_max)}"
    ),
    Column("journal queue", lambda row: human_bytes(row.journal_queue_bytes)),
    Column(
        "disks",
        lambda row: ", ".join(
            f"{disk.directory} ({disk.kind}) {human_bytes(disk.free_bytes)} free of {human_bytes(disk.total_bytes)}"
            for disk in row.directories
        ),
    ),
)


def state(
    control: ControlArgument,
    token: TokenOption = "",
    authority: AuthorityOption = None,
    certificate: CertificateOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a running bookie holds, and whether it takes writes.

    [dim]Example:[/]
      magnetar bookie state 10.0.0.5:3182
    """
    from magnetar.cli.commands.running import complete
    from magnetar.cli.tools.control import running_state

    async def work() -> RunningState:
        async with _control(control, token, _tls(authority, certificate, key)) as bookie:
            return running_state(await bookie.storage_state())

    show_object(complete(work()), as_json=as_json, labels=STATE_LABELS)


class Switch(enum.StrEnum):
    """The position of a switch."""

    ON = "on"
    OFF = "off"


def read_only(
    control: ControlArgument,
    position: Annotated[Switch, typer.Argument(metavar="on|off", help="on: take no writes; off: take them again.")],
    token: TokenOption = "",
    authority: AuthorityOption = None,
    certificate: CertificateOption = None,
    key: KeyOption = None,
) -> None:
    """Switch a running bookie's read-only mode; it outlives a restart.

    [dim]Example:[/]
      magnetar bookie read-only 10.0.0.5:3182 on
    """
    from magnetar.cli.commands.running import complete
    from magnetar.cli.tools.control import running_state

    async def work() -> RunningState:
        async with _control(control, token, _tls(authority, certificate, key)) as bookie:
            return running_state(await bookie.set_read_only(read_only=position is Switch.ON))

    found = complete(work())
    note(f"{found.bookie_id} is {'read-only' if found.read_only else 'writable'}")


def trigger_gc(
    control: ControlArgument,
    major: Annotated[
        bool | None, typer.Option("--major/--no-major", help="Compact logs that are half empty, or do not.")
    ] = None,
    minor: Annotated[
        bool | None, typer.Option("--minor/--no-minor", help="Compact logs that are nearly empty, or do not.")
    ] = None,
    token: TokenOption = "",
    authority: AuthorityOption = None,
    certificate: CertificateOption = None,
    key: KeyOption = None,
) -> None:
    """Have a running bookie collect garbage now: deleted ledgers, empty entry logs, and compaction.

    [dim]Example:[/]
      magnetar bookie trigger-gc 10.0.0.5:3182 --major
    """
    from magnetar.cli.commands.running import complete

    async def work() -> None:
        async with _control(control, token, _tls(authority, certificate, key)) as bookie:
            await bookie.collect_garbage(force_major=major, force_minor=minor)

    complete(work())
    note("the collection has begun; the bookie's log and metrics tell what it did")


def drain(
    control: ControlArgument,
    status: Annotated[bool, typer.Option("--status", help="Only show how far it is.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Stop it: the bookie takes writes again.")] = False,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Stay until it is done.")] = True,
    token: TokenOption = "",
    authority: AuthorityOption = None,
    certificate: CertificateOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move everything off a running bookie, then take it out of the cluster.

    The bookie does it by itself and goes on after a restart; Ctrl-C only ends the watching.
    Exit code: 0 done (with --status, --cancel or --no-follow: answered), 1 not done, 2 wrong options.

    [dim]Examples:[/]
      magnetar bookie drain 10.0.0.5:3182
      magnetar bookie drain 10.0.0.5:3182 --status --json
    """
    from magnetar.bookie.operations import BookieDrainStep
    from magnetar.cli.commands.running import complete
    from magnetar.cli.tools.control import drain_state, follow_drain

    async def work() -> BookieDrainState:
        async with _control(control, token, _tls(authority, certificate, key)) as bookie:
            if status:
                return drain_state(await bookie.drain())
            if cancel:
                return drain_state(await bookie.cancel_drain())
            found = drain_state(await bookie.start_drain())
            if follow:
                with progress(f"ledgers moved off {found.bookie_id}") as report:
                    async for found in follow_drain(bookie):
                        report(*drain_report(found))
            return found

    found = complete(work())
    show_drain(found, as_json=as_json)
    if follow and not (status or cancel) and found.step is not BookieDrainStep.DONE:
        raise typer.Exit(EXIT_FAILED)
