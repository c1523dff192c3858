"""Makes a bookie in limbo whole again: what the metadata says it holds and it lacks comes from its peers.

BookKeeper: bookie/datainteg (DataIntegrityCheckImpl, EntryCopierImpl).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from magnetar.bookie.app import RunningBookie
from magnetar.bookie.autorecovery.entry_source import EntriesUnreadable, EntrySource
from magnetar.bookie.autorecovery.fragments import Segment, segments_of
from magnetar.bookie.autorecovery.replicator import open_segment_is_bad
from magnetar.bookie.limbo import Limbo, LimboStage, ledgers_in_limbo
from magnetar.core.errors import MagnetarError
from magnetar.core.limits import MIB
from magnetar.ledger.api import LedgerNotFound
from magnetar.ledger.bookie_connection import ADD_FLAG_HIGH_PRIORITY, ADD_FLAG_RECOVERY, BookieConnections
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.recovery_driver import codec_for
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError

log: Final = logging.getLogger(__name__)

ENTRIES_AT_A_TIME: Final = 100
"""As AutoRecovery copies (BookKeeper: rereplicationEntryBatchSize)."""
BYTES_AT_A_TIME: Final = 4 * MIB
"""Of one batch; one is in memory at a time."""
PROBLEMS_NAMED_MAX: Final = 5
"""In one log line."""
RETRY_SECONDS: Final = 60.0
"""Before ledgers are tried again whose entries nobody could give; bookies that are away may come back."""


class Healer:
    """Heals one bookie, ledger after ledger."""

    def __init__(self, running: RunningBookie, client: BookKeeperClient, connections: BookieConnections) -> None:
        """`connections` are those that the client uses; one to this bookie itself is never asked."""
        self._bookie_id = running.bookie_id
        self._bookie = running.bookie
        self._parts = running.parts
        self._limbo = Limbo(running.parts.directories)
        self._client = client
        self._connections = connections
        self.entries_fetched = 0
        self.problems: dict[int, str] = {}
        """Ledger → why it is in limbo still."""

    async def run(self, retry_seconds: float = RETRY_SECONDS) -> None:
        """Return when the bookie is whole; at once if it always was."""
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, self._limbo.stage) is not LimboStage.NONE:
            try:
                if await self.heal_once():
                    return
                named = [f"ledger {ledger_id}: {why}" for ledger_id, why in sorted(self.problems.items())]
                log.error("%d ledgers stay in limbo for now: %s", len(named), "; ".join(named[:PROBLEMS_NAMED_MAX]))
            except (OSError, ValueError) as error:
                log.error("the bookie cannot be healed for now: %s", error)  # noqa: TRY400  (no stack needed)
            await asyncio.sleep(retry_seconds)

    async def heal_once(self) -> bool:
        """Try all ledgers that are in limbo; whether the bookie is whole then. OSError, `ValueError`: the index."""
        loop = asyncio.get_running_loop()
        # What has left limbo is in memory only, until a checkpoint.
        await self._parts.checkpointer.checkpoint(self._parts.journals.marks)
        ledger_ids = await loop.run_in_executor(None, ledgers_in_limbo, self._parts.storage)
        self.problems = {}
        for ledger_id in ledger_ids:
            try:
                await self._heal(ledger_id)
            except (MagnetarError, OSError) as error:
                self.problems[ledger_id] = str(error)
        if self.problems or not await self._parts.checkpointer.checkpoint(self._parts.journals.marks):
            return False
        await loop.run_in_executor(None, self._limbo.end)
        log.warning("the bookie is whole again: %d ledgers, %d entries fetched", len(ledger_ids), self.entries_fetched)
        return True

    async def _heal(self, ledger_id: int) -> None:
        try:
            await self._fetch_missing(ledger_id)
        except LedgerNotFound:
            log.info("ledger %d was deleted meanwhile", ledger_id)
        state = self._parts.states.get_or_create(ledger_id)
        state.limbo = False
        self._parts.states.touch(state)

    async def _fetch_missing(self, ledger_id: int) -> None:
        metadata, _ = await self._client.metadata.read(ledger_id)
        if open_segment_is_bad(metadata, [self._bookie_id]):
            # Where it ends is known only once it is closed; its writer cannot go on with this bookie anyway.
            await (await self._client.open(ledger_id, password=metadata.password, recover=True)).close()
            metadata, _ = await self._client.metadata.read(ledger_id)
        stored = frozenset(await self._parts.storage.entry_ids(ledger_id))
        codec = codec_for(ledger_id, metadata)
        for segment in segments_of(metadata):
            if self._bookie_id not in segment.bookies or not segment.closed:
                continue
            own = segment.bookies.index(self._bookie_id)
            missing = [
                entry_id
                for entry_id in range(segment.first_entry_id, segment.last_entry_id + 1)
                if entry_id not in stored and segment.holds(own, entry_id)
            ]
            others = [index for index in range(len(segment.bookies)) if index != own]
            if missing and not others:
                raise EntriesUnreadable(ledger_id, missing[:5], "no other bookie ever had them")
            source = EntrySource(segment, others, codec, self._connections, BYTES_AT_A_TIME)
            await self._copy(source, segment, missing, ledger_id, codec.master_key)

    async def _copy(
        self, source: EntrySource, segment: Segment, missing: Sequence[int], ledger_id: int, master_key: bytes
    ) -> None:
        at = 0
        while at < len(missing):
            some = missing[at : at + ENTRIES_AT_A_TIME]
            run = len(some) if segment.striped else _run_length(some)
            found = await source.read(some[:run])
            await self._store(ledger_id, master_key, found)
            at += len(found)
            self.entries_fetched += len(found)

    async def _store(self, ledger_id: int, master_key: bytes, found: Sequence[tuple[int, bytes]]) -> None:
        told: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def done(code: int, ledger_id: int, entry_ids: Sequence[int]) -> None:
            del ledger_id, entry_ids
            if not told.done():
                told.set_result(code)

        entry_ids, entries = [entry_id for entry_id, _ in found], [entry for _, entry in found]
        flags = ADD_FLAG_RECOVERY | ADD_FLAG_HIGH_PRIORITY
        self._bookie.add_entries(ledger_id, master_key, entry_ids, entries, flags, done)
        code = await told
        if code != BookieCode.EOK:
            raise BookieError(BookieCode(code), f"entries of ledger {ledger_id} could not be stored")


def _run_length(entry_ids: Sequence[int]) -> int:
    """How many of them stand in a row."""
    return next((at for at in range(1, len(entry_ids)) if entry_ids[at] != entry_ids[at - 1] + 1), len(entry_ids))
