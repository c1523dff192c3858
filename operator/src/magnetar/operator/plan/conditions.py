"""Conditions of a resource's status, as kstatus reads them: what is found now, over what was written last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from magnetar.operator.resources.common import Condition, ConditionStatus

READY: Final = "Ready"
RECONCILING: Final = "Reconciling"
STALLED: Final = "Stalled"

REFUSED: Final = "Refused"
"""The reason of both Ready and Stalled where the API server does not take what a plan asks for."""

MESSAGE_LENGTH_MAX: Final = 1500
"""Of a condition's message: a pod's last words are cut there. The API server takes 32768, people do not."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be said of one condition."""

    type: str
    holds: bool | None
    """None: nobody can say."""
    reason: str
    """One CamelCase word."""
    message: str


def conditions(
    previous: Sequence[Condition], verdicts: Iterable[Verdict], generation: int, now_seconds: float
) -> list[Condition]:
    """The verdicts as conditions, in their order. One whose status is what it was keeps the time since when it is; one
    that was there and of which nothing is said goes."""
    before = {condition.type: condition for condition in previous}
    now = timestamp(now_seconds)
    found = []
    for verdict in verdicts:
        status = _STATUSES[verdict.holds]
        last = before.get(verdict.type)
        found.append(
            Condition(
                type=verdict.type,
                status=status,
                reason=verdict.reason,
                message=shortened(verdict.message),
                last_transition_time=last.last_transition_time if last and last.status == status else now,
                observed_generation=generation,
            )
        )
    return found


def refused(status: Mapping[str, Any], previous: Sequence[Condition], words: str, now_seconds: float) -> dict[str, Any]:
    """A status as JSON has it, of a plan whose next step the API server has refused. It does so again until a person
    has corrected the resource, or what the server goes by: a quota, a policy, rights."""
    found = msgspec.convert(status.get("conditions") or [], list[Condition])
    generation = max((one.observed_generation for one in found), default=0)
    message = f"Kubernetes refuses what is to be done next: {words}"
    verdicts = {
        READY: Verdict(READY, False, REFUSED, message),
        STALLED: Verdict(STALLED, True, REFUSED, message),
    }
    amended = conditions(previous, verdicts.values(), generation, now_seconds)
    by_type = {one.type: one for one in amended}
    rest = [by_type.pop(one.type, one) for one in found]
    return {**status, "phase": STALLED, "conditions": msgspec.to_builtins([*rest, *by_type.values()])}


def condition(among: Iterable[Condition], type_: str) -> Condition | None:
    """The one of this type."""
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
    """Of a time as `timestamp` or the API server writes it, since 1970. Raises ValueError for anything else."""
    return datetime.fromisoformat(stamp).timestamp()


_STATUSES: Final[dict[bool | None, ConditionStatus]] = {True: "True", False: "False", None: "Unknown"}
