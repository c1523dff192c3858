"""Schemas as values and their forms. Bytes marked as Pulsar's were read and written again by Pulsar 4.0.8's classes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.broker.schema.errors import InvalidSchemaData, SchemaRefused
from magnetar.broker.schema.locator import (
    Locator,
    SchemaPosition,
    SchemaStoreCorrupt,
    entry_bytes,
    locator_bytes,
    parse_entry,
    parse_locator,
)
from magnetar.broker.schema.schema_info import (
    SchemaInfo,
    StoredSchema,
    from_rest,
    from_storage,
    key_value_data,
    known_type,
    rest_text,
    split_key_value,
    to_storage,
)
from magnetar.broker.schema.wire import from_wire, to_wire, version_bytes, version_from_bytes
from magnetar.wire.pulsar.enums import SchemaType
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pulsar_api

HASH = bytes(range(32))
POSITIONS = (
    SchemaPosition(0, 17, 0, HASH),
    SchemaPosition(1, 300, 0, b""),
    SchemaPosition(2, 70000, 0, b"\xff" * 32),
)
PULSARS_LOCATOR = bytes.fromhex(
    "0a2c0802120608f0a20410001a20ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff122a0800120408111000"
    "1a20000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f120b0801120508ac0210001a00122c0802120608f0a2"
    "0410001a20ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"
)
PULSARS_FIRST_ENTRY = bytes.fromhex(
    "12650a107075626c69632f64656661756c742f74120561646d696e1810220800000000000000002880d095ffbc3130003a190a0f6b65792e"
    "736368656d612e747970651206535452494e473a1a0a1176616c75652e736368656d612e747970651205494e5433322a3c0800121608ffff"
    "ffffffffffffff0110ffffffffffffffffff011a20000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
)
PULSARS_TOMBSTONE_ENTRY = bytes.fromhex(
    "121c0a107075626c69632f64656661756c742f74120018012200280530012a2a08001204081110001a20000102030405060708090a0b0c0d"
    "0e0f101112131415161718191a1b1c1d1e1f"
)
KEY_VALUE = StoredSchema(
    "public/default/t",
    0,
    SchemaInfo(SchemaType.KEY_VALUE, bytes(8), {"key.schema.type": "STRING", "value.schema.type": "INT32"}),
    "admin",
    1_700_000_000_000,
    deleted=False,
)
TOMBSTONE = StoredSchema("public/default/t", 1, SchemaInfo(SchemaType.NONE), "", 5, deleted=True)


def test_wire_numbers_are_those_of_the_proto() -> None:
    names = {
        "NONE": SchemaType.NONE,
        "String": SchemaType.STRING,
        "Json": SchemaType.JSON,
        "Protobuf": SchemaType.PROTOBUF,
        "Avro": SchemaType.AVRO,
        "Bool": SchemaType.BOOLEAN,
        "Int8": SchemaType.INT8,
        "Double": SchemaType.DOUBLE,
        "Timestamp": SchemaType.TIMESTAMP,
        "KeyValue": SchemaType.KEY_VALUE,
        "LocalDateTime": SchemaType.LOCAL_DATE_TIME,
        "ProtobufNative": SchemaType.PROTOBUF_NATIVE,
        "AutoConsume": SchemaType.AUTO_CONSUME,
        "External": SchemaType.EXTERNAL,
    }
    for name, schema_type in names.items():
        assert schema_type.wire_number == pulsar_api.Schema.Type.Value(name)
    for number in pulsar_api.Schema.Type.values():
        assert known_type(SchemaType.from_wire_number(number), number).wire_number == number
    assert SchemaType.BYTES.wire_number == 0
    with pytest.raises(InvalidSchemaData):
        known_type(SchemaType.from_wire_number(99), 99)


@pytest.mark.parametrize(
    ("schema_type", "number"),
    [
        (SchemaType.NONE, 1),
        (SchemaType.BYTES, 1),
        (SchemaType.AUTO_CONSUME, 1),
        (SchemaType.AVRO, 5),
        (SchemaType.KEY_VALUE, 16),
        (SchemaType.INSTANT, 17),
        (SchemaType.PROTOBUF_NATIVE, 21),
        (SchemaType.EXTERNAL, 22),
    ],
)
def test_storage_numbers_are_one_more(schema_type: SchemaType, number: int) -> None:
    assert schema_type.storage_number == number
    if schema_type >= 0:
        assert SchemaType.from_storage_number(number) is schema_type


def test_locator_bytes_are_pulsars() -> None:
    assert locator_bytes(POSITIONS) == PULSARS_LOCATOR
    assert parse_locator(PULSARS_LOCATOR, 7) == Locator(POSITIONS, 7)


def test_a_tombstone_ends_what_was_live() -> None:
    assert parse_locator(PULSARS_LOCATOR, 7).live() == POSITIONS[2:]
    assert Locator(POSITIONS[:2], 0).live() == ()
    assert Locator(POSITIONS[:1], 0).live() == POSITIONS[:1]


def test_entry_bytes_are_pulsars() -> None:
    assert entry_bytes(to_storage(KEY_VALUE), HASH, ()) == PULSARS_FIRST_ENTRY
    assert from_storage(0, parse_entry(PULSARS_FIRST_ENTRY)) == KEY_VALUE
    assert entry_bytes(to_storage(TOMBSTONE), b"", POSITIONS[:1]) == PULSARS_TOMBSTONE_ENTRY
    assert from_storage(1, parse_entry(PULSARS_TOMBSTONE_ENTRY)) == TOMBSTONE


@pytest.mark.parametrize("parse", [lambda value: parse_locator(value, 0), parse_entry])
def test_rubbish_in_the_store_is_told(parse: object) -> None:
    assert callable(parse)
    with pytest.raises(SchemaStoreCorrupt):
        parse(b"\x0a\xff")


def test_hash_is_sha256_of_the_data() -> None:
    expected = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert SchemaInfo(SchemaType.STRING).hash().hex() == expected


@given(st.binary(), st.dictionaries(st.text(), st.text(), max_size=3), st.sampled_from(SchemaType), st.text())
def test_storage_and_wire_round_trip(
    data: bytes, properties: dict[str, str], schema_type: SchemaType, name: str
) -> None:
    schema = SchemaInfo(schema_type, data, properties, name)
    stored = from_storage(3, to_storage(StoredSchema("t/n/x", 3, schema, "me", 12, deleted=False)))
    assert (stored.schema.data, stored.schema.properties) == (data, properties)
    assert stored.schema.type is (schema_type if schema_type >= 0 else SchemaType.NONE)
    travelled = from_wire(pulsar_api.Schema.FromString(to_wire(schema, name).SerializeToString()))
    assert travelled.same_as(schema) or schema_type < 0
    assert (travelled.name, travelled.properties) == (name, properties)


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_key_value_data_splits_into_its_sides(key: bytes, value: bytes) -> None:
    schema = SchemaInfo(SchemaType.KEY_VALUE, key_value_data(key, value))
    sides = split_key_value(schema)
    assert [side.data for side in sides] == [key, value]
    assert [side.type for side in sides] == [SchemaType.BYTES] * 2


@given(st.binary(max_size=30))
def test_any_key_value_data_splits_or_is_refused(data: bytes) -> None:
    try:
        key, value = split_key_value(SchemaInfo(SchemaType.KEY_VALUE, data))
    except InvalidSchemaData:
        return
    assert len(key.data) + len(value.data) + 8 <= len(data)


def test_sides_of_a_key_value_schema_have_their_own_properties() -> None:
    properties = {
        "key.schema.name": "k",
        "key.schema.type": "AVRO",
        "key.schema.properties": '{"a":"b"}',
        "value.schema.type": "STRING",
        "kv.encoding.type": "SEPARATED",
    }
    key, value = split_key_value(SchemaInfo(SchemaType.KEY_VALUE, key_value_data(b'"int"', b""), properties))
    assert key == SchemaInfo(SchemaType.AVRO, b'"int"', {"a": "b"}, "k")
    assert value == SchemaInfo(SchemaType.STRING)


@pytest.mark.parametrize(
    ("data", "properties"),
    [
        (b"", {}),
        (b"\0\0\0\x09ab", {}),
        (b"\xff\xff\xff\xfe", {}),
        (bytes(8), {"key.schema.type": "ZZ"}),
        (bytes(8), {"value.schema.properties": "[]"}),
        (bytes(8), {"value.schema.properties": "{"}),
    ],
)
def test_bad_key_value_data_is_refused(data: bytes, properties: dict[str, str]) -> None:
    with pytest.raises(InvalidSchemaData):
        split_key_value(SchemaInfo(SchemaType.KEY_VALUE, data, properties))


def test_missing_sides_are_empty() -> None:
    key, value = split_key_value(SchemaInfo(SchemaType.KEY_VALUE, b"\xff" * 8))
    assert (key.data, value.data) == (b"", b"")


@pytest.mark.parametrize(
    ("types", "key", "value", "expected"),
    [
        (("STRING", "INT32"), "", "", '{"key":"","value":""}'),
        (("BYTES", "AVRO"), "", '{"type" : "int"}', '{"key":"","value":{"type":"int"}}'),
        (
            ("JSON", "STRING"),
            '{"n":"é","d":1.5, "s":"a/b\\u00e9"}',
            "",
            '{"key":{"n":"é","d":1.5,"s":"a/bé"},"value":""}',
        ),
    ],
)
def test_key_value_as_rest_text_is_pulsars(types: tuple[str, str], key: str, value: str, expected: str) -> None:
    properties = {"key.schema.type": types[0], "value.schema.type": types[1]}
    schema = SchemaInfo(SchemaType.KEY_VALUE, key_value_data(key.encode(), value.encode()), properties)
    assert rest_text(schema) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"key":"","value":{"type" : "record", "s":"é/<>&\'"}}', (b"", '{"type":"record","s":"é/<>&\'"}'.encode())),
        ('{"key":"abc","value":5}', (b"abc", b"5")),
        ('{"key":null,"value":""}', (b"null", b"")),
        ('{"key":["null","int"],"value":true}', (b'["null","int"]', b"true")),
    ],
)
def test_key_value_from_rest_text_is_pulsars(text: str, expected: tuple[bytes, bytes]) -> None:
    assert from_rest("KEY_VALUE", text, {}).data == key_value_data(*expected)


@pytest.mark.parametrize("text", ["", "zz", "5", '{"value":5}', "[]"])
def test_bad_key_value_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchemaData):
        from_rest("KEY_VALUE", text, {})


def test_other_types_have_their_data_as_rest_text() -> None:
    schema = from_rest("AVRO", '"int"', {"a": "b"})
    assert schema == SchemaInfo(SchemaType.AVRO, b'"int"', {"a": "b"})
    assert rest_text(schema) == '"int"'
    with pytest.raises(InvalidSchemaData, match="Unknown schema type : avro"):
        from_rest("avro", "", {})


def test_versions_travel_as_eight_bytes() -> None:
    assert version_bytes(258) == b"\0\0\0\0\0\0\1\2"
    assert version_from_bytes(b"\0\0\0\0\0\0\1\2") == 258
    assert version_from_bytes(b"\0\0\0\0\0\0\1\2" + bytes(56)) == 258
    with pytest.raises(SchemaRefused, match="Empty schema version"):
        version_from_bytes(b"")
    with pytest.raises(SchemaRefused):
        version_from_bytes(b"\1")
