"""The tables of a bookie's states, walked: each pair of states is allowed or told."""

from __future__ import annotations

import enum
from itertools import product
from typing import Any

import pytest
from magnetar.bookie.drain.state import PHASE_TRANSITIONS, STEP_TRANSITIONS, Intention, Phase
from magnetar.bookie.integrity.limbo import TRANSITIONS as LIMBO
from magnetar.bookie.integrity.limbo import LimboStage
from magnetar.bookie.operations import BookieDrainStep
from magnetar.core.errors import Misuse
from magnetar.core.transitions import Transitions

ROUND = "NONE READ_ONLY REPLICATE VERIFY DONE"
INTENTION = Intention(bookie_id="one", phase=Phase.DRAINING, started_ms=1)


@pytest.mark.parametrize(
    ("table", "states", "allowed"),
    [
        (PHASE_TRANSITIONS, Phase, {"DRAINING": "DRAINING REMOVING DONE", "REMOVING": "DONE", "DONE": ""}),
        (
            STEP_TRANSITIONS,
            BookieDrainStep,
            {
                step.name: f"{ROUND} REMOVE_COOKIE" if step is BookieDrainStep.VERIFY else ROUND
                for step in BookieDrainStep
            },
        ),
        (LIMBO, LimboStage, {"NONE": "ENTERING", "ENTERING": "ENTERING HEALING NONE", "HEALING": "ENTERING NONE"}),
    ],
)
def test_each_pair_is_allowed_or_told(
    table: Transitions[Any], states: type[enum.Enum], allowed: dict[str, str]
) -> None:
    for before, after in product(states, states):
        if after.name in allowed[before.name].split():
            assert table.step(before, after) is after
        else:
            with pytest.raises(Misuse, match=f"from {before.name} to {after.name}"):
                table.step(before, after)


def test_a_drain_that_removes_the_cookie_has_no_way_back() -> None:
    removing = INTENTION.moved_to(Phase.REMOVING, 5)
    assert (removing.phase, removing.finished_ms) == (Phase.REMOVING, None)
    with pytest.raises(Misuse, match="from REMOVING to DRAINING"):
        removing.moved_to(Phase.DRAINING, 6)
    assert removing.moved_to(Phase.DONE, 7).finished_ms == 7
