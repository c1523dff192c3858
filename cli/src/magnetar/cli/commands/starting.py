"""Starts what a command is about: settings from its options, the environment and a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

import typer
from magnetar.cli.commands.options import LogLevel, environment

if TYPE_CHECKING:
    from magnetar.process.service import Service
    from magnetar.process.serving import Closable
    from magnetar.process.supervision.child import ProcessStart

    S = TypeVar("S", bound=Closable)

T = TypeVar("T")


def serve(
    service: Service[T, S],
    conf: Path | None,
    assignments: list[str] | None,
    options: dict[str, tuple[str, str]],
    *,
    check: bool,
    log_level: LogLevel,
) -> NoReturn:
    """Run the service in this process until it is told to stop; ends the command."""
    from magnetar.process.service import SettingSources, run_service

    sources = SettingSources(file=conf, environment=environment(), assignments=assignments or [], options=options)
    raise typer.Exit(run_service(service, sources, check_only=check, log_level=log_level.value))


def process_start(
    component: str,
    conf: Path | None,
    assignments: list[str] | None,
    options: dict[str, tuple[str, str]],
    log_level: LogLevel,
) -> ProcessStart:
    """What runs one process with the same settings, to which more may be added: they win."""
    from magnetar.process.supervision.child import ProcessStart

    command = (
        *(sys.executable, "-m", "magnetar.cli", component, "run", "--processes", "1", "--log-level", log_level.value),
        *(() if conf is None else ("--conf", str(conf))),
    )
    given = [*(assignments or []), *(f"{name}={value}" for name, (value, _) in options.items())]
    return ProcessStart(command=command, settings=tuple(given))
