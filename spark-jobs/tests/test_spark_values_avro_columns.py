"""Avro read in step gives what fastavro gives a record at a time, for all schemas and for broken payloads too."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from magnetar.spark.values.api import SchemaDefinition
from magnetar.spark.values.avro_columns import NotInStep
from magnetar.spark.values.avro_cursor import AvroCursor
from magnetar.spark.values.avro_encoding import StepEncoder
from magnetar.spark.values.avro_values import AvroPayloads
from magnetar.spark.values.encoders import AvroWriter, encoder_for
from magnetar.spark.values.shapes import AvroDefinition
from magnetar.wire.pulsar.enums import SchemaType


def record(*fields: Any) -> dict[str, Any]:
    """Of (name, type[, default]) each."""
    made = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return {"type": "record", "name": "R", "fields": made}


LEAVES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "boolean": ("boolean", st.booleans()),
    "int": ("int", st.integers(-(2**31), 2**31 - 1)),
    "long": ("long", st.integers(-(2**63), 2**63 - 1)),
    "float": ("float", st.floats(width=32, allow_nan=False)),
    "double": ("double", st.floats(allow_nan=False)),
    "bytes": ("bytes", st.binary(max_size=9)),
    "string": ("string", st.text(max_size=9)),
    "date": ({"type": "int", "logicalType": "date"}, st.integers(-9999, 9999)),
    "millis": ({"type": "long", "logicalType": "timestamp-millis"}, st.integers(-(2**50), 2**50)),
    "decimal": ({"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 2}, st.binary(max_size=7)),
}


@st.composite
def typed(draw: st.DrawFn, names: list[str], depth: int = 0) -> tuple[Any, st.SearchStrategy[Any]]:
    """A schema, and values of it without logical types."""
    kinds = [*LEAVES, "optional", "enum", "fixed"] + (["record", "array", "map"] if depth < 2 else [])
    kind = draw(st.sampled_from(kinds))
    if kind in LEAVES:
        return LEAVES[kind]
    if kind == "optional":
        inner, values = draw(typed(names, depth + 1).filter(lambda one: not isinstance(one[0], list)))
        union = draw(st.permutations(["null", inner]))
        return union, st.none() | values
    if kind == "array":
        inner, values = draw(typed(names, depth + 1))
        return {"type": "array", "items": inner}, st.lists(values, max_size=4)
    if kind == "map":
        inner, values = draw(typed(names, depth + 1))
        return {"type": "map", "values": inner}, st.dictionaries(st.text(max_size=4), values, max_size=3)
    names.append(f"N{len(names)}")
    name = names[-1]
    if kind == "enum":
        return {"type": "enum", "name": name, "symbols": ["A", "B", "C"]}, st.sampled_from("ABC")
    if kind == "fixed":
        return {"type": "fixed", "name": name, "size": 3}, st.binary(min_size=3, max_size=3)
    fields = [draw(typed(names, depth + 1)) for _ in range(draw(st.integers(1, 4)))]
    schema = {
        "type": "record",
        "name": name,
        "fields": [{"name": f"f{i}", "type": t} for i, (t, _) in enumerate(fields)],
    }
    return schema, st.fixed_dictionaries({f"f{i}": values for i, (_, values) in enumerate(fields)})


@st.composite
def records(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    names: list[str] = []
    fields = [draw(typed(names)) for _ in range(draw(st.integers(1, 5)))]
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": f"f{i}", "type": t} for i, (t, _) in enumerate(fields)],
    }
    rows = st.fixed_dictionaries({f"f{i}": values for i, (_, values) in enumerate(fields)})
    return schema, draw(st.lists(rows, max_size=6))


def payloads_of(table: Any, writer: Any) -> AvroPayloads:
    return AvroPayloads(AvroDefinition(json.dumps(table).encode()), AvroDefinition(json.dumps(writer).encode()))


def written(schema: Any, rows: list[dict[str, Any]]) -> list[bytes]:
    plain = AvroDefinition(json.dumps(schema).encode()).plain
    parsed = fastavro.parse_schema(plain)
    payloads = []
    for row in rows:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, parsed, row)
        payloads.append(stream.getvalue())
    return payloads


def check_same(reader: AvroPayloads, payloads: list[bytes | None]) -> dict[int, str]:
    assert reader._in_step is not None
    values = pa.array([b"before", *payloads], pa.binary()).slice(1)
    expected = reader._decode_records(values)
    try:
        found = reader._decode_in_step(reader._in_step, values)
    except (NotInStep, pa.ArrowException, ValueError):
        return expected.bad
    assert found.bad == expected.bad
    for one, other in zip(found.columns, expected.columns, strict=True):
        one.validate(full=True)
        # A float that is no number is not equal to itself.
        assert one.equals(other) or (one.type, repr(one.to_pylist())) == (other.type, repr(other.to_pylist()))
    return found.bad


@given(records())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.slow
def test_any_schema(made: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    schema, rows = made
    payloads: list[bytes | None] = [None, *written(schema, rows), None]
    assert not check_same(payloads_of(schema, schema), payloads)


@given(records(), st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.slow
def test_any_garbage(made: tuple[dict[str, Any], list[dict[str, Any]]], data: st.DataObject) -> None:
    schema, rows = made
    payloads: list[bytes | None] = []
    for payload in written(schema, rows):
        mangled = bytearray(payload + data.draw(st.binary(max_size=2)))
        if mangled:
            at = data.draw(st.integers(0, len(mangled) - 1))
            mangled[at] = data.draw(st.integers(0, 255))
        payloads.append(bytes(mangled[: data.draw(st.integers(0, len(mangled)))]))
    check_same(payloads_of(schema, schema), payloads)


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B", "Z"]}


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (["a", "int"], ["a", "long"]),
        (["a", "int"], ["a", "double"]),
        (["a", "long"], ["a", ["null", "double"]]),
        (["a", "float"], ["a", "double"]),
        (["a", "int"], ["b", ["null", "string"], None]),
        (["a", "int"], ["b", {"type": "array", "items": "int"}, [1, 2]]),
        (["a", ENUM], ["a", {**ENUM, "symbols": ["B", "A"], "default": "B"}]),
        (["a", "string"], ["a", "bytes"]),
        (["a", {"type": "map", "values": {"type": "array", "items": "int"}}], ["b", "long", 7]),
        (["a", {"type": "array", "items": record(["x", "int"], ["y", "string"]) | {"name": "I"}}],
         ["a", {"type": "array", "items": record(["y", "string"], ["z", "int", 3]) | {"name": "I"}}]),
    ],
)  # fmt: skip
def test_resolution(writer: Any, reader: Any) -> None:
    samples: dict[str, Any] = {"int": -7, "long": 2**60, "float": 0.5, "string": "é"}
    kind = writer[1]
    value = samples.get(kind) if isinstance(kind, str) else None
    if isinstance(kind, dict):
        value = {"enum": "Z", "map": {"k": [1, 2]}, "array": [{"x": 1, "y": "y"}, {"x": 2, "y": ""}]}[kind["type"]]
    old, new = record(writer, ["last", "int"]), record(["last", "int"], reader)
    payloads = written(old, [{"a": value, "last": 9}] * 3)
    assert not check_same(payloads_of(new, old), [None, *payloads])


def test_an_enum_s_symbol_without_a_place_is_bad() -> None:
    old, new = record(["a", ENUM]), record(["a", {**ENUM, "symbols": ["A"]}])
    assert set(check_same(payloads_of(new, old), list(written(old, [{"a": "A"}, {"a": "B"}])))) == {1}


def test_blocks_with_sizes_and_lists_of_very_different_lengths() -> None:
    schema = record(["a", {"type": "array", "items": "long"}], ["b", "int"])
    reader = payloads_of(schema, schema)
    # Two blocks, the first with its size in bytes: [1, 2], [3].
    blocks = b"\x03\x04\x02\x04\x02\x06\x00\x0e"
    payloads: list[bytes | None] = [blocks, *written(schema, [{"a": [], "b": 1}, {"a": list(range(50)), "b": 2}])]
    assert not check_same(reader, payloads)
    values = pa.array([*payloads, *written(schema, [{"a": list(range(5000)), "b": 2}])], pa.binary())
    assert reader._in_step is not None
    with pytest.raises(NotInStep):
        reader._decode_in_step(reader._in_step, values)
    column = reader.decode(pa.concat_arrays([values] * 20), None).columns[0]
    assert pa.compute.list_value_length(column).to_pylist() == [3, 0, 50, 5000] * 20


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_numbers_of_all_lengths(numbers: list[int]) -> None:
    stream = io.BytesIO()
    payloads = []
    for number in numbers:
        stream.seek(0)
        stream.truncate()
        fastavro.schemaless_writer(stream, "long", number)
        payloads.append(stream.getvalue())
    cursor = AvroCursor(pa.array(payloads, pa.binary()))
    assert cursor.longs(np.arange(len(numbers))).tolist() == numbers
    assert not cursor.bad.any()
    assert cursor.places.tolist() == cursor.ends.tolist()


def test_numbers_that_are_longer_than_they_need_to_be() -> None:
    schema = record(["a", "int"])
    payloads: list[bytes | None] = [
        b"\x80",
        b"\x80\x00",
        b"\x82\x80\x00",
        b"\x82" + b"\x80" * 8 + b"\x00",
        b"\x80" * 12,
    ]
    assert set(check_same(payloads_of(schema, schema), payloads)) >= {0}


@given(records())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.slow
def test_writing_in_step_is_writing_by_records(made: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    schema, rows = made
    reader = payloads_of(schema, schema)
    payloads = written(schema, rows)
    columns, names = reader._decode_records(pa.array(payloads, pa.binary())).columns, dict(reader.fields())
    batch = pa.RecordBatch.from_arrays(columns, list(names))
    definition = SchemaDefinition(type=SchemaType.AVRO, data=json.dumps(schema).encode())
    encoder = encoder_for(definition, list(names.items()))
    writer = encoder._value
    assert isinstance(writer, AvroWriter)
    assert writer.write(batch) == writer.write_records(batch)
    if "map" not in str(schema) and "decimal" not in str(schema):
        assert writer.write(batch) == payloads


def test_writing_in_step_is_used() -> None:
    inner = record(["x", "int"], ["y", ["string", "null"]]) | {"name": "I"}
    missing = ["missing", ["null", "int"], None]
    schema = record(["a", ["null", "long"]], ["i", ["null", inner], None], ["j", "I"], missing)
    definition = AvroDefinition(json.dumps(schema).encode())
    rows: list[dict[str, Any]] = [
        {"a": None, "i": None, "j": {"x": 1, "y": None}},
        {"a": -(2**63), "i": {"x": -1, "y": "é" * 70}, "j": {"x": 2**31 - 1, "y": ""}},
    ]
    fields = [(name, shape.arrow_type) for name, shape in definition.shape.shown if name != "missing"]
    batch = pa.RecordBatch.from_pylist(rows, pa.schema(fields))
    assert StepEncoder(definition).encode(batch) == written(schema, rows)


def test_schemas_that_are_read_by_records() -> None:
    unions = record(["a", ["null", "int", "string"]])
    assert payloads_of(unions, unions)._in_step is None
    assert payloads_of(record(["a", "string"]), record(["a", "int"]))._in_step is None
    assert payloads_of(record(["a", "int"]), record(["a", ["null", "int"]]))._in_step is None
