"""Tiered storage in memory, for tests: a store that outlives owners, and offloaders that fail or stop at each step."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping
from uuid import UUID

from magnetar.core.errors import MagnetarError
from magnetar.ledger.api import EntryNotFound, LedgerReader
from magnetar.tiered.api import (
    MANAGED_LEDGER_KEY,
    OffloadDamaged,
    OffloadedLedgerNotFound,
    OffloadedObject,
    OffloadedPage,
    OffloadUnavailable,
)
from magnetar.tiered.offloaders import Offloaders
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata

STEPS = ("offload", "data", "index", "open", "read", "delete", "deleted-data")
"""Before which an offloader may fail or stop: `data` and `index` are the writes of an offload; `deleted-data` lies
between the two deletions of one offload."""


class MemoryObjects:
    """Stored objects, which outlive offloaders. Keys are Pulsar's: `<uuid>-ledger-<id>`, and the same with `-index`."""

    def __init__(self) -> None:
        self.objects: dict[str, list[bytes]] = {}
        self.names: dict[str, str] = {}
        """The managed ledger that each object is of."""
        self.deletions: int = 0

    def uids(self) -> set[UUID]:
        """The offloads that anything is stored of."""
        return {UUID(key[:36]) for key in self.objects}


class MemoryOffloader:
    """An `Offloader` over objects in memory."""

    def __init__(self, objects: MemoryObjects, bucket: str = "a-bucket") -> None:
        self.driver: str = "aws-s3"
        self.objects: MemoryObjects = objects
        self.bucket: str = bucket
        self.fail_at: dict[str, MagnetarError] = {}
        """By step: the error that it ends with while it is in here."""
        self.damaged: set[tuple[int, int]] = set()
        """Entries that cannot be read back, as (ledger, entry)."""
        self.stop_at: str | None = None
        """The step that is never left: whoever does it is killed there."""
        self.stopped: asyncio.Event = asyncio.Event()
        """Whether somebody has come to `stop_at`."""
        self.hold: asyncio.Event = asyncio.Event()
        """`read` waits for it."""
        self.hold.set()
        self.closed: bool = False
        self.under_way: int = 0
        self.most_under_way: int = 0
        self.opened: int = 0

    def stored_metadata(self) -> Mapping[str, str]:
        """Driver properties that are stored beside a ledger's offload."""
        return {"bucket": self.bucket, "region": "eu-west-1"}

    async def offload(
        self, ledger: LedgerReader, described: LedgerMetadata, uid: UUID, managed_ledger_name: str
    ) -> None:
        """Copy a closed ledger. What fails or is cancelled leaves what it has written: a store that was not let."""
        assert ledger.closed
        assert described.last_entry_id == ledger.last_add_confirmed >= 0
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self.step("offload")
            payloads = await ledger.read(0, ledger.last_add_confirmed)
            await self.step("data")
            self._put(_key(ledger.ledger_id, uid), payloads, managed_ledger_name)
            await self.step("index")
            self._put(_key(ledger.ledger_id, uid) + "-index", [], managed_ledger_name)
        finally:
            self.under_way -= 1

    async def open(self, ledger_id: int, uid: UUID, stored: Mapping[str, str]) -> LedgerReader:
        """Open what was offloaded."""
        assert stored[MANAGED_LEDGER_KEY]
        await self.step("open")
        key = _key(ledger_id, uid)
        if stored.get("bucket") != self.bucket or key not in self.objects.objects:
            raise OffloadedLedgerNotFound(f"{stored.get('bucket')}/{key}")
        if f"{key}-index" not in self.objects.objects:
            raise OffloadedLedgerNotFound(f"{stored.get('bucket')}/{key}-index")
        self.opened += 1
        return MemoryOffloadedReader(self, ledger_id, key)

    async def delete(self, ledger_id: int, uid: UUID, stored: Mapping[str, str]) -> None:
        """Remove both objects of an offload, the index first."""
        assert stored[MANAGED_LEDGER_KEY]
        await self.step("delete")
        self.objects.deletions += 1
        self.objects.objects.pop(_key(ledger_id, uid) + "-index", None)
        await self.step("deleted-data")
        self.objects.objects.pop(_key(ledger_id, uid), None)

    async def page(self, after: str = "", *, count_max: int = 1000) -> OffloadedPage:
        """The objects behind a key."""
        await asyncio.sleep(0)
        keys = sorted(key for key in self.objects.objects if key > after)
        found = [
            OffloadedObject(
                key=key,
                ledger_id=int(key[36:].removeprefix("-ledger-").removesuffix("-index")),
                uid=UUID(key[:36]),
                is_index=key.endswith("-index"),
                size_bytes=sum(map(len, self.objects.objects[key])),
                modified_ms=0,
            )
            for key in keys[:count_max]
        ]
        return OffloadedPage(objects=found, next_after=found[-1].key if len(keys) > count_max else None)

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        """The user metadata of an object."""
        await asyncio.sleep(0)
        if key not in self.objects.objects:
            raise OffloadedLedgerNotFound(key)
        return {"managedledgername": self.objects.names[key], "s3managedledgeroffloaderformatversion": "1"}

    async def close(self) -> None:
        """Readers cannot be used any more."""
        self.closed = True

    async def step(self, name: str) -> None:
        """Come to a step."""
        await asyncio.sleep(0)
        if self.closed:
            raise OffloadUnavailable("the offloader is closed")
        if self.stop_at == name:
            self.stopped.set()
            await asyncio.get_running_loop().create_future()
        if name in self.fail_at:
            raise self.fail_at[name]

    def _put(self, key: str, payloads: list[bytes], name: str) -> None:
        self.objects.objects[key] = payloads
        self.objects.names[key] = name


class MemoryOffloadedReader:
    """A `LedgerReader` of objects in memory."""

    def __init__(self, offloader: MemoryOffloader, ledger_id: int, key: str) -> None:
        payloads = offloader.objects.objects[key]
        self.ledger_id: int = ledger_id
        self.last_add_confirmed: int = len(payloads) - 1
        self.length_bytes: int = sum(map(len, payloads))
        self.closed: bool = True
        self.let_go: bool = False
        self._offloader: MemoryOffloader = offloader
        self._key: str = key

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[bytes]:
        """Payloads of entries first..last."""
        assert not self.let_go
        await self._offloader.step("read")
        await self._offloader.hold.wait()
        payloads = self._offloader.objects.objects.get(self._key)
        if payloads is None:
            raise OffloadedLedgerNotFound(self._key)
        if not 0 <= first_entry_id <= last_entry_id <= self.last_add_confirmed:
            raise EntryNotFound(f"{first_entry_id}..{last_entry_id} of {self._key}")
        for entry_id in range(first_entry_id, last_entry_id + 1):
            if (self.ledger_id, entry_id) in self._offloader.damaged:
                raise OffloadDamaged((self.ledger_id, entry_id), f"entry {entry_id} of {self._key} is damaged")
        found = payloads[first_entry_id : last_entry_id + 1]
        if len(found) <= last_entry_id - first_entry_id:
            raise OffloadDamaged((self.ledger_id, first_entry_id), f"{self._key} is cut short")
        return found

    async def close(self) -> None:
        """Let go of it."""
        assert not self.let_go
        self.let_go = True


class MemoryStores:
    """Makes offloaders over objects in memory, one for each bucket, and keeps those that it made."""

    def __init__(self, objects: MemoryObjects) -> None:
        self.objects: MemoryObjects = objects
        self.made: list[MemoryOffloader] = []

    def make(self, store: Hashable) -> MemoryOffloader:
        """An offloader of a store, whose settings are its bucket."""
        self.made.append(MemoryOffloader(self.objects, str(store)))
        return self.made[-1]

    def offloaders(self) -> Offloaders:
        """Those of another process."""
        return Offloaders(self.make)


def _key(ledger_id: int, uid: UUID) -> str:
    return f"{uid}-ledger-{ledger_id}"
