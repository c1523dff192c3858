"""Groups of commands: how they are made, and one whose modules are loaded only when a command of it is called."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import typer
from magnetar.core.exit_codes import EXIT_USAGE
from typer.core import TyperCommand, TyperGroup

_HELP: Final = frozenset(("-h", "--help"))


def command_group(name: str | None = None, told: str | None = None) -> typer.Typer:
    """What holds the commands of a module: `told` is what its help page says. Without a name it is one command."""
    return typer.Typer(
        add_completion=False,
        name=name,
        help=told,
        no_args_is_help=name is not None,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )


@dataclass(frozen=True, slots=True)
class Deferred:
    """A command that is not loaded yet."""

    module: str
    """Has the command, or the group, as `application`."""
    help: str
    """The line in the list of commands."""


class LazyGroup(TyperGroup):
    """Lists its commands without loading them, in plain text: rich alone would take a quarter of a second."""

    deferred: ClassVar[Mapping[str, Deferred]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the order of the help page."""
        return [*super().list_commands(ctx), *self.deferred]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name, loaded; None when there is none."""
        found = self.deferred.get(cmd_name)
        if found is None or cmd_name in self.commands:
            known = super().get_command(ctx, cmd_name)
            if isinstance(known, TyperCommand | TyperGroup):
                _rejoin_help(known)
            return known
        command = typer.main.get_command(importlib.import_module(found.module).application)
        assert isinstance(command, TyperCommand | TyperGroup)
        command.name = cmd_name
        _rejoin_help(command)
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first word names. Of a word that is none the error names those that are like it."""
        names = self.list_commands(ctx)
        if args and args[0] not in names:
            alike = " or ".join(repr(name) for name in difflib.get_close_matches(args[0], names))
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {alike}?" if alike else ""))
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Without any, the help page is shown, which typer expects rich to have printed."""
        if len(args) > 1 and not _HELP.isdisjoint(args):
            _fold_names()
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit(EXIT_USAGE)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help page, without rich."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_options(ctx, formatter)
        self.format_epilog(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of commands."""
        width = formatter.width - 6 - max(map(len, self.list_commands(ctx)), default=0)
        rows = [(name, command.get_short_help_str(width)) for name, command in self.commands.items()]
        rows += [(name, found.help) for name, found in self.deferred.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@functools.cache
def _fold_names() -> None:
    """Has long names of options stand in two lines of a help page, which would end in `…`: nobody could type them.
    Typer has no setting for that."""
    from rich.table import Table
    from rich.text import Text
    from typer import rich_utils

    class FoldingTable(Table):
        def add_row(self, *renderables: Any, **options: Any) -> None:
            for cell in renderables:
                if isinstance(cell, Text):
                    cell.overflow = "fold"
            super().add_row(*renderables, **options)

    vars(rich_utils)["Table"] = FoldingTable


def _rejoin_help(command: TyperCommand | TyperGroup) -> None:
    if command.help:
        command.help = rejoined(command.help)
    if isinstance(command, TyperGroup):
        for each in command.commands.values():
            assert isinstance(each, TyperCommand | TyperGroup)
            _rejoin_help(each)


def rejoined(text: str) -> str:
    """A docstring whose sentences run on over line ends, so that a terminal of any width breaks them by itself.

    A line that ends a sentence stays one, and so do indented lines: examples."""
    lines: list[str] = []
    for line in inspect.cleandoc(text).splitlines():
        if lines and lines[-1] and line and not line.startswith(" ") and lines[-1][-1] not in ".:]":
            lines[-1] += " " + line
        else:
            lines.append(line)
    return "\n".join(lines)
