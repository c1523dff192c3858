"""The metadata store that forgets: for tests, the simulator and clusters that live for one process."""

from __future__ import annotations

from typing import Final

from magnetar.core.clock import Clock, SystemClock
from magnetar.metadata.local import LocalStore, LocalTree
from magnetar.metadata.paths import ROOT, name_of, parent_of
from magnetar.metadata.tree import NO_OWNER, NodeRecord, Outcome

_SYSTEM_CLOCK: Final = SystemClock()


class MemoryTable:
    """Records in dictionaries."""

    def __init__(self) -> None:
        self._records: dict[str, NodeRecord] = {}
        self._children: dict[str, set[str]] = {}
        self._sequences: dict[str, int] = {}
        self._owned: dict[int, set[str]] = {}

    def load(self, path: str) -> NodeRecord | None:
        """The record at a path."""
        return self._records.get(path)

    def child_names(self, path: str) -> list[str]:
        """Names of the direct children, sorted."""
        return sorted(self._children.get(path, ()))

    def has_children(self, path: str) -> bool:
        """Whether a node stands directly below."""
        return path in self._children

    def sequence(self, path: str) -> int:
        """The number that the next sequential child gets."""
        return self._sequences.get(path, 0)

    def owned_by(self, owner: int) -> list[str]:
        """Paths of a session's ephemeral nodes."""
        return list(self._owned.get(owner, ()))

    def apply(self, outcome: Outcome) -> None:
        """Store an outcome: the records that it changes."""
        for path, record in outcome.saves:
            self._records[path] = record
            if path != ROOT:
                self._children.setdefault(parent_of(path), set()).add(name_of(path))
            if record.owner != NO_OWNER:
                self._owned.setdefault(record.owner, set()).add(path)
        for path, record in outcome.removals:
            self._remove(path, record)
        if outcome.next_sequence is not None:
            parent, number = outcome.next_sequence
            self._sequences[parent] = number

    def copy(self) -> MemoryTable:
        """A copy of the records that changes apart from these."""
        copied = MemoryTable()
        copied._records = dict(self._records)
        copied._children = {path: set(names) for path, names in self._children.items()}
        copied._sequences = dict(self._sequences)
        copied._owned = {owner: set(paths) for owner, paths in self._owned.items()}
        return copied

    def _remove(self, path: str, record: NodeRecord) -> None:
        del self._records[path]
        self._sequences.pop(path, None)
        parent = parent_of(path)
        siblings = self._children[parent]
        siblings.discard(name_of(path))
        if not siblings:
            del self._children[parent]
        if record.owner != NO_OWNER:
            owned = self._owned[record.owner]
            owned.discard(path)
            if not owned:
                del self._owned[record.owner]


class MemoryTree(LocalTree):
    """A tree in memory that several sessions may share."""

    def __init__(self, clock: Clock = _SYSTEM_CLOCK, table: MemoryTable | None = None) -> None:
        self._memory = MemoryTable() if table is None else table
        super().__init__(self._memory, clock)

    def copy(self) -> MemoryTree:
        """A tree that holds what this one holds now, without its sessions."""
        return MemoryTree(table=self._memory.copy())


class MemoryMetadataStore(LocalStore):
    """One session on a tree in memory; without a tree it gets one of its own.

    `expire_session`, `disconnect` and `reconnect` play what can happen to a session with a remote store."""

    def __init__(self, tree: MemoryTree | None = None) -> None:
        self._memory_tree = MemoryTree() if tree is None else tree
        super().__init__(self._memory_tree)

    def another_session(self) -> MemoryMetadataStore:
        """A new session on the same tree, as another process would have."""
        return MemoryMetadataStore(self._memory_tree)

    def copy_of_tree(self) -> MemoryTree:
        """A tree that holds what this store's holds now, for another store to go its own way from here."""
        return self._memory_tree.copy()
