"""The waiting part of an ensemble change: pauses, and the metadata write that its owner makes.

`append_pipeline.py` is compiled and therefore holds no coroutine (docs/adr/0022): what has to wait stands here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Final, Protocol

from magnetar.core.backoff import doubled
from magnetar.core.errors import MagnetarError
from magnetar.ledger.api import LedgerUnavailable

CHANGES_AT_ONCE_MAX: Final = 5
"""Ensemble changes in a row, with nothing confirmed in between, that are made without a pause: several bookies may die
at the same moment."""
CHANGES_IN_A_ROW_MAX: Final = 30
"""After so many the ledger fails. A bookie that cannot be reached answers at once, so without this bound and the pauses
a writer whom the network has cut off would change its ensemble as fast as it can, for ever."""
CHANGE_PAUSE_GROWTH_MAX: Final = 16
"""What the first pause may grow to, as its multiple; with the settings' default from 50 ms to 0.8 s, and thirty
changes take some 18 s."""


class EnsembleChanger(Protocol):
    """Who finds other bookies for a ledger and records them in its metadata."""

    async def change_ensemble(
        self, first_entry_id: int, ensemble: Sequence[str], failed: Sequence[int], lost: Collection[str]
    ) -> list[str]:
        """Fill the failed places from this entry on, record it, return the new ensemble. Any `MagnetarError`: the
        ledger fails with it."""
        ...


class ChangingPipeline(Protocol):
    """The pipeline whose bookies failed, as a change needs it."""

    @property
    def ledger_id(self) -> int:
        """The ledger whose entries these are."""
        ...

    @property
    def change_pause_seconds(self) -> float:
        """The first pause between ensemble changes."""
        ...

    def next_change(self) -> tuple[int, list[str], list[int]] | None:
        """First entry, ensemble and failed places of the change that is needed now; None when none is."""
        ...

    def count_change(self) -> int:
        """One more change is about to be made; how many there were since something was confirmed."""
        ...

    def install(self, changed: Sequence[str], indexes: Sequence[int]) -> None:
        """The change is recorded: send to the new bookies at these places what is not confirmed."""
        ...

    def fail(self, error: MagnetarError) -> None:
        """Give up on everything that is not confirmed."""
        ...

    def settled(self) -> asyncio.Future[None] | None:
        """None when nothing is outstanding and no change is under way, or all has failed. Else what is done then."""
        ...


async def replace_failed_bookies(pipeline: ChangingPipeline, changer: EnsembleChanger) -> None:
    """Change the ensemble until no failed bookie is in it. When that cannot be, the pipeline has failed on return."""
    lost: set[str] = set()
    try:
        while pipeline.next_change() is not None:
            await _pause(pipeline)
            change = pipeline.next_change()
            if change is None:  # Closed or failed meanwhile.
                return
            first_entry_id, ensemble, failed = change
            lost.update(ensemble[index] for index in failed)
            pipeline.install(await changer.change_ensemble(first_entry_id, ensemble, failed, lost), failed)
    except MagnetarError as error:
        pipeline.fail(error)


async def wait_until_settled(pipeline: ChangingPipeline) -> None:
    """Wait until nothing is outstanding and no ensemble change is under way, or all has failed."""
    while (settled := pipeline.settled()) is not None:
        await settled


async def stop_replacing(task: asyncio.Task[None] | None) -> None:
    """Cancel a change that is under way, and wait for its end."""
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _pause(pipeline: ChangingPipeline) -> None:
    changes = pipeline.count_change()
    if changes > CHANGES_IN_A_ROW_MAX:
        raise LedgerUnavailable(
            f"the last {CHANGES_IN_A_ROW_MAX} ensembles of ledger {pipeline.ledger_id} took no entry"
        )
    pauses = changes - CHANGES_AT_ONCE_MAX
    if pauses > 0:
        first_seconds = pipeline.change_pause_seconds
        await asyncio.sleep(doubled(first_seconds, CHANGE_PAUSE_GROWTH_MAX * first_seconds, pauses - 1))
