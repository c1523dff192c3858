"""Options that several commands have."""

from __future__ import annotations

import enum
import os
from pathlib import Path
from typing import Annotated

import typer


class LogLevel(enum.StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


LogLevelOption = Annotated[LogLevel, typer.Option("--log-level", "-l", help="How much to log, on standard error.")]

CheckOption = Annotated[bool, typer.Option("--check", help="Look at the settings and leave without starting.")]

AssignmentsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A setting by Apache's name, over file and environment. May be repeated.",
        rich_help_panel="Settings",
    ),
]

MetadataStoreOption = Annotated[
    str | None,
    typer.Option(
        "--metadata-store",
        "-m",
        metavar="URL",
        help="zk:host:2181,host:2181/chroot, or zk+hierarchical://host:2181;host:2181/ledgers.",
        rich_help_panel="Settings",
    ),
]

BookieConfOption = Annotated[
    Path | None,
    typer.Option(
        "--conf",
        "-c",
        metavar="FILE",
        envvar=["BOOKIE_CONF", "PULSAR_BOOKKEEPER_CONF"],
        help="A bookkeeper.conf, as Apache's bookies read it.",
        rich_help_panel="Settings",
    ),
]

BrokerConfOption = Annotated[
    Path | None,
    typer.Option(
        "--conf",
        "-c",
        metavar="FILE",
        envvar=["PULSAR_BROKER_CONF"],
        help="A broker.conf, as Apache's brokers read it.",
        rich_help_panel="Settings",
    ),
]


def settings_given(**options: tuple[str, object]) -> dict[str, tuple[str, str]]:
    """Setting name → (value, option) of the options that were given; each comes as (option, value or None)."""
    found: dict[str, tuple[str, str]] = {}
    for name, (option, value) in options.items():
        if value is None:
            continue
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        found[name] = (text, option)
    return found


def environment() -> dict[str, str]:
    """The environment that settings may stand in."""
    return dict(os.environ)
