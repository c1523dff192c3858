"""The schema registry: which schemas a topic has, and whether another may join them.

Facts: Pulsar 4.0 SchemaRegistryServiceImpl, AbstractTopic.addSchema, `SchemaRegistryServiceWithSchemaDataValidator`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from magnetar.broker.schema.errors import IncompatibleSchema, NoSchema
from magnetar.broker.schema.judging import SchemaJudging
from magnetar.broker.schema.limits import SCHEMAS_OF_TOPIC_BYTES_MAX
from magnetar.broker.schema.locator import TOMBSTONE_HASH, Locator, SchemaPosition
from magnetar.broker.schema.schema_info import SchemaInfo, StoredSchema
from magnetar.broker.schema.storage import SchemaStorage
from magnetar.broker.schema.strategy import Strategy
from magnetar.core.clock import Clock, SystemClock
from magnetar.core.errors import Unavailable
from magnetar.ledger.api import EntryNotFound, LedgerNotFound, LedgerUnavailable
from magnetar.metadata.store import VersionConflict
from magnetar.net.places import Places
from magnetar.net.requests import Readings
from magnetar.wire.pulsar.enums import SchemaType

if TYPE_CHECKING:
    from magnetar.broker.schema.compatibility import SchemaFingerprints

FORCED_DELETE_VERSION: Final = -1
"""What a forced delete answers instead of a version, as Pulsar does."""

_ATTEMPTS_MAX: Final = 20
"""Each lost attempt means that another broker has changed the same schema; more than a few is not normal."""

_HISTORIES_AT_ONCE_MAX: Final = 8
"""Requests that look at all versions of a topic, which they hold in memory meanwhile."""

_HISTORIES_LATE_MAX: Final = 24
"""Beside them those of topics whose bookies have not answered for a while: 256 MiB with them at the very most."""

_JUDGED_BY_NEWEST: Final = frozenset({Strategy.BACKWARD, Strategy.FORWARD, Strategy.FORWARD_TRANSITIVE, Strategy.FULL})
"""Strategies under which a consumer only needs to read what the newest schema writes."""

logger: Final = logging.getLogger(__name__)


class SchemaRegistry:
    """Schemas by id (`<tenant>/<namespace>/<topic>`). Every method may raise `Unavailable` or a `LedgerError`."""

    def __init__(self, storage: SchemaStorage, clock: Clock | None = None) -> None:
        self._storage = storage
        self._clock = clock or SystemClock()
        self._judging = SchemaJudging()
        self._histories = Places(_HISTORIES_AT_ONCE_MAX, _HISTORIES_LATE_MAX)
        self._fingerprints: SchemaFingerprints | None = None
        self.readings = Readings()
        """For clients that ask for a schema."""
        self.unreadable_is_lost = False
        """What bookies cannot give now counts as lost for good (`schemaLedgerForceRecovery`)."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def get(self, schema_id: str, version: int | None = None) -> StoredSchema | None:
        """A version, or the newest; None when there is none or it was deleted."""
        located = await self._storage.locator(schema_id)
        live = () if located is None else located.live()
        if version is not None:
            if all(position.version < version for position in live):
                # Registered by another broker, perhaps, of which the store has not told us yet.
                located = await self._storage.locator(schema_id, fresh=True)
                live = () if located is None else located.live()
            live = tuple(position for position in live if position.version == version)
        for position in reversed(live):
            stored = await self._read(schema_id, position)
            if stored is not None:
                return None if stored.deleted else stored
        return None

    def get_now(self, schema_id: str, version: int | None = None) -> StoredSchema | None:
        """A version of a schema (None: the last one), from memory alone; None when what is kept does not say it."""
        located = self._storage.kept_locator(schema_id)
        for position in () if located is None else reversed(located.live()):
            if version is None or position.version == version:
                stored = self._storage.kept(position)
                return None if stored is None or stored.deleted else stored
        return None

    async def all_versions(self, schema_id: str) -> list[StoredSchema]:
        """The versions since the last delete, oldest first."""
        return await self._live(schema_id, await self._storage.locator(schema_id))

    async def locator(self, schema_id: str) -> Locator | None:
        """Where its versions are stored; None when it never had one."""
        return await self._storage.locator(schema_id)

    async def find_version(self, schema_id: str, schema: SchemaInfo) -> int | None:
        """The version with the same type and data, None when there is none."""
        located = await self._storage.locator(schema_id)
        wanted = schema.hash()
        for position in () if located is None else located.live():
            if position.hash == wanted:
                stored = await self._read(schema_id, position)
                if stored is not None and not stored.deleted and stored.schema.same_as(schema):
                    return stored.version
        return None

    async def put_if_absent(
        self,
        schema_id: str,
        schema: SchemaInfo,
        strategy: Strategy,
        *,
        allow_auto_update: bool = True,
        user: str = "",
    ) -> int:
        """The version of a schema; it is added when the topic has none like it and the strategy lets it in.

        Raises `InvalidSchemaData` and `IncompatibleSchema`. However many ask at once, and through whichever brokers,
        one schema gets one version."""
        known = await self.find_version(schema_id, schema)
        if known is not None:
            return known
        # Judging schemas takes modules that a broker without any need not load; so below.
        from magnetar.broker.schema.validation import validate

        await self._judging.run(len(schema.data), lambda: validate(schema))
        async with self._lock(schema_id):
            for _ in range(_ATTEMPTS_MAX):
                located = await self._storage.locator(schema_id, fresh=True)
                version = await self._version_of(schema_id, located, schema, strategy, allow_auto_update)
                if version is not None:
                    return version
                stored = StoredSchema(schema_id, 0, schema, user, self._clock.now_ms(), deleted=False)
                try:
                    return await self._storage.append(stored, schema.hash(), located)
                except VersionConflict:
                    logger.debug("schema %s was changed by another broker, looking again", schema_id)
        raise Unavailable(f"Schema of {schema_id} is being changed too often")

    async def _version_of(
        self, schema_id: str, located: Locator | None, schema: SchemaInfo, strategy: Strategy, allow_auto_update: bool
    ) -> int | None:
        """Which version a schema is; None: none yet, but it may be added. `IncompatibleSchema`."""
        place = await self._histories.take()
        try:
            with place:
                existing = await self._live(schema_id, located)
            index = await self._judge(schema, [stored.schema for stored in existing], strategy, allow_auto_update)
            return None if index is None else existing[index].version
        finally:
            place.leave()

    async def _judge(
        self, schema: SchemaInfo, existing: list[SchemaInfo], strategy: Strategy, allow_auto_update: bool
    ) -> int | None:
        """Where a schema stands among the existing ones, as an index; None when it may become a new version.
        `IncompatibleSchema`."""
        from magnetar.broker.schema.compatibility import SchemaFingerprints, require_compatible, same_schema

        fingerprints = self._fingerprints = self._fingerprints or SchemaFingerprints()
        size_bytes = len(schema.data) + sum(len(one.data) for one in existing)

        def judge() -> int | None:
            index = same_schema(schema, existing, fingerprints)
            if index is None and allow_auto_update:
                require_compatible(existing, schema, strategy)
            return index

        index = await self._judging.run(size_bytes, judge)
        if index is None:
            if not allow_auto_update:
                raise IncompatibleSchema("Schema not found and schema auto updating is disabled.")
            kept_bytes = sum(one.size_bytes for one in existing)
            if existing and kept_bytes + schema.size_bytes > SCHEMAS_OF_TOPIC_BYTES_MAX:
                raise IncompatibleSchema(
                    f"The topic has {len(existing)} schemas of {kept_bytes} bytes together; "
                    f"at most {SCHEMAS_OF_TOPIC_BYTES_MAX} are taken"
                )
        return index

    async def check_compatible(self, schema_id: str, schema: SchemaInfo, strategy: Strategy) -> None:
        """Whether `put_if_absent` would take a schema, without adding it. `InvalidSchemaData`, `IncompatibleSchema`."""
        from magnetar.broker.schema.compatibility import require_compatible
        from magnetar.broker.schema.validation import validate

        await self._judging.run(len(schema.data), lambda: validate(schema))
        await self._judged(schema_id, schema, strategy, require_compatible)

    async def is_compatible(self, schema_id: str, schema: SchemaInfo, strategy: Strategy) -> bool:
        """Whether a schema may be added; False where `check_compatible` raises `IncompatibleSchema`.
        `InvalidSchemaData`."""
        try:
            await self.check_compatible(schema_id, schema, strategy)
        except IncompatibleSchema:
            return False
        return True

    async def check_consumer(self, schema_id: str, schema: SchemaInfo, strategy: Strategy) -> None:
        """Whether a consumer with this schema can read the topic. `IncompatibleSchema`; `NoSchema` when it has none.

        Strategies that look at the newest schema only, and FORWARD_TRANSITIVE, become BACKWARD here."""
        if strategy is Strategy.ALWAYS_COMPATIBLE:
            return
        from magnetar.broker.schema.compatibility import check_all, check_newest

        newest = await self.get(schema_id)
        if newest is None:
            raise NoSchema("Topic does not have schema to check")
        if strategy in _JUDGED_BY_NEWEST:
            old = newest.schema
            size_bytes = 0 if old.same_as(schema) else len(old.data) + len(schema.data)
            await self._judging.run(size_bytes, lambda: check_newest(old, schema, Strategy.BACKWARD))
            return
        await self._judged(schema_id, schema, strategy, check_all)

    async def _judged(
        self,
        schema_id: str,
        schema: SchemaInfo,
        strategy: Strategy,
        judge: Callable[[list[SchemaInfo], SchemaInfo, Strategy], None],
    ) -> None:
        """Have a schema judged against those that the strategy looks at. `IncompatibleSchema`."""
        place = await self._histories.take()
        try:
            with place:
                existing = await self._judged_against(schema_id, strategy)
            size_bytes = len(schema.data) + sum(len(one.data) for one in existing)
            await self._judging.run(size_bytes, lambda: judge(existing, schema, strategy))
        finally:
            place.leave()

    async def _judged_against(self, schema_id: str, strategy: Strategy) -> list[SchemaInfo]:
        """The schemas that a strategy looks at, oldest first; one that is not transitive looks at the newest."""
        if strategy.transitive or strategy is Strategy.ALWAYS_INCOMPATIBLE:
            return [stored.schema for stored in await self.all_versions(schema_id)]
        newest = await self.get(schema_id)
        return [] if newest is None else [newest.schema]

    async def delete(self, schema_id: str, force: bool, user: str = "") -> int | None:
        """Delete a topic's schema: by a tombstone, whose version is returned, or with force for good, ledgers and all.

        Deleting twice changes nothing more; None when there was never one."""
        async with self._lock(schema_id):
            for _ in range(_ATTEMPTS_MAX):
                located = await self._storage.locator(schema_id, fresh=True)
                if located is None:
                    await self._storage.finish_deletion(schema_id)
                    return None
                if not force and located.newest.hash == TOMBSTONE_HASH:
                    return located.newest.version
                try:
                    if force:
                        await self._storage.delete(schema_id, located)
                        return FORCED_DELETE_VERSION
                    tombstone = StoredSchema(
                        schema_id, 0, SchemaInfo(SchemaType.NONE), user, self._clock.now_ms(), deleted=True
                    )
                    return await self._storage.append(tombstone, TOMBSTONE_HASH, located)
                except VersionConflict:
                    logger.debug("schema %s was changed by another broker, looking again", schema_id)
        raise Unavailable(f"Schema of {schema_id} is being changed too often")

    async def close(self) -> None:
        """Let go of the storage; the ledger client and the metadata store stay open."""
        await self._storage.close()

    async def _live(self, schema_id: str, located: Locator | None) -> list[StoredSchema]:
        """What can be read of the versions since the last delete, oldest first."""
        if located is None:
            return []
        read = await asyncio.gather(*(self._read(schema_id, position) for position in located.live()))
        live: list[StoredSchema] = []
        for stored in read:
            if stored is not None and stored.deleted:
                live.clear()
            elif stored is not None:
                live.append(stored)
        return live

    async def _read(self, schema_id: str, position: SchemaPosition) -> StoredSchema | None:
        """A version, or None when its ledger is gone: a lost schema must not keep a topic from getting a new one."""
        try:
            return await self._storage.read(position)
        except (LedgerNotFound, EntryNotFound, LedgerUnavailable) as error:
            if isinstance(error, LedgerUnavailable) and not self.unreadable_is_lost:
                raise
            logger.warning("version %d of schema %s is lost: %s", position.version, schema_id, error)
            return None

    def _lock(self, schema_id: str) -> asyncio.Lock:
        """One change of a schema at a time in this broker; the producers of a new topic all bring the same schema."""
        lock = self._locks.get(schema_id)
        if lock is None:
            lock = self._locks[schema_id] = asyncio.Lock()
        return lock
