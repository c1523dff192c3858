"""A durable subscription whose position is kept by the owner of its topic.

This broker holds the subscription there, so that nobody else consumes it, and tells the owner what is acknowledged: at
a bounded rate, and at once when somebody waits for it. One round of telling is in flight; who asks meanwhile shares the
next one. The owner's answer to each ACK is waited for: with a broker of ours it means durable. Apache's broker answers
before its cursor is written (`Consumer.messageAcked`), so what it answered in its last second before a crash may be
gone; that is why everything is told again when the hold comes back.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from magnetar.broker.read_only.keep_settings import KeepSettings
from magnetar.broker.read_only.position_difference import Kept, Tell, start_after, takes_back, tell_next
from magnetar.client.hold import PartOfBatch
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, PeerError, Unavailable
from magnetar.core.ids import NO_ENTRY, Position
from magnetar.core.transitions import Transitions
from magnetar.managed.ack_state import AckState
from magnetar.managed.errors import CursorClosed
from magnetar.managed.ledger_list import LedgerList
from magnetar.wire.pulsar.errors import PulsarError, ServerError

logger: Final = logging.getLogger(__name__)

COMMANDS_AT_ONCE: Final = 4
"""ACKs of one subscription without an answer: enough that a round trip costs little, and some 80 KB of frames."""

PAUSE_SECONDS: Final = 0.1
"""After something the owner refused or did not answer. The client's own attempts to come back have a backoff."""

GONE: Final = frozenset({ServerError.SUBSCRIPTION_NOT_FOUND, ServerError.TOPIC_NOT_FOUND})

UNTOLD: Final = (NO_ENTRY, NO_ENTRY)
"""The owner has confirmed no mark."""

PersistCallback = Callable[[MagnetarError | None], None]


class PositionMoved(PeerError):
    """Somebody else has changed the position of a subscription at the topic's owner."""


class KeptState(enum.Enum):
    """Whether the position is told to the owner."""

    OPEN = enum.auto()
    LOST = enum.auto()
    """The subscription is not held any more."""
    CLOSED = enum.auto()
    DELETING = enum.auto()
    """Its deletion has begun; whether that is done is known when `delete` returns."""


KEPT_TRANSITIONS: Final = Transitions(
    "a kept position",
    {
        KeptState.OPEN: {KeptState.LOST, KeptState.CLOSED, KeptState.DELETING},
        KeptState.LOST: {KeptState.CLOSED, KeptState.DELETING},
        KeptState.CLOSED: {KeptState.CLOSED, KeptState.DELETING},
        KeptState.DELETING: {KeptState.DELETING},
    },
)


class Hold(Protocol):
    """A subscription that is held at the owner: `magnetar.client.hold.SubscriptionHold`."""

    failure: MagnetarError | None

    async def wait_until_held(self) -> None: ...

    async def mark_delete(self) -> Position: ...

    async def acknowledge_up_to(self, position: tuple[int, int]) -> None: ...

    async def acknowledge_each(self, whole: Sequence[Position], parts: Sequence[PartOfBatch] = ()) -> None: ...

    async def seek(self, position: Position) -> None: ...

    async def unsubscribe(self) -> None: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What is known of a subscription when it was taken."""

    mark_delete: Position
    acknowledged: Sequence[tuple[Position, Position]]
    cursor_properties: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepingParts:
    """What a position needs beside its hold."""

    name: str
    """Topic and subscription, for logs and errors."""
    settings: KeepSettings
    clock: Clock
    wait_seconds: Callable[[float], float]
    """How long until the next round, given when the last one began."""
    on_lost: Callable[[MagnetarError], None]
    """The subscription is another one's, is gone, or was moved by somebody else: its consumers here have to go. Called
    after `store` was, and again at the rate until the position is closed: it may be lost before those who are to be
    told of it know that they have it."""
    on_closed: Callable[[], None]
    """It needs no looking after any more."""
    write_properties: Callable[[dict[str, str]], Awaitable[None]]
    """Have the owner keep other properties of the subscription."""


class KeptPosition:
    """Implements `magnetar.managed.following.api.KeptCursor` and `magnetar.managed.cursors.store.CursorStore`.

    What is acknowledged is held twice beside the cursor's own state, as bits: what the owner has confirmed, and what is
    being told."""

    def __init__(self, parts: KeepingParts) -> None:
        """Not of use before `begin`."""
        self.mark_delete: Position = (NO_ENTRY, NO_ENTRY)
        self.acknowledged: Sequence[tuple[Position, Position]] = ()
        self.cursor_properties: dict[str, str] = {}
        self.properties: dict[str, int] = {}
        """Kept here only: the protocol has no way to tell an owner."""
        self.ledger_id: int = -1
        self.switched_ms: int = 0
        self.dirty: bool = False
        self.state: KeptState = KeptState.OPEN
        self.acks: AckState = AckState(LedgerList([]), self.mark_delete)
        self._parts = parts
        self._hold: Hold | None = None
        self._loop = asyncio.get_running_loop()
        self._stored = False
        self._lost: MagnetarError | None = None
        self._told = Kept(self.mark_delete)
        """The owner has confirmed this much."""
        self._seen = self.mark_delete
        """It had this mark at the last look, stored or not."""
        self._sent = self._told
        """It may have been told this much."""
        self._seek_owed = False
        self._sought = False
        self._returned = False
        """The hold was renewed; what its owner has is to be found out."""
        self._let_go = False
        """Its owner had closed it."""
        self._in_flight: list[PersistCallback] | None = None
        self._waiting: list[PersistCallback] = []
        # Both grow by what clients wait for, and clients have a bound on that.
        self._timer: asyncio.Handle | None = None
        self._round: asyncio.Task[None] | None = None
        self._letting_go: asyncio.Task[None] | None = None
        self._began_seconds = float("-inf")

    def begin(self, hold: Hold, taken: Taken) -> None:
        """The hold stands, and this is known."""
        self._hold = hold
        self.mark_delete = taken.mark_delete
        self.acknowledged = taken.acknowledged
        self.cursor_properties = taken.cursor_properties

    def store(self, acks: AckState) -> KeptPosition:
        """From now on this state is what the owner has to have."""
        self.acks = acks
        # Not more than the owner has: what was not taken over is acknowledged once more. Its mark it may have in memory
        # only, after it refused an acknowledgement: it is told again before anybody hears that it is stored.
        self._sent = taken = Kept.of(acks)
        untold = taken.mark[1] != NO_ENTRY or taken.beyond
        self._told = Kept(UNTOLD if untold else taken.mark, dict(taken.beyond), dict(taken.partial))
        self._seen = acks.mark_delete
        self._stored = True
        if self.state is KeptState.LOST:
            self._timer = self._loop.call_soon(self._tell_lost)
        elif self._returned:
            self._tell_now()
        return self

    # --- magnetar.managed.cursors.store.CursorStore

    @property
    def durable_mark(self) -> Position:
        """Nothing is deleted by it: that is the owner's."""
        return self.acks.mark_delete

    @property
    def last_entry_id(self) -> int:
        """There is no ledger."""
        return NO_ENTRY

    @property
    def deleting(self) -> bool:
        """Whether its deletion has begun."""
        return self.state is KeptState.DELETING

    def changed(self) -> None:
        """Have the owner told at the rate."""
        if not self.dirty and self.state is KeptState.OPEN:
            self.dirty = True
            self._tell_later()

    def persist(self, done: PersistCallback) -> None:
        """Call `done`, later, once the owner has confirmed everything acknowledged so far; with the error if it has
        not within `patience_seconds`. Calls made while a round is in flight share the next one."""
        if self.state is not KeptState.OPEN:
            self._loop.call_soon(done, self._why_over())
        elif self.dirty or self._returned or self._told.mark == UNTOLD:
            self._waiting.append(done)
            self._tell_now()
        elif self._in_flight is not None:
            self._in_flight.append(done)
        else:
            self._loop.call_soon(done, None)

    async def flush(self) -> None:
        """Wait until the owner has confirmed the state of now; raises what made that fail."""
        outcome: asyncio.Future[None] = self._loop.create_future()

        def settle(error: MagnetarError | None) -> None:
            if outcome.done():
                return
            if error is None:
                outcome.set_result(None)
            else:
                outcome.set_exception(error)

        self.persist(settle)
        await outcome

    async def rewrite_node(self) -> None:
        """Have the owner keep the properties."""
        if self.state is not KeptState.OPEN:
            raise self._why_over()
        await self._parts.write_properties(dict(self.cursor_properties))

    async def close(self) -> None:
        """Tell the owner the rest, within `close_seconds`, and let go. What it was not told comes again to whoever
        consumes next; then the log says so."""
        if self.state is KeptState.OPEN and (self.dirty or self._round is not None):
            try:
                async with asyncio.timeout(self._parts.settings.close_seconds):
                    await self.flush()
            except (MagnetarError, TimeoutError) as error:
                ledger_id, entry_id = self.acks.mark_delete
                logger.warning(
                    "%s: the owner was not told of what is acknowledged up to %d:%d and beyond; it has %d:%d: %s",
                    self._parts.name,
                    ledger_id,
                    entry_id,
                    *(self._told.mark if self._told.mark != UNTOLD else self._seen),
                    str(error) or "no answer in time",
                )
        await self.abandon()

    async def abandon(self) -> None:
        """Let go and tell nothing more."""
        if self.state is not KeptState.DELETING:
            self._become(KeptState.CLOSED)
        await self._end(CursorClosed(self._parts.name))

    async def delete(self) -> None:
        """Delete the subscription at the owner. May be repeated until it returns; raises what the owner refuses with,
        or `Unavailable`, which leaves open whether it is gone."""
        self._become(KeptState.DELETING)
        self._stop_timer()
        await self._stop_telling(CursorClosed(self._parts.name))
        hold = self._held()
        try:
            if hold.failure is not None:
                raise self._lost if self._lost is not None else hold.failure
            await hold.unsubscribe()
        except PulsarError as error:
            if error.code not in GONE:
                raise
            logger.info("%s was gone already: %s", self._parts.name, error)
        await self._end(CursorClosed(self._parts.name))

    def ledgers_in_doubt(self) -> set[int]:
        """There are no ledgers."""
        return set()

    # --- from the hold

    def held_again(self, *, let_go: bool) -> None:
        """It stands again: tell everything anew."""
        # One of several owners since the last look may have lost what it had answered.
        self._let_go = let_go and (self._let_go or not self._returned)
        self._returned = True
        # Apache's broker writes a seek with what was acknowledged beyond the mark before it
        # (`ManagedCursorImpl.internalResetCursor`). After a crash that is so again, until it is told to seek once more.
        self._seek_owed = self._seek_owed or (self._sought and not let_go)
        if self.state is KeptState.OPEN and self._stored:
            self._tell_now()

    def hold_ended(self, error: MagnetarError) -> None:
        """It is over. Whoever asked for one that never stood hears so where it was asked for."""
        if self.state is KeptState.OPEN and self._hold is not None:
            self._lose(error)

    # --- telling

    def _tell_later(self) -> None:
        if self._timer is None and self._round is None:
            self._timer = self._loop.call_later(self._parts.wait_seconds(self._began_seconds), self._tell_now)

    def _tell_now(self) -> None:
        self._stop_timer()
        if self._round is None and self.state is KeptState.OPEN:
            self._round = self._loop.create_task(self._tell(), name=f"position of {self._parts.name}")

    async def _tell(self) -> None:
        """One round."""
        self._in_flight, self._waiting = self._waiting, []
        self._began_seconds = self._parts.clock.monotonic_seconds()
        failed: MagnetarError | None = None
        try:
            await self._tell_until_it_works()
        except MagnetarError as error:
            failed = error
            self.dirty = True
        self._round = None
        told, self._in_flight = self._in_flight or [], None
        for done in told:
            done(failed)
        if isinstance(failed, PositionMoved):
            self._lose(failed)
        if self.state is KeptState.OPEN:
            if self._waiting:
                self._tell_now()
            elif self.dirty or self._returned:
                self._tell_later()

    async def _tell_until_it_works(self) -> None:
        patience = self._parts.settings.patience_seconds
        last: MagnetarError | None = None
        try:
            async with asyncio.timeout(patience) as limit:
                while True:
                    try:
                        await self._tell_all(lambda: limit.reschedule(self._loop.time() + patience))
                    except (PulsarError, Unavailable) as error:
                        if self._held().failure is not None:
                            raise
                        last = error
                        logger.info("%s: the owner is told again: %s", self._parts.name, error)
                    else:
                        return
                    await asyncio.sleep(PAUSE_SECONDS)
        except TimeoutError:
            reason = f"{self._parts.name}: the topic's owner does not take the position: {last or 'no answer'}"
            raise Unavailable(reason) from last

    async def _tell_all(self, progress: Callable[[], None]) -> None:
        """What the owner lacks of the state of now."""
        hold = self._held()
        await hold.wait_until_held()
        if self._returned:
            at_owner = await hold.mark_delete()
            self._check_moved(at_owner)
            self._returned = False
            # What was confirmed by the former owner may be gone, and may be told twice. What this one has beyond that
            # it may not have stored: it applies what it then answers with an error.
            self._told, self._seen = Kept(min(at_owner, self._told.mark)), at_owner
        now = Kept.of(self.acks)
        self.dirty = False
        if self._in_flight is not None:
            # These were said before this state was looked at.
            self._in_flight += self._waiting
            self._waiting = []
        try:
            if self._seek_owed or takes_back(self._sent, now):
                self._seek_owed = True
                self._sent = now
                self._sought = True
                await hold.seek(start_after(now.mark))
                self._seek_owed = False
                self._told, self._sent, self._seen = Kept(now.mark), Kept(now.mark), now.mark
                progress()
            self._sent = now
            while tells := tell_next(self._told, now, COMMANDS_AT_ONCE):
                self._check_still_held()
                await self._tell_some(hold, tells)
                progress()
        except BaseException:
            self.dirty = True
            raise

    async def _tell_some(self, hold: Hold, tells: list[Tell]) -> None:
        answers = await asyncio.gather(*(_told(hold, tell) for tell in tells), return_exceptions=True)
        failed: BaseException | None = None
        for tell, answer in zip(tells, answers, strict=True):
            if answer is None:
                self._told.add(tell)
            elif failed is None:
                failed = answer
        if failed is not None:
            raise failed

    def _check_still_held(self) -> None:
        """Nothing is told to an owner before it is known what it has."""
        if self._returned:
            raise Unavailable(f"{self._parts.name}: the hold was renewed meanwhile")

    def _check_moved(self, at_owner: Position) -> None:
        """An owner that closed the hold may have done so because somebody moved the position there. One that crashed
        may have lost what it had answered: then the mark is behind, and is told again."""
        if not self._let_go or self._seek_owed:
            return
        low, high = max(self._told.mark, self._seen), max(self._sent.mark, self.acks.mark_delete)
        back = at_owner < low and self.acks.entries_between(at_owner, low)
        ahead = at_owner > high and self.acks.entries_between(high, at_owner)
        if back or ahead:
            raise PositionMoved(
                f"{self._parts.name}: the position was moved at the topic's owner, to {at_owner[0]}:{at_owner[1]}"
            )

    # --- the end

    def _lose(self, error: MagnetarError) -> None:
        self._become(KeptState.LOST)
        self._lost = error
        logger.warning("%s is not held any more: %s", self._parts.name, error)
        self._letting_go = self._loop.create_task(self._let_go_of_lost(error), name=f"let go of {self._parts.name}")
        self._stop_timer()
        if self._stored:
            self._tell_lost()

    def _tell_lost(self) -> None:
        if self.state is KeptState.LOST and self._lost is not None:
            self._timer = self._loop.call_later(self._parts.settings.rate_seconds, self._tell_lost)
            self._parts.on_lost(self._lost)

    async def _let_go_of_lost(self, error: MagnetarError) -> None:
        await self._stop_telling(error)
        if self._hold is not None:
            await self._hold.close()

    async def _end(self, error: MagnetarError) -> None:
        self._stop_timer()
        await self._stop_telling(error)
        if self._letting_go is not None:
            await asyncio.gather(self._letting_go, return_exceptions=True)
        elif self._hold is not None:
            await self._hold.close()
        self._parts.on_closed()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _stop_telling(self, error: MagnetarError) -> None:
        round_, self._round = self._round, None
        if round_ is not None:
            round_.cancel()
            await asyncio.gather(round_, return_exceptions=True)
        for done in [*(self._in_flight or ()), *self._waiting]:
            done(error)
        self._in_flight, self._waiting = None, []

    def _held(self) -> Hold:
        assert self._hold is not None
        return self._hold

    def _why_over(self) -> MagnetarError:
        return self._lost if self._lost is not None else CursorClosed(self._parts.name)

    def _become(self, state: KeptState) -> None:
        self.state = KEPT_TRANSITIONS.step(self.state, state)


async def _told(hold: Hold, tell: Tell) -> None:
    if tell.mark is not None:
        await hold.acknowledge_up_to(tell.mark)
    else:
        await hold.acknowledge_each(tell.positions(), [PartOfBatch(*part) for part in tell.words()])
