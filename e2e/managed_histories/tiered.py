"""Tiered storage: objects in memory that outlive owners, a way to them that fails, and who looks at each deletion.

The offloader is the real one for object stores. A request may fail, lose its answer, take long, or store half of an
object and say that all is well. What an owner has asked for that dies is done by then, or never."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar
from uuid import UUID

from magnetar.ledger.api import LedgerClient
from magnetar.managed.info_codec import LedgerInfo, decode_ledger_info
from magnetar.managed.ledger_list import LedgerRecord
from magnetar.managed.offload.context import copy_of
from magnetar.managed.offload.owed import owed_objects
from magnetar.managed.paths import ledger_path
from magnetar.metadata.store import MetadataStore
from magnetar.tiered.api import OffloadUnavailable
from magnetar.tiered.object_store import ListedObject, ObjectHead
from magnetar.tiered.offloaders import Offloaders
from magnetar.tiered.policy import OffloadPolicy, ReadFirst
from magnetar.tiered.testing import MemoryObjectStore, memory_offloader
from magnetar.wire.offload.object_names import data_key, index_key, parse_object_name

STORE: Final = "objects"
SHARE: Final = 1 / 4
"""Of the histories. The others are what they were before there was tiered storage."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredParameters:
    """Of one history."""

    threshold_bytes: int
    """Below 0: ledgers go when somebody asks."""
    deletion_lag_ms: int | None
    read_first: ReadFirst
    on_load: bool
    failing_share: float
    """Requests to the store that go wrong while it is in trouble."""
    slow_seconds: float
    """How long a request takes at most."""
    steps_share: float
    """Steps of the history that have to do with tiered storage."""

    def policy(self) -> OffloadPolicy:
        """Of every owner."""
        return OffloadPolicy(
            store=STORE,
            threshold_bytes=self.threshold_bytes,
            deletion_lag_ms=self.deletion_lag_ms,
            read_first=self.read_first,
            on_load=self.on_load,
        )


def draw_tiered(seed: int) -> TieredParameters | None:
    """None in three of four histories."""
    rng = random.Random(f"{seed} offloads")
    if rng.random() >= SHARE:
        return None
    return TieredParameters(
        threshold_bytes=rng.choice((-1, 0, 0, 400)),
        deletion_lag_ms=rng.choice((0, 1_000, 20_000, None)),
        read_first=rng.choice(tuple(ReadFirst)),
        on_load=rng.random() < 0.5,
        failing_share=rng.choice((0.1, 0.3, 0.6)),
        slow_seconds=rng.choice((0.0, 0.05, 1.0)),
        steps_share=rng.choice((0.1, 0.3)),
    )


def keys_of(ledger_id: int, uid: UUID) -> tuple[str, str]:
    """Data and index of an offload."""
    return data_key(uid, ledger_id), index_key(uid, ledger_id)


async def _nobody_looks(uid: UUID) -> None:
    del uid


class Objects:
    """What is stored, and what has come of it."""

    def __init__(self) -> None:
        self.store = MemoryObjectStore()
        self.whole: set[str] = set()
        """Keys of objects of which all is there."""
        self.trouble = False
        self.excused: set[UUID] = set()
        """Offloads of which something may be left over."""
        self.on_change: Callable[[str], None] = lambda what: None
        """Told of each change."""
        self.before_deletion: Callable[[UUID], Awaitable[None]] = _nobody_looks
        """Told what somebody wants to delete."""

    def copy(self) -> Objects:
        """As they are, without the troubles."""
        copied = Objects()
        copied.store.objects = dict(self.store.objects)
        copied.whole = set(self.whole)
        return copied

    def uids(self) -> set[UUID]:
        """The offloads of which anything is stored."""
        names = [parse_object_name(key) for key in self.store.objects]
        return {name.uid for name in names if name is not None}

    def is_whole(self, ledger_id: int, uid: UUID) -> bool:
        """Whether all of an offload is there."""
        return self.whole.issuperset(keys_of(ledger_id, uid))


class OwnersStore:
    """An `ObjectStore`: one owner's way to the objects."""

    def __init__(self, objects: Objects, parameters: TieredParameters | None, rng: random.Random) -> None:
        """Without parameters nothing goes wrong."""
        self.written: set[UUID] = set()
        """The offloads that it has begun."""
        self._objects = objects
        self._parameters = parameters
        self._rng = rng
        self._dead = False

    def end(self) -> None:
        """The owner has died."""
        self._dead = True

    @property
    def place(self) -> str:
        """See `ObjectStore.place`."""
        return self._objects.store.place

    async def put(self, key: str, data: bytes, metadata: Mapping[str, str]) -> None:
        """See `ObjectStore.put`."""
        await self._put(key, data, metadata)

    async def put_parts(
        self, key: str, pieces: AsyncIterator[bytes], metadata: Mapping[str, str], part_bytes: int
    ) -> None:
        """See `ObjectStore.put_parts`."""
        del part_bytes
        await self._put(key, b"".join([piece async for piece in pieces]), metadata)

    async def _put(self, key: str, data: bytes, metadata: Mapping[str, str]) -> None:
        name = parse_object_name(key)
        assert name is not None
        self.written.add(name.uid)
        half = self._fails(3)

        def store() -> None:
            stored = data[: len(data) // 2] if half else data
            self._objects.store.objects[key] = (stored, {each.lower(): text for each, text in metadata.items()}, 0)
            self._objects.whole.discard(key)
            if not half:
                self._objects.whole.add(key)
            self._objects.on_change(f"{key} being {'half ' if half else ''}written")

        await self._do(store)

    async def read_range(self, key: str, offset: int, size_bytes: int) -> bytes:
        """See `ObjectStore.read_range`."""
        await self._do(lambda: None)
        return await self._objects.store.read_range(key, offset, size_bytes)

    async def head(self, key: str) -> ObjectHead:
        """See `ObjectStore.head`."""
        await self._do(lambda: None)
        return await self._objects.store.head(key)

    async def delete(self, keys: Sequence[str]) -> None:
        """See `ObjectStore.delete`."""
        for key in keys:
            name = parse_object_name(key)
            assert name is not None
            await self._objects.before_deletion(name.uid)
            await self._do(lambda key=key: self._remove(key))  # type: ignore[misc]  # mypy takes defaults for arguments.

    def _remove(self, key: str) -> None:
        self._objects.on_change(f"{key} about to go")
        self._objects.store.objects.pop(key, None)
        self._objects.whole.discard(key)

    async def list(self, after: str, count_max: int) -> list[ListedObject]:
        """See `ObjectStore.list`."""
        await self._do(lambda: None)
        return await self._objects.store.list(after, count_max)

    async def close(self) -> None:
        """Nothing is held."""

    async def _do(self, act: Callable[[], None]) -> None:
        parameters = self._parameters
        if parameters is not None and parameters.slow_seconds:
            await asyncio.sleep(self._rng.random() * parameters.slow_seconds)
        if self._dead:
            await asyncio.get_running_loop().create_future()
        if self._fails(2):
            raise OffloadUnavailable("the store refuses")
        act()
        if self._fails(2):
            raise OffloadUnavailable("the answer is lost")

    def _fails(self, of: int) -> bool:
        """Whether one of so many things that may go wrong does."""
        parameters = self._parameters
        if parameters is None or not self._objects.trouble:
            return False
        return self._rng.random() < parameters.failing_share / of


def offloaders_of(store: OwnersStore, rng: random.Random) -> Offloaders:
    """One owner's."""
    return Offloaders(lambda _: memory_offloader(store), lambda: UUID(int=rng.getrandbits(128), version=4))


async def info_of(store: MetadataStore, name: str) -> LedgerInfo:
    """The list of the topic as it is stored."""
    node = await store.get(ledger_path(name))
    return LedgerInfo([], None, {}) if node is None else decode_ledger_info(node.value)


def without_bookkeeper(records: Iterable[LedgerRecord]) -> set[int]:
    """The ledgers whose only copy is in tiered storage."""
    found = ((record.ledger_id, copy_of(record)) for record in records)
    return {ledger_id for ledger_id, copy in found if copy is not None and copy.bookkeeper_deleted}


class DeletionWitness:
    """Looks at the stored list, at the very moment at which something is deleted. Its list must not be behind: it
    reads the store itself, past all that owners see of it."""

    def __init__(
        self, store: MetadataStore, name: str, objects: Objects, now_ms: Callable[[], int], lag_ms: int | None
    ) -> None:
        self.violations: list[str] = []
        self.deleting = False
        """The topic goes, with all that it has."""
        self._store = store
        self._name = name
        self._objects = objects
        self._now_ms = now_ms
        self._lag_ms = lag_ms

    async def ledger_goes(self, ledger_id: int) -> None:
        """BookKeeper's copy of a ledger is about to go: the list names it no more, or says that it may go, and the
        other one is whole."""
        info = await info_of(self._store, self._name)
        record = next((one for one in info.records if one.ledger_id == ledger_id), None)
        if record is None or self.deleting:
            return
        copy = copy_of(record)
        if copy is None or not copy.complete or not copy.bookkeeper_deleted:
            self.violations.append(f"ledger {ledger_id} is deleted, and the list does not say that it may go")
        elif not self._objects.is_whole(ledger_id, copy.uid):
            self.violations.append(f"ledger {ledger_id} is deleted, and its offloaded copy {copy.uid} is not whole")
        elif self._lag_ms is None or self._now_ms() - copy.offloaded_ms <= self._lag_ms:
            self.violations.append(
                f"ledger {ledger_id} is deleted {self._now_ms() - copy.offloaded_ms} ms after it went"
            )

    async def object_goes(self, uid: UUID) -> None:
        """Somebody wants to delete what is stored of an offload: no record may say that it is to be read there."""
        for record in (await info_of(self._store, self._name)).records:
            copy = copy_of(record)
            if copy is not None and copy.uid == uid and copy.complete and not self.deleting:
                self.violations.append(f"the objects of {uid} are deleted, and ledger {record.ledger_id} names them")

    async def look_at_list(self, when: str) -> None:
        """What is to be read from tiered storage alone is there; what is whole by the list is."""
        info = await info_of(self._store, self._name)
        for record in info.records:
            copy = copy_of(record)
            if copy is None or not copy.complete or self.deleting:
                continue
            if not self._objects.is_whole(record.ledger_id, copy.uid):
                what = f"ledger {record.ledger_id} is offloaded as {copy.uid}, which is not whole"
                self.violations.append(f"{when}: the list says that {what}")

    async def left_over(self) -> list[str]:
        """Once everybody has gone: what no record names, and what is still owed."""
        info = await info_of(self._store, self._name)
        named = {copy.uid for copy in map(copy_of, info.records) if copy is not None and copy.complete}
        wrong = [
            f"the objects of {uid} are left over, and nothing names them"
            for uid in sorted(self._objects.uids() - named - self._objects.excused)
        ]
        wrong += [f"{key} is still owed" for key in sorted(owed_objects(info.properties))]
        return wrong


class WatchedLedgers:
    """A `LedgerClient` whose deletions a witness sees."""

    def __init__(self, client: LedgerClient, witness: DeletionWitness) -> None:
        self._client = client
        self._witness = witness
        self.create = client.create
        self.open = client.open
        self.observe = client.observe
        self.describe = client.describe
        self.close = client.close

    async def delete(self, ledger_id: int) -> None:
        """See `LedgerClient.delete`."""
        await self._witness.ledger_goes(ledger_id)
        await self._client.delete(ledger_id)
