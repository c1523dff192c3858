"""Sees everything: at each thing that clients are told, whether it is so on the disks and in the metadata.

Disks are read past the bookies (`durable.py`), metadata where the service has applied it. So a promise that is broken
is seen at the moment at which it is, and not when a later crash happens to uncover it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from magnetar.bookie.journal.format import FENCE_RECORD, MASTER_KEY_RECORD
from magnetar.core.ids import NO_ENTRY
from magnetar.ledger.ledger_paths import LEDGERS_ROOT, ledger_id_of
from magnetar.ledger.recovery_driver import codec_for
from magnetar.ledger.striping import write_set
from magnetar.metadata.tree import Outcome
from magnetar.wire.bookkeeper.entry import DigestMismatch, EntryCodec, header
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState, decode_ledger_metadata

from e2e.simulation.durable import BookieDisk, Kept

VIOLATIONS_MAX: Final = 50
"""One mistake breaks a promise again and again; the first ones say what it is."""


@dataclass(slots=True)
class WatchedLedger:
    """What is known of one ledger."""

    metadata: LedgerMetadata
    codec: EntryCodec
    payloads: list[bytes] = field(default_factory=list)
    """What its writer appended, by entry id."""
    confirmed: int = NO_ENTRY
    """The last entry that the writer's owner was told of."""

    @property
    def last_known(self) -> int:
        """Nothing that is told or stored may claim more than this: its end, or what is confirmed."""
        if self.metadata.state is LedgerState.CLOSED:
            return max(self.metadata.last_entry_id, self.confirmed)
        return self.confirmed


class Witness:
    """Of one run. A `durable.DiskEvents`."""

    def __init__(self, now: Callable[[], float], is_damaged: Callable[[str], bool]) -> None:
        """`is_damaged`: whether a bookie is lost for good, or bits of its disk were flipped: it need not keep more."""
        self.violations: list[str] = []
        self.disks: dict[str, BookieDisk] = {}
        self.ledgers: dict[int, WatchedLedger] = {}
        """Those that there is metadata of."""
        self.ledgers_created = 0
        self.confirmed_entries = 0
        """In all ledgers that there ever were."""
        self._now = now
        self._is_damaged = is_damaged
        self._recovery_adds: set[tuple[str, int, int]] = set()
        self._unfenced_denials: dict[tuple[int, int], str] = {}
        self._closing: set[tuple[str, int]] = set()

    def accuse(self, what: str) -> None:
        """A promise is broken."""
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(f"at {self._now():.6f}: {what}")

    # --- what clients do and are told

    def appended(self, ledger_id: int, payloads: Sequence[bytes]) -> None:
        """A writer has taken the next entries."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is not None:
            ledger.payloads += payloads

    def confirmed(self, ledger_id: int, last_add_confirmed: int) -> None:
        """A writer's owner is told that all entries up to this one are safe: they must be, on an ack quorum of those
        bookies that the next owner will ask."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            return  # Somebody else has deleted it: nobody will look.
        first, ledger.confirmed = ledger.confirmed + 1, max(ledger.confirmed, last_add_confirmed)
        self.confirmed_entries += ledger.confirmed + 1 - first
        if ledger.metadata.state is LedgerState.CLOSED and last_add_confirmed > ledger.metadata.last_entry_id:
            end = ledger.metadata.last_entry_id
            self.accuse(f"entry {ledger_id}:{last_add_confirmed} is confirmed, and the ledger was closed at {end}")
            return
        self._check_stored(ledger_id, ledger, range(first, last_add_confirmed + 1), "is confirmed")

    def writer_closes(self, host: str, ledger_id: int) -> None:
        """A writer is closing its ledger: the end that it writes is what it was told itself."""
        self._closing.add((host, ledger_id))

    def writer_closed(self, host: str, ledger_id: int) -> None:
        """It has, or could not."""
        self._closing.discard((host, ledger_id))

    def told_last_confirmed(self, who: str, ledger_id: int, last_add_confirmed: int) -> None:
        """A reader is told how far a ledger goes."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is not None and last_add_confirmed > ledger.last_known:
            self.accuse(
                f"{who} is told that ledger {ledger_id} is confirmed up to {last_add_confirmed}; "
                f"it is up to {ledger.last_known}"
            )

    def fence_answered(self, bookie_id: str, ledger_id: int) -> None:
        """A bookie has answered a read that fences."""
        if ledger_id in self.ledgers and not self.disks[bookie_id].fenced(ledger_id):
            self.accuse(f"{bookie_id} has answered a fencing read of ledger {ledger_id}, and its disk has no fence")

    def recovery_adds_sent(self, bookie_id: str, ledger_id: int, entry_ids: Iterable[int]) -> None:
        """Somebody sends entries as a recovery, which fenced ledgers take."""
        self._recovery_adds.update((bookie_id, ledger_id, entry_id) for entry_id in entry_ids)

    def denied_to_recovery(self, bookie_id: str, ledger_id: int, entry_id: int) -> None:
        """A bookie has told a recovery that it has no such entry: from then on it must not take it from the writer."""
        if not self.disks[bookie_id].fenced(ledger_id):
            self._unfenced_denials[(ledger_id, entry_id)] = bookie_id

    # --- what happens on disks

    def entry_stored(self, disk: BookieDisk, ledger_id: int, entry_id: int, entry: bytes, *, fenced: bool) -> None:
        """See `DiskEvents.entry_stored`."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            return
        if fenced and (disk.bookie_id, ledger_id, entry_id) not in self._recovery_adds:
            self.accuse(f"{disk.bookie_id} took entry {ledger_id}:{entry_id} from its writer behind the fence")
        told = header(entry)[2]
        if told > ledger.last_known:
            self.accuse(
                f"entry {ledger_id}:{entry_id} on {disk.bookie_id} says that {told} is confirmed; "
                f"{ledger.last_known} is"
            )

    def stored_without_key(self, disk: BookieDisk, ledger_id: int) -> None:
        """See `DiskEvents.stored_without_key`."""
        if ledger_id in self.ledgers:
            self.accuse(f"{disk.bookie_id} has stored an entry of ledger {ledger_id} without its master key")

    def ledger_deleted(self, disk: BookieDisk, ledger_id: int) -> None:
        """See `DiskEvents.ledger_deleted`."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            return
        metadata = ledger.metadata
        if metadata.state is not LedgerState.CLOSED or _names(metadata, disk.bookie_id):
            self.accuse(f"{disk.bookie_id} has deleted ledger {ledger_id}, and its metadata is there")

    def forgotten(self, disk: BookieDisk, kept: Kept) -> None:
        """See `DiskEvents.forgotten`."""
        ledger_id, entry_id = kept
        ledger = self.ledgers.get(ledger_id)
        if ledger is None or self._is_damaged(disk.bookie_id):
            return
        metadata = ledger.metadata
        if entry_id >= 0:
            named = disk.bookie_id in metadata.ensemble_of(entry_id)
            what = f"entry {ledger_id}:{entry_id}"
        else:
            named = _names(metadata, disk.bookie_id)
            what = f"the {'fence' if entry_id == FENCE_RECORD else 'master key'} of ledger {ledger_id}"
        if named:
            self.accuse(f"{disk.bookie_id} has lost {what}, which its disk had")

    # --- what happens to metadata

    def metadata_applied(self, outcome: Outcome, host: str) -> None:
        """The service has made an outcome so, which a host has asked for."""
        for path, record in outcome.saves:
            if path.startswith(LEDGERS_ROOT) and (ledger_id := ledger_id_of(path)) is not None:
                self._ledger_changed(ledger_id, decode_ledger_metadata(record.value), host)
        for path, _ in outcome.removals:
            if path.startswith(LEDGERS_ROOT) and (ledger_id := ledger_id_of(path)) is not None:
                self.ledgers.pop(ledger_id, None)

    def _ledger_changed(self, ledger_id: int, metadata: LedgerMetadata, host: str) -> None:
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            self.ledgers[ledger_id] = WatchedLedger(metadata, codec_for(ledger_id, metadata))
            self.ledgers_created += 1
            return
        before, ledger.metadata = ledger.metadata, metadata
        if metadata.state is LedgerState.CLOSED and before.state is not LedgerState.CLOSED:
            self._check_closed(ledger_id, ledger)
            if before.state is LedgerState.IN_RECOVERY and (host, ledger_id) not in self._closing:
                self._check_recovered(ledger_id, ledger, before)
        elif [first for first, _ in metadata.ensembles] == [first for first, _ in before.ensembles]:
            self._check_replaced(ledger_id, ledger, before)

    def _check_closed(self, ledger_id: int, ledger: WatchedLedger) -> None:
        end = ledger.metadata.last_entry_id
        if end < ledger.confirmed:
            self.accuse(f"ledger {ledger_id} is closed at {end}, and {ledger.confirmed} was confirmed")
        self._check_stored(ledger_id, ledger, range(end + 1), "is in a ledger that is closed")

    def _check_recovered(self, ledger_id: int, ledger: WatchedLedger, before: LedgerMetadata) -> None:
        """The end stands: the writer can hear of no further entry, and whoever denied one was fenced before."""
        end = ledger.metadata.last_entry_id
        following = end + 1
        bookies = _bookies_of(before, following)
        could = [bookie for bookie in bookies if self._could_confirm(bookie, ledger_id, following)]
        if len(could) >= before.ack_quorum:
            self.accuse(
                f"a recovery closed ledger {ledger_id} at {end}, and its writer could still hear that {following} is "
                f"confirmed, from {could}"
            )
        unfenced = self._unfenced_denials.get((ledger_id, following))
        if unfenced is not None:
            self.accuse(
                f"a recovery closed ledger {ledger_id} at {end} because {unfenced} denied entry {following} "
                "without being fenced"
            )

    def _could_confirm(self, bookie_id: str, ledger_id: int, entry_id: int) -> bool:
        """Whether a bookie has told the writer of an entry, or still may."""
        disk = self.disks[bookie_id]
        return not disk.fenced(ledger_id) or entry_id in disk.stored_unfenced.get(ledger_id, ())

    def _check_replaced(self, ledger_id: int, ledger: WatchedLedger, before: LedgerMetadata) -> None:
        """Who gets a place in a segment that is complete must have everything that belongs there."""
        metadata = ledger.metadata
        segments = metadata.ensembles
        for number, ((first, bookies), (_, old)) in enumerate(zip(segments, before.ensembles, strict=True)):
            if bookies == old:
                continue
            if number + 1 < len(segments):
                last = segments[number + 1][0] - 1
            elif metadata.state is LedgerState.CLOSED:
                last = metadata.last_entry_id
            else:
                continue
            for entry_id in range(first, last + 1):
                for index in write_set(entry_id, len(bookies), metadata.write_quorum):
                    if bookies[index] != old[index] and not self._keeps(bookies[index], ledger_id, ledger, entry_id):
                        self.accuse(
                            f"{bookies[index]} is named for entry {ledger_id}:{entry_id} instead of {old[index]}, "
                            "and its disk has not got it"
                        )

    def _check_stored(self, ledger_id: int, ledger: WatchedLedger, entry_ids: range, what: str) -> None:
        metadata = ledger.metadata
        for entry_id in entry_ids:
            bookies = _bookies_of(metadata, entry_id)
            holders = [bookie for bookie in bookies if self._keeps(bookie, ledger_id, ledger, entry_id)]
            if len(holders) < metadata.ack_quorum:
                self.accuse(
                    f"entry {ledger_id}:{entry_id} {what} and durable on {holders} only of {bookies}; "
                    f"the ack quorum is {metadata.ack_quorum}"
                )
                return

    def _keeps(self, bookie_id: str, ledger_id: int, ledger: WatchedLedger, entry_id: int) -> bool:
        """Whether a bookie's disk has an entry as it was appended; from then on it must."""
        disk = self.disks[bookie_id]
        entry = disk.entry(ledger_id, entry_id)
        if entry is None or disk.master_key(ledger_id) != ledger.codec.master_key:
            return self._is_damaged(bookie_id)
        try:
            payload = ledger.codec.decode(entry, entry_id)
        except DigestMismatch:
            return self._is_damaged(bookie_id)
        if entry_id < len(ledger.payloads) and payload != ledger.payloads[entry_id]:
            return False
        disk.keep((ledger_id, entry_id))
        disk.keep((ledger_id, MASTER_KEY_RECORD))
        return True


def _bookies_of(metadata: LedgerMetadata, entry_id: int) -> list[str]:
    """Who an entry is asked of; each once."""
    bookies = metadata.ensemble_of(entry_id)
    places = write_set(entry_id, len(bookies), metadata.write_quorum)
    return list(dict.fromkeys(bookies[place] for place in places))


def _names(metadata: LedgerMetadata, bookie_id: str) -> bool:
    return any(bookie_id in bookies for _, bookies in metadata.ensembles)
