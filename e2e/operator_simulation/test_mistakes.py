"""Planted mistakes are found. Some take a hundred runs: `pytest e2e/operator_simulation`, beside the ordinary tests."""

from __future__ import annotations

from typing import Final

import pytest

from e2e.operator_simulation.mistakes import MISTAKES, seeds_for
from e2e.operator_simulation.run import run_seed

FOUND_FROM: Final = {
    "adopts-the-predecessors-pool": 78,
    "applies-to-whatever-is-there": 48,
    "believes-old-drains": 9,
    "deletes-claims-too-early": 1,
    "empties-lost-disks-at-once": 36,
    "ignores-uids": 116,
    "lets-go-early": 3,
    "restarts-two-at-once": 6,
    "scales-brokers-undrained": 35,
    "shrinks-before-drained": 7,
    "sorts-names-as-text": 17,
    "takes-silence-for-drained": 9,
    "tells-again-and-again": 15,
    "works-while-paused": 31,
    "writes-status-always": 2,
}
"""A seed that finds each mistake by now. A change of the operator makes other runs of the same seeds, so some more may
be needed."""
TRIED_MAX: Final = 60


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MISTAKES))
def test_a_planted_mistake_is_found(name: str) -> None:
    mistake = MISTAKES[name]
    for seed in seeds_for(mistake, range(FOUND_FROM[name], FOUND_FROM[name] + 1_000))[:TRIED_MAX]:
        if run_seed(seed, mistake=mistake).violations:
            # It is the mistake: without it the seed is fine.
            assert run_seed(seed).violations == []
            return
    raise AssertionError(f"{name} was not found in {TRIED_MAX} seeds")
