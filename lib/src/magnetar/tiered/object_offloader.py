"""Closed ledgers become two objects of an object store, data first, index last (Pulsar:
BlobStoreManagedLedgerOffloader)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Final
from uuid import UUID

from magnetar.ledger.api import LedgerReader
from magnetar.tiered.api import (
    OffloadDamaged,
    OffloadedLedgerNotFound,
    OffloadedObject,
    OffloadedPage,
    OffloadRefused,
)
from magnetar.tiered.chunk_cache import ChunkCache, ChunkedObject
from magnetar.tiered.closed_ledger import described_as_closed
from magnetar.tiered.object_store import ObjectStore
from magnetar.tiered.offloaded_ledger import OffloadedLedgerReader
from magnetar.tiered.settings import OffloadStoreSettings, StorePlace
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.wire.offload.data_block import ENTRY_HEADER_BYTES, HEADER_BYTES
from magnetar.wire.offload.data_object import DataObjectWriter
from magnetar.wire.offload.errors import BadOffload
from magnetar.wire.offload.index import INDEX_BYTES_MAX, LedgerBlocks, OffloadIndex, decode_index, encode_index
from magnetar.wire.offload.object_names import (
    check_format_version,
    data_key,
    index_key,
    parse_object_name,
    streaming_data_key,
    streaming_index_key,
    user_metadata,
)

PART_BYTES: Final = 8 << 20
"""Of an upload. A store takes 10 000 parts; larger ledgers get larger parts."""
PARTS_MAX: Final = 9000
ENTRIES_PER_READ: Final = 1000
"""Asked of bookies at once, at most; they give fewer where that would be many bytes."""
PIECE_BYTES: Final = 1 << 20
"""Put together in one turn of the loop, and asked of bookies at once if entries are of average size."""
CACHE_BYTES: Final = 64 << 20
"""Bytes of objects that all readers of one store keep in memory together."""
CACHE_CHUNKS_MIN: Final = 4
DECODED_HERE_BYTES: Final = 128 << 10
"""Of an index that is decoded in the loop's thread: 6500 blocks, 10 ms."""
STORES_MAX: Final = 16
"""Buckets that are kept open at once; those of old offloads may be others than today's."""
REMOVAL_SECONDS_MAX: Final = 30.0
"""How long a failed offload may take to remove what it wrote."""

logger: Final = logging.getLogger(__name__)


class ObjectOffloader:
    """An `Offloader` for object stores."""

    __slots__ = ("_cache", "_open_store", "_software_version", "_stores", "settings")

    def __init__(self, settings: OffloadStoreSettings, open_store: Callable[[StorePlace], ObjectStore]) -> None:
        self.settings = settings
        self._open_store = open_store
        self._stores: dict[StorePlace, ObjectStore] = {}
        chunks_max = max(CACHE_BYTES // settings.read_buffer_bytes, CACHE_CHUNKS_MIN)
        self._cache = ChunkCache(settings.read_buffer_bytes, chunks_max)
        self._software_version = version("magnetar-lib")

    @property
    def driver(self) -> str:
        """As Pulsar names it (`OffloadDriverMetadata.name`)."""
        return self.settings.driver

    @property
    def held_chunks(self) -> int:
        """How many stretches of objects are held for readers, those under way included."""
        return self._cache.chunk_count

    def stored_metadata(self) -> Mapping[str, str]:
        """Driver properties that are stored beside a ledger's offload. Never credentials."""
        return self.settings.stored_metadata()

    async def offload(
        self, ledger: LedgerReader, described: LedgerMetadata, uid: UUID, managed_ledger_name: str
    ) -> None:
        """Copy a closed ledger that is not empty. When this returns, its last entry was read back."""
        described = described_as_closed(ledger, described)
        store = self._store(self.settings.place)
        try:
            await self._write(store, ledger, described, uid, managed_ledger_name)
            await self._verify(store, ledger, uid)
        except BaseException:
            await self._remove_failed(store, ledger.ledger_id, uid)
            raise

    async def open(self, ledger_id: int, uid: UUID, stored: Mapping[str, str]) -> LedgerReader:
        """Open what was offloaded: in the bucket that `stored` names, at today's endpoint; if it is not there, at the
        endpoint and in the region that `stored` names."""
        refusal: OffloadRefused | None = None
        missing: OffloadedLedgerNotFound | None = None
        for place in self._places(stored):
            try:
                return await self._open_in(self._store(place), ledger_id, uid)
            except OffloadRefused as error:
                refusal = refusal or error
            except OffloadedLedgerNotFound as error:
                missing = error
        # Only where every place says so is a ledger lost.
        failure = refusal or missing
        assert failure is not None
        raise failure

    async def delete(self, ledger_id: int, uid: UUID, stored: Mapping[str, str]) -> None:
        """Remove the objects of one offload, whole or not, from the first place that has one of them, of those that
        `open` looks at. Missing ones are no error."""
        *others, last = self._places(stored)
        keys = _keys(ledger_id, uid)
        refusal: OffloadRefused | None = None
        for place in others:
            store = self._store(place)
            try:
                found = await _has_any(store, keys)
            except OffloadRefused as error:
                refusal = refusal or error
                continue
            if found:
                await store.delete(keys)
                return
        store = self._store(last)
        # A place that does not say whether it has them may have them, unless another one does.
        if refusal is not None and not await _has_any(store, keys):
            raise refusal
        await store.delete(keys)

    async def page(self, after: str = "", *, count_max: int = 1000) -> OffloadedPage:
        """The objects of offloads in today's bucket whose keys come after this one."""
        listed = await self._store(self.settings.place).list(after, count_max)
        objects = [
            OffloadedObject(
                key=one.key,
                ledger_id=name.ledger_id,
                uid=name.uid,
                is_index=name.is_index,
                size_bytes=one.size_bytes,
                modified_ms=one.modified_ms,
            )
            for one in listed
            if (name := parse_object_name(one.key)) is not None
        ]
        return OffloadedPage(objects=objects, next_after=listed[-1].key if len(listed) == count_max else None)

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        """The user metadata of one object in today's bucket, names in lower case."""
        return (await self._store(self.settings.place).head(key)).metadata

    async def close(self) -> None:
        """Let go of connections. Readers that are open cannot be used any more."""
        await self._cache.close()
        stores, self._stores = list(self._stores.values()), {}
        for store in stores:
            await store.close()

    # --- writing ---

    async def _write(
        self, store: ObjectStore, ledger: LedgerReader, described: LedgerMetadata, uid: UUID, managed_ledger_name: str
    ) -> None:
        writer = DataObjectWriter(ledger.last_add_confirmed, ledger.length_bytes, self.settings.block_bytes_max)
        expected_bytes = ledger.length_bytes + (ledger.last_add_confirmed + 1) * ENTRY_HEADER_BYTES
        part_bytes = max(PART_BYTES, expected_bytes // PARTS_MAX)
        await store.put_parts(
            data_key(uid, ledger.ledger_id),
            _pieces(ledger, writer),
            self._user_metadata(managed_ledger_name, is_index=False),
            part_bytes,
        )
        index = encode_index(described, writer.size_bytes, HEADER_BYTES, writer.blocks)
        await store.put(
            index_key(uid, ledger.ledger_id), index, self._user_metadata(managed_ledger_name, is_index=True)
        )

    async def _verify(self, store: ObjectStore, ledger: LedgerReader, uid: UUID) -> None:
        """Read back through the way that every reader takes: both objects, the index, the last entry."""
        last = ledger.last_add_confirmed
        reader = await self._open_in(store, ledger.ledger_id, uid)
        try:
            if await reader.read(last, last) != await ledger.read(last, last):
                raise OffloadDamaged((ledger.ledger_id, last), f"ledger {ledger.ledger_id} came back with another end")
        finally:
            await reader.close()

    async def _remove_failed(self, store: ObjectStore, ledger_id: int, uid: UUID) -> None:
        """As far as the store lets it; whoever asked for the offload deletes the rest by its uid."""
        removal = asyncio.ensure_future(store.delete(_keys(ledger_id, uid)))
        try:
            await asyncio.wait((removal,), timeout=REMOVAL_SECONDS_MAX)
        finally:
            told = f"no answer within {REMOVAL_SECONDS_MAX:g} seconds"
            if removal.done() and not removal.cancelled():
                told = str(removal.exception() or "")
            removal.cancel()
            if told:
                keys = " and ".join(_keys(ledger_id, uid))
                logger.warning("a failed offload may have left %s in %s: %s", keys, store.place, told)

    def _user_metadata(self, managed_ledger_name: str, *, is_index: bool) -> dict[str, str]:
        return user_metadata(
            is_index=is_index, managed_ledger_name=managed_ledger_name, software_version=self._software_version
        )

    # --- reading ---

    async def _open_in(self, store: ObjectStore, ledger_id: int, uid: UUID) -> OffloadedLedgerReader:
        key, named = data_key(uid, ledger_id), index_key(uid, ledger_id)
        try:
            index, ledger = await self._read_index(store, ledger_id, named)
        except OffloadedLedgerNotFound as missing:
            key, named = streaming_data_key(uid), streaming_index_key(uid)
            try:
                index, ledger = await self._read_index(store, ledger_id, named)
            except OffloadedLedgerNotFound:
                raise missing from None
        head = await store.head(key)
        try:
            check_format_version(head.metadata)
        except BadOffload as error:
            raise _damaged(ledger_id, key, store, error) from None
        if head.size_bytes < index.data_bytes:
            told = f"it has {head.size_bytes} bytes, where its index tells of {index.data_bytes}"
            raise _damaged(ledger_id, key, store, told)
        source = ChunkedObject(store, key, index.data_bytes)
        return OffloadedLedgerReader(ledger_id, ledger, source, self._cache, self.settings.prefetch_rounds)

    async def _read_index(self, store: ObjectStore, ledger_id: int, key: str) -> tuple[OffloadIndex, LedgerBlocks]:
        try:
            data = await _whole_index(store, key)
            beside = len(data) > DECODED_HERE_BYTES
            index = await asyncio.to_thread(decode_index, data) if beside else decode_index(data)
        except BadOffload as error:
            raise _damaged(ledger_id, key, store, error) from None
        # The name of the object is the ledger's in the form that has one ledger, and no id inside.
        ledger = index.ledgers.get(None) or index.ledgers.get(ledger_id)
        if ledger is None:
            raise _damaged(ledger_id, key, store, f"it knows the ledgers {sorted(filter(None, index.ledgers))} alone")
        return index, ledger

    # --- stores ---

    def _places(self, stored: Mapping[str, str]) -> Sequence[StorePlace]:
        folder = stored.get("storageBasePath")
        if folder and not stored.get("bucket"):
            raise OffloadRefused(f"it was offloaded to the folder {folder}, and to no bucket")
        today = self.settings.place
        here = replace(today, bucket=stored.get("bucket") or today.bucket)
        endpoint, region = stored.get("serviceEndpoint") or "", stored.get("region") or ""
        then = replace(here, endpoint=endpoint.rstrip("/"), region=region)
        if not (endpoint or region) or (then.endpoint, then.region) == (here.endpoint, here.region):
            return (here,)
        return (here, then)

    def _store(self, place: StorePlace) -> ObjectStore:
        store = self._stores.pop(place, None) or self._open_store(place)
        self._stores[place] = store  # Last in the dictionary = used last.
        if len(self._stores) > STORES_MAX:
            # Open readers keep theirs.
            del self._stores[next(iter(self._stores))]
        return store


async def _pieces(ledger: LedgerReader, writer: DataObjectWriter) -> AsyncIterator[bytes]:
    """The data object in pieces of a MiB, or of one entry that is larger."""
    last = ledger.last_add_confirmed
    average_bytes = max(1, ledger.length_bytes // (last + 1))
    count_max = max(1, min(ENTRIES_PER_READ, PIECE_BYTES // average_bytes))
    while (first := writer.next_entry_id) <= last:
        payloads = await ledger.read(first, min(last, first + count_max - 1))
        begin, size_bytes = 0, 0
        for end, payload in enumerate(payloads, 1):
            size_bytes += len(payload)
            if size_bytes >= PIECE_BYTES or end == len(payloads):
                yield b"".join(writer.add(payloads[begin:end]))
                begin, size_bytes = end, 0
    yield b"".join(writer.finish())


def _keys(ledger_id: int, uid: UUID) -> tuple[str, ...]:
    """The index goes first: data without one was never whole."""
    return (index_key(uid, ledger_id), data_key(uid, ledger_id))


async def _has_any(store: ObjectStore, keys: Sequence[str]) -> bool:
    for key in keys:
        try:
            await store.head(key)
        except OffloadedLedgerNotFound:
            continue
        return True
    return False


def _damaged(ledger_id: int, key: str, store: ObjectStore, told: object) -> OffloadDamaged:
    return OffloadDamaged((ledger_id, 0), f"{key} in {store.place} is damaged: {told}")


async def _whole_index(store: ObjectStore, key: str) -> bytes:
    """The bytes of an index object; `BadOffload` for one that nobody would write."""
    head = await store.head(key)
    check_format_version(head.metadata)
    if not 0 < head.size_bytes <= INDEX_BYTES_MAX:
        raise BadOffload(f"an index of {head.size_bytes} bytes, where {INDEX_BYTES_MAX} are the most")
    data = await store.read_range(key, 0, head.size_bytes)
    if len(data) != head.size_bytes:
        raise BadOffload(f"{len(data)} bytes of an index of {head.size_bytes}")
    return data
