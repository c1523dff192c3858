"""Random histories over managed ledgers: a hundred and fifty keep every promise, and planted mistakes are found.

Not marked slow, so that the compiled modules are put through them as well.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Final

import pytest

from e2e.managed_histories.mistakes import MISTAKES
from e2e.managed_histories.promises import CursorView, Promises, SubscriptionPromises, TopicView
from e2e.managed_histories.run import run_seed

SEEDS: Final = 150
SEEDS_PER_TEST: Final = 15

FOUND_BY: Final = {
    "bookkeeper-goes-before-its-record": (29, 60),
    "bookkeeper-goes-unverified": (37, 100),
    "complete-before-it-is-copied": (35, 100),
    "failed-counts-as-taken": (67, 140),
    "fall-back-without-bookies": (55, 250),
    "forgotten-creation": (2, 60),
    "last-unsure-write-only": (0, 60),
    "ledger-in-doubt-deleted": (32, 120),
    "ledgers-in-doubt-kept": (9, 60),
    "no-compare-and-set": (9, 30),
    "no-replay": (9, 200),
    "objects-are-deleted-once": (98, 250),
    "objects-go-before-their-record": (29, 60),
    "old-ledger-deleted-first": (0, 120),
    "snapshot-of-what-was-taken": (97, 250),
    "takeover-without-fence": (0, 30),
    "the-lag-is-ignored": (12, 60),
    "trim-of-the-fastest": (26, 60),
    "what-was-begun-is-not-owed": (12, 60),
    "what-was-trimmed-is-not-owed": (29, 60),
}
"""The seed that finds each mistake now, and in how many it is found when code changes: at least twice what it takes
now."""


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_every_promise_is_kept(first: int) -> None:
    published = 0
    for seed in range(first, first + SEEDS_PER_TEST):
        verdict = run_seed(seed)
        assert verdict.violations == [], f"again: python -m e2e.managed_histories --seed {seed} --trace"
        published += verdict.published
    assert published > 100


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MISTAKES))
def test_a_planted_mistake_is_found(name: str) -> None:
    known, within = FOUND_BY[name]
    for seed in (known, *range(within)):
        if run_seed(seed, mistake=name).violations:
            # It is the mistake: without it the seed is fine, as `test_every_promise_is_kept` shows.
            assert seed < SEEDS or run_seed(seed).violations == []
            return
    raise AssertionError(f"{name} was not found in {within} seeds")


def test_a_seed_gives_the_same_trace_twice() -> None:
    # The last one has tiered storage.
    for seed in (0, 1, 2, 6):
        first, second = run_seed(seed), run_seed(seed, keep_trace=True)
        assert first.trace_digest == second.trace_digest
        assert (first.trace_lines == [], second.trace_lines != []) == (True, True)
    assert run_seed(0).trace_digest != run_seed(1).trace_digest


PROGRAM: Final = """
from e2e.managed_histories.run import run_seed
print([run_seed(seed).trace_digest for seed in (0, 1, 2, 3, 6, 12)])
"""


@pytest.mark.slow
def test_processes_with_other_hash_seeds_give_the_same_traces() -> None:
    said = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", PROGRAM]
        said.append(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    assert said[0] == said[1]


def promised() -> Promises:
    """A topic of four entries; the first is acknowledged for sure, the second perhaps, half of the third."""
    promises = Promises(trim=False, deduplication=True)
    promises.published = {(1, number): ("p", number) for number in range(4)}
    promises.stored = set(promises.published.values())
    one = promises.subscriptions["a"] = SubscriptionPromises(exists=True, properties=[{"k": "v"}])
    one.receipt(CursorView(frozenset({(1, 0)}), {(1, 2): 0xF0}, {}))
    one.requested([(1, 1)])
    one.part_requested((1, 2), 0xF0)
    return promises


def view(
    *acknowledged: int, left: int = 0xF0, entries: dict[tuple[int, int], tuple[str, int]] | None = None
) -> TopicView:
    found = promised().published if entries is None else entries
    cursor = CursorView(frozenset((1, each) for each in acknowledged), {(1, 2): left}, {"k": "v"})
    return TopicView(found, {"a": cursor})


def test_the_judge_takes_what_keeps_every_promise() -> None:
    assert promised().broken_by(view(0)) == []
    assert promised().broken_by(view(0, 1)) == []


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (view(), "forgets the acknowledgements of [(1, 0)]"),
        (view(0, 3), "has acknowledged [(1, 3)], which nobody did"),
        (view(0, left=0xFF), "forgets acknowledgements in the batch"),
        (view(0, left=0x80), "has acknowledged more of the batch"),
        (TopicView(promised().published, {}), "it is gone"),
        (view(0, entries={(1, 0): ("p", 0), (1, 1): ("p", 1), (1, 2): ("p", 2)}), "the confirmed entry (1, 3)"),
        (view(0, entries={**promised().published, (1, 3): ("q", 9)}), "is ('q', 9) instead of ('p', 3)"),
        (view(0, entries={**promised().published, (2, 0): ("p", 3)}), "('p', 3) is stored 2 times"),
        (view(0, entries={**promised().published, (0, 0): ("p", 9)}), "p:0 comes after 9"),
        (replace(view(0), snapshot={"p": 4}), "the deduplication snapshot holds ('p', 4)"),
    ],
)
def test_the_judge_sees_a_broken_promise(found: TopicView, words: str) -> None:
    broken = promised().broken_by(found)
    assert any(words in text for text in broken), broken
