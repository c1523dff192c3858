"""Entries that are whole messages by themselves, nearly all of them.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import Final

from magnetar.spark.entries import EntryBlock, WholeEntry
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.metadata import ABSENT, MessageMetadataView, skim

ALL_TIMES: Final = (0, (1 << 64) - 1)


class PlainEntries:
    """Tells them from those that need more: markers, parts of transactions, chunks."""

    def __init__(self, publish_time_ms: tuple[int, int]) -> None:
        """`publish_time_ms` is from, to, both included: the rest is left out."""
        self._publish_time_ms_min: int = publish_time_ms[0]
        self._publish_time_ms_max: int = publish_time_ms[1]
        self.rare: WholeEntry | None = None
        """The entry at which `take` stopped."""

    def take(self, block: EntryBlock, at: int, whole: list[WholeEntry], *, holding: bool) -> int:
        """Append what needs nothing more than a look at its metadata. Returns where to go on: at the end, or behind an
        entry that needs more and then is `rare`. `holding`: entries wait for a transaction, so that all need more."""
        ledger_id = block.ledger_id
        entry_ids = block.entry_ids
        entries = block.entries
        time_min, time_max = self._publish_time_ms_min, self._publish_time_ms_max
        for index in range(at, len(entries)):
            data = entries[index]
            try:
                view = skim(data)
            except BadMetadata as error:
                self.rare = WholeEntry(ledger_id, entry_ids[index], MessageMetadataView(), data, None, str(error))
                return index + 1
            if holding or view.marker_type != ABSENT or view.txnid_most_bits != ABSENT or view.num_chunks > 1:
                self.rare = WholeEntry(ledger_id, entry_ids[index], view, data)
                return index + 1
            if time_min <= view.publish_time_ms <= time_max:
                whole.append(WholeEntry(ledger_id, entry_ids[index], view, data))
        self.rare = None
        return len(entries)

    def in_time(self, entries: list[WholeEntry]) -> list[WholeEntry]:
        """The entries of the wanted times, and those that cannot be read."""
        time_min, time_max = self._publish_time_ms_min, self._publish_time_ms_max
        return [each for each in entries if each.broken or time_min <= each.view.publish_time_ms <= time_max]
