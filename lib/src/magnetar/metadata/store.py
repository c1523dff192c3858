"""The interface that every metadata backend implements.

The model is ZooKeeper's, as Pulsar's own `MetadataStore` narrows it: a tree of nodes, each with a value and a
version that counts its changes from 0; writes may demand a version; nodes may be ephemeral (they vanish with the
session that made them) or sequential. Paths are absolute, `/`-separated, without a trailing slash; parents are made
on demand.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, Protocol

from magnetar.core.errors import MagnetarError, Unavailable

ANY_VERSION: Final = None
"""Write whatever the node's version is, and create it if there is none."""

MUST_NOT_EXIST: Final = -1
"""The expected version with which a write must create its node."""


class VersionConflict(MagnetarError):
    """The node's version is not the expected one (or it exists and should not, or the other way round)."""


class NodeNotFound(MagnetarError):
    """There is no node at this path."""


class NodeHasChildren(MagnetarError):
    """The node cannot be deleted because others stand below it."""


class StoreUnavailable(Unavailable):
    """The store cannot be reached now; the write may or may not have happened."""


class NodeTooLarge(StoreUnavailable):
    """The store holds no such node. Nothing was sent, and trying again does not help."""


class StoreClosed(StoreUnavailable):
    """`close` was called: nothing will succeed here again, so do not retry."""


@dataclass(frozen=True, slots=True)
class Stat:
    """What a store knows about one version of a node."""

    path: str
    """Where the node is; differs from the requested path for sequential nodes."""
    version: int
    created_ms: int
    modified_ms: int
    """When the node was changed last, in milliseconds since 1970; it and `created_ms` are 0 where the store keeps no
    times."""
    ephemeral: bool
    owned_by_this_session: bool
    revision: int = 0
    """In a store that keeps no times: the number of the change that made the node."""

    @property
    def made(self) -> int:
        """Tells a node from one that was made at its path later: when it was made, as far as the store tells."""
        return self.created_ms or self.revision


@dataclass(frozen=True, slots=True)
class Node:
    """A value with its stat."""

    value: bytes
    stat: Stat


class NodeChange(enum.Enum):
    """What happened to a node."""

    CREATED = enum.auto()
    MODIFIED = enum.auto()
    DELETED = enum.auto()
    CHILDREN_CHANGED = enum.auto()
    """A direct child appeared or vanished; the path is the parent's."""


@dataclass(frozen=True, slots=True)
class Notification:
    """One change, told to listeners after it is visible to reads."""

    change: NodeChange
    path: str


class SessionEvent(enum.Enum):
    """How the session with the store fares; owners of ephemeral nodes must act on these."""

    CONNECTION_LOST = enum.auto()
    """The store is not reachable now; ephemeral nodes are still there."""
    RECONNECTED = enum.auto()
    """The connection is back and the session is the one from before."""
    SESSION_LOST = enum.auto()
    """The session is over: every ephemeral node of ours is gone or will be. Stop acting as an owner."""
    SESSION_RESTARTED = enum.auto()
    """A new session stands; ephemeral nodes must be made again."""


class MetadataStore(Protocol):
    """Twelve verbs over a tree of versioned nodes. All methods may raise `StoreUnavailable`."""

    async def get(self, path: str, *, watch: bool = True) -> Node | None:
        """The node, or None when there is none. Reads see every write this client has finished.

        Without `watch` this read promises no notification: for whoever reads more nodes than could be watched."""
        ...

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = ANY_VERSION,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> Stat:
        """Create or replace. With a version: compare and set, `VersionConflict` otherwise.

        A sequential put always creates; ten decimal digits are appended to the path (see `Stat.path`)."""
        ...

    async def put_while_there(self, path: str, value: bytes, expected_version: int, others: Collection[str]) -> int:
        """Compare and set as by `put` (`MUST_NOT_EXIST`: create), in one step with a look at other nodes: only while
        all of them are there. Returns the new version.

        `VersionConflict`; `NodeNotFound`, whose text is the path, when another one is missing and nothing is written.
        Where both are so, either is raised."""
        ...

    async def delete(self, path: str, expected_version: int | None = ANY_VERSION) -> None:
        """Remove one node. `NodeNotFound`, `VersionConflict`, `NodeHasChildren`."""
        ...

    async def delete_recursively(self, path: str) -> None:
        """Remove the node and all below it; nothing there is no error."""
        ...

    async def exists(self, path: str, *, watch: bool = True) -> bool:
        """Whether there is a node at the path. `watch` as for `get`."""
        ...

    async def children(self, path: str, *, watch: bool = True) -> list[str]:
        """Names (not paths) of the direct children, sorted; empty when there is no such node. `watch` as for `get`."""
        ...

    def watch(self, listener: Callable[[Notification], None]) -> Callable[[], None]:
        """Be told of changes under every path that this store has read or listed; returns the way to stop.

        Backends with remote watches promise it for paths that were read, listed or checked since the last
        notification about them; they may also tell of a change where there was none. Listeners run on the event loop
        and must not block. They hear of this client's own write before it returns, so that a cache never hides it."""
        ...

    def watch_session(self, listener: Callable[[SessionEvent], None]) -> Callable[[], None]:
        """Be told how the session fares; returns the way to stop."""
        ...

    def limit_waiting(self, seconds: float) -> None:
        """This process stops: once a server that is asked for something has said nothing for so long, all that is under
        way or comes later fails at once with `StoreClosed`, and `close` does not wait for it either. However many
        steps the stop has, it waits once. Nothing where there is no server."""
        ...

    async def close(self) -> None:
        """End the session; its ephemeral nodes vanish at once, or by its timeout if the server does not answer."""
        ...
