"""Sees everything of the managed ledger: what its owners are told, and what the next one would find at that moment.

What a receipt told an owner must be in the cursor's node, or in the entries of the ledger that the node names; a
confirmed entry must be in a ledger that the managed ledger's node lists. What is on disks is the other witness's part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from magnetar.core.ids import Position
from magnetar.ledger.ledger_paths import ledger_id_of
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.info_codec import POSITION_IN_NODE, decode_cursor_info, decode_ledger_info, decode_position
from magnetar.managed.paths import ROOT, cursor_path, ledger_path
from magnetar.metadata.tree import NodeTable, Outcome
from magnetar.wire.bookkeeper.ledger_metadata import LedgerState
from magnetar.wire.pulsar.generated.ml_data_formats_pb2 import ManagedCursorInfo, PositionInfo

from e2e.simulation.witness import Witness

TOPIC: Final = "public/default/persistent/simulated"
CURSOR: Final = "sub"
NOWHERE: Final[Position] = (-1, -1)
_WORD_BITS: Final = 64


class StoredAcknowledgements:
    """What a cursor's node, or an entry of its ledger, says."""

    def __init__(self, stored: PositionInfo | ManagedCursorInfo) -> None:
        if isinstance(stored, PositionInfo):
            self.mark: Position = (stored.ledgerId, stored.entryId)
        else:
            self.mark = (stored.markDeleteLedgerId, stored.markDeleteEntryId)
        self._stretches = [
            (
                (each.lowerEndpoint.ledgerId, each.lowerEndpoint.entryId),
                (each.upperEndpoint.ledgerId, each.upperEndpoint.entryId),
            )
            for each in stored.individualDeletedMessages
        ]
        self._words: dict[int, list[int]] = {}
        if isinstance(stored, PositionInfo):
            self._words = {each.key: list(each.values) for each in stored.individualDeletedMessageRanges}

    def cover(self, position: Position) -> bool:
        """Whether an entry is acknowledged."""
        if position <= self.mark or any(lower < position <= upper for lower, upper in self._stretches):
            return True
        words = self._words.get(position[0], ())
        number, bit = divmod(position[1], _WORD_BITS)
        return number < len(words) and bool(words[number] >> bit & 1)


class TopicWitness:
    """Of one run."""

    def __init__(self, witness: Witness, table: NodeTable) -> None:
        """`table`: the nodes as the service has them."""
        self.confirmed: dict[Position, bytes] = {}
        """Entries that an owner was told of, and what it appended there."""
        self.receipts: dict[Position, None] = {}
        """Entries whose acknowledgement an owner was told to be durable."""
        self.mark = NOWHERE
        """The greatest mark that an owner was told to be durable."""
        self.asked: set[Position] = set()
        """Entries that some owner has acknowledged."""
        self.asked_up_to = NOWHERE
        self._witness = witness
        self._table = table
        self._last_told: dict[str, Position] = {}

    # --- what owners do and are told

    def appended(self, owner: str, first: Position, payloads: Sequence[bytes]) -> None:
        """An owner was told that a batch is stored."""
        if first <= self._last_told.get(owner, NOWHERE):
            self._witness.accuse(f"{owner} is told of {first} after {self._last_told[owner]}")
        ledger_id, entry_id = first
        for number, payload in enumerate(payloads, entry_id):
            if (ledger_id, number) in self.confirmed:
                self._witness.accuse(f"{owner} is told of {ledger_id}:{number}, which is another entry's place")
            self.confirmed[(ledger_id, number)] = payload
        self._last_told[owner] = (ledger_id, entry_id + len(payloads) - 1)
        watched = self._witness.ledgers.get(ledger_id)
        if watched is not None and watched.confirmed < entry_id + len(payloads) - 1:
            self._witness.accuse(f"{owner} is told of {first}; its ledger is confirmed up to {watched.confirmed}")
        self._check_listed([ledger_id])

    def acknowledged(self, positions: Sequence[Position]) -> None:
        """An owner acknowledges single entries."""
        self.asked.update(positions)

    def acknowledged_up_to(self, position: Position) -> None:
        """An owner acknowledges all entries up to one."""
        self.asked_up_to = max(self.asked_up_to, position)

    def was_asked(self, position: Position) -> bool:
        """Whether somebody has acknowledged an entry."""
        return position in self.asked or position <= self.asked_up_to

    def receipt(self, owner: str, positions: Sequence[Position], mark: Position) -> None:
        """An owner was told that these acknowledgements, and its mark, are durable."""
        self.receipts.update(dict.fromkeys(positions))
        self.mark = max(self.mark, mark)
        self._check_cursor(f"{owner} has a receipt", positions)

    def delivered(self, owner: str, position: Position, payload: bytes) -> None:
        """A consumer was given an entry."""
        if self.confirmed.get(position, payload) != payload:
            self._witness.accuse(f"{owner} was given another entry {position} than was appended")

    def found_at_the_end(self, entries: Mapping[Position, bytes], cursor: Cursor) -> None:
        """A new owner has read everything."""
        for position, payload in self.confirmed.items():
            found = entries.get(position)
            if found is None and not self.was_asked(position):
                self._witness.accuse(f"the last owner does not find {position}")
            elif found is not None and found != payload:
                self._witness.accuse(f"the last owner finds another entry {position} than was appended")
        for position in self.receipts:
            if not cursor.is_acknowledged(position):
                self._witness.accuse(f"the last owner does not know that {position} is acknowledged, with a receipt")
        for position in entries:
            if cursor.is_acknowledged(position) and not self.was_asked(position):
                self._witness.accuse(f"the last owner takes {position} for acknowledged, and nobody did that")
        if any(cursor.mark_delete < each <= self.mark and not cursor.is_acknowledged(each) for each in entries):
            self._witness.accuse(f"the last owner has the mark at {cursor.mark_delete}; it was at {self.mark}")

    # --- what happens to metadata

    def metadata_applied(self, outcome: Outcome) -> None:
        """The service has made an outcome so."""
        changed = [path for path, _ in (*outcome.saves, *outcome.removals)]
        if any(path.startswith(ROOT) for path in changed):
            self._check_listed(sorted({ledger_id for ledger_id, _ in self.confirmed}))
            self._check_cursor("the nodes have changed", list(self.receipts))
        elif any(ledger_id_of(path) is not None for path, _ in outcome.removals):
            self._check_cursor("ledgers were deleted", list(self.receipts))

    def _check_listed(self, ledger_ids: Sequence[int]) -> None:
        """Confirmed entries that nobody has acknowledged must be in a ledger that the next owner knows."""
        listed = self._listed()
        for ledger_id in ledger_ids:
            if ledger_id in listed and ledger_id in self._witness.ledgers:
                continue
            lost = [
                position for position in self.confirmed if position[0] == ledger_id and not self.was_asked(position)
            ]
            if lost:
                self._witness.accuse(f"the next owner does not find {lost[0]}: its ledger is not listed, or deleted")

    def _listed(self) -> set[int]:
        node = self._table.load(ledger_path(TOPIC))
        return set() if node is None else {record.ledger_id for record in decode_ledger_info(node.value).records}

    def _check_cursor(self, when: str, positions: Sequence[Position]) -> None:
        if not self.receipts:
            return
        stored = self._stored()
        if stored is None:
            self._witness.accuse(f"{when}, and the cursor's node, or what it names, is not there")
            return
        missing = [position for position in positions if not stored.cover(position)]
        if missing:
            self._witness.accuse(
                f"{when}, and the next owner does not find the acknowledgements of {missing[:3]}, {len(missing)} in all"
            )
        if stored.mark < self.mark and self._unacknowledged_between(stored):
            self._witness.accuse(f"{when}, and the next owner finds the mark at {stored.mark}; it was at {self.mark}")

    def _unacknowledged_between(self, stored: StoredAcknowledgements) -> bool:
        """A mark may be said in another way: by the entry before, or by what follows ledgers that were trimmed."""
        listed = self._listed()
        between = [each for each in self.confirmed if stored.mark < each <= self.mark and each[0] in listed]
        return any(not stored.cover(each) for each in between)

    def _stored(self) -> StoredAcknowledgements | None:
        """What the next owner would begin with, at least."""
        node = self._table.load(cursor_path(TOPIC, CURSOR))
        if node is None:
            return None
        info = decode_cursor_info(node.value)
        if info.cursorsLedgerId == POSITION_IN_NODE:
            return StoredAcknowledgements(info)
        ledger = self._witness.ledgers.get(info.cursorsLedgerId)
        if ledger is None:
            return None
        last = ledger.confirmed
        if ledger.metadata.state is LedgerState.CLOSED:
            last = ledger.metadata.last_entry_id
        return StoredAcknowledgements(decode_position(ledger.payloads[last]) if last >= 0 else info)
