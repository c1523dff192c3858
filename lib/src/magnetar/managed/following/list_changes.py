"""What the node of a managed ledger says, taken over into the list that a follower has. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from magnetar.core.ids import NO_ENTRY
from magnetar.managed.info_codec import BrokenMetadata, LedgerInfo
from magnetar.managed.ledger_list import LedgerList, LedgerRecord

NO_LEDGER: Final = NO_ENTRY
"""The id of the record that stands in for the first ledger as long as the owner has made none."""


@dataclass(slots=True)
class ListChanges:
    """What became of the ledgers."""

    added: list[int] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    counted: list[int] = field(default_factory=list)
    """Those of which the node says now how many entries they have."""
    moved: list[int] = field(default_factory=list)
    """Those that are to be read from elsewhere: they went to tiered storage, or left the bookies."""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.counted or self.moved)


def is_counted(record: LedgerRecord) -> bool:
    """Whether a stored record says how many entries the ledger has: the one in use has neither time nor count."""
    return record.closed_ms > 0 or record.entries > 0


def current_of(info: LedgerInfo) -> int | None:
    """The ledger that is being written, as far as the node tells; None: there is none, or it is terminated."""
    if info.terminated_at is not None or not info.records or is_counted(info.records[-1]):
        return None
    return info.records[-1].ledger_id


def take_over(ledgers: LedgerList, info: LedgerInfo) -> ListChanges:
    """Bring the list up to what is stored. A ledger that is being written keeps the count that it has here.

    Raises `BrokenMetadata`, and changes nothing, when ledgers are out of order: they are never made so."""
    known = set(ledgers.ids)
    ids = [record.ledger_id for record in info.records]
    if ids != sorted(set(ids)) or any(each < 0 for each in ids):
        raise BrokenMetadata(f"ledgers are out of order: {ids}")
    new = [record for record in info.records if record.ledger_id not in known]
    if new and ledgers.ids and new[0].ledger_id < ledgers.ids[-1]:
        raise BrokenMetadata(f"ledger {new[0].ledger_id} has come before {ledgers.ids[-1]}, which was there")
    changes = ListChanges()
    for stored in info.records:
        record = ledgers.get(stored.ledger_id)
        if record is not None:
            _update(record, stored, changes)
    changes.removed = sorted(known.difference(ids)) if ids else sorted(known - {NO_LEDGER})
    for record in new:
        ledgers.add(record)
        changes.added.append(record.ledger_id)
    ledgers.remove(changes.removed)
    if not ids and not len(ledgers):
        ledgers.add(LedgerRecord(NO_LEDGER))
    if info.terminated_at is not None:
        _terminate(ledgers, info)
    return changes


def _update(record: LedgerRecord, stored: LedgerRecord, changes: ListChanges) -> None:
    before = record.rest.offloadContext if record.rest is not None else None
    now = stored.rest.offloadContext if stored.rest is not None else None
    if before != now:
        changes.moved.append(record.ledger_id)
    record.rest, record.due_ms = stored.rest, stored.due_ms
    if is_counted(stored) and (record.closed_ms != stored.closed_ms or record.entries != stored.entries):
        changes.counted.append(record.ledger_id)
        record.entries, record.size_bytes, record.closed_ms = stored.entries, stored.size_bytes, stored.closed_ms


def _terminate(ledgers: LedgerList, info: LedgerInfo) -> None:
    """The last position says as much as a count; it may be stored alone."""
    assert info.terminated_at is not None
    ledger_id, entry_id = info.terminated_at
    record = ledgers.get(ledger_id)
    if record is not None and not any(is_counted(each) for each in info.records if each.ledger_id == ledger_id):
        record.entries = entry_id + 1
