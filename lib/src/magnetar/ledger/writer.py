"""A ledger that this process writes: appends, ensemble changes in the metadata, the close."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Sequence
from typing import Final

from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.core.ids import NO_ENTRY
from magnetar.ledger.api import (
    EntryNotFound,
    LedgerClosed,
    LedgerFenced,
    LedgerListener,
    LedgerNotFound,
    LedgerUnavailable,
)
from magnetar.ledger.append_pipeline import AppendPipeline, PipelineContext, unavailable
from magnetar.ledger.appender import Appender
from magnetar.ledger.bookie_chooser import BookieChooser
from magnetar.ledger.bookie_connection import ADD_FLAG_NONE, BookieConnections
from magnetar.ledger.entry_reader import EntryReader
from magnetar.ledger.metadata_ops import LedgerMetadataOps
from magnetar.ledger.reader import check_range
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.metadata.store import VersionConflict
from magnetar.wire.bookkeeper.codes import BookieCode
from magnetar.wire.bookkeeper.entry import EntryCodec, header
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState

CONFLICTS_MAX: Final = 20
"""Times that one metadata update is tried again because somebody else (AutoRecovery) was faster."""

logger: Final = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True, kw_only=True)
class LedgerParts:
    """What readers and writers of one client share."""

    connections: BookieConnections
    metadata: LedgerMetadataOps
    chooser: BookieChooser
    clock: Clock
    settings: LedgerClientSettings

    def entry_reader(self, codec: EntryCodec) -> EntryReader:
        """Reads of one ledger."""
        return EntryReader(codec, self.connections, self.chooser, self.metadata, self.settings)

    def bookie_failed(self, ledger_id: int, bookie_id: str, code: BookieCode) -> None:
        """Avoid the bookie for a while."""
        self.chooser.report_failure(bookie_id)
        logger.warning("bookie %s failed an add of ledger %d: %s", bookie_id, ledger_id, code.name)

    def pipeline_context(self, ledger_id: int, master_key: bytes, add_flags: int) -> PipelineContext:
        """What the adds of one ledger have in common."""
        return PipelineContext(
            ledger_id,
            master_key,
            add_flags,
            add_timeout_seconds=self.settings.add_timeout_seconds,
            change_pause_seconds=self.settings.change_pause_seconds,
            clock=self.clock,
            report=self.bookie_failed,
        )


def closed_metadata(metadata: LedgerMetadata, last_entry_id: int, length_bytes: int) -> LedgerMetadata:
    """The metadata closed at an entry; a last segment that got no entry is left out, as BookKeeper does."""
    ensembles = metadata.ensembles
    if len(ensembles) > 1 and ensembles[-1][0] > last_entry_id:
        ensembles = ensembles[:-1]
    return dataclasses.replace(
        metadata,
        ensembles=ensembles,
        state=LedgerState.CLOSED,
        last_entry_id=last_entry_id,
        length_bytes=length_bytes,
    )


class OpenLedgerWriter:
    """A `LedgerWriter`."""

    __slots__ = (
        "_closed",
        "_closing",
        "_codec",
        "_entries",
        "_error",
        "_length_confirmed_bytes",
        "_listener",
        "_metadata",
        "_parts",
        "_pipeline",
        "_version",
        "last_add_confirmed",
        "last_add_pushed",
        "ledger_id",
        "length_bytes",
    )

    def __init__(
        self, ledger_id: int, metadata: LedgerMetadata, version: int, parts: LedgerParts, listener: LedgerListener
    ) -> None:
        assert metadata.digest_type is not None
        self.ledger_id = ledger_id
        self.last_add_confirmed = NO_ENTRY
        self.last_add_pushed = NO_ENTRY
        self.length_bytes = 0
        self._metadata = metadata
        self._version = version
        self._parts = parts
        self._listener = listener
        self._codec = EntryCodec(ledger_id, metadata.digest_type, metadata.password)
        self._entries = parts.entry_reader(self._codec)
        self._error: MagnetarError | None = None
        self._length_confirmed_bytes = 0
        self._closing = False
        self._closed = False
        self._pipeline = AppendPipeline(
            self,
            Appender(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum),
            metadata.ensembles[-1][1],
            parts.connections,
            parts.pipeline_context(ledger_id, self._codec.master_key, ADD_FLAG_NONE),
        )

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer last wrote it."""
        return self._metadata

    @property
    def finished(self) -> bool:
        """Whether nothing will come of this writer any more."""
        return self._closed or self._error is not None

    def append(self, payloads: Sequence[bytes]) -> int:
        """Send entries on their way; returns the first one's id, the rest follow.

        Raises `LedgerFenced` or `LedgerClosed` if the ledger takes no more, `LedgerUnavailable` (and takes none of
        these) if too much is outstanding."""
        if self._error is not None or self._closing:
            raise self._refusal()
        pipeline = self._pipeline
        first = self.last_add_pushed + 1
        count = len(payloads)
        if count == 0:
            return first
        entries = self._codec.encode_many(first, self.last_add_confirmed, self.length_bytes, payloads)
        size_bytes = sum(map(len, entries))
        if pipeline.pending_bytes + size_bytes > self._parts.settings.pending_bytes_max:
            raise LedgerUnavailable(f"ledger {self.ledger_id} has {pipeline.pending_bytes} bytes outstanding")
        self.length_bytes += size_bytes - count * self._codec.overhead_bytes
        self.last_add_pushed += count
        pipeline.push(entries, size_bytes)
        return first

    def _refusal(self) -> MagnetarError:
        if isinstance(self._error, LedgerFenced):
            return LedgerFenced(str(self._error))
        return LedgerClosed(f"ledger {self.ledger_id} takes no more entries: {self._error or 'it is closed'}")

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[bytes]:
        """Payloads of first..last, both confirmed. `EntryNotFound`, `LedgerUnavailable`."""
        check_range(self.ledger_id, first_entry_id, last_entry_id, self.last_add_confirmed)
        metadata = self._metadata
        try:
            return await self._entries.read(metadata, first_entry_id, last_entry_id)
        except (EntryNotFound, LedgerUnavailable):
            moved = await self._entries.moved(metadata)
            if moved is None:
                raise
        # For this read only: the version that goes with our own metadata is what tells us of other owners.
        return await self._entries.read(moved, first_entry_id, last_entry_id)

    async def close(self) -> None:
        """Wait for what is outstanding, then write the closed state. Closing twice is no error.

        After a failure the ledger is closed at its last confirmed entry, but one that another client has fenced or
        closed is left to it.
        Raises `LedgerFenced` if another client closed it elsewhere, `LedgerUnavailable` if the store fails."""
        self._closing = True
        await self._pipeline.wait_until_settled()
        if self._closed:
            return
        if not isinstance(self._error, (LedgerFenced, LedgerClosed)):
            length = self.length_bytes if self._error is None else self._length_confirmed_bytes
            await self._write_closed(self.last_add_confirmed, length)
        self._closed = True
        await self._pipeline.close()

    async def abandon(self) -> None:
        """Let go without writing anything; the next owner recovers the ledger."""
        self._closing = True
        self._closed = True
        await self._pipeline.close()

    async def _write_closed(self, last_entry_id: int, length_bytes: int) -> None:
        for _ in range(CONFLICTS_MAX):
            try:
                wanted = closed_metadata(self._metadata, last_entry_id, length_bytes)
                self._version = await self._parts.metadata.write(self.ledger_id, wanted, self._version)
            except VersionConflict:
                await self._reload()
            except Unavailable as error:
                raise unavailable(f"ledger {self.ledger_id} could not be closed", error) from error
            else:
                self._metadata = wanted
                return
            if self._metadata.state is not LedgerState.CLOSED:
                continue
            if (self._metadata.last_entry_id, self._metadata.length_bytes) != (last_entry_id, length_bytes):
                self._closed = True
                raise LedgerFenced(
                    f"ledger {self.ledger_id} was closed by another client at entry {self._metadata.last_entry_id}; "
                    f"here it ends at {last_entry_id}"
                )
            return
        raise unavailable(f"ledger {self.ledger_id} could not be closed: its metadata keeps changing")

    async def _reload(self) -> None:
        self._metadata, self._version = await self._parts.metadata.read(self.ledger_id)

    def pipeline_confirmed(self, last_add_confirmed: int) -> None:
        """The pipeline: the LAC advanced."""
        self.last_add_confirmed = last_add_confirmed
        self._listener.confirmed(self.ledger_id, last_add_confirmed)

    def pipeline_failed(self, error: MagnetarError) -> None:
        """The pipeline: nothing more will be confirmed."""
        self._error = error
        following = self._pipeline.pending_entry(self.last_add_confirmed + 1)
        self._length_confirmed_bytes = self.length_bytes
        if following is not None:
            payload_bytes = len(following) - self._codec.overhead_bytes
            self._length_confirmed_bytes = header(following)[3] - payload_bytes
        self._listener.failed(self.ledger_id, error)

    async def change_ensemble(
        self, first_entry_id: int, ensemble: Sequence[str], failed: Sequence[int], lost: Collection[str]
    ) -> list[str]:
        """The pipeline: other bookies are needed from this entry on."""
        metadata = self._metadata
        changed = self._parts.chooser.replacement(
            ensemble, failed, lost, metadata.write_quorum, metadata.custom_metadata
        )
        for _ in range(CONFLICTS_MAX):
            try:
                wanted = self._metadata.with_ensemble(first_entry_id, changed)
                self._version = await self._parts.metadata.write(self.ledger_id, wanted, self._version)
            except VersionConflict:
                await self._check_still_ours(ensemble)
            except Unavailable as error:
                raise unavailable(f"the ensemble of ledger {self.ledger_id} could not be changed", error) from error
            else:
                self._metadata = wanted
                logger.info("ledger %d goes on with %s from entry %d", self.ledger_id, changed, first_entry_id)
                return changed
        raise unavailable(f"the ensemble of ledger {self.ledger_id} could not be changed: its metadata keeps changing")

    async def _check_still_ours(self, ensemble: Sequence[str]) -> None:
        """Take over what AutoRecovery changed in older segments; anything else means that the ledger is lost."""
        try:
            await self._reload()
        except LedgerNotFound:
            raise LedgerClosed(f"ledger {self.ledger_id} was deleted") from None
        except Unavailable as error:
            raise unavailable(f"the ensemble of ledger {self.ledger_id} could not be changed", error) from error
        if self._metadata.state is LedgerState.IN_RECOVERY:
            raise LedgerFenced(f"another client recovers ledger {self.ledger_id}")
        if self._metadata.state is LedgerState.CLOSED:
            raise LedgerClosed(f"another client closed ledger {self.ledger_id}")
        if self._metadata.ensembles[-1][1] != list(ensemble):
            raise unavailable(f"somebody else changed the last ensemble of ledger {self.ledger_id}")
