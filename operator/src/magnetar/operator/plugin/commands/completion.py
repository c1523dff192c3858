"""`kubectl pulsar completion`."""

from __future__ import annotations

from typing import Annotated

import typer


def completion(
    context: typer.Context,
    arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    words: Annotated[bool, typer.Option("--words", hidden=True)] = False,
) -> None:
    """Print the script by which kubectl completes `kubectl pulsar …`: put it on the PATH as kubectl_complete-pulsar.

    Needs kubectl's own completion in the shell (`kubectl completion --help`).

    [dim]Example:[/]
      kubectl pulsar completion > ~/.local/bin/kubectl_complete-pulsar
      chmod +x ~/.local/bin/kubectl_complete-pulsar
    """
    from magnetar.operator.plugin.completion import SCRIPT, completions

    if words:
        completions(arguments or [""], context.find_root().command)
    else:
        typer.echo(SCRIPT, nl=False)
