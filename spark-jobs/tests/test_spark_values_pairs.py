"""KEY_VALUE and PROTOBUF_NATIVE: bytes and definitions of Java's client (4.0.8), round trips, bad payloads."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, struct_pb2, timestamp_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.spark.errors import SchemaUnreadable, SinkRefused
from magnetar.spark.values.api import SchemaDefinition, SchemaVersions
from magnetar.spark.values.encoders import encoder_for
from magnetar.spark.values.key_value import inline, joined, split_inline
from magnetar.spark.values.registry import SchemaDecoder, decoder_for
from magnetar.wire.pulsar.enums import SchemaType

INNER = (
    '{"type":"record","name":"Inner","namespace":"Enc","fields":[{"name":"a","type":"int"},'
    '{"name":"b","type":["null","string"],"default":null}]}'
)
# What Java registers for KeyValue(AVRO(Inner), INT32).
JAVA_DATA = bytes.fromhex("0000008c") + INNER.encode() + bytes(4)
JAVA_PROPERTIES = {
    "key.schema.properties": '{"__alwaysAllowNull":"true","__jsr310ConversionEnabled":"false"}',
    "value.schema.properties": "{}",
    "value.schema.type": "INT32",
    "key.schema.name": "",
    "value.schema.name": "INT32",
    "key.schema.type": "AVRO",
}


def java_definition(encoding: str) -> SchemaDefinition:
    properties = {**JAVA_PROPERTIES, "kv.encoding.type": encoding}
    return SchemaDefinition(type=SchemaType.KEY_VALUE, name="KeyValue", data=JAVA_DATA, properties=properties)


async def rows_of(
    decoder: SchemaDecoder, payloads: list[bytes | None], **keys: Any
) -> tuple[list[Any], dict[int, str]]:
    result = await decoder.decode(pa.array(payloads, pa.binary()), [(b"", len(payloads))], **keys)
    for column, (_, arrow_type) in zip(result.columns, decoder.fields(), strict=True):
        assert column.type.equals(arrow_type)
        column.validate(full=True)
    return pa.Table.from_arrays(result.columns, [name for name, _ in decoder.fields()]).to_pylist(), result.bad


async def test_inline_pairs_of_java() -> None:
    payloads = [
        bytes.fromhex("000000050602046262000000040000004d"),
        bytes.fromhex("ffffffff000000040000004d"),
        bytes.fromhex("000000050602046262ffffffff"),
        None,
    ]
    decoder = decoder_for(java_definition("INLINE"))
    assert not decoder.needs_keys
    rows, bad = await rows_of(decoder, payloads)
    assert not bad
    key = {"a": 3, "b": "bb"}
    assert rows == [
        {"key": key, "value": 77},
        {"key": None, "value": 77},
        {"key": key, "value": None},
        {"key": None, "value": None},
    ]
    batch = pa.RecordBatch.from_pylist(rows, pa.schema(decoder.fields()))
    assert encoder_for(java_definition("INLINE"), decoder.fields()).encode(batch) == payloads


async def test_separated_keys_are_the_messages_keys() -> None:
    decoder = decoder_for(java_definition("SEPARATED"))
    assert decoder.needs_keys
    key = bytes.fromhex("0602046262")
    keys = pa.array([base64.b64encode(key).decode(), key.decode(), None, "?", "?"])
    flags = pa.array([True, False, False, True, None])
    rows, bad = await rows_of(decoder, [b"\0\0\0M"] * 4 + [None], keys=keys, keys_base64=flags)
    assert [row["value"] for row in rows] == [77, 77, 77, None, None]
    assert [row["key"] for row in rows] == [{"a": 3, "b": "bb"}] * 2 + [None] * 3
    assert set(bad) == {3, 4}
    batch = pa.RecordBatch.from_pylist(rows[:3], pa.schema(decoder.fields()))
    encoder = encoder_for(java_definition("SEPARATED"), decoder.fields())
    assert encoder.encode(batch) == [b"\0\0\0M"] * 3
    assert encoder.encode_keys(batch) == [key, key, None]


def test_the_definition_is_java_s() -> None:
    key = SchemaDefinition(
        type=SchemaType.AVRO,
        data=INNER.encode(),
        properties={"__alwaysAllowNull": "true", "__jsr310ConversionEnabled": "false"},
    )
    assert joined(key, SchemaDefinition(type=SchemaType.INT32, name="INT32"), separated=True) == java_definition(
        "SEPARATED"
    )


async def test_pairs_that_are_cut_short_are_bad() -> None:
    text = SchemaDefinition(type=SchemaType.STRING, name="String")
    decoder = decoder_for(joined(text, text, separated=False))
    whole = inline(b"k", b"v")
    payloads = [whole[:end] for end in range(1, len(whole))] + [whole, inline(b"\xff", b"v"), whole + b"x"]
    rows, bad = await rows_of(decoder, list(payloads))
    assert set(bad) == {*range(len(whole) - 1), len(whole)}
    assert bad[len(whole)].startswith("key: no UTF-8")
    assert rows[len(whole) - 1] == {"key": "k", "value": "v"} == rows[-1]


@given(
    st.lists(st.none() | st.tuples(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=9)), max_size=9)
)
def test_splitting_is_the_inverse_of_joining(pairs: list[tuple[bytes | None, bytes | None] | None]) -> None:
    values = pa.array([None, *[None if pair is None else inline(*pair) for pair in pairs]], pa.binary()).slice(1)
    keys, parts, bad = split_inline(values)
    assert not bad
    assert keys.to_pylist() == [pair and pair[0] for pair in pairs]
    assert parts.to_pylist() == [pair and pair[1] for pair in pairs]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.binary(max_size=20), max_size=9))
def test_splitting_garbage_never_raises(payloads: list[bytes]) -> None:
    keys, parts, bad = split_inline(pa.array(payloads, pa.binary()))
    keys.validate(full=True)
    parts.validate(full=True)
    assert len(keys) == len(parts) == len(payloads) >= len(bad)


async def test_a_version_with_other_sides_is_bad() -> None:
    text, number = SchemaDefinition(type=SchemaType.STRING), SchemaDefinition(type=SchemaType.INT32)
    other = joined(text, number, separated=False)
    other = SchemaDefinition(type=other.type, data=other.data, properties=other.properties, version=b"\0" * 8)
    table = joined(text, text, separated=False)
    result = await decoder_for(table, SchemaVersions([other])).decode(pa.array([inline(b"", b"")]), [(b"\0" * 8, 1)])
    assert "the value is of type INT32" in result.bad[0]


def test_a_broken_definition_is_refused() -> None:
    for data in (b"", b"\0\0\0\x09x", b"\xff\xff\xff\xf0"):
        with pytest.raises(SchemaUnreadable):
            decoder_for(SchemaDefinition(type=SchemaType.KEY_VALUE, data=data))


FIELD = descriptor_pb2.FieldDescriptorProto
OPTIONAL, REPEATED = FIELD.LABEL_OPTIONAL, FIELD.LABEL_REPEATED


def protobuf_files() -> list[descriptor_pb2.FileDescriptorProto]:
    file = descriptor_pb2.FileDescriptorProto(name="orders.proto", package="acme", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/duration.proto"])
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="UNKNOWN", number=0)
    kind.value.add(name="BUY", number=1)
    item = file.message_type.add(name="Item")
    item.field.add(name="sku", number=1, type=FIELD.TYPE_STRING, label=OPTIONAL)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=FIELD.TYPE_INT32, label=OPTIONAL)
    entry.field.add(name="value", number=2, type=FIELD.TYPE_ENUM, label=OPTIONAL, type_name=".acme.Kind")
    order.oneof_decl.add(name="either")
    for number, (name, field_type, type_name, label, oneof) in enumerate(
        [
            ("id", FIELD.TYPE_INT64, "", OPTIONAL, None),
            ("small", FIELD.TYPE_UINT32, "", OPTIONAL, None),
            ("large", FIELD.TYPE_UINT64, "", OPTIONAL, None),
            ("raw", FIELD.TYPE_BYTES, "", OPTIONAL, None),
            ("kind", FIELD.TYPE_ENUM, ".acme.Kind", OPTIONAL, None),
            ("kinds", FIELD.TYPE_ENUM, ".acme.Kind", REPEATED, None),
            ("items", FIELD.TYPE_MESSAGE, ".acme.Item", REPEATED, None),
            ("item", FIELD.TYPE_MESSAGE, ".acme.Item", OPTIONAL, None),
            ("counts", FIELD.TYPE_MESSAGE, ".acme.Order.CountsEntry", REPEATED, None),
            ("at", FIELD.TYPE_MESSAGE, ".google.protobuf.Timestamp", OPTIONAL, None),
            ("took", FIELD.TYPE_MESSAGE, ".google.protobuf.Duration", OPTIONAL, None),
            ("text", FIELD.TYPE_STRING, "", OPTIONAL, 0),
            ("number", FIELD.TYPE_DOUBLE, "", OPTIONAL, 0),
        ],
        start=1,
    ):
        field = order.field.add(name=name, number=number, type=field_type, label=label, type_name=type_name or None)
        if oneof is not None:
            field.oneof_index = oneof
    files = [file]
    for module in (timestamp_pb2, duration_pb2):
        imported = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(imported)
        files.append(imported)
    return files


def protobuf_definition(files: list[descriptor_pb2.FileDescriptorProto], root: str) -> SchemaDefinition:
    descriptors = descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()
    document = {
        "fileDescriptorSet": base64.b64encode(descriptors).decode(),
        "rootMessageTypeName": root,
        "rootFileDescriptorName": files[0].name,
    }
    return SchemaDefinition(type=SchemaType.PROTOBUF_NATIVE, data=json.dumps(document).encode())


ORDER_ROW: dict[str, Any] = {
    "id": -5,
    "small": 2**32 - 1,
    "large": Decimal(2**64 - 1),
    "raw": b"\xff",
    "kind": "BUY",
    "kinds": ["BUY", "7"],
    "items": [{"sku": "a"}, {"sku": ""}],
    "item": None,
    "counts": [(3, "BUY")],
    "at": datetime(2023, 11, 14, 22, 13, 20, 123456, UTC),
    "took": timedelta(seconds=-3, microseconds=5),
    "text": None,
    "number": 1.5,
}


async def test_protobuf_messages() -> None:
    files = protobuf_files()
    definition = protobuf_definition(files, "acme.Order")
    pool = descriptor_pool.DescriptorPool()
    for file in reversed(files):
        pool.Add(file)
    order: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("acme.Order"))()
    order.id, order.small, order.large, order.raw, order.kind, order.number = -5, 2**32 - 1, 2**64 - 1, b"\xff", 1, 1.5
    order.kinds.extend([1, 7])
    order.items.add(sku="a")
    order.items.add()
    order.counts[3] = 1
    order.at.FromDatetime(ORDER_ROW["at"])
    order.took.FromTimedelta(ORDER_ROW["took"])
    payload = order.SerializeToString(deterministic=True)
    decoder = decoder_for(definition)
    rows, bad = await rows_of(decoder, [payload, b"\xff\xff", None, b""])
    assert rows[0] == ORDER_ROW
    assert list(bad) == [1]
    assert set(rows[2].values()) == {None}
    assert rows[3]["id"] == 0
    assert rows[3]["kinds"] == []
    batch = pa.RecordBatch.from_pylist([rows[0], rows[3]], pa.schema(decoder.fields()))
    encoder = encoder_for(definition, decoder.fields())
    assert encoder.encode(batch) == [payload, b""]
    with pytest.raises(SinkRefused, match="no field more"):
        encoder.encode(pa.RecordBatch.from_pylist([{"more": 1}]))


async def test_protobuf_of_java() -> None:
    # Schema.PROTOBUF_NATIVE(com.google.protobuf.Timestamp) and one message of it.
    descriptors = (
        "Cv8BCh9nb29nbGUvcHJvdG9idWYvdGltZXN0YW1wLnByb3RvEg9nb29nbGUucHJvdG9idWYiOwoJVGltZXN0YW1wEhgKB3NlY29uZHMYASAB"
        "KANSB3NlY29uZHMSFAoFbmFub3MYAiABKAVSBW5hbm9zQoUBChNjb20uZ29vZ2xlLnByb3RvYnVmQg5UaW1lc3RhbXBQcm90b1ABWjJnb29n"
        "bGUuZ29sYW5nLm9yZy9wcm90b2J1Zi90eXBlcy9rbm93bi90aW1lc3RhbXBwYvgBAaICA0dQQqoCHkdvb2dsZS5Qcm90b2J1Zi5XZWxsS25v"
        "d25UeXBlc2IGcHJvdG8z"
    )
    document = {
        "fileDescriptorSet": descriptors,
        "rootMessageTypeName": "google.protobuf.Timestamp",
        "rootFileDescriptorName": "google/protobuf/timestamp.proto",
    }
    decoder = decoder_for(SchemaDefinition(type=SchemaType.PROTOBUF_NATIVE, data=json.dumps(document).encode()))
    rows, bad = await rows_of(decoder, [bytes.fromhex("08051006")])
    assert rows == [{"seconds": 5, "nanos": 6}]
    assert not bad


def test_protobuf_that_has_no_columns_is_refused() -> None:
    recursive = descriptor_pb2.FileDescriptorProto()
    struct_pb2.DESCRIPTOR.CopyToProto(recursive)
    with pytest.raises(SchemaUnreadable, match="contains itself"):
        decoder_for(protobuf_definition([recursive], "google.protobuf.Struct"))
    with pytest.raises(SchemaUnreadable, match="descriptors"):
        decoder_for(protobuf_definition(protobuf_files()[:1], "acme.Order"))
    with pytest.raises(SchemaUnreadable, match="descriptors"):
        decoder_for(SchemaDefinition(type=SchemaType.PROTOBUF_NATIVE, data=b"{}"))
