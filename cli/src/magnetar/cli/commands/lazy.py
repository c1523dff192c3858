"""Groups of commands: how they are made, and one whose modules are loaded only when a command of it is called."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import typer
from magnetar.core.exit_codes import EXIT_USAGE
from typer.core import TyperCommand, TyperGroup


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
            return super().get_command(ctx, cmd_name)
        command = typer.main.get_command(importlib.import_module(found.module).application)
        assert isinstance(command, TyperCommand | TyperGroup)
        command.name = cmd_name
        return command

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Without any, the help page is shown, which typer expects rich to have printed."""
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
