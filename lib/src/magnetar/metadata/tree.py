"""The rules of the tree, for the backends that keep it themselves (memory, RocksDB).

`TreeRules` decides: it reads a `NodeTable`, changes nothing, and returns an `Outcome` that says what to save, what to
remove and what to tell. Whoever holds the table applies an outcome before asking for the next one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, Protocol

from magnetar.core.clock import Clock
from magnetar.core.errors import Misuse
from magnetar.metadata.paths import (
    ROOT,
    check_node,
    check_path,
    check_sequential_prefix,
    join,
    parent_of,
    sequential_path,
)
from magnetar.metadata.store import (
    ANY_VERSION,
    MUST_NOT_EXIST,
    Node,
    NodeChange,
    NodeHasChildren,
    NodeNotFound,
    Notification,
    Stat,
    VersionConflict,
)

NO_OWNER: Final = 0
"""The owner of a node that outlives sessions."""


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """What is kept of one node."""

    value: bytes
    version: int
    created_ms: int
    modified_ms: int
    owner: int
    """The session that an ephemeral node belongs to, or `NO_OWNER`."""


class NodeTable(Protocol):
    """Where records are kept. The root is always there, whether or not it has a record."""

    def load(self, path: str) -> NodeRecord | None:
        """The record at a path."""
        ...

    def child_names(self, path: str) -> list[str]:
        """Names of the direct children, sorted by code point."""
        ...

    def has_children(self, path: str) -> bool:
        """Whether a node stands directly below."""
        ...

    def sequence(self, path: str) -> int:
        """The number that the next sequential child of this node gets; 0 for a new node."""
        ...

    def owned_by(self, owner: int) -> list[str]:
        """Paths of a session's ephemeral nodes."""
        ...

    def apply(self, outcome: Outcome) -> None:
        """Make an outcome so, all of it or nothing."""
        ...


@dataclass(slots=True)
class Outcome:
    """What one operation does to the table, and what listeners are told once that is visible."""

    saves: list[tuple[str, NodeRecord]] = field(default_factory=list)
    removals: list[tuple[str, NodeRecord]] = field(default_factory=list)
    """With the records that were there. A removed node's sequence starts again at 0."""
    next_sequence: tuple[str, int] | None = None
    notifications: list[Notification] = field(default_factory=list)
    stat: Stat | None = None


class TreeRules:
    """Decides what each verb of `MetadataStore` does."""

    def __init__(self, table: NodeTable, clock: Clock) -> None:
        self._table = table
        self._clock = clock

    def get(self, path: str, session: int) -> Node | None:
        """The node, or None when there is none. Reads see every write this client has finished. Without `watch` this
        read promises no notification: for whoever reads more nodes than could be watched."""
        check_path(path)
        record = self._load(path)
        return None if record is None else Node(record.value, _stat(path, record, session))

    def children(self, path: str) -> list[str]:
        """Names (not paths) of the direct children, sorted; empty when there is no such node. `watch` as for `get`."""
        check_path(path)
        return self._table.child_names(path)

    def next_number(self, parent: str) -> int:
        """The least number that the next sequential child of a node gets."""
        check_path(parent)
        return self._table.sequence(parent)

    def check_there(self, paths: Collection[str]) -> None:
        """`NodeNotFound` for the first path at which there is no node."""
        for path in paths:
            check_path(path)
            if self._load(path) is None:
                raise NodeNotFound(path)

    def put(
        self, path: str, value: bytes, expected_version: int | None, session: int, *, ephemeral: bool, sequential: bool
    ) -> Outcome:
        """Create or replace. With a version: compare and set, `VersionConflict` otherwise. A node that is replaced
        stays what it was, ephemeral or not."""
        outcome = Outcome()
        if sequential:
            path = self._number(path, expected_version, outcome)
        check_node(path, value)
        existing = self._load(path)
        if expected_version == MUST_NOT_EXIST and existing is not None:
            raise VersionConflict(f"{path} exists at version {existing.version}")
        now_ms = self._clock.now_ms()
        if existing is None:
            if expected_version not in (ANY_VERSION, MUST_NOT_EXIST):
                raise VersionConflict(f"{path} does not exist; version {expected_version} was expected")
            self._make_parents(path, now_ms, outcome)
            record = NodeRecord(value, 0, now_ms, now_ms, session if ephemeral else NO_OWNER)
            _create(path, record, outcome)
        else:
            _check_version(path, existing, expected_version)
            record = NodeRecord(value, existing.version + 1, existing.created_ms, now_ms, existing.owner)
            outcome.saves.append((path, record))
            outcome.notifications.append(Notification(NodeChange.MODIFIED, path))
        outcome.stat = _stat(path, record, session)
        return outcome

    def delete(self, path: str, expected_version: int | None) -> Outcome:
        """Remove one node. `NodeNotFound`, `VersionConflict`, `NodeHasChildren`."""
        check_path(path)
        _check_not_root(path)
        record = self._table.load(path)
        if record is None:
            raise NodeNotFound(path)
        _check_version(path, record, expected_version)
        if self._table.has_children(path):
            raise NodeHasChildren(path)
        outcome = Outcome()
        _remove(path, record, outcome)
        return outcome

    def delete_recursively(self, path: str) -> Outcome:
        """Remove the node and all below it; nothing there is no error. Children go before their parents."""
        check_path(path)
        _check_not_root(path)
        outcome = Outcome()
        found = [path]
        for above in found:
            found.extend(join(above, name) for name in self._table.child_names(above))
        for doomed in reversed(found):
            record = self._table.load(doomed)
            if record is not None:
                _remove(doomed, record, outcome)
        return outcome

    def end_session(self, session: int) -> Outcome:
        """Remove what a session owned."""
        outcome = Outcome()
        for path in sorted(self._table.owned_by(session)):
            record = self._table.load(path)
            if record is not None:
                _remove(path, record, outcome)
        return outcome

    def _load(self, path: str) -> NodeRecord | None:
        record = self._table.load(path)
        if record is None and path == ROOT:
            return NodeRecord(b"", 0, 0, 0, NO_OWNER)
        return record

    def _number(self, prefix: str, expected_version: int | None, outcome: Outcome) -> str:
        if expected_version not in (ANY_VERSION, MUST_NOT_EXIST):
            raise Misuse("a sequential put always creates: there is no version to expect")
        check_sequential_prefix(prefix)
        parent = parent_of(prefix)
        number = self._table.sequence(parent)
        while self._table.load(sequential_path(prefix, number)) is not None:
            number += 1
        outcome.next_sequence = (parent, number + 1)
        return sequential_path(prefix, number)

    def _make_parents(self, path: str, now_ms: int, outcome: Outcome) -> None:
        missing: list[str] = []
        above = parent_of(path)
        record = self._load(above)
        while record is None:
            missing.append(above)
            above = parent_of(above)
            record = self._load(above)
        if record.owner != NO_OWNER:
            raise Misuse(f"{above} is ephemeral and cannot have children")
        for parent in reversed(missing):
            _create(parent, NodeRecord(b"", 0, now_ms, now_ms, NO_OWNER), outcome)


def _create(path: str, record: NodeRecord, outcome: Outcome) -> None:
    outcome.saves.append((path, record))
    outcome.notifications.append(Notification(NodeChange.CREATED, path))
    outcome.notifications.append(Notification(NodeChange.CHILDREN_CHANGED, parent_of(path)))


def _remove(path: str, record: NodeRecord, outcome: Outcome) -> None:
    outcome.removals.append((path, record))
    outcome.notifications.append(Notification(NodeChange.DELETED, path))
    outcome.notifications.append(Notification(NodeChange.CHILDREN_CHANGED, parent_of(path)))


def _check_version(path: str, record: NodeRecord, expected_version: int | None) -> None:
    if expected_version not in (ANY_VERSION, record.version):
        raise VersionConflict(f"{path} is at version {record.version}; {expected_version} was expected")


def _check_not_root(path: str) -> None:
    if path == ROOT:
        raise Misuse("the root cannot be deleted")


def _stat(path: str, record: NodeRecord, session: int) -> Stat:
    ephemeral = record.owner != NO_OWNER
    owned = ephemeral and record.owner == session
    return Stat(path, record.version, record.created_ms, record.modified_ms, ephemeral, owned)
