"""Reading from a cursor for one subscription: at once from the cache, else one read at a time in the background.

Failed reads are tried again after a growing pause, for as long as the subscription wants entries. Replays and reads
ahead pause separately, so that an entry that cannot be read does not stop the ones after it.

The reads of a thousand subscriptions may end in the same turn of the event loop, as after a bookie has hung. What they
brought is sent within dispatch's share of a turn; the others have theirs in the next ones, in order.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from magnetar.broker.policies.broker_limits import BrokerLimits
from magnetar.broker.settings.broker import DispatchSettings
from magnetar.broker.settings.policies import PolicySettings
from magnetar.broker.subscriptions.dispatch_turns import DispatchTurns
from magnetar.core.backoff import Backoff
from magnetar.core.errors import MagnetarError
from magnetar.core.histogram import Histogram
from magnetar.core.ids import EARLIEST
from magnetar.core.transitions import Transitions
from magnetar.ledger.api import EntryUnreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from magnetar.broker.resource_groups.groups import ResourceGroups
    from magnetar.broker.subscriptions.cursor import SubscriptionCursor
    from magnetar.core.clock import CallLater, Clock, TimerHandle
    from magnetar.core.ids import Position
    from magnetar.managed.entry import Entry

logger: Final = logging.getLogger(__name__)

_DEFAULTS: Final = DispatchSettings()
"""For readers whom nobody tells others, such as those of replicators."""


class Spawn(Protocol):
    """How background work is started; whoever gives this owns the tasks and outlives them."""

    def __call__(self, coroutine: Coroutine[Any, Any, None], /) -> object:
        """Run the coroutine as a task."""
        ...


class SubscriptionRuntime:
    """The world as subscriptions see it; one for a whole broker."""

    __slots__ = ("call_later", "clock", "cluster_name", "groups", "limits", "publish_latencies", "spawn", "turns")

    def __init__(
        self,
        clock: Clock,
        spawn: Spawn,
        call_later: CallLater,
        limits: BrokerLimits | None = None,
        groups: ResourceGroups | None = None,
    ) -> None:
        """`groups`: the resource groups that limit topics together; None: there are none."""
        self.cluster_name = ""
        """That of this cluster; set before any topic is loaded."""
        self.clock = clock
        self.spawn = spawn
        self.call_later = call_later
        self.limits = limits if limits is not None else BrokerLimits(PolicySettings(), clock, call_later)
        self.groups = groups
        self.turns = DispatchTurns(call_later)
        self.publish_latencies = Histogram()
        """From the append of messages to their confirmation, in seconds, of all topics."""


class RetryPauses:
    """Pauses that double with each failure in a row, one of them shortened so that it ends at a given moment after the
    first (Pulsar `Backoff` with its `mandatoryStop`)."""

    __slots__ = ("_doubling", "_first_seconds", "_paused_seconds", "_surely_seconds")

    def __init__(self, settings: DispatchSettings) -> None:
        self._first_seconds = settings.read_retry_ms_min / 1000
        self._surely_seconds = settings.read_retry_surely_ms / 1000
        self._doubling = Backoff(self._first_seconds, max(self._first_seconds, settings.read_retry_ms_max / 1000))
        self._paused_seconds = 0.0
        """Since the first failure in a row."""

    def next_seconds(self) -> float:
        """The pause to make now."""
        seconds, left = self._doubling.next_seconds(), self._surely_seconds - self._paused_seconds
        if 0 < left < seconds:
            seconds = max(self._first_seconds, left)
        self._paused_seconds += seconds
        return seconds


class RetryTimer:
    """Tries again after a pause, which doubles with each failure in a row."""

    __slots__ = (
        "_call_later",
        "_pauses",
        "_retry",
        "_settings",
        "_timer",
        "pausing",
    )

    def __init__(self, call_later: CallLater, retry: Callable[[], None]) -> None:
        self._call_later = call_later
        self._retry = retry
        self._timer: TimerHandle | None = None
        self.pausing = False
        """Whether nothing is to be tried now. Looked at for each batch, so it is no property."""
        self._settings = _DEFAULTS
        self._pauses: RetryPauses | None = None
        """There from the first failure on: most readers never have one."""

    def follow(self, settings: DispatchSettings) -> None:
        """Pause as these settings say. Where they differ the next failure counts as a first one."""
        if settings != self._settings:
            self._settings = settings
            self._pauses = None

    def failed(self) -> None:
        """Pause, then retry."""
        if self._pauses is None:
            self._pauses = RetryPauses(self._settings)
        seconds = self._pauses.next_seconds()
        if self._timer is None:
            self._timer = self._call_later(seconds, self._over)
            self.pausing = True

    def succeeded(self) -> None:
        """Begin with a short pause next time."""
        self._pauses = None

    def cancel(self) -> None:
        """No retry any more."""
        self._pauses = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.pausing = False

    def let_go(self) -> None:
        """Nobody is left who would try again."""
        self.cancel()
        self._retry = _nothing

    def _over(self) -> None:
        self._timer = None
        self.pausing = False
        self._retry()


def _nothing() -> None:
    """Nobody is left."""


class ReadState(enum.Enum):
    """What becomes of the read in the background."""

    IDLE = enum.auto()
    """No read runs in the background."""
    READING = enum.auto()
    DROPPED = enum.auto()
    """The read's entries are not wanted any more: they are dropped when they come."""
    REWINDING = enum.auto()
    """The read's entries are dropped when they come, and the cursor goes back to the first unacknowledged entry."""


READ_TRANSITIONS: Final = Transitions(
    "the reads of a cursor",
    {
        ReadState.IDLE: {ReadState.READING},
        ReadState.READING: {ReadState.DROPPED, ReadState.IDLE},
        ReadState.DROPPED: {ReadState.REWINDING, ReadState.IDLE},
        ReadState.REWINDING: {ReadState.REWINDING, ReadState.IDLE},
    },
)


class ReadReceiver(Protocol):
    """What happens with what was read."""

    @property
    def stopped(self) -> bool:
        """Whether nothing may be sent now: what was read is read once more, later."""
        ...

    def entries_read(self, entries: list[Entry]) -> None:
        """Read ahead; the cursor's read position is behind them."""
        ...

    def entries_replayed(self, entries: list[Entry]) -> None:
        """Read again; those of the positions that still need it."""
        ...

    def replay_failed(self) -> None:
        """None of the positions were read."""
        ...

    def unreadable(self, position: Position, *, replayed: bool) -> bool:
        """This entry is damaged everywhere. True when reading goes on without it, False to pause and try again."""
        ...

    def read_ended(self) -> None:
        """A read in the background is over, well or not; another one may start."""
        ...


class _Nobody:
    """A `ReadReceiver` that has gone."""

    stopped = False

    def entries_read(self, entries: list[Entry]) -> None:
        """They are dropped."""

    def entries_replayed(self, entries: list[Entry]) -> None:
        """They are dropped."""

    def replay_failed(self) -> None:
        """It does not matter."""

    def unreadable(self, position: Position, *, replayed: bool) -> bool:
        """Reading does not go on."""
        del position, replayed
        return False

    def read_ended(self) -> None:
        """Nothing follows a read's end."""


NOBODY: Final = _Nobody()


class Brought(NamedTuple):
    """What a read came to."""

    entries: list[Entry]
    replayed: bool


class EntryReader:
    """One cursor's reads. Unless they are IDLE the cursor must not be read or moved by anybody else."""

    __slots__ = (
        "_brought",
        "_cursor",
        "_label",
        "_reads_from",
        "_receiver",
        "_spawn",
        "_turns",
        "_waiters",
        "read_backoff",
        "replay_backoff",
        "replays",
        "state",
    )

    def __init__(
        self, cursor: SubscriptionCursor, runtime: SubscriptionRuntime, receiver: ReadReceiver, label: str
    ) -> None:
        self._cursor = cursor
        self._spawn = runtime.spawn
        self._receiver: ReadReceiver = receiver
        self._label = label
        self._turns = runtime.turns
        self._brought: Brought | None = None
        """By a read that is over and waits for its turn; its state stays as it was."""
        self._reads_from: Position | None = None
        """Where the read ahead began that is not handed over; None: there is none."""
        self.replays: list[Position] = []
        """What is read again now, and not handed over."""
        self._waiters: list[asyncio.Future[None]] = []
        self.state = ReadState.IDLE
        self.read_backoff = RetryTimer(runtime.call_later, receiver.read_ended)
        self.replay_backoff = RetryTimer(runtime.call_later, receiver.read_ended)

    @property
    def reached(self) -> Position:
        """The first entry that the receiver has still to be given, as reading goes on from here."""
        if self.state is ReadState.REWINDING:
            return EARLIEST
        return self._cursor.read_position if self._reads_from is None else self._reads_from

    def follow(self, settings: DispatchSettings) -> None:
        """Other settings hold from now on."""
        for backoff in (self.read_backoff, self.replay_backoff):
            backoff.follow(settings)

    def read(self, count_max: int, size_bytes_max: int) -> None:
        """Read ahead in the background."""
        self._become(ReadState.READING)
        self._reads_from = self._cursor.read_position
        self._spawn(self._read(count_max, size_bytes_max))

    def replay(self, positions: list[Position]) -> None:
        """Read these again in the background."""
        self._become(ReadState.READING)
        self.replays = positions
        self._spawn(self._replay(positions))

    def rewind(self) -> None:
        """Go on at the first unacknowledged entry; what a read in flight brings is dropped."""
        self.drop()
        if self.state is ReadState.IDLE:
            self._cursor.rewind()
        else:
            self._become(ReadState.REWINDING)

    def drop(self) -> None:
        """Drop what a read in flight brings, and every retry."""
        if self.state is ReadState.READING:
            self._become(ReadState.DROPPED)
        self.read_backoff.cancel()
        self.replay_backoff.cancel()

    def let_go(self) -> None:
        """The receiver is gone: it refers to this reader, and would wait for the collector of cycles."""
        self.drop()
        self._receiver = NOBODY
        self.read_backoff.let_go()
        self.replay_backoff.let_go()

    async def wait_until_idle(self) -> None:
        """Wait for the read in flight, if there is one."""
        while self.state is not ReadState.IDLE:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def turn(self) -> None:
        """DispatchTurns: what a read brought may be sent now."""
        brought, self._brought = self._brought, None
        if brought is not None:
            self._deliver(brought)

    async def _read(self, count_max: int, size_bytes_max: int) -> None:
        try:
            entries = await self._cursor.read(count_max, size_bytes_max)
            self.read_backoff.succeeded()
        except MagnetarError as error:
            logger.warning("%s: reading failed: %s", self._label, error)
            if self._finish() and not self._goes_on_without(error, replayed=False):
                self.read_backoff.failed()
            self._receiver.read_ended()
        except BaseException:
            self._finish()
            raise
        else:
            self._ended(Brought(entries, replayed=False))

    async def _replay(self, positions: list[Position]) -> None:
        try:
            entries = await self._cursor.read_positions(positions)
            self.replay_backoff.succeeded()
        except MagnetarError as error:
            logger.warning("%s: reading %d entries again failed: %s", self._label, len(positions), error)
            if self._finish():
                self._receiver.replay_failed()
                if not self._goes_on_without(error, replayed=True):
                    self.replay_backoff.failed()
            self._receiver.read_ended()
        except BaseException:
            if self._finish():
                self._receiver.replay_failed()
            raise
        else:
            self._ended(Brought(entries, replayed=True))

    def _ended(self, brought: Brought) -> None:
        """Have it sent in this turn if that has room, else in one of the next."""
        if self._turns.left_bytes > 0 or not brought.entries:
            self._deliver(brought)
        else:
            self._brought = brought
            self._turns.wait(self)

    def _deliver(self, brought: Brought) -> None:
        if self._finish():
            if self._receiver.stopped:
                if brought.replayed:
                    self._receiver.replay_failed()
                elif brought.entries:
                    self._cursor.skip_to(brought.entries[0].position)
            elif brought.replayed:
                self._receiver.entries_replayed(brought.entries)
            elif brought.entries:
                self._receiver.entries_read(brought.entries)
        self._receiver.read_ended()

    def _goes_on_without(self, failure: MagnetarError, *, replayed: bool) -> bool:
        return isinstance(failure, EntryUnreadable) and self._receiver.unreadable(failure.position, replayed=replayed)

    def _finish(self) -> bool:
        """The read is over: true when its result is still wanted."""
        before = self.state
        self._become(ReadState.IDLE)
        self._reads_from = None
        self.replays = []
        if before is ReadState.REWINDING:
            self._cursor.rewind()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        return before is ReadState.READING

    def _become(self, state: ReadState) -> None:
        self.state = READ_TRANSITIONS.step(self.state, state)
