"""What is said of a pass that does not get to its end: an Event, and what stands in the status. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.control.errors import ControlRefused, ControlUnavailable
from magnetar.core.errors import MagnetarError, Misuse, SettingError
from magnetar.operator.kubernetes.errors import NamespaceTerminating, Refused, ServerUnavailable
from magnetar.operator.plan.actions import EmitEvent
from magnetar.operator.plan.conditions import REFUSED, Obstacle

OUTAGE_PASSES: Final = 5
"""Passes in a row that end by an API server that fails until that stands in the status: one that is restarted, or that
chooses another leader, is back before. The status can be written where only a webhook is away."""
REFUSALS_OF_PODS: Final = 5
"""Passes in a row in which a pod says no until a person is asked: what it waits for mostly ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassFailure:
    """What is told of a pass that failed."""

    event: EmitEvent | None = None
    obstacle: Obstacle | None = None
    """What the status is to say besides."""
    planned: bool = False
    """The status is written as the plan has it, where there is no obstacle: all that it tells of was told."""


def failure_of(error: Exception, passes: int) -> PassFailure:
    """What to tell of the error that has ended a pass; `passes` in a row, this one included, did not get to their
    end."""
    words = str(error)
    match error:
        case NamespaceTerminating():
            going = f"the namespace is being deleted, and takes nothing new: {words}"
            obstacle = Obstacle(reason="NamespaceTerminating", message=going, needs_person=False)
            return PassFailure(event=EmitEvent("Warning", REFUSED, words), obstacle=obstacle)
        case Refused():
            message = f"Kubernetes refuses the next change: {words}"
            return PassFailure(
                event=EmitEvent("Warning", REFUSED, words), obstacle=Obstacle(reason=REFUSED, message=message)
            )
        case SettingError() | Misuse():
            return PassFailure(event=EmitEvent("Warning", "ResourceUnreadable", words), obstacle=unreadable(words))
        case ControlRefused():
            message = f"a pod refuses repeatedly: {words}"
            lasts = passes >= REFUSALS_OF_PODS
            obstacle_or_none = Obstacle(reason="PodRefused", message=message) if lasts else None
            return PassFailure(event=EmitEvent("Warning", "PodRefused", words), obstacle=obstacle_or_none, planned=True)
        case ControlUnavailable():
            return PassFailure(planned=True)
        case ServerUnavailable():
            if passes < OUTAGE_PASSES:
                return PassFailure()
            message = (
                f"the Kubernetes API server, or a webhook that it calls, has failed {passes} times in a row: {words}"
            )
            return PassFailure(obstacle=Obstacle(reason="ServerUnavailable", message=message, needs_person=False))
        case MagnetarError():
            return PassFailure()
        case _:
            # Nobody who looks at the resource sees the log.
            mistake = f"internal error of the operator: {type(error).__name__}: {error}. Its log has the traceback"
            obstacle = Obstacle(reason="PassFailed", message=mistake)
            return PassFailure(event=EmitEvent("Warning", "PassFailed", mistake), obstacle=obstacle)


def unreadable(words: str) -> Obstacle:
    """What to tell of a spec that cannot be read. What runs is looked after by the last one that could be, if this
    process has seen one."""
    message = f"{words}. Correct it: until then nothing of this spec is carried out"
    return Obstacle(reason="InvalidSpec", message=message)


def together(refusals: Sequence[Refused]) -> Refused:
    """One error of several; only if the namespace goes is it that for all."""
    words = " | ".join(dict.fromkeys(str(error) for error in refusals))
    if all(isinstance(error, NamespaceTerminating) for error in refusals):
        return NamespaceTerminating(words)
    return Refused(words)
