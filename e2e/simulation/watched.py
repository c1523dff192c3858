"""The ledger client and its connections, seen by a `Witness`: what is sent, answered, appended and confirmed."""

from __future__ import annotations

import contextvars
from collections.abc import Sequence
from typing import ClassVar, Final

from magnetar.core.errors import MagnetarError
from magnetar.ledger.api import LedgerListener, LedgerOptions
from magnetar.ledger.bookie_client.bookie_connection import (
    ADD_FLAG_RECOVERY,
    READ_FLAG_FENCE,
    READ_FLAG_NONE,
    AddCallback,
    BookieConnection,
)
from magnetar.ledger.bookie_client.tcp_connections import TcpBookieConnections
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.entry_reader import DENIALS
from magnetar.ledger.metadata_ops import LedgerMetadataOps
from magnetar.ledger.reader import OpenLedgerReader
from magnetar.ledger.writer import OpenLedgerWriter
from magnetar.wire.bookkeeper.codes import BookieError

from e2e.simulation.witness import Witness

_recovering: Final[contextvars.ContextVar[int]] = contextvars.ContextVar("recovering", default=-1)
"""The ledger that is being recovered by whoever runs."""


class WatchedConnection:
    """A `BookieConnection` that tells the witness."""

    def __init__(self, inner: BookieConnection, witness: Witness) -> None:
        self.bookie_id = inner.bookie_id
        self.witness = witness
        self._inner = inner
        self.read_entries = inner.read_entries
        self.close = inner.close

    def add_entries(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: int,
        done: AddCallback,
    ) -> None:
        """See `BookieConnection.add_entries`."""
        if flags & ADD_FLAG_RECOVERY:
            self.witness.recovery_adds_sent(self.bookie_id, ledger_id, entry_ids)
        self._inner.add_entries(ledger_id, master_key, entry_ids, entries, flags, done)

    async def read_entry(
        self, ledger_id: int, entry_id: int, flags: int = READ_FLAG_NONE, master_key: bytes = b""
    ) -> bytes:
        """See `BookieConnection.read_entry`."""
        try:
            entry = await self._inner.read_entry(ledger_id, entry_id, flags, master_key)
        except BookieError as error:
            if error.code in DENIALS:
                self._answered(ledger_id, flags)
                if _recovering.get() == ledger_id:
                    self.witness.denied_to_recovery(self.bookie_id, ledger_id, entry_id)
            raise
        self._answered(ledger_id, flags)
        return entry

    def _answered(self, ledger_id: int, flags: int) -> None:
        if flags & READ_FLAG_FENCE:
            self.witness.fence_answered(self.bookie_id, ledger_id)


class WatchedConnections:
    """A `BookieConnections`."""

    connection_class: ClassVar[type[WatchedConnection]] = WatchedConnection

    def __init__(self, inner: TcpBookieConnections, witness: Witness) -> None:
        self.places = inner.places
        self.writable_bookies = inner.writable_bookies
        self.readable_bookies = inner.readable_bookies
        self.registrations = inner.registrations
        self.look_again = inner.look_again
        self._inner = inner
        self._witness = witness
        self._connections: dict[str, WatchedConnection] = {}

    def connection(self, bookie_id: str) -> WatchedConnection:
        """See `BookieConnections.connection`."""
        found = self._connections.get(bookie_id)
        if found is None:
            inner = self._inner.connection(bookie_id)
            found = self._connections[bookie_id] = self.connection_class(inner, self._witness)
        return found


class _Listener:
    """A `LedgerListener` between the writer and whoever listens."""

    def __init__(self, inner: LedgerListener, witness: Witness) -> None:
        self._inner = inner
        self._witness = witness

    def confirmed(self, ledger_id: int, last_add_confirmed: int) -> None:
        """See `LedgerListener.confirmed`."""
        self._witness.confirmed(ledger_id, last_add_confirmed)
        self._inner.confirmed(ledger_id, last_add_confirmed)

    def failed(self, ledger_id: int, error: MagnetarError) -> None:
        """See `LedgerListener.failed`."""
        self._inner.failed(ledger_id, error)


class WatchedWriter:
    """A `LedgerWriter`."""

    def __init__(self, who: str, inner: OpenLedgerWriter, witness: Witness) -> None:
        self.ledger_id = inner.ledger_id
        self.inner = inner
        self._who = who
        self._witness = witness
        self.read = inner.read
        self.abandon = inner.abandon

    @property
    def last_add_confirmed(self) -> int:
        """See `LedgerWriter`."""
        return self.inner.last_add_confirmed

    @property
    def last_add_pushed(self) -> int:
        """See `LedgerWriter`."""
        return self.inner.last_add_pushed

    @property
    def length_bytes(self) -> int:
        """See `LedgerWriter`."""
        return self.inner.length_bytes

    def append(self, payloads: Sequence[bytes]) -> int:
        """See `LedgerWriter.append`."""
        first = self.inner.append(payloads)
        self._witness.appended(self.ledger_id, payloads)
        return first

    async def close(self) -> None:
        """See `LedgerWriter.close`."""
        self._witness.writer_closes(self._who, self.ledger_id)
        try:
            await self.inner.close()
        finally:
            self._witness.writer_closed(self._who, self.ledger_id)


class WatchedClient:
    """A `LedgerClient`."""

    def __init__(self, who: str, inner: BookKeeperClient, witness: Witness) -> None:
        self._who = who
        self._inner = inner
        self._witness = witness
        self.describe = inner.describe
        self.observe = inner.observe
        self.delete = inner.delete
        self.close = inner.close

    @property
    def metadata(self) -> LedgerMetadataOps:
        """See `BookKeeperClient.metadata`."""
        return self._inner.metadata

    async def create(self, options: LedgerOptions, listener: LedgerListener) -> WatchedWriter:
        """See `LedgerClient.create`."""
        writer = await self._inner.create(options, _Listener(listener, self._witness))
        return WatchedWriter(self._who, writer, self._witness)

    async def open(self, ledger_id: int, *, password: bytes = b"", recover: bool) -> OpenLedgerReader:
        """See `LedgerClient.open`."""
        before = _recovering.set(ledger_id) if recover else None
        try:
            reader = await self._inner.open(ledger_id, password=password, recover=recover)
        finally:
            if before is not None:
                _recovering.reset(before)
        self._witness.told_last_confirmed(self._who, ledger_id, reader.last_add_confirmed)
        return reader
