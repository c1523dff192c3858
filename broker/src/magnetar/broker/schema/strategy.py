"""The strategies by which a new schema is held against the old ones."""

from __future__ import annotations

import enum


class Strategy(enum.Enum):
    """Pulsar's SchemaCompatibilityStrategy by its names. "New" is the schema that someone brings."""

    UNDEFINED = "UNDEFINED"
    """Nothing is set at this level; whoever asks the registry has resolved it, so it counts as never."""
    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    """The new schema reads what the newest old one wrote."""
    FORWARD = "FORWARD"
    """The newest old schema reads what the new one writes."""
    FULL = "FULL"
    """Each of the two reads what the other one writes: backward and forward; the default of a broker."""
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def transitive(self) -> bool:
        """Whether all old schemas count, not only the newest."""
        return self in (Strategy.BACKWARD_TRANSITIVE, Strategy.FORWARD_TRANSITIVE, Strategy.FULL_TRANSITIVE)

    @property
    def new_reads_old(self) -> bool:
        """Whether the new schema must read what the old ones wrote."""
        return self in (
            Strategy.BACKWARD,
            Strategy.BACKWARD_TRANSITIVE,
            Strategy.FULL,
            Strategy.FULL_TRANSITIVE,
        )

    @property
    def old_reads_new(self) -> bool:
        """Whether the old schemas must read what the new one writes."""
        return self in (Strategy.FORWARD, Strategy.FORWARD_TRANSITIVE, Strategy.FULL, Strategy.FULL_TRANSITIVE)
