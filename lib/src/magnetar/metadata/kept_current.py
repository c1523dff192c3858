"""What was read from a metadata store, read again after each change there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from magnetar.core.errors import MagnetarError
from magnetar.metadata.store import MetadataStore, Notification, SessionEvent

logger: Final = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
"""Pause before the next attempt after the store failed."""


class KeptCurrent:
    """Calls `refresh` at the start, and after each change that concerns it until that has succeeded."""

    def __init__(
        self,
        store: MetadataStore,
        what: str,
        refresh: Callable[[], Awaitable[None]],
        concerns: Callable[[Notification], bool],
    ) -> None:
        """`what` is read, as the log calls it."""
        self._what = what
        self._refresh = refresh
        self._concerns = concerns
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stops = [store.watch(self._notified), store.watch_session(self._session_changed)]

    async def start(self) -> None:
        """Read, and go on watching. What `refresh` raises."""
        await self._refresh()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"list of {self._what}")

    async def stop(self) -> None:
        """Stop watching. Twice is no error."""
        for stop in self._stops:
            stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _notified(self, notification: Notification) -> None:
        if self._concerns(notification):
            self._changed.set()

    def _session_changed(self, event: SessionEvent) -> None:
        # Changes may have been missed while the store was away.
        if event in (SessionEvent.RECONNECTED, SessionEvent.SESSION_RESTARTED):
            self._changed.set()

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._refresh()
            except MagnetarError as error:
                # A refusal as well: a ZooKeeper that throttles refuses, and nobody would follow changes any more.
                logger.warning("the list of %s cannot be read: %s", self._what, error)
                # News end the pause: they come when the store is back.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), RETRY_SECONDS)
                self._changed.set()
