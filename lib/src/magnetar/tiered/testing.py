"""Object stores and ledgers in memory, with faults on demand, for tests of what stands on tiered storage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from magnetar.core.errors import Misuse
from magnetar.ledger.api import EntryNotFound
from magnetar.tiered.api import OffloadedLedgerNotFound
from magnetar.tiered.object_offloader import ObjectOffloader
from magnetar.tiered.object_store import ListedObject, ObjectHead, ObjectStore
from magnetar.tiered.settings import OffloadStoreSettings, StorePlace
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState


class MemoryObjectStore:
    """One bucket in memory. `calls` has what was asked, `fail` is asked before each call and may raise."""

    def __init__(self, place: str = "bucket memory") -> None:
        self.objects: dict[str, tuple[bytes, dict[str, str], int]] = {}
        """Bytes, user metadata and time of writing by key."""
        self.calls: list[tuple[str, str]] = []
        self.fail: Callable[[str, str], None] = lambda what, key: None
        """Given the call's name and the key. `put_parts` asks once as such, and again as `finish` before its end."""
        self.now_ms = 1_700_000_000_000
        self._place = place

    @property
    def place(self) -> str:
        """A name for messages."""
        return self._place

    async def put(self, key: str, data: bytes, metadata: Mapping[str, str]) -> None:
        """Write a small object."""
        await self._asked("put", key)
        self._store(key, bytes(data), metadata)

    async def put_parts(
        self, key: str, pieces: AsyncIterator[bytes], metadata: Mapping[str, str], part_bytes: int
    ) -> None:
        """Write an object piece by piece; it is there when all of it is."""
        await self._asked("put_parts", key)
        data = b"".join([piece async for piece in pieces])
        await self._asked("finish", key)
        self._store(key, data, metadata)

    async def read_range(self, key: str, offset: int, size_bytes: int) -> bytes:
        """A stretch of an object."""
        await self._asked("read_range", key)
        return self._found(key)[0][offset : offset + size_bytes]

    async def head(self, key: str) -> ObjectHead:
        """Size and user metadata."""
        await self._asked("head", key)
        data, metadata, _ = self._found(key)
        return ObjectHead(len(data), dict(metadata))

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects."""
        for key in keys:
            await self._asked("delete", key)
            self.objects.pop(key, None)

    async def list(self, after: str, count_max: int) -> list[ListedObject]:
        """Objects in the order of their keys."""
        await self._asked("list", after)
        keys = sorted(key for key in self.objects if key > after)[:count_max]
        return [ListedObject(key, len(self.objects[key][0]), self.objects[key][2]) for key in keys]

    async def close(self) -> None:
        """Nothing is held."""

    async def _asked(self, what: str, key: str) -> None:
        self.calls.append((what, key))
        await asyncio.sleep(0)
        self.fail(what, key)

    def _store(self, key: str, data: bytes, metadata: Mapping[str, str]) -> None:
        self.objects[key] = (data, {name.lower(): value for name, value in metadata.items()}, self.now_ms)

    def _found(self, key: str) -> tuple[bytes, dict[str, str], int]:
        try:
            return self.objects[key]
        except KeyError:
            raise OffloadedLedgerNotFound(f"{key} is not in {self._place}") from None


class ClosedMemoryLedger:
    """A closed ledger with these payloads: a `LedgerReader`. It gives `at_once_max` entries at once."""

    def __init__(self, ledger_id: int, payloads: Sequence[bytes], *, closed: bool = True) -> None:
        self.ledger_id = ledger_id
        self.last_add_confirmed = len(payloads) - 1
        self.length_bytes = sum(map(len, payloads))
        self.closed = closed
        self.payloads = list(payloads)
        self.at_once_max = 100

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[bytes]:
        """Payloads of entries first..last, fewer when those are many."""
        await asyncio.sleep(0)
        if not 0 <= first_entry_id <= last_entry_id:
            raise Misuse(f"entries {first_entry_id} to {last_entry_id} are no range")
        if last_entry_id > self.last_add_confirmed:
            raise EntryNotFound(f"entry {last_entry_id} of ledger {self.ledger_id}")
        return self.payloads[first_entry_id : min(last_entry_id + 1, first_entry_id + self.at_once_max)]

    async def close(self) -> None:
        """Nothing is held."""

    def described(self) -> LedgerMetadata:
        """The ledger's record, as a metadata store has it."""
        return LedgerMetadata(
            ensemble_size=2,
            write_quorum=2,
            ack_quorum=1,
            ensembles=[(0, ["bookie-1:3181", "bookie-2:3181"])],
            state=LedgerState.CLOSED,
            last_entry_id=self.last_add_confirmed,
            length_bytes=self.length_bytes,
            password=b"secret",
            created_ms=1_700_000_000_123,
            custom_metadata={"application": b"pulsar"},
        )


def memory_offloader(
    store: ObjectStore, *, read_buffer_bytes: int = 1 << 10, block_bytes_max: int = 5 << 20, prefetch_rounds: int = 1
) -> ObjectOffloader:
    """An offloader on this store, whatever bucket is asked for."""
    settings = OffloadStoreSettings(
        driver="aws-s3",
        place=StorePlace(bucket="memory", region="here"),
        block_bytes_max=block_bytes_max,
        read_buffer_bytes=read_buffer_bytes,
        prefetch_rounds=prefetch_rounds,
    )
    return ObjectOffloader(settings, lambda place: store)
