"""What ZooKeeper keeps of a cluster, and the disks of everybody: which bookie is known, which ledger lies where."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from magnetar.operator.plan.facts import DrainStep

Cookie: TypeAlias = tuple[str, int, int]
"""Bookie id, the metadata's instance, and a number that no other cookie has."""


@dataclass(slots=True)
class Drain:
    """A bookie is to leave."""

    step: DrainStep
    ledgers_total: int
    blockers: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Metadata:
    """One cluster's."""

    instance: int
    initialised: bool = False
    cookies: dict[str, Cookie] = field(default_factory=dict)
    cookies_made: dict[str, float] = field(default_factory=dict)
    """When."""
    ledgers: dict[int, list[str]] = field(default_factory=dict)
    """The bookies that a ledger's metadata names: each has a whole copy."""
    drains: dict[str, Drain] = field(default_factory=dict)
    suspects: set[str] = field(default_factory=set)
    """Bookies that were said to be lost for good."""
    driver: str = "leader"

    def naming(self, bookie_id: str) -> list[int]:
        """The ledgers that name a bookie."""
        return [ledger for ledger, bookies in self.ledgers.items() if bookie_id in bookies]


@dataclass(slots=True)
class Disk:
    """What is in the volume of one claim."""

    claim: str
    """Its name."""
    uid: str
    cookie: Cookie | None = None
    """Of a bookie's disk."""
    ledgers: set[int] = field(default_factory=set)
    metadata: Metadata | None = None
    """Of a ZooKeeper server's disk."""


class Disks:
    """All that there are, by their claims' uids."""

    def __init__(self) -> None:
        self._disks: dict[str, Disk] = {}

    def of(self, claim: str, uid: str) -> Disk:
        """A claim's disk; empty when the claim is new."""
        found = self._disks.get(uid)
        if found is None:
            found = self._disks[uid] = Disk(claim, uid)
        return found

    def known(self, uid: str) -> Disk | None:
        """Nothing while nobody has used it."""
        return self._disks.get(uid)

    def destroy(self, uid: str) -> Disk | None:
        """The claim is gone, and its volume with it."""
        return self._disks.pop(uid, None)

    def with_copy(self, metadata: Metadata, ledger: int) -> list[Disk]:
        """The disks that hold a whole copy which somebody could still find: the ledger's metadata names its bookie."""
        named = metadata.ledgers.get(ledger, ())
        return [
            disk
            for disk in self._disks.values()
            if ledger in disk.ledgers and disk.cookie is not None and disk.cookie[0] in named
        ]

    def all(self) -> list[Disk]:
        """Every disk that was used and still is there."""
        return list(self._disks.values())
