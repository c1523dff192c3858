"""One topic's stream: an endless list of entries over many ledgers, with cursors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Final

from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.ledger.api import EntryNotFound, LedgerListener, LedgerOptions, LedgerReader, LedgerWriter
from magnetar.managed.ack_state import AckState
from magnetar.managed.append_path import AppendPath
from magnetar.managed.compaction import ledgers_of_cursor
from magnetar.managed.cursors.cursor import Cursor, start_mark
from magnetar.managed.cursors.opening import CursorOpening
from magnetar.managed.cursors.recovery import recover_cursor
from magnetar.managed.cursors.storage import CursorStorage
from magnetar.managed.cursors.store import CursorStore
from magnetar.managed.entry import Entry
from magnetar.managed.entry_cache import EntryCache
from magnetar.managed.errors import CursorNotFound, ManagedLedgerClosed, ManagedLedgerFenced
from magnetar.managed.info_codec import POSITION_IN_NODE
from magnetar.managed.info_node import InfoNode
from magnetar.managed.ledger_list import LedgerList
from magnetar.managed.ledger_readers import LedgerReaders
from magnetar.managed.ledger_rollover import LedgerRollover
from magnetar.managed.offload.copies import TieredAccess
from magnetar.managed.offload.offloads import Offloads
from magnetar.managed.parts import ManagedLedgerParts
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.shared import Shared
from magnetar.managed.states import ManagedLedgerState
from magnetar.managed.stats import ManagedLedgerStats, stats_of_ledger
from magnetar.managed.trimming.trimming import Trimming

logger: Final = logging.getLogger(__name__)

CURSORS_LOADED_AT_ONCE: Final = 64
"""Enough to hide the store's round trips, few enough not to flood bookies when a topic has thousands."""


class ManagedLedger:
    """Made by `ManagedLedgerFactory.open`. All calls on the event loop's thread."""

    __slots__ = (
        "_node",
        "_non_durable",
        "_opening",
        "_rollover",
        "_shared",
        "_trimming",
        "appends",
        "cache",
        "cursors",
        "ledgers",
        "name",
        "offloads",
        "readers",
    )

    keeps_cursors: ClassVar[bool] = True
    """Whether a durable cursor stays open without consumers; if not it is closed with the last one."""

    def __init__(
        self,
        shared: Shared,
        node: InfoNode,
        appends: AppendPath,
        rollover: LedgerRollover,
        tiered: TieredAccess | None = None,
    ) -> None:
        """`tiered` opens the copies of ledgers, if not in the way of their owner."""
        self._shared: Shared = shared
        self._node: InfoNode = node
        self.appends: AppendPath = appends
        self._rollover: LedgerRollover = rollover
        self._opening: CursorOpening = CursorOpening(shared, appends)
        tiered = tiered or TieredAccess(shared, appends)
        self.readers: LedgerReaders = LedgerReaders(shared, appends, tiered)
        parts = ManagedLedgerParts(shared, node, appends, rollover, self.readers)
        self.offloads: Offloads = Offloads(parts, tiered)
        """Copies to tiered storage, by policy or on request."""
        self._non_durable: list[Cursor] = []
        self._trimming: Trimming = Trimming(parts, self.offloads, self)
        self.name: str = appends.name
        self.ledgers: LedgerList = appends.ledgers
        self.cache: EntryCache = shared.cache
        self.cursors: dict[str, Cursor] = {}
        appends.on_rolled = self._rolled
        node.on_unnamed = self._unnamed

    @property
    def settings(self) -> ManagedLedgerSettings:
        """The policy; its fields may be changed."""
        return self.appends.settings

    @settings.setter
    def settings(self, settings: ManagedLedgerSettings) -> None:
        self.appends.settings = settings

    def use(self, settings: ManagedLedgerSettings) -> None:
        """Another policy holds from now on; what follows from it is begun in the background."""
        self.settings = settings
        self.trim_later()
        self.offloads.later()

    @property
    def state(self) -> ManagedLedgerState:
        """The state of the append path: whether an append is sent, queued or refused now."""
        return self.appends.state

    @property
    def properties(self) -> dict[str, str]:
        """The stored properties; changed by `set_property` only."""
        return self.appends.properties

    @property
    def last_confirmed(self) -> Position:
        """The last confirmed entry; (ledger, -1) when there is none."""
        return self.appends.last_confirmed

    @property
    def terminated(self) -> bool:
        """Whether no entry will ever be added."""
        return self.appends.state is ManagedLedgerState.TERMINATED

    async def catch_up(self) -> bool:
        """Until `last_confirmed` is no less than it was at the writer when this was called: for whoever begins at the
        end, or tells that there is nothing more. The writer itself is always there.

        False: nobody knows now whether there is more. `Unavailable`: not even what there was is known."""
        return True

    async def check_writable(self) -> None:
        """Whether appends can be expected to work again after a `ManagedLedgerWriteFailed`; raises it when not."""
        await self._rollover.check_writable()

    async def open_cursor(
        self,
        name: str,
        initial: Position,
        properties: Mapping[str, int] | None = None,
        cursor_properties: Mapping[str, str] | None = None,
    ) -> Cursor:
        """The durable cursor of this name; if there is none, a new one that begins to read at `initial`."""
        async with self._node.lock:
            cursor = self.cursors.get(name)
            if cursor is not None and not cursor.closed:
                return cursor
            self._check_usable()
            closed = cursor.storage if cursor is not None else None
            storage = await self._opening.open_again(closed) if isinstance(closed, CursorStorage) else None
            if storage is None:
                self.cursors.pop(name, None)
                if self._node.unsure:
                    # A trim had no answer: a new cursor must not begin with what it may have taken out of the list.
                    await self._write_info()
                mark = start_mark(self, initial)
                storage = await self._opening.create(name, mark, properties or {}, cursor_properties or {})
            return self._add_cursor(name, storage)

    def new_non_durable_cursor(self, name: str, start: Position) -> Cursor:
        """A cursor in memory only; `start` is what it reads first. It holds back no trimming."""
        cursor = Cursor(self, name, AckState(self.ledgers, start_mark(self, start)))
        self._non_durable.append(cursor)
        self.appends.cache_wanted = True
        return cursor

    async def delete_cursor(self, name: str) -> None:
        """Remove a durable cursor and what it stored. `CursorNotFound`; `ManagedLedgerFenced`: another owner has it."""
        cursor = self.cursors.get(name)
        if cursor is None and not self._opening.unsure(name):
            self._check_usable()  # One that is closed knows none of its cursors; the next owner does.
            raise CursorNotFound(f"{name} of {self.name}")
        await self._check_owner()
        self._check_usable()  # Whoever has closed it meanwhile has told already which ledgers may be left over.
        if cursor is None:
            await self._opening.undo_creation(name)
            return
        await cursor.delete_stored()
        if self.cursors.get(name) is cursor:
            del self.cursors[name]
        self.cursor_closed(cursor)
        for ledger_id in sorted(ledgers_of_cursor(cursor)):
            await self._shared.delete_ledger(ledger_id)
        self.trim_later()

    def cursor_closed(self, cursor: Cursor) -> None:
        """From the cursor: it is used no more. A durable one still holds back trimming; it can be opened again."""
        if cursor in self._non_durable:
            self._non_durable.remove(cursor)
        self.appends.cache_wanted = bool(self.cursors or self._non_durable)

    async def find_first(
        self, matches: Callable[[Entry], bool], within: tuple[int, int] | None = None
    ) -> Position | None:
        """The first entry that matches, if all after it match too (binary search); None when none does.

        `within`: entries before the first of these indexes are known not to match, those from the second on to match.
        """
        low, high = (0, self.ledgers.number_of_entries()) if within is None else within
        before = self.ledgers.ids[0]
        while low < high:
            middle = (low + high) // 2
            entry = await self.read_entry(self.ledgers.entry_at(middle))
            if self.ledgers.ids[0] != before:  # Trimmed while we waited: the indexes count anew.
                low, high, before = 0, self.ledgers.number_of_entries(), self.ledgers.ids[0]
            elif matches(entry):
                high = middle
            else:
                low = middle + 1
        return self.ledgers.entry_at(low) if low < self.ledgers.number_of_entries() else None

    async def read_entry(self, position: Position) -> Entry:
        """One confirmed entry. `EntryNotFound`, and what the ledger client raises."""
        if not self.ledgers.contains(position):
            raise EntryNotFound(f"{position[0]}:{position[1]} of {self.name}")
        entry = self.cache.get(position[0], position[1])
        if entry is not None:
            self.cache.served([entry])
            return entry
        return (await self.readers.read(position[0], position[1], position[1]))[0]

    async def open_other(self, ledger_id: int) -> LedgerReader:
        """A closed ledger that belongs to this topic without being one of its own, such as a compaction's; whoever
        opens it closes it. Raises what the ledger client raises."""
        return await self._shared.ledgers.open(ledger_id, recover=False)

    async def create_other(self, options: LedgerOptions, listener: LedgerListener) -> LedgerWriter:
        """A ledger that belongs to this topic without being one of its own. Raises what the ledger client raises."""
        self._check_usable()
        return await self._shared.ledgers.create(options, listener)

    async def delete_others(self, ledger_ids: Iterable[int]) -> None:
        """Delete ledgers that belong to this topic without being of its own, if it has no other owner.

        `ManagedLedgerFenced`: it has one, which may read them. `Unavailable`: some may be left."""
        await self._check_owner()
        self._check_usable()
        for ledger_id in sorted(ledger_ids):
            await self._shared.ledgers.delete(ledger_id)

    def start_of_reading(self, position: Position) -> Position:
        """Where reading begins for a position, EARLIEST or LATEST."""
        if position == EARLIEST:
            return self.ledgers.first_position()
        if position >= LATEST:
            return self.ledgers.next_position(self.last_confirmed)
        return self.ledgers.valid_from(position)

    async def roll(self) -> None:
        """Go on in a new ledger now, so that the one in use may be trimmed."""
        await self._rollover.roll_now()

    async def terminate(self) -> Position:
        """Take no more entries, for ever; returns the last one's position. What was appended before is confirmed."""
        return await self._rollover.terminate()

    async def set_property(self, key: str, value: str | None) -> None:
        """Store a property, or remove it (None). Durable on return."""
        await self.set_properties({key: value})

    async def set_properties(self, changes: Mapping[str, str | None]) -> None:
        """Set several properties, in one write."""
        self._check_usable()
        async with self._node.lock:
            await self._rollover.write_list(self.ledgers.records(), changes)

    def note_property(self, key: str, value: str) -> None:
        """Change a property that is stored with the next write of the list, and with none of its own: for what the
        newest entries say as well, so that only their ledger's end may not be without it."""
        self.appends.properties[key] = value

    def trim_later(self) -> None:
        """Trim in the background if there is something to delete."""
        self._trimming.later()

    async def truncate(self, clearing: Callable[[Cursor], None] = lambda _: None) -> None:
        """Delete every entry that is there now, whoever has not acknowledged it, whatever retention says. `clearing` is
        told of each cursor in the step in which it acknowledges all: for what is stored with its position."""
        for cursor in list(self.cursors.values()):
            clearing(cursor)
            await cursor.clear_backlog()
        await self.roll()
        await self.trim(retain=False)

    async def trim(self, *, retain: bool = True) -> None:
        """Delete the oldest ledgers as far as cursors and (unless told not to) retention allow. Runs by itself also."""
        await self._trimming.run(retain=retain)

    @property
    def due_for_rollover(self) -> bool:
        """Whether time alone says that this is to go on in another ledger."""
        return self.appends.due_for_rollover(self._shared.clock.now_ms())

    async def roll_if_due(self) -> None:
        """Go on in another ledger if time says so; what the one before holds can then be trimmed. Raises nothing."""
        await self._rollover.roll_if_due()

    @property
    def due_for_trimming(self) -> bool:
        """Whether there is something to delete, or to store about when it may be deleted."""
        return self._trimming.due

    async def trim_if_due(self) -> None:
        """Delete what can be deleted, as far as that goes now. Raises nothing: another time it is due again."""
        self.trim_later()
        await self._trimming.wait()

    async def close(self) -> None:
        """Cursors are persisted, the ledger in use is closed. Raises nothing: the next owner can recover all of it."""
        self._shared.forget(self.name, self)
        await self._close(with_cursors=self.state is not ManagedLedgerState.FENCED)

    async def abandon(self) -> None:
        """Stop at once and write nothing: another process may be the owner by now. Waiting appends fail.

        Nothing that was confirmed is lost: the next owner recovers the ledger in use."""
        self._shared.forget(self.name, self)
        writer = self._rollover.abandon(ManagedLedgerFenced(f"{self.name} may have another owner"))
        for cursor in [*self.cursors.values(), *self._non_durable]:
            await cursor.abandon()
        if writer is not None:
            await writer.abandon()
        await self._let_go()

    async def delete(self) -> None:
        """Remove everything: objects of tiered storage, cursors, ledgers, metadata. `ManagedLedgerFenced`: nothing, as
        another owner has it. What the store of objects raises: all but some of these is as it was."""
        if self.offloads.has_objects:
            await self._check_owner()
            await self.offloads.delete_all()
        self._shared.forget(self.name, self)
        storages = [cursor.storage for cursor in self.cursors.values()]
        doomed = {*self.ledgers.ids, *(storage.ledger_id for storage in storages if storage is not None)}
        for cursor in self.cursors.values():
            doomed |= ledgers_of_cursor(cursor)
        try:
            await self._check_owner()
            for name in list(self.cursors):
                await self.delete_cursor(name)
            await self._close(with_cursors=False)
            async with self._node.lock:
                await self._node.delete()
        except Unavailable:
            self._shared.left_over(self.name, doomed - {POSITION_IN_NODE})
            await self.abandon()  # Nobody has it any more: whoever tries again opens it anew.
            raise
        for ledger_id in sorted(doomed.intersection(self.ledgers.ids)):
            await self._shared.delete_ledger(ledger_id)

    def internal_stats(self, *, with_cursors: bool = True) -> ManagedLedgerStats:
        """Statistics for administrators. `with_cursors=False` is for callers that ask the cursors one by one."""
        appends = self.appends
        current = self.ledgers.last()
        failure = appends.last_creation_error
        return ManagedLedgerStats(
            state=appends.state.value,
            entries_added=appends.entries_added,
            number_of_entries=self.ledgers.number_of_entries(),
            total_size_bytes=self.ledgers.total_size_bytes(),
            current_ledger_entries=current.entries,
            current_ledger_size_bytes=current.size_bytes,
            last_ledger_created_ms=appends.ledger_created_ms,
            last_ledger_creation_error=None if failure is None else repr(failure),
            pending_entries=appends.pending_entries,
            last_confirmed=self.last_confirmed,
            ledgers=[stats_of_ledger(record) for record in self.ledgers.records()],
            cursors={name: cursor.stats() for name, cursor in self.cursors.items()} if with_cursors else {},
            properties=dict(self.properties),
        )

    async def load_cursors(self, names: Sequence[str]) -> None:
        """While opening: bring back the durable cursors of these names."""
        for start in range(0, len(names), CURSORS_LOADED_AT_ONCE):
            some = names[start : start + CURSORS_LOADED_AT_ONCE]
            recovered = await asyncio.gather(*(recover_cursor(self._shared, self.appends, name) for name in some))
            for name, state in zip(some, recovered, strict=True):
                if state is not None:
                    self._add_cursor(name, CursorStorage(self._shared, self.appends, name, state))

    async def check_owner(self) -> None:
        """Before something beside it is changed that no write of its own guards. `ManagedLedgerFenced` when another
        owner has it."""
        await self._check_owner()
        self._check_usable()

    async def check_loaded_cursors(self) -> None:
        """Before any of them is used: `ManagedLedgerFenced` when another owner has written the list since.

        From here on a later owner loads the cursors after this one has, so that only one of the two can write them.
        What was loaded after somebody else came would lack the acknowledgements in ledgers that this list lacks."""
        if self.cursors:
            await self._check_owner()

    def _add_cursor(self, name: str, storage: CursorStore) -> Cursor:
        cursor = self.cursors[name] = Cursor(self, name, storage.acks, storage)
        self.appends.cache_wanted = True
        return cursor

    async def _close(self, *, with_cursors: bool) -> None:
        try:
            await self._rollover.close()
        except MagnetarError as error:
            logger.warning("%s: not closed: %r", self.name, error)
        await self._trimming.wait()
        await self.offloads.stop()
        if with_cursors and (self._node.unsure or self._trimming.unstored_at_the_end):
            with_cursors = await self._settle_info()
        for cursor in [*self.cursors.values(), *self._non_durable]:
            if with_cursors or not cursor.durable:
                # Whoever has one of them by now has them all.
                with_cursors = await self._close_cursor(cursor) and with_cursors
            else:
                await cursor.abandon()  # Or a write under way would leave a ledger of which nobody tells.
        await self._let_go()

    async def _let_go(self) -> None:
        self._tell_doubts()
        await self.offloads.stop()
        await self.readers.close()
        await self.offloads.close()
        self.appends.let_go()
        for ledger_id in self.ledgers.ids:
            self.cache.remove_ledger(ledger_id)
        self.cursors, self._non_durable = {}, []  # They refer to this object, as do those that are told of it.
        self._trimming.let_go()
        self._node.on_unnamed = self._shared.delete_later

    def _tell_doubts(self) -> None:
        """After this nobody would know of ledgers that writes without an answer may have left behind."""
        doubtful = set(self._node.ledgers_in_doubt)
        for cursor in self.cursors.values():
            if cursor.storage is not None:
                doubtful |= cursor.storage.ledgers_in_doubt()
        self._shared.left_over(self.name, doubtful - {POSITION_IN_NODE})

    async def _close_cursor(self, cursor: Cursor) -> bool:
        """Whether it is still this owner's."""
        try:
            await cursor.close()
            if cursor.storage is not None and cursor.storage.deleting:
                await cursor.storage.delete()
        except MagnetarError as error:
            logger.warning("%s: cursor %s is not persisted: %r", self.name, cursor.name, error)
            return not isinstance(error, ManagedLedgerFenced)
        return True

    async def _settle_info(self) -> bool:
        """Have the node name what there is and nothing else. Whether it is still this owner's."""
        async with self._node.lock:
            try:
                await self._write_info()
            except MagnetarError as error:
                logger.warning("%s: nobody knows what its node names: %r", self.name, error)
                return not isinstance(error, ManagedLedgerFenced)
        return True

    async def _write_info(self) -> None:
        """Store what there is; hold the node's lock."""
        await self._rollover.write_list(self.ledgers.records())

    async def _check_owner(self) -> None:
        """Before what no compare-and-set guards: whoever took over since has changed the node."""
        async with self._node.lock:
            try:
                await self._node.check_owner()
            except ManagedLedgerFenced as error:
                self.appends.fence(error)
                raise

    def slowest_mark(self) -> Position | None:
        """Up to where no durable cursor needs anything; None: there is none."""
        return min((cursor.needless_up_to for cursor in self.cursors.values()), default=None)

    def ledgers_removed(self) -> None:
        """Ledgers have left the list, or another one has come into use."""
        for cursor in [*self.cursors.values(), *self._non_durable]:
            cursor.ledgers_removed()

    def _unnamed(self, ledger_id: int) -> None:
        self._shared.start(self._delete_unnamed(ledger_id))

    async def _delete_unnamed(self, ledger_id: int) -> None:
        await self.readers.forget(ledger_id)  # A trim without an answer may have removed it: it may be read.
        await self._shared.delete_ledger(ledger_id)

    def _rolled(self) -> None:
        self.ledgers_removed()
        self.trim_later()
        self.offloads.later()

    def _check_usable(self) -> None:
        if self.state is ManagedLedgerState.FENCED:
            raise ManagedLedgerFenced(self.name)
        if self.state is ManagedLedgerState.CLOSED:
            raise ManagedLedgerClosed(self.name)
