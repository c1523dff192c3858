"""What a pool's plan gathers on its way: what to do, and what to say about it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from magnetar.operator.plan.actions import Action, EmitEvent

REQUEUE_BUSY_SECONDS: Final = 2.0
"""While bookies copy or start: what they say has no event that would wake."""
REQUEUE_WAITING_SECONDS: Final = 30.0
REQUEUE_IDLE_SECONDS: Final = 60.0

_WORD_START: Final = re.compile(r"(?<!^)(?=[A-Z])")


NAMED_MAX: Final = 3
"""Bookies that a message tells of one by one."""


def named(names: Sequence[str]) -> str:
    """Some of them, and how many more there are."""
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True, slots=True)
class PlanNote:
    """What is under way or in the way."""

    reason: str
    """One CamelCase word, as conditions have it; its words are the pool's phase."""
    message: str
    requeue_after_seconds: float = REQUEUE_WAITING_SECONDS

    @property
    def phase(self) -> str:
        """For people: `ScalingOut` is "Scaling out"."""
        return _WORD_START.sub(" ", self.reason).capitalize()


@dataclass(slots=True)
class PlanBuilder:
    """Filled part by part."""

    groups: list[list[Action]] = field(default_factory=lambda: [[]])
    """What the API server is asked for: first what all the rest needs, then what does not need what is before it."""
    controls: list[Action] = field(default_factory=list)
    """What bookies are asked for: after all else, since one that says no ends the pass."""
    stalls: list[PlanNote] = field(default_factory=list)
    """What does not go on without a person."""
    waits: list[PlanNote] = field(default_factory=list)
    """What goes on by itself."""
    restarted: bool = False
    """A pod is deleted in this pass: none more."""
    emptied: str = ""
    """The bookie that has its volumes deleted in this pass."""

    def do(self, *actions: Action) -> None:
        """Next, at the API server."""
        self.groups[-1].extend(actions)

    def go_on(self) -> None:
        """What comes now is right even if the API server refuses what came last."""
        self.groups.append([])

    def ask(self, *actions: Action) -> None:
        """Next, of bookies."""
        self.controls.extend(actions)

    def tell(self, reason: str, message: str, *, type: Literal["Normal", "Warning"] = "Normal") -> None:
        """An Event, once what stands before it is done."""
        self.do(EmitEvent(type, reason, message))

    def stalled(self, reason: str, message: str) -> None:
        """A person has to do something."""
        self.stalls.append(PlanNote(reason, message))

    def waiting(self, reason: str, message: str, *, busy: bool = False) -> None:
        """`busy`: look again soon."""
        self.waits.append(PlanNote(reason, message, REQUEUE_BUSY_SECONDS if busy else REQUEUE_WAITING_SECONDS))

    @property
    def requeue_after_seconds(self) -> float:
        """When to look again at the latest."""
        return min((note.requeue_after_seconds for note in (*self.stalls, *self.waits)), default=REQUEUE_IDLE_SECONDS)
