"""The commands of `kubectl pulsar`: kubectl finds `kubectl-pulsar` on the path."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from magnetar.core.standard_streams import fill_standard_streams
from magnetar.operator.plugin.commands import completion, connect, drain, logs, report, status, switches, top, unload
from magnetar.operator.plugin.completion import NAME, completions
from magnetar.operator.plugin.options import command_group

application = command_group(NAME, "Look at Pulsar clusters on Kubernetes, and steer them.")


def _print_version(wanted: bool) -> None:
    if wanted:
        import importlib.metadata  # 10 ms that only this option needs.

        typer.echo(f"kubectl-pulsar {importlib.metadata.version('magnetar-operator')}")
        raise typer.Exit


@application.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    del version


application.command(rich_help_panel="Look")(status.status)
application.add_typer(top.application, rich_help_panel="Look")
application.command(rich_help_panel="Look")(logs.logs)
application.command(rich_help_panel="Look")(report.report)
application.command(rich_help_panel="Use")(connect.connect)
application.command(rich_help_panel="Use")(completion.completion)
application.add_typer(drain.application, rich_help_panel="Steer")
for command in (
    drain.replace,
    unload.unload,
    switches.restart,
    switches.pause,
    switches.resume,
    switches.hibernate,
    switches.wake,
):
    application.command(rich_help_panel="Steer")(command)


def complete() -> None:
    """Run the command `kubectl_complete-pulsar`, by which kubectl completes what is typed."""
    completions(sys.argv[1:], application)


def main() -> None:
    """Run the command `kubectl-pulsar`."""
    fill_standard_streams()
    application(prog_name=NAME)
