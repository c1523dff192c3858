"""The schema store: a locator in the metadata store and one ledger with one entry for each version.

Partitions share the id of their partitioned topic, which is `<tenant>/<namespace>/<topic>`.
Facts: Pulsar 4.0 BookkeeperSchemaStorage, LedgerMetadataUtils.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from magnetar.broker.schema.cache import WeightedCache
from magnetar.broker.schema.locator import (
    Locator,
    SchemaPosition,
    SchemaStoreCorrupt,
    entry_bytes,
    locator_bytes,
    parse_entry,
    parse_locator,
)
from magnetar.broker.schema.schema_info import StoredSchema, from_storage, to_storage
from magnetar.core.errors import MagnetarError
from magnetar.ledger.api import LedgerClient, LedgerOptions
from magnetar.metadata.store import (
    MUST_NOT_EXIST,
    MetadataStore,
    NodeNotFound,
    Notification,
    SessionEvent,
    VersionConflict,
)
from magnetar.metadata.sure_writes import delete_surely, put_surely
from magnetar.net.places import Places
from magnetar.wire.errors import BadProtobuf

SCHEMAS_PATH: Final = "/schemas"

_CACHED_SCHEMAS_BYTES_MAX: Final = 8 << 20
"""Schemas are a few kB each: enough for thousands of topics, little beside the entry cache."""
_CACHED_POSITIONS_MAX: Final = 50_000
"""Versions over all cached locators, about 200 bytes each."""
_SCHEMA_OVERHEAD_BYTES: Final = 512
"""Bytes that a cached schema takes beside its data."""
_READS_AT_ONCE_MAX: Final = 16
"""A topic may have thousands of versions; opening all their ledgers at once would starve the brokers' own traffic."""
_READS_LATE_MAX: Final = 64
"""Beside them those whose bookies have not answered for a while: such topics hold up no others' schemas."""

_IN_DOUBT_MAX: Final = 1_000
"""Schemas with ledgers in doubt. Of one that is forgotten the log tells the ledgers."""

logger: Final = logging.getLogger(__name__)


class _Append:
    """Hears how the only append of a ledger fares."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def confirmed(self, ledger_id: int, last_add_confirmed: int) -> None:
        """The entry is stored."""
        if not self.outcome.done():
            self.outcome.set_result(None)

    def failed(self, ledger_id: int, error: MagnetarError) -> None:
        """The entry is not stored, or nobody knows."""
        if not self.outcome.done():
            self.outcome.set_exception(error)


class SchemaStorage:
    """Reads and writes versions; knows nothing of compatibility. Only the event loop may call it."""

    def __init__(self, store: MetadataStore, ledgers: LedgerClient, options: LedgerOptions) -> None:
        self._store = store
        self._ledgers = ledgers
        self._options = options
        self._locators: WeightedCache[str, Locator] = WeightedCache(_CACHED_POSITIONS_MAX)
        self._schemas: WeightedCache[SchemaPosition, StoredSchema] = WeightedCache(_CACHED_SCHEMAS_BYTES_MAX)
        self._reading: dict[SchemaPosition, asyncio.Task[StoredSchema]] = {}
        self._read_permits = Places(_READS_AT_ONCE_MAX, _READS_LATE_MAX)
        self._in_doubt: dict[str, set[int]] = {}
        """Ledgers of schemas that only a write without an answer names, or takes away."""
        self._unsure_deletions: set[str] = set()
        """Those of them whose locator was to be deleted."""
        self._changes = 0
        self._stop_watching = store.watch(self._changed)
        self._stop_watching_session = store.watch_session(self._session_changed)

    async def locator(self, schema_id: str, *, fresh: bool = False) -> Locator | None:
        """Where a schema's versions are; None when it never had one. Fresh: not from the cache, for a change."""
        cached = None if fresh else self._locators.get(schema_id)
        if cached is not None:
            return cached
        changes = self._changes
        node = await self._store.get(_path(schema_id))
        if node is None:
            return None
        located = parse_locator(node.value, node.stat.version)
        if changes == self._changes:
            self._locators.put(schema_id, located, len(located.positions))
        return located

    def kept_locator(self, schema_id: str) -> Locator | None:
        """Which versions a schema has, from memory alone; None when there is none, or it is not kept."""
        return self._locators.get(schema_id)

    def kept(self, position: SchemaPosition) -> StoredSchema | None:
        """The version of a schema at a position, from memory alone; None when it is not kept."""
        return self._schemas.get(position)

    async def read(self, position: SchemaPosition) -> StoredSchema:
        """One version. `LedgerNotFound` or `EntryNotFound` when it is lost, `SchemaStoreCorrupt`, `Unavailable`."""
        cached = self._schemas.get(position)
        if cached is not None:
            return cached
        task = self._reading.get(position)
        if task is None:
            task = self._reading[position] = asyncio.create_task(self._fetch(position))
            task.add_done_callback(lambda done: self._fetched(position, done))
        # One reader that gives up must not fail the others.
        return await asyncio.shield(task)

    async def append(self, stored: StoredSchema, hash_: bytes, after: Locator | None) -> int:
        """Add a version after those of a fresh locator and return its number; `stored.version` is not looked at.

        `VersionConflict` when someone else was faster: nothing is left behind, read the locator again."""
        path = _path(stored.schema_id)
        earlier: Sequence[SchemaPosition] = () if after is None else after.positions
        version = 0 if after is None else after.newest.version + 1
        data = entry_bytes(to_storage(stored), hash_, earlier)
        ledger_id, entry_id = await self._write_ledger(stored.schema_id, data)
        positions = (*earlier, SchemaPosition(version, ledger_id, entry_id, hash_))
        expected_version = MUST_NOT_EXIST if after is None else after.node_version
        try:
            await put_surely(self._store, path, locator_bytes(positions), expected_version)
        except (VersionConflict, NodeNotFound) as error:
            await self._discard(ledger_id)
            raise VersionConflict(str(error)) from error
        except BaseException:
            self._doubt(stored.schema_id, [ledger_id])
            raise
        self._forget(stored.schema_id)
        await self._settle(stored.schema_id, positions)
        return version

    async def delete(self, schema_id: str, located: Locator) -> None:
        """Remove all versions of a fresh locator. `VersionConflict` when someone changed them in between."""
        path = _path(schema_id)
        node = await self._store.get(path, watch=False)
        if node is None or node.stat.version != located.node_version:
            raise VersionConflict(f"{path} was changed by another broker")
        ledgers = [position.ledger_id for position in located.positions]
        try:
            await delete_surely(self._store, path, node)
        except NodeNotFound as error:
            raise VersionConflict(str(error)) from error
        except VersionConflict:
            raise
        except BaseException:
            self._doubt(schema_id, ledgers)
            self._unsure_deletions.add(schema_id)
            raise
        self._forget(schema_id)
        for position in located.positions:
            self._schemas.discard(position)
            await self._discard(position.ledger_id)
        await self._settle(schema_id, ())

    async def finish_deletion(self, schema_id: str) -> None:
        """There is no locator: if a deletion had no answer, it has happened, and its ledgers are left."""
        if schema_id in self._unsure_deletions:
            await self._settle(schema_id, ())

    async def close(self) -> None:
        """Stop listening, and give up what is being read."""
        self._stop_watching()
        self._stop_watching_session()
        reading = list(self._reading.values())
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)

    async def _fetch(self, position: SchemaPosition) -> StoredSchema:
        place = await self._read_permits.take()
        try:
            with place:
                entries = await self._entries(position)
        finally:
            place.leave()
        try:
            stored = from_storage(position.version, parse_entry(entries[0]))
        except (BadProtobuf, ValueError) as error:
            raise SchemaStoreCorrupt(f"ledger {position.ledger_id} has no SchemaInfo") from error
        self._schemas.put(position, stored, len(entries[0]) + _SCHEMA_OVERHEAD_BYTES)
        return stored

    async def _entries(self, position: SchemaPosition) -> list[bytes]:
        # Pulsar leaves the ledgers of schemas open, so reading one means recovering it.
        reader = await self._ledgers.open(position.ledger_id, password=self._options.password, recover=True)
        try:
            return await reader.read(position.entry_id, position.entry_id)
        finally:
            await reader.close()

    def _fetched(self, position: SchemaPosition, done: asyncio.Task[StoredSchema]) -> None:
        del self._reading[position]
        if not done.cancelled():
            done.exception()  # Seen, even if every reader has given up.

    async def _write_ledger(self, schema_id: str, data: bytes) -> tuple[int, int]:
        """A new ledger with one entry; its id and the entry's."""
        custom_metadata = {"application": b"pulsar", "component": b"schema", "pulsar/schemaId": schema_id.encode()}
        listener = _Append()
        writer = await self._ledgers.create(replace(self._options, custom_metadata=custom_metadata), listener)
        try:
            entry_id = writer.append([data])
            await listener.outcome
        except MagnetarError:
            await self._discard(writer.ledger_id)
            raise
        try:
            await writer.close()
        except MagnetarError as error:
            # The entry is on its quorum; the first reader closes the ledger.
            logger.warning("ledger %d of schema %s was left open: %s", writer.ledger_id, schema_id, error)
        return writer.ledger_id, entry_id

    async def _discard(self, ledger_id: int) -> None:
        try:
            await self._ledgers.delete(ledger_id)
        except MagnetarError as error:
            logger.warning("ledger %d of a schema was not deleted: %s", ledger_id, error)

    def _doubt(self, schema_id: str, ledger_ids: Iterable[int]) -> None:
        """The locator may name these or not; the next write that is sure tells."""
        self._in_doubt[schema_id] = self._in_doubt.pop(schema_id, set()).union(ledger_ids)
        if len(self._in_doubt) > _IN_DOUBT_MAX:
            forgotten = next(iter(self._in_doubt))
            self._unsure_deletions.discard(forgotten)
            logger.warning(
                "ledgers of schema %s may be left over: %s", forgotten, sorted(self._in_doubt.pop(forgotten))
            )

    async def _settle(self, schema_id: str, positions: Iterable[SchemaPosition]) -> None:
        """The locator names these positions for sure: what was in doubt beside them goes."""
        self._unsure_deletions.discard(schema_id)
        doubt = self._in_doubt.pop(schema_id, set())
        for ledger_id in sorted(doubt.difference(position.ledger_id for position in positions)):
            await self._discard(ledger_id)

    def _forget(self, schema_id: str) -> None:
        self._changes += 1
        self._locators.discard(schema_id)

    def _changed(self, notification: Notification) -> None:
        if notification.path.startswith(SCHEMAS_PATH):
            self._forget(notification.path[len(SCHEMAS_PATH) + 1 :])

    def _session_changed(self, event: SessionEvent) -> None:
        """Notifications may have been missed."""
        if event is not SessionEvent.CONNECTION_LOST:
            self._changes += 1
            self._locators.clear()


def _path(schema_id: str) -> str:
    return f"{SCHEMAS_PATH}/{schema_id}"
