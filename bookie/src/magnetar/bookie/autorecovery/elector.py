"""Has an auditor at work exactly while this process is elected."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from magnetar.bookie.autorecovery.auditor.auditor import Auditor
from magnetar.bookie.autorecovery.election import Election
from magnetar.core.errors import MagnetarError, Unavailable

logger: Final = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
"""Between attempts to take part in the election while the store cannot be reached."""


class AuditorEnded(MagnetarError):
    """The auditor stopped although nobody asked it to."""


class AuditorElector:
    """Takes part in the election for as long as `run` does. The auditor is stopped within the turn of the loop in
    which the session is lost, which is before the store may let another one win."""

    def __init__(
        self, make_election: Callable[[Callable[[], None]], Election], make_auditor: Callable[[], Auditor]
    ) -> None:
        """`make_election` gets the function to be called after each change."""
        self.auditor: Auditor | None = None
        """At work now; None if we are not elected."""
        self.terms = 0
        """How often this process was elected as the auditor."""
        self._make_auditor = make_auditor
        self._changed = asyncio.Event()
        self._election = make_election(self._election_changed)
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Until cancelled; the vote is withdrawn then. Raises what an auditor dies of."""
        try:
            await self._take_part()
            while True:
                await self._changed.wait()
                self._changed.clear()
                if self._election.leading:
                    await self._audit()
        finally:
            await self._election.close()

    async def _take_part(self) -> None:
        while True:
            try:
                await self._election.start()
            except Unavailable as error:
                logger.warning("the election of the auditor cannot be joined yet: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _audit(self) -> None:
        self.terms += 1
        self.auditor = self._make_auditor()
        logger.info("elected: this process audits")
        task = self._task = asyncio.create_task(self.auditor.run(), name="auditor")
        try:
            await asyncio.wait([task])
        finally:
            self.auditor = self._task = None
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            raise AuditorEnded("the auditor has died") from task.exception()
        logger.info("not elected any more: this process audits no longer")

    def _election_changed(self) -> None:
        self._changed.set()
        if self._task is not None and not self._election.leading:
            self._task.cancel()
