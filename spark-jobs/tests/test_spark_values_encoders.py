"""What the sink writes: stock clients' schemas read it, and so do our decoders; Spark's own types."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from magnetar.spark.errors import SinkRefused
from magnetar.spark.values.api import SchemaDefinition
from magnetar.spark.values.definitions import DefinitionKind, definition_for
from magnetar.spark.values.encoders import encoder_for
from magnetar.spark.values.registry import decoder_for
from magnetar.spark.values.shapes import list_type, map_type, struct_type
from magnetar.spark.values.spark_schema import arrow_schema_of, struct_type_of
from magnetar.wire.pulsar.enums import SchemaType
from pulsar import schema as stock

TABLE: list[tuple[str, pa.DataType]] = [
    ("flag", pa.bool_()),
    ("int", pa.int32()),
    ("long", pa.int64()),
    ("float", pa.float32()),
    ("double", pa.float64()),
    ("text", pa.string()),
    ("raw", pa.binary()),
    ("day", pa.date32()),
    ("at", pa.timestamp("us", tz="UTC")),
    ("local", pa.timestamp("us")),
    ("price", pa.decimal128(10, 2)),
    ("list", list_type(struct_type([("x", pa.int64()), ("y", list_type(pa.string()))]))),
    ("map", map_type(pa.decimal128(5, 1))),
    ("inner", struct_type([("x", pa.string()), ("deep", struct_type([("z", pa.binary())]))])),
]
ROWS: list[dict[str, Any]] = [
    {
        "flag": True,
        "int": -1,
        "long": 2**62,
        "float": 1.5,
        "double": -0.1,
        "text": "é",
        "raw": b"\xff\x00",
        "day": date(1950, 1, 1),
        "at": datetime(1950, 1, 1, 1, 2, 3, 4, UTC),
        "local": datetime(2050, 1, 1, 1, 2, 3, 4),  # noqa: DTZ001 - local.
        "price": Decimal("-99999999.99"),
        "list": [{"x": 1, "y": ["a", None]}, None, {"x": None, "y": None}],
        "map": [("k", Decimal("1.5")), ("l", None)],
        "inner": {"x": None, "deep": {"z": b"z"}},
    },
    dict.fromkeys(dict(TABLE)),
    {**dict.fromkeys(dict(TABLE)), "list": [], "map": [], "inner": {"x": "x", "deep": None}},
]


def batch_of(rows: list[dict[str, Any]], fields: list[tuple[str, pa.DataType]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, pa.schema(fields))


@pytest.mark.parametrize("kind", ["json", "avro"])
async def test_records_come_back(kind: DefinitionKind) -> None:
    batch = batch_of([ROWS[2], *ROWS], TABLE).slice(1)
    definition = definition_for(batch.schema, kind)
    payloads = encoder_for(definition, TABLE).encode(batch)
    decoder = decoder_for(definition)
    assert decoder.fields() == TABLE
    result = await decoder.decode(pa.array(payloads, pa.binary()), [(b"", len(payloads))])
    assert not result.bad
    assert pa.Table.from_arrays(result.columns, [name for name, _ in TABLE]).to_pylist() == ROWS


def test_stock_consumers_read_what_is_written() -> None:
    fields = [("i", pa.int32()), ("s", pa.string()), ("d", pa.float64())]
    rows: list[dict[str, Any]] = [{"i": 1, "s": "x", "d": 0.5}, {"i": None, "s": None, "d": None}]

    class Row(stock.Record):  # type: ignore[misc]  # It has no types.
        i = stock.Integer()
        s = stock.String()
        d = stock.Double()

    for kind, schema in (("avro", stock.AvroSchema(Row)), ("json", stock.JsonSchema(Row))):
        batch = batch_of(rows, fields)
        definition = definition_for(batch.schema, "json" if kind == "json" else "avro")
        read = [schema.decode(payload) for payload in encoder_for(definition, fields).encode(batch)]
        assert [(one.i, one.s, one.d) for one in read] == [(1, "x", 0.5), (None, None, None)]


def test_the_definition_is_an_avro_record_of_nullable_fields() -> None:
    definition = definition_for(pa.schema([pa.field("id", pa.int64(), nullable=False), ("s", pa.string())]))
    assert definition.type == SchemaType.AVRO
    assert definition.data == (
        b'{"type":"record","name":"Row","fields":[{"name":"id","type":["null","long"],"default":null},'
        b'{"name":"s","type":["null","string"],"default":null}]}'
    )
    assert definition.properties == {"__alwaysAllowNull": "true", "__jsr310ConversionEnabled": "false"}
    everything = definition_for(pa.schema(TABLE), "avro")
    fastavro.parse_schema(json.loads(everything.data))


@pytest.mark.parametrize(
    ("arrow_type", "schema_type"),
    [
        (pa.binary(), SchemaType.NONE),
        (pa.string(), SchemaType.STRING),
        (pa.bool_(), SchemaType.BOOLEAN),
        (pa.int8(), SchemaType.INT8),
        (pa.int16(), SchemaType.INT16),
        (pa.int32(), SchemaType.INT32),
        (pa.int64(), SchemaType.INT64),
        (pa.float32(), SchemaType.FLOAT),
        (pa.float64(), SchemaType.DOUBLE),
        (pa.date32(), SchemaType.LOCAL_DATE),
        (pa.timestamp("us", tz="UTC"), SchemaType.INSTANT),
        (pa.timestamp("us"), SchemaType.LOCAL_DATE_TIME),
        (pa.decimal128(12, 1), SchemaType.AVRO),
    ],
)
async def test_single_values(arrow_type: pa.DataType, schema_type: SchemaType) -> None:
    definition = definition_for(pa.schema([("value", arrow_type)]))
    assert definition.type == schema_type
    values = pa.array([1, 0, None], pa.int8()).cast(pa.int32())
    column = values.cast(pa.string()).cast(arrow_type) if arrow_type == pa.binary() else None
    if column is None:
        via = pa.int64() if pa.types.is_timestamp(arrow_type) else pa.int32()
        column = values.cast(via).cast(arrow_type)
    batch = pa.RecordBatch.from_arrays([column], ["value"])
    payloads = encoder_for(definition, [("value", arrow_type)]).encode(batch)
    result = await decoder_for(definition).decode(pa.array(payloads, pa.binary()), [(b"", 3)])
    assert result.columns[0].equals(column)
    assert schema_type is SchemaType.AVRO or payloads[2] is None


def test_a_registered_schema_is_kept_to() -> None:
    schema = {
        "type": "record",
        "name": "R",
        "namespace": "com.acme",
        "fields": [
            {"name": "a", "type": "int"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "u", "type": ["null", "string", {"type": "fixed", "name": "F", "size": 2}], "default": None},
            {"name": "d", "type": "string", "default": "default"},
            {"name": "price", "type": {"type": "fixed", "name": "P", "size": 4, "logicalType": "decimal",
                                       "precision": 8, "scale": 2}},
        ],
    }  # fmt: skip
    definition = SchemaDefinition(type=SchemaType.AVRO, data=json.dumps(schema).encode())
    fields = [
        ("price", pa.decimal128(6, 1)),
        ("a", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("u", struct_type([("member0", pa.string()), ("member1", pa.binary())])),
    ]
    encoder = encoder_for(definition, fields)
    at = datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)
    good = {"a": 1, "at": at, "u": {"member0": None, "member1": b"ab"}, "price": Decimal("1.5")}
    (payload,) = encoder.encode(batch_of([good], fields))
    assert payload is not None
    read = fastavro.schemaless_reader(io.BytesIO(payload), fastavro.parse_schema(schema))
    assert read == {
        "a": 1,
        "at": at.replace(microsecond=123000),
        "u": b"ab",
        "d": "default",
        "price": Decimal("1.5"),
    }
    for bad in ({"a": None}, {"a": 2**40}, {"u": {"member0": "x", "member1": b"ab"}}):
        with pytest.raises(SinkRefused, match="row 1"):
            encoder.encode(batch_of([good, {**good, **bad}], fields))
    with pytest.raises(SinkRefused, match="needs columns"):
        encoder_for(definition, fields[:1])
    with pytest.raises(SinkRefused, match="no fields more"):
        encoder_for(definition, [*fields, ("more", pa.int32())])


@pytest.mark.parametrize(("plain", "large"), [(pa.string(), pa.large_string()), (pa.binary(), pa.large_binary())])
def test_large_types_are_the_same(plain: pa.DataType, large: pa.DataType) -> None:
    """Tasks get them where spark.sql.execution.arrow.useLargeVarTypes is set, the driver does not."""

    def schemas(arrow_type: pa.DataType) -> list[pa.Schema]:
        text = large if arrow_type == large and plain == pa.string() else pa.string()
        return [
            pa.schema({"value": arrow_type}),
            pa.schema({"value": arrow_type, "map": map_type(arrow_type, text), "list": list_type(arrow_type)}),
        ]

    for one, other in zip(schemas(plain), schemas(large), strict=True):
        assert definition_for(one) == definition_for(other)


@pytest.mark.parametrize("kind", [SchemaType.AVRO, SchemaType.JSON])
def test_fields_within_fields_have_to_be_the_schema_s(kind: SchemaType) -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "x", "type": ["null", "int"], "default": None}]}
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "a", "type": ["null", inner], "default": None},
            {
                "name": "b",
                "type": ["null", {"type": "map", "values": {"type": "array", "items": "I"}}],
                "default": None,
            },
        ],
    }
    definition = SchemaDefinition(type=kind, data=json.dumps(schema).encode())
    record = struct_type([("x", pa.int32())])
    encoder_for(definition, [("a", record), ("b", map_type(list_type(record)))])
    for column, arrow_type, says in (
        ("a", struct_type([("X", pa.int32())]), r"no field a\.X; there it has x"),
        ("b", map_type(list_type(struct_type([("x", pa.int32()), ("y", pa.int32())]))), r"no field b\.y"),
        ("a", pa.int32(), "column a is int32, where the topic's schema has a record"),
        ("b", list_type(record), r"column b is list<.*, where the topic's schema has a map"),
        ("b", map_type(record), r"column b is struct<.*, where the topic's schema has an array"),
    ):
        with pytest.raises(SinkRefused, match=says):
            encoder_for(definition, [(column, arrow_type)])


async def test_decimals_in_unions() -> None:
    cents = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    fixed = {"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 8, "scale": 1}
    record = {"type": "record", "name": "I", "fields": [{"name": "x", "type": ["null", cents]}]}
    branches = ["null", "string", cents, fixed, {"type": "array", "items": cents}, record]
    schema = {"type": "record", "name": "R", "fields": [{"name": "u", "type": branches}]}
    definition = SchemaDefinition(type=SchemaType.AVRO, data=json.dumps(schema).encode())
    decoder = decoder_for(definition)
    fields = decoder.fields()
    members = [
        ("x", 1),
        ("y", Decimal("1.25")),
        ("z", Decimal("-7.5")),
        ("l", [Decimal("0.01")]),
        ("r", {"x": Decimal(3)}),
    ]
    rows: list[dict[str, Any]] = [
        {"u": {f"member{index}": value if index == member else None for index in range(5)}}
        for member, (_, value) in enumerate(members)
    ]
    rows[0]["u"]["member0"] = "text"
    rows.append({"u": None})
    payloads = encoder_for(definition, fields).encode(batch_of(rows, fields))
    decoded = await decoder.decode(pa.array(payloads, pa.binary()), [(b"", len(rows))])
    assert (decoded.bad, decoded.columns[0].to_pylist()) == ({}, [row["u"] for row in rows])


def test_what_cannot_be_written_is_refused_before_anything_is() -> None:
    with pytest.raises(SinkRefused, match="my column"):
        definition_for(pa.schema([("my column", pa.int32()), ("b", pa.int32())]))
    with pytest.raises(SinkRefused, match="keys of maps"):
        definition_for(pa.schema([("m", map_type(pa.int32(), pa.int32()))]))
    with pytest.raises(SinkRefused, match="one column `value`"):
        definition_for(pa.schema([("a", pa.binary())]), "bytes")
    with pytest.raises(SinkRefused, match="column `value` is"):
        encoder_for(SchemaDefinition(type=SchemaType.INT32), [("value", struct_type([]))])
    with pytest.raises(SinkRefused, match="column `key`"):
        encoder_for(SchemaDefinition(type=SchemaType.KEY_VALUE, data=bytes(8)), [("value", pa.string())])


TIMES: list[tuple[str, pa.DataType]] = [
    ("day", pa.date32()),
    ("at", pa.timestamp("us", tz="UTC")),
    ("local", pa.timestamp("us")),
    ("days", list_type(struct_type([("day", pa.date32())]))),
    ("times", map_type(pa.timestamp("us", tz="UTC"))),
]


async def test_times_in_json_are_texts() -> None:
    first, last = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)
    local = datetime(1969, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001 - local.
    days = [{"day": date(1, 1, 1)}, {"day": None}, None, {"day": date(9999, 12, 31)}]
    rows: list[dict[str, Any]] = [
        {"day": date(1582, 10, 10), "at": first, "local": local, "days": days, "times": [("a", last), ("b", None)]},
        {**dict.fromkeys(dict(TIMES)), "at": datetime(2026, 3, 1, 12, 0, 0, 5000, UTC)},
    ]
    batch = batch_of([rows[1], *rows], TIMES).slice(1)
    definition = definition_for(batch.schema, "json")
    payloads = encoder_for(definition, TIMES).encode(batch)
    assert [json.loads(payload) for payload in payloads if payload] == [
        {
            "day": "1582-10-10",
            "at": "0001-01-01T00:00:00.000Z",
            "local": "1969-12-31T23:59:59.999999",
            "days": [{"day": "0001-01-01"}, {"day": None}, None, {"day": "9999-12-31"}],
            "times": {"a": "9999-12-31T23:59:59.999999Z", "b": None},
        },
        {**dict.fromkeys(dict(TIMES)), "at": "2026-03-01T12:00:00.005Z"},
    ]
    decoder = decoder_for(definition)
    # What was written with numbers, as Avro has them, stands between them.
    old = b'{"day":-1,"at":-1,"local":5,"days":[{"day":1}],"times":{"a":1}}'
    result = await decoder.decode(pa.array([payloads[0], old, payloads[1]], pa.binary()), [(b"", 3)])
    assert not result.bad
    *texts, numbers = [pa.Table.from_arrays(result.columns, list(dict(TIMES))).to_pylist()[row] for row in (0, 2, 1)]
    assert texts == rows
    assert numbers == {
        "day": date(1969, 12, 31),
        "at": datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
        "local": datetime(1970, 1, 1, 0, 0, 0, 5),  # noqa: DTZ001 - local.
        "days": [{"day": date(1970, 1, 2)}],
        "times": [("a", datetime(1970, 1, 1, 0, 0, 0, 1, UTC))],
    }


async def test_times_in_json_by_a_schema_of_others() -> None:
    """Where a value could be of several types, it is a number."""
    fields = [
        {"name": "ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "ns", "type": {"type": "long", "logicalType": "timestamp-nanos"}},
        {"name": "any", "type": ["null", {"type": "int", "logicalType": "date"}, "string"]},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
    ]
    schema = json.dumps({"type": "record", "name": "R", "fields": fields}).encode()
    definition = SchemaDefinition(type=SchemaType.JSON, data=schema)
    decoder = decoder_for(definition)
    types = decoder.fields()
    at = datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)
    local, day = at.replace(tzinfo=None), {"member0": date(1970, 1, 2), "member1": None}
    row = {"ms": at, "local": local, "ns": at, "any": day, "clock": 5}
    payloads = encoder_for(definition, types).encode(batch_of([row], types))
    written = {"ms": "1969-12-31T23:59:59.999Z", "local": "1969-12-31T23:59:59.999", "ns": -1000, "any": 1, "clock": 5}
    assert [json.loads(payload or b"") for payload in payloads] == [written]
    result = await decoder.decode(pa.array(payloads, pa.binary()), [(b"", 1)])
    assert [column.to_pylist() for column in result.columns] == [
        [at.replace(microsecond=999_000)], [local.replace(microsecond=999_000)], [at], [day], [5],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("column", "value"), [("day", 2_932_897), ("day", -719_163), ("at", 253_402_300_800_000_000), ("at", -(2**62))]
)
def test_times_without_a_text(column: str, value: int) -> None:
    numbers = pa.array([0, value], pa.int32() if column == "day" else pa.int64())
    batch = pa.RecordBatch.from_arrays([numbers.view(dict(TIMES)[column])], [column])
    fields = [(column, dict(TIMES)[column])]
    with pytest.raises(SinkRefused, match=r"row 1 of a batch .* outside of the years 1 to 9999"):
        encoder_for(definition_for(batch.schema, "json"), fields).encode(batch)
    encoder_for(definition_for(batch.schema, "avro"), fields).encode(batch)


def test_numbers_that_are_none_in_json() -> None:
    fields = [("d", pa.float64())]
    batch = batch_of([{"d": float("nan")}, {"d": float("-inf")}], fields)
    assert encoder_for(definition_for(batch.schema, "json"), fields).encode(batch) == [
        b'{"d":"NaN"}',
        b'{"d":"-Infinity"}',
    ]


@pytest.mark.slow  # Imports pyspark.
def test_spark_and_arrow_agree_on_types() -> None:
    pytest.importorskip("pyspark")
    fields = [
        *TABLE,
        ("byte", pa.int8()),
        ("short", pa.int16()),
        ("took", pa.duration("us")),
        ("map2", map_type(list_type(pa.int32()), pa.int64())),
    ]
    schema = struct_type_of(fields)
    assert arrow_schema_of(schema) == pa.schema([pa.field(name, arrow_type) for name, arrow_type in fields])
    plain = [field for field in fields if field[0] not in ("took", "map2")]
    assert definition_for(struct_type_of(plain), "avro") == definition_for(pa.schema(plain), "avro")
