"""What a plan may ask for. Each is safe to carry out twice, and to have been carried out without anybody knowing.

Objects that are deleted or changed in part are named with their uid: what took their place meanwhile is not touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from magnetar.operator.children.naming import FIELD_MANAGER
from magnetar.operator.kubernetes.kinds import Manifest


@dataclass(frozen=True, slots=True)
class Apply:
    """Make an object be as this says, by server-side apply: fields that it does not name are others'. With a uid or a
    resourceVersion in its metadata it must still be that one (`Conflict`)."""

    manifest: Manifest
    checked: bool = False
    """Ask the server even if this was applied before: what follows is right only if the object is as it was seen."""
    manager: str = FIELD_MANAGER
    """Who owns these fields. What another one than the usual has applied stays when the usual one says it no more."""


@dataclass(frozen=True, slots=True)
class Create:
    """Make an object that was not seen. If there is one of that name after all, it is left alone and the pass ends
    (`AlreadyExists`): what was decided without knowing it must not change it. Its fields are owned as after `Apply`, or
    later ones could not take any of them away."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class DryRun:
    """Ask the API server whether it would take an object that is to be applied later: what is wrong with a spec is told
    at once, not when the turn of what it is about has come."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class MakeControlToken:
    """Make the Secret of the control ports' token out of chance, if there is none."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an object if it is still this one."""

    kind: str
    name: str
    uid: str
    orphan: bool = False
    """Whether the objects that it owns stay."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Scale:
    """Set `spec.replicas` of a workload or of a Bookie, and nothing else of it."""

    kind: str
    name: str
    uid: str
    replicas: int


VOLUME_GROWN: Final = "VolumeGrown"
"""The reason of the Event that follows `GrowVolume`."""


@dataclass(frozen=True, slots=True)
class GrowVolume:
    """Ask for a larger volume. If that is refused the rest of the plan is carried out all the same."""

    claim: str
    uid: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Annotate:
    """Set (or remove, None) annotations of an object."""

    kind: str
    name: str
    uid: str
    annotations: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class SetFinalizer:
    """Hold the resource's deletion back until the operator has done its part, or let it go."""

    present: bool


@dataclass(frozen=True, slots=True)
class StartBookieDrain:
    """Tell a bookie to move everything elsewhere; it goes on by itself."""

    pod: str


@dataclass(frozen=True, slots=True)
class CancelBookieDrain:
    """Tell a bookie to take writes again."""

    pod: str


@dataclass(frozen=True, slots=True)
class RetireLostBookie:
    """Have another bookie mark a lost one's ledgers as lacking replicas, and drop its cookie once none names it."""

    bookie_id: str


@dataclass(frozen=True, slots=True)
class StartBrokerDrain:
    """Tell a broker to give its bundles to the others."""

    pod: str


@dataclass(frozen=True, slots=True)
class CancelBrokerDrain:
    """Tell a broker to take bundles again."""

    pod: str


@dataclass(frozen=True, slots=True)
class SetBalanceDriver:
    """Say to the brokers who moves and splits bundles: `leader`, or `control` for whoever asks by the control port."""

    driver: Literal["leader", "control"]


@dataclass(frozen=True, slots=True)
class TransferBundle:
    """Hand a bundle from one broker to another."""

    bundle: str
    source_broker_id: str
    destination_broker_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class SplitBundle:
    """Cut a bundle."""

    bundle: str
    broker_id: str
    algorithm: str
    reason: str
    boundaries: tuple[int, ...] = ()


BundleAction: TypeAlias = TransferBundle | SplitBundle
"""Moves and splits of bundles, which balancing asks for."""

PodAction: TypeAlias = (
    StartBookieDrain | CancelBookieDrain | RetireLostBookie | StartBrokerDrain | CancelBrokerDrain | SetBalanceDriver
)
"""What pods are asked by their control ports."""


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """An Event of the resource; the same one again counts up instead of being told anew."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


Action: TypeAlias = (
    Apply
    | Create
    | DryRun
    | MakeControlToken
    | Delete
    | Scale
    | GrowVolume
    | Annotate
    | SetFinalizer
    | PodAction
    | BundleAction
    | EmitEvent
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one pass does, in the order of its fields. What fails ends the pass, and the next one plans anew; what the
    API server refuses ends its group only, for it does so each time until a person has corrected something."""

    first: Sequence[Action] = ()
    """What all the rest needs: if the API server refuses some of it, nothing else is tried."""
    groups: Sequence[Sequence[Action]] = ()
    """Each is right whatever became of those before it."""
    told: Sequence[EmitEvent] = ()
    """Events about the status, told if nothing was refused: a status with a refusal says something else."""
    asked: Sequence[Action] = ()
    """What pods are asked to do. One that refuses ends the pass, so this is last."""
    status: dict[str, Any] = field(default_factory=dict)
    """The whole status as JSON has it; written only if it differs from what is there."""
    requeue_after_seconds: float
    """When to look again at the latest, if nothing changes before."""

    @property
    def actions(self) -> list[Action]:
        """All actions of the plan, one after the other."""
        return [*self.first, *(action for group in self.groups for action in group), *self.told, *self.asked]
