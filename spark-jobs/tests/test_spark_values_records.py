"""JSON and AVRO: payloads of Java's client (4.0.8) and of the stock Python client, evolution, bad payloads."""

from __future__ import annotations

import enum
import io
import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from magnetar.spark.errors import SchemaUnreadable
from magnetar.spark.values.api import SchemaDefinition, SchemaVersions
from magnetar.spark.values.registry import SchemaDecoder, decoder_for
from magnetar.wire.pulsar.enums import SchemaType
from pulsar import schema as stock

# Java's definition of a class with int, long, float, double, boolean, String, byte[], an enum, a class, List, Map,
# Integer, BigDecimal, and what its AVRO and JSON schemas encoded.
JAVA_DEFINITION = (
    '{"type":"record","name":"Rec","namespace":"Enc","fields":[{"name":"boxed","type":["null","int"],"default":null},'
    '{"name":"d","type":"double"},{"name":"dec","type":["null",{"type":"string","java-class":"java.math.BigDecimal"}],'
    '"default":null},{"name":"f","type":"float"},{"name":"flag","type":"boolean"},{"name":"i","type":"int"},'
    '{"name":"inner","type":["null",{"type":"record","name":"Inner","fields":[{"name":"a","type":"int"},{"name":"b",'
    '"type":["null","string"],"default":null}]}],"default":null},{"name":"l","type":"long"},{"name":"list","type":'
    '["null",{"type":"array","items":"Inner","java-class":"java.util.List"}],"default":null},{"name":"map","type":'
    '["null",{"type":"map","values":"int"}],"default":null},{"name":"raw","type":["null",{"type":"bytes",'
    '"java-class":"[B"}],"default":null},{"name":"s","type":["null","string"],"default":null},{"name":"suit","type":'
    '["null",{"type":"enum","name":"Suit","symbols":["SPADES","HEARTS"]}],"default":null}]}'
)
JAVA_AVRO = "000000000000000240000000c03f010e02060011020208020278000202026b0a00020600ff41020a68c3a9c3a90202"
JAVA_JSON = (
    '{"i":7,"l":-9,"f":1.5,"d":2.25,"flag":true,"s":"héé","raw":"AP9B","suit":"HEARTS","inner":{"a":3},'
    '"list":[{"a":4,"b":"x"}],"map":{"k":5},"dec":12.34}'
)
JAVA_ROW = {
    "boxed": None,
    "d": 2.25,
    "dec": None,
    "f": 1.5,
    "flag": True,
    "i": 7,
    "inner": {"a": 3, "b": None},
    "l": -9,
    "list": [{"a": 4, "b": "x"}],
    "map": [("k", 5)],
    "raw": b"\x00\xffA",
    "s": "héé",
    "suit": "HEARTS",
}

JAVA_TIMES_DEFINITION = (
    '{"type":"record","name":"Times","namespace":"Enc","fields":[{"name":"date","type":["null",{"type":"record",'
    '"name":"Date","namespace":"java.util","fields":[]}],"default":null},{"name":"instant","type":["null",{"type":'
    '"long","logicalType":"timestamp-micros"}],"default":null},{"name":"localDate","type":["null",{"type":"int",'
    '"logicalType":"date"}],"default":null},{"name":"localDateTime","type":["null",{"type":"long","logicalType":'
    '"local-timestamp-millis"}],"default":null},{"name":"localTime","type":["null",{"type":"int","logicalType":'
    '"time-millis"}],"default":null},{"name":"uuid","type":["null",{"type":"string","logicalType":"uuid"}],'
    '"default":null}]}'
)
JAVA_TIMES_AVRO = (
    "0202808981828389850602b6b30202f6f79eddf96202f6a7992b0248"
    "30303131323233332d343435352d363637372d383839392d616162626363646465656666"
)
JAVA_TIMES_JSON = (
    '{"instant":1700000000.123456789,"localDate":[2023,11,14],"localTime":[12,34,56,123456789],'
    '"localDateTime":[2023,11,14,12,34,56,123456789],"date":1700000000123,"uuid":"00112233-4455-6677-8899-aabbccddeeff"}'
)


def definition(kind: SchemaType, schema: Any, version: int = 0) -> SchemaDefinition:
    data = schema if isinstance(schema, bytes) else (schema if isinstance(schema, str) else json.dumps(schema)).encode()
    return SchemaDefinition(type=kind, data=data, version=version.to_bytes(8, "big"))


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": kind} for key, kind in fields]}


def twice_the_one_before(level: int) -> tuple[str, dict[str, Any]]:
    """A field whose record holds that of the field before it twice: each level has twice as many types."""
    kind = f"R{level - 1}" if level else "int"
    return f"f{level}", record(("x", kind), ("y", kind), name=f"R{level}")


def written(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


async def rows_of(
    decoder: SchemaDecoder, payloads: list[bytes | None], versions: list[tuple[bytes, int]] | None = None
) -> tuple[list[dict[str, Any]], dict[int, str]]:
    values = pa.array(payloads, pa.binary())
    result = await decoder.decode(values, versions or [(b"", len(payloads))])
    names = [name for name, _ in decoder.fields()]
    for column, (_, arrow_type) in zip(result.columns, decoder.fields(), strict=True):
        assert column.type.equals(arrow_type)
        column.validate(full=True)
    return pa.Table.from_arrays(result.columns, names).to_pylist(), result.bad


@pytest.mark.parametrize(
    ("kind", "payload", "dec"),
    [(SchemaType.AVRO, bytes.fromhex(JAVA_AVRO), None), (SchemaType.JSON, JAVA_JSON.encode(), "12.34")],
)
async def test_a_record_of_java(kind: SchemaType, payload: bytes, dec: str | None) -> None:
    rows, bad = await rows_of(decoder_for(definition(kind, JAVA_DEFINITION)), [payload, None, payload])
    assert not bad
    assert rows[0] == {**JAVA_ROW, "dec": dec} == rows[2]
    assert set(rows[1].values()) == {None}


@pytest.mark.parametrize(
    ("kind", "payload"),
    [(SchemaType.AVRO, bytes.fromhex(JAVA_TIMES_AVRO)), (SchemaType.JSON, JAVA_TIMES_JSON.encode())],
)
async def test_times_of_java(kind: SchemaType, payload: bytes) -> None:
    rows, bad = await rows_of(decoder_for(definition(kind, JAVA_TIMES_DEFINITION)), [payload])
    assert not bad
    assert rows == [
        {
            "instant": datetime(2023, 11, 14, 22, 13, 20, 123456, UTC),
            "localDate": date(2023, 11, 14),
            "localDateTime": datetime(2023, 11, 14, 12, 34, 56, 123000),  # noqa: DTZ001 - local.
            "localTime": 45296123,
            "uuid": "00112233-4455-6677-8899-aabbccddeeff",
        }
    ]


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class Inner(stock.Record):  # type: ignore[misc]  # It has no types.
    a = stock.Integer()
    b = stock.String()


class Whole(stock.Record):  # type: ignore[misc]  # It has no types.
    i = stock.Integer()
    l = stock.Long(required=True)  # noqa: E741 - a field's name
    f = stock.Float()
    d = stock.Double()
    flag = stock.Boolean()
    s = stock.String()
    inner = Inner()
    many = stock.Array(stock.String())
    inners = stock.Array(Inner())
    counts = stock.Map(stock.Integer())
    colour = stock.CustomEnum(Colour)


class WithBytes(stock.Record):  # type: ignore[misc]  # It has no types.
    raw = stock.Bytes()


def whole(number: int) -> Whole:
    return Whole(
        i=number,
        l=number * 2**40,
        f=0.5,
        d=number / 4,
        flag=True,
        s=f"text {number}",
        inner=Inner(a=number),
        many=["x", "y"],
        inners=[Inner(a=1, b="one")],
        counts={"k": number},
        colour=Colour.GREEN,
    )


def stock_row(number: int, colour: str) -> dict[str, Any]:
    return {
        "i": number,
        "l": number * 2**40,
        "f": 0.5,
        "d": number / 4,
        "flag": True,
        "s": f"text {number}",
        "inner": {"a": number, "b": None},
        "many": ["x", "y"],
        "inners": [{"a": 1, "b": "one"}],
        "counts": [("k", number)],
        "colour": colour,
    }


async def test_records_of_the_stock_python_client() -> None:
    avro, as_json = stock.AvroSchema(Whole), stock.JsonSchema(Whole)
    for kind, schema, colour in ((SchemaType.AVRO, avro, "GREEN"), (SchemaType.JSON, as_json, "2")):
        payloads = [schema.encode(whole(number)) for number in range(5)]
        decoder = decoder_for(definition(kind, schema.schema_info().schema()))
        rows, bad = await rows_of(decoder, payloads)
        assert not bad
        by_name = [{name: row[name] for name in stock_row(0, "")} for row in rows]
        assert by_name == [stock_row(number, colour) for number in range(5)]


async def test_bytes_in_json_are_base64() -> None:
    schema = stock.JsonSchema(WithBytes)
    decoder = decoder_for(definition(SchemaType.JSON, schema.schema_info().schema()))
    rows, bad = await rows_of(decoder, [b'{"raw":"AP9B"}', b'{"raw":"no base64!"}'])
    assert rows == [{"raw": b"\x00\xffA"}, {"raw": None}]
    assert list(bad) == [1]


LOGICAL = record(
    ("day", {"type": "int", "logicalType": "date"}),
    ("millis", {"type": "long", "logicalType": "timestamp-millis"}),
    ("micros", ["null", {"type": "long", "logicalType": "timestamp-micros"}]),
    ("local", {"type": "long", "logicalType": "local-timestamp-micros"}),
    ("time", {"type": "long", "logicalType": "time-micros"}),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}),
    ("big", {"type": "fixed", "name": "F", "size": 16, "logicalType": "decimal", "precision": 38, "scale": 3}),
    ("raw", {"type": "fixed", "name": "G", "size": 3}),
)


async def test_logical_types() -> None:
    value = {
        "day": date(1960, 2, 3),
        "millis": datetime(1960, 2, 3, 4, 5, 6, 7000, UTC),
        "micros": None,
        "local": datetime(1960, 2, 3, 4, 5, 6, 7),  # noqa: DTZ001 - local.
        "time": 123456789,
        "price": Decimal("-12.34"),
        "big": Decimal("12345678901234567890123456789012345.678"),
        "raw": b"abc",
    }
    decoder = decoder_for(definition(SchemaType.AVRO, LOGICAL))
    types = dict(decoder.fields())
    assert types["price"] == pa.decimal128(10, 2)
    assert types["raw"] == pa.binary()
    rows, bad = await rows_of(decoder, [written(LOGICAL, value), None])
    assert not bad
    assert rows[0] == value


async def test_unions_are_structs_of_members() -> None:
    inner = record(("x", "int"), name="Inner")
    other = record(("y", "string"), name="Other")
    union = ["null", "string", "long", "boolean", inner, other, {"type": "map", "values": "int"}]
    schema = record(("u", union), ("n", ["int", "long"]), ("o", ["null", "Inner"]))
    decoder = decoder_for(definition(SchemaType.AVRO, schema))
    values: list[Any] = [None, "s", 5, True, ("Inner", {"x": 1}), ("Other", {"y": "q"}), {"k": 1}]
    payloads: list[bytes | None] = [written(schema, {"u": value, "n": 7, "o": {"x": 2}}) for value in values]
    rows, bad = await rows_of(decoder, payloads)
    assert not bad
    assert rows[0]["u"] is None
    shown = [{key: value for key, value in row["u"].items() if value is not None} for row in rows[1:]]
    assert shown == [
        {"member0": "s"},
        {"member1": 5},
        {"member2": True},
        {"member3": {"x": 1}},
        {"member4": {"y": "q"}},
        {"member5": [("k", 1)]},
    ]
    assert {(row["n"], row["o"]["x"]) for row in rows} == {(7, 2)}
    as_json = decoder_for(definition(SchemaType.JSON, record(("u", ["null", "string", inner]))))
    rows, bad = await rows_of(as_json, [b'{"u":"s"}', b'{"u":{"x":3}}', b'{"u":null}', b'{"u":[]}'])
    assert [row["u"] for row in rows[:3]] == [
        {"member0": "s", "member1": None},
        {"member0": None, "member1": {"x": 3}},
        None,
    ]
    assert list(bad) == [3]


async def test_versions_are_resolved_by_avro_and_fetched_once() -> None:
    old = record(("a", "int"), ("gone", "string"))
    new = record(("a", "long"), ("added", ["null", "string"]), name="Renamed")
    new["fields"][1]["default"] = None
    other = record(("a", "string"))
    known = {1: definition(SchemaType.AVRO, old, 1), 3: definition(SchemaType.AVRO, other, 3)}
    asked: list[bytes] = []

    async def fetch(version: bytes) -> SchemaDefinition | None:
        asked.append(version)
        return known.get(int.from_bytes(version, "big"))

    table = definition(SchemaType.AVRO, new, 2)
    decoder = decoder_for(table, SchemaVersions([table], fetch))
    versions = [(number.to_bytes(8, "big"), count) for number, count in ((1, 1), (2, 2), (1, 1), (3, 1), (9, 1))]
    payloads: list[bytes | None] = [
        written(old, {"a": 1, "gone": "x"}),
        written(new, {"a": 2, "added": "y"}),
        written(new, {"a": 3, "added": None}),
        written(old, {"a": 4, "gone": "z"}),
        written(other, {"a": "text"}),
        b"\0",
    ]
    for _ in range(2):
        rows, bad = await rows_of(decoder, payloads, versions)
        assert rows[:4] == [
            {"a": 1, "added": None},
            {"a": 2, "added": "y"},
            {"a": 3, "added": None},
            {"a": 4, "added": None},
        ]
        assert set(bad) == {4, 5}
        assert "version 9" in bad[5]
    assert asked == [number.to_bytes(8, "big") for number in (1, 3, 9)]
    again = pickle.loads(pickle.dumps(decoder))
    assert again.fields() == decoder.fields()
    rows, bad = await rows_of(again, payloads[:2], versions[:1] + [(versions[1][0], 1)])
    assert not bad


async def test_bad_payloads_are_told_by_row() -> None:
    schema = record(("a", "int"), ("s", "string"))
    good = written(schema, {"a": 1, "s": "x"})
    decoder = decoder_for(definition(SchemaType.AVRO, schema))
    rows, bad = await rows_of(decoder, [good, b"\x02", b"\x02\x02\xff", good + b"more", b"", None, b"\x02\x80\x80\x04"])
    assert [row["a"] for row in rows] == [1, None, None, 1, None, None, None]
    assert set(bad) == {1, 2, 6}
    as_json = decoder_for(definition(SchemaType.JSON, schema))
    rows, bad = await rows_of(
        as_json, [b'{"a":1}', b"{", b'{"a":"x"}', b'{"a":3000000000}', b'{"a":"7","s":5.10}', b"[]", b'{"a":2.0,"z":1}']
    )
    assert [row["a"] for row in rows] == [1, None, None, None, 7, None, 2]
    assert rows[4]["s"] == "5.10"
    assert set(bad) == {1, 2, 3, 5}
    assert "$.a" in bad[2]


async def test_decimals_that_are_too_large_are_bad() -> None:
    schema = record(("p", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}), ("a", "int"))
    plain = record(("p", "bytes"), ("a", "int"))
    decoder = decoder_for(definition(SchemaType.AVRO, schema))
    payloads: list[bytes | None] = [
        written(plain, {"p": number.to_bytes(4, "big"), "a": 1}) for number in (9999, 10000, 1)
    ]
    rows, bad = await rows_of(decoder, payloads)
    assert [row["p"] for row in rows] == [Decimal("99.99"), None, Decimal("0.01")]
    assert [row["a"] for row in rows] == [1, None, 1]
    assert list(bad) == [1]
    as_json = decoder_for(definition(SchemaType.JSON, schema))
    rows, bad = await rows_of(
        as_json, [b'{"p":99.99}', b'{"p":"1.5"}', b'{"p":7}', b'{"p":0.001}', b'{"p":1e999999999}']
    )
    assert [row["p"] for row in rows] == [Decimal("99.99"), Decimal("1.5"), Decimal(7), None, None]
    assert set(bad) == {3, 4}


@pytest.mark.parametrize(
    "schema",
    [
        b"no json",
        b'{"type":"record","name":"R"}',
        b'{"type":"record","name":"R","fields":[{"name":"a","type":"Unknown"}]}',
        record(("next", ["null", "R"])),
        record(("many", {"type": "array", "items": "R"})),
        record(*(twice_the_one_before(level) for level in range(25))),
    ],
)
def test_what_has_no_columns_is_refused(schema: Any) -> None:
    for kind in (SchemaType.AVRO, SchemaType.JSON):
        with pytest.raises(SchemaUnreadable):
            decoder_for(definition(kind, schema))


async def test_namespaces_and_names_that_python_and_avro_do_not_like() -> None:
    schema = {
        "type": "record",
        "name": "Outer$R",
        "namespace": "com.acme.Class$",
        "fields": [
            {"name": "one", "type": {"type": "record", "name": "X", "namespace": "a", "fields": [
                {"name": "class", "type": "int"}]}},
            {"name": "two", "type": ["null", {"type": "record", "name": "X", "namespace": "b", "fields": [
                {"name": "def", "type": "int"}]}]},
            {"name": "three", "type": ["null", "a.X"]},
        ],
    }  # fmt: skip
    rows, bad = await rows_of(
        decoder_for(definition(SchemaType.JSON, schema)), [b'{"one":{"class":1},"two":{"def":2},"three":{"class":3}}']
    )
    assert rows == [{"one": {"class": 1}, "two": {"def": 2}, "three": {"class": 3}}]
    rows, bad = await rows_of(decoder_for(definition(SchemaType.AVRO, schema)), [b"\x02\x02\x04\x02\x06"])
    assert rows == [{"one": {"class": 1}, "two": {"def": 2}, "three": {"class": 3}}]
    assert not bad


async def test_roots_that_are_no_records() -> None:
    decoder = decoder_for(definition(SchemaType.AVRO, ["null", "string"]))
    assert decoder.fields() == [("value", pa.string())]
    rows, _ = await rows_of(decoder, [written(["null", "string"], "x"), written(["null", "string"], None)])
    assert rows == [{"value": "x"}, {"value": None}]
    decoder = decoder_for(definition(SchemaType.JSON, {"type": "array", "items": "long"}))
    rows, _ = await rows_of(decoder, [b"[1,2]", b"[]"])
    assert rows == [{"value": [1, 2]}, {"value": []}]


async def test_unknown_types_and_old_json_are_noted() -> None:
    decoder = decoder_for(SchemaDefinition(type=22))
    assert "EXTERNAL" in decoder.note
    assert decoder.fields() == [("value", pa.binary())]
    decoder = decoder_for(definition(SchemaType.JSON, {"type": "object", "properties": {"a": {"type": "integer"}}}))
    assert "JSON" in decoder.note
    assert decoder.fields() == [("value", pa.string())]


async def test_lists_of_what_takes_no_bytes_are_refused() -> None:
    """A payload of ten bytes would be a list of as many elements as it says, none of which has to be there."""
    nothing = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "null"}]}
    good = {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "int"], "default": None}]}
    newest = SchemaDefinition(type=SchemaType.AVRO, data=json.dumps(good).encode(), version=bytes(8))
    for items in ("null", nothing, {"type": "fixed", "name": "F", "size": 0}):
        field = {"name": "l", "type": ["null", {"type": "array", "items": items}], "default": None}
        data = json.dumps({**good, "fields": [*good["fields"], field]}).encode()
        bad = SchemaDefinition(type=SchemaType.AVRO, data=data, version=(1).to_bytes(8, "big"))
        with pytest.raises(SchemaUnreadable, match="elements of a list take no bytes"):
            decoder_for(bad)
        payload = bytes([0, 2, *[0xFE] * 8, 0x01, 0])
        found = await decoder_for(newest, SchemaVersions([newest, bad])).decode(pa.array([payload]), [(bad.version, 1)])
        assert "elements of a list take no bytes" in found.bad[0]
    fine = {**good, "fields": [{"name": "l", "type": {"type": "array", "items": ["null", nothing]}}]}
    decoder_for(SchemaDefinition(type=SchemaType.AVRO, data=json.dumps(fine).encode()))
