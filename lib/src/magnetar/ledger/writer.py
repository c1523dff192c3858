"""A ledger that this process writes: appends, ensemble changes in the metadata, the close."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Final

from magnetar.core.clock import Clock
from magnetar.core.errors import Unavailable
from magnetar.ledger.api import (
    EntryNotFound,
    LedgerClosed,
    LedgerFenced,
    LedgerListener,
    LedgerNotFound,
    LedgerUnavailable,
)
from magnetar.ledger.append_pipeline import AppendPipeline, PipelineContext
from magnetar.ledger.appender import Appender
from magnetar.ledger.bookie_chooser import BookieChooser
from magnetar.ledger.bookie_client.bookie_connection import ADD_FLAG_NONE, BookieConnections
from magnetar.ledger.ensemble_change import wait_until_settled
from magnetar.ledger.entry_reader import LedgerEntryReader
from magnetar.ledger.metadata_ops import LedgerMetadataOps
from magnetar.ledger.reader import check_range
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.metadata.store import NodeNotFound, VersionConflict
from magnetar.wire.bookkeeper.codes import BookieCode
from magnetar.wire.bookkeeper.entry import EntryCodec
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

    def entry_reader(self, codec: EntryCodec) -> LedgerEntryReader:
        """Reads of one ledger."""
        return LedgerEntryReader(codec, self.connections, self.chooser, self.metadata, self.settings)

    def bookie_failed(self, ledger_id: int, bookie_id: str, code: BookieCode) -> None:
        """Avoid the bookie for a while."""
        self.chooser.report_failure(bookie_id)
        logger.warning("bookie %s failed an add of ledger %d: %s", bookie_id, ledger_id, code.name)

    def pipeline_context(self, codec: EntryCodec, add_flags: int) -> PipelineContext:
        """What the adds of one ledger have in common."""
        return PipelineContext(codec, add_flags, self.settings, self.clock, self.bookie_failed)


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
    """A `LedgerWriter`: an `AppendPipeline`, and what has to wait for bookies or the metadata store."""

    __slots__ = (
        "_closed",
        "_entries",
        "_left_open",
        "_metadata",
        "_parts",
        "_pipeline",
        "_version",
        "append",
        "ledger_id",
    )

    def __init__(
        self, ledger_id: int, metadata: LedgerMetadata, version: int, parts: LedgerParts, listener: LedgerListener
    ) -> None:
        assert metadata.digest_type is not None
        self.ledger_id = ledger_id
        self._metadata = metadata
        self._version = version
        self._parts = parts
        codec = EntryCodec(ledger_id, metadata.digest_type, metadata.password)
        self._entries = parts.entry_reader(codec)
        self._closed = False
        self._left_open = False
        """It could not be closed: whoever reads it next recovers it, unless its owner tries again."""
        self._pipeline = AppendPipeline(
            listener,
            self,
            Appender(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum),
            metadata.ensembles[-1][1],
            parts.connections,
            parts.pipeline_context(codec, ADD_FLAG_NONE),
        )
        self.append: Callable[[Sequence[bytes]], int] = self._pipeline.append
        """`AppendPipeline.append`, without a call in between."""

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer last wrote it."""
        return self._metadata

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that is on an ack quorum of disks, as all before it are."""
        return self._pipeline.last_add_confirmed

    @property
    def last_add_pushed(self) -> int:
        """The last entry that was appended."""
        return self._pipeline.last_add_pushed

    @property
    def length_bytes(self) -> int:
        """Bytes of all payloads that were appended."""
        return self._pipeline.length_bytes

    @property
    def finished(self) -> bool:
        """Whether nothing will come of this writer any more."""
        return self._closed or self._left_open or self._pipeline.error is not None

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
        pipeline = self._pipeline
        pipeline.closing = True
        await wait_until_settled(pipeline)
        if self._closed:
            return
        if not isinstance(pipeline.error, (LedgerFenced, LedgerClosed)):
            length = pipeline.length_bytes if pipeline.error is None else pipeline.length_confirmed_bytes
            try:
                await self._write_closed(pipeline.last_add_confirmed, length)
            except BaseException:
                self._left_open = True
                raise
        self._closed = True
        await pipeline.close()

    async def abandon(self) -> None:
        """Let go without writing anything; the next owner recovers the ledger."""
        self._pipeline.closing = True
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
        raise LedgerUnavailable(f"ledger {self.ledger_id} could not be closed: its metadata keeps changing")

    async def _reload(self) -> None:
        self._metadata, self._version = await self._parts.metadata.read(self.ledger_id)

    async def change_ensemble(
        self, first_entry_id: int, ensemble: Sequence[str], failed: Sequence[int], lost: Collection[str]
    ) -> list[str]:
        """The pipeline: other bookies are needed from this entry on."""
        chooser, left = self._parts.chooser, set(lost)
        for _ in range(CONFLICTS_MAX):
            metadata = self._metadata
            changed = chooser.replacement(ensemble, failed, left, metadata.write_quorum, metadata.custom_metadata)
            try:
                wanted = metadata.with_ensemble(first_entry_id, changed)
                registrations = chooser.registrations([changed[index] for index in failed])
                self._version = await self._parts.metadata.write(self.ledger_id, wanted, self._version, registrations)
            except VersionConflict:
                await self._check_still_ours(ensemble)
            except NodeNotFound as missing:
                left.add(await self._another_choice(missing))
            except Unavailable as error:
                raise unavailable(f"the ensemble of ledger {self.ledger_id} could not be changed", error) from error
            else:
                self._metadata = wanted
                logger.info("ledger %d goes on with %s from entry %d", self.ledger_id, changed, first_entry_id)
                return changed
        raise LedgerUnavailable(
            f"the ensemble of ledger {self.ledger_id} could not be changed: its metadata keeps changing"
        )

    async def _another_choice(self, missing: NodeNotFound) -> str:
        try:
            return await self._parts.chooser.another_choice(missing)
        except Unavailable as error:
            raise unavailable(f"the ensemble of ledger {self.ledger_id} could not be changed", error) from error

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
            raise LedgerUnavailable(f"somebody else changed the last ensemble of ledger {self.ledger_id}")


def unavailable(what: str, cause: BaseException) -> LedgerUnavailable:
    """`LedgerUnavailable` that names its cause."""
    error = LedgerUnavailable(f"{what}: {cause}")
    error.__cause__ = cause
    return error
