"""How topic policies are read and written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from magnetar.core.limits import MIB

HELD_BYTES_MAX: Final = 512 * MIB
"""Of all namespaces: four of the largest, and a quarter of the memory that a broker's pods have by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeEventsSettings:
    """Times and bounds of `ChangeEvents`."""

    read_timeout_seconds: float = 30.0
    """How long a topic's load waits for its namespace's policies before it fails."""
    update_timeout_seconds: float = 30.0
    """How long a change may take, waiting for other brokers' changes of the same topic included."""
    retry_seconds: float = 1.0
    """Pause after the policies of a namespace could not be read."""
    update_attempts_max: int = 10
    """How often a change is made again because another broker's came between; each time that one got through."""
    idle_namespaces_max: int = 100
    """Namespaces that are read although no topic of theirs is loaded here; the oldest are let go of beyond."""
    idle_seconds_min: float = 60.0
    """How long such a namespace is kept all the same after somebody has asked for it: its topic may be being loaded."""
    held_bytes_max: int = HELD_BYTES_MAX
    """What all namespaces may take of memory before those without loaded topics are let go of, and none is read that
    was not read before; a quarter of the broker's memory, if that is more."""
    crowded_retry_seconds: float = 30.0
    """Pause after a namespace was not read for want of memory: reading what there is room for takes seconds."""
