"""A tree of metadata, ledgers, and owners of one topic that come, die, or live on without knowing that they are not
owners any more."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator
from typing import Final
from uuid import UUID

from magnetar.broker.settings.policies import PolicySettings
from magnetar.broker.topics.deduplication import CURSOR_NAME, Deduplication, open_deduplication
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.managed.info_codec import decode_cursor_info, decode_ledger_info
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.offload.context import at_bookies
from magnetar.managed.paths import ledger_path
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.states import ManagedLedgerState
from magnetar.metadata.faulty import FaultyStore, Request, RequestFate
from magnetar.metadata.memory import MemoryMetadataStore, MemoryTree
from magnetar.metadata.store import MetadataStore
from magnetar.sim.trace import Trace
from magnetar.sim.virtual_time import LoopClock
from magnetar.tiered.policy import NO_OFFLOAD, OffloadPolicy
from magnetar.wire.pulsar.batch import build_message
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import MessageMetadata

from e2e.managed_histories.parameters import Parameters
from e2e.managed_histories.promises import CursorView, Message, Promises, TopicView
from e2e.managed_histories.storage import LedgersInMemory, LedgersOnBookies, MortalClient, Storage
from e2e.managed_histories.tiered import STORE, DeletionWitness, Objects, OwnersStore, WatchedLedgers, offloaders_of

NAME: Final = "public/default/persistent/topic"

OPENING_ATTEMPTS_MAX: Final = 40
OPENING_SECONDS_MAX: Final = 300.0
CLOSING_SECONDS_MAX: Final = 60.0
"""As a broker that unloads a topic: then it lets go, as if it had died."""
LOOKS_AT_OBJECTS: Final = 0.15
"""Changes in tiered storage after which a fresh owner looks."""
UNSURE_WRITES: Final = (RequestFate.REFUSED, RequestFate.LOST, RequestFate.LATE)


def payload_of(message: Message) -> bytes:
    """headersAndPayload as a producer sends them."""
    metadata = MessageMetadata(producer_name=message[0], sequence_id=message[1], publish_time=1)
    return build_message(metadata, b"%s %d" % (message[0].encode(), message[1]))


class World:
    """What outlives owners."""

    def __init__(self, parameters: Parameters, trace: Trace) -> None:
        self.parameters = parameters
        self.trace = trace
        self.rng = random.Random(f"{parameters.seed} world")
        self.store = MemoryMetadataStore()
        self.storage: Storage = (
            LedgersOnBookies() if parameters.bookkeeper else LedgersInMemory(delay_seconds=parameters.append_seconds)
        )
        self.promises = Promises(parameters.trim, parameters.deduplication)
        self.owners: list[Owner] = []
        """All that are alive, the last one that opened the topic last."""
        self.dead: list[Owner] = []
        self.trouble = False
        """Whether the metadata store is in trouble."""
        self.healed = False
        self.violations: list[str] = []
        self.excused: set[int] = set()
        """Ledgers that may be left over: an owner died between making and naming them, or told of them."""
        self.looks: list[Look] = []
        self.objects = Objects()
        tiered = parameters.tiered
        lag_ms = None if tiered is None else tiered.deletion_lag_ms
        self.witness = DeletionWitness(self.store, NAME, self.objects, LoopClock().now_ms, lag_ms)
        self.tiered_rng = random.Random(f"{parameters.seed} tiered")
        self.objects.on_change = self._objects_change
        self.objects.before_deletion = self.witness.object_goes

    def note(self, who: str, what: str) -> None:
        """Something happened."""
        self.trace.note(who, what)

    def violated(self, what: str) -> None:
        """A promise is broken."""
        self.violations.append(what)
        self.trace.note("VIOLATION", what)

    def fate(self, verb: str, path: str) -> RequestFate:
        """What becomes of a request to the metadata store."""
        del path
        parameters, rng = self.parameters, self.rng
        share = parameters.unsure_share if self.trouble else parameters.quiet_share
        if self.healed or rng.random() >= share:
            return RequestFate.DONE
        return rng.choice(UNSURE_WRITES) if verb not in ("get", "children", "exists") else RequestFate.REFUSED

    def look_later(self, why: str) -> None:
        """Keep all as it is, to see afterwards what a fresh owner would find."""
        requests = [request for owner in self.owners + self.dead for request in owner.session.late_writes]
        self.looks.append(
            Look(
                why, self.store.copy_of_tree(), self.storage.copy(), self.promises.copy(), requests, self.objects.copy()
            )
        )

    def _objects_change(self, what: str) -> None:
        self.note("objects", what)
        if self.tiered_rng.random() < LOOKS_AT_OBJECTS and not self.witness.deleting:
            self.look_later(what)

    async def named(self) -> set[int]:
        """The ledgers that some node names."""
        return await named_ledgers(self.store)

    async def heal(self) -> None:
        """Nothing fails any more, and what was late has come."""
        self.healed, self.trouble, self.objects.trouble = True, False, False
        self.storage.heal()
        await asyncio.sleep(max(60.0, self.parameters.late_seconds))


async def named_ledgers(store: MetadataStore) -> set[int]:
    """What the topic's nodes name, without what is in tiered storage alone."""
    found: set[int] = set()
    node = await store.get(ledger_path(NAME))
    if node is not None:
        found.update(record.ledger_id for record in decode_ledger_info(node.value).records if at_bookies(record))
    for child in await store.children(ledger_path(NAME)):
        cursor = await store.get(f"{ledger_path(NAME)}/{child}")
        if cursor is not None:
            found.add(decode_cursor_info(cursor.value).cursorsLedgerId)
    return found - {-1}


class Owner:
    """A process that has opened the topic, or tries to."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.name = f"owner{number}"
        parameters = world.parameters
        rng = random.Random(f"{parameters.seed} {self.name}")
        clock = LoopClock()
        delay = parameters.delay_seconds
        self.session = FaultyStore(
            world.store.another_session(),
            world.fate,
            (lambda: rng.random() * delay) if delay else None,
            parameters.late_seconds,
        )
        ledgers = WatchedLedgers(world.storage.client(self.session, clock, rng), world.witness)
        self.client = MortalClient(ledgers, self._note, world.excused.add)
        self.clock = clock
        self.objects = OwnersStore(world.objects, parameters.tiered, world.tiered_rng)
        self.factory = ManagedLedgerFactory(
            self.session,
            self.client,
            clock,
            asyncio.get_running_loop(),
            settings=parameters.ledger_settings(),
            offloaders=offloaders_of(self.objects, world.tiered_rng),
        )
        self.ledger: ManagedLedger | None = None
        self.deduplication: Deduplication | None = None
        self.contended = bool(world.owners) or any(each.session.late_writes for each in world.dead)
        """Whether anybody else wrote since it began: then it may be fenced."""
        for other in world.owners:
            other.contended = True

    @property
    def usable(self) -> bool:
        """Whether it still takes itself for the owner."""
        return self.ledger is not None and self.ledger.state not in (
            ManagedLedgerState.FENCED,
            ManagedLedgerState.CLOSED,
        )

    async def open(self) -> bool:
        """Open the topic, and try again for a while if that fails. Whether it is open."""
        world = self.world
        checked: ManagedLedger | None = None
        for _ in range(OPENING_ATTEMPTS_MAX):
            before = world.promises.copy()
            try:
                async with asyncio.timeout(OPENING_SECONDS_MAX):
                    ledger = await self.factory.open(NAME)
                    if ledger is not checked:
                        # Later a former owner may have given receipts that this one has not loaded.
                        self._check(before, ledger)
                        checked = ledger
                    if world.parameters.deduplication:
                        settings = PolicySettings(deduplication_snapshot_entries=world.parameters.snapshot_entries)
                        self.deduplication = await open_deduplication(ledger, settings, self.clock)
            except (MagnetarError, TimeoutError) as error:
                world.note(self.name, f"does not open: {type(error).__name__}")
                world.trace.remark(self.name, repr(error))
                await asyncio.sleep(1.0)
                continue
            self.ledger = ledger
            world.note(self.name, f"opens with {sorted(ledger.cursors)}")
            return True
        return False

    def check_fence(self, error: MagnetarError | TimeoutError | None) -> None:
        """A sole owner is never fenced."""
        fenced = type(error).__name__ == "ManagedLedgerFenced"
        if self.ledger is not None and self.ledger.state is ManagedLedgerState.FENCED:
            fenced = True
        if fenced and not self.contended:
            self.world.violated(f"{self.name} is fenced, and is the only owner: {error!r}")
            self.contended = True

    def cursor_view(self, cursor: Cursor) -> CursorView:
        """What it has in memory."""
        return cursor_view(cursor, self.world.promises.published)

    async def kill(self) -> None:
        """It dies; what it has asked for and what is under way may still happen."""
        world = self.world
        self.session.end()
        self.client.end()
        self.objects.end()
        if self.contended:
            # Another owner may have removed what this one has begun, before it has written it.
            world.objects.excused |= self.objects.written
        world.owners.remove(self)
        world.dead.append(self)
        stored = await world.storage.stored(world.store)
        named = await world.named()
        world.excused |= stored - named
        if self.session.late_writes:
            copied = MemoryMetadataStore(world.store.copy_of_tree())
            await apply_all(self.session.late_writes, copied)
            world.excused |= named ^ await named_ledgers(copied)
            world.excused |= await world.storage.stored(copied) - stored
        world.note(self.name, "dies")

    async def close(self) -> None:
        """An orderly end."""
        try:
            async with asyncio.timeout(CLOSING_SECONDS_MAX):
                await self.factory.close()
                await self.client.close()
        except TimeoutError:
            if self.world.healed:
                self.world.violated(f"{self.name} does not close")
            else:
                await self.kill()
                return
        if self in self.world.owners:
            self.world.owners.remove(self)
            self.world.dead.append(self)
        self.world.note(self.name, "is closed")

    def _note(self, what: str) -> None:
        self.world.note(self.name, what)

    def _check(self, before: Promises, ledger: ManagedLedger) -> None:
        """Against what was promised before it began, as others may be at work meanwhile."""
        now = self.world.promises
        for name, promised in before.subscriptions.items():
            if now.subscriptions[name].epoch == promised.epoch and promised.exists and not promised.busy:
                cursor = ledger.cursors.get(name)
                if cursor is None:
                    self.world.violated(f"{self.name} does not find subscription {name}")
                    continue
                view = self.cursor_view(cursor)
                forgotten = sorted(each for each in promised.sure - view.acknowledged if ledger.ledgers.contains(each))
                if forgotten:
                    self.world.violated(f"{self.name}: subscription {name} has forgotten {forgotten}")


def cursor_view(cursor: Cursor, positions: dict[Position, Message]) -> CursorView:
    """What a cursor has in memory about these."""
    partial = {}
    for position, left in (cursor.acks.partial or {}).items():
        if not cursor.is_acknowledged(position):
            partial[position] = left & 0xFF
    return CursorView(
        frozenset(each for each in positions if cursor.is_acknowledged(each)), partial, dict(cursor.cursor_properties)
    )


class Look:
    """The world as it was when somebody was promised something."""

    def __init__(
        self,
        why: str,
        tree: MemoryTree,
        storage: Storage,
        promises: Promises,
        late: list[Request[object]],
        objects: Objects,
    ) -> None:
        self.why = why
        self._tree = tree
        self._storage = storage
        self._promises = promises
        self._late = late
        self._objects = objects

    async def broken(self) -> list[str]:
        """What a fresh owner would miss, whether or not what is late happens before it comes."""
        broken = await self._broken(late=False)
        if not broken and self._late:
            broken = [f"{text} (once late writes have come)" for text in await self._broken(late=True)]
        return [f"at {self.why}: {text}" for text in broken]

    async def _broken(self, *, late: bool) -> list[str]:
        store = MemoryMetadataStore(self._tree.copy())
        if late:
            await apply_all(self._late, store)
        try:
            view = await view_of_fresh_owner(store, self._storage.copy(), self._promises, self._objects.copy())
        except MagnetarError as error:
            return [f"a fresh owner cannot open the topic: {error!r}"]
        return self._promises.broken_by(view)


async def apply_all(requests: list[Request[object]], store: MetadataStore) -> None:
    """Have late writes happen in a copy."""
    for request in requests:
        with contextlib.suppress(MagnetarError):
            await request(store)


async def view_of_fresh_owner(
    store: MetadataStore, storage: Storage, promises: Promises, objects: Objects
) -> TopicView:
    """Open the topic and read all of it. The copy of the world is used up."""
    policy = OffloadPolicy(store=STORE, deletion_lag_ms=None) if objects.store.objects else NO_OFFLOAD
    settings = ManagedLedgerSettings(retention_time_ms=-1, retention_size_bytes=-1, offload=policy)
    clock = LoopClock()
    client = storage.client(store, clock, random.Random(1))
    offloaders = offloaders_of(OwnersStore(objects, None, random.Random(1)), random.Random(2))
    factory = ManagedLedgerFactory(
        store, client, clock, asyncio.get_running_loop(), settings=settings, offloaders=offloaders
    )
    ledger = await factory.open(NAME, create=False)
    entries = {position: message async for position, message in _all_entries(ledger)}
    cursors = {
        name: cursor_view(cursor, promises.published) for name, cursor in ledger.cursors.items() if name != CURSOR_NAME
    }
    snapshot = ledger.cursors.get(CURSOR_NAME)
    return TopicView(entries, cursors, dict(snapshot.properties) if snapshot is not None else {})


async def _all_entries(ledger: ManagedLedger) -> AsyncIterator[tuple[Position, Message]]:
    for record in ledger.ledgers.records():
        first = 0
        while first < record.entries:
            for entry in await ledger.readers.read(record.ledger_id, first, record.entries - 1):
                metadata = entry.metadata()
                yield entry.position, (metadata.producer_name, metadata.sequence_id)
                first += 1


class ToldLeftOver(logging.Handler):
    """Hears which ledgers owners tell to be left over, and of errors that nobody expected."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO if world.trace.kept else logging.WARNING)
        self._world = world
        self._logger = logging.getLogger("magnetar")
        self._before = (self._logger.level, self._logger.propagate)

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler.emit`."""
        text = record.getMessage()
        self._world.trace.remark(record.name, text)
        if "space is lost" in text or "its space lost" in text:
            assert isinstance(record.args, tuple)
            self._world.excused.update(each for each in record.args if isinstance(each, int))
        if "objects of %s may be left over" in record.msg and isinstance(record.args, tuple):
            self._world.objects.excused.update(each for each in record.args if isinstance(each, UUID))
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, MagnetarError):
            self._world.violated(f"unexpected: {text}: {error!r}")

    def __enter__(self) -> None:
        self._logger.addHandler(self)
        self._logger.setLevel(self.level)
        self._logger.propagate = False

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._before[0])
        self._logger.propagate = self._before[1]
