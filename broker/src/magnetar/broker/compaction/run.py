"""One compaction of a topic: which message of each key is the last one, then a ledger with these.

The first pass reads what the compaction before has left, and the topic behind it; the second one reads the same again.
Both work in slices of time, whatever the topic and its batches hold. Facts: transactions-dedup-compaction part 3
(Pulsar: `AbstractTwoPhaseCompactor`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from magnetar.broker.compaction.compacted_cursor import CompactedCursor
from magnetar.broker.compaction.entries import TopicEntries
from magnetar.broker.compaction.latest import WHOLE, KeyRules, LatestKeys
from magnetar.broker.compaction.members import REMOVED_MEMBER, BatchMember, has_members, has_value, members_of
from magnetar.broker.compaction.output import CompactedOutput
from magnetar.broker.compaction.record import CompactionRecord
from magnetar.broker.slices import TimeSlice
from magnetar.core.clock import Clock
from magnetar.core.errors import Unavailable
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.limits import MIB
from magnetar.ledger.api import LedgerOptions, LedgerWriter
from magnetar.managed.entry import Entry
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.wire.pulsar.batch import decompressed_payload, with_payload
from magnetar.wire.pulsar.compacted import encode_compacted
from magnetar.wire.pulsar.errors import BadMetadata

READ_ENTRIES: Final = 100
"""Read at once, and written as one group."""

READ_BYTES: Final = 4 * MIB

MEMBERS_PER_LOOK: Final = 200
"""Messages of a batch between two looks at the clock: half a millisecond."""

UNPACKED_BESIDE_BYTES: Final = 512 * 1024
"""Larger payloads are packed and unpacked by another thread: zlib takes 20 ms for each megabyte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """The collaborators of a run."""

    ledger: ManagedLedger
    entries: TopicEntries
    rules: KeyRules
    partition: int
    """The topic's index, -1 for one without partitions."""
    read_seconds_max: float
    """How long one read may take."""
    clock: Clock
    options: Callable[[Position], LedgerOptions]
    """Of the ledger that holds what is left up to a position."""
    record: CompactionRecord = field(default_factory=CompactionRecord)


class CompactionRun:
    """Made for one run. `latest` is what the first pass has found."""

    def __init__(self, parts: RunParts) -> None:
        self._parts = parts
        self._turn = TimeSlice()
        self._writer: LedgerWriter | None = None
        self.latest = LatestKeys(parts.rules)

    async def run(self, end: Position) -> int:
        """Compact everything up to `end`. The id of the ledger that has what is left, closed.

        Failures of the ledger, of reads and `TooManyKeys` end the run. The ledger is the caller's to delete then."""
        last_left = await self._find_latest(end)
        output = CompactedOutput(self._parts.record, self._parts.clock)
        writer = await self._parts.ledger.create_other(self._parts.options(last_left), output)
        output.use(writer)
        try:
            await self._copy(last_left, output)
            await output.finish()
        except BaseException:
            await asyncio.shield(writer.abandon())
            raise
        return writer.ledger_id

    # --- the first pass

    async def _find_latest(self, end: Position) -> Position:
        """The last entry of which something is left, as far as that is known then; `end` when nothing is."""
        last_left: Position | None = None
        async with aclosing(self._read_up_to(end)) as groups:
            async for entries in groups:
                for entry in entries:
                    if await self._note(entry):
                        last_left = entry.position
                    if self._turn.over:
                        await self._turn.pause()
        return end if last_left is None else last_left

    async def _note(self, entry: Entry) -> bool:
        """Whether something of the entry is left for now."""
        latest, position = self.latest, entry.position
        if self._is_hidden(entry):
            latest.removed += 1
            return False
        metadata = entry.metadata()
        if not has_members(entry):
            valued = has_value(entry)
            event_time_ms = max(0, metadata.event_time_ms)
            return latest.note(position, WHOLE, metadata.partition_key, event_time_ms, has_value=valued)
        left = False
        try:
            async with aclosing(self._members(entry)) as members:
                async for index, member in members:
                    if not member.removed:
                        left |= latest.note(
                            position, index, member.key, member.event_time_ms, has_value=member.has_value
                        )
        except BadMetadata:
            return True  # The whole of it is kept.
        return left

    # --- the second pass

    async def _copy(self, last_left: Position, output: CompactedOutput) -> None:
        async with aclosing(self._read_up_to(last_left)) as groups:
            async for entries in groups:
                payloads = []
                for entry in entries:
                    kept = await self._kept(entry)
                    if kept is not None:
                        payloads.append(encode_compacted(entry.position, kept, self._parts.partition))
                    if self._turn.over:
                        await self._turn.pause()
                if payloads:
                    await output.add(payloads)

    async def _kept(self, entry: Entry) -> bytes | None:
        """The part of an entry that is kept, as it is to be stored; None when nothing is."""
        latest, position = self.latest, entry.position
        if self._is_hidden(entry):
            return None
        if not has_members(entry):
            return entry.data if latest.is_latest(position, WHOLE, entry.metadata().partition_key) else None
        stored: list[bytes] = []
        kept = changed = False
        try:
            async with aclosing(self._members(entry)) as members:
                async for index, member in members:
                    if not member.removed and latest.is_latest(position, index, member.key):
                        stored.append(member.stored)
                        kept = True
                    else:
                        stored.append(REMOVED_MEMBER)
                        changed |= not member.removed
            if kept and changed:
                payload = b"".join(stored)
                return await self._beside(len(payload), lambda: with_payload(entry.data, payload))
        except BadMetadata:
            return entry.data
        return entry.data if kept else None

    # --- both

    async def _read_up_to(self, end: Position) -> AsyncGenerator[list[Entry], None]:
        """Everything that the compaction before has left, and what came behind it, some entries at a time."""
        parts = self._parts
        inner = parts.ledger.new_non_durable_cursor("compaction", EARLIEST)
        cursor = CompactedCursor(parts.ledger, inner, EARLIEST)
        try:
            while True:
                try:
                    async with asyncio.timeout(parts.read_seconds_max):
                        entries = await cursor.read(READ_ENTRIES, READ_BYTES)
                except TimeoutError:
                    raise Unavailable(f"reading took longer than {parts.read_seconds_max} s") from None
                if not entries:
                    return
                ended = entries[-1].position >= end
                if ended:
                    entries = [entry for entry in entries if entry.position <= end]
                parts.record.bytes_read += sum(len(entry.data) for entry in entries)
                if entries:
                    yield entries
                if ended:
                    return
                # Entries in the cache come without waiting.
                await self._turn.pause()
        finally:
            await cursor.close()

    def _is_hidden(self, entry: Entry) -> bool:
        """Whether no client ever sees the entry; what nobody can read is such a one."""
        try:
            return self._parts.entries.hides(entry.metadata())
        except BadMetadata:
            return True

    async def _members(self, entry: Entry) -> AsyncGenerator[tuple[int, BatchMember], None]:
        """The messages of a batch with their indexes. `BadMetadata`."""
        metadata = entry.metadata()
        size_bytes = max(len(entry.data), metadata.uncompressed_size)
        body = await self._beside(size_bytes, lambda: decompressed_payload(entry.data))
        for index, member in enumerate(members_of(entry, body)):
            yield index, member
            if index % MEMBERS_PER_LOOK == MEMBERS_PER_LOOK - 1 and self._turn.over:
                await self._turn.pause()

    async def _beside(self, size_bytes: int, work: Callable[[], bytes]) -> bytes:
        """Do work on so many bytes, if they are many beside the loop."""
        return work() if size_bytes <= UNPACKED_BESIDE_BYTES else await asyncio.to_thread(work)
