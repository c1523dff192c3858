"""Primitive types: bytes of Java's client (4.0.8), and round trips."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.spark.values.api import SchemaDefinition
from magnetar.spark.values.primitives import encode_primitives
from magnetar.spark.values.registry import SchemaDecoder, decoder_for
from magnetar.wire.pulsar.enums import SchemaType

# As org.apache.pulsar.client.api.Schema.<type>.encode gave them.
JAVA: list[tuple[SchemaType, str, Any]] = [
    (SchemaType.BOOLEAN, "01", True),
    (SchemaType.BOOLEAN, "00", False),
    (SchemaType.INT8, "fe", -2),
    (SchemaType.INT16, "fed4", -300),
    (SchemaType.INT32, "fffeee90", -70000),
    (SchemaType.INT64, "fffffffed5fa0e00", -5_000_000_000),
    (SchemaType.FLOAT, "bfc00000", -1.5),
    (SchemaType.DOUBLE, "400921fb54442d18", math.pi),
    (SchemaType.STRING, "7a61c5bcc3b3c582c48720e282ac", "zażółć €"),
    (SchemaType.DATE, "0000018bcfe5687b", date(2023, 11, 14)),
    (SchemaType.DATE, "ffffffffffffffff", date(1969, 12, 31)),
    (SchemaType.TIME, "0000000002b32c95", 45296789),
    (SchemaType.TIMESTAMP, "0000018bcfe5687b", datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)),
    (SchemaType.INSTANT, "000000006553f100075bcd15", datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)),
    (SchemaType.INSTANT, "fffffffffffffffe3b9ac9ff", datetime(1969, 12, 31, 23, 59, 58, 999999, UTC)),
    (SchemaType.LOCAL_DATE, "0000000000004cdb", date(2023, 11, 14)),
    (SchemaType.LOCAL_DATE, "ffffffffffffffff", date(1969, 12, 31)),
    (SchemaType.LOCAL_TIME, "0000293253592d15", 45296123456789),
    (
        SchemaType.LOCAL_DATE_TIME,
        "0000000000004cdb0000293253592d15",
        datetime(2023, 11, 14, 12, 34, 56, 123456),  # noqa: DTZ001 - a local time has no zone.
    ),
]


def decoder(schema_type: SchemaType) -> SchemaDecoder:
    return decoder_for(SchemaDefinition(type=schema_type))


async def decoded(schema_type: SchemaType, payloads: list[bytes | None]) -> tuple[pa.Array, dict[int, str]]:
    values = pa.array(payloads, pa.binary())
    result = await decoder(schema_type).decode(values, [(b"", len(payloads))])
    (column,) = result.columns
    column.validate(full=True)
    assert len(column) == len(payloads)
    assert decoder(schema_type).fields() == [("value", column.type)]
    return column, result.bad


@pytest.mark.parametrize(("schema_type", "payload", "value"), JAVA)
async def test_bytes_of_java(schema_type: SchemaType, payload: str, value: Any) -> None:
    column, bad = await decoded(schema_type, [bytes.fromhex(payload), None])
    assert column.to_pylist() == [value, None]
    assert not bad


@pytest.mark.parametrize("schema_type", [one for one in SchemaType if 5 <= one <= 19 and one != 15])
async def test_wrong_lengths_are_bad_and_nothing_is_null(schema_type: SchemaType) -> None:
    column, bad = await decoded(schema_type, [b"123", b"", None, b"x" * 40])
    assert column.null_count == 4
    assert set(bad) == {0, 3}
    assert schema_type.name in bad[0]


async def test_a_slice_of_a_larger_column() -> None:
    values = pa.array([b"\0\0\0\1", b"\0\0\0\2", b"bad", b"\0\0\0\3", None], pa.binary()).slice(1)
    result = await decoder(SchemaType.INT32).decode(values, [(b"", 4)])
    assert result.columns[0].to_pylist() == [2, None, 3, None]
    assert set(result.bad) == {1}
    assert (await decoder(SchemaType.INT32).decode(values.slice(0, 0), [])).columns[0].to_pylist() == []


async def test_times_beyond_spark_are_bad() -> None:
    for schema_type, size in ((SchemaType.TIMESTAMP, 0), (SchemaType.INSTANT, 4), (SchemaType.LOCAL_DATE_TIME, 8)):
        for sign in (1, -1):
            number = sign * (2**63 - 1)
            column, bad = await decoded(schema_type, [number.to_bytes(8, "big", signed=True) + bytes(size)])
            assert column.to_pylist() == [None]
            assert "range" in bad[0]


async def test_texts_are_checked() -> None:
    column, bad = await decoded(SchemaType.STRING, [b"ok", b"\xff", None, b"", "é".encode()])
    assert column.to_pylist() == ["ok", None, None, "", "é"]
    assert list(bad) == [1]


async def test_bytes_are_the_very_array() -> None:
    values = pa.array([b"a", None, b""], pa.binary())
    result = await decoder_for(None).decode(values, [(b"\0" * 8, 3)])
    assert result.columns[0] is values


def _micros(value: datetime) -> datetime:
    return value.replace(microsecond=value.microsecond // 1000 * 1000)


STRATEGIES: dict[SchemaType, st.SearchStrategy[Any]] = {
    SchemaType.BOOLEAN: st.booleans(),
    SchemaType.INT8: st.integers(-(2**7), 2**7 - 1),
    SchemaType.INT16: st.integers(-(2**15), 2**15 - 1),
    SchemaType.INT32: st.integers(-(2**31), 2**31 - 1),
    SchemaType.INT64: st.integers(-(2**63), 2**63 - 1),
    SchemaType.FLOAT: st.floats(width=32, allow_nan=False),
    SchemaType.DOUBLE: st.floats(allow_nan=False),
    SchemaType.DATE: st.dates(),
    SchemaType.TIME: st.integers(-(2**63), 2**63 - 1),
    SchemaType.TIMESTAMP: st.datetimes(timezones=st.just(UTC)).map(_micros),
    SchemaType.INSTANT: st.datetimes(timezones=st.just(UTC)),
    SchemaType.LOCAL_DATE: st.dates(),
    SchemaType.LOCAL_TIME: st.integers(0, 86_400_000_000_000 - 1),
    SchemaType.LOCAL_DATE_TIME: st.datetimes(),
}


@given(st.data())
@settings(max_examples=40, deadline=None)
@pytest.mark.slow
async def test_round_trips(data: st.DataObject) -> None:
    schema_type = data.draw(st.sampled_from(sorted(STRATEGIES)))
    column_type = dict(decoder(schema_type).fields())["value"]
    values = data.draw(st.lists(st.none() | STRATEGIES[schema_type], max_size=20))
    column = pa.array(values, column_type)
    payloads = encode_primitives(schema_type, column)
    assert [payload is None for payload in payloads] == [value is None for value in values]
    back, bad = await decoded(schema_type, payloads)
    assert back.equals(column)
    assert not bad


def test_encoding_what_java_encodes() -> None:
    for schema_type, payload, value in JAVA:
        exact = schema_type not in (SchemaType.STRING, SchemaType.DATE, SchemaType.INSTANT, SchemaType.LOCAL_DATE_TIME)
        if exact or schema_type is SchemaType.LOCAL_DATE:
            column_type = dict(decoder(schema_type).fields())["value"]
            assert encode_primitives(schema_type, pa.array([value], column_type)) == [bytes.fromhex(payload)]
