"""Fields as Spark's types and back. pyspark is imported when it is used, not before: workers load this as well."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from magnetar.spark.errors import SchemaUnreadable

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_SIMPLE: Final = (
    (pa.types.is_boolean, "BooleanType"),
    (pa.types.is_int8, "ByteType"),
    (pa.types.is_int16, "ShortType"),
    (pa.types.is_int32, "IntegerType"),
    (pa.types.is_int64, "LongType"),
    (pa.types.is_float32, "FloatType"),
    (pa.types.is_float64, "DoubleType"),
    (pa.types.is_string, "StringType"),
    (pa.types.is_binary, "BinaryType"),
    (pa.types.is_date32, "DateType"),
    (pa.types.is_duration, "DayTimeIntervalType"),
    (pa.types.is_null, "NullType"),
)


def struct_type_of(fields: Iterable[tuple[str, pa.DataType]]) -> StructType:
    """A decoder's fields (or any others of the same types) as a table's schema: all are nullable."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(name, spark_type_of(arrow_type), True) for name, arrow_type in fields])


def spark_type_of(arrow_type: pa.DataType) -> DataType:
    """Spark's type that `arrow_schema_of` turns into this one. The same in each Spark from 4.0 on."""
    from pyspark.sql import types

    for is_type, name in _SIMPLE:
        if is_type(arrow_type):
            made: DataType = getattr(types, name)()
            return made
    if pa.types.is_timestamp(arrow_type):
        return types.TimestampType() if arrow_type.tz else types.TimestampNTZType()
    if pa.types.is_decimal(arrow_type):
        return types.DecimalType(arrow_type.precision, arrow_type.scale)
    if pa.types.is_map(arrow_type):
        return types.MapType(spark_type_of(arrow_type.key_type), spark_type_of(arrow_type.item_type), True)
    if pa.types.is_list(arrow_type):
        return types.ArrayType(spark_type_of(arrow_type.value_type), True)
    if pa.types.is_struct(arrow_type):
        return struct_type_of([(field.name, field.type) for field in arrow_type])
    raise SchemaUnreadable(f"Spark has no type for {arrow_type}")


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark wants batches of a table to have, to the letter, and that it gives to writers."""
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # Spark 4.0 and 4.1 know no other time zone here.
        return to_arrow_schema(schema)  # type: ignore[call-arg, unused-ignore]
