"""A slice's stored entries become whole messages, in the order of the topic."""

from __future__ import annotations

from magnetar.spark.assembly.chunks import ChunkJoiner, is_chunk
from magnetar.spark.assembly.compaction import unwrapped
from magnetar.spark.assembly.neighbours import DEFAULT_BOUNDS, Bounds, EntryWalk, Neighbours
from magnetar.spark.assembly.plain_entries import ALL_TIMES, PlainEntries
from magnetar.spark.assembly.transactions import TransactionGate
from magnetar.spark.entries import EntryBlock, WholeEntry
from magnetar.spark.slices import Slice
from magnetar.wire.pulsar.metadata import ABSENT


class EntryAssembler:
    """Leaves out markers and aborted transactions, joins chunks, undoes compaction. One for each slice.

    All slices of a topic together give each message once: a chunked message is of the slice that its last chunk is in.
    What cannot be made whole is handed on with `broken` set. Where batches are cut at the slice's ends is not looked
    at: that is up to who decodes."""

    def __init__(
        self,
        slice_: Slice,
        neighbours: Neighbours,
        *,
        filtered_by_broker: bool = False,
        publish_time_ms: tuple[int, int] = ALL_TIMES,
        bounds: Bounds = DEFAULT_BOUNDS,
    ) -> None:
        """`filtered_by_broker`: aborted transactions are left out already, and their markers with them.

        `publish_time_ms` is from, to, both included: the rest is left out (a batch has one publish time)."""
        self._slice = slice_
        self._filtered_by_broker = filtered_by_broker
        self._plain = PlainEntries(publish_time_ms)
        first = (slice_.ranges[0].ledger_id, slice_.ranges[0].first_entry_id) if slice_.ranges else (0, 0)
        before = EntryWalk(neighbours, bounds, (first[0], first[1] - 1), forward=False)
        self._chunks = ChunkJoiner(before, bounds)
        self._gate = TransactionGate(neighbours, bounds, first)

    async def feed(self, block: EntryBlock) -> list[WholeEntry]:
        """Take the slice's next entries in; the messages that are whole with them. Raises what neighbours raise."""
        if self._slice.compacted:
            return self._plain.in_time(unwrapped(block, self._slice))
        whole: list[WholeEntry] = []
        count = len(block.entries)
        at = 0
        while at < count:
            at = self._plain.take(block, at, whole, holding=self._gate.holding)
            if self._plain.rare is not None:
                whole += await self._dealt_with(self._plain.rare)
        return whole

    async def finish(self) -> list[WholeEntry]:
        """The slice is at its end: the messages that waited for a transaction's end. Chunks whose last one is not of
        this slice are forgotten."""
        if not self._gate.holding:
            return []
        last = self._slice.ranges[-1]
        return await self._joined(await self._gate.finish((last.ledger_id, last.last_entry_id + 1)))

    async def continue_through_broker(self) -> list[WholeEntry]:
        """What is fed from here on, and what neighbours read, comes from a broker, where it came from bookies before:
        the messages that waited for a transaction's end. A broker gives no markers, but only what is committed."""
        self._filtered_by_broker = True
        return await self._joined(await self._gate.ask_broker())

    async def _dealt_with(self, entry: WholeEntry) -> list[WholeEntry]:
        if entry.view.marker_type != ABSENT:
            return await self._joined(self._gate.marker(entry.view))
        if self._filtered_by_broker:
            return await self._joined([entry])
        return await self._joined(await self._gate.entry(entry))

    async def _joined(self, passed: list[WholeEntry]) -> list[WholeEntry]:
        whole: list[WholeEntry] = []
        for entry in passed:
            if entry.broken or not is_chunk(entry.view):
                whole.append(entry)
                continue
            message = await self._chunks.add(entry)
            if message is not None:
                whole.append(message)
        return self._plain.in_time(whole)
