"""BookKeeper's client: creates, opens, recovers and deletes ledgers."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Final

from magnetar.core.clock import Clock, SystemClock
from magnetar.core.errors import Misuse
from magnetar.ledger.api import LedgerListener, LedgerOptions, LedgerUnavailable, nobody_told
from magnetar.ledger.bookie_chooser import BookieChooser
from magnetar.ledger.bookie_client.bookie_connection import BookieConnections
from magnetar.ledger.metadata_ops import LedgerMetadataOps
from magnetar.ledger.observer import OpenLedgerObserver, observe
from magnetar.ledger.reader import OpenLedgerReader
from magnetar.ledger.recovery_driver import LastConfirmedQuery, LedgerRecovery, check_password, codec_for
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.ledger.topology import BookieTopology
from magnetar.ledger.writer import LedgerParts, OpenLedgerWriter
from magnetar.metadata.listeners import PathWatches
from magnetar.metadata.store import MetadataStore, NodeNotFound, StoreUnavailable
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState

_SYSTEM_CLOCK: Final = SystemClock()
_DEFAULT_SETTINGS: Final = LedgerClientSettings()

logger: Final = logging.getLogger(__name__)

WRITERS_LOOKED_AT_MIN: Final = 64
"""Writers that are kept before the finished ones among them are let go; then whenever there are twice as many."""


class BookKeeperClient:
    """A `LedgerClient` over a metadata store and connections to bookies, neither of which it owns."""

    def __init__(
        self,
        store: MetadataStore,
        connections: BookieConnections,
        clock: Clock = _SYSTEM_CLOCK,
        rng: random.Random | None = None,
        settings: LedgerClientSettings = _DEFAULT_SETTINGS,
        places: Callable[[], BookieTopology] | None = None,
    ) -> None:
        """`places` says where bookies stand, such as `TcpBookieConnections.places`; None: nobody knows."""
        chooser = BookieChooser(
            connections,
            clock,
            rng or random.SystemRandom(),
            settings.quarantine_seconds,
            settings.placement,
            places or BookieTopology,
            settings.local_rack,
        )
        self._parts = LedgerParts(
            connections=connections,
            metadata=LedgerMetadataOps(store),
            chooser=chooser,
            clock=clock,
            settings=settings,
        )
        # One entry per ledger that is written and not closed yet.
        self._writers: dict[int, OpenLedgerWriter] = {}
        self._writers_looked_at = WRITERS_LOOKED_AT_MIN
        self._watches = PathWatches(store)
        self._closed = False

    @property
    def metadata(self) -> LedgerMetadataOps:
        """The ledgers' metadata, for tools and AutoRecovery."""
        return self._parts.metadata

    @property
    def chooser(self) -> BookieChooser:
        """The choice of bookies for entries, for AutoRecovery."""
        return self._parts.chooser

    async def create(self, options: LedgerOptions, listener: LedgerListener) -> OpenLedgerWriter:
        """A new, empty, open ledger. Raises `NotEnoughBookies`, `Unavailable`."""
        self._check_open()
        ledger_id, metadata, version = await self._created(options)
        writer = OpenLedgerWriter(ledger_id, metadata, version, self._parts, listener)
        if len(self._writers) >= self._writers_looked_at:
            # Looking at all of them each time would cost the square of their number.
            self._writers = {key: kept for key, kept in self._writers.items() if not kept.finished}
            self._writers_looked_at = 2 * len(self._writers) + WRITERS_LOOKED_AT_MIN
        self._writers[ledger_id] = writer
        return writer

    async def _created(self, options: LedgerOptions) -> tuple[int, LedgerMetadata, int]:
        chooser = self._parts.chooser
        left: set[str] = set()
        while True:  # Each round leaves one more bookie out.
            ensemble = chooser.new_ensemble(options.ensemble_size, options.write_quorum, options.custom_metadata, left)
            metadata = LedgerMetadata(
                ensemble_size=options.ensemble_size,
                write_quorum=options.write_quorum,
                ack_quorum=options.ack_quorum,
                ensembles=[(0, ensemble)],
                digest_type=options.digest_type,
                password=options.password,
                created_ms=self._parts.clock.now_ms(),
                custom_metadata=dict(options.custom_metadata),
            )
            try:
                ledger_id, version = await self._parts.metadata.create(
                    metadata, chooser.registrations(ensemble), options.announce
                )
            except NodeNotFound as missing:
                left.add(await chooser.another_choice(missing))
            else:
                return ledger_id, metadata, version

    async def open(self, ledger_id: int, *, password: bytes = b"", recover: bool) -> OpenLedgerReader:
        """Open for reading. With `recover`: fence the writer, find the true end, close it. Without: look only.

        Raises `LedgerNotFound`, `LedgerUnauthorized`, `Unavailable`."""
        self._check_open()
        if recover:
            metadata = await LedgerRecovery(ledger_id, password, self._parts).run()
        else:
            metadata, _ = await self._parts.metadata.read(ledger_id)
            check_password(ledger_id, metadata, password)
        codec = codec_for(ledger_id, metadata)
        entries = self._parts.entry_reader(codec)
        if metadata.state is LedgerState.CLOSED:
            return OpenLedgerReader(ledger_id, metadata, entries, metadata.last_entry_id, metadata.length_bytes)
        query = LastConfirmedQuery(metadata, codec, self._parts)
        await query.run(fence=False)
        if not query.round.covered:
            # As BookKeeper's client: fewer may not have heard of what is confirmed, and this reader would go back
            # behind what it was told before.
            raise LedgerUnavailable(
                f"only {query.round.answers} of the last bookies of ledger {ledger_id} say how far it goes; "
                "the others may know of more"
            )
        return OpenLedgerReader(ledger_id, metadata, entries, query.last_add_confirmed, query.round.length_bytes)

    async def observe(
        self, ledger_id: int, *, password: bytes = b"", changed: Callable[[], None] = nobody_told
    ) -> OpenLedgerObserver:
        """Open a ledger that somebody else may be writing, without recovery. `changed` is called after its metadata
        may have changed: then `refresh`. Raises `LedgerNotFound`, `LedgerUnauthorized`, `Unavailable`."""
        self._check_open()
        return await observe(ledger_id, password, self._parts, self._watches, changed)

    async def describe(self, ledger_id: int) -> LedgerMetadata:
        """What the metadata store holds about a ledger. `LedgerNotFound`, `Unavailable`."""
        self._check_open()
        metadata, _ = await self._parts.metadata.read(ledger_id)
        return metadata

    async def delete(self, ledger_id: int) -> None:
        """Remove the ledger's metadata; bookies collect the entries. A missing ledger is no error."""
        self._check_open()
        await self._parts.metadata.delete(ledger_id)

    async def close(self) -> None:
        """Close the client; open writers are left to be recovered by the next owner."""
        self._closed = True
        self._watches.close()
        writers, self._writers = self._writers, {}
        for writer in writers.values():
            await writer.abandon()
        try:
            await self._parts.metadata.remove_unsure()
        except StoreUnavailable as error:
            for ledger_id in self._parts.metadata.unsure_creations:
                logger.warning("ledger %d may be left over, and its space lost: %s", ledger_id, error)

    def _check_open(self) -> None:
        if self._closed:
            raise Misuse("the ledger client is closed")
