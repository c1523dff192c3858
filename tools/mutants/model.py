"""What a mutant is, and what became of it."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
CURATED: Final = "curated"
"""The operator of mutants that somebody has thought of."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one place of it written otherwise."""

    module: str
    """Path from the root of the tree."""
    function: str
    """Qualified name of the function that holds the place."""
    operator: str
    start: int
    """The place: `source[start:end]` is replaced."""
    end: int
    line: int
    before: str
    """What stands there, white space folded."""
    after: str
    """What replaces it, as it is written."""
    occurrence: int = 0
    """Which one it is, of those in the function that read the same."""
    name: str = ""
    """Given to curated ones, else empty."""
    promise: str = ""
    """What a curated one breaks."""

    @property
    def key(self) -> str:
        """The same whatever changes elsewhere in the module."""
        if self.name:
            return self.name
        parts = (self.module, self.function, self.operator, self.before, self.after, self.occurrence)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:10]

    def apply(self, source: str) -> str:
        """The mutated source."""
        return source[: self.start] + self.after + source[self.end :]


class Verdict(enum.StrEnum):
    """What became of a mutant."""

    NOTICED = "noticed"
    EXPLAINED = "explained"
    """Nothing noticed it, and the list of the explained says why."""
    SURVIVED = "survived"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one mutant, by what, and how long that took."""

    mutant: Mutant
    verdict: Verdict
    by: str
    """The test or the simulator's seed that noticed it; the reason of one that is explained."""
    seconds: float


def fold(text: str) -> str:
    """Source on one line, to be shown and compared."""
    return " ".join(text.split())


def dotted_name(module: str) -> str:
    """The name by which a module below a `src` folder is imported."""
    return ".".join(Path(module.partition("/src/")[2]).with_suffix("").parts)
