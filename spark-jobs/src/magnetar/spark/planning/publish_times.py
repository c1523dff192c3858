"""When single entries were published, for finding the place of a time."""

from __future__ import annotations

import logging
from typing import Final

from magnetar.spark.entries import EntrySource, Hole
from magnetar.spark.slices import LedgerRange
from magnetar.spark.topics import TopicState
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.metadata import skim

logger: Final = logging.getLogger(__name__)


class PublishTimes:
    """Reads entries of one topic one by one."""

    def __init__(self, state: TopicState, source: EntrySource) -> None:
        self._ledgers = {ledger.ledger_id: ledger for ledger in state.ledgers}
        self._source = source

    async def of(self, ledger_id: int, entry_id: int) -> int | None:
        """In milliseconds; None when the entry cannot be had or says nothing."""
        ledger = self._ledgers[ledger_id]
        one = LedgerRange(
            ledger_id=ledger_id,
            first_entry_id=entry_id,
            last_entry_id=entry_id,
            size_bytes=ledger.size_bytes // max(1, ledger.entries),
            metadata=ledger.metadata,
        )
        found: int | None = None
        async for block in self._source.blocks((one,), _passed_over):
            for data in block.entries:
                try:
                    found = skim(data).publish_time_ms
                except BadMetadata as error:
                    logger.debug("entry %d:%d has no publish time: %s", ledger_id, entry_id, error)
        return found

    async def close(self) -> None:
        """Let go of the source."""
        await self._source.close()


def _passed_over(hole: Hole) -> None:
    """Whoever reads these entries reports it."""
    logger.debug("no publish time: %s", hole)
