"""The bytes of ManagedLedgerInfo, ManagedCursorInfo and PositionInfo: Pulsar's own, so that either broker opens the
topics of the other. The compressed form is understood, and never written (Pulsar's default: no compression).

Cursors have one field more (`cursor_additions.proto`), which other brokers read past.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final

from magnetar.core.errors import PeerError
from magnetar.core.ids import Position
from magnetar.core.limits import KIB
from magnetar.managed.ack_state import AckState
from magnetar.managed.ledger_list import LedgerRecord
from magnetar.managed.redelivery_counts import STORED_COUNTS_MAX
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.wire.errors import BadProtobuf
from magnetar.wire.protobuf import parse
from magnetar.wire.pulsar.compression import decompress
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.generated.cursor_additions_pb2 import CursorAdditions, LedgerRedeliveries
from magnetar.wire.pulsar.generated.ml_data_formats_pb2 import (
    BatchedEntryDeletionIndexInfo,
    KeyValue,
    LongListMap,
    LongProperty,
    ManagedCursorInfo,
    ManagedLedgerInfo,
    ManagedLedgerInfoMetadata,
    MessageRange,
    NestedPositionInfo,
    PositionInfo,
    StringProperty,
)

COMPRESSED_MAGIC: Final = 0x4778
UNCOMPRESSED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes to which a record may be unpacked: 10 000 ledgers or ranges are below 1 MiB."""

PERSISTED_WORDS_MAX: Final = 200_000
"""Words of ack sets in one record of a cursor, 2.2 MB: 10 000 batches of 1 280 messages. A record beyond the size of an
entry could not be stored, and no receipt would be given any more."""

PROPERTY_BYTES_IN_NODE_MAX: Final = 64 * KIB
"""Bytes of a cursor's properties in its node, which have to leave room for everything else there: a node has 1 MB. More
stand in a ledger of the cursor's only."""

PROPERTY_OVERHEAD_BYTES: Final = 20
"""Of one property at the most, beside its name: the number has 10 bytes, then there are marks and lengths."""

DUE_PROPERTY: Final = "magnetar.due-ms"
"""The property of a stored ledger that says when the last of its delayed messages is due, in milliseconds since 1970.
Ours alone. Apache's brokers keep properties of ledgers as they are, but for the one that was in use before they came
(ManagedLedgerImpl.initialize, which makes its record anew)."""

DUE_DIGITS_MAX: Final = 19
"""Digits of the largest time that a client can give; more are none of ours."""

SHADOW_SOURCE_PROPERTY: Final = "PULSAR.SHADOW_SOURCE"
"""Of a shadow topic: the full name of the topic whose ledgers it lists (Pulsar `ShadowManagedLedgerImpl`)."""

WORD_BITS: Final = 64
"""In one word of a set of acknowledged entries."""

POSITION_IN_NODE: Final = -1
"""The ledger id of a cursor whose position stands in the node itself."""


class BrokenMetadata(PeerError):
    """A stored record is not what it should be; the text says which and how."""


class LedgerInfo:
    """A managed ledger's node, decoded."""

    __slots__ = ("properties", "records", "terminated_at")

    def __init__(self, records: list[LedgerRecord], terminated_at: Position | None, properties: dict[str, str]) -> None:
        self.records: list[LedgerRecord] = records
        self.terminated_at: Position | None = terminated_at
        self.properties: dict[str, str] = properties


def encode_ledger_info(
    records: Iterable[LedgerRecord], terminated_at: Position | None, properties: Mapping[str, str]
) -> bytes:
    """The node of a managed ledger. The ledger in use gets neither entries nor size."""
    info = ManagedLedgerInfo()
    for record in records:
        stored = info.ledgerInfo.add()
        if record.rest is not None:
            stored.CopyFrom(record.rest)
        stored.ledgerId = record.ledger_id
        stored.timestamp = record.closed_ms
        if record.due_ms:
            _due_property(stored).value = str(record.due_ms)
        if record.closed_ms:
            stored.entries = record.entries
            stored.size = record.size_bytes
    if terminated_at is not None:
        info.terminatedPosition.CopyFrom(NestedPositionInfo(ledgerId=terminated_at[0], entryId=terminated_at[1]))
    info.properties.extend(KeyValue(key=key, value=value) for key, value in properties.items())
    return info.SerializeToString()


def decode_ledger_info(data: bytes) -> LedgerInfo:
    """The node of a managed ledger, compressed or not. Raises `BrokenMetadata`."""
    try:
        info = parse(ManagedLedgerInfo, _uncompressed(data))
    except BadProtobuf as error:
        raise BrokenMetadata(str(error)) from error
    records = []
    for stored in info.ledgerInfo:
        record = LedgerRecord(stored.ledgerId, stored.entries, stored.size, stored.timestamp)
        if stored.HasField("offloadContext") or stored.properties:
            record.rest = ManagedLedgerInfo.LedgerInfo()
            record.rest.CopyFrom(stored)
            driver = stored.offloadContext.driverMetadata
            _check_texts(driver.name, *_texts(stored.properties), *_texts(driver.properties))
            record.due_ms = _due_ms(stored)
        records.append(record)
    _check_texts(*_texts(info.properties))
    terminated_at = None
    if info.HasField("terminatedPosition"):
        terminated_at = (info.terminatedPosition.ledgerId, info.terminatedPosition.entryId)
    return LedgerInfo(records, terminated_at, {each.key: each.value for each in info.properties})


def encode_position(acks: AckState, properties: Mapping[str, int], settings: ManagedLedgerSettings) -> bytes:
    """An entry of a cursor ledger. At most `unacked_ranges_max` ranges and as many batches are kept."""
    info = PositionInfo(ledgerId=acks.mark_delete[0], entryId=acks.mark_delete[1])
    if acks.individual_count:
        if settings.persist_acks_as_long_array:
            info.individualDeletedMessageRanges.extend(
                LongListMap(key=ledger_id, values=words) for ledger_id, words in acks.long_arrays()
            )
        else:
            info.individualDeletedMessages.extend(_ranges(acks, settings.unacked_ranges_max))
    if properties:
        info.properties.extend(LongProperty(name=name, value=value) for name, value in properties.items())
    if acks.partial:
        info.batchedEntryDeletionIndexInfo.extend(_batches(acks, settings.unacked_ranges_max))
    return info.SerializeToString() + _additions(acks)


def decode_position(data: bytes) -> PositionInfo:
    """The last entry of a cursor ledger. Raises `BrokenMetadata`."""
    try:
        position = parse(PositionInfo, data)
    except BadProtobuf as error:
        raise BrokenMetadata(str(error)) from error
    _check_texts(*[each.name for each in position.properties])
    return position


def encode_cursor_info(
    acks: AckState,
    properties: Mapping[str, int],
    cursor_properties: Mapping[str, str],
    settings: ManagedLedgerSettings,
    now_ms: int,
    cursor_ledger_id: int = POSITION_IN_NODE,
) -> bytes:
    """The node of a cursor. With a cursor ledger, single acknowledgements and counts are there and not in the node.

    So are many properties. Apache's broker takes those of the node only when the node names no ledger
    (ManagedCursorImpl.recover). Ours takes them when that ledger is lost, too, for which the few are in both.

    The time matters to Pulsar's brokers only: they expire subscriptions by it."""
    info = ManagedCursorInfo(
        cursorsLedgerId=cursor_ledger_id,
        markDeleteLedgerId=acks.mark_delete[0],
        markDeleteEntryId=acks.mark_delete[1],
        lastActive=now_ms,
    )
    info.cursorProperties.extend(StringProperty(name=name, value=value) for name, value in cursor_properties.items())
    if cursor_ledger_id == POSITION_IN_NODE or size_of_properties(properties) <= PROPERTY_BYTES_IN_NODE_MAX:
        info.properties.extend(LongProperty(name=name, value=value) for name, value in properties.items())
    if cursor_ledger_id == POSITION_IN_NODE:
        if acks.individual_count:
            info.individualDeletedMessages.extend(_ranges(acks, settings.unacked_ranges_max))
        if acks.partial:
            info.batchedEntryDeletionIndexInfo.extend(_batches(acks, settings.unacked_ranges_max))
        return info.SerializeToString() + _additions(acks)
    return info.SerializeToString()


def size_of_property(name: str) -> int:
    """Bytes of a property of this name in a stored record, at the most."""
    return (len(name) if name.isascii() else len(name.encode())) + PROPERTY_OVERHEAD_BYTES


def size_of_properties(names: Iterable[str]) -> int:
    """Bytes of properties in a stored record, at the most."""
    return sum(map(size_of_property, names))


def decode_cursor_info(data: bytes) -> ManagedCursorInfo:
    """The node of a cursor, compressed or not. Raises `BrokenMetadata`."""
    try:
        info = parse(ManagedCursorInfo, _uncompressed(data))
    except BadProtobuf as error:
        raise BrokenMetadata(str(error)) from error
    _check_texts(*[each.name for each in info.properties])
    _check_texts(*[text for each in info.cursorProperties for text in (each.name, each.value)])
    return info


def restore_acks(acks: AckState, stored: PositionInfo | ManagedCursorInfo) -> None:
    """Load the single acknowledgements of a record, in whichever form they are, into a state that has its mark, and how
    often entries were asked for again."""
    acks.load_ranges(
        (
            (each.lowerEndpoint.ledgerId, each.lowerEndpoint.entryId),
            (each.upperEndpoint.ledgerId, each.upperEndpoint.entryId),
        )
        for each in stored.individualDeletedMessages
    )
    if isinstance(stored, PositionInfo) and stored.individualDeletedMessageRanges:
        acks.load_long_arrays((each.key, list(each.values)) for each in stored.individualDeletedMessageRanges)
    for batch in stored.batchedEntryDeletionIndexInfo:
        acks.load_partial((batch.position.ledgerId, batch.position.entryId), list(batch.deleteSet))
    _restore_redeliveries(acks, stored)


def last_acknowledged(stored: PositionInfo | ManagedCursorInfo) -> Position:
    """The last position of which a record says that it, or a part of it, is acknowledged."""
    if isinstance(stored, PositionInfo):
        found = [(stored.ledgerId, stored.entryId)]
        for each in stored.individualDeletedMessageRanges:
            set_words = [index for index, word in enumerate(each.values) if word]
            if set_words:
                word = each.values[set_words[-1]] & (1 << WORD_BITS) - 1
                found.append((each.key, set_words[-1] * WORD_BITS + word.bit_length() - 1))
    else:
        found = [(stored.markDeleteLedgerId, stored.markDeleteEntryId)]
    found += [(each.upperEndpoint.ledgerId, each.upperEndpoint.entryId) for each in stored.individualDeletedMessages]
    found += [(each.position.ledgerId, each.position.entryId) for each in stored.batchedEntryDeletionIndexInfo]
    return max(found)


def _restore_redeliveries(acks: AckState, stored: PositionInfo | ManagedCursorInfo) -> None:
    try:
        # Pulsar's messages keep a field that they do not have, and write it out again.
        additions = parse(CursorAdditions, stored.SerializeToString())
    except BadProtobuf:
        return  # The number is somebody else's by now. Counts begin again at 0, as they do with Pulsar's brokers.
    for ledger in additions.redeliveries:
        for entry_id, count in zip(ledger.entryIds, ledger.counts, strict=False):
            acks.load_redeliveries((ledger.ledgerId, entry_id), count)


def _additions(acks: AckState) -> bytes:
    """How often entries were asked for again. Protobuf reads one message and behind it another as both together."""
    redeliveries = acks.redeliveries
    if redeliveries is None:
        return b""
    stored = redeliveries.stored_form
    if stored is None:
        redeliveries.forget_up_to(acks.mark_delete)
        ledgers: dict[int, LedgerRedeliveries] = {}
        for (ledger_id, entry_id), count in redeliveries.highest(STORED_COUNTS_MAX):
            ledger = ledgers.get(ledger_id)
            if ledger is None:
                ledger = ledgers[ledger_id] = LedgerRedeliveries(ledgerId=ledger_id)
            ledger.entryIds.append(entry_id)
            ledger.counts.append(count)
        stored = CursorAdditions(redeliveries=list(ledgers.values())).SerializeToString()
        redeliveries.stored_form = stored
    return stored


def _texts(pairs: Iterable[KeyValue]) -> list[str]:
    return [text for each in pairs for text in (each.key, each.value)]


def _check_texts(*texts: object) -> None:
    """Protobuf gives a text that is no UTF-8 as bytes, which nobody expects."""
    for text in texts:
        if not isinstance(text, str):
            raise BrokenMetadata(f"a stored record has a text that is no UTF-8: {text!r}")


def _due_property(stored: ManagedLedgerInfo.LedgerInfo) -> KeyValue:
    for each in stored.properties:
        if each.key == DUE_PROPERTY:
            return each
    return stored.properties.add(key=DUE_PROPERTY)


def _due_ms(stored: ManagedLedgerInfo.LedgerInfo) -> int:
    """0 when there is none; what is no number says nothing."""
    for each in stored.properties:
        if each.key == DUE_PROPERTY and each.value.isdecimal() and len(each.value) <= DUE_DIGITS_MAX:
            return int(each.value)
    return 0


def _ranges(acks: AckState, count_max: int) -> list[MessageRange]:
    return [
        MessageRange(
            lowerEndpoint=NestedPositionInfo(ledgerId=lower[0], entryId=lower[1]),
            upperEndpoint=NestedPositionInfo(ledgerId=upper[0], entryId=upper[1]),
        )
        for lower, upper in acks.ranges(count_max)
    ]


def _batches(acks: AckState, count_max: int) -> list[BatchedEntryDeletionIndexInfo]:
    batches: list[BatchedEntryDeletionIndexInfo] = []
    words_left = PERSISTED_WORDS_MAX
    for position in sorted(acks.partial or ())[:count_max]:
        words = acks.remaining_ack_set(position) or []
        words_left -= len(words)
        if words_left < 0:
            break
        batches.append(
            BatchedEntryDeletionIndexInfo(
                position=NestedPositionInfo(ledgerId=position[0], entryId=position[1]), deleteSet=words
            )
        )
    return batches


def _uncompressed(data: bytes) -> bytes:
    """The protobuf bytes behind the optional magic, header and compression (Pulsar: MetaStoreImpl)."""
    if len(data) < 6 or struct.unpack_from(">H", data)[0] != COMPRESSED_MAGIC:
        return data
    header_size = struct.unpack_from(">I", data, 2)[0]
    # ManagedCursorInfoMetadata has the same fields.
    header = parse(ManagedLedgerInfoMetadata, data[6 : 6 + header_size])
    body = data[6 + header_size :]
    size = header.uncompressedSize
    try:
        # The numbers of compressions are those of the wire.
        plain = decompress(header.compressionType, body, size, UNCOMPRESSED_BYTES_MAX)
    except BadMetadata as error:
        raise BrokenMetadata(f"a compressed record cannot be unpacked: {error}") from error
    if len(plain) != size:
        raise BrokenMetadata(f"a compressed record has {len(plain)} bytes and should have {size}")
    return plain
