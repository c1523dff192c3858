"""Makes a bookie in limbo whole again: what the metadata says it holds and it lacks comes from its peers.

BookKeeper: bookie/datainteg (DataIntegrityCheckImpl, EntryCopierImpl).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from magnetar.bookie.app import RunningBookie
from magnetar.bookie.autorecovery.fragments import segments_of
from magnetar.bookie.autorecovery.replication.replicator import open_segment_is_bad
from magnetar.bookie.autorecovery.replication.segment_reader import EntriesUnreadable, Reading, SegmentReader
from magnetar.bookie.integrity.limbo import LimboStage, Unhealed, ledgers_in_limbo
from magnetar.core.errors import MagnetarError
from magnetar.core.limits import MIB
from magnetar.ledger.api import LedgerNotFound
from magnetar.ledger.bookie_client.bookie_connection import ADD_FLAG_HIGH_PRIORITY, ADD_FLAG_RECOVERY, BookieConnections
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.recovery_driver import codec_for
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.bookkeeper.entry import EntryCodec

logger: Final = logging.getLogger(__name__)

ENTRIES_AT_A_TIME: Final = 100
"""Entries fetched from peers in one batch: as many as AutoRecovery copies (rereplicationEntryBatchSize)."""
BYTES_AT_A_TIME: Final = 4 * MIB
"""The size of one batch. One batch is in memory at a time."""
PROBLEMS_NAMED_MAX: Final = 5
"""Ledgers that one log line names with what keeps them from being healed; more are only counted."""
ENTRIES_NAMED_MAX: Final = 5
"""Entries named of one ledger; the first ones tell where to look."""
RETRY_SECONDS: Final = 60.0
"""Before ledgers are tried again whose entries nobody could give; bookies that are away may come back."""
RETRY_SHARE: Final = 0.1
"""The greatest share of time spent on trying again, as that asks peers for each entry that they did not give."""
UNREADABLE_MAX: Final = 10_000
"""Entries of a ledger that nobody gives, after which the rest of it waits for another time: some seconds' work."""


class Healer:
    """Heals one bookie, ledger after ledger."""

    def __init__(self, running: RunningBookie, client: BookKeeperClient, connections: BookieConnections) -> None:
        """`connections` are those that the client uses; one to this bookie itself is never asked."""
        self._bookie_id = running.bookie_id
        self._bookie = running.bookie
        self._parts = running.parts
        self._limbo = running.parts.limbo
        self._client = client
        self._connections = connections

    async def run(self, retry_seconds: float = RETRY_SECONDS) -> None:
        """Return when the bookie is whole; at once if it always was."""
        loop = asyncio.get_running_loop()
        while self._limbo.stage is not LimboStage.NONE:
            began = loop.time()
            try:
                if await self.heal_once():
                    return
                state = self._limbo.state()
                named = [f"ledger {ledger_id}: {why}" for ledger_id, why in state.problems[:PROBLEMS_NAMED_MAX]]
                logger.error("%d ledgers stay in limbo for now: %s", state.ledgers, "; ".join(named))
            except (OSError, ValueError) as error:
                logger.error("the bookie cannot be healed for now: %s", error)  # noqa: TRY400  (no stack needed)
            await asyncio.sleep(max(retry_seconds, (loop.time() - began) / RETRY_SHARE))

    async def heal_once(self) -> bool:
        """Try all ledgers that are in limbo; whether the bookie is whole then. OSError, `ValueError`: the index."""
        loop = asyncio.get_running_loop()
        # What has left limbo is in memory only, until a checkpoint.
        await self._parts.checkpointer.checkpoint(self._parts.journals.marks)
        limbo = self._limbo
        ledger_ids = await loop.run_in_executor(None, ledgers_in_limbo, self._parts.storage)
        limbo.ledgers = len(ledger_ids)
        limbo.unhealed = {
            ledger_id: limbo.unhealed[ledger_id] for ledger_id in ledger_ids if ledger_id in limbo.unhealed
        }
        for ledger_id in ledger_ids:
            try:
                unhealed = await self._heal(ledger_id)
            except (MagnetarError, OSError) as error:
                unhealed = Unhealed(str(error))
            if unhealed is not None:
                limbo.unhealed[ledger_id] = unhealed
            else:
                limbo.unhealed.pop(ledger_id, None)
                limbo.ledgers -= 1
        if limbo.unhealed or not await self._parts.checkpointer.checkpoint(self._parts.journals.marks):
            return False
        await loop.run_in_executor(None, limbo.end)
        logger.warning(
            "the bookie is whole again: %d ledgers, %d entries fetched", len(ledger_ids), limbo.entries_fetched
        )
        return True

    async def _heal(self, ledger_id: int) -> Unhealed | None:
        try:
            missed = await self._fetch_missing(ledger_id)
        except LedgerNotFound:
            logger.info("ledger %d was deleted meanwhile", ledger_id)
            missed = Reading()
        if missed.unreadable:
            unreadable = EntriesUnreadable(ledger_id, missed.unreadable[:ENTRIES_NAMED_MAX], missed.cause)
            lost = f"{missed.denied} of {len(missed.unreadable)} are lost for certain"
            return Unhealed(f"{unreadable}; {lost}", missed.denied)
        self._parts.states.leave_limbo(ledger_id)
        return None

    async def _fetch_missing(self, ledger_id: int) -> Reading:
        """Fetch what can be had. Gives what cannot; `LedgerNotFound`, `Unavailable`, OSError."""
        missed = Reading()
        metadata, _ = await self._client.metadata.read(ledger_id)
        stored = frozenset(await self._parts.storage.entry_ids(ledger_id))
        if open_segment_is_bad(metadata, [self._bookie_id]):
            # Where it ends is known only once it is closed; its writer cannot go on with this bookie anyway.
            await (await self._client.open(ledger_id, password=metadata.password, recover=True)).close()
            metadata, _ = await self._client.metadata.read(ledger_id)
            before, stored = stored, frozenset(await self._parts.storage.entry_ids(ledger_id))
            self._limbo.entries_fetched += len(stored - before)
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
            source = SegmentReader(segment, others, codec, self._connections, BYTES_AT_A_TIME)
            await self._copy(source, codec, missing, missed)
        return missed

    async def _copy(self, source: SegmentReader, codec: EntryCodec, missing: Sequence[int], missed: Reading) -> None:
        at = 0
        while at < len(missing) and len(missed.unreadable) < UNREADABLE_MAX:
            some = missing[at : at + ENTRIES_AT_A_TIME]
            reading = await source.look(some if source.striped else some[: _run_length(some)])
            if reading.entries:
                await self._store(codec.ledger_id, codec.master_key, reading.entries)
            at += len(reading.entries) + len(reading.unreadable)
            self._limbo.entries_fetched += len(reading.entries)
            missed.unreadable += reading.unreadable
            missed.denied += reading.denied
            missed.cause = missed.cause or reading.cause

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
