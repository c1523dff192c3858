"""Objects whose numbers lie, in stores that take every word for what it says."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

import pytest
from magnetar.tiered import object_offloader
from magnetar.tiered.api import OffloadDamaged, OffloadRefused
from magnetar.tiered.object_offloader import ObjectOffloader
from magnetar.tiered.settings import OffloadStoreSettings, StorePlace
from magnetar.tiered.testing import ClosedMemoryLedger, MemoryObjectStore, memory_offloader
from magnetar.wire.offload.data_block import HEADER_BYTES, encode_block_header
from magnetar.wire.offload.index import IndexEntry, OffloadIndex, decode_index, encode_index
from magnetar.wire.offload.object_names import data_key, index_key, user_metadata

ID = UUID(int=7)
CHUNK_BYTES = 1 << 10


class StrictObjectStore(MemoryObjectStore):
    """Refuses a range that is none, as the library does, with an error that is nobody's."""

    async def read_range(self, key: str, offset: int, size_bytes: int) -> bytes:
        if offset < 0 or size_bytes <= 0 or offset >= len(self._found(key)[0]):
            raise OverflowError(f"can't convert negative int to unsigned: {offset} {size_bytes}")
        return await super().read_range(key, offset, size_bytes)


def stored(data: bytes, *blocks: IndexEntry, last_entry_id: int) -> MemoryObjectStore:
    described = replace(ClosedMemoryLedger(1, [b"a"]).described(), last_entry_id=last_entry_id)
    store = StrictObjectStore()
    told: Mapping[str, str] = user_metadata(is_index=False, managed_ledger_name="a", software_version="1")
    store.objects[data_key(ID, 1)] = (data, dict(told), 0)
    store.objects[index_key(ID, 1)] = (encode_index(described, len(data), HEADER_BYTES, blocks), dict(told), 0)
    return store


@pytest.mark.parametrize("missing_bytes", range(0, 92, 7))
async def test_a_block_that_begins_at_the_very_end_is_damage(missing_bytes: int) -> None:
    data = bytes(2 * CHUNK_BYTES - missing_bytes)
    store = stored(data, IndexEntry(0, 1, 0), IndexEntry(5, 2, len(data) - 36), last_entry_id=9)
    reader = await memory_offloader(store, read_buffer_bytes=CHUNK_BYTES).open(1, ID, {})
    with pytest.raises(OffloadDamaged):
        await reader.read(5, 9)
    await reader.close()


@pytest.mark.parametrize("chunks", [1, 2])
async def test_a_block_that_is_all_header_at_the_end_of_the_object_is_damage(chunks: int) -> None:
    size_bytes = chunks * CHUNK_BYTES
    data = encode_block_header(size_bytes, 0).ljust(size_bytes, b"\0")
    data = data[:4] + size_bytes.to_bytes(8, "big") + data[12:]
    reader = await memory_offloader(stored(data, IndexEntry(0, 1, 0), last_entry_id=0)).open(1, ID, {})
    with pytest.raises(OffloadDamaged):
        await reader.read(0, 0)
    await reader.close()


async def test_a_large_index_does_not_hold_up_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []

    def decode(data: bytes) -> OffloadIndex:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            threads.append(True)
        else:
            threads.append(False)
        return decode_index(data)

    monkeypatch.setattr(object_offloader, "decode_index", decode)
    for count, beside in ((400, False), (50_000, True)):
        blocks = [IndexEntry(number, number + 1, number * HEADER_BYTES) for number in range(count)]
        store = stored(bytes(count * HEADER_BYTES), *blocks, last_entry_id=count)
        await (await memory_offloader(store).open(1, ID, {})).close()
        assert threads.pop() is beside


def two_places() -> tuple[ObjectOffloader, MemoryObjectStore, MemoryObjectStore]:
    today, then = MemoryObjectStore("today"), MemoryObjectStore("then")
    place = StorePlace(bucket="topics", endpoint="http://today", region="r")
    stores = {"http://today": today, "http://then": then}
    settings = OffloadStoreSettings(driver="S3", place=place)
    return ObjectOffloader(settings, lambda asked: stores[asked.endpoint]), today, then


THEN = {"bucket": "topics", "serviceEndpoint": "http://then", "region": "r"}


async def test_objects_of_a_store_that_refuses_are_not_gone_because_another_has_none() -> None:
    offloader, today, then = two_places()
    ledger = ClosedMemoryLedger(1, [b"a"])
    await offloader.offload(ledger, ledger.described(), ID, "topic")

    def refuse(what: str, key: str) -> None:
        raise OffloadRefused("403")

    today.fail = refuse
    with pytest.raises(OffloadRefused):
        await offloader.delete(1, ID, THEN)
    then.objects = dict(today.objects)
    await offloader.delete(1, ID, THEN)
    assert (len(today.objects), then.objects) == (2, {})
    today.fail = lambda what, key: None
    await offloader.delete(1, ID, THEN)
    assert today.objects == {}
    await offloader.close()


async def test_what_is_in_a_folder_is_not_gone_because_no_bucket_has_it() -> None:
    offloader = memory_offloader(MemoryObjectStore())
    for work in (offloader.delete, offloader.open):
        with pytest.raises(OffloadRefused, match="the folder file:///ledgers"):
            await work(1, ID, {"storageBasePath": "file:///ledgers"})
    await offloader.close()
