"""The two lists that people keep: mistakes worth planting, and survivors with the reason why nobody has to notice."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools.mutants.model import CURATED, ROOT, Mutant, fold
from tools.mutants.operators import function_at

CURATED_FILES: Final = Path(__file__).with_name("curated")
EXPLAINED_FILE: Final = Path(__file__).with_name("explained.toml")


class BadEntry(Exception):
    """An entry of a list does not fit the tree any more."""


def curated_mutants(folder: Path = CURATED_FILES, root: Path = ROOT) -> list[Mutant]:
    """Every curated mutant, placed in the sources as they are. `BadEntry`."""
    mutants: list[Mutant] = []
    for file in sorted(folder.glob("*.toml")):
        mutants += [_placed(entry, root) for entry in tomllib.loads(file.read_text())["mistake"]]
    names = [mutant.name for mutant in mutants]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadEntry(f"two mistakes have the name {twice[0]}")
    return mutants


def _placed(entry: Mapping[str, Any], root: Path) -> Mutant:
    name, before, after = entry["name"], entry["before"], entry["after"]
    module = _module_of(entry, root)
    source = (root / module).read_text()
    start = source.index(before)
    # What both have in common is not what is replaced: the line that is shown is the one with the mistake.
    while before and after and before[0] == after[0]:
        before, after, start = before[1:], after[1:], start + 1
    return Mutant(
        module=module,
        function=function_at(source, start),
        operator=CURATED,
        start=start,
        end=start + len(before),
        line=source.count("\n", 0, start) + 1,
        before=fold(entry["before"]),
        after=after,
        name=name,
        promise=entry["promise"],
    )


def _module_of(entry: Mapping[str, Any], root: Path) -> str:
    """The module that is named; when code has moved from it, the one beside it that has the place now."""
    before, named = entry["before"], Path(entry["module"])
    times = {named: (root / named).read_text().count(before)}
    if not times[named]:
        beside = sorted((root / named.parent).glob("*.py"))
        times = {path.relative_to(root): path.read_text().count(before) for path in beside}
    having = [path for path, count in times.items() if count]
    if len(having) != 1 or times[having[0]] != 1:
        raise BadEntry(f"{entry['name']}: what it replaces stands {sum(times.values())} times in {named}, not once")
    return str(having[0])


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why nothing notices a mutant, and nothing has to."""

    module: str
    function: str
    before: str
    after: str
    reason: str

    def fits(self, mutant: Mutant) -> bool:
        """Whether it is about this one."""
        texts = (fold(self.before), fold(self.after))
        return (self.module, self.function) == (mutant.module, mutant.function) and (
            texts == (mutant.before, fold(mutant.after))
        )


def explanations(file: Path = EXPLAINED_FILE) -> list[Explanation]:
    """All of them."""
    return [Explanation(**entry) for entry in tomllib.loads(file.read_text()).get("survivor", [])]


def reason_for(mutant: Mutant, known: Sequence[Explanation]) -> str | None:
    """Why nothing has to notice it, if that is on the list."""
    return next((explanation.reason for explanation in known if explanation.fits(mutant)), None)
