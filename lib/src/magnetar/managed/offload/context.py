"""The offload context in a ledger's stored record: a view of the copy it names, and the records that follow. Pure.

The fields and the steps in which they change are Pulsar's (`MLDataFormats.OffloadContext`, `ManagedLedgerImpl`:
prepareLedgerInfoForOffloaded, completeLedgerInfoForOffloaded, internalTrimLedgers). Everything else in the record stays
as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from magnetar.managed.ledger_list import LedgerRecord
from magnetar.wire.pulsar.generated.ml_data_formats_pb2 import KeyValue, ManagedLedgerInfo

BOOKKEEPER_OWED: Final = "magnetar.bookkeeper-owed"
"""Ours: the property of a stored ledger whose copy at the bookies is not wanted any more and may still be there.
Apache's brokers keep properties of ledgers as they are."""

_WORD_BITS: Final = 64
_WORD_MASK: Final = (1 << _WORD_BITS) - 1


@dataclass(frozen=True, slots=True)
class OffloadedCopy:
    """One ledger's copy in tiered storage, whole or begun."""

    uid: UUID
    complete: bool
    bookkeeper_deleted: bool
    """Whether BookKeeper's copy is given up, so that this is the only one."""
    offloaded_ms: int
    """When it was whole, in milliseconds since 1970."""
    driver: str
    stored: Mapping[str, str]
    """Properties that the driver keeps beside the copy, such as the bucket."""


def copy_of(record: LedgerRecord) -> OffloadedCopy | None:
    """The copy that a record knows of; None when there is none."""
    rest = record.rest
    if rest is None or not rest.offloadContext.HasField("uidMsb"):
        return None
    context = rest.offloadContext
    return OffloadedCopy(
        uid=UUID(int=(context.uidMsb & _WORD_MASK) << _WORD_BITS | context.uidLsb & _WORD_MASK),
        complete=context.complete,
        bookkeeper_deleted=context.bookkeeperDeleted,
        offloaded_ms=context.timestamp,
        driver=context.driverMetadata.name,
        stored={each.key: each.value for each in context.driverMetadata.properties},
    )


def bookkeeper_owed(record: LedgerRecord) -> bool:
    """Whether BookKeeper's copy is given up and may still be there."""
    return record.rest is not None and any(each.key == BOOKKEEPER_OWED for each in record.rest.properties)


def at_bookies(record: LedgerRecord) -> bool:
    """Whether the bookies may have the ledger."""
    copy = copy_of(record)
    return copy is None or not copy.bookkeeper_deleted or bookkeeper_owed(record)


def begun(record: LedgerRecord, uid: UUID, driver: str, stored: Mapping[str, str]) -> LedgerRecord:
    """The record before the first byte is copied."""
    changed = _copied(record)
    context = _rest(changed).offloadContext
    for name in ("complete", "bookkeeperDeleted", "timestamp", "driverMetadata"):
        context.ClearField(name)
    context.uidMsb = _signed(uid.int >> _WORD_BITS)
    context.uidLsb = _signed(uid.int & _WORD_MASK)
    context.driverMetadata.name = driver
    context.driverMetadata.properties.extend(KeyValue(key=key, value=value) for key, value in stored.items())
    return changed


def completed(record: LedgerRecord, now_ms: int) -> LedgerRecord:
    """The record once all of the ledger can be read from tiered storage."""
    changed = _copied(record)
    context = _rest(changed).offloadContext
    context.complete = True
    context.timestamp = now_ms
    return changed


def without_copy(record: LedgerRecord) -> LedgerRecord:
    """The record of a ledger whose copy was never whole, and is given up."""
    changed = _copied(record)
    _rest(changed).ClearField("offloadContext")
    return changed


def without_bookkeeper(record: LedgerRecord) -> LedgerRecord:
    """The record once BookKeeper's copy may go, which it owes from here on."""
    changed = _copied(record)
    rest = _rest(changed)
    rest.offloadContext.bookkeeperDeleted = True
    if not bookkeeper_owed(record):
        rest.properties.add(key=BOOKKEEPER_OWED, value="true")
    return changed


def bookkeeper_settled(record: LedgerRecord) -> LedgerRecord:
    """The record once BookKeeper's copy is gone."""
    changed = _copied(record)
    rest = _rest(changed)
    kept = [each for each in rest.properties if each.key != BOOKKEEPER_OWED]
    rest.ClearField("properties")
    rest.properties.extend(kept)
    return changed


def _copied(record: LedgerRecord) -> LedgerRecord:
    copied = LedgerRecord(record.ledger_id, record.entries, record.size_bytes, record.closed_ms)
    copied.due_ms = record.due_ms
    copied.rest = ManagedLedgerInfo.LedgerInfo()
    if record.rest is not None:
        copied.rest.CopyFrom(record.rest)
    copied.rest.ledgerId = record.ledger_id
    return copied


def _rest(record: LedgerRecord) -> ManagedLedgerInfo.LedgerInfo:
    assert record.rest is not None
    return record.rest


def _signed(word: int) -> int:
    return word - (1 << _WORD_BITS) if word >> (_WORD_BITS - 1) else word
