"""Avro schemas: what is one, which are the same, which read which. The verdicts are those of Pulsar 4.0.8's classes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.broker.schema.avro_checks import why_unreadable
from magnetar.broker.schema.avro_schema import AvroError, default_fits, identity, parse
from magnetar.broker.schema.steps import StepBudget


def record(name: str, *fields: object, **other: object) -> dict[str, object]:
    return {"type": "record", "name": name, "fields": list(fields), **other}


def field(name: str, field_type: object, **other: object) -> dict[str, object]:
    return {"name": name, "type": field_type, **other}


def enum(name: str, *symbols: str, **other: object) -> dict[str, object]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **other}


def fixed(name: str, size: object) -> dict[str, object]:
    return {"type": "fixed", "name": name, "size": size}


def array(item: object) -> dict[str, object]:
    return {"type": "array", "items": item}


INNER = record("B", namespace="n")

GOOD: list[object] = [
    "string",
    ["null", "string"],
    [],
    {"type": "string", "logicalType": "uuid"},
    record("A", field("x", "int")),
    record("A"),
    record("a.b$.A"),
    record("é"),
    record("A", field("x", "int", default="not an int")),
    record("A", field("x", "int", order="Descending")),
    record("A", field("x", {"type": "bytes", "logicalType": "decimal", "precision": 0})),
    record("A", field("x", INNER), field("y", "n.B")),
    record("A", field("x", ["null", "A"])),
    record("n.A", field("x", record("B")), field("y", "B"), field("z", "n.B")),
    record("n.A", field("x", record("B", field("f", fixed("F", 1)), namespace="")), field("y", fixed("F", 2))),
    array("int"),
    {"type": "map", "values": array("long")},
    enum("E", "A", default="A"),
    fixed("F", 0),
    {"type": "error", "name": "A", "fields": []},
]

BAD = [
    "",
    "null",
    "{}",
    "5",
    "string",
    '{"type":"object"}',
    '{"type":{"type":"string"}}',
    '{"type":["null","int"]}',
    '{"type":"int"} trailing',
    '{"type":"int"} /* comment */',
    '\ufeff"int"',
    '{"type":"map"}',
    '{"type":"array","items":null}',
    '{"type":"record","name":"A"}',
    '{"type":"record","fields":[]}',
    '{"type":"record","name":"A","fields":[],"x":NaN}',
    "[" * 100_000,
    *map(
        json.dumps,
        [
            record("A", field("x", "int"), field("x", "int")),
            record("A$"),
            record("1A"),
            record(""),
            record("int"),
            record("A", field("x", "B")),
            record("A", field("x", INNER), field("y", "B")),
            record("A", field("x", record("A"))),
            record("A", field("x-y", "int")),
            record("A", field("u", ["int", "int"])),
            record("A", field("u", ["int", ["null"]])),
            record("A", field("x", "int", order="zz")),
            record("A", field("x", "int", aliases="y")),
            record("A", field("x", "double", default="s")),
            record("A", {"type": "int"}),
            record("A", {"name": "x"}),
            record("A", 5),
            record("A", aliases=[5]),
            enum("E", "A", "A"),
            enum("E", "a-b"),
            enum("E", "A", default="B"),
            {"type": "enum", "name": "E"},
            fixed("F", -1),
            fixed("F", "1"),
            fixed("F", None),
        ],
    ),
]


@pytest.mark.parametrize("schema", GOOD, ids=json.dumps)
def test_schemas_that_pulsar_takes(schema: object) -> None:
    parse(json.dumps(schema).encode())


@pytest.mark.parametrize("text", BAD, ids=lambda text: text[:60])
def test_texts_that_pulsar_refuses(text: str) -> None:
    with pytest.raises(AvroError):
        parse(text.encode())


@settings(max_examples=30)
@given(st.binary(max_size=30) | st.recursive(st.text(max_size=5), st.lists).map(lambda v: json.dumps(v).encode()))
def test_any_bytes_parse_or_are_refused(data: bytes) -> None:
    try:
        parse(data)
    except AvroError:
        return


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (record("A", field("x", "int")), record("A", field("x", {"type": "int"}, doc="d"), doc="e"), True),
        (record("A", aliases=["B"]), record("A"), True),
        (record("n.A"), record("A", namespace="n"), True),
        (record("A", field("x", "int", order="ascending")), record("A", field("x", "int")), True),
        (enum("E", "A", "B", default="A"), enum("E", "A", "B"), True),
        (record("A", field("x", "int", default=None)), record("A", field("x", "int")), False),
        (record("A", field("x", "int", default=1)), record("A", field("x", "int", default=2)), False),
        (record("A", field("x", "int")), record("A", field("x", "long")), False),
        (record("A", field("x", "int"), field("y", "int")), record("A", field("y", "int"), field("x", "int")), False),
        (record("A"), record("B"), False),
        (record("A", color="red"), record("A"), False),
        (enum("E", "A", "B"), enum("E", "B", "A"), False),
        (["null", "int"], ["int", "null"], False),
    ],
)
def test_same_meaning(one: object, other: object, same: bool) -> None:
    identities = [identity(parse(json.dumps(schema).encode())) for schema in (one, other)]
    assert (identities[0] == identities[1]) is same


OLD = record("A", field("x", "int"))

READS: list[tuple[str, object, object, bool]] = [
    # what, writer, reader, whether it reads
    ("the same", OLD, OLD, True),
    ("a new field with a default", OLD, record("A", field("x", "int"), field("y", "string", default="")), True),
    ("a new field without a default", OLD, record("A", field("x", "int"), field("y", "string")), False),
    ("a field less", record("A", field("x", "int"), field("y", "string")), OLD, True),
    ("another name of the record", OLD, record("B", field("x", "int")), True),
    (
        "another order of fields",
        record("A", field("x", "int"), field("y", "int")),
        record("A", field("y", "int"), field("x", "int")),
        True,
    ),
    ("int to long", OLD, record("A", field("x", "long")), True),
    ("int to double", OLD, record("A", field("x", "double")), True),
    ("long to int", record("A", field("x", "long")), OLD, False),
    ("string to bytes", "string", "bytes", True),
    ("bytes to string", "bytes", "string", True),
    ("int to string", "int", "string", False),
    ("a value to a nullable one", OLD, record("A", field("x", ["null", "int"])), True),
    ("a nullable one to a value", record("A", field("x", ["null", "int"])), OLD, False),
    ("a promoted value in a union", "int", ["null", "long"], True),
    ("no branch of a union", "string", ["null", "int"], False),
    ("a symbol more", enum("E", "A"), enum("E", "A", "B"), True),
    ("a symbol less", enum("E", "A", "B"), enum("E", "A"), True),
    ("another name of an enum", enum("E", "A"), enum("F", "A"), False),
    ("another namespace of an enum", enum("a.E", "A"), enum("b.E", "A"), True),
    ("an enum by its alias", enum("E", "A"), enum("F", "A", aliases=["E"]), True),
    ("another size", fixed("F", 1), fixed("F", 2), False),
    ("items of an array", array("int"), array("long"), True),
    ("items of an array that do not go", array("int"), array("string"), False),
    ("values of a map", {"type": "map", "values": "int"}, {"type": "map", "values": "boolean"}, False),
    ("an array for a map", array("int"), {"type": "map", "values": "int"}, False),
    ("a renamed field with an alias", OLD, record("A", field("z", "int", aliases=["x"])), True),
    (
        "a renamed field with an alias in a record of another name",
        OLD,
        record("B", field("z", "int", aliases=["x"])),
        False,
    ),
    ("a default that does not fit", OLD, record("A", field("x", "int"), field("y", "int", default="s")), False),
    (
        "a default of the union's first branch",
        OLD,
        record("A", field("x", "int"), field("y", ["null", "int"], default=None)),
        True,
    ),
    (
        "a default of the union's second branch",
        OLD,
        record("A", field("x", "int"), field("y", ["int", "null"], default=None)),
        False,
    ),
    (
        "a record in a union by its shape",
        ["null", record("R", field("x", "int"))],
        ["null", record("S", field("x", "int"))],
        True,
    ),
    (
        "a record in a union that has changed its shape",
        ["null", record("R", field("x", "int"))],
        ["null", record("R", field("y", "int"))],
        False,
    ),
    (
        "a recursive type",
        record("T", field("next", ["null", "T"])),
        record("T", field("next", ["null", "T"]), field("v", "int", default=0)),
        True,
    ),
    (
        "a recursive type with a new field deep down",
        record("T", field("next", ["null", "T"])),
        record("T", field("next", ["null", "T"]), field("v", "int")),
        False,
    ),
]


@pytest.mark.parametrize(
    ("writer", "reader", "expected"), [case[1:] for case in READS], ids=[case[0] for case in READS]
)
def test_which_reads_which(writer: object, reader: object, expected: bool) -> None:
    reason = why_unreadable(parse(json.dumps(writer).encode()), parse(json.dumps(reader).encode()))
    assert (reason is None) is expected, reason


def test_reasons_name_the_place() -> None:
    reason = why_unreadable(
        parse(json.dumps(OLD).encode()), parse(json.dumps(record("A", field("deep", "string"))).encode())
    )
    assert reason == "field deep of record A has no default and is not written"


def test_wide_unions_are_given_up_on() -> None:
    def wide(start: int) -> bytes:
        return json.dumps(
            [record(f"R{start + i}", field("x", "int"), field(f"y{i}", "int")) for i in range(300)]
        ).encode()

    assert why_unreadable(parse(wide(0)), parse(wide(10_000))) == "too many combinations of types"


@pytest.mark.parametrize(
    ("schema", "value", "fits"),
    [
        ("null", None, True),
        ("boolean", True, True),
        ("int", True, False),
        ("int", 1.5, True),
        ("bytes", "x", True),
        ("fixed", None, False),
        (enum("E", "A"), "A", True),
        (enum("E", "A"), "B", False),
        (array("int"), [1, "s"], False),
        (array("int"), None, True),
        ({"type": "map", "values": "int"}, {"a": 1}, True),
        (OLD, {"x": 1}, True),
        (OLD, {}, False),
        (record("A", field("x", "int", default=1)), {}, True),
        ([], None, False),
    ],
)
def test_defaults(schema: object, value: object, fits: bool) -> None:
    parsed = parse(json.dumps(fixed("F", 1) if schema == "fixed" else schema).encode())
    assert default_fits(parsed, value, StepBudget(100)) is fits
