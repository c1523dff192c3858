"""The appends of one ledger that this process writes: entry ids, digests, the length, and what is outstanding.

Nothing here waits: `writer.py` does, which also writes the ledger's metadata.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from magnetar.core.errors import MagnetarError
from magnetar.core.ids import NO_ENTRY
from magnetar.ledger.api import LedgerClosed, LedgerFenced, LedgerListener, LedgerUnavailable
from magnetar.ledger.append_pipeline import AppendPipeline, PipelineContext
from magnetar.ledger.appender import Appender
from magnetar.ledger.bookie_client.bookie_connection import BookieConnections
from magnetar.ledger.ensemble_change import EnsembleChanger
from magnetar.wire.bookkeeper.entry import EntryCodec, header


class LedgerAppends:
    """Takes payloads, makes entries of them and hears what became of them."""

    __slots__ = (
        "_codec",
        "_ledger_id",
        "_listener",
        "_pending_bytes_max",
        "_pipeline",
        "closing",
        "error",
        "last_add_confirmed",
        "last_add_pushed",
        "length_bytes",
        "length_confirmed_bytes",
    )

    def __init__(self, codec: EntryCodec, listener: LedgerListener, pending_bytes_max: int) -> None:
        self._codec: EntryCodec = codec
        self._ledger_id: int = codec.ledger_id
        self._listener: LedgerListener = listener
        self._pending_bytes_max: int = pending_bytes_max
        self._pipeline: AppendPipeline | None = None
        self.closing: bool = False
        """Nothing is taken any more."""
        self.error: MagnetarError | None = None
        """What the ledger failed with."""
        self.last_add_confirmed: int = NO_ENTRY
        self.last_add_pushed: int = NO_ENTRY
        self.length_bytes: int = 0
        self.length_confirmed_bytes: int = 0
        """After a failure: the length up to the last confirmed entry."""

    def start(
        self,
        changer: EnsembleChanger,
        appender: Appender,
        ensemble: Sequence[str],
        connections: BookieConnections,
        context: PipelineContext,
    ) -> None:
        """Once, before anything is appended."""
        self._pipeline = AppendPipeline(self, changer, appender, ensemble, connections, context)

    @property
    def pipeline(self) -> AppendPipeline:
        """The entries on their way."""
        assert self._pipeline is not None
        return self._pipeline

    def append(self, payloads: Sequence[bytes]) -> int:
        """Send entries on their way; returns the first one's id, the rest follow.

        Raises `LedgerFenced` or `LedgerClosed` if the ledger takes no more, `LedgerUnavailable` (and takes none of
        these) if too much is outstanding."""
        if self.error is not None or self.closing:
            raise self._refusal()
        pipeline = self.pipeline
        first = self.last_add_pushed + 1
        count = len(payloads)
        if count == 0:
            return first
        entries = self._codec.encode_many(first, self.last_add_confirmed, self.length_bytes, payloads)
        size_bytes = sum(map(len, entries))
        if pipeline.pending_bytes + size_bytes > self._pending_bytes_max:
            raise LedgerUnavailable(f"ledger {self._ledger_id} has {pipeline.pending_bytes} bytes outstanding")
        self.length_bytes += size_bytes - count * self._codec.overhead_bytes
        self.last_add_pushed += count
        pipeline.push(entries, size_bytes)
        return first

    def close(self) -> Awaitable[None]:
        """Stop at once; what is outstanding is not heard of any more."""
        return self.pipeline.close()

    def pipeline_confirmed(self, last_add_confirmed: int) -> None:
        """The pipeline: the LAC advanced."""
        self.last_add_confirmed = last_add_confirmed
        self._listener.confirmed(self._ledger_id, last_add_confirmed)

    def pipeline_failed(self, error: MagnetarError) -> None:
        """The pipeline: nothing more will be confirmed."""
        self.error = error
        following = self.pipeline.pending_entry(self.last_add_confirmed + 1)
        self.length_confirmed_bytes = self.length_bytes
        if following is not None:
            payload_bytes = len(following) - self._codec.overhead_bytes
            self.length_confirmed_bytes = header(following)[3] - payload_bytes
        self._listener.failed(self._ledger_id, error)

    def _refusal(self) -> MagnetarError:
        if isinstance(self.error, LedgerFenced):
            return LedgerFenced(str(self.error))
        return LedgerClosed(f"ledger {self._ledger_id} takes no more entries: {self.error or 'it is closed'}")
