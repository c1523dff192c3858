"""How far a ledger that somebody writes goes, without fencing that writer.

Each entry carries the last add confirmed (LAC) that its writer knew when sending it. So what bookies know lags: by the
last entry when entries come one by one, by all that were on their way together when they come in a stream. It catches
up when the writer adds another entry, or closes the ledger (BookKeeper: client/ReadLastConfirmedOp).
"""

from __future__ import annotations

import asyncio

from magnetar.core.ids import NO_ENTRY
from magnetar.ledger.bookie_client.bookie_connection import LAST_ADD_CONFIRMED, ReadOnlyBookies
from magnetar.ledger.entry_reader import DENIALS
from magnetar.ledger.recovery import LastConfirmedRound
from magnetar.wire.bookkeeper.codes import BookieError
from magnetar.wire.bookkeeper.entry import DigestMismatch, EntryCodec
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata


class LastAnswers(LastConfirmedRound):
    """What bookies say of a ledger's last entries; `covered` tells whether enough of them do."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        super().__init__(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        self.last_entry_id = NO_ENTRY
        """The last entry that any of them has, which perhaps is not confirmed yet, or never will be."""
        self.last_payload = b""
        """That entry's."""


async def ask_last_confirmed(
    ledger_id: int,
    metadata: LedgerMetadata,
    bookies: ReadOnlyBookies,
    timeout_seconds: float,
    *,
    all_bookies: bool = False,
) -> LastAnswers:
    """What the last ensemble says, as far as it answers in time: enough of them, or `all_bookies`.

    `last_add_confirmed` is never before the last segment, whose beginning proves all before it."""
    ensemble = metadata.ensembles[-1][1]
    codec = EntryCodec(ledger_id, metadata.digest_type or "CRC32", metadata.password)
    found = LastAnswers(metadata)
    tasks = [asyncio.ensure_future(_ask(index, each, codec, bookies, found)) for index, each in enumerate(ensemble)]
    try:
        async with asyncio.timeout(timeout_seconds):
            for finished in asyncio.as_completed(tasks):
                await finished
                if found.covered and not all_bookies:
                    break
    except TimeoutError:
        pass  # The silent ones are not counted as having answered.
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    found.last_add_confirmed = max(found.last_add_confirmed, metadata.ensembles[-1][0] - 1)
    return found


async def _ask(index: int, bookie_id: str, codec: EntryCodec, bookies: ReadOnlyBookies, found: LastAnswers) -> None:
    try:
        entry = await bookies.connection(bookie_id).read_entry(codec.ledger_id, LAST_ADD_CONFIRMED)
        _, entry_id, last_add_confirmed, length_bytes = codec.check(entry)
    except DigestMismatch:
        return
    except BookieError as error:
        if error.code in DENIALS:
            found.answered(index)
        return
    found.answered_with(index, last_add_confirmed, length_bytes)
    if entry_id > found.last_entry_id:
        found.last_entry_id = entry_id
        found.last_payload = entry[codec.overhead_bytes :]
