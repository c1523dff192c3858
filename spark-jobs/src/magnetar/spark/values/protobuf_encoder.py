"""Rows → Protobuf messages, by the descriptors in a PROTOBUF_NATIVE schema."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from magnetar.spark.values.protobuf_values import is_repeated, root_descriptor

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class ProtobufWriter:
    """Columns are found by the names of fields; null leaves a field unset. Columns that are no fields are refused."""

    def __init__(self, data: bytes) -> None:
        """`data`: the schema's file descriptors. `SchemaUnreadable`."""
        self._descriptor = root_descriptor(data)
        self._message = message_factory.GetMessageClass(self._descriptor)

    def write(self, batch: pa.RecordBatch) -> list[bytes | None]:
        """Serialised messages. Raises a ValueError or TypeError for values that the fields do not take."""
        return [
            self._message(**_message(self._descriptor, row)).SerializeToString(deterministic=True)
            for row in batch.to_pylist(maps_as_pydicts="strict")
        ]


def _message(descriptor: Descriptor, row: dict[str, Any]) -> dict[str, Any]:
    fields = descriptor.fields_by_name
    made = {}
    for name, value in row.items():
        if name not in fields:
            raise ValueError(f"{descriptor.full_name} has no field {name}")
        if value is not None:
            made[name] = _field(fields[name], value)
    return made


def _field(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        item = field.message_type.fields_by_name["value"]
        return {key: _single(item, one) for key, one in value.items()}
    return [_single(field, one) for one in value] if is_repeated(field) else _single(field, value)


def _single(field: FieldDescriptor, value: Any) -> Any:
    if isinstance(value, Decimal):
        if value != int(value):
            raise ValueError(f"{field.name} is whole, {value} is not")
        return int(value)
    if field.enum_type is not None and isinstance(value, str):
        # Decoding shows values without a name by their number.
        return field.enum_type.values_by_name[value].number if value in field.enum_type.values_by_name else int(value)
    if field.message_type is None:
        return value
    if isinstance(value, datetime):
        return _seconds((value - _EPOCH) // _MICROSECOND)
    if isinstance(value, timedelta):
        micros = value // _MICROSECOND
        return _seconds(micros) if micros >= 0 else {name: -part for name, part in _seconds(-micros).items()}
    return _message(field.message_type, value)


def _seconds(micros: int) -> dict[str, int]:
    return {"seconds": micros // 1_000_000, "nanos": micros % 1_000_000 * 1000}
