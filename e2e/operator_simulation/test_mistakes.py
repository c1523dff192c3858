"""Planted mistakes are found, in runs that are made to meet them: `pytest e2e/operator_simulation`, beside the ordinary
tests."""

from __future__ import annotations

from typing import Final

import pytest

from e2e.operator_simulation.mistakes import MISTAKES
from e2e.operator_simulation.parameters import draw_parameters
from e2e.operator_simulation.run import run_parameters, run_seed

TRIED_MAX: Final = 20
"""More than half of all seeds find each mistake: most are found by the first."""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(MISTAKES))
def test_a_planted_mistake_is_found(name: str) -> None:
    mistake = MISTAKES[name]
    found = next((seed for seed in range(TRIED_MAX) if run_seed(seed, mistake=mistake).violations), None)
    assert found is not None, f"{name} was not found in {TRIED_MAX} seeds"
    # It is the mistake: without it the same run is fine.
    assert run_parameters(mistake.where(draw_parameters(found))).violations == []
