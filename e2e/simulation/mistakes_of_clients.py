"""Mistakes in the ledger client: appends, ensemble changes, recovery."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from magnetar.ledger.append_pipeline import AppendPipeline, BookieAnswers
from magnetar.ledger.appender import Appender
from magnetar.ledger.bookie_client.bookie_connection import READ_FLAG_NONE
from magnetar.ledger.entry_reader import DENIALS
from magnetar.ledger.ledger_paths import ledger_path
from magnetar.ledger.metadata_ops import LedgerMetadataOps
from magnetar.ledger.recovery import EntrySearch, LastConfirmedRound
from magnetar.ledger.recovery_driver import LedgerRecovery, RecoveryWriteBack
from magnetar.ledger.striping import covered
from magnetar.ledger.writer import OpenLedgerWriter
from magnetar.wire.bookkeeper.codes import BookieError
from magnetar.wire.bookkeeper.entry import DigestMismatch, EntryCodec
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata

from e2e.simulation.planting import Mistake, Patch, original


def one_bookie_lac() -> list[Patch]:
    """Recovery takes the first bookie's word for where the ledger ends."""

    async def nothing_more(self: LedgerRecovery, first: int, metadata: LedgerMetadata, codec: Any) -> list[bytes]:
        return []

    return [
        (LastConfirmedRound, "covered", property(lambda self: self.answers >= 1)),
        (LedgerRecovery, "_read_on", nothing_more),
    ]


def blind_ensemble_change() -> list[Patch]:
    """A writer replaces a bookie without compare-and-set."""
    right_change = OpenLedgerWriter.change_ensemble
    right_write = LedgerMetadataOps.write

    async def write(
        self: LedgerMetadataOps,
        ledger_id: int,
        metadata: LedgerMetadata,
        version: int,
        registrations: Sequence[str] = (),
    ) -> int:
        if metadata.state.name == "OPEN":
            node = await self._store.get(ledger_path(ledger_id))
            version = node.stat.version if node is not None else version
        return await right_write(self, ledger_id, metadata, version, registrations)

    assert right_change is not None
    return [(LedgerMetadataOps, "write", write)]


def one_denial() -> list[Patch]:
    """Recovery takes one bookie's denial of an entry for its absence."""
    right = EntrySearch.denied

    def denied(self: EntrySearch) -> None:
        right(self)
        self._denials_needed = 0

    return [(EntrySearch, "denied", denied)]


def inherited_acknowledgements() -> list[Patch]:
    """A bookie that replaces another counts for what that one has acknowledged."""

    def replaced(self: Appender, indexes: Sequence[int]) -> list[Any]:
        up_to, ahead, masks = list(self._acknowledged_up_to), list(self._ahead), dict(self._masks)
        state = self.state
        sends = right(self, indexes)
        if self.state is not state:
            self._acknowledged_up_to, self._ahead = up_to, ahead
            for entry_id in self._masks:
                self._masks[entry_id] = masks[entry_id]
            self._confirm()
        return sends

    right = Appender.replaced
    return [(Appender, "replaced", replaced)]


def answers_of_the_replaced() -> list[Patch]:
    """What a bookie answers that was replaced counts for the one in its place."""
    right = AppendPipeline.answered

    def answered(self: AppendPipeline, place: BookieAnswers, index: int, code: int, entry_ids: Sequence[int]) -> None:
        right(self, self._places[index] if code == 0 else place, index, code, entry_ids)

    return [(AppendPipeline, "answered", answered)]


def confirm_before_quorum() -> list[Patch]:
    """An entry is confirmed when one bookie less than the ack quorum has it."""
    right = original(Appender, "_confirm")

    def confirm(self: Appender) -> bool:
        wanted, self.ack_quorum = self.ack_quorum, max(1, self.ack_quorum - 1)
        advanced: bool = right(self)
        self.ack_quorum = wanted
        return advanced

    return [(Appender, "_confirm", confirm)]


def out_of_order_confirm() -> list[Patch]:
    """An entry is confirmed when an ack quorum has it, whatever became of those before."""

    def move_up(self: Appender, index: int, entry_ids: Sequence[int]) -> None:
        self._acknowledged_up_to[index] = max(self._acknowledged_up_to[index], *entry_ids)

    right = original(Appender, "_confirm")

    def confirm(self: Appender) -> bool:
        if self._striped:
            for entry_id in range(self.last_add_pushed, self.last_add_confirmed, -1):
                if self._masks[entry_id].bit_count() >= self.ack_quorum:
                    for before in range(self.last_add_confirmed + 1, entry_id):
                        self._masks[before] = (1 << self.ensemble_size) - 1
                    break
        advanced: bool = right(self)
        return advanced

    return [(Appender, "_move_up", move_up), (Appender, "_confirm", confirm)]


def unrecorded_ensemble() -> list[Patch]:
    """A writer goes on with other bookies and does not say so in the metadata."""

    async def change_ensemble(
        self: OpenLedgerWriter, first: int, ensemble: Sequence[str], failed: Sequence[int], lost: Collection[str]
    ) -> list[str]:
        metadata = self._metadata
        return self._parts.chooser.replacement(ensemble, failed, lost, metadata.write_quorum, metadata.custom_metadata)

    return [(OpenLedgerWriter, "change_ensemble", change_ensemble)]


def ensemble_from_the_next_entry() -> list[Patch]:
    """The metadata names the new bookies from the newest entry on, not from the first that is not confirmed."""
    right = OpenLedgerWriter.change_ensemble

    async def change_ensemble(
        self: OpenLedgerWriter, first: int, ensemble: Sequence[str], failed: Sequence[int], lost: Collection[str]
    ) -> list[str]:
        return await right(self, max(first, self.last_add_pushed), ensemble, failed, lost)

    return [(OpenLedgerWriter, "change_ensemble", change_ensemble)]


def confirms_what_it_sends() -> list[Patch]:
    """Entries carry as confirmed what was sent before them."""
    right = EntryCodec.encode_many

    def encode_many(
        self: EntryCodec, first: int, last_add_confirmed: int, length_before: int, payloads: Sequence[bytes]
    ) -> list[bytes]:
        return right(self, first, first - 1, length_before, payloads)

    return [(EntryCodec, "encode_many", encode_many)]


def closed_at_the_last_sent() -> list[Patch]:
    """A writer whose ledger has failed closes it behind what it has sent."""
    right = original(OpenLedgerWriter, "_write_closed")

    async def write_closed(self: OpenLedgerWriter, last_entry_id: int, length_bytes: int) -> None:
        await right(self, self.last_add_pushed, self.length_bytes)

    return [(OpenLedgerWriter, "_write_closed", write_closed)]


def recovery_read_does_not_fence() -> list[Patch]:
    """Recovery looks for entries by reads that do not fence."""

    async def ask(self: LedgerRecovery, bookie_id: str, entry_id: int, codec: EntryCodec, search: EntrySearch) -> None:
        try:
            connection = self._parts.connections.connection(bookie_id)
            entry = await connection.read_entry(self._ledger_id, entry_id, READ_FLAG_NONE)
            codec.decode(entry, entry_id)
        except BookieError as error:
            if error.code in DENIALS:
                search.denied()
            else:
                search.failed()
        except DigestMismatch:
            search.failed()
        else:
            search.found(entry)

    return [(LedgerRecovery, "_ask", ask)]


def fences_too_few() -> list[Patch]:
    """Recovery goes on while an ack quorum of bookies has not answered."""

    def too_few(self: LastConfirmedRound) -> bool:
        return covered(self._answered, self._ensemble_size, self._write_quorum, self._ack_quorum + 1)

    search = EntrySearch.__init__

    def impatient(self: EntrySearch, write_quorum: int, ack_quorum: int) -> None:
        search(self, write_quorum, min(write_quorum, ack_quorum + 1))

    return [(LastConfirmedRound, "covered", property(too_few)), (EntrySearch, "__init__", impatient)]


def recovery_does_not_write_back() -> list[Patch]:
    """Recovery closes behind what it has found, and leaves it where it was."""

    async def write(self: RecoveryWriteBack, entries: Sequence[bytes]) -> None:
        return None

    return [(RecoveryWriteBack, "write", write)]


def recovery_forgets_new_bookies() -> list[Patch]:
    """Recovery writes back to other bookies and does not name them in the metadata."""

    async def change_ensemble(
        self: RecoveryWriteBack, first: int, ensemble: Sequence[str], failed: Sequence[int], lost: Collection[str]
    ) -> list[str]:
        metadata = self.metadata
        return self._parts.chooser.replacement(ensemble, failed, lost, metadata.write_quorum, metadata.custom_metadata)

    return [(RecoveryWriteBack, "change_ensemble", change_ensemble)]


def recovery_starts_behind() -> list[Patch]:
    """Recovery takes the greatest entry that it hears of for confirmed, and does not look for those before."""
    right = LastConfirmedRound.answered_with

    def answered_with(self: LastConfirmedRound, index: int, last_add_confirmed: int, length_bytes: int) -> None:
        right(self, index, last_add_confirmed + 1, length_bytes)

    return [(LastConfirmedRound, "answered_with", answered_with)]


CLIENT_MISTAKES: Final[dict[str, Mistake]] = {
    "answers-of-the-replaced": answers_of_the_replaced,
    "blind-ensemble-change": blind_ensemble_change,
    "closed-at-the-last-sent": closed_at_the_last_sent,
    "confirm-before-quorum": confirm_before_quorum,
    "confirms-what-it-sends": confirms_what_it_sends,
    "ensemble-from-the-next-entry": ensemble_from_the_next_entry,
    "fences-too-few": fences_too_few,
    "inherited-acknowledgements": inherited_acknowledgements,
    "one-bookie-lac": one_bookie_lac,
    "one-denial": one_denial,
    "out-of-order-confirm": out_of_order_confirm,
    "recovery-does-not-write-back": recovery_does_not_write_back,
    "recovery-forgets-new-bookies": recovery_forgets_new_bookies,
    "recovery-read-does-not-fence": recovery_read_does_not_fence,
    "recovery-starts-behind": recovery_starts_behind,
    "unrecorded-ensemble": unrecorded_ensemble,
}
