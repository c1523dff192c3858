"""Carries out what `recovery` decides: fences, reads on, writes back, closes."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Collection, Sequence
from typing import Final

from magnetar.core.errors import MagnetarError
from magnetar.ledger.api import LedgerUnauthorized, LedgerUnavailable, unauthorized
from magnetar.ledger.append_pipeline import AppendPipeline
from magnetar.ledger.appender import Appender
from magnetar.ledger.bookie_client.bookie_connection import (
    ADD_FLAG_HIGH_PRIORITY,
    ADD_FLAG_RECOVERY,
    LAST_ADD_CONFIRMED,
    READ_FLAG_FENCE,
    READ_FLAG_NONE,
)
from magnetar.ledger.ensemble_change import wait_until_settled
from magnetar.ledger.entry_reader import DENIALS
from magnetar.ledger.recovery import EntrySearch, EntryVerdict, LastConfirmedRound
from magnetar.ledger.striping import write_set
from magnetar.ledger.writer import LedgerParts, closed_metadata
from magnetar.metadata.store import NodeNotFound, VersionConflict
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.bookkeeper.entry import DigestMismatch, EntryCodec, header
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState

RECOVERY_ATTEMPTS_MAX: Final = 10
"""Times that a recovery starts over because the metadata changed under it."""

READ_AHEAD_ENTRIES: Final = 16
"""Entries looked for at a time; a writer dies with few unconfirmed ones, and all but the last window are needed."""


class LastConfirmedQuery:
    """Asks the last ensemble of a ledger for its last entries."""

    def __init__(self, metadata: LedgerMetadata, codec: EntryCodec, parts: LedgerParts) -> None:
        self._metadata = metadata
        self._codec = codec
        self._parts = parts
        self.round = LastConfirmedRound(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)

    async def run(self, *, fence: bool) -> None:
        """Ask all; returns when the answers give coverage, or when all have answered or failed.

        Raises `LedgerUnauthorized`."""
        ensemble = self._metadata.ensembles[-1][1]
        tasks = [asyncio.ensure_future(self._ask(index, bookie, fence)) for index, bookie in enumerate(ensemble)]
        try:
            for finished in asyncio.as_completed(tasks):
                await finished
                if self.round.covered:
                    return
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def last_add_confirmed(self) -> int:
        """The highest LAC heard of; never before the last segment, whose begin proves all before it."""
        return max(self.round.last_add_confirmed, self._metadata.ensembles[-1][0] - 1)

    async def _ask(self, index: int, bookie_id: str, fence: bool) -> None:
        connection = self._parts.connections.connection(bookie_id)
        flags = READ_FLAG_FENCE if fence else READ_FLAG_NONE
        key = self._codec.master_key if fence else b""
        try:
            entry = await connection.read_entry(self._codec.ledger_id, LAST_ADD_CONFIRMED, flags, key)
            _, _, last_add_confirmed, length_bytes = self._codec.check(entry)
        except DigestMismatch:
            return
        except BookieError as error:
            if error.code in DENIALS:
                self.round.answered(index)
            elif error.code is BookieCode.EUA:
                raise unauthorized(bookie_id, self._codec.ledger_id) from error
            return
        self.round.answered_with(index, last_add_confirmed, length_bytes)


class RecoveryWriteBack:
    """Writes recovered entries back; ensemble changes stay here until the ledger is closed."""

    def __init__(self, metadata: LedgerMetadata, codec: EntryCodec, parts: LedgerParts, last_confirmed: int) -> None:
        self.metadata = metadata
        self._parts = parts
        flags = ADD_FLAG_RECOVERY | ADD_FLAG_HIGH_PRIORITY
        self.pipeline = AppendPipeline(
            None,
            self,
            Appender(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum, last_confirmed),
            metadata.ensembles[-1][1],
            parts.connections,
            parts.pipeline_context(codec, flags),
        )

    async def change_ensemble(
        self, first_entry_id: int, ensemble: Sequence[str], failed: Sequence[int], lost: Collection[str]
    ) -> list[str]:
        """The pipeline: other bookies are needed from this entry on."""
        metadata = self.metadata
        changed = self._parts.chooser.replacement(
            ensemble, failed, lost, metadata.write_quorum, metadata.custom_metadata
        )
        self.metadata = self.metadata.with_ensemble(first_entry_id, changed)
        return changed

    async def write(self, entries: Sequence[bytes]) -> None:
        """Store the next entries on an ack quorum. Raises what the pipeline failed with."""
        if self.pipeline.error is None:
            self.pipeline.push(entries, sum(map(len, entries)))
            await wait_until_settled(self.pipeline)
        if self.pipeline.error is not None:
            raise self.pipeline.error


class LedgerRecovery:
    """Recovers one ledger."""

    def __init__(self, ledger_id: int, password: bytes, parts: LedgerParts) -> None:
        self._ledger_id = ledger_id
        self._password = password
        self._parts = parts

    async def run(self) -> LedgerMetadata:
        """Close the ledger at its true end and return its metadata.

        Raises `LedgerNotFound`, `LedgerUnauthorized`, `Unavailable`; it may be run again then."""
        for _ in range(RECOVERY_ATTEMPTS_MAX):
            metadata, version = await self._parts.metadata.read(self._ledger_id)
            check_password(self._ledger_id, metadata, self._password)
            if metadata.state is LedgerState.CLOSED:
                return metadata
            try:
                if metadata.state is LedgerState.OPEN:
                    metadata = dataclasses.replace(metadata, state=LedgerState.IN_RECOVERY)
                    version = await self._parts.metadata.write(self._ledger_id, metadata, version)
                closed = await self._recover(metadata)
                registrations = self._parts.chooser.registrations(_new_bookies(metadata, closed))
                await self._parts.metadata.write(self._ledger_id, closed, version, registrations)
            except VersionConflict:
                # Another recovery was faster, the writer closed after all, or AutoRecovery replaced a bookie.
                continue
            except NodeNotFound as missing:
                # A bookie that took entries here has begun to leave: another one has to take them.
                await self._parts.chooser.another_choice(missing)
                continue
            return closed
        raise LedgerUnavailable(f"the metadata of ledger {self._ledger_id} kept changing during its recovery")

    async def _recover(self, metadata: LedgerMetadata) -> LedgerMetadata:
        codec = codec_for(self._ledger_id, metadata)
        query = LastConfirmedQuery(metadata, codec, self._parts)
        await query.run(fence=True)
        if not query.round.covered:
            raise LedgerUnavailable(
                f"only {query.round.answers} of the last bookies of ledger {self._ledger_id} answered; "
                "the others could still confirm entries"
            )
        last = query.last_add_confirmed
        write_back = RecoveryWriteBack(metadata, codec, self._parts, last)
        length_bytes = -1
        try:
            while True:
                found = await self._read_on(last + 1, metadata, codec)
                if found:
                    await write_back.write(found)
                    last += len(found)
                    length_bytes = header(found[-1])[3]
                if len(found) < READ_AHEAD_ENTRIES:
                    break
        finally:
            await write_back.pipeline.close()
        if length_bytes < 0:
            length_bytes = await self._length_at(last, metadata, codec, query)
        return closed_metadata(write_back.metadata, last, length_bytes)

    async def _length_at(
        self, last_entry_id: int, metadata: LedgerMetadata, codec: EntryCodec, query: LastConfirmedQuery
    ) -> int:
        """The ledger's length up to an entry that was confirmed before the recovery."""
        if last_entry_id < 0:
            return 0
        reader = self._parts.entry_reader(codec)
        try:
            return header(await reader.read_whole_entry(metadata, last_entry_id))[3]
        except MagnetarError:
            # The entry is safe on bookies that are away now. What was heard is close, and only statistics use it.
            return query.round.length_bytes

    async def _read_on(self, first_entry_id: int, metadata: LedgerMetadata, codec: EntryCodec) -> list[bytes]:
        """The entries from the first one on that must be kept, at most one window; ends before the first absent."""
        entry_ids = range(first_entry_id, first_entry_id + READ_AHEAD_ENTRIES)
        searches = await asyncio.gather(
            *(self._search(entry_id, metadata, codec) for entry_id in entry_ids), return_exceptions=True
        )
        found: list[bytes] = []
        for result in searches:
            if isinstance(result, BaseException):
                raise result
            if result is None:
                break
            found.append(result)
        return found

    async def _search(self, entry_id: int, metadata: LedgerMetadata, codec: EntryCodec) -> bytes | None:
        """The entry, or None when enough bookies deny it. Raises `LedgerUnavailable` when neither is known."""
        ensemble = metadata.ensembles[-1][1]
        search = EntrySearch(metadata.write_quorum, metadata.ack_quorum)
        indexes = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
        tasks = [asyncio.ensure_future(self._ask(ensemble[index], entry_id, codec, search)) for index in indexes]
        try:
            for finished in asyncio.as_completed(tasks):
                await finished
                # Others than this one may have finished as well: what counts is the state of the search.
                if search.verdict is EntryVerdict.FOUND:
                    return search.entry
                if search.verdict is EntryVerdict.ABSENT:
                    return None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        raise LedgerUnavailable(f"too few bookies know whether entry {self._ledger_id}:{entry_id} was written")

    async def _ask(self, bookie_id: str, entry_id: int, codec: EntryCodec, search: EntrySearch) -> None:
        try:
            # Fencing again: a bookie that was away during the first round must not take the writer's entries now.
            connection = self._parts.connections.connection(bookie_id)
            entry = await connection.read_entry(self._ledger_id, entry_id, READ_FLAG_FENCE, codec.master_key)
            codec.decode(entry, entry_id)
        except BookieError as error:
            if error.code in DENIALS:
                search.denied()
            else:
                search.failed()
            return
        except DigestMismatch:
            search.failed()
            return
        search.found(entry)


def _new_bookies(before: LedgerMetadata, after: LedgerMetadata) -> list[str]:
    """Those that only the later metadata names."""
    named = {bookie for _, ensemble in before.ensembles for bookie in ensemble}
    return sorted({bookie for _, ensemble in after.ensembles for bookie in ensemble} - named)


def check_password(ledger_id: int, metadata: LedgerMetadata, password: bytes) -> None:
    """`LedgerUnauthorized` unless it is the ledger's."""
    if metadata.digest_type is not None and metadata.password != password:
        raise LedgerUnauthorized(f"the password of ledger {ledger_id} is another one")


def codec_for(ledger_id: int, metadata: LedgerMetadata) -> EntryCodec:
    """The codec that the metadata names; format 1 named none and used BookKeeper's default."""
    return EntryCodec(ledger_id, metadata.digest_type or "CRC32", metadata.password)
