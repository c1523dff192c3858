"""Ledgers go to objects and come back, whole, from any entry on; in memory."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.core.errors import MagnetarError, Misuse
from magnetar.ledger.api import EntryNotFound, EntryUnreadable, LedgerNotFound, LedgerReader, LedgerUnavailable
from magnetar.sim.virtual_time import VirtualTimeLoop
from magnetar.tiered.api import (
    OffloadDamaged,
    OffloadedLedgerNotFound,
    OffloadedObject,
    OffloadRefused,
    OffloadUnavailable,
)
from magnetar.tiered.object_offloader import ObjectOffloader
from magnetar.tiered.offloaded_ledger import READ_BYTES_MAX
from magnetar.tiered.settings import OffloadStoreSettings, StorePlace
from magnetar.tiered.testing import ClosedMemoryLedger, MemoryObjectStore, memory_offloader
from magnetar.wire.offload.object_names import FORMAT_VERSION_KEY

from lib.tests.object_store_contract import ObjectStoreContract
from lib.tests.recorded_offloads import LEDGER_ID, SIZES, STREAMING_BLOCKS, UID, payload, payloads, recorded

new_event_loop = VirtualTimeLoop

ID = UUID(UID)
DATA, INDEX = f"{UID}-ledger-4711", f"{UID}-ledger-4711-index"
NAME = "public/default/persistent/topic"
FORMAT = {FORMAT_VERSION_KEY: "1"}


class TestMemoryObjectStore(ObjectStoreContract):
    @pytest.fixture
    def store(self) -> MemoryObjectStore:
        return MemoryObjectStore()


def made(*sizes: int) -> ClosedMemoryLedger:
    return ClosedMemoryLedger(LEDGER_ID, [payload(entry_id, size_bytes) for entry_id, size_bytes in enumerate(sizes)])


def large(*sizes: int) -> ClosedMemoryLedger:
    return ClosedMemoryLedger(LEDGER_ID, [bytes([entry_id]) * size_bytes for entry_id, size_bytes in enumerate(sizes)])


async def read_all(reader: LedgerReader, first: int = 0) -> list[bytes]:
    found: list[bytes] = []
    while first + len(found) <= reader.last_add_confirmed:
        found += await reader.read(first + len(found), reader.last_add_confirmed)
    return found


def recorded_store(name: str) -> MemoryObjectStore:
    store = MemoryObjectStore()
    keys = (UID, f"{UID}-index") if name == "streaming" else (DATA, INDEX)
    for key, what in zip(keys, ("data", "index"), strict=True):
        store.objects[key] = (recorded(f"{name}-{what}"), dict(FORMAT), 0)
    return store


async def offloaded(
    store: MemoryObjectStore, ledger: ClosedMemoryLedger, offloader: ObjectOffloader | None = None
) -> None:
    offloader = offloader or memory_offloader(store)
    await offloader.offload(ledger, ledger.described(), ID, NAME)


# --- there and back ---


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.one_of(st.integers(0, 40), st.integers(0, 3000)), min_size=1, max_size=80),
    st.integers(1024, 4000),
    st.data(),
)
def test_any_stretch_of_any_ledger_comes_back(sizes: list[int], read_buffer_bytes: int, draw: st.DataObject) -> None:
    async def check() -> None:
        store = MemoryObjectStore()
        ledger = made(*sizes)
        ledger.at_once_max = draw.draw(st.integers(1, 100))
        rounds = draw.draw(st.integers(0, 3))
        offloader = memory_offloader(store, read_buffer_bytes=read_buffer_bytes, prefetch_rounds=rounds)
        await offloaded(store, ledger, offloader)
        reader = await offloader.open(LEDGER_ID, ID, {})
        assert (reader.last_add_confirmed, reader.length_bytes, reader.closed) == (len(sizes) - 1, sum(sizes), True)
        for _ in range(6):
            first = draw.draw(st.integers(0, len(sizes) - 1))
            last = draw.draw(st.integers(first, len(sizes) - 1))
            assert await reader.read(first, last) == ledger.payloads[first : last + 1]
        assert await read_all(reader) == ledger.payloads
        await offloader.close()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(check())


@pytest.mark.parametrize("name", sorted(SIZES))
async def test_what_apache_wrote_is_read_from_every_entry_on(name: str) -> None:
    expected = payloads(name)
    for read_buffer_bytes in (1024, 1 << 20):
        offloader = memory_offloader(recorded_store(name), read_buffer_bytes=read_buffer_bytes)
        for first in range(len(expected)):
            reader = await offloader.open(LEDGER_ID, ID, {"bucket": "golden"})
            assert await read_all(reader, first) == expected[first:]
            await reader.close()
        reader = await offloader.open(LEDGER_ID, ID, {})
        for first in reversed(range(len(expected))):
            assert await reader.read(first, first) == [expected[first]]
        await offloader.close()


async def test_ledgers_of_a_streaming_object_are_read_apart() -> None:
    offloader = memory_offloader(recorded_store("streaming"))
    first = await offloader.open(100, ID, {})
    second = await offloader.open(101, ID, {})
    sizes = {100 * 1000 + 5 + place: 40 for place in range(3)} | {100 * 1000 + 8: 300, 100 * 1000 + 9: 300}
    assert await first.read(5, 9) == [payload(key % 1000, size_bytes) for key, size_bytes in sizes.items()]
    assert await first.read(9, 9) == [payload(9, 300)]
    assert await second.read(0, 3) == [payload(entry_id, 10) for entry_id in range(STREAMING_BLOCKS[2][2])]
    with pytest.raises(OffloadDamaged, match="begins with entry 5"):
        await first.read(4, 6)
    with pytest.raises(OffloadDamaged, match=r"knows the ledgers \[100, 101\] alone"):
        await offloader.open(102, ID, {})
    await offloader.close()


async def test_what_is_written_names_its_topic_and_no_secret() -> None:
    store = MemoryObjectStore()
    await offloaded(store, made(1, 2, 3))
    assert sorted(store.objects) == [DATA, INDEX]
    for key, role in ((DATA, "data"), (INDEX, "index")):
        data, metadata, _ = store.objects[key]
        assert b"secret" not in data
        assert metadata["role"] == role
        assert metadata["managedledgername"] == NAME
        assert metadata[FORMAT_VERSION_KEY] == "1"
    assert await memory_offloader(store).metadata_of(INDEX) == store.objects[INDEX][1]


async def test_stored_metadata_is_apaches() -> None:
    """As the offloader of Apache Pulsar 4.0.8 tells it for the same settings."""
    place = StorePlace(bucket="b", region="r", endpoint="http://e", credentials=("id", "secret"))
    offloader = ObjectOffloader(OffloadStoreSettings(driver="aws-s3", place=place), lambda _: MemoryObjectStore())
    assert offloader.driver == "aws-s3"
    assert offloader.stored_metadata() == {
        "managedLedgerOffloadDriver": "AWS_S3",
        "bucket": "b",
        "region": "r",
        "serviceEndpoint": "http://e",
    }
    assert "secret" not in repr(place)


async def test_only_closed_ledgers_with_entries_go() -> None:
    store = MemoryObjectStore()
    for ledger in (ClosedMemoryLedger(1, []), ClosedMemoryLedger(1, [b"a"], closed=False)):
        with pytest.raises(Misuse, match="open or empty"):
            await offloaded(store, ledger)
    assert store.calls == []


async def test_a_read_is_bounded_in_bytes_but_gives_one_entry() -> None:
    store = MemoryObjectStore()
    ledger = large(*[3 << 20] * 4, 9 << 20, 1)
    offloader = memory_offloader(store, read_buffer_bytes=1 << 20)
    await offloaded(store, ledger, offloader)
    reader = await offloader.open(LEDGER_ID, ID, {})
    assert await reader.read(0, 5) == ledger.payloads[:3]
    assert await reader.read(4, 5) == ledger.payloads[4:5]
    assert await read_all(reader) == ledger.payloads
    assert READ_BYTES_MAX < 9 << 20
    await offloader.close()


async def test_ranges_that_are_none() -> None:
    offloader = memory_offloader(recorded_store("exact"))
    reader = await offloader.open(LEDGER_ID, ID, {})
    for first, last in ((-1, 0), (2, 1)):
        with pytest.raises(Misuse, match="no range"):
            await reader.read(first, last)
    with pytest.raises(EntryNotFound, match="ends with entry 2, before 3"):
        await reader.read(2, 3)
    await offloader.close()


# --- requests ---


async def test_a_reader_in_sequence_asks_for_each_stretch_once_and_looks_ahead() -> None:
    store = MemoryObjectStore()
    ledger = made(*[500] * 40)
    offloader = memory_offloader(store, prefetch_rounds=2)
    await offloaded(store, ledger, offloader)
    reader = await offloader.open(LEDGER_ID, ID, {})
    store.calls.clear()
    await reader.read(0, 0)
    assert store.calls == [("read_range", DATA)], "one entry alone is no sequence"
    await reader.read(1, 1)
    assert len(store.calls) == 3, "a chunk of 1 KiB has two entries; the two that follow are read ahead"
    assert await read_all(reader) == ledger.payloads
    assert len(store.calls) == -(-len(store.objects[DATA][0]) // 1024)
    await offloader.close()


async def test_a_stretch_that_was_walked_is_not_walked_again() -> None:
    store = MemoryObjectStore()
    ledger = made(*[20] * 4000)
    offloader = memory_offloader(store, prefetch_rounds=0)
    await offloaded(store, ledger, offloader)
    reader = await offloader.open(LEDGER_ID, ID, {})
    assert await reader.read(3900, 3900) == [ledger.payloads[3900]]
    await reader.close()  # What was read is forgotten, what was learnt is not.
    store.calls.clear()
    assert await reader.read(3950, 3950) == [ledger.payloads[3950]]
    assert len(store.calls) < 5
    await offloader.close()


async def test_two_who_want_the_same_ask_once() -> None:
    store = recorded_store("one-block")
    offloader = memory_offloader(store)
    reader = await offloader.open(LEDGER_ID, ID, {})
    store.calls.clear()
    one, other = await asyncio.gather(reader.read(0, 3), reader.read(0, 3))
    assert one == other == payloads("one-block")
    assert store.calls == [("read_range", DATA)]
    await offloader.close()


async def test_many_readers_share_one_bound_of_memory() -> None:
    store = MemoryObjectStore()
    offloader = memory_offloader(store, read_buffer_bytes=32 << 20, prefetch_rounds=8)
    ledger = large(*[4 << 20] * 30)
    await offloaded(store, ledger, offloader)
    reader = await offloader.open(LEDGER_ID, ID, {})
    assert await read_all(reader) == ledger.payloads
    assert offloader.held_chunks <= 5
    await offloader.close()


# --- the list ---


async def test_the_list_has_what_offloaders_named_in_pages() -> None:
    store = MemoryObjectStore()
    offloader = memory_offloader(store)
    uids = [UUID(int=number) for number in range(5)]
    for number, uid in enumerate(uids):
        ledger = ClosedMemoryLedger(number, [b"abc"])
        await offloader.offload(ledger, ledger.described(), uid, NAME)
    store.objects["somebody-elses.txt"] = (b"", {}, 0)
    found: list[OffloadedObject] = []
    after: str | None = ""
    pages = 0
    while after is not None:
        page = await offloader.page(after, count_max=3)
        found += page.objects
        after = page.next_after
        pages += 1
    assert pages == 4
    assert [(one.uid, one.ledger_id, one.is_index) for one in found] == [
        (uid, number, is_index) for number, uid in enumerate(uids) for is_index in (False, True)
    ]
    assert all(one.size_bytes == len(store.objects[one.key][0]) for one in found)
    assert {one.modified_ms for one in found} == {store.now_ms}


# --- faults ---


FAULTS = (LedgerUnavailable("the ledger's bookies are gone"), OffloadUnavailable("500"), OffloadRefused("403"))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
async def test_whatever_step_fails_nothing_half_is_read_and_nothing_is_left(fault: MagnetarError) -> None:
    """Each call that a whole offload makes fails once, alone; then all after it fail, so that nothing can be removed:
    the list has what is left."""
    whole = MemoryObjectStore()
    await offloaded(whole, made(*[100] * 50))
    steps = whole.calls
    assert [what for what, _ in steps[:3]] == ["put_parts", "finish", "put"]
    for step in range(len(steps)):
        for also_after in (False, True):
            store = MemoryObjectStore()

            def fail(what: str, key: str, *, store: MemoryObjectStore = store, also_after: bool = also_after) -> None:
                if len(store.calls) == step + 1 or (also_after and len(store.calls) > step):  # noqa: B023
                    raise fault

            store.fail = fail
            offloader = memory_offloader(store)
            with pytest.raises(type(fault)):
                await offloaded(store, made(*[100] * 50), offloader)
            store.fail = lambda what, key: None
            if not also_after:
                assert store.objects == {}, f"left after step {step}: {steps[step]}"
            left = await offloader.page()
            assert [one.key for one in left.objects] == sorted(store.objects)
            if INDEX not in store.objects:
                with pytest.raises(OffloadedLedgerNotFound):
                    await offloader.open(LEDGER_ID, ID, {})
            else:
                assert await read_all(await offloader.open(LEDGER_ID, ID, {})) == made(*[100] * 50).payloads
            await offloader.delete(LEDGER_ID, ID, {})
            assert store.objects == {}
            await offloader.close()


async def test_a_ledger_that_fails_in_the_middle_leaves_nothing() -> None:
    class Failing(ClosedMemoryLedger):
        async def read(self, first_entry_id: int, last_entry_id: int) -> list[bytes]:
            if first_entry_id >= 20:
                raise LedgerUnavailable("0 of 3 bookies answered")
            return (await super().read(first_entry_id, last_entry_id))[:7]

    store = MemoryObjectStore()
    with pytest.raises(LedgerUnavailable, match="0 of 3"):
        await offloaded(store, Failing(LEDGER_ID, [b"x"] * 30))
    assert store.objects == {}


async def test_a_cancelled_offload_leaves_nothing() -> None:
    whole = MemoryObjectStore()
    await offloaded(whole, made(*[100] * 50))
    for step in range(len(whole.calls)):
        store = MemoryObjectStore()
        offload = asyncio.ensure_future(offloaded(store, made(*[100] * 50)))

        def cancel(what: str, key: str, *, store: MemoryObjectStore = store, of: object = offload) -> None:
            if len(store.calls) == step + 1 and isinstance(of, asyncio.Task):  # noqa: B023
                of.cancel()

        store.fail = cancel
        with pytest.raises(asyncio.CancelledError):
            await offload
        assert store.objects == {}, f"left after step {step}"


async def test_a_store_that_gives_back_something_else_is_no_success() -> None:
    class Losing(MemoryObjectStore):
        async def read_range(self, key: str, offset: int, size_bytes: int) -> bytes:
            data = await super().read_range(key, offset, size_bytes)
            return data[:-1] + b"?" if key == DATA else data

    store = Losing()
    with pytest.raises(OffloadDamaged, match="came back with another end"):
        await offloaded(store, made(10, 10))
    assert store.objects == {}


async def test_data_without_index_and_index_without_data_are_no_ledger() -> None:
    """What a kill between two steps leaves, of an offload or of a delete."""
    for gone in (INDEX, DATA):
        store = recorded_store("blocks")
        del store.objects[gone]
        offloader = memory_offloader(store)
        with pytest.raises(LedgerNotFound, match=gone):
            await offloader.open(LEDGER_ID, ID, {})
        assert len((await offloader.page()).objects) == 1
        await offloader.delete(LEDGER_ID, ID, {})
        assert store.objects == {}


@pytest.mark.parametrize("key", [DATA, INDEX])
async def test_another_format_is_refused(key: str) -> None:
    for metadata in ({}, {FORMAT_VERSION_KEY: "2"}):
        store = recorded_store("blocks")
        store.objects[key] = (store.objects[key][0], metadata, 0)
        with pytest.raises(OffloadDamaged, match=rf"{key} in bucket memory is damaged: .* format version"):
            await memory_offloader(store).open(LEDGER_ID, ID, {})


async def test_half_an_object_is_told() -> None:
    for key in (DATA, INDEX):
        whole = recorded_store("blocks").objects[key][0]
        for size_bytes in (0, 1, len(whole) // 2, len(whole) - 1):
            store = recorded_store("blocks")
            store.objects[key] = (whole[:size_bytes], dict(FORMAT), 0)
            with pytest.raises(OffloadDamaged, match=f"{key} in bucket memory is damaged"):
                await memory_offloader(store).open(LEDGER_ID, ID, {})


async def test_an_object_that_shrinks_while_it_is_read_is_told() -> None:
    store = recorded_store("blocks")
    offloader = memory_offloader(store)
    reader = await offloader.open(LEDGER_ID, ID, {})
    whole = store.objects[DATA][0]
    store.objects[DATA] = (whole[:1500], dict(FORMAT), 0)
    assert await reader.read(0, 3) == payloads("blocks")[:4]
    with pytest.raises(EntryUnreadable, match="476 bytes from 1024 on, where 1024 should be") as told:
        await reader.read(11, 12)
    assert told.value.position == (LEDGER_ID, 11)
    store.objects[DATA] = (whole, dict(FORMAT), 0)
    assert await reader.read(11, 12) == payloads("blocks")[11:13], "what failed is asked for again"
    await offloader.close()


async def test_an_index_whose_first_block_begins_later_is_damaged() -> None:
    """No entry is told as not there that the ledger has: it would be passed over."""
    store = recorded_store("blocks")
    damaged = bytearray(store.objects[INDEX][0])
    damaged[118] = 1
    store.objects[INDEX] = (bytes(damaged), dict(FORMAT), 0)
    offloader = memory_offloader(store)
    reader = await offloader.open(LEDGER_ID, ID, {})
    with pytest.raises(OffloadDamaged, match="begins with entry 1"):
        await reader.read(0, reader.last_add_confirmed)
    await offloader.close()


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_a_damaged_object_gives_the_right_entries_or_an_error(draw: st.DataObject) -> None:
    """Lengths, ids and headers that lie; payloads have no checksum of their own here, and are left alone."""

    async def check() -> None:
        store = recorded_store("blocks")
        key = draw.draw(st.sampled_from([DATA, INDEX]))
        damaged = bytearray(store.objects[key][0])
        places = framing() if key == DATA else range(len(damaged))
        for _ in range(draw.draw(st.integers(1, 3))):
            damaged[draw.draw(st.sampled_from(places))] = draw.draw(st.integers(0, 255))
        store.objects[key] = (bytes(damaged), dict(FORMAT), 0)
        offloader = memory_offloader(store)
        expected = payloads("blocks")
        try:
            reader = await offloader.open(LEDGER_ID, ID, {})
            for first in range(reader.last_add_confirmed + 1):
                try:
                    found = await reader.read(first, reader.last_add_confirmed)
                except OffloadDamaged:
                    continue
                if reader.last_add_confirmed < len(expected):
                    assert [len(one) for one in found] == [len(one) for one in expected[first : first + len(found)]]
        except OffloadDamaged:
            pass
        await offloader.close()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(check())


def framing() -> list[int]:
    """Where the ids and the upper bytes of the lengths of the recorded ledger's entries are, and its block headers."""
    places: list[int] = []
    offset = 0
    starts = {0: 0, 4: 600, 11: 1200, 13: 1800}
    for entry_id, size_bytes in enumerate(SIZES["blocks"][1]):
        if entry_id in starts:
            offset = starts[entry_id]
            places += range(offset, offset + 28)
            offset += 128
        places += [offset, offset + 1, *range(offset + 4, offset + 12)]
        offset += 12 + size_bytes
    return places


# --- places ---


def two_places(stored_is: MemoryObjectStore) -> tuple[ObjectOffloader, MemoryObjectStore]:
    today = MemoryObjectStore("bucket old at http://today")
    stores = {"http://today": today, "http://then": stored_is}
    place = StorePlace(bucket="new", endpoint="http://today", region="r")
    return ObjectOffloader(OffloadStoreSettings(driver="S3", place=place), lambda asked: stores[asked.endpoint]), today


THEN = {"bucket": "old", "serviceEndpoint": "http://then/", "region": "r"}


async def test_the_stored_bucket_is_read_at_todays_endpoint_first() -> None:
    then = recorded_store("exact")
    offloader, today = two_places(then)
    today.objects |= recorded_store("exact").objects
    assert await read_all(await offloader.open(LEDGER_ID, ID, THEN)) == payloads("exact")
    assert then.calls == []
    await offloader.delete(LEDGER_ID, ID, THEN)
    assert (today.objects, len(then.objects)) == ({}, 2)
    await offloader.close()


async def test_what_is_not_at_todays_endpoint_is_read_where_it_was_written() -> None:
    then = recorded_store("exact")
    offloader, _ = two_places(then)
    assert await read_all(await offloader.open(LEDGER_ID, ID, THEN)) == payloads("exact")
    await offloader.delete(LEDGER_ID, ID, THEN)
    assert then.objects == {}
    with pytest.raises(OffloadedLedgerNotFound):
        await offloader.open(LEDGER_ID, ID, THEN)
    await offloader.close()


async def test_a_refusal_at_one_endpoint_is_no_lost_ledger() -> None:
    then = MemoryObjectStore()
    offloader, today = two_places(then)

    def refuse(what: str, key: str) -> None:
        raise OffloadRefused("there is no such bucket")

    today.fail = refuse
    with pytest.raises(OffloadRefused):
        await offloader.open(LEDGER_ID, ID, THEN)
    then.objects |= recorded_store("exact").objects
    assert await read_all(await offloader.open(LEDGER_ID, ID, THEN)) == payloads("exact")
    await offloader.close()


async def test_a_reader_hears_when_its_store_is_closed() -> None:
    class Waiting(MemoryObjectStore):
        async def read_range(self, key: str, offset: int, size_bytes: int) -> bytes:
            if key == DATA:
                await asyncio.Event().wait()
            return await super().read_range(key, offset, size_bytes)

    store = Waiting()
    store.objects |= recorded_store("exact").objects
    offloader = memory_offloader(store)
    reader = await offloader.open(LEDGER_ID, ID, {})
    reading = asyncio.ensure_future(reader.read(0, 0))
    await asyncio.sleep(0.1)
    await offloader.close()
    with pytest.raises(OffloadUnavailable, match="was closed while"):
        await reading
