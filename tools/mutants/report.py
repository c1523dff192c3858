"""What a run shows: lines as they come, a table of modules at the end, and a file that the next run goes on from."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tools.mutants.model import ROOT, Mutant, Outcome, Verdict

RESULTS_FILE: Final = ROOT / "build" / "mutants" / "results.json"
NOTICED_BY: Final = "noticed_by.json"
"""Beside the results; no run empties it."""
NOTICED_BY_MAX: Final = 5_000
"""The latest: ten times what one run plants, so that what the code no longer has goes some day."""
TEXT_WIDTH_MAX: Final = 70
_STYLES: Final = {Verdict.NOTICED: "green", Verdict.EXPLAINED: "cyan", Verdict.SURVIVED: "bold red"}


def shown(mutant: Mutant) -> str:
    """A mutant in one line."""
    if mutant.promise:
        return f"{mutant.name}: {mutant.promise}"
    return f"{_short(mutant.before)} -> {_short(' '.join(mutant.after.split()))}"


def _short(text: str) -> str:
    return text if len(text) <= TEXT_WIDTH_MAX else text[: TEXT_WIDTH_MAX - 1] + "…"


def print_outcome(console: Console, outcome: Outcome) -> None:
    """One line about one mutant."""
    mutant = outcome.mutant
    style = _STYLES[outcome.verdict]
    place = mutant.module.partition("/magnetar/")[2]
    file, separator, test = outcome.by.partition("::")
    by = file.rpartition("/")[2] + separator + test if separator else outcome.by
    console.print(
        f"[{style}]{outcome.verdict.value:9}[/] [bold]{escape(place)}:{mutant.line}[/] {escape(shown(mutant))} "
        f"[dim]{escape(_short(by))}, {outcome.seconds:.1f} s[/] [dim]{mutant.key}[/]",
        soft_wrap=True,
        highlight=False,
    )


def summary(outcomes: Sequence[Outcome]) -> Table:
    """How many were noticed, module by module."""
    table = Table(title="Mutants", title_justify="left")
    table.add_column("module")
    for name in ("planted", "noticed", "explained", "survived", "seconds"):
        table.add_column(name, justify="right")
    for module in sorted({outcome.mutant.module for outcome in outcomes}):
        of_module = [outcome for outcome in outcomes if outcome.mutant.module == module]
        table.add_row(*_row(module.partition("/magnetar/")[2], of_module))
    table.add_section()
    table.add_row(*_row("all", outcomes), style="bold")
    return table


def _row(name: str, outcomes: Sequence[Outcome]) -> list[str]:
    counts = Counter(outcome.verdict for outcome in outcomes)
    numbers = [len(outcomes), counts[Verdict.NOTICED], counts[Verdict.EXPLAINED], counts[Verdict.SURVIVED]]
    return [name, *map(str, numbers), f"{sum(outcome.seconds for outcome in outcomes):.0f}"]


def share_noticed(outcomes: Sequence[Outcome]) -> float:
    """Of those that could be noticed: what is explained changes nothing that anybody is promised."""
    counted = [outcome for outcome in outcomes if outcome.verdict is not Verdict.EXPLAINED]
    return sum(outcome.verdict is Verdict.NOTICED for outcome in counted) / len(counted) if counted else 1.0


def digest(module: str) -> str:
    """What the places of a module's mutants depend on."""
    return hashlib.sha256((ROOT / module).read_bytes()).hexdigest()[:16]


def store(outcomes: Sequence[Outcome], file: Path = RESULTS_FILE) -> None:
    """Write all that is known so far, in one step."""
    digests = {module: digest(module) for module in {outcome.mutant.module for outcome in outcomes}}
    rows: list[dict[str, Any]] = []
    for outcome in outcomes:
        row = dataclasses.asdict(outcome.mutant) | {"key": outcome.mutant.key, "verdict": outcome.verdict.value}
        rows.append(
            row | {"by": outcome.by, "seconds": round(outcome.seconds, 2), "digest": digests[outcome.mutant.module]}
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    written = file.with_suffix(f".{os.getpid()}")
    written.write_text(json.dumps({"share_noticed": round(share_noticed(outcomes), 4), "mutants": rows}, indent=1))
    written.replace(file)


def load_noticed_by(results: Path = RESULTS_FILE) -> dict[str, str]:
    """Which test has noticed a mutant last time, in whatever run, by the mutant's key."""
    file = results.with_name(NOTICED_BY)
    return dict(json.loads(file.read_text())) if file.exists() else {}


def store_noticed_by(noticed_by: dict[str, str], results: Path = RESULTS_FILE) -> None:
    """Write what is known, the latest last, in one step."""
    results.parent.mkdir(parents=True, exist_ok=True)
    written = results.with_name(f"{NOTICED_BY}.{os.getpid()}")
    latest = list(noticed_by.items())[-NOTICED_BY_MAX:]
    written.write_text(json.dumps(dict(latest), indent=1))
    written.replace(results.with_name(NOTICED_BY))


def load(file: Path = RESULTS_FILE) -> dict[str, Outcome]:
    """What an earlier run has noticed in modules that are the same today, by key. Tests may only have been added."""
    if not file.exists():
        return {}
    fields = [field.name for field in dataclasses.fields(Mutant)]
    known: dict[str, Outcome] = {}
    for row in json.loads(file.read_text())["mutants"]:
        mutant = Mutant(**{name: row[name] for name in fields})
        unchanged = (ROOT / mutant.module).exists() and digest(mutant.module) == row["digest"]
        if unchanged and row["verdict"] == Verdict.NOTICED:
            known[mutant.key] = Outcome(mutant, Verdict.NOTICED, row["by"], row["seconds"])
    return known
