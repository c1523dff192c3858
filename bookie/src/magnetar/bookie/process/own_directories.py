"""The directories of several bookies with one configuration, and what was left in them by more bookies than run now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from magnetar.bookie.node import NodeSettings
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.storage.directories import CURRENT
from magnetar.core.errors import SettingError
from magnetar.process.supervision.ports import own_port

FOLDER: Final = "process-"
"""How the folder of a further process is called, before its number, in each directory that the settings name."""


def own_directory(directory: Path, number: int) -> Path:
    """Where a process has what the settings put into this directory; from process 2 on."""
    return directory / f"{FOLDER}{number}"


def refuse_fewer(settings: NodeSettings, count: int) -> None:
    """`SettingError` while a directory of a process beyond so many has anything in it: it was a bookie, and clients
    may still look for its entries."""
    for number, directory in sorted(_former(settings.bookie, count)):
        control = settings.control
        port = "PORT" if control is None or control.port == 0 else str(own_port(control.port, number, int))
        raise SettingError(
            f"{directory} has the data of process {number}, and only {count} would run: what it stores would be "
            f"missing. Run with --processes {number}, drain it by `magnetar bookie drain 127.0.0.1:{port}`, stop, and "
            f"remove its directories ({FOLDER}{number})"
        )


def _former(bookie: BookieSettings, count: int) -> Iterator[tuple[int, Path]]:
    for directory in {*bookie.journal_directories, *bookie.ledger_directories, *bookie.index_directories}:
        for folder in directory.glob(f"{FOLDER}*"):
            number = folder.name.removeprefix(FOLDER)
            if number.isdecimal() and int(number) > count and any((folder / CURRENT).glob("*")):
                yield int(number), folder
