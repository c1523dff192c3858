"""Which decoder reads a topic: by the newest schema for the table, and by each message's version for its payload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from magnetar.spark.errors import SchemaUnreadable
from magnetar.spark.values.api import VERSION_LENGTH_BYTES, DecodedValues, SchemaDefinition, SchemaVersions
from magnetar.spark.values.assembling import reason_of, without_rows
from magnetar.spark.values.avro_values import AvroPayloads
from magnetar.spark.values.json_values import JsonPayloads
from magnetar.spark.values.key_value import KeyValuePayloads, decoded_keys, is_separated, sides
from magnetar.spark.values.payloads import Payloads, null_columns
from magnetar.spark.values.primitives import PRIMITIVES, BytesPayloads, PrimitivePayloads, StringPayloads
from magnetar.spark.values.protobuf_values import ProtobufPayloads
from magnetar.spark.values.shapes import AvroDefinition
from magnetar.wire.pulsar.enums import SchemaType

PLANS_MAX: Final = 4096
"""Versions that a decoder keeps a way of reading for; see `CACHED_VERSIONS_MAX`."""

BYTES_DEFINITION: Final = SchemaDefinition(type=SchemaType.NONE, name="Bytes")


def decoder_for(definition: SchemaDefinition | None, versions: SchemaVersions | None = None) -> SchemaDecoder:
    """The decoder of a table whose schema is this; None: payloads as they are.

    `versions`: where the schemas of other messages come from. Raises `SchemaUnreadable` for a schema without columns:
    one that contains itself, or is none. Such a topic can still be read with `definition` None.
    """
    return SchemaDecoder(definition or BYTES_DEFINITION, versions or SchemaVersions())


class SchemaDecoder:
    """Decodes by schema versions; see `ValueDecoder` for the methods."""

    def __init__(self, table: SchemaDefinition, versions: SchemaVersions) -> None:
        self.table = table
        self.versions = versions
        self._plain, self.note = _reading(table)
        self._table_payloads = payloads_for(self._plain, self._plain)
        self._plans: dict[bytes, Payloads | str] = {b"": self._table_payloads}
        self.needs_keys = table.type == SchemaType.KEY_VALUE and is_separated(table)

    def __reduce__(self) -> tuple[Callable[..., SchemaDecoder], tuple[SchemaDefinition, SchemaVersions]]:
        return SchemaDecoder, (self.table, self.versions)

    def fields(self) -> list[tuple[str, pa.DataType]]:
        """The value columns of the table's schema; all are nullable."""
        return self._table_payloads.fields()

    async def decode(
        self,
        values: pa.Array,
        versions: Sequence[tuple[bytes, int]],
        keys: pa.Array | None = None,
        keys_base64: pa.Array | None = None,
    ) -> DecodedValues:
        """Columns of the payloads, each decoded by the schema version that it was written with; payloads of versions
        that are not there, or do not fit the table, are bad rows. Raises only what fetching an unknown version
        raises."""
        bad_keys: dict[int, str] = {}
        if keys is not None and self.needs_keys:
            keys, bad_keys = decoded_keys(keys, keys_base64)
        plans: list[Payloads | str] = []
        plan_of_version: dict[bytes, int] = {}
        for version, _ in versions:
            if version not in plan_of_version:
                plan = await self._plan(version)
                found = next((index for index, one in enumerate(plans) if one is plan), len(plans))
                plan_of_version[version] = found
                if found == len(plans):
                    plans.append(plan)
        if len(plans) <= 1:
            decoded = self._by_plan(plans[0] if plans else self._table_payloads, values, keys)
        else:
            numbers = [plan_of_version[version] for version, _ in versions]
            rows = np.repeat(np.array(numbers), [count for _, count in versions])
            decoded = self._by_plans(plans, rows, values, keys)
        if not bad_keys:
            return decoded
        return without_rows(decoded.columns, {**decoded.bad, **bad_keys}, bad_keys)

    def _by_plans(
        self, plans: list[Payloads | str], plan_of_row: npt.NDArray[np.int64], values: pa.Array, keys: pa.Array | None
    ) -> DecodedValues:
        """Rows of one plan together, then all back in order: writers may well alternate."""
        order = np.argsort(plan_of_row, kind="stable")
        parts: list[list[pa.Array]] = []
        bad: dict[int, str] = {}
        for number, plan in enumerate(plans):
            rows = np.flatnonzero(plan_of_row == number)
            taken = pa.array(rows)
            part = self._by_plan(plan, values.take(taken), None if keys is None else keys.take(taken))
            parts.append(part.columns)
            bad.update({int(rows[row]): reason for row, reason in part.bad.items()})
        back = pa.array(np.argsort(order, kind="stable"))
        columns = [pa.concat_arrays(column).take(back) for column in zip(*parts, strict=True)]
        return DecodedValues(columns, bad)

    def _by_plan(self, plan: Payloads | str, values: pa.Array, keys: pa.Array | None) -> DecodedValues:
        if not isinstance(plan, str):
            return plan.decode(values, keys)
        present = np.flatnonzero(np.asarray(values.is_valid())).tolist()
        return DecodedValues(null_columns(self.fields(), len(values)), dict.fromkeys(present, plan))

    async def _plan(self, version: bytes) -> Payloads | str:
        """How to read payloads of a version, or why that cannot be done."""
        plan = self._plans.get(version)
        if plan is None:
            plan = self._planned(version, await self.versions.get(version))
            if len(self._plans) < PLANS_MAX:
                self._plans[version] = plan
        return plan

    def _planned(self, version: bytes, writer: SchemaDefinition | None) -> Payloads | str:
        number = int.from_bytes(version[:VERSION_LENGTH_BYTES], "big", signed=True)
        table = self._plain
        if table.type == SchemaType.NONE:
            return self._table_payloads
        if writer is None and table.type not in _NEED_WRITERS:
            return self._table_payloads
        if writer is None:
            return f"its schema version {number} is not in the registry"
        if writer.type != self.table.type:
            return f"schema version {number} is of type {writer.type_name}, the table's of {self.table.type_name}"
        # What a KEY_VALUE's sides are stands in its properties.
        pair = table.type == SchemaType.KEY_VALUE
        if writer.data == self.table.data and not (pair and writer.properties != self.table.properties):
            return self._table_payloads
        try:
            return payloads_for(table, _reading(writer)[0])
        except SchemaUnreadable as error:
            return f"schema version {number}: {reason_of(error)}"


def payloads_for(table: SchemaDefinition, writer: SchemaDefinition) -> Payloads:
    """How a writer's payloads become the table's columns; both are of the same type. Raises `SchemaUnreadable`."""
    if table.type in PRIMITIVES:
        return PrimitivePayloads(SchemaType(table.type))
    match table.type:
        case SchemaType.STRING:
            return StringPayloads()
        case SchemaType.JSON:
            return JsonPayloads(AvroDefinition(table.data))
        case SchemaType.AVRO:
            return AvroPayloads(AvroDefinition(table.data), AvroDefinition(writer.data))
        case SchemaType.PROTOBUF_NATIVE:
            return ProtobufPayloads(table.data)
        case SchemaType.KEY_VALUE:
            return _key_value(table, writer)
        case _:
            return BytesPayloads()


def _key_value(table: SchemaDefinition, writer: SchemaDefinition) -> Payloads:
    if is_separated(writer) and not is_separated(table):
        raise SchemaUnreadable("its keys are messages' keys, the table's are not")
    made = []
    for side, table_side, writer_side in zip(("key", "value"), sides(table), sides(writer), strict=True):
        if table_side.type == SchemaType.KEY_VALUE:
            raise SchemaUnreadable("a KEY_VALUE schema inside of another")
        if table_side.type != writer_side.type:
            raise SchemaUnreadable(
                f"the {side} is of type {writer_side.type_name}, the table's of {table_side.type_name}"
            )
        made.append(payloads_for(_reading(table_side)[0], _reading(writer_side)[0]))
    return KeyValuePayloads(made[0], made[1], is_separated(writer))


def _reading(definition: SchemaDefinition) -> tuple[SchemaDefinition, str]:
    """The schema by which payloads are read, and a note where that is not the one that is registered."""
    if definition.type == SchemaType.JSON and not _is_avro(definition.data):
        # Clients before 2.1 registered a JSON Schema.
        return SchemaDefinition(type=SchemaType.STRING), "the schema is no Avro schema: payloads are read as JSON texts"
    if definition.type in _READ or definition.type == SchemaType.NONE:
        return definition, ""
    return BYTES_DEFINITION, f"payloads of schema type {definition.type_name} are read as bytes"


def _is_avro(data: bytes) -> bool:
    return b'"properties"' not in data or b'"fields"' in data


_READ: Final = frozenset(
    {*PRIMITIVES, SchemaType.STRING, SchemaType.JSON, SchemaType.AVRO, SchemaType.PROTOBUF_NATIVE, SchemaType.KEY_VALUE}
)

_NEED_WRITERS: Final = frozenset({SchemaType.AVRO, SchemaType.KEY_VALUE})
"""Types whose payloads cannot be read without the schema that they were written with."""
