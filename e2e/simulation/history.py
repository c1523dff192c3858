"""What clients did and what they were told, in the order in which it happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Appended:
    """A writer handed entries over."""

    first_entry_id: int
    count: int
    last_add_confirmed: int
    """The writer's at that moment: what the entries carry."""
    at_seconds: float


@dataclass(slots=True)
class Confirmed:
    """A writer was told that all entries up to this one are safe."""

    last_add_confirmed: int
    at_seconds: float


@dataclass(slots=True)
class Opened:
    """A client opened the ledger and was told how far it goes."""

    who: str
    recovered: bool
    closed: bool
    last_add_confirmed: int
    length_bytes: int
    began_seconds: float
    at_seconds: float


@dataclass(slots=True)
class WriterClosed:
    """The writer's close succeeded."""

    last_add_confirmed: int
    length_bytes: int
    at_seconds: float


@dataclass(slots=True)
class Read:
    """A client was given entries."""

    who: str
    first_entry_id: int
    payloads: list[bytes]
    at_seconds: float


@dataclass(slots=True)
class Unreadable:
    """A client was refused an entry that it should have been given, when nothing was wrong any more."""

    who: str
    entry_id: int
    error: str


@dataclass(slots=True)
class Replicas:
    """Which bookies of an entry's write set have it, at the end."""

    entry_id: int
    wanted: int
    holders: list[str]


Event = Appended | Confirmed | Opened | WriterClosed | Read | Unreadable | Replicas


@dataclass(slots=True)
class LedgerHistory:
    """One ledger."""

    ledger_id: int
    payloads: list[bytes] = field(default_factory=list)
    """What its writer appended, by entry id."""
    events: list[Event] = field(default_factory=list)
    staleness_seconds: float = 0.0
    deleted_at_seconds: float = float("inf")
    """When somebody began to delete it: from then on nothing is promised."""
    finished: bool = False
    """Whether the final readers have seen all of it."""

    @property
    def deleted(self) -> bool:
        """Whether somebody has begun to delete it."""
        return self.deleted_at_seconds < float("inf")


@dataclass(slots=True)
class History:
    """All ledgers of a run."""

    ledgers: dict[int, LedgerHistory] = field(default_factory=dict)
    stuck: list[str] = field(default_factory=list)
    """Who did not come to an end although nothing was wrong any more."""

    staleness_seconds: float = 0.0
    """How old the metadata may be that a client reads."""
    watch_takeover: Callable[[str], None] = lambda _: None
    """Called when a recovery "begins" and when it has "ended" well: the moments at which faults hurt most."""

    def ledger(self, ledger_id: int) -> LedgerHistory:
        """The history of one ledger."""
        found = self.ledgers.get(ledger_id)
        if found is None:
            found = self.ledgers[ledger_id] = LedgerHistory(ledger_id, staleness_seconds=self.staleness_seconds)
        return found
