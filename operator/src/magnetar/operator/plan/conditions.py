"""Conditions of a resource's status, as kstatus reads them: what is found now, over what was written last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from magnetar.operator.plan.actions import EmitEvent
from magnetar.operator.resources.common import Condition, ConditionStatus, Part

READY: Final = "Ready"
RECONCILING: Final = "Reconciling"
STALLED: Final = "Stalled"

SETTINGS_IN_EFFECT: Final = "SettingsInEffect"
SETTINGS_IGNORED: Final = "SettingsIgnored"

REFUSED: Final = "Refused"
"""The reason of both Ready and Stalled where the API server does not take what a plan asks for."""
GETS_ON: Final = "GetsOn"
"""The reason of Stalled where it is not."""

MESSAGE_LENGTH_MAX: Final = 1500
"""The length of a condition's message: a pod's last words are cut there. The API server takes 32768, people do not."""


@dataclass(frozen=True, slots=True)
class NewCondition:
    """A condition as a pass finds it, without its times."""

    type: str
    holds: bool | None
    """Whether it is so: True, False, or None (Unknown) where nobody can say."""
    reason: str
    """The condition's reason, one CamelCase word."""
    message: str


def conditions(
    previous: Sequence[Condition], new_conditions: Iterable[NewCondition], generation: int, now_seconds: float
) -> list[Condition]:
    """The new ones as conditions, in their order. One whose status is what it was keeps the time since when it is; one
    that was there and of which nothing is said goes."""
    before = {condition.type: condition for condition in previous}
    now = timestamp(now_seconds)
    found = []
    for current in new_conditions:
        status = _STATUSES[current.holds]
        last = before.get(current.type)
        found.append(
            Condition(
                type=current.type,
                status=status,
                reason=current.reason,
                message=shortened(current.message),
                last_transition_time=last.last_transition_time if last and last.status == status else now,
                observed_generation=generation,
            )
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """What keeps passes from doing what is to be done, whatever their plan says."""

    reason: str
    """The condition's reason, one CamelCase word."""
    message: str
    needs_person: bool = True
    """False: it ends by itself."""


def settings_in_effect(without_effect: Sequence[str]) -> NewCondition:
    """Whether all settings that people have set are; those that are not, in words."""
    if not without_effect:
        return NewCondition(SETTINGS_IN_EFFECT, True, "AllInEffect", "no setting is one that the operator sets itself")
    words = f"the operator sets these itself, so that they have no effect: {'; '.join(without_effect)}"
    return NewCondition(SETTINGS_IN_EFFECT, False, SETTINGS_IGNORED, words)


def stall_events(
    before: Iterable[Condition], now: Iterable[Condition], told: Sequence[EmitEvent] = ()
) -> list[EmitEvent]:
    """Of what needs a person: a stall that begins, unless it is told already, or ends; settings that newly have no
    effect."""
    found = []
    old, new = condition(before, STALLED), condition(now, STALLED)
    was = old.reason if old is not None and old.status == "True" else ""
    if new is not None and new.status == "True" and new.reason not in (was, *(event.reason for event in told)):
        found.append(EmitEvent("Warning", new.reason, new.message))
    elif was and new is not None and new.status != "True":
        found.append(EmitEvent("Normal", "Recovered", f"it works again; the trouble was: {was}"))
    old, new = condition(before, SETTINGS_IN_EFFECT), condition(now, SETTINGS_IN_EFFECT)
    if new is not None and new.status == "False" and (old is None or old.message != new.message):
        found.append(EmitEvent("Warning", new.reason, new.message))
    return found


def written(status: Part) -> dict[str, Any]:
    """A status as JSON has it."""
    found = msgspec.to_builtins(status)
    assert isinstance(found, dict)
    return found


def hindered(
    status: Mapping[str, Any], previous: Sequence[Condition], obstacle: Obstacle, generation: int, now_seconds: float
) -> dict[str, Any]:
    """A status as JSON has it, with an obstacle in it: the resource is not ready, of this generation. What else the
    plan says needs a person is said after it."""
    found = msgspec.convert(status.get("conditions") or [], list[Condition])
    message, planned = obstacle.message, condition(found, STALLED)
    if planned is not None and planned.status == "True" and planned.reason != obstacle.reason:
        message = f"{message} | {planned.message}"
    stalled = obstacle.needs_person or (planned is not None and planned.status == "True")
    new_conditions = [NewCondition(READY, False, obstacle.reason, message)]
    if stalled:
        new_conditions.append(NewCondition(STALLED, True, obstacle.reason, message))
    else:
        new_conditions.append(NewCondition(RECONCILING, True, obstacle.reason, message))
        new_conditions.append(NewCondition(STALLED, False, GETS_ON, f"it is tried again: {message}"))
    by_type = {one.type: one for one in conditions(previous, new_conditions, generation, now_seconds)}
    rest = [by_type.pop(one.type, one) for one in found]
    phase = STALLED if stalled else status.get("phase", "")
    told = msgspec.to_builtins([*rest, *by_type.values()])
    return {**status, "observedGeneration": generation, "phase": phase, "conditions": told}


def says(among: Iterable[Condition], obstacle: Obstacle) -> bool:
    """Whether these say of an obstacle that it needs a person."""
    found = condition(among, STALLED)
    if found is None or found.status != "True" or found.reason != obstacle.reason:
        return False
    return found.message == shortened(obstacle.message) or found.message.startswith(f"{obstacle.message} | ")


def was_refused(among: Iterable[Condition]) -> bool:
    """Whether the API server did not take something in the pass that has written these."""
    return any(found.type == STALLED and found.status == "True" and found.reason == REFUSED for found in among)


def condition(among: Iterable[Condition], type_: str) -> Condition | None:
    """The condition of this type."""
    return next((found for found in among if found.type == type_), None)


def holds(among: Iterable[Condition], type_: str) -> bool:
    """Whether it is there and True."""
    return any(found.type == type_ and found.status == "True" for found in among)


def shortened(message: str) -> str:
    """At most `MESSAGE_LENGTH_MAX` characters; the end stays, where a traceback says what it is about."""
    if len(message) <= MESSAGE_LENGTH_MAX:
        return message
    half = MESSAGE_LENGTH_MAX // 2 - 3
    return f"{message[:half]} ... {message[-half:]}"


def timestamp(now_seconds: float) -> str:
    """RFC 3339 in UTC, whole seconds."""
    return datetime.fromtimestamp(int(now_seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(stamp: str) -> float:
    """Seconds since 1970 of a time that `timestamp` or the API server wrote. Raises ValueError for anything else."""
    return datetime.fromisoformat(stamp).timestamp()


_STATUSES: Final[dict[bool | None, ConditionStatus]] = {True: "True", False: "False", None: "Unknown"}
