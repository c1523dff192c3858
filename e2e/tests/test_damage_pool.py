"""One bookie of three is damaged: in the end it holds all that it had, or it is refused and says so; never does it deny
what was acknowledged. `python -m e2e.damage --pool` does it to every file."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import Final

import pytest

from e2e.damage.kinds import Kind
from e2e.damage.pool import Pool
from e2e.damage.world import Outcome

SEED: Final = 7
JOURNAL: Final = "one/journal/current/*.txn"
CASES: Final = (
    (JOURNAL, Kind.MISSING, {Outcome.HEALED}),
    (JOURNAL, Kind.ZERO, {Outcome.HEALED, Outcome.RIGHT}),
    ("one/ledgers/current/locations/*.log", Kind.CUT, {Outcome.HEALED}),
    ("one/ledgers/current/ledgers/*.sst", Kind.MISSING, {Outcome.HEALED}),
    ("one/ledgers/current/0.log", Kind.ZERO, {Outcome.REPAIRED}),
    ("one/ledgers/current/0.log", Kind.MISSING, {Outcome.HEALED}),
    ("one/ledgers/current/VERSION", Kind.MISSING, {Outcome.REFUSED}),
)
"""File, damage, what may become of it. Where the journal's padding is hit, all is right."""
HEALING_CASES: Final = (
    ("one/ledgers/current/0.log", Kind.MISSING, 7, Outcome.HEALED),
    ("one/ledgers/current/0.log", Kind.CUT, 1, Outcome.HEALED),
    ("one/ledgers/current/0.log", Kind.EMPTY, 7, Outcome.HEALED),
    ("one/ledgers/current/locations/*.sst", Kind.FLIP, 4, Outcome.HEALED),
    ("one/ledgers/current/locations/*.sst", Kind.FLIP, 5, Outcome.HEALED),
)
"""File, damage, seed, and what becomes of it when the first start may heal. The seeds hit a block of places, which a
start that may not heal does not read."""


def one(pool: Pool, pattern: str) -> str:
    (name,) = [name for name in pool.files if fnmatch(name, pattern)]
    return name


@pytest.mark.slow
async def test_a_damaged_bookie_gets_back_what_it_had(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    await pool.prepare()
    for pattern, kind, expected in CASES:
        name = one(pool, pattern)
        verdict = await pool.run(name, kind, SEED)
        again = f"again: python -m e2e.damage --pool --case {name} {kind} {SEED}"
        assert verdict.outcome in expected, f"{verdict}; {again}"


@pytest.mark.slow
async def test_a_start_that_heals_finds_what_others_find_when_it_is_read(tmp_path: Path) -> None:
    pool = Pool(tmp_path, heals=True)
    await pool.prepare()
    for pattern, kind, seed, expected in HEALING_CASES:
        name = one(pool, pattern)
        verdict = await pool.run(name, kind, seed)
        again = f"again: python -m e2e.damage --pool --healing --case {name} {kind} {seed}"
        assert verdict.outcome is expected, f"{verdict}; {again}"


@pytest.mark.slow
async def test_a_bookie_that_denies_what_it_lost_is_noticed(tmp_path: Path) -> None:
    pool = Pool(tmp_path, gives_up=True)
    await pool.prepare()
    verdict = await pool.run(one(pool, JOURNAL), Kind.MISSING, SEED)
    assert verdict.outcome is Outcome.SILENT
    assert "is denied" in verdict.said
