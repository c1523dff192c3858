"""Numbers of Pulsar's protocol that more than one part of Magnetar names. Compiled: dispatch asks them per read.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

import enum
from typing import Final

SNAPSHOT_MARKER: Final = 12
"""The type of the marker that keeps a snapshot for replicated subscriptions (`PulsarMarkers.proto`)."""


class SubscriptionType(enum.IntEnum):
    """How a subscription shares its entries, by the numbers of `CommandSubscribe.SubType`."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3

    @property
    def display_name(self) -> str:
        """The name that the admin API writes."""
        return self.name.title()

    @property
    def acknowledges_individually(self) -> bool:
        """Several consumers at once: unacknowledged entries are kept per consumer, cumulative acks are refused."""
        return self in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)


class SchemaType(enum.IntEnum):
    """Types by the names of the admin REST API; values are those of Pulsar's SchemaType. Below zero: never stored."""

    AUTO_PUBLISH = -4
    AUTO_CONSUME = -3
    AUTO = -2
    BYTES = -1
    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20
    EXTERNAL = 21

    @property
    def wire_number(self) -> int:
        """The number of PulsarApi's Schema.Type; types that the wire does not know travel as None (0)."""
        return _WIRE_NUMBERS[self]

    @classmethod
    def from_wire_number(cls, number: int) -> SchemaType | None:
        """The type that a wire number means; None for an unknown one. BYTES has that of NONE, and is not told."""
        return _TYPES_BY_WIRE_NUMBER.get(number)

    @property
    def storage_number(self) -> int:
        """The number of the schema store's SchemaInfo: one more; types below zero are stored as NONE (1)."""
        return max(self.value, 0) + 1

    @classmethod
    def from_storage_number(cls, number: int) -> SchemaType:
        """The inverse of `storage_number`."""
        return cls(number - 1)


_WIRE_EXTERNAL: Final = 22
_WIRE_AUTO_CONSUME: Final = 21
_WIRE_NUMBERS: Final = {
    **{member: max(member.value, 0) for member in SchemaType},
    SchemaType.AUTO_CONSUME: _WIRE_AUTO_CONSUME,
    SchemaType.EXTERNAL: _WIRE_EXTERNAL,
}
_TYPES_BY_WIRE_NUMBER: Final = {
    number: member for member, number in _WIRE_NUMBERS.items() if member.value >= 0 or number == _WIRE_AUTO_CONSUME
}
