"""What promises are judged by: calls of the operator that change something, and since when what is wished."""

from __future__ import annotations

from dataclasses import dataclass, field

from magnetar.operator.kubernetes.kinds import Manifest


@dataclass(slots=True)
class Write:
    """One call of the operator that changes something."""

    operator: str
    verb: str
    manifest: Manifest
    before: Manifest | None
    """The object as it is."""
    pass_began: float

    @property
    def kind(self) -> str:
        """Of the object."""
        found: str = self.manifest["kind"]
        return found

    @property
    def namespace(self) -> str:
        """Of the object."""
        found: str = self.manifest["metadata"].get("namespace", "")
        return found

    @property
    def name(self) -> str:
        """Of the object."""
        found: str = self.manifest["metadata"]["name"]
        return found


@dataclass(slots=True)
class Wishes:
    """Since when something has been wished, and until when: the latest times."""

    holds: bool = False
    since: float = -1e9
    until: float = -1e9

    def set(self, holds: bool, now: float) -> None:
        """It is so now."""
        if holds and not self.holds:
            self.since = now
        if self.holds and not holds:
            self.until = now
        self.holds = holds

    def held_since(self, moment: float) -> bool:
        """At any time since then."""
        return self.holds or self.until >= moment

    def held_all_along_since(self, moment: float) -> bool:
        """All the time since then."""
        return self.holds and self.since < moment


@dataclass(slots=True)
class Looks:
    """What was seen of a write before it was carried out."""

    replicas: int | None = None
    restarts: bool = False
    problems: list[str] = field(default_factory=list)
