"""Avro of others: what is right is read, and whatever is not ends within bounds."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.wire import avro
from magnetar.wire.avro import BadAvro, parse_record_schema, read_record

Json = Any


def record(name: str, **fields: Json) -> Json:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": kind} for key, kind in fields.items()]}


def read(schema: Json, data: bytes) -> dict[str, Any]:
    return read_record(parse_record_schema(json.dumps(schema).encode()), data)


def number(value: int) -> bytes:
    value = value << 1 if value >= 0 else (-value << 1) - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def text(value: str) -> bytes:
    return number(len(value.encode())) + value.encode()


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        ("null", b"", None),
        ("boolean", b"\1", True),
        ("int", number(-(2**31)), -(2**31)),
        ("long", number(2**63 - 1), 2**63 - 1),
        ("long", number(-(2**63)), -(2**63)),
        ("float", struct.pack("<f", 0.5), 0.5),
        ("double", struct.pack("<d", -1e300), -1e300),
        ("bytes", number(2) + b"\0\xff", b"\0\xff"),
        ("string", text("Ü"), "Ü"),
        ({"type": "string", "avro.java.string": "String"}, text(""), ""),
        ({"type": {"type": "long", "logicalType": "timestamp-millis"}}, number(1), 1),
        ({"type": "fixed", "name": "F", "size": 3}, b"abc", b"abc"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, number(1), "B"),
        (["null", "int"], number(0), None),
        (["null", "int"], number(1) + number(7), 7),
        ({"type": "array", "items": "int"}, number(2) + number(1) + number(2) + number(0), [1, 2]),
        ({"type": "array", "items": "int"}, number(-1) + number(1) + number(5) + number(1) + number(6) + b"\0", [5, 6]),
        ({"type": "map", "values": "null"}, number(1) + text("k") + b"\0", {"k": None}),
        (record("B", x="int", y="null"), number(3), {"x": 3, "y": None}),
    ],
)
def test_values_of_each_type(kind: Json, data: bytes, value: object) -> None:
    assert read(record("A", f=kind), data + b"behind") == {"f": value}


def test_types_are_found_by_their_names() -> None:
    inner = {**record("B", x="int"), "namespace": "n.m"}
    schema = {**record("A", first=inner, second="n.m.B", third={**record("C", x="B"), "namespace": "n.m"})}
    data = number(1) + number(2) + number(3)
    assert read(schema, data) == {"first": {"x": 1}, "second": {"x": 2}, "third": {"x": {"x": 3}}}
    dotted = record("n.A", first=record("B", x="int"), second="B", third="n.B")
    assert read(dotted, data)["third"] == {"x": 3}


CHAIN = record(
    "Outer",
    **{f"f{i}": record(f"R{i}", x=f"R{i - 1}" if i else "null", y=f"R{i - 1}" if i else "null") for i in range(30)},
)
"""Thirty records, each with two of the one before: a billion values that take no byte."""


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (record("A", n=["null", "A"]), "contains itself"),
        (record("A", n={"type": "array", "items": "A"}), "contains itself"),
        (record("A", n="B"), "not defined"),
        (record("A", n=record("A")), "twice"),
        (record("A", n={"type": "array", "items": "null"}), "no bytes"),
        (record("A", n={"type": "array", "items": record("B", x="null", y=record("C"))}), "no bytes"),
        (record("A", n={"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}), "no bytes"),
        (record("A", n=["int"] * avro.TYPES_MAX), "types"),
        (record("A", n={"type": "fixed", "name": "F", "size": True}), "size"),
        (record("A", n={"type": "enum", "name": "E"}), "symbols"),
        (record("A", n={"type": "enum", "symbols": []}), "name"),
        (record("A", n=7), "none"),
        ({"type": "record", "name": "A", "fields": [{"name": "f", "type": "int"}] * 2}, "field"),
        ({"type": "record", "name": "A"}, "fields"),
        ("int", "record"),
        ([], "record"),
    ],
)
def test_schemas_that_are_refused(schema: Json, reason: str) -> None:
    with pytest.raises(BadAvro, match=reason):
        parse_record_schema(json.dumps(schema).encode())


def nested(depth: int) -> Json:
    kind: Json = "int"
    for _ in range(depth):
        kind = {"type": "array", "items": kind}
    return record("A", f=kind)


def test_schemas_that_are_too_deep_or_too_long_are_refused() -> None:
    assert read(nested(avro.DEPTH_MAX - 2), b"\0") == {"f": []}
    for schema in (
        json.dumps(nested(avro.DEPTH_MAX)).encode(),
        # By names, each of which is not deep where it stands.
        json.dumps(
            record("A", **{f"f{i}": record(f"R{i}", x=f"R{i - 1}" if i else "int") for i in range(40)})
        ).encode(),
        b"[" * 100_000,
        b'{"type":' * 20_000,
        b" " * (avro.SCHEMA_BYTES_MAX + 1),
        b"9" * 10_000,
        b"\xff",
    ):
        with pytest.raises(BadAvro):
            parse_record_schema(schema)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("int", number(2**31)),
        ("long", b"\xff" * 9 + b"\x7f"),
        ("long", b"\x80" * 20),
        ("long", b""),
        ("boolean", b"\2"),
        ("string", number(2) + b"\xff\xff"),
        ("string", number(-1)),
        ("bytes", number(2**62)),
        ("double", b"1234567"),
        ({"type": "array", "items": "int"}, number(2**40)),
        ({"type": "array", "items": "int"}, number(-(2**63))),
        ({"type": "array", "items": "int"}, number(avro.VALUES_MAX + 1) + bytes(avro.VALUES_MAX + 1) + b"\0"),
        ({"type": "map", "values": "null"}, number(2**26)),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, number(1)),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, number(-1)),
        (["null"], number(1)),
        (["null"], number(-1)),
    ],
)
def test_bytes_that_are_refused(kind: Json, data: bytes) -> None:
    with pytest.raises(BadAvro):
        read(record("A", f=kind), data)


def test_values_that_take_no_bytes_are_counted() -> None:
    schema = parse_record_schema(json.dumps(CHAIN).encode())
    with pytest.raises(BadAvro, match="more values"):
        read_record(schema, b"")


names = st.sampled_from(["A", "B", "C", "n.A", ""])
kinds: st.SearchStrategy[Json] = st.recursive(
    st.sampled_from([*avro.__dict__["_PRIMITIVES"], "A", "B", "n.A", None, 3]),
    lambda inner: (
        st.fixed_dictionaries({"type": st.just("array"), "items": inner})
        | st.fixed_dictionaries({"type": st.just("map"), "values": inner})
        | st.fixed_dictionaries({"type": st.just("fixed"), "name": names, "size": st.integers(-1, 1 << 40)})
        | st.fixed_dictionaries({"type": st.just("enum"), "name": names, "symbols": st.lists(st.text(max_size=2))})
        | st.lists(inner, max_size=4)
        | st.builds(
            lambda name, fields: record(name, **{f"f{i}": kind for i, kind in enumerate(fields)}),
            names,
            st.lists(inner, max_size=4),
        )
    ),
    max_leaves=20,
)


@settings(max_examples=300)
@given(st.lists(kinds, min_size=1, max_size=4), st.binary(max_size=200))
def test_any_schema_and_any_bytes_are_read_or_refused(fields: list[Json], data: bytes) -> None:
    schema = record("Outermost", **{f"f{i}": kind for i, kind in enumerate(fields)})
    try:
        parsed = parse_record_schema(json.dumps(schema).encode())
        found = read_record(parsed, data)
    except BadAvro:
        return
    assert list(found) == [f"f{i}" for i in range(len(fields))]


@given(st.binary(max_size=300) | st.text(max_size=100).map(str.encode))
def test_any_text_is_a_schema_or_refused(data: bytes) -> None:
    with pytest.raises(BadAvro):
        parse_record_schema(data)
