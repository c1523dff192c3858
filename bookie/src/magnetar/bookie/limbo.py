"""Limbo: a bookie that has lost something it acknowledged says "I don't know" instead of "there is no such entry".

A recovery counts denials: enough of them prove that an entry was never acknowledged. So a bookie that may have lost
entries must not deny any, nor take adds of a writer that it may have been told to refuse. In limbo a ledger is fenced,
and what is missing is answered EUNKNOWNLEDGERSTATE, as BookKeeper does it (design BP-46; `LedgerData.limbo` in the
index, which Apache's bookies read as well). `healing` fetches what is missing and ends it, ledger by ledger.

Every ledger that names the bookie is put into limbo, closed ones too: a writer that was fenced here, and has not
noticed, could otherwise go on behind the end of its ledger. Ledgers that do not name it yet cannot have lost anything.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from magnetar.bookie.directories import BookieDirectories
from magnetar.bookie.gc.live_ledgers import StoredLiveLedgers
from magnetar.bookie.ledger_state import LedgerStates, decode_state
from magnetar.bookie.storage import LedgerStorage
from magnetar.ledger.api import LedgerNotFound
from magnetar.ledger.metadata_ops import LedgerMetadataOps
from magnetar.metadata.store import MetadataStore

log: Final = logging.getLogger(__name__)

LIMBO_FILE: Final = "limbo"
"""In the first ledger directory: what is left to be done, while anything is."""

STATES_PER_FLUSH: Final = 5_000
"""Ledgers that are put into limbo at once; bounds the memory for their states."""


class LimboStage(enum.Enum):
    """How far a bookie is."""

    NONE = b""
    ENTERING = b"entering\n"
    """Some ledgers are not in limbo yet: nothing is served before they are."""
    HEALING = b"healing\n"
    """Those that may lack something are in limbo."""


class Limbo:
    """What is durable of it."""

    def __init__(self, directories: BookieDirectories) -> None:
        self._disk = directories.disk
        self._path = directories.ledgers[0] / LIMBO_FILE

    def stage(self) -> LimboStage:
        """How far the bookie is. OSError."""
        content = self._disk.read_whole(self._path)
        if content is None:
            return LimboStage.NONE
        return LimboStage.HEALING if content == LimboStage.HEALING.value else LimboStage.ENTERING

    def begin(self) -> None:
        """From here on every start enters limbo before it serves, durably. OSError."""
        self._disk.replace_whole(self._path, LimboStage.ENTERING.value)

    async def enter(
        self,
        states: LedgerStates,
        flush: Callable[[], Awaitable[None]],
        store: MetadataStore,
        bookie_id: str,
    ) -> int:
        """Put every ledger that names the bookie into limbo, durably; how many. `flush` makes states durable.

        `Unavailable` when the metadata store cannot list all ledgers, OSError."""
        count = 0
        async for ledger_id in _ledgers_of(store, bookie_id):
            state = states.get_or_create(ledger_id)
            state.fenced = state.fence_durable = state.limbo = True
            states.touch(state)
            count += 1
            if count % STATES_PER_FLUSH == 0:
                await flush()
        await flush()
        self._disk.replace_whole(self._path, LimboStage.HEALING.value)
        log.warning("%d ledgers are in limbo: what is missing of them is fetched from the other bookies", count)
        return count

    def end(self) -> None:
        """No ledger is in limbo any more, durably. OSError."""
        self._disk.delete(self._path)
        self._disk.sync_directory(self._path.parent)


async def _ledgers_of(store: MetadataStore, bookie_id: str) -> AsyncIterator[int]:
    live = StoredLiveLedgers(store, bookie_id)
    await live.catch_up()
    metadata_ops = LedgerMetadataOps(store)
    async for ledger_id in live.ledger_ids():
        try:
            metadata, _ = await metadata_ops.read(ledger_id)
        except LedgerNotFound:
            continue
        if any(bookie_id in bookies for _, bookies in metadata.ensembles):
            yield ledger_id


def ledgers_in_limbo(storage: LedgerStorage) -> list[int]:
    """Their ids, ascending, as the indexes have them. Blocks; OSError, `ValueError` for a state that is damaged."""
    found = []
    for directory in storage.directories:
        for ledger_id in directory.index.ledger_ids():
            value = directory.index.ledger(ledger_id)
            if value is not None and decode_state(ledger_id, value).limbo:
                found.append(ledger_id)
    return sorted(found)


def leave_limbo(storage: LedgerStorage, states: LedgerStates) -> int:
    """Take all ledgers out of limbo although something may be missing, which is denied from then on; how many. The
    next checkpoint makes it durable. Blocks; OSError."""
    ledger_ids = ledgers_in_limbo(storage)
    for ledger_id in ledger_ids:
        state = states.get_or_create(ledger_id)
        state.limbo = False
        states.touch(state)
    return len(ledger_ids)
