"""Completion in shells: kubectl runs `kubectl_complete-pulsar` with the words after `kubectl pulsar`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

NAME: Final = "kubectl pulsar"
PROGRAM: Final = "kubectl-pulsar"
NO_FILES: Final = 4
"""kubectl reads a number at the end (cobra: ShellCompDirectiveNoFileComp): names of files are of no use here."""

SCRIPT: Final = """\
#!/bin/sh
# Completion of `kubectl pulsar`: put this on the PATH as kubectl_complete-pulsar, and make it executable.
exec kubectl-pulsar completion --words -- "$@"
"""


def completions(words: Sequence[str], application: Callable[..., object]) -> None:
    """Print what may come in place of the last word, which may be empty, one a line with its help after a tab."""
    from typer.completion import completion_init  # type: ignore[attr-defined]  # Its own module takes it from there.

    # The same questions that fish asks: its answers have the form that kubectl reads.
    os.environ["_KUBECTL_PULSAR_COMPLETE"] = "complete_fish"
    os.environ["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    os.environ["_TYPER_COMPLETE_ARGS"] = " ".join([PROGRAM, *words])
    completion_init()
    with contextlib.suppress(SystemExit):
        application(prog_name=NAME, complete_var="_KUBECTL_PULSAR_COMPLETE", args=[])
    sys.stdout.write(f":{NO_FILES}\n")
