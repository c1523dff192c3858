"""What a replication is to care about, and what has become of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class ReplicationScope(enum.Enum):
    """What a replication cares about."""

    WHOLE = enum.auto()
    """Every fragment: of lost and avoided bookies, and those whose entries do not read."""
    PLACEMENT = enum.auto()
    """Every fragment, and segments that do not adhere to the placement policy are spread anew if that is possible."""
    AVOIDED = enum.auto()
    """The fragments of avoided bookies only, and nothing is checked."""


class ProblemKind(enum.Enum):
    """Why a segment is not whole yet."""

    NOT_ENOUGH_BOOKIES = enum.auto()
    UNREADABLE = enum.auto()
    """Entries that no bookie gives undamaged: it may take an operator to bring a bookie back."""
    TARGET_FAILED = enum.auto()
    SILENT = enum.auto()
    """A registered bookie does not answer; it is replaced when that lasts (`replace_silent`)."""
    CHANGED = enum.auto()
    """The ledger's metadata changed at each attempt to write it; it is tried again later."""
    OPEN = enum.auto()
    """The open segment has a lost bookie, or one that has lost entries; its writer may replace it, or the ledger must
    be closed."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that keeps a ledger from being whole."""

    kind: ProblemKind
    text: str


@dataclass(frozen=True, slots=True)
class OpenDamage:
    """Confirmed entries of an open segment that some of its bookies cannot give."""

    bookies: tuple[str, ...]
    last_entry_id: int
    """How far was looked; what was confirmed later may be under way still."""


@dataclass(slots=True, kw_only=True)
class ReplicationResult:
    """What became of one ledger."""

    ledger_id: int
    deleted: bool = False
    """There is no such ledger (any more); nothing is left to do then."""
    moves: list[tuple[int, str]] = field(default_factory=list)
    """(first entry of the segment, bookie) of every place that was filled."""
    misplaced_moved: bool = False
    """A segment got other bookies only for its placement."""
    entries_copied: int = 0
    bytes_copied: int = 0
    problems: list[Problem] = field(default_factory=list)
    open_damage: OpenDamage | None = None

    @property
    def fragments_moved(self) -> int:
        """Places that were filled."""
        return len(self.moves)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do."""
        return not self.problems

    def has(self, kind: ProblemKind) -> bool:
        """Whether a problem of this kind is left."""
        return any(problem.kind is kind for problem in self.problems)

    @property
    def reason(self) -> str:
        """The problems in words."""
        return "; ".join(problem.text for problem in self.problems)
