"""Wires one bookie together: the only module that knows all the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from magnetar.bookie import cookie, disk_watch
from magnetar.bookie.bookie import Bookie
from magnetar.bookie.bookie_status import StatusKeeper, read_status
from magnetar.bookie.checkpoint import Checkpointer
from magnetar.bookie.counters import BookieCounters
from magnetar.bookie.disk_watch import WriteMode
from magnetar.bookie.drain.departed import finish_departure
from magnetar.bookie.integrity.begun_journals import begun_by_last_start, check_journals_are_newest, note_begun_journals
from magnetar.bookie.integrity.given_up import tell_given_up
from magnetar.bookie.integrity.limbo import Limbo, LimboStage, leave_limbo, ledgers_in_limbo
from magnetar.bookie.journal.worker import JournalWorker, ThreadJournalWorker
from magnetar.bookie.journals import Journals, open_journals
from magnetar.bookie.ledger_state import LedgerStates
from magnetar.bookie.loss import Losses, OnLoss
from magnetar.bookie.registration import BookieRegistration, encode_service_info
from magnetar.bookie.replay import Replay
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.storage.directories import BookieDirectories, open_directories
from magnetar.bookie.storage.index import open_rocksdb_index
from magnetar.bookie.storage.index_api import OpenIndex
from magnetar.bookie.storage.ledger_storage import LedgerStorage, open_storage
from magnetar.core.clock import Clock
from magnetar.core.disk import Disk, SystemDisk
from magnetar.core.errors import SettingError
from magnetar.metadata.store import MetadataStore, Node
from magnetar.wire.bookkeeper.service_info import MACHINE_PROPERTY

if TYPE_CHECKING:
    from magnetar.bookie.server.bookie_server import BookieServer

logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieEnvironment:
    """What a bookie stands on. The simulator passes its own; everything else comes from the event loop."""

    disk: Disk
    open_index: OpenIndex
    new_journal_worker: Callable[[], JournalWorker]


SYSTEM: Final = BookieEnvironment(
    disk=SystemDisk(), open_index=open_rocksdb_index, new_journal_worker=ThreadJournalWorker
)
"""The environment outside simulations: the machine's own disks and threads."""


class RunningBookie:
    """A bookie that serves. Made by `start_bookie`."""

    def __init__(self, bookie_id: str, bookie: Bookie, mode: WriteMode, parts: BookieParts) -> None:
        self.bookie_id = bookie_id
        self.bookie = bookie
        self.mode = mode
        self.server: BookieServer | None = None
        self.parts = parts
        self._registration: BookieRegistration | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._checkpoints: asyncio.Task[None] | None = None
        self._status: StatusKeeper | None = None

    @property
    def port(self) -> int:
        """The TCP port; 0 when there is no server."""
        return self.server.port if self.server is not None else 0

    async def keep_status(self, clock: Clock) -> None:
        """Be read-only if somebody has asked for it before the restart, and store changes from here on. OSError."""
        directories = self.parts.directories
        loop = asyncio.get_running_loop()
        status = await loop.run_in_executor(None, read_status, directories.disk, directories.ledgers)
        if status is not None and status.read_only and status.manual:
            self.mode.add_reason(disk_watch.REASON_MANUAL, manual=True)
        mode = self.mode
        keeper = self._status = StatusKeeper(
            directories.disk, directories.ledgers, clock, lambda: (mode.read_only, mode.manual), status
        )
        mode.watch(lambda _read_only: keeper.changed())
        keeper.changed()

    async def set_read_only(self, reason: str, *, manual: bool) -> None:
        """Take no ordinary adds from now on. With `manual` only `set_writable` ends it, also after a restart (unless
        the settings say that the status is not stored); then it is stored on return. OSError: it is not stored."""
        self.mode.add_reason(reason, manual=manual)
        if self._status is not None:
            await self._status.save()

    async def set_writable(self, reason: str | None = None) -> None:
        """Take one reason of `set_read_only` back, or all that were manual. The bookie stays read-only while there are
        other reasons (see `mode.reasons`). OSError: it is not stored."""
        if reason is None:
            self.mode.remove_manual_reasons()
        else:
            self.mode.remove_reason(reason)
        if self._status is not None:
            await self._status.save()

    async def serve(self, settings: BookieSettings, store: MetadataStore, clock: Clock) -> None:
        """Listen and register."""
        if settings.serve_tcp:
            # Both protocols' codecs, 20 ms of start-up that a bookie inside a standalone cluster does not need.
            from magnetar.bookie.server.bookie_server import BookieServer
            from magnetar.bookie.server.protection import read_protection

            protection = read_protection(settings)
            self.server = BookieServer(self.bookie, self.parts.directories.usage, clock, protection)
            self.parts.journals.when_told(self.server.outboxes.send)
            await self.server.start(settings.listen_host, settings.port)
        properties = {MACHINE_PROPERTY: settings.machine} if settings.machine else None
        info = encode_service_info(settings.advertised_host, self.port or settings.port, properties)
        registration = self._registration = BookieRegistration(store, self.bookie_id, info)
        # The mode may change while the first registration is on its way; `run` sees to that then.
        self.mode.watch(lambda read_only: registration.set_read_only(read_only=read_only))
        await registration.start(read_only=self.mode.read_only)
        interval = settings.storage.flush_interval_seconds
        loop = asyncio.get_running_loop()
        checkpoints = self.parts.checkpointer.run(self.parts.journals.marks, interval)
        self._checkpoints = loop.create_task(checkpoints, name="bookie-checkpoint")
        self._tasks = [
            loop.create_task(registration.run(), name="bookie-registration"),
            loop.create_task(self.mode.run(), name="bookie-disk-watch"),
        ]
        if self._status is not None:
            self._tasks.append(loop.create_task(self._status.run(), name="bookie-status"))
        for task in (self._checkpoints, *self._tasks):
            task.add_done_callback(self._task_ended)

    async def close(self) -> None:
        """Unregister, finish what was taken, write a checkpoint. Closing twice is no error."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        checkpoints, self._checkpoints = self._checkpoints, None
        if checkpoints is not None:
            self.parts.checkpointer.stop()
            tasks.append(checkpoints)
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._registration is not None:
            await self._registration.close()
            self._registration = None
        if self.server is not None:
            await self.server.close()
            self.server = None
        await self.parts.close()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical("%s has died; the bookie turns read-only", task.get_name(), exc_info=error)
            self.mode.add_reason(f"{task.get_name()} has died")


class BookieParts:
    """What stands behind a `Bookie`, for those who collect garbage, measure or operate it."""

    def __init__(
        self,
        directories: BookieDirectories,
        storage: LedgerStorage,
        states: LedgerStates,
        checkpointer: Checkpointer,
        journals: Journals,
        bookie: Bookie,
        limbo: Limbo,
    ) -> None:
        self.bookie = bookie
        self.limbo = limbo
        self.directories = directories
        self.storage = storage
        self.states = states
        self.checkpointer = checkpointer
        self.journals = journals
        self._closed = False

    def forget_ledgers(self, ledger_ids: Collection[int]) -> None:
        """The ledgers were deleted from the indexes: keep nothing of them in memory. On the event loop."""
        for ledger_id in ledger_ids:
            self.states.forget(ledger_id)
        self.storage.forget_ledgers(ledger_ids)

    async def close(self) -> None:
        """Finish what was taken, write a checkpoint, close all files. Closing twice is no error."""
        if self._closed:
            return
        self._closed = True
        self.bookie.adds.stop()
        await self.journals.close()
        # Twice: the first may only finish a half that was being written, or that failed before.
        for _ in range(2):
            await self.checkpointer.checkpoint(self.journals.marks)
        self.checkpointer.close()
        self.storage.close()


async def start_bookie(
    settings: BookieSettings,
    store: MetadataStore,
    clock: Clock,
    environment: BookieEnvironment = SYSTEM,
    *,
    read_only_reasons: Collection[str] = (),
) -> RunningBookie:
    """Check who we are, replay the journals, serve. With `read_only_reasons` it is never seen as writable.

    Raises `InvalidCookie`, `JournalDamaged`, `SettingError`, `Unavailable` (metadata) or OSError (disk)."""
    bookie_id = settings.registered_id
    if not settings.bookie_id and settings.port == 0:
        raise SettingError("bookiePort 0 needs a bookieId: the id must be the same after every start")
    directories = open_directories(settings, environment.disk)
    begun = await begun_by_last_start(store, bookie_id, holds_data=directories.holds_data())

    async def cookie_found(found: Node | None) -> None:
        await finish_departure(store, bookie_id, found, clock.now_ms())

    await cookie.check_cookies(store, settings, directories, bookie_id, cookie_found)
    mode = WriteMode(settings.disk, directories.spaces, pending_bytes(settings))
    opening = _Opening(settings, directories, clock, environment)
    parts = await opening.run(mode, store, begun)
    running = RunningBookie(bookie_id, parts.bookie, mode, parts)
    try:
        if settings.read_only:
            mode.add_reason(disk_watch.REASON_SETTING)
        for reason in read_only_reasons:
            mode.add_reason(reason)
        if settings.disk.persist_status:
            await running.keep_status(clock)
        mode.check()
        await note_begun_journals(store, bookie_id, [file_id for file_id, _ in parts.journals.marks()])
        await running.serve(settings, store, clock)
        await cookie.check_not_retired(store, bookie_id)
    except BaseException:
        await running.close()
        raise
    return running


def pending_bytes(settings: BookieSettings) -> int:
    """What may still go to one disk once adds are refused: a directory's caches, and the journal's next step."""
    share = settings.storage.write_cache_share_bytes(len(settings.ledger_directories))
    return share + settings.journal.preallocate_bytes


def _close_opened(opening: asyncio.Future[LedgerStorage]) -> None:
    """Close what a start that was broken off has opened."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


class _Opening:
    """How a bookie's storage comes up, damaged or not."""

    def __init__(
        self, settings: BookieSettings, directories: BookieDirectories, clock: Clock, environment: BookieEnvironment
    ) -> None:
        self._settings = settings
        self._directories = directories
        self._clock = clock
        self._environment = environment
        limbo = self._limbo = Limbo(directories)
        self._losses = Losses(settings.on_loss, lambda: limbo.begin(clock.now_ms()))

    async def run(self, mode: WriteMode, store: MetadataStore, begun: Sequence[int]) -> BookieParts:
        """Open everything, replay, enter limbo if need be. `begun`: the journal files of the last start."""
        settings, directories = self._settings, self._directories
        check_journals_are_newest(directories.disk, directories.journals, begun, self._losses)
        storage = await self._open_storage()
        states = LedgerStates(storage.load_state, storage.was_deleted)

        def checkpoint_done(error: OSError | None) -> None:
            if error is not None:
                mode.write_failed(error)
            else:
                # A fast writer fills the reserve between two looks of the watch; half a cache written is time for one.
                mode.check()
            bookie.adds.resume()

        checkpointer = Checkpointer(storage, states, directories, settings.journal.backups_max, checkpoint_done)
        counters = checkpointer.counters = BookieCounters(self._clock, len(directories.journals))
        bookie = Bookie(storage, states, checkpointer, counters)
        replay = Replay(directories, storage, states, checkpointer)
        try:
            journals = await self._replay(replay, states, checkpointer, store)
        except BaseException:
            checkpointer.close()
            storage.close()
            raise
        for journal, counted in zip(journals.all, counters.journals, strict=True):
            journal.count(counted, self._clock)
        journals.start(bookie.adds.group_written, mode.write_failed)
        bookie.adds.start(journals.all)

        def mode_changed(read_only: bool) -> None:
            bookie.adds.read_only = read_only
            bookie.adds.recovery_writes = mode.recovery_writes

        mode.watch(mode_changed)
        self._limbo.damage = self._losses.told
        parts = BookieParts(directories, storage, states, checkpointer, journals, bookie, self._limbo)
        if self._losses.told:
            await self._pass_over(parts, replay)
            if settings.on_loss is OnLoss.ACCEPT:
                await tell_given_up(storage, store, settings.registered_id)
        else:
            # Each start begins a file: without anything to write, crashes in a row would fill the disk with them.
            old = directories.holds_old_journals(settings.journal.backups_max)
            await checkpointer.checkpoint(journals.marks, also_idle=old)
        return parts

    async def _open_storage(self) -> LedgerStorage:
        """In a thread: reading a whole index may take minutes."""
        loop = asyncio.get_running_loop()
        open_index = self._environment.open_index
        opening = loop.run_in_executor(
            None, open_storage, self._directories, self._settings.storage, open_index, self._losses
        )
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_opened)
            raise

    async def _replay(
        self, replay: Replay, states: LedgerStates, checkpointer: Checkpointer, store: MetadataStore
    ) -> Journals:
        settings, limbo = self._settings, self._limbo
        await replay.run(synced=settings.journal.sync_data, losses=self._losses)
        loop = asyncio.get_running_loop()
        if limbo.stage is not LimboStage.NONE and settings.on_loss is OnLoss.ACCEPT:
            left = await loop.run_in_executor(None, leave_limbo, replay.storage, states)
            logger.error("%d ledgers leave limbo as they are: what is missing of them is denied from now on", left)
            await checkpointer.flush(replay.marks)
            limbo.end()
        elif limbo.stage is LimboStage.ENTERING:
            # With the old marks: a crash before the end finds the same damage again.
            await limbo.enter(states, lambda: checkpointer.flush(replay.marks), store, settings.registered_id)
        elif limbo.stage is LimboStage.HEALING:
            limbo.ledgers = len(await loop.run_in_executor(None, ledgers_in_limbo, replay.storage))
        return open_journals(
            self._directories,
            settings.journal,
            self._clock.now_ms(),
            self._environment.new_journal_worker,
            replay.ends,
        )

    async def _pass_over(self, parts: BookieParts, replay: Replay) -> None:
        """Begin behind what is damaged, which is kept beside the journal for whoever wants to look at it."""
        # No checkpoint, which would delete it.
        await parts.checkpointer.flush(parts.journals.marks())
        disk = self._directories.disk
        for path in replay.damaged_files:
            disk.rename(path, path.with_name(f"{path.name}.damaged"))
            disk.sync_directory(path.parent)
            logger.warning("%s is kept as %s.damaged", path, path.name)
