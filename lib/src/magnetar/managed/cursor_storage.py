"""Where a durable cursor's state is kept: a node in the metadata store, and while it moves, a ledger of its own.

One write is in flight at most; all that ask meanwhile share the next one. The first change opens the cursor ledger; the
node is pointed at it once the state is in there, and only then the old one is deleted (Pulsar: ManagedCursorImpl).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.core.ids import EARLIEST, Position
from magnetar.ledger.api import LedgerError, LedgerUnavailable, LedgerWriter
from magnetar.managed.ack_state import AckState
from magnetar.managed.append_path import AppendPath
from magnetar.managed.errors import CursorClosed, ManagedLedgerFenced
from magnetar.managed.info_codec import (
    POSITION_IN_NODE,
    BrokenMetadata,
    decode_cursor_info,
    decode_position,
    encode_cursor_info,
    encode_position,
    restore_acks,
)
from magnetar.managed.ledger_list import LedgerList
from magnetar.managed.paths import cursor_path
from magnetar.managed.shared import LEDGER_CREATION_SECONDS_MAX, Shared, ledger_options
from magnetar.metadata.store import MUST_NOT_EXIST, NodeNotFound, VersionConflict
from magnetar.wire.pulsar.generated.ml_data_formats_pb2 import ManagedCursorInfo, PositionInfo

log = logging.getLogger(__name__)

PersistCallback = Callable[[MagnetarError | None], None]


@dataclass(slots=True)
class RecoveredCursor:
    """What storage knew of a cursor."""

    acks: AckState
    properties: dict[str, int]
    cursor_properties: dict[str, str]
    version: int
    cursor_ledger_id: int


async def recover_cursor(shared: Shared, appends: AppendPath, name: str) -> RecoveredCursor | None:
    """Read a cursor's node, and the last entry of its ledger if it has one; None when there is no such cursor.

    A ledger that is lost or unreadable leaves the position of the node (Pulsar does the same). `Unavailable` passes."""
    node = await shared.store.get(cursor_path(appends.name, name), watch=False)
    if node is None:
        return None
    info = decode_cursor_info(node.value)
    stored: PositionInfo | ManagedCursorInfo = info
    mark = (info.markDeleteLedgerId, info.markDeleteEntryId) if info.HasField("markDeleteLedgerId") else EARLIEST
    if info.cursorsLedgerId != POSITION_IN_NODE:
        try:
            position = await _last_position(shared, appends, info.cursorsLedgerId)
        except (LedgerError, BrokenMetadata) as error:
            log.warning("%s: the ledger of cursor %s is lost: %r", appends.name, name, error)
            position = None
        if position is not None:
            stored = position
            mark = (position.ledgerId, position.entryId)
    acks = AckState(appends.ledgers, appends.ledgers.normalised_mark(mark))
    restore_acks(acks, stored)
    return RecoveredCursor(
        acks,
        {each.name: each.value for each in stored.properties},
        {each.name: each.value for each in info.cursorProperties},
        node.stat.version,
        info.cursorsLedgerId,
    )


async def _last_position(shared: Shared, appends: AppendPath, ledger_id: int) -> PositionInfo | None:
    reader = await shared.ledgers.open(ledger_id, password=appends.settings.password, recover=True)
    try:
        last = reader.last_add_confirmed
        return decode_position((await reader.read(last, last))[0]) if last >= 0 else None
    finally:
        await reader.close()


class CursorStorage:
    """Writes one cursor's state; it is the listener of the cursor's ledger."""

    __slots__ = (
        "_appends",
        "_busy",
        "_closed",
        "_first_entry",
        "_in_flight",
        "_last_write_seconds",
        "_next_writer",
        "_shared",
        "_version",
        "_waiting",
        "_writer",
        "acks",
        "cursor_properties",
        "dirty",
        "ledger_id",
        "name",
        "properties",
        "switched_ms",
    )

    def __init__(self, shared: Shared, appends: AppendPath, name: str, recovered: RecoveredCursor) -> None:
        self._shared: Shared = shared
        self._appends: AppendPath = appends
        self._busy: bool = False
        self._closed: bool = False
        self._writer: LedgerWriter | None = None
        self._next_writer: LedgerWriter | None = None
        """The ledger that will be the cursor's once its first entry and the node are written."""
        self._first_entry: asyncio.Future[None] | None = None
        self._in_flight: list[PersistCallback] | None = None
        self._waiting: list[PersistCallback] | None = None
        self._last_write_seconds: float = float("-inf")
        self._version: int = recovered.version
        self.name: str = name
        self.acks: AckState = recovered.acks
        self.properties: dict[str, int] = recovered.properties
        self.cursor_properties: dict[str, str] = recovered.cursor_properties
        self.dirty: bool = False
        self.ledger_id: int = recovered.cursor_ledger_id
        self.switched_ms: int = 0

    @property
    def last_entry_id(self) -> int:
        """The last entry of the cursor's ledger, -1 without one."""
        return self._writer.last_add_confirmed if self._writer is not None else -1

    def changed(self) -> None:
        """The state differs from what is stored: have it written at the cursor's rate."""
        if not self.dirty and not self._closed:
            self.dirty = True
            self._shared.flush_later(self)

    def flush_if_due(self, now_seconds: float) -> bool:
        """From the timer: write if the rate allows; whether there is nothing left to look after."""
        if not self.dirty or self._closed:
            return True
        if not self._busy and now_seconds - self._last_write_seconds >= 1.0 / self._appends.settings.mark_delete_rate:
            self._write()
        return not self.dirty

    def persist(self, done: PersistCallback) -> None:
        """See `Cursor.persist`."""
        if self._closed:
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

    async def create_node(self) -> None:
        """For a new cursor: write the node with the position in it."""
        await self._put_node(POSITION_IN_NODE)

    async def rewrite_node(self) -> None:
        """Write the node again because the cursor's own properties changed."""
        await self._put_node(self.ledger_id)

    async def close(self) -> None:
        """Everything durable and the cursor ledger given up, if the state is small enough for the node."""
        if self._closed:
            return
        if self.dirty or self._busy:
            few = self.acks.individual_count == 0 or self._fits_into_node()
            if not few or self._busy:
                await self.flush()
        writer, old_id = self._writer, self.ledger_id
        self._closed = True
        self._shared.flushed(self)
        self._writer = None
        if writer is not None:
            await _close_quietly(writer)
        if self._fits_into_node() and (self.dirty or old_id != POSITION_IN_NODE):
            await self._put_node(POSITION_IN_NODE)
            self.ledger_id = POSITION_IN_NODE
            self.dirty = False
            if old_id != POSITION_IN_NODE:
                await self._shared.delete_ledger(old_id)

    async def abandon(self) -> None:
        """Write nothing more: another owner may have the cursor by now."""
        self._closed = True
        self._shared.flushed(self)
        writers, self._writer = (self._writer, self._next_writer), None
        error = CursorClosed(self.name)
        if self._first_entry is not None:
            _settle(self._first_entry, error)
        self._finished(error)
        for writer in writers:
            if writer is not None:
                await writer.abandon()

    async def delete(self) -> None:
        """Remove the node and the ledger."""
        self._closed = True
        self._shared.flushed(self)
        writer, self._writer = self._writer, None
        if writer is not None:
            await _close_quietly(writer)
        try:
            await self._shared.store.delete(cursor_path(self._appends.name, self.name))
        except NodeNotFound:
            log.info("%s: the node of cursor %s was gone already", self._appends.name, self.name)
        if self.ledger_id != POSITION_IN_NODE:
            await self._shared.delete_ledger(self.ledger_id)
        self._finished(CursorClosed(self.name))

    def confirmed(self, ledger_id: int, last_add_confirmed: int) -> None:
        """From the cursor ledger's writer: the write in flight is durable."""
        if self._next_writer is not None and self._next_writer.ledger_id == ledger_id:
            if self._first_entry is not None:
                _settle(self._first_entry, None)
        elif self._writer is not None and self._writer.ledger_id == ledger_id and self._busy:
            self._finished(None)

    def failed(self, ledger_id: int, error: MagnetarError) -> None:
        """From the cursor ledger's writer: the write in flight goes to a new ledger."""
        if self._next_writer is not None and self._next_writer.ledger_id == ledger_id:
            if self._first_entry is not None:
                _settle(self._first_entry, error)
        elif self._writer is not None and self._writer.ledger_id == ledger_id:
            writer, self._writer = self._writer, None
            log.warning("%s: the ledger of cursor %s failed: %s", self._appends.name, self.name, error)
            self._shared.start(_close_quietly(writer))
            if self._busy:
                self._shared.start(self._write_to_new_ledger())

    def _write(self) -> None:
        self._busy = True
        self._in_flight, self._waiting = self._waiting or [], None
        self._last_write_seconds = self._shared.clock.monotonic_seconds()
        writer = self._writer
        if writer is not None and not self._ledger_full(writer):
            try:
                writer.append([self._snapshot()])
                return
            except (LedgerError, LedgerUnavailable):
                self._writer = None
                self._shared.start(_close_quietly(writer))
        self._shared.start(self._write_to_new_ledger())

    def _snapshot(self) -> bytes:
        self.dirty = False
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
        return self.acks.individual_count <= bound or len(self.acks.ranges(bound + 1)) <= bound

    async def _write_to_new_ledger(self) -> None:
        """Make a ledger, write the state, point the node at it, delete the old one."""
        shared, appends = self._shared, self._appends
        try:
            async with asyncio.timeout(LEDGER_CREATION_SECONDS_MAX):
                options = ledger_options(appends.settings, appends.name, self.name)
                self._next_writer = writer = await shared.ledgers.create(options, self)
                self._first_entry = shared.loop.create_future()
                writer.append([self._snapshot()])
                await self._first_entry
                await self._put_node(writer.ledger_id)
        except (MagnetarError, TimeoutError) as error:
            await self._give_up_next()
            known = error if isinstance(error, MagnetarError) else Unavailable("no cursor ledger within the time")
            self.dirty = False
            self.changed()
            self._finished(known)
            return
        old_writer, old_id = self._writer, self.ledger_id
        self._writer, self.ledger_id = writer, writer.ledger_id
        self._next_writer = self._first_entry = None
        self.switched_ms = shared.clock.now_ms()
        self._finished(None)
        if old_writer is not None:
            await _close_quietly(old_writer)
        if old_id != POSITION_IN_NODE:
            await shared.delete_ledger(old_id)

    async def _give_up_next(self) -> None:
        writer, self._next_writer = self._next_writer, None
        self._first_entry = None
        if writer is not None:
            await _close_quietly(writer)
            await self._shared.delete_ledger(writer.ledger_id)

    async def _put_node(self, cursor_ledger_id: int) -> None:
        value = encode_cursor_info(
            self.acks,
            self.properties,
            self.cursor_properties,
            self._appends.settings,
            self._shared.clock.now_ms(),
            cursor_ledger_id,
        )
        path = cursor_path(self._appends.name, self.name)
        try:
            stat = await self._shared.store.put(path, value, self._version)
        except (VersionConflict, NodeNotFound) as error:
            fenced = ManagedLedgerFenced(f"cursor {self.name} of {self._appends.name} was changed by another owner")
            self._appends.fence(fenced)
            raise fenced from error
        self._version = stat.version

    def _finished(self, error: MagnetarError | None) -> None:
        told, self._in_flight = self._in_flight, None
        self._busy = False
        for done in told or ():
            done(error)
        if self._waiting and not self._busy:
            if self._closed or (error is not None and not self.dirty):
                waiting, self._waiting = self._waiting, None
                for done in waiting:
                    done(error)
            else:
                self._write()


def new_cursor_state(
    ledgers: LedgerList, mark: Position, properties: dict[str, int], cursor_properties: dict[str, str]
) -> RecoveredCursor:
    """The state of a cursor that is not stored yet."""
    return RecoveredCursor(AckState(ledgers, mark), properties, cursor_properties, MUST_NOT_EXIST, POSITION_IN_NODE)


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
        log.info("cursor ledger %d is not closed: %r", writer.ledger_id, error)
