"""What is counted of snapshots."""

from __future__ import annotations


class SnapshotFigures:
    """Of all topics of a broker."""

    __slots__ = ("finished", "finished_ms", "pending", "timed_out")

    def __init__(self) -> None:
        self.pending = 0
        """Snapshots that are not complete."""
        self.timed_out = 0
        """Snapshots that were given up."""
        self.finished = 0
        self.finished_ms = 0
        """How long all finished ones took together."""
