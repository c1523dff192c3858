"""Wires one bookie together: the only module that knows all the others."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from magnetar.bookie import cookie, disk_watch, journal_files
from magnetar.bookie.bookie import Bookie
from magnetar.bookie.checkpoint import Checkpointer
from magnetar.bookie.directories import BookieDirectories, open_directories
from magnetar.bookie.disk_watch import WriteMode
from magnetar.bookie.journal import Journal
from magnetar.bookie.ledger_state import LedgerStates
from magnetar.bookie.registration import Registration, encode_service_info
from magnetar.bookie.replay import Replay
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.storage import LedgerStorage
from magnetar.core.clock import Clock
from magnetar.core.errors import SettingError
from magnetar.metadata.store import MetadataStore

if TYPE_CHECKING:
    from magnetar.bookie.server import BookieServer

log = logging.getLogger(__name__)


class RunningBookie:
    """A bookie that serves. Made by `start_bookie`."""

    def __init__(self, bookie_id: str, bookie: Bookie, mode: WriteMode, engine: _Engine) -> None:
        self.bookie_id = bookie_id
        self.bookie = bookie
        self.mode = mode
        self.server: BookieServer | None = None
        self._engine = engine
        self._registration: Registration | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._checkpoints: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The TCP port; 0 when there is no server."""
        return self.server.port if self.server is not None else 0

    async def serve(self, settings: BookieSettings, store: MetadataStore, clock: Clock) -> None:
        """Listen and register."""
        if settings.serve_tcp:
            # Both protocols' codecs, 20 ms of start-up that a bookie inside a standalone cluster does not need.
            from magnetar.bookie.server import BookieServer

            self.server = BookieServer(self.bookie, self._engine.directories.usage, clock)
            await self.server.start(settings.listen_host, settings.port)
        info = encode_service_info(settings.advertised_host, self.port or settings.port)
        registration = self._registration = Registration(store, self.bookie_id, info)
        await registration.start(read_only=self.mode.read_only)
        self.mode.watch(lambda read_only: registration.set_read_only(read_only=read_only))
        interval = settings.storage.flush_interval_seconds
        loop = asyncio.get_running_loop()
        checkpoints = self._engine.checkpointer.run(self._engine.journal, interval)
        self._checkpoints = loop.create_task(checkpoints, name="bookie-checkpoint")
        self._tasks = [
            loop.create_task(registration.run(), name="bookie-registration"),
            loop.create_task(self.mode.run(), name="bookie-disk-watch"),
        ]
        for task in (self._checkpoints, *self._tasks):
            task.add_done_callback(self._task_ended)

    async def close(self) -> None:
        """Unregister, finish what was taken, write a checkpoint. Closing twice is no error."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        checkpoints, self._checkpoints = self._checkpoints, None
        if checkpoints is not None:
            self._engine.checkpointer.stop()
            tasks.append(checkpoints)
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._registration is not None:
            await self._registration.close()
            self._registration = None
        if self.server is not None:
            await self.server.close()
            self.server = None
        await self._engine.close()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("%s has died; the bookie turns read-only", task.get_name(), exc_info=error)
            self.mode.add_reason(f"{task.get_name()} has died")


class _Engine:
    """What stands behind a `Bookie`: journal, storage, checkpoints."""

    def __init__(
        self,
        directories: BookieDirectories,
        storage: LedgerStorage,
        checkpointer: Checkpointer,
        journal: Journal,
        bookie: Bookie,
    ) -> None:
        self.bookie = bookie
        self.directories = directories
        self.storage = storage
        self.checkpointer = checkpointer
        self.journal = journal
        self._closed = False

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.bookie.stop()
        await self.journal.close()
        # Twice: the first may only finish a half that was being written, or that failed before.
        for _ in range(2):
            await self.checkpointer.checkpoint(self.journal.mark)
        self.checkpointer.close()
        self.storage.close()


async def start_bookie(settings: BookieSettings, store: MetadataStore, clock: Clock) -> RunningBookie:
    """Check who we are, replay the journal, serve.

    Raises `InvalidCookie`, `JournalDamaged`, `SettingError`, `Unavailable` (metadata) or OSError (disk)."""
    bookie_id = settings.bookie_id or f"{settings.advertised_host}:{settings.port}"
    if not settings.bookie_id and settings.port == 0:
        raise SettingError("bookiePort 0 needs a bookieId: the id must be the same after every start")
    directories = open_directories(settings)
    await cookie.check_cookies(store, settings, directories, bookie_id)
    mode = WriteMode(settings.disk, directories.usage)
    bookie, engine = await _open_engine(settings, directories, mode, clock)
    running = RunningBookie(bookie_id, bookie, mode, engine)
    try:
        if settings.read_only:
            mode.add_reason(disk_watch.REASON_SETTING)
        mode.check()
        await running.serve(settings, store, clock)
    except BaseException:
        await running.close()
        raise
    return running


async def _open_engine(
    settings: BookieSettings, directories: BookieDirectories, mode: WriteMode, clock: Clock
) -> tuple[Bookie, _Engine]:
    storage = LedgerStorage(directories, settings.storage)
    states = LedgerStates(storage.index.ledger)

    def checkpoint_done(error: OSError | None) -> None:
        if error is not None:
            mode.write_failed(error)
        else:
            # A fast writer fills the reserve between two looks of the watch; half a cache written is time for one.
            mode.check()
        bookie.resume()

    checkpointer = Checkpointer(storage, states, directories, settings.journal.backups_max, checkpoint_done)
    bookie = Bookie(storage, states, checkpointer)
    replay = Replay(directories, storage, states, checkpointer)
    loop = asyncio.get_running_loop()
    try:
        await loop.run_in_executor(None, lambda: replay.run(synced=settings.journal.sync_data))
        last_file_id = max(journal_files.list_files(directories.journal), default=0)
        first_file_id = max(clock.now_ms(), last_file_id + 1)
        journal = Journal(directories.journal, first_file_id, settings.journal, bookie.resume, mode.write_failed)
    except BaseException:
        checkpointer.close()
        storage.close()
        raise
    bookie.start(journal)

    def mode_changed(read_only: bool) -> None:
        bookie.read_only = read_only
        bookie.recovery_writes = mode.recovery_writes

    mode.watch(mode_changed)
    if replay.entries or replay.meta_records:
        await checkpointer.checkpoint(journal.mark)
    return bookie, _Engine(directories, storage, checkpointer, journal, bookie)
