"""Where the versions of a topic's schema are: the node of the topic, and the entry of each version's ledger.

Bytes are Pulsar's (SchemaStorageFormat): brokers of both kinds read and write the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from magnetar.core.errors import Unavailable
from magnetar.wire.errors import BadProtobuf
from magnetar.wire.protobuf import parse
from magnetar.wire.pulsar.generated import schema_storage_pb2 as storage_format

TOMBSTONE_HASH = b""
"""The hash that Pulsar writes for a deleted schema; all others have 32 bytes."""


class SchemaStoreCorrupt(Unavailable):
    """The bytes in the schema store are not what should be there."""


@dataclass(frozen=True, slots=True)
class SchemaPosition:
    """One version: its number, where it is stored, the SHA-256 of its data."""

    version: int
    ledger_id: int
    entry_id: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class Locator:
    """All versions of a schema, oldest first; at least one."""

    positions: tuple[SchemaPosition, ...]
    node_version: int
    """The version of the node it was read from: what a change must expect."""

    @property
    def newest(self) -> SchemaPosition:
        """The position of the newest version."""
        return self.positions[-1]

    def live(self) -> tuple[SchemaPosition, ...]:
        """Positions after the last tombstone."""
        for index in range(len(self.positions) - 1, -1, -1):
            if self.positions[index].hash == TOMBSTONE_HASH:
                return self.positions[index + 1 :]
        return self.positions


def locator_bytes(positions: Sequence[SchemaPosition]) -> bytes:
    """The value of the node; the last position is the newest version."""
    message = storage_format.SchemaLocator(info=_index_entry(positions[-1]))
    message.index.extend(_index_entry(position) for position in positions)
    return message.SerializeToString()


def parse_locator(value: bytes, node_version: int) -> Locator:
    """The inverse of `locator_bytes`. `SchemaStoreCorrupt`."""
    try:
        message = parse(storage_format.SchemaLocator, value)
    except BadProtobuf as error:
        raise SchemaStoreCorrupt("a node of the schema store is no SchemaLocator") from error
    positions = tuple(_position(entry) for entry in message.index)
    newest = _position(message.info)
    if not positions or positions[-1] != newest:
        positions += (newest,)
    return Locator(positions, node_version)


def entry_bytes(schema_data: bytes, hash_: bytes, earlier: Sequence[SchemaPosition]) -> bytes:
    """The entry of a version's ledger; it repeats the versions before it, and the first has a placeholder there."""
    message = storage_format.SchemaEntry(schema_data=schema_data)
    index = earlier or (SchemaPosition(0, -1, -1, hash_),)
    message.index.extend(_index_entry(position) for position in index)
    return message.SerializeToString()


def parse_entry(value: bytes) -> bytes:
    """The schema data of an entry: a SchemaInfo message. `SchemaStoreCorrupt`."""
    try:
        return parse(storage_format.SchemaEntry, value).schema_data
    except BadProtobuf as error:
        raise SchemaStoreCorrupt("an entry of the schema store is no SchemaEntry") from error


def _index_entry(position: SchemaPosition) -> storage_format.IndexEntry:
    return storage_format.IndexEntry(
        version=position.version,
        position=storage_format.PositionInfo(ledgerId=position.ledger_id, entryId=position.entry_id),
        hash=position.hash,
    )


def _position(entry: storage_format.IndexEntry) -> SchemaPosition:
    return SchemaPosition(entry.version, entry.position.ledgerId, entry.position.entryId, entry.hash)
