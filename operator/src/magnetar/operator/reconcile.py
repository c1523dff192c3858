"""One pass over one resource: look, plan, carry out, tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from magnetar.core.clock import Clock
from magnetar.operator.api import ApiServer
from magnetar.operator.children.context import Defaults
from magnetar.operator.children.naming import Owner
from magnetar.operator.controls import Controls
from magnetar.operator.plan.actions import Tell


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One resource that is looked after."""

    kind: str
    """PulsarCluster or Bookie."""
    namespace: str
    name: str


class EventWriter(Protocol):
    """Where Events go."""

    async def tell(self, owner: Owner, event: Tell) -> None:
        """Write it, or count it up. Never fails: what cannot be written is dropped."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All that a pass touches."""

    api: ApiServer
    controls: Controls
    clock: Clock
    defaults: Defaults
    events: EventWriter
    make_token: Callable[[], str]
    """A new secret for control ports."""


class Reconciler:
    """Passes. It remembers nothing that it could not do without, and runs on any event loop: no threads, no other clock
    than the given one, no sleeping but `asyncio`'s."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def reconcile(self, key: Key) -> float | None:
        """Do one pass. Gives the seconds after which to look again at the latest; None: the resource is gone.

        Raises `ServerUnavailable`, `Refused`, `ControlRefused`, `ControlUnavailable`: try again later. What others
        have changed meanwhile is no error: the next pass sees it."""
        raise NotImplementedError
