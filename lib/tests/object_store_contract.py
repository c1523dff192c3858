"""What every object store must do, as tests that any of them can be put through.

A test module makes a subclass of `ObjectStoreContract` whose name begins with `Test` and gives the fixture `store`, an
`ObjectStore` on an empty bucket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from magnetar.tiered.api import OffloadedLedgerNotFound
from magnetar.tiered.object_store import ObjectStore

METADATA = {
    "s3managedledgeroffloaderformatversion": "1",
    "role": "data",
    "managedledgername": "public/default/persistent/a%20b",
}
PART_BYTES = 5 << 20


async def pieces_of(*pieces: bytes, failure: BaseException | None = None) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
    if failure is not None:
        raise failure


async def keys(store: ObjectStore, after: str = "", count_max: int = 100) -> Sequence[str]:
    return [one.key for one in await store.list(after, count_max)]


class ObjectStoreContract:
    async def test_what_was_put_is_read_by_ranges_with_its_metadata(self, store: ObjectStore) -> None:
        await store.put("one", b"0123456789", METADATA)
        assert await store.read_range("one", 3, 4) == b"3456"
        assert await store.read_range("one", 8, 50) == b"89"
        head = await store.head("one")
        assert head.size_bytes == 10
        assert {name: head.metadata[name] for name in METADATA} == METADATA

    async def test_beyond_the_end_there_is_nothing(self, store: ObjectStore) -> None:
        await store.put("one", b"0123456789", METADATA)
        assert await store.read_range("one", 10, 4) == b""

    async def test_an_object_is_put_in_parts(self, store: ObjectStore) -> None:
        pieces = [bytes([number]) * (3 << 20) for number in range(5)]
        await store.put_parts("parts", pieces_of(*pieces), METADATA, PART_BYTES)
        head = await store.head("parts")
        assert head.size_bytes == 15 << 20
        assert {name: head.metadata[name] for name in METADATA} == METADATA
        assert await store.read_range("parts", (12 << 20) - 1, 2) == b"\3\4"
        assert await store.read_range("parts", (3 << 20) - 2, 4) == b"\0\0\1\1"

    async def test_a_small_object_is_put_in_parts(self, store: ObjectStore) -> None:
        await store.put_parts("parts", pieces_of(b"a", b"", b"bc"), METADATA, PART_BYTES)
        assert await store.read_range("parts", 0, 10) == b"abc"

    async def test_a_failure_among_the_pieces_leaves_nothing(self, store: ObjectStore) -> None:
        pieces = pieces_of(bytes(6 << 20), bytes(6 << 20), failure=RuntimeError("the ledger is gone"))
        with pytest.raises(RuntimeError, match="the ledger is gone"):
            await store.put_parts("parts", pieces, METADATA, PART_BYTES)
        assert await keys(store) == []

    async def test_a_cancelled_upload_leaves_nothing(self, store: ObjectStore) -> None:
        begun = asyncio.Event()

        async def endless() -> AsyncIterator[bytes]:
            yield bytes(6 << 20)
            begun.set()
            await asyncio.Event().wait()

        upload = asyncio.ensure_future(store.put_parts("parts", endless(), METADATA, PART_BYTES))
        await begun.wait()
        upload.cancel()
        with pytest.raises(asyncio.CancelledError):
            await upload
        assert await keys(store) == []

    async def test_what_is_missing_is_not_found(self, store: ObjectStore) -> None:
        with pytest.raises(OffloadedLedgerNotFound, match="missing"):
            await store.head("missing")
        with pytest.raises(OffloadedLedgerNotFound, match="missing"):
            await store.read_range("missing", 0, 1)

    async def test_what_is_deleted_is_gone_and_missing_ones_are_no_error(self, store: ObjectStore) -> None:
        await store.put("one", b"1", METADATA)
        await store.put("two", b"2", METADATA)
        await store.delete(("missing", "one"))
        assert await keys(store) == ["two"]
        await store.delete(("one",))

    async def test_a_list_goes_on_after_a_key(self, store: ObjectStore) -> None:
        for number in range(7):
            await store.put(f"key-{number}", bytes(number), METADATA)
        assert await keys(store, count_max=3) == ["key-0", "key-1", "key-2"]
        assert await keys(store, after="key-2", count_max=3) == ["key-3", "key-4", "key-5"]
        assert await keys(store, after="key-2b") == ["key-3", "key-4", "key-5", "key-6"]
        assert await keys(store, after="key-6") == []
        listed = (await store.list("key-4", 1))[0]
        assert listed.size_bytes == 5
        assert listed.modified_ms > 1_600_000_000_000
