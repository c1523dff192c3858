"""Which schema may follow which, by type and strategy. The verdicts are those of Pulsar 4.0.8's classes."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence

import pytest
from google.protobuf import descriptor_pb2
from magnetar.broker.schema import compatibility
from magnetar.broker.schema.errors import IncompatibleSchema, InvalidSchemaData
from magnetar.broker.schema.schema_info import SchemaInfo, key_value_data
from magnetar.broker.schema.strategy import Strategy
from magnetar.broker.schema.validation import validate
from magnetar.wire.pulsar.enums import SchemaType
from magnetar.wire.pulsar.errors import ServerError


def record(*fields: Mapping[str, object]) -> bytes:
    return json.dumps({"type": "record", "name": "A", "fields": fields}).encode()


X = {"name": "x", "type": "int"}
Y = {"name": "y", "type": "string"}
Y_DEFAULT = {"name": "y", "type": "string", "default": ""}

PLAIN = record(X)
WITH_MORE = record(X, Y)
"""Reads nothing of PLAIN; PLAIN reads it."""
WITH_OPTIONAL = record(X, Y_DEFAULT)
"""Reads PLAIN and the other way round."""
OTHER = record({"name": "x", "type": "boolean"})
"""Goes with none of the others."""

BOTH_WAYS = [
    Strategy.BACKWARD,
    Strategy.FORWARD,
    Strategy.FULL,
    Strategy.BACKWARD_TRANSITIVE,
    Strategy.FORWARD_TRANSITIVE,
    Strategy.FULL_TRANSITIVE,
]


def verdict(existing: Sequence[SchemaInfo], new: SchemaInfo, strategy: Strategy) -> bool:
    """As the registry asks."""
    try:
        if strategy.transitive:
            compatibility.check_all(existing, new, strategy)
        else:
            compatibility.check_newest(existing[-1], new, strategy)
    except IncompatibleSchema:
        return False
    return True


@pytest.mark.parametrize("schema_type", [SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF])
@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [
        (PLAIN, WITH_OPTIONAL, set(BOTH_WAYS)),
        (PLAIN, WITH_MORE, {Strategy.FORWARD, Strategy.FORWARD_TRANSITIVE}),
        (WITH_MORE, PLAIN, {Strategy.BACKWARD, Strategy.BACKWARD_TRANSITIVE}),
        (PLAIN, OTHER, set()),
    ],
)
def test_every_strategy_on_one_old_schema(
    schema_type: SchemaType, old: bytes, new: bytes, allowed: set[Strategy]
) -> None:
    for strategy in Strategy:
        expected = strategy in allowed or strategy is Strategy.ALWAYS_COMPATIBLE
        assert verdict([SchemaInfo(schema_type, old)], SchemaInfo(schema_type, new), strategy) is expected, strategy


def test_only_transitive_strategies_look_further_back() -> None:
    existing = [SchemaInfo(SchemaType.AVRO, OTHER), SchemaInfo(SchemaType.AVRO, PLAIN)]
    new = SchemaInfo(SchemaType.AVRO, WITH_OPTIONAL)
    for strategy in BOTH_WAYS:
        assert verdict(existing, new, strategy) is not strategy.transitive, strategy


def test_what_was_refused_is_explained() -> None:
    with pytest.raises(IncompatibleSchema) as refused:
        compatibility.check_newest(
            SchemaInfo(SchemaType.AVRO, PLAIN), SchemaInfo(SchemaType.AVRO, WITH_MORE), Strategy.FULL
        )
    assert refused.value.code is ServerError.INCOMPATIBLE_SCHEMA
    assert refused.value.message == (
        "Schema compatibility check with strategy FULL: the new schema cannot read the existing one: "
        "field y of record A has no default and is not written"
    )


@pytest.mark.parametrize("strategy", Strategy)
def test_the_type_may_not_change(strategy: Strategy) -> None:
    old, new = SchemaInfo(SchemaType.AVRO, PLAIN), SchemaInfo(SchemaType.JSON, PLAIN)
    assert verdict([old], new, strategy) is (strategy is Strategy.ALWAYS_COMPATIBLE)
    if strategy is not Strategy.ALWAYS_COMPATIBLE:
        with pytest.raises(IncompatibleSchema, match="exists schema type AVRO, new schema type JSON"):
            compatibility.check_newest(old, new, strategy)


@pytest.mark.parametrize("strategy", [Strategy.FULL, Strategy.FULL_TRANSITIVE])
def test_what_is_no_avro_is_incompatible(strategy: Strategy) -> None:
    rubbish, good = SchemaInfo(SchemaType.AVRO, b"zz"), SchemaInfo(SchemaType.AVRO, PLAIN)
    assert not verdict([rubbish], good, strategy)
    assert not verdict([good], rubbish, strategy)


@pytest.mark.parametrize("schema_type", [SchemaType.STRING, SchemaType.INT32, SchemaType.EXTERNAL])
def test_types_without_structure(schema_type: SchemaType) -> None:
    old, new = SchemaInfo(schema_type), SchemaInfo(schema_type, b"null")
    for strategy in Strategy:
        assert verdict([old], new, strategy) is (strategy is not Strategy.ALWAYS_INCOMPATIBLE), strategy
    assert verdict([old], old, Strategy.ALWAYS_INCOMPATIBLE)


JACKSON = b'{"type":"object","id":"urn:a"}'


@pytest.mark.parametrize("strategy", [Strategy.FULL, Strategy.ALWAYS_INCOMPATIBLE])
@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [
        (JACKSON, JACKSON + b" ", True),
        (JACKSON, b'{"type":"object","id":"urn:b"}', False),
        (JACKSON, b'{"type":"object"}', False),
        (b'{"type":"object"}', JACKSON, False),
        (JACKSON, PLAIN, True),
        (PLAIN, JACKSON, True),
        (JACKSON, b"zz", False),
        (PLAIN, b"zz", False),
        (b"zz", JACKSON, True),
        (PLAIN, OTHER, False),
    ],
)
def test_json_of_the_old_form(old: bytes, new: bytes, allowed: bool, strategy: Strategy) -> None:
    assert verdict([SchemaInfo(SchemaType.JSON, old)], SchemaInfo(SchemaType.JSON, new), strategy) is allowed


def test_json_of_the_old_form_has_no_transitive_checks() -> None:
    schema = SchemaInfo(SchemaType.JSON, JACKSON)
    assert not verdict([schema], schema, Strategy.FULL_TRANSITIVE)


def key_value(key: SchemaInfo, value: SchemaInfo) -> SchemaInfo:
    properties = {"key.schema.type": key.type.name, "value.schema.type": value.type.name, "kv.encoding.type": "INLINE"}
    return SchemaInfo(SchemaType.KEY_VALUE, key_value_data(key.data, value.data), properties)


STRING = SchemaInfo(SchemaType.STRING)
AVRO = SchemaInfo(SchemaType.AVRO, PLAIN)


@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [
        ((STRING, SchemaInfo(SchemaType.AVRO, PLAIN)), (STRING, SchemaInfo(SchemaType.AVRO, WITH_OPTIONAL)), True),
        ((STRING, SchemaInfo(SchemaType.AVRO, PLAIN)), (STRING, SchemaInfo(SchemaType.AVRO, WITH_MORE)), False),
        ((SchemaInfo(SchemaType.JSON, PLAIN), STRING), (SchemaInfo(SchemaType.JSON, WITH_MORE), STRING), False),
        ((SchemaInfo(SchemaType.JSON, PLAIN), STRING), (SchemaInfo(SchemaType.JSON, WITH_OPTIONAL), STRING), True),
        ((SchemaInfo(SchemaType.JSON, JACKSON), STRING), (SchemaInfo(SchemaType.JSON, PLAIN), STRING), False),
        ((STRING, AVRO), (SchemaInfo(SchemaType.INT32), SchemaInfo(SchemaType.AVRO, WITH_OPTIONAL)), False),
        ((AVRO, STRING), (SchemaInfo(SchemaType.AVRO, WITH_OPTIONAL), SchemaInfo(SchemaType.INT32)), False),
    ],
)
def test_both_sides_of_key_value_count(
    old: tuple[SchemaInfo, SchemaInfo], new: tuple[SchemaInfo, SchemaInfo], allowed: bool
) -> None:
    for strategy in (Strategy.FULL, Strategy.FULL_TRANSITIVE):
        assert verdict([key_value(*old)], key_value(*new), strategy) is allowed
    assert verdict([key_value(*old)], key_value(*new), Strategy.ALWAYS_COMPATIBLE)


def test_key_value_is_the_same_by_its_data_alone() -> None:
    """Pulsar takes KeyValue<String, String> for KeyValue<Integer, String>: neither side has data."""
    old, new = key_value(STRING, STRING), key_value(SchemaInfo(SchemaType.INT32), STRING)
    assert compatibility.same_schema(new, [old]) == 0
    assert verdict([old], new, Strategy.FULL)
    assert not verdict([old], new, Strategy.FULL_TRANSITIVE)


def test_broken_key_value_is_incompatible() -> None:
    broken = SchemaInfo(SchemaType.KEY_VALUE, b"\0")
    assert not verdict([key_value(STRING, STRING)], broken, Strategy.FULL)


def native(message: str, *fields: str, package: str = "p", root: str = "", **other: object) -> SchemaInfo:
    """A PROTOBUF_NATIVE schema made of a real descriptor."""
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", package=package, syntax="proto3")
    file.dependency.append("b.proto")
    outer = file.message_type.add(name=message)
    for number, name in enumerate(fields, 1):
        outer.field.add(name=name, number=number, type="TYPE_STRING", label="LABEL_OPTIONAL")
    outer.nested_type.add(name="Inner")
    needed = descriptor_pb2.FileDescriptorProto(name="b.proto", syntax="proto3")
    descriptors = descriptor_pb2.FileDescriptorSet(file=[file, needed])
    document = {
        "fileDescriptorSet": base64.b64encode(descriptors.SerializeToString()).decode(),
        "rootMessageTypeName": root or f"{package}.{message}",
        "rootFileDescriptorName": "a.proto",
        **other,
    }
    return SchemaInfo(SchemaType.PROTOBUF_NATIVE, json.dumps(document).encode())


def test_protobuf_native_keeps_its_root_message() -> None:
    for strategy in BOTH_WAYS:
        assert verdict([native("M", "a")], native("M", "a", "b"), strategy)
        assert not verdict([native("M", "a")], native("N", "a"), strategy)
        assert not verdict([native("M", "a")], native("M", "a", package="q"), strategy)
    assert verdict([native("M", "a")], native("N"), Strategy.ALWAYS_COMPATIBLE)
    assert not verdict([native("M", "a")], native("M", "b"), Strategy.ALWAYS_INCOMPATIBLE)
    with pytest.raises(IncompatibleSchema, match=r"Original message name: 'p\.M', new message name: 'p\.N'"):
        compatibility.check_newest(native("M"), native("N"), Strategy.FULL)


def test_protobuf_native_with_rubbish_is_incompatible() -> None:
    assert not verdict([native("M")], SchemaInfo(SchemaType.PROTOBUF_NATIVE, b"zz"), Strategy.FULL)


@pytest.mark.parametrize(
    "schema",
    [
        native("M", "a"),
        native("M", "a", root="M"),
        native("M", root="p.M.Inner"),
        native("M", package="", root="M"),
        native("M", extra=1),
        key_value(STRING, SchemaInfo(SchemaType.AVRO, PLAIN)),
        key_value(key_value(STRING, STRING), STRING),
        STRING,
        SchemaInfo(SchemaType.STRING, b"null"),
        SchemaInfo(SchemaType.BOOLEAN),
        SchemaInfo(SchemaType.BYTES, b"x"),
        SchemaInfo(SchemaType.NONE, b"x"),
        SchemaInfo(SchemaType.EXTERNAL, b"x"),
        SchemaInfo(SchemaType.AVRO, b'"string"'),
        SchemaInfo(SchemaType.JSON, b'["null","string"]'),
        SchemaInfo(SchemaType.JSON, JACKSON),
        SchemaInfo(SchemaType.JSON, b"null"),
        SchemaInfo(SchemaType.PROTOBUF, PLAIN),
    ],
)
def test_data_that_is_valid(schema: SchemaInfo) -> None:
    validate(schema)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (native("M", root="p.X"), "deserialize ProtobufNative Schema failed"),
        (native("M", root=".p.M"), "deserialize ProtobufNative Schema failed"),
        (native("M", "a", "a"), "deserialize ProtobufNative Schema failed"),
        (native("M", rootFileDescriptorName="z.proto"), "deserialize ProtobufNative Schema failed"),
        (native("M", rootFileDescriptorName=5), "deserialize ProtobufNative Schema failed"),
        (native("M", fileDescriptorSet="!!"), "deserialize ProtobufNative Schema failed"),
        (native("M", fileDescriptorSet="/////w=="), "deserialize ProtobufNative Schema failed"),
        (SchemaInfo(SchemaType.PROTOBUF_NATIVE, b"{}"), "deserialize ProtobufNative Schema failed"),
        (SchemaInfo(SchemaType.PROTOBUF_NATIVE, b"null"), "deserialize ProtobufNative Schema failed"),
        (SchemaInfo(SchemaType.STRING, b"x"), "Invalid schema definition data for string schema : 'x'"),
        (SchemaInfo(SchemaType.INT32, b"null"), "length of schema data should be zero, but 4 bytes is found"),
        (SchemaInfo(SchemaType.AUTO_CONSUME), "Schema AUTO_CONSUME is a client-side schema type"),
        (SchemaInfo(SchemaType.AVRO, b'["null","string"]'), r"Avro schema typed \[UNION\] is not supported"),
        (SchemaInfo(SchemaType.AVRO, JACKSON), "Invalid schema definition data for AVRO schema"),
        (SchemaInfo(SchemaType.JSON, b'{"type":"zzz"}'), "Invalid schema definition data for JSON schema"),
        (SchemaInfo(SchemaType.JSON, b'{"id":"x"}'), "Invalid schema definition data for JSON schema"),
        (SchemaInfo(SchemaType.PROTOBUF, b""), "Invalid schema definition data for PROTOBUF schema"),
        (SchemaInfo(SchemaType.KEY_VALUE, b""), "Invalid schema definition data for KEY_VALUE schema"),
        (key_value(SchemaInfo(SchemaType.STRING, b"x"), STRING), "Invalid schema definition data for string schema"),
    ],
)
def test_data_that_is_not(schema: SchemaInfo, message: str) -> None:
    with pytest.raises(InvalidSchemaData, match=message):
        validate(schema)


def test_descriptor_files_in_a_circle_are_invalid() -> None:
    files = [
        descriptor_pb2.FileDescriptorProto(name=name, dependency=[needed])
        for name, needed in (("a.proto", "b.proto"), ("b.proto", "a.proto"))
    ]
    descriptors = descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()
    with pytest.raises(InvalidSchemaData):
        validate(native("M", fileDescriptorSet=base64.b64encode(descriptors).decode()))


def test_the_same_schema_is_found_by_its_meaning() -> None:
    existing = [SchemaInfo(SchemaType.AVRO, PLAIN), SchemaInfo(SchemaType.AVRO, WITH_MORE), STRING]
    spaced = json.dumps(json.loads(WITH_MORE), indent=2).encode()
    assert compatibility.same_schema(SchemaInfo(SchemaType.AVRO, spaced), existing) == 1
    assert compatibility.same_schema(SchemaInfo(SchemaType.JSON, spaced), existing) is None
    assert compatibility.same_schema(SchemaInfo(SchemaType.AVRO, b"zz"), existing) is None
    assert compatibility.same_schema(STRING, existing) == 2
    assert compatibility.same_schema(SchemaInfo(SchemaType.STRING, b"null"), existing) is None
