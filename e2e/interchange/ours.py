"""Our parts as a user runs them: the `magnetar` program with Apache's settings files."""

from __future__ import annotations

import sys
from pathlib import Path

from e2e.interchange.parts import BookiePart, BrokerPart
from e2e.part import Part

PROGRAM = str(Path(sys.executable).parent / "magnetar")


def program(mistake: str) -> list[str]:
    """How `magnetar` is run, with a planted mistake of `e2e.disturbing.mistakes` if one is named."""
    return [sys.executable, "-m", "e2e.disturbing.mistaken", mistake] if mistake else [PROGRAM]


class OurBookie(BookiePart):
    """`magnetar bookie run`."""

    mistake = ""
    """A planted one."""

    def command(self) -> list[str]:
        return [*program(self.mistake), "bookie", "run", "--conf", str(self.configuration)]


class OurBroker(BrokerPart):
    """`magnetar broker run`."""

    def command(self) -> list[str]:
        return [PROGRAM, "broker", "run", "--conf", str(self.configuration)]


class OurAutoRecovery(Part):
    """`magnetar autorecovery run`."""

    def __init__(self, folder: Path, configuration: Path) -> None:
        super().__init__(folder)
        self._configuration = configuration

    def command(self) -> list[str]:
        return [PROGRAM, "autorecovery", "run", "--conf", str(self._configuration)]

    def ready(self) -> bool:
        return bool(self.log_text())
