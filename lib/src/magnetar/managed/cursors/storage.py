"""Where a durable cursor's state is kept: a node in the metadata store, and while it moves, a ledger of its own.

One write is in flight at most; all that ask meanwhile share the next one. The first change opens the cursor ledger; the
node is pointed at it once the state is in there, and only then the old one is deleted (Pulsar: ManagedCursorImpl).

When the metadata store does not say whether it took that write, the next owner may find either ledger named. So both
are kept, and nobody is told that anything is durable until a write is known to be done: first the node is pointed at
the old ledger again, then the other one is deleted, then the state is written as ever. One ledger is in doubt at most,
but for a state that is too large for the node of a cursor that had no ledger yet.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.core.ids import Position
from magnetar.core.transitions import Transitions
from magnetar.ledger.api import LedgerError, LedgerUnavailable, LedgerWriter
from magnetar.managed.ack_state import AckState
from magnetar.managed.append_path import AppendPath
from magnetar.managed.cursors.recovery import RecoveredCursor
from magnetar.managed.errors import CursorClosed, ManagedLedgerFenced
from magnetar.managed.info_codec import (
    POSITION_IN_NODE,
    PROPERTY_BYTES_IN_NODE_MAX,
    BrokenMetadata,
    decode_cursor_info,
    encode_cursor_info,
    encode_position,
    size_of_properties,
)
from magnetar.managed.owned_node import NodeTaken, OwnedNode
from magnetar.managed.shared import LEDGER_CREATION_SECONDS_MAX, Shared, ledger_options
from magnetar.managed.states import ManagedLedgerState

logger: Final = logging.getLogger(__name__)

CLOSE_ATTEMPTS_MAX: Final = 3
"""Each waits for a connection to the metadata store as long as the store itself does."""

WORDS_IN_METADATA_MAX: Final = 32_768
"""Words of ack sets in a cursor's node, 350 KB: a node of ZooKeeper has 1 MB."""


class StorageState(enum.Enum):
    """Whether the cursor's state is written."""

    OPEN = enum.auto()
    CLOSED = enum.auto()
    """Let go of: what it is now is written once more, or not at all."""
    DELETING = enum.auto()
    """Its deletion has begun; whether that is done is known when `delete` returns."""


class WriteState(enum.Enum):
    """Where the write in flight is."""

    IDLE = enum.auto()
    BY_LEDGER = enum.auto()
    """The state is being written to the cursor's ledger."""
    BY_NODE = enum.auto()
    """The state is being written to another ledger, to which the node is pointed then: the old one may fail
    meanwhile."""


_OPEN: Final = StorageState.OPEN

STORAGE_TRANSITIONS: Final = Transitions(
    "a cursor's storage",
    {
        _OPEN: {StorageState.CLOSED, StorageState.DELETING},
        StorageState.CLOSED: {StorageState.CLOSED, StorageState.DELETING},
        StorageState.DELETING: (),
    },
)

WRITE_TRANSITIONS: Final = Transitions(
    "the write of a cursor's state",
    {
        # From idle to idle: what was in flight was told already that the cursor is closed.
        WriteState.IDLE: {WriteState.IDLE, WriteState.BY_LEDGER},
        WriteState.BY_LEDGER: {WriteState.IDLE, WriteState.BY_NODE},
        WriteState.BY_NODE: {WriteState.IDLE, WriteState.BY_LEDGER},
    },
)

PersistCallback = Callable[[MagnetarError | None], None]


class NextLedger(NamedTuple):
    """The ledger that will be the cursor's once its first entry and the node are written."""

    writer: LedgerWriter
    first_entry: asyncio.Future[None]
    """Done when that entry is durable, or never will be."""


class CursorStorage:
    """Writes one cursor's state; it is the listener of the cursor's ledger."""

    __slots__ = (
        "_appends",
        "_durable_mark",
        "_in_flight",
        "_last_write_seconds",
        "_next",
        "_shared",
        "_waiting",
        "_write_state",
        "_writer",
        "_written_mark",
        "acks",
        "cursor_properties",
        "dirty",
        "ledger_id",
        "name",
        "node",
        "properties",
        "state",
        "switched_ms",
    )

    def __init__(self, shared: Shared, appends: AppendPath, name: str, recovered: RecoveredCursor) -> None:
        self._shared: Shared = shared
        self._appends: AppendPath = appends
        self._write_state: WriteState = WriteState.IDLE
        self._writer: LedgerWriter | None = None
        self._durable_mark: Position = recovered.acks.mark_delete
        self._written_mark: Position = self._durable_mark
        """That of the write in flight."""
        self._next: NextLedger | None = None
        self._in_flight: list[PersistCallback] | None = None
        self._waiting: list[PersistCallback] | None = None
        self._last_write_seconds: float = float("-inf")
        self.name: str = name
        self.node: OwnedNode = recovered.node
        self.acks: AckState = recovered.acks
        self.properties: dict[str, int] = recovered.properties
        self.cursor_properties: dict[str, str] = recovered.cursor_properties
        self.state: StorageState = StorageState.OPEN
        self.dirty: bool = False
        self.ledger_id: int = recovered.cursor_ledger_id
        """Id of the cursor's ledger, as the node was last known for sure to name it: durable state is there."""
        self.switched_ms: int = 0

    @property
    def durable_mark(self) -> Position:
        """Up to where everything is acknowledged in what is stored."""
        return self._durable_mark if self.dirty or self._busy else self.acks.mark_delete

    @property
    def last_entry_id(self) -> int:
        """The last entry of the cursor's ledger, -1 without one."""
        return self._writer.last_add_confirmed if self._writer is not None else -1

    @property
    def deleting(self) -> bool:
        """Whether its deletion has begun."""
        return self.state is StorageState.DELETING

    @property
    def _busy(self) -> bool:
        return self._write_state is not WriteState.IDLE

    def changed(self) -> None:
        """The state differs from what is stored: have it written at the cursor's rate."""
        if not self.dirty and self.state is _OPEN:
            self.dirty = True
            self._shared.flush_later(self)

    def flush_if_due(self, now_seconds: float) -> bool:
        """From the timer: write if the rate allows; whether there is nothing left to look after."""
        if not self.dirty or self.state is not _OPEN or self._appends.state is ManagedLedgerState.FENCED:
            return True
        rate = self._appends.settings.mark_delete_rate
        if not self._busy and (rate <= 0 or now_seconds - self._last_write_seconds >= 1.0 / rate):
            self._write()
        return not self.dirty

    def persist(self, done: PersistCallback) -> None:
        """Call `done`, later, once everything acknowledged so far is durable; with the error if that failed. One write
        is in flight at a time: calls made meanwhile share the next one. At once for non-durable cursors."""
        if self.state is not _OPEN:
            self._shared.loop.call_soon(done, CursorClosed(self.name))
        elif self._busy:
            if not self.dirty and self._in_flight is not None:
                self._in_flight.append(done)
            elif self._waiting is None:
                self._waiting = [done]
            else:
                self._waiting.append(done)
        elif self.dirty:
            self._waiting = [done]
            self._write()
        else:
            self._shared.loop.call_soon(done, None)

    async def flush(self) -> None:
        """Wait until the state of now is durable; raises what made that fail."""
        outcome: asyncio.Future[None] = self._shared.loop.create_future()
        self.persist(lambda error: _settle(outcome, error))
        await outcome

    def ledgers_in_doubt(self) -> set[int]:
        """The cursor's ledgers of which nobody knows whether the node names them."""
        doubtful = set(self.node.ledgers_in_doubt)
        if self.deleting or self.node.unsure:
            doubtful.add(self.ledger_id)
        return doubtful

    async def create_node(self) -> None:
        """For a new cursor: write the node with the position in it."""
        await self._put_node(POSITION_IN_NODE)

    async def rewrite_node(self) -> None:
        """Write the node again because the cursor's own properties changed."""
        await self._put_node(None)

    async def close(self) -> None:
        """Everything durable and the cursor ledger given up, if the state is small enough for the node. Whatever it
        raises, nothing is written after it: the next owner would take that for another owner's."""
        if self.state is not _OPEN:
            return
        unstored: MagnetarError | None = None
        if self._busy or (self.dirty and not self._fits_into_node()):
            unstored = await self._flush_last()
        writer = self._let_go()
        if unstored is not None:
            self._finished(CursorClosed(self.name))  # Who asked after the write that failed.
        if writer is not None:
            await _close_quietly(writer)
        if not self._fits_into_node():
            if self.node.unsure:
                await self._put_last(None)
            if unstored is not None:
                raise unstored
        elif self.dirty or self.ledger_id != POSITION_IN_NODE or self.node.unsure:
            await self._put_last(POSITION_IN_NODE)
            self.dirty = False

    async def _flush_last(self) -> MagnetarError | None:
        """What made that fail. `ManagedLedgerFenced` is raised, and nothing written any more."""
        try:
            await self.flush()
        except ManagedLedgerFenced:
            await self.abandon()
            raise
        except MagnetarError as error:
            return error
        return None

    async def abandon(self) -> None:
        """Write nothing more: another owner may have the cursor by now."""
        writer = self._let_go()
        upcoming, error = self._next, CursorClosed(self.name)
        if upcoming is not None:
            _settle(upcoming.first_entry, error)
        self._finished(error)
        if writer is not None:
            await writer.abandon()
        if upcoming is not None:
            await upcoming.writer.abandon()

    async def delete(self) -> None:
        """Remove the node and the ledger. May be repeated until it returns: an error leaves open whether the node is
        gone, and the ledger is kept until it is. `ManagedLedgerFenced`: somebody else changed the cursor."""
        writer = self._let_go(StorageState.DELETING)
        self._finished(CursorClosed(self.name))
        if writer is not None:
            await _close_quietly(writer)
        async with self.node.lock:
            try:
                unnamed = await self.node.delete()
            except NodeTaken as taken:
                raise self._fenced(taken) from taken
            ledger_id, self.ledger_id = self.ledger_id, POSITION_IN_NODE
        for doomed in {*unnamed, ledger_id} - {POSITION_IN_NODE}:
            await self._shared.delete_ledger(doomed)

    def _let_go(self, state: StorageState = StorageState.CLOSED) -> LedgerWriter | None:
        """Nothing more is written at the cursor's rate. The writer of its ledger, which is the caller's from now on."""
        if not self.deleting:
            self.state = STORAGE_TRANSITIONS.step(self.state, state)
        self._shared.flushed(self)
        writer, self._writer = self._writer, None
        return writer

    def confirmed(self, ledger_id: int, last_add_confirmed: int) -> None:
        """From the cursor ledger's writer: the write in flight is durable."""
        if self._next is not None and self._next.writer.ledger_id == ledger_id:
            _settle(self._next.first_entry, None)
        elif self._writer is not None and self._writer.ledger_id == ledger_id and self._busy:
            self._finished(None)

    def failed(self, ledger_id: int, error: MagnetarError) -> None:
        """From the cursor ledger's writer: the write in flight goes to a new ledger."""
        if self._next is not None and self._next.writer.ledger_id == ledger_id:
            _settle(self._next.first_entry, error)
        elif self._writer is not None and self._writer.ledger_id == ledger_id:
            writer, self._writer = self._writer, None
            logger.warning("%s: the ledger of cursor %s failed: %s", self._appends.name, self.name, error)
            self._shared.start(_close_quietly(writer))
            if self._write_state is WriteState.BY_LEDGER:
                self._start_by_node()

    def _write(self) -> None:
        self._become(WriteState.BY_LEDGER)
        self._in_flight, self._waiting = self._waiting or [], None
        self._last_write_seconds = self._shared.clock.monotonic_seconds()
        if self.node.unsure or not self._written_to_ledger():
            self._start_by_node()

    def _start_by_node(self) -> None:
        self._become(WriteState.BY_NODE)
        self._shared.start(self._write_by_node())

    def _written_to_ledger(self) -> bool:
        """Send the state to the ledger that the node names, if this process writes it and it takes more."""
        writer = self._writer
        if writer is None or self._ledger_full(writer):
            return False
        try:
            writer.append([self._snapshot()])
        except (LedgerError, LedgerUnavailable):
            self._writer = None
            self._shared.start(_close_quietly(writer))
            return False
        return True

    def _snapshot(self) -> bytes:
        self.dirty = False
        self._written_mark = self.acks.mark_delete
        return encode_position(self.acks, self.properties, self._appends.settings)

    def _ledger_full(self, writer: LedgerWriter) -> bool:
        settings = self._appends.settings
        age_ms = self._shared.clock.now_ms() - self.switched_ms
        return (
            writer.last_add_pushed + 1 >= settings.cursor_ledger_entries_max
            or age_ms >= settings.cursor_ledger_age_ms_max
        )

    def _fits_into_node(self) -> bool:
        bound = self._appends.settings.unacked_ranges_in_metadata_max
        if self.acks.partial_words > WORDS_IN_METADATA_MAX:
            return False
        if size_of_properties(self.properties) > PROPERTY_BYTES_IN_NODE_MAX:
            return False
        return self.acks.individual_count <= bound or len(self.acks.ranges(bound + 1)) <= bound

    async def _write_by_node(self) -> None:
        """Once it is known what the node names: write to that ledger, or make another, write the state there, point the
        node at it and delete the old one."""
        shared, appends = self._shared, self._appends
        try:
            if appends.state is ManagedLedgerState.FENCED:
                raise ManagedLedgerFenced(appends.name)
            async with asyncio.timeout(LEDGER_CREATION_SECONDS_MAX):
                # What fits into no node is not put there: then another ledger comes to be in doubt.
                if self.node.unsure and (self.ledger_id != POSITION_IN_NODE or self._fits_into_node()):
                    await self._put_node(None)
                    self._become(WriteState.BY_LEDGER)
                    if self._written_to_ledger():
                        return
                    self._become(WriteState.BY_NODE)
                options = ledger_options(appends.settings, appends.name, self.name)
                writer = await shared.ledgers.create(options, self)
                self._next = upcoming = NextLedger(writer, shared.loop.create_future())
                writer.append([self._snapshot()])
                await upcoming.first_entry
                await self._put_node(writer.ledger_id)
        except (MagnetarError, TimeoutError) as error:
            await self._give_up_next()
            if self.state is not _OPEN:
                shared.left_over(appends.name, self.ledgers_in_doubt() - {POSITION_IN_NODE})
            known = error if isinstance(error, MagnetarError) else Unavailable("no cursor ledger within the time")
            self.dirty = False
            self.changed()
            self._finished(known)
            return
        self._next = None
        if self.state is not _OPEN:  # Let go of meanwhile: nobody will close it.
            await _close_quietly(writer)
            return
        old_writer, self._writer = self._writer, writer
        self.switched_ms = shared.clock.now_ms()
        self._finished(None)
        if old_writer is not None:
            await _close_quietly(old_writer)

    async def _give_up_next(self) -> None:
        """The new ledger is not used. If the node may name it, it is deleted when a later write has settled that."""
        upcoming, self._next = self._next, None
        if upcoming is not None:
            await _close_quietly(upcoming.writer)
            if upcoming.writer.ledger_id not in self.node.ledgers_in_doubt:
                await self._shared.delete_ledger(upcoming.writer.ledger_id)

    async def _put_last(self, cursor_ledger_id: int | None) -> None:
        """Write the node of a cursor that is closed. It is tried again, as after this nobody would know of a ledger
        that a write without an answer left behind."""
        for attempt in range(CLOSE_ATTEMPTS_MAX):
            try:
                await self._put_node(cursor_ledger_id, closing=True)
            except Unavailable as error:
                if attempt == CLOSE_ATTEMPTS_MAX - 1:
                    raise
                logger.info("%s: cursor %s is closed once more: %r", self._appends.name, self.name, error)
            else:
                return

    async def _put_node(self, cursor_ledger_id: int | None, *, closing: bool = False) -> None:
        """Have the node name a ledger (None: the one that it named before), then delete what it names no more."""
        async with self.node.lock:
            if self.state is not _OPEN and not closing:
                raise CursorClosed(self.name)
            ledger_id = self.ledger_id if cursor_ledger_id is None else cursor_ledger_id
            value = encode_cursor_info(
                self.acks,
                self.properties,
                self.cursor_properties,
                self._appends.settings,
                self._shared.clock.now_ms(),
                ledger_id,
            )
            try:
                unnamed = set(await self.node.put(value, [ledger_id]))
            except NodeTaken as taken:
                raise self._fenced(taken) from taken
            if self.ledger_id != ledger_id:
                unnamed.add(self.ledger_id)
            self.ledger_id = ledger_id
        for doomed in unnamed - {POSITION_IN_NODE}:
            self._shared.delete_later(doomed)

    def _fenced(self, taken: NodeTaken) -> ManagedLedgerFenced:
        """No write of ours can happen any more: a ledger in doubt that the other owner does not name, nobody names."""
        named = POSITION_IN_NODE
        doubt = self.node.ledgers_in_doubt - {self.ledger_id}
        try:
            if taken.value is not None:
                named = decode_cursor_info(taken.value).cursorsLedgerId
        except BrokenMetadata:
            doubt = frozenset()
        for ledger_id in doubt - {named, POSITION_IN_NODE}:
            self._shared.delete_later(ledger_id)
        fenced = ManagedLedgerFenced(f"cursor {self.name} of {self._appends.name} was changed by another owner")
        self._appends.fence(fenced)
        return fenced

    def _become(self, state: WriteState) -> None:
        self._write_state = WRITE_TRANSITIONS.step(self._write_state, state)

    def _finished(self, error: MagnetarError | None) -> None:
        told, self._in_flight = self._in_flight, None
        self._become(WriteState.IDLE)
        if error is None:
            self._durable_mark = self._written_mark
        else:
            self.dirty = True  # Also of a cursor that is let go of: nothing is deleted by what it never stored.
        for done in told or ():
            done(error)
        if self._waiting and not self._busy:
            if self.state is not _OPEN or (error is not None and not self.dirty):
                waiting, self._waiting = self._waiting, None
                for done in waiting:
                    done(error)
            else:
                self._write()


def _settle(outcome: asyncio.Future[None], error: MagnetarError | None) -> None:
    if not outcome.done():
        if error is None:
            outcome.set_result(None)
        else:
            outcome.set_exception(error)


async def _close_quietly(writer: LedgerWriter) -> None:
    try:
        await writer.close()
    except MagnetarError as error:
        logger.info("cursor ledger %d is not closed: %r", writer.ledger_id, error)
