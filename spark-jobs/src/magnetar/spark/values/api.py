"""What the parts of the data source know of schemas: definitions, their versions, decoders and encoders.

Value columns, by the type of the schema that the table is planned with (the newest one):
- NONE, BYTES, PROTOBUF, and types that are not known: `value binary`;
- STRING and the other primitives: `value`, of the type that comes nearest;
- JSON, AVRO, PROTOBUF_NATIVE with a record at the root: one column for each field; else `value`;
- KEY_VALUE: `key` and `value`, a struct where that side has fields.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias, cast

import pyarrow as pa
from magnetar.wire.pulsar.enums import SchemaType
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import KeyValue, Schema

VALUE_COLUMN: Final = "value"
KEY_COLUMN: Final = "key"

VERSION_LENGTH_BYTES: Final = 8
"""Clients older than 2.4 send 64 bytes, of which the first 8 count."""

CACHED_VERSIONS_MAX: Final = 4096
"""Definitions that one `SchemaVersions` keeps; a topic has a handful, so this only bounds what is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaDefinition:
    """One version of a topic's schema. Pickled with a table."""

    type: int
    """Schema.Type of PulsarApi, which may be one that `SchemaType` does not know."""
    name: str = ""
    data: bytes = b""
    """The schema's definition: for JSON, AVRO and PROTOBUF an Avro schema as JSON, for PROTOBUF_NATIVE JSON with
    descriptors in it."""
    properties: Mapping[str, str] = field(default_factory=dict)
    version: bytes = b""
    """8 bytes, big-endian; empty: not registered (yet)."""

    @classmethod
    def registered(cls, schema: Schema, version: bytes = b"") -> SchemaDefinition:
        """The definition of a schema that the broker's registry has, with its version."""
        properties = {pair.key: pair.value for pair in cast("Iterable[KeyValue]", schema.properties)}
        return cls(
            type=int(schema.type), name=schema.name, data=schema.schema_data, properties=properties, version=version
        )

    @property
    def type_name(self) -> str:
        """The schema type's name, for texts."""
        known = SchemaType.from_wire_number(self.type)
        return f"type {self.type}" if known is None else known.name


FetchVersion: TypeAlias = Callable[[bytes], Awaitable["SchemaDefinition | None"]]
"""Asks brokers or the metadata store for one version; None: there is no such version. `ClusterUnreachable` passes
through to who decodes."""


class SchemaVersions:
    """A topic's schema versions, as far as known. Pickled without the fetching, which each process sets anew."""

    def __init__(self, known: Iterable[SchemaDefinition] = (), fetch: FetchVersion | None = None) -> None:
        self._known: dict[bytes, SchemaDefinition | None] = {_key(one.version): one for one in known}
        self.fetch = fetch

    def __getstate__(self) -> dict[bytes, SchemaDefinition | None]:
        return {version: one for version, one in self._known.items() if one is not None}

    def __setstate__(self, known: dict[bytes, SchemaDefinition | None]) -> None:
        self._known = known
        self.fetch = None

    def add(self, definition: SchemaDefinition) -> None:
        """Remember one more version."""
        if len(self._known) < CACHED_VERSIONS_MAX:
            self._known[_key(definition.version)] = definition

    async def get(self, version: bytes) -> SchemaDefinition | None:
        """The definition of a version, asked for once; None when there is none, or when it is unknown and nobody can be
        asked."""
        key = _key(version)
        if key in self._known:
            return self._known[key]
        if self.fetch is None:
            return None
        found = await self.fetch(key)
        if len(self._known) < CACHED_VERSIONS_MAX:
            self._known[key] = found
        return found


@dataclass(slots=True, eq=False)
class DecodedValues:
    """The value columns of some messages. A row in `bad` has null in each."""

    columns: list[pa.Array]
    """In the order, and of the types, of the decoder's `fields()`; all as long as the values were."""
    bad: dict[int, str]
    """Row → why it cannot be decoded; most often empty."""


class ValueDecoder(Protocol):
    """Turns payloads into columns. Pickled with a table; one use at a time."""

    needs_keys: bool
    """The messages' keys are a part of the values (KEY_VALUE, SEPARATED): `decode` has to get them."""
    note: str
    """What a user should know of how the schema is read, to be logged once by the driver; most often empty."""

    def fields(self) -> list[tuple[str, pa.DataType]]:
        """The value columns. All are nullable: a message may have no value."""
        ...

    async def decode(
        self,
        values: pa.Array,
        versions: Sequence[tuple[bytes, int]],
        keys: pa.Array | None = None,
        keys_base64: pa.Array | None = None,
    ) -> DecodedValues:
        """Decode payloads by the schema versions that they were written with.

        `values`: binary; null is a message without value (null_value), which has null in each column and is not bad.
        `versions`: runs of (schema_version as the metadata has it, b"" for none; number of rows), in order, which
        together are as long as `values`. Adjacent runs may have the same version.
        `keys`: string or binary, as the metadata has partition_key; null where there is none or null_partition_key.
        `keys_base64`: boolean (partition_key_b64_encoded); None: no key is in base64. Both are used only if
        `needs_keys`. Bad payloads are told in the answer. Raises only what fetching an unknown version raises.
        """
        ...


class ValueEncoder(Protocol):
    """Turns rows of value columns into payloads."""

    definition: SchemaDefinition
    """The schema that the producer registers."""
    separates_keys: bool
    """`encode_keys` gives what the messages' keys have to be, in base64 with the flag set (KEY_VALUE, SEPARATED)."""

    def encode(self, batch: pa.RecordBatch) -> list[bytes | None]:
        """A payload for each row; None: the message has no value (null_value). Columns are found by their names, those
        that are not the schema's are ignored. Raises `SinkRefused`, with the row, for what the schema does not take."""
        ...

    def encode_keys(self, batch: pa.RecordBatch) -> list[bytes | None]:
        """The key of each row, not yet in base64; None: null_partition_key. Empty if not `separates_keys`."""
        ...


def _key(version: bytes) -> bytes:
    return version[:VERSION_LENGTH_BYTES]
