"""A part of the product whose mistakes the same tests have to notice; `modules.py` declares them all."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Simulator(enum.StrEnum):
    """Which simulator runs when the tests notice nothing."""

    STORAGE = "storage"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Part:
    """Modules that the same tests hold."""

    name: str
    folder: str
    modules: tuple[str, ...]
    """Below the folder, without their suffix."""
    tests: tuple[str, ...]
    """Files from the root of the tree."""
    simulator: Simulator | None = None

    def paths(self) -> tuple[str, ...]:
        """The modules' paths from the root of the tree."""
        return tuple(f"{self.folder}/{module}.py" for module in self.modules)


def files(folder: str, *names: str) -> tuple[str, ...]:
    """The paths of test files by what follows `test_` in their names."""
    return tuple(f"{folder}/test_{name}.py" for name in names)
