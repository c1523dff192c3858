"""Replicators on a stage, for tests: a cursor in memory, a remote cluster that answers when told to, time by hand.

Nothing runs by itself: `settle` ends what is under way, `pass_time` moves the clock.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

from magnetar.broker.policies.model import EffectivePolicies
from magnetar.broker.replication.non_persistent_replicators import NonPersistentReplicator
from magnetar.broker.replication.outgoing import Outgoing, UnstoredOutgoing
from magnetar.broker.replication.replicator import Replicator
from magnetar.broker.replication.topic_replicators import TopicReplicators
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime
from magnetar.broker.subscriptions.visibility import Visibility
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.core.topic_name import TopicName

from broker.tests.subscription_stage import MemoryCursor, Reads, Timers, stored_message

STEP_MS: Final = 50
TOPIC: Final = TopicName.parse("persistent://public/default/t")


class StagedProducer:
    """A `RelayProducer`: it keeps what it is sent until it is told to give receipts."""

    by_position = True
    remote_address = "west:6650"

    def __init__(self, remote: StagedRemote, receiver: Any) -> None:
        self.closed = False
        self.waiting: dict[Position, Any] = {}
        self._remote = remote
        self._receiver = receiver

    @property
    def unanswered(self) -> int:
        return len(self.waiting)

    @property
    def unanswered_bytes(self) -> int:
        return sum(one.size_bytes for one in self.waiting.values())

    @property
    def oldest(self) -> Any:
        return next(iter(self.waiting.values()), None)

    async def open(self) -> None:
        if self._remote.refuses is not None:
            raise self._remote.refuses

    async def close(self) -> None:
        self.closed = True

    async def schema_version(self, schema: Any) -> bytes:
        self._remote.registered.append(schema)
        return self._remote.versions.pop(0)

    def send(self, entries: list[Any]) -> None:
        for one in entries:
            self.waiting[one.position] = one
        self._remote.sent += entries
        if self._remote.answers:
            self.answer(len(self.waiting))

    def answer(self, count: int) -> None:
        """Receipts for the first so many that have none."""
        stored = list(self.waiting)[:count]
        for position in stored:
            del self.waiting[position]
        if stored:
            self._receiver.relayed(stored)

    def lose(self, error: MagnetarError) -> None:
        """The connection ends; nobody knows what of the rest is stored."""
        self.waiting.clear()
        self._receiver.relay_ended(error)


class StagedRemote:
    """A `Remote`, and what arrives there."""

    def __init__(self) -> None:
        self.answers = True
        """Whether receipts come by themselves."""
        self.refuses: MagnetarError | None = None
        """What a producer meets that would open."""
        self.producers: list[StagedProducer] = []
        self.sent: list[Any] = []
        self.schemas: dict[bytes, Any] = {}
        """What this cluster knows, by version."""
        self.versions: list[bytes] = []
        """The versions that the remote gives next."""
        self.registered: list[Any] = []

    async def producer(self, receiver: Any) -> Any:
        self.producers.append(StagedProducer(self, receiver))
        return self.producers[-1]

    async def schema(self, version: bytes) -> Any:
        found = self.schemas[version]
        if isinstance(found, MagnetarError):
            raise found
        return found

    @property
    def entry_ids(self) -> list[int]:
        """Of what was sent, in this order, with what was sent again."""
        return [one.position[1] for one in self.sent]


class World:
    """The clock and what waits for it."""

    def __init__(self) -> None:
        self.timers = Timers()
        self.reads = Reads()
        self.runtime = SubscriptionRuntime(self.timers, self.reads.spawn, self.timers.call_later)

    def settle(self) -> None:
        """End all that needs no time."""
        while True:
            self.reads.finish()
            due = self.timers.due()
            if not due:
                return
            for timer in due:
                timer.callback()

    def pass_time(self, seconds: float) -> None:
        """Let time go by, in small steps."""
        for _ in range(round(seconds * 1000 / STEP_MS)):
            self.settle()
            self.timers.advance(STEP_MS)
        self.settle()


class Stage(World):
    """One replicator."""

    def __init__(self, *, window_entries_max: int = 1_000) -> None:
        super().__init__()
        self.cursor = MemoryCursor()
        self.remote = StagedRemote()
        self.visibility: Visibility | None = None
        cursor: Any = self.cursor
        self.replicator = Replicator(
            "replicator",
            cursor,
            Outgoing("east", "west"),
            self.remote,
            self.runtime,
            lambda: self.visibility,
            lambda: window_entries_max,
        )

    def publish(self, count: int = 1, payload: bytes = b"x", **fields: Any) -> None:
        """Store so many entries."""
        for _ in range(count):
            self.cursor.append(stored_message(payload, **{"sequence_id": len(self.cursor.entries), **fields}))
        self.replicator.wake()

    def begin(self) -> None:
        self.replicator.start()
        self.settle()

    @property
    def producer(self) -> StagedProducer:
        """The last one that was made."""
        return self.remote.producers[-1]


class UnstoredStage(World):
    """One replicator of a topic that stores nothing."""

    def __init__(self, *, window_entries_max: int = 1_000) -> None:
        super().__init__()
        self.remote = StagedRemote()
        self.replicator = NonPersistentReplicator(
            "replicator", UnstoredOutgoing("east", "west"), self.remote, self.runtime, lambda: window_entries_max
        )
        self.published = 0

    def begin(self) -> None:
        self.replicator.start()
        self.settle()

    def publish(self, count: int = 1, payload: bytes = b"x", **fields: Any) -> None:
        """One batch of so many messages, with sequence ids that go on."""
        first, self.published = self.published, self.published + count
        self.replicator.publish(
            [stored_message(payload, **{"sequence_id": number, **fields}) for number in range(first, first + count)]
        )

    @property
    def producer(self) -> StagedProducer:
        """The last one that was made."""
        return self.remote.producers[-1]

    @property
    def arrived(self) -> list[int]:
        """The sequence ids of what was sent, in this order."""
        return [one.sequence_id for one in self.remote.sent]


class MemoryLedger:
    """The cursors of one topic, and who hears of appended entries."""

    def __init__(self, *cursors: str) -> None:
        self.appends = SimpleNamespace(on_appended=[])
        self.cursors: dict[str, MemoryCursor] = {name: MemoryCursor() for name in cursors}
        self.opened: dict[str, Position] = {}
        """Where the cursors begin that were asked for."""
        self.deleted: list[str] = []

    async def open_cursor(self, name: str, start: Position) -> MemoryCursor:
        self.opened[name] = start
        return self.cursors.setdefault(name, MemoryCursor())

    def new_non_durable_cursor(self, name: str, start: Position) -> MemoryCursor:
        self.opened[name] = start
        return MemoryCursor()

    async def delete_cursor(self, name: str) -> None:
        self.deleted.append(name)
        del self.cursors[name]


class TopicStage(World):
    """The replicators of one topic, each with a remote of its own."""

    def __init__(self, *cursors: str, settings: BrokerSettings | None = None) -> None:
        super().__init__()
        self.settings = settings if settings is not None else BrokerSettings(cluster_name="east")
        self.remotes: dict[str, StagedRemote] = {}
        self.ledger = MemoryLedger(*cursors)

        ledger: Any = self.ledger
        self.world = self._world()
        self.replicators = TopicReplicators(self.world, TOPIC, ledger, lambda: None)

    def _world(self) -> Any:
        """What is needed of a `ReplicationWorld`."""

        async def ensure(topic: TopicName, cluster: str) -> None:
            del topic, cluster

        async def client(cluster: str) -> Any:
            remote = self.remotes.setdefault(cluster, StagedRemote())

            def relay(topic: TopicName, name: str, receiver: Any) -> Any:
                del topic, name
                remote.producers.append(StagedProducer(remote, receiver))
                return remote.producers[-1]

            return SimpleNamespace(relay=relay)

        return SimpleNamespace(
            runtime=self.runtime,
            settings=lambda: self.settings,
            partitions=SimpleNamespace(ensure=ensure),
            remotes=SimpleNamespace(client=client),
        )

    def follow(self, policies: EffectivePolicies, *group_limiters: Any) -> None:
        """These policies hold from now on."""
        self.replicators.follow(policies, group_limiters)
        self.settle()

    def publish(self, cluster: str, count: int) -> None:
        """Store so many entries that one cluster lacks."""
        cursor: Any = self.replicators.running[cluster].cursor
        for _ in range(count):
            cursor.append(stored_message(sequence_id=len(cursor.entries)))
        for wake in self.ledger.appends.on_appended:
            wake()
