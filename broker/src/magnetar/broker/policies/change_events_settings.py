"""How topic policies are read and written."""

from __future__ import annotations

from dataclasses import dataclass


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
