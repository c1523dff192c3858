"""The drain of the bookie that runs in this process: asked for by its operator, gone on with after each start."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from magnetar.bookie.disk_watch import WriteMode
from magnetar.bookie.drain.drain import BookieSwitch, Drain, DrainParts
from magnetar.bookie.operations import BookieDrainState
from magnetar.core.errors import MagnetarError, Unavailable

logger: Final = logging.getLogger(__name__)


REASON_DRAIN: Final = "it is being drained"


class ModeSwitch:
    """The `BookieSwitch` of a running bookie. The reason is not stored with the bookie: the intention tells after a
    restart, and a drain that was cancelled meanwhile leaves nothing behind."""

    def __init__(self, mode: WriteMode) -> None:
        self._mode = mode

    def set_draining(self, draining: bool) -> None:
        """Turn read-only because of a drain, or take that reason back. It registers accordingly, soon."""
        if draining:
            self._mode.add_reason(REASON_DRAIN)
        else:
            self._mode.remove_reason(REASON_DRAIN)


class DrainService:
    """The `DrainOperations` of one bookie."""

    def __init__(self, parts: DrainParts, bookie_id: str, switch: BookieSwitch) -> None:
        self._drain = Drain(parts, bookie_id, switch)
        self._switch = switch
        self._retry_seconds = parts.retry_seconds
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Go on with a drain that an earlier run has begun. The switch is as it should be when this returns. Raises
        `Unavailable`."""
        wanted = await self._drain.wanted()
        self._switch.set_draining(wanted)
        if wanted:
            self._begin()

    async def start_drain(self) -> BookieDrainState:
        """Begin, or go on with, the drain of this bookie; one that runs is no error."""
        try:
            await self._drain.start()
        except Unavailable:
            # The intention may stand, though nobody has said so: whoever looks finds out.
            self._begin()
            raise
        self._begin()
        return self._drain.progress()

    def drain(self) -> BookieDrainState:
        """How far the drain of this bookie has come."""
        return self._drain.progress()

    async def cancel_drain(self) -> BookieDrainState:
        """Stop it and take writes again. Refused once the cookie is removed."""
        await self._drain.cancel()
        await self.close()
        # A round that was cut off may have set it again.
        self._switch.set_draining(False)
        self._drain.forget()
        return self._drain.progress()

    async def close(self) -> None:
        """Stop working on it; the intention stays. Closing twice is no error."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            self._drain.show_begun()
            self._task = asyncio.get_running_loop().create_task(self._run(), name="drain")

    async def _run(self) -> None:
        while True:
            try:
                await self._drain.run()
            except MagnetarError as error:
                # Another process may have the lock until its session ends; the store comes back; an operator mends
                # what nobody can read.
                logger.warning("the drain goes on later: %s", error)
                await asyncio.sleep(self._retry_seconds)
            else:
                return
