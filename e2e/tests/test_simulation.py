"""The simulator: sixty seeds keep every promise, planted mistakes are found, and a seed is a seed everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

import pytest

from e2e.simulation.mistakes import MISTAKES
from e2e.simulation.planting import CodeIsCompiled, planted
from e2e.simulation.run import run_seed

SEEDS: Final = 60
SEEDS_PER_TEST: Final = 5

TRIED_HERE: Final = {
    "blind-cursor-node": 3,
    "checkpoint-without-sync": 0,
    "confirm-before-quorum": 2,
    "confirms-what-it-sends": 7,
    "cursor-ledger-deleted-first": 3,
    "fence-in-memory": 0,
    "fenced-takes-normal-adds": 0,
    "journal-without-sync": 0,
    "marks-first": 0,
    "one-bookie-lac": 0,
    "out-of-order-confirm": 1,
    "receipt-at-once": 1,
    "unlisted-ledger": 3,
}
"""Each with the seed that finds it. When code changes, another one may: then they are tried in turn. The others:
`make sim ARGS="--mistake all"`."""

WITHIN_SEEDS: Final = 10


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_every_promise_is_kept(first: int) -> None:
    confirmed = 0
    for seed in range(first, first + SEEDS_PER_TEST):
        verdict = run_seed(seed)
        assert verdict.violations == [], f"again: python -m e2e.simulation --seed {seed} --trace"
        confirmed += verdict.counts["confirmed entries"]
    assert confirmed > 0


@pytest.mark.parametrize("name", sorted(MISTAKES))
def test_every_mistake_still_has_its_place(name: str) -> None:
    """Also those that only `--mistake all` tries: code that moves takes its mistakes along."""
    try:
        with planted(MISTAKES[name]):
            pass
    except CodeIsCompiled as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "known"), TRIED_HERE.items())
def test_a_planted_mistake_is_found(name: str, known: int) -> None:
    try:
        with planted(MISTAKES[name]):
            pass
    except CodeIsCompiled as error:
        pytest.skip(str(error))
    for seed in (known, *range(WITHIN_SEEDS)):
        if run_seed(seed, mistake=MISTAKES[name]).violations:
            # It is the mistake: without it the seed is fine, as `test_every_promise_is_kept` shows.
            assert seed < SEEDS
            return
    raise AssertionError(f"{name} was not found in {WITHIN_SEEDS} seeds")


@pytest.mark.slow
def test_a_missing_sync_is_seen_at_the_first_confirmation() -> None:
    """Not when a later power failure happens to uncover it."""
    violations = run_seed(0, mistake=MISTAKES["journal-without-sync"]).violations
    assert "entry 0:0 is confirmed and durable on [] only" in violations[0]


@pytest.mark.slow
def test_a_seed_gives_the_same_trace_twice() -> None:
    for seed in range(3):
        first, second = run_seed(seed), run_seed(seed, keep_trace=True)
        assert (first.trace_digest, first.steps) == (second.trace_digest, second.steps)
        assert first.trace_lines == []
        assert second.trace_lines


def test_another_seed_is_another_run() -> None:
    assert run_seed(3).trace_digest != run_seed(4).trace_digest


PROGRAM: Final = """
from e2e.simulation.run import run_seed
print([run_seed(seed).trace_digest for seed in range(5)])
"""


@pytest.mark.slow
def test_processes_with_other_hash_seeds_give_the_same_traces() -> None:
    said = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", PROGRAM]
        said.append(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    assert said[0] == said[1]


def test_a_run_leaves_nothing_behind() -> None:
    """Ten thousand in one process once took 21 GB."""
    count_worlds = (
        "import gc\n"
        "from e2e.simulation.cluster import World\n"
        "from e2e.simulation_runner.command import run_batch\n"
        "for seed in range(3):\n"
        "    run_batch(('e2e.simulation', range(seed, seed + 1), None))\n"
        "gc.unfreeze()\n"
        "print(sum(isinstance(each, World) for each in gc.get_objects()))\n"
    )
    printed = subprocess.run([sys.executable, "-c", count_worlds], check=True, capture_output=True, text=True)
    assert printed.stdout.strip() == "0"
