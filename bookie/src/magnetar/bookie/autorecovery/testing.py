"""A cluster in memory for tests of replication: bookies, metadata, a client, and what a ledger's copies are like."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Final

from magnetar.bookie.autorecovery.fragments import segments_of
from magnetar.bookie.autorecovery.replication.replicator import LedgerReplicator
from magnetar.bookie.autorecovery.replication.settings import DEFAULT_REPLICATION_SETTINGS, ReplicationSettings
from magnetar.core.clock import Clock, SystemClock
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.ledger.testing import MemoryBookies, RecordingListener
from magnetar.ledger.writer import OpenLedgerWriter
from magnetar.metadata.memory import MemoryMetadataStore, MemoryTree
from magnetar.metadata.store import MetadataStore
from magnetar.wire.bookkeeper.entry import EntryCodec, header
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata

QUICK = LedgerClientSettings(add_timeout_seconds=0.2, quarantine_seconds=0.0)

_SYSTEM_CLOCK: Final = SystemClock()


class MemoryBookieCluster:
    """Some bookies and one client."""

    def __init__(
        self,
        bookies: int | MemoryBookies,
        store: MetadataStore | None = None,
        seed: int = 7,
        clock: Clock = _SYSTEM_CLOCK,
    ) -> None:
        self.store = store or MemoryMetadataStore(MemoryTree(clock))
        self.bookies = MemoryBookies(bookies) if isinstance(bookies, int) else bookies
        self.rng = random.Random(seed)  # noqa: S311  (tests repeat their choices)
        self.clock = clock
        self.client = BookKeeperClient(self.store, self.bookies, clock=clock, rng=self.rng, settings=QUICK)

    def replicator(self, settings: ReplicationSettings = DEFAULT_REPLICATION_SETTINGS) -> LedgerReplicator:
        """A replicator on this client."""
        return LedgerReplicator(self.client, self.bookies, self.clock, self.rng, settings)

    async def open_ledger(
        self, options: LedgerOptions, payloads: Sequence[bytes]
    ) -> tuple[OpenLedgerWriter, RecordingListener]:
        """A ledger with these confirmed entries, still open."""
        listener = RecordingListener()
        writer = await self.client.create(options, listener)
        if payloads:
            writer.append(payloads)
            await listener.until_confirmed(len(payloads) - 1)
        return writer, listener

    async def closed_ledger(self, options: LedgerOptions, payloads: Sequence[bytes]) -> int:
        """A closed ledger with these entries; its id."""
        writer, _ = await self.open_ledger(options, payloads)
        await writer.close()
        return writer.ledger_id

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        """The ledger's metadata as it is now."""
        return (await self.client.metadata.read(ledger_id))[0]

    async def lacking(self, ledger_id: int, except_on: Collection[str] = ()) -> list[tuple[int, str]]:
        """(entry, bookie) of every replica that the metadata of closed segments promises and that is not there
        undamaged, or is on a bookie in `except_on`."""
        metadata = await self.metadata(ledger_id)
        codec = EntryCodec(ledger_id, metadata.digest_type or "CRC32", metadata.password)
        found: list[tuple[int, str]] = []
        for segment in segments_of(metadata):
            if not segment.closed:
                continue
            for entry_id in range(segment.first_entry_id, segment.last_entry_id + 1):
                for index, bookie_id in enumerate(segment.bookies):
                    good = bookie_id not in except_on and self._has(bookie_id, codec, entry_id)
                    if segment.holds(index, entry_id) and not good:
                        found.append((entry_id, bookie_id))
        return found

    def _has(self, bookie_id: str, codec: EntryCodec, entry_id: int) -> bool:
        ledger = self.bookies.bookies[bookie_id].ledgers.get(codec.ledger_id)
        entry = None if ledger is None else ledger.entries.get(entry_id)
        if entry is None or header(entry)[1] != entry_id:
            return False
        codec.decode(entry, entry_id)
        return True

    def drop(self, bookie_id: str, ledger_id: int, entry_ids: Collection[int]) -> None:
        """Have a bookie lose entries."""
        for entry_id in entry_ids:
            del self.bookies.bookies[bookie_id].ledgers[ledger_id].entries[entry_id]

    def damage(self, bookie_id: str, ledger_id: int, entry_id: int) -> None:
        """Turn a bit of a bookie's copy over."""
        entries = self.bookies.bookies[bookie_id].ledgers[ledger_id].entries
        entry = bytearray(entries[entry_id])
        entry[-1] ^= 1
        entries[entry_id] = bytes(entry)

    async def close(self) -> None:
        """Close client and store."""
        await self.client.close()
        await self.store.close()
