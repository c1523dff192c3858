"""AutoRecovery and bookies that leave, as a bookie's process tells and steers them: `RecoveryOperations`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Final

from magnetar.bookie.autorecovery.daemon import AutoRecoveryDaemon
from magnetar.bookie.autorecovery.election import ElectionKind, current_auditor
from magnetar.bookie.autorecovery.underreplication import UnderreplicatedLedgers
from magnetar.bookie.drain.drain import Drain, DrainParts
from magnetar.bookie.drain.lost import LostBookies
from magnetar.bookie.operations import (
    AutoRecoveryState,
    BookieDrainStep,
    LostBookie,
    OperationRefused,
    UnderreplicatedEntry,
)
from magnetar.core.errors import MagnetarError
from magnetar.metadata.store import MetadataStore

logger: Final = logging.getLogger(__name__)

DEPARTURES_MAX: Final = 8
"""Bookies that are taken out of the cluster from here at the same time; each walks all ledgers' metadata."""


class RecoveryAdmin:
    """A `RecoveryOperations`; owns the recoveries that it was asked to begin, nothing else."""

    def __init__(
        self,
        store: MetadataStore,
        underreplicated: UnderreplicatedLedgers,
        kind: ElectionKind,
        *,
        daemon: AutoRecoveryDaemon | None = None,
        departures: DrainParts | None = None,
    ) -> None:
        """`daemon` if AutoRecovery runs in this process. Without `departures` no bookie can be recovered from here."""
        self._store = store
        self._underreplicated = underreplicated
        self._kind = kind
        self._daemon = daemon
        self._departures = departures
        self._lost = None if departures is None else LostBookies(departures)
        self._leaving: dict[str, asyncio.Task[None]] = {}

    async def close(self) -> None:
        """Stop the recoveries that were begun here; what they were to do is written down, and may be asked again."""
        tasks = list(self._leaving.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._lost is not None:
            await self._lost.close()

    async def auto_recovery(self) -> AutoRecoveryState:
        """What it does now; walks the marked ledgers to count them."""
        if self._daemon is None:
            return AutoRecoveryState(
                enabled=await self.auto_recovery_enabled(),
                auditor_bookie_id=await self.auditor_bookie_id(),
                ledgers_left=await self._underreplicated.count(),
            )
        return await self._daemon.refresh()

    async def auto_recovery_enabled(self) -> bool:
        """Whether AutoRecovery is enabled in the whole cluster."""
        return await self._underreplicated.enabled()

    async def auditor_bookie_id(self) -> str:
        """Who holds the auditor's lock; empty while none is elected."""
        return await current_auditor(self._store, self._kind) or ""

    async def enable_auto_recovery(self, *, enabled: bool) -> None:
        """Switch it for the whole cluster; no error when it is so already."""
        await (self._underreplicated.enable() if enabled else self._underreplicated.disable())

    async def underreplicated_ledgers(self) -> AsyncIterator[UnderreplicatedEntry]:
        """All ledgers that are marked."""
        async for ledger in self._underreplicated.all():
            yield UnderreplicatedEntry(ledger_id=ledger.ledger_id, missing_replicas=ledger.missing_replicas)

    async def trigger_audit(self) -> None:
        """Have the elected auditor check now."""
        await (self._underreplicated.request_audit() if self._daemon is None else self._daemon.trigger_audit())

    async def lost_bookie_recovery_delay_seconds(self) -> int | None:
        """How long the auditor waits before it gives a bookie up; None when nobody has set it."""
        return await self._underreplicated.lost_bookie_recovery_delay_seconds()

    async def set_lost_bookie_recovery_delay_seconds(self, seconds: int) -> None:
        """Set it in the cluster's metadata."""
        await self._underreplicated.set_lost_bookie_recovery_delay_seconds(seconds)

    def recover_bookie(self, bookie_id: str, *, delete_cookie: bool) -> None:
        """Begin to copy all that a dead bookie had to others; goes on in the background. Refused when one runs."""
        self._begin(bookie_id, remove_cookie=delete_cookie)

    def decommission_bookie(self, bookie_id: str) -> None:
        """Begin to copy all that a stopped bookie had to others, then remove its cookie; in the background."""
        self._begin(bookie_id, remove_cookie=True)

    async def lost_bookie(self, bookie_id: str) -> LostBookie:
        """What the cluster has of another bookie; looks at all ledgers' metadata."""
        return await self._lost_bookies(bookie_id).state(bookie_id)

    async def retire_lost_bookie(self, bookie_id: str) -> LostBookie:
        """Take the next step to have a bookie forgotten whose disks are lost: see `magnetar.bookie.drain.lost`. To be
        asked until it has no cookie and no ledgers. Refused while it is registered."""
        return await self._lost_bookies(bookie_id).retire(bookie_id)

    def _lost_bookies(self, bookie_id: str) -> LostBookies:
        if self._lost is None:
            raise OperationRefused(f"this process cannot look for {bookie_id}: ask another bookie")
        return self._lost

    def _begin(self, bookie_id: str, *, remove_cookie: bool) -> None:
        if self._departures is None:
            raise OperationRefused(f"this process cannot recover bookies: run `magnetar bookie recover {bookie_id}`")
        if bookie_id in self._leaving:
            raise OperationRefused(f"bookie {bookie_id} is being recovered by this process already")
        if len(self._leaving) >= DEPARTURES_MAX:
            raise OperationRefused(f"{DEPARTURES_MAX} bookies are recovered by this process already: wait for one")
        work = self._leave(self._departures, bookie_id, remove_cookie=remove_cookie)
        self._leaving[bookie_id] = asyncio.get_running_loop().create_task(work, name=f"recovery of {bookie_id}")

    async def _leave(self, parts: DrainParts, bookie_id: str, *, remove_cookie: bool) -> None:
        try:
            drain = Drain(parts, bookie_id)
            logger.info("the recovery of bookie %s begins", bookie_id)
            await drain.start(remove_cookie=remove_cookie)
            state = await drain.run()
            logger.info(
                "bookie %s is %s", bookie_id, "recovered" if state.step is BookieDrainStep.DONE else "to stay after all"
            )
        except (MagnetarError, OSError) as error:
            logger.error("bookie %s could not be recovered: %s", bookie_id, error)  # noqa: TRY400  (no stack needed)
        finally:
            del self._leaving[bookie_id]
