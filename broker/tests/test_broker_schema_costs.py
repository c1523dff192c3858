"""What one schema may cost: its judgement is bounded in steps and done beside the event loop, its size is bounded, and
so are all versions of a topic together."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable

import pytest
from magnetar.broker.schema import avro_checks, compatibility, validation
from magnetar.broker.schema import registry as registry_module
from magnetar.broker.schema.avro_checks import why_unreadable
from magnetar.broker.schema.avro_schema import AvroError, default_fits, identity, parse
from magnetar.broker.schema.compatibility import SchemaFingerprints, same_schema
from magnetar.broker.schema.errors import IncompatibleSchema, InvalidSchemaData
from magnetar.broker.schema.judging import INLINE_BYTES_MAX, SchemaJudging
from magnetar.broker.schema.limits import SCHEMA_BYTES_MAX, SCHEMA_PROPERTIES_CHARACTERS_MAX, SCHEMA_PROPERTIES_MAX
from magnetar.broker.schema.registry import SchemaRegistry
from magnetar.broker.schema.schema_info import SchemaInfo, from_rest
from magnetar.broker.schema.steps import StepBudget, StepBudgetExceeded
from magnetar.broker.schema.storage import SchemaStorage
from magnetar.broker.schema.strategy import Strategy
from magnetar.ledger.api import LedgerOptions
from magnetar.managed.testing import MemoryLedgers
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.wire.pulsar.enums import SchemaType

ID = "public/default/t"
TOO_COMPLEX = "too many combinations of types"


def record(name: str, fields: int, prefix: str = "f", **each: object) -> dict[str, object]:
    nodes = [{"name": f"{prefix}{number}", "type": "int", **each} for number in range(fields)]
    return {"type": "record", "name": name, "fields": nodes}


def data(schema: object) -> bytes:
    return json.dumps(schema, separators=(",", ":")).encode()


def wide(prefix: str, records: int, fields: int) -> bytes:
    union = [record(f"{prefix}{number}", fields, prefix, default=0) for number in range(records)]
    return data({"type": "record", "name": "R", "fields": [{"name": "u", "type": union}]})


# --- steps


@pytest.mark.parametrize(("records", "fields"), [(20, 1_000), (100, 200), (200, 100)])
def test_fields_of_records_in_unions_count(records: int, fields: int) -> None:
    # All but the last field of each have a default: the reader looks at all before it knows that they do not fit.
    a, b = (
        wide(name, records, fields).replace(
            f'{name}{fields - 1}","type":"int","default":0'.encode(), b'x","type":["null"]'
        )
        for name in "ab"
    )
    b = b.replace(b'"x"', b'"y"')
    assert why_unreadable(parse(a), parse(b)) == TOO_COMPLEX


def test_the_largest_flat_record_is_judged() -> None:
    schema = data(record("R", 12_000, default=0))
    assert len(schema) <= SCHEMA_BYTES_MAX
    other = schema.replace(b'"f11999"', b'"g11999"')
    assert why_unreadable(parse(schema), parse(other)) is None


def test_symbols_of_enums_that_are_compared_again_and_again_count() -> None:
    symbols = [f"s{number}" for number in range(1_000)]

    def many(name: str) -> bytes:
        enum = {"type": "enum", "name": "E", "symbols": symbols}
        unions = [[enum if number == 0 else "E", "null"] for number in range(200)]
        fields = [{"name": f"f{number}", "type": union} for number, union in enumerate(unions)]
        return data({"type": "record", "name": name, "fields": fields})

    assert why_unreadable(parse(many("A")), parse(many("B"))) == TOO_COMPLEX


def test_defaults_count() -> None:
    item = record("R", 1_000, default=1)
    parsed = parse(data({"type": "array", "items": item}))
    with pytest.raises(StepBudgetExceeded):
        default_fits(parsed, [0] * 1_000, StepBudget(100_000))
    steps = StepBudget(100_000)
    assert default_fits(parsed, [0] * 10, steps)
    assert steps.left < 100_000 - 10 * 1_000


def test_versions_together_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each pair alone is allowed; the new one with all of them takes more than one judgement may.
    monkeypatch.setattr(avro_checks, "_ALL_STEPS_MAX", 100_000)

    existing = [SchemaInfo(SchemaType.AVRO, wide(f"v{number}x", 12, 130)) for number in range(40)]
    new = SchemaInfo(SchemaType.AVRO, wide("n", 12, 130))
    assert why_unreadable(parse(existing[0].data), parse(new.data)) is None
    with pytest.raises(IncompatibleSchema, match=TOO_COMPLEX):
        compatibility.check_all(existing, new, Strategy.FULL_TRANSITIVE)


def test_reasons_do_not_carry_long_names() -> None:
    reason = why_unreadable(parse(data(record("A" * 4_000, 1))), parse(data(record("B" * 4_000, 1, "g"))))
    assert reason is not None
    assert len(reason) < 1_000


# --- names


def test_one_namespace_in_many_names() -> None:
    nested = [{"name": f"f{number}", "type": record(f"R{number}", 0)} for number in range(2_000)]
    long = {"type": "record", "name": "A", "namespace": "n" * 4_000, "fields": nested}
    with pytest.raises(AvroError, match="names are too long"):
        parse(data(long))


@pytest.mark.parametrize(
    "schema",
    [
        record("x" * 5_000, 1),
        record("R", 1, "x" * 5_000),
        {**record("R", 1), "namespace": "x" * 5_000},
        {**record("R", 1), "aliases": ["x" * 5_000]},
        {"type": "enum", "name": "E", "symbols": ["x" * 5_000]},
    ],
)
def test_long_names(schema: object) -> None:
    with pytest.raises(AvroError, match="names are too long"):
        parse(data(schema))


# --- beside the event loop


async def test_small_schemas_are_judged_at_once_and_others_in_a_thread_one_at_a_time() -> None:
    judging = SchemaJudging()
    assert await judging.run(INLINE_BYTES_MAX, threading.get_ident) == threading.get_ident()
    assert await judging.run(INLINE_BYTES_MAX + 1, threading.get_ident) != threading.get_ident()
    go_on = threading.Event()
    begun: list[str] = []

    def work(name: str) -> Callable[[], bool]:
        def run() -> bool:
            begun.append(name)
            return go_on.wait(30)

        return run

    tasks = [asyncio.create_task(judging.run(SCHEMA_BYTES_MAX, work(name))) for name in "ab"]
    try:
        async with asyncio.timeout(30):
            while not begun:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert begun == ["a"]
        assert await judging.run(1, lambda: "small ones do not wait") == "small ones do not wait"
    finally:
        go_on.set()
    assert await asyncio.gather(*tasks) == [True, True]
    assert begun == ["a", "b"]


async def test_what_a_judgement_raises_is_raised() -> None:
    def refuse() -> None:
        raise IncompatibleSchema("no")

    for size_bytes in (0, SCHEMA_BYTES_MAX):
        with pytest.raises(IncompatibleSchema):
            await SchemaJudging().run(size_bytes, refuse)


class CountingStorage(SchemaStorage):
    """Counts what is read."""

    reads = 0

    async def read(self, position):  # type: ignore[no-untyped-def]  # As the base.
        self.reads += 1
        return await super().read(position)


class World:
    """A registry, and what it reads."""

    def __init__(self) -> None:
        self.store = MemoryMetadataStore()
        self.storage = CountingStorage(self.store, MemoryLedgers(), LedgerOptions(digest_type="CRC32"))
        self.registry = SchemaRegistry(self.storage)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.registry.close()
    await world.store.close()


def large(number: int, size: int = 3 * INLINE_BYTES_MAX) -> SchemaInfo:
    text = record("R", 1, default=0) | {"doc": "d" * size, "number": number}
    return SchemaInfo(SchemaType.AVRO, data(text))


async def test_every_way_to_judge_a_large_schema_leaves_the_event_loop(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed_on: list[int] = []

    def watched(text: bytes) -> object:
        if len(text) > INLINE_BYTES_MAX:
            parsed_on.append(threading.get_ident())
        return parse(text)

    for module in (avro_checks, compatibility, validation):
        monkeypatch.setattr(module, "parse", watched)
    registry = world.registry
    await registry.put_if_absent(ID, large(0), Strategy.FULL)
    await registry.put_if_absent(ID, large(1), Strategy.FULL_TRANSITIVE)
    await registry.check_compatible(ID, large(2), Strategy.FULL)
    await registry.check_consumer(ID, large(3), Strategy.FULL)
    await registry.check_consumer(ID, large(4), Strategy.FULL_TRANSITIVE)
    assert len(parsed_on) >= 10
    assert threading.get_ident() not in parsed_on


async def test_a_known_schema_is_found_without_reading_the_others(world: World) -> None:
    for number in range(10):
        await world.registry.put_if_absent(ID, large(number), Strategy.FULL)
    world.storage.reads = 0
    assert await world.registry.put_if_absent(ID, large(7), Strategy.FULL) == 7
    assert await world.registry.find_version(ID, large(3)) == 3
    assert await world.registry.find_version(ID, large(99)) is None
    assert world.storage.reads == 2
    await world.registry.check_consumer(ID, large(99), Strategy.FULL)
    assert world.storage.reads == 3, "only the newest"


async def test_the_same_data_with_another_type_is_another_schema(world: World) -> None:
    avro = large(0)
    await world.registry.put_if_absent(ID, avro, Strategy.ALWAYS_COMPATIBLE)
    as_json = SchemaInfo(SchemaType.JSON, avro.data)
    assert await world.registry.find_version(ID, as_json) is None
    assert await world.registry.put_if_absent(ID, as_json, Strategy.ALWAYS_COMPATIBLE) == 1
    assert await world.registry.find_version(ID, as_json) == 1


async def test_all_versions_of_a_topic_together_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "SCHEMAS_OF_TOPIC_BYTES_MAX", 100_000)
    for number in range(3):
        await world.registry.put_if_absent(ID, large(number, 30_000), Strategy.FULL)
    with pytest.raises(IncompatibleSchema, match="at most 100000"):
        await world.registry.put_if_absent(ID, large(3, 30_000), Strategy.FULL)
    assert await world.registry.put_if_absent(ID, large(2, 30_000), Strategy.FULL) == 2, "the same one still is"
    assert await world.registry.put_if_absent("public/default/u", large(3, 200_000), Strategy.FULL) == 0
    await world.registry.delete(ID, force=False)
    assert await world.registry.put_if_absent(ID, large(3, 30_000), Strategy.FULL) == 4, "after a deletion"


def test_meanings_are_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def watched(text: bytes) -> object:
        asked.append(text)
        return parse(text)

    monkeypatch.setattr(compatibility, "parse", watched)
    fingerprints = SchemaFingerprints()
    existing = [large(number) for number in range(5)]
    spaced = SchemaInfo(SchemaType.AVRO, existing[3].data.replace(b":", b" : "))
    assert same_schema(spaced, existing, fingerprints) == 3
    count = len(asked)
    assert same_schema(large(9), existing, fingerprints) is None
    assert len(asked) <= count + 2
    assert identity(parse(spaced.data)) == identity(parse(existing[3].data))


# --- sizes over HTTP


@pytest.mark.parametrize(
    ("kind", "text", "properties"),
    [
        ("AVRO", "x" * (SCHEMA_BYTES_MAX + 1), {}),
        ("AVRO", "é" * (SCHEMA_BYTES_MAX // 2 + 1), {}),
        ("STRING", "", {"a": "x" * SCHEMA_PROPERTIES_CHARACTERS_MAX}),
        ("STRING", "", {str(number): "" for number in range(SCHEMA_PROPERTIES_MAX + 1)}),
    ],
)
def test_large_schemas_over_http(kind: str, text: str, properties: dict[str, str]) -> None:
    with pytest.raises(InvalidSchemaData, match="at most"):
        from_rest(kind, text, properties)
