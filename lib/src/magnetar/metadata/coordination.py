"""Coordination between processes, built on ephemeral and sequential nodes: leaders, locks, unique names.

The paths and the rules are those of Pulsar's coordination service (LeaderElectionImpl, ResourceLockImpl,
CoordinationServiceImpl.getNextCounterValue), as Apache's brokers take part in the same elections.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from magnetar.core.errors import MagnetarError
from magnetar.core.transitions import Transitions
from magnetar.metadata.store import (
    MUST_NOT_EXIST,
    MetadataStore,
    Node,
    NodeNotFound,
    Notification,
    SessionEvent,
    StoreClosed,
    StoreUnavailable,
    VersionConflict,
)
from magnetar.metadata.sure_writes import Attempts

logger: Final = logging.getLogger(__name__)

_ATTEMPTS_MAX: Final = 20
"""How often a claim starts again because others changed the node meanwhile."""

RETRY_DELAY_SECONDS: Final = 0.2
"""Between attempts to settle while the store is unavailable; it goes on for as long as the election or lock lives."""


class LockTaken(MagnetarError):
    """Somebody else holds the lock."""

    def __init__(self, path: str, holder: bytes) -> None:
        super().__init__(f"{path} is held by another: {holder[:200]!r}")
        self.holder = holder
        """The value of the holder's node."""


class LeaderState(enum.Enum):
    """What is known of a leader."""

    UNKNOWN = enum.auto()
    """Not known now; we must not act as the leader."""
    LEADING = enum.auto()
    FOLLOWING = enum.auto()


class LockState(enum.Enum):
    """How a lock stands."""

    FREE = enum.auto()
    """Not acquired yet, or released."""
    HELD = enum.auto()
    IN_DOUBT = enum.auto()
    """The session is lost: do not act as the holder until it is HELD again."""
    LOST = enum.auto()
    """Another session holds the lock; this object is done."""


LOCK_TRANSITIONS: Final = Transitions(
    "a lock",
    {
        LockState.FREE: {LockState.FREE, LockState.HELD, LockState.LOST},
        LockState.HELD: {LockState.IN_DOUBT, LockState.LOST, LockState.FREE},
        LockState.IN_DOUBT: {LockState.HELD, LockState.LOST, LockState.FREE},
        LockState.LOST: (),
    },
)


class LeaderElection:
    """Takes part in the election at a path: whoever makes the ephemeral node first leads until it vanishes.

    The value must be this process's own, as a node with the same value counts as a leftover of ours. `on_change` is
    called on the loop after each change of `state`; a lost session turns LEADING to UNKNOWN at once."""

    def __init__(self, store: MetadataStore, path: str, value: bytes, on_change: Callable[[LeaderState], None]) -> None:
        self.state = LeaderState.UNKNOWN
        self.leader: bytes | None = None
        """The value of the leader's node, as far as known."""
        self._store = store
        self._path = path
        self._value = value
        self._on_change = on_change
        self._keeper = NodeKeeper(store, path, self._settle, self._doubt)

    async def start(self) -> LeaderState:
        """Take part; returns how the first round ended. `StoreUnavailable` if it could not be held."""
        await self._keeper.start()
        return self.state

    async def close(self) -> None:
        """Take part no more, and give the lead up."""
        await self._keeper.stop()
        self._become(LeaderState.UNKNOWN, None)
        await give_up(self._store, self._path)

    async def _settle(self) -> None:
        doubts = self._keeper.doubts
        node = await claim(self._store, self._path, self._value)
        if self._keeper.doubts == doubts:
            owned = node.stat.owned_by_this_session
            self._become(LeaderState.LEADING if owned else LeaderState.FOLLOWING, node.value)

    def _doubt(self) -> None:
        self._become(LeaderState.UNKNOWN, None)

    def _become(self, state: LeaderState, leader: bytes | None) -> None:
        self.leader = leader
        if state is not self.state:
            self.state = state
            self._on_change(state)


class ResourceLock:
    """A lock at a path, with a value for others to read. It is held by an ephemeral node.

    When the node vanishes or the session is lost, it is taken again if nobody else was quicker. `on_change` is called
    on the loop after each change of `state` that `acquire` or `release` did not make. The value must be this process's
    own, as a node with the same value counts as a leftover of ours."""

    def __init__(self, store: MetadataStore, path: str, value: bytes, on_change: Callable[[LockState], None]) -> None:
        self.state = LockState.FREE
        self._store = store
        self._path = path
        self._value = value
        self._holder = b""
        self._on_change = on_change
        self._keeper = NodeKeeper(store, path, self._settle, self._doubt)
        self._released = False

    async def acquire(self) -> None:
        """Take the lock, once in this object's life. `LockTaken` if another holds it.

        When it cannot be known whether it is taken, or nobody waits for that any more, it is given up again."""
        try:
            await self._keeper.start()
        except (Exception, asyncio.CancelledError) as error:
            if not isinstance(error, StoreClosed):
                # What was asked for may stand, or come yet: others would wait for our session to end.
                await asyncio.shield(_take_back(self._store, self._path, self._value))
            raise
        if self.state is LockState.LOST:
            await self._keeper.stop()
            raise LockTaken(self._path, self._holder)

    async def update(self, value: bytes) -> None:
        """Replace the value. `LockTaken` if the lock turns out to be another's; `StoreUnavailable`, also when it was
        released meanwhile."""
        self._value = value
        await self._keeper.settle_now()
        if self.state is LockState.LOST:
            raise LockTaken(self._path, self._holder)
        if self._released:
            raise StoreUnavailable(f"the lock at {self._path} was released")

    async def release(self) -> None:
        """Give the lock free, for good. Safe in any state, and during an update."""
        self._released = True
        await self._keeper.stop()
        if self.state is not LockState.LOST:
            self.state = LOCK_TRANSITIONS.step(self.state, LockState.FREE)
            await give_up(self._store, self._path)

    async def _settle(self) -> None:
        if self.state is LockState.LOST or self._is_released():
            return
        doubts = self._keeper.doubts
        try:
            node = await claim(self._store, self._path, self._value)
        finally:
            if self._is_released():
                # The claim of an update, which began before: it may have made the node anew.
                await give_up(self._store, self._path)
        if self._is_released():
            return
        if not node.stat.owned_by_this_session:
            self._holder = node.value
            self._become(LockState.LOST)
        elif self._keeper.doubts == doubts:
            self._become(LockState.HELD)

    def _is_released(self) -> bool:
        return self._released

    def _doubt(self) -> None:
        if self.state is LockState.HELD:
            self._become(LockState.IN_DOUBT)

    def _become(self, state: LockState) -> None:
        if state is self.state:
            return
        acquiring = self.state is LockState.FREE
        self.state = LOCK_TRANSITIONS.step(self.state, state)
        if not acquiring:
            self._on_change(state)


async def next_counter_value(store: MetadataStore, path: str) -> int:
    """A number that nobody else gets from the counter at this path: that of an ephemeral sequential child `-`."""
    stat = await store.put(f"{path}/-", b"", MUST_NOT_EXIST, ephemeral=True, sequential=True)
    return int(stat.path.rpartition("-")[2])


class NameGenerator:
    """Names that no other process makes: `<prefix>-<instance>-<number>`, as Pulsar names producers."""

    def __init__(self, prefix: str, instance: int) -> None:
        self._stem = f"{prefix}-{instance}-"
        self._next = 0

    @staticmethod
    async def open(store: MetadataStore, path: str, prefix: str) -> NameGenerator:
        """With an instance number from the counter at this path (Pulsar: `/counters/producer-name`)."""
        return NameGenerator(prefix, await next_counter_value(store, path))

    def next_name(self) -> str:
        """A new name; asks nobody."""
        name = f"{self._stem}{self._next}"
        self._next += 1
        return name


class NodeKeeper:
    """Settles a node again whenever its store tells of a change there or of its session, one round at a time."""

    def __init__(
        self,
        store: MetadataStore,
        path: str,
        settle: Callable[[], Awaitable[None]],
        on_doubt: Callable[[], None],
    ) -> None:
        self.doubts = 0
        """How often the session was lost: what was read before is no proof of ownership after."""
        self._store = store
        self._path = path
        self._settle = settle
        self._on_doubt = on_doubt
        self._wake_up = asyncio.Event()
        self._one_round = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._stops: list[Callable[[], None]] = []

    async def start(self) -> None:
        """Hold the first round, and go on in the background if it could be held."""
        self._stops = [self._store.watch(self._take_notification), self._store.watch_session(self._take_session_event)]
        try:
            await self.settle_now()
        except (Exception, asyncio.CancelledError):
            await self.stop()
            raise
        self._task = asyncio.create_task(self._run(), name=f"keep {self._path}")

    async def settle_now(self) -> None:
        """Hold a round in the caller's task."""
        async with self._one_round:
            await self._settle()

    async def stop(self) -> None:
        """Begin no further round."""
        for stop in self._stops:
            stop()
        self._stops = []
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        while True:
            await self._wake_up.wait()
            self._wake_up.clear()
            try:
                await self.settle_now()
                continue
            except StoreClosed:
                self._take_session_event(SessionEvent.SESSION_LOST)
                return
            except StoreUnavailable as error:
                logger.warning("%s is not settled, trying again: %s", self._path, error)
            except Exception:
                logger.exception("%s is not settled, trying again", self._path)
            await asyncio.sleep(RETRY_DELAY_SECONDS)
            self._wake_up.set()

    def _take_notification(self, notification: Notification) -> None:
        if notification.path == self._path:
            self._wake_up.set()

    def _take_session_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.SESSION_LOST:
            self.doubts += 1
            self._on_doubt()
        elif event in (SessionEvent.RECONNECTED, SessionEvent.SESSION_RESTARTED):
            self._wake_up.set()


async def claim(
    store: MetadataStore, path: str, value: bytes, *, is_leftover: Callable[[bytes], bool] | None = None
) -> Node:
    """Make the ephemeral node unless another's stands; returns what stands, watched, with our value if it is ours.

    What a session of this process left behind that has not ended yet is replaced: a node with the same value, or one
    whose value `is_leftover` knows."""
    attempts = Attempts()
    for _ in range(_ATTEMPTS_MAX):
        try:
            node = await store.get(path)
            if node is None:
                await store.put(path, value, MUST_NOT_EXIST, ephemeral=True)
            elif node.stat.owned_by_this_session:
                if node.value == value:
                    return node
                await store.put(path, value, node.stat.version)
            elif node.stat.ephemeral and (node.value == value or (is_leftover is not None and is_leftover(node.value))):
                await store.delete(path, node.stat.version)
            else:
                return node
        except (NodeNotFound, VersionConflict):
            continue  # Others were quicker: look again.
        except StoreUnavailable as error:
            await attempts.again(error)
    raise StoreUnavailable(f"{path} changed under {_ATTEMPTS_MAX} attempts to claim it")


async def give_up(store: MetadataStore, path: str) -> None:
    """Remove the node if it is ours; when the store cannot be reached for long, the end of the session will."""
    attempts = Attempts()
    for _ in range(_ATTEMPTS_MAX):
        try:
            node = await store.get(path)
            if node is not None and node.stat.owned_by_this_session:
                await store.delete(path, node.stat.version)
        except VersionConflict:
            continue  # It may be an update of ours that came between.
        except StoreUnavailable as error:
            try:
                await attempts.again(error)
            except StoreUnavailable:
                logger.info("%s was not removed: %s", path, error)
                return
        except NodeNotFound as error:
            logger.info("%s was not removed: %s", path, error)
            return
        else:
            return


async def _take_back(store: MetadataStore, path: str, value: bytes) -> None:
    """Leave nothing of a claim whose end nobody knows: what is on its way comes before a claim that is answered."""
    try:
        await claim(store, path, value)
    except StoreUnavailable as error:
        logger.warning("%s may stay ours until the session ends: %s", path, error)
        return
    await give_up(store, path)
