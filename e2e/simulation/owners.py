"""Programs that own a managed ledger: they append, acknowledge and roll over, and take it from each other. Who has lost
it may not know yet, and goes on."""

from __future__ import annotations

import asyncio
import itertools
from typing import Final, cast

from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, Position
from magnetar.ledger.api import LedgerClient
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.errors import ManagedLedgerWriteFailed
from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.states import ManagedLedgerState

from e2e.simulation.cluster import PATIENCE_SECONDS, Client
from e2e.simulation.history import History
from e2e.simulation.parameters import Parameters
from e2e.simulation.topic_witness import CURSOR, TOPIC, TopicWitness

RETRY_SECONDS: Final = 0.2
ROLL_SECONDS_MAX: Final = 2.0
READ_BYTES_MAX: Final = 1 << 20


def topic_settings(parameters: Parameters) -> ManagedLedgerSettings:
    topic = parameters.topic
    kept = 0 if topic.trims else -1
    return ManagedLedgerSettings(
        ensemble_size=parameters.ensemble_size,
        write_quorum=parameters.write_quorum,
        ack_quorum=parameters.ack_quorum,
        digest_type=parameters.digest_type,
        password=b"secret" if parameters.seed % 3 == 0 else b"",
        max_entries_per_ledger=topic.entries_per_ledger,
        minimum_rollover_ms=0,
        retention_time_ms=kept,
        retention_size_bytes=kept,
        mark_delete_rate=topic.mark_delete_rate,
        cursor_ledger_entries_max=topic.cursor_ledger_entries,
        unacked_ranges_in_metadata_max=topic.ranges_in_node,
        persist_acks_as_long_array=topic.long_arrays,
    )


def new_factory(client: Client, parameters: Parameters) -> ManagedLedgerFactory:
    return ManagedLedgerFactory(
        client.store,
        cast(LedgerClient, client.client),
        client.clock,
        asyncio.get_running_loop(),
        settings=topic_settings(parameters),
    )


class Owner:
    """One host's program: it takes the topic over again and again, each time as another broker would."""

    def __init__(self, client: Client, topic: TopicWitness, parameters: Parameters, until_seconds: float) -> None:
        self._client = client
        self._chance = client.chance
        self._topic = topic
        self._parameters = parameters
        self._until_seconds = until_seconds
        self._lives = itertools.count()
        self._left = parameters.topic.entries // parameters.topic.owners

    async def run(self) -> None:
        """Until the time is over."""
        lives: list[asyncio.Task[None]] = []
        longest = self._parameters.active_seconds / 3
        while self._goes_on():
            lives.append(asyncio.create_task(self._live(f"{self._client.name}.{next(self._lives)}")))
            await asyncio.wait(lives[-1:], timeout=self._chance.uniform(0.2, longest))
            await asyncio.sleep(self._chance.uniform(0.02, longest))
        await asyncio.gather(*lives)

    def _goes_on(self) -> bool:
        return asyncio.get_running_loop().time() < self._until_seconds

    async def _live(self, name: str) -> None:
        """From a takeover until somebody else has taken over and we have noticed."""
        factory = new_factory(self._client, self._parameters)
        try:
            ledger = await factory.open(TOPIC)
            cursor = await ledger.open_cursor(CURSOR, EARLIEST)
        except MagnetarError:
            return
        patience = asyncio.get_running_loop().time() + self._chance.uniform(0.3, 2 * self._parameters.active_seconds)
        while (
            self._goes_on()
            and not cursor.closed
            and ledger.state not in (ManagedLedgerState.FENCED, ManagedLedgerState.CLOSED)
        ):
            await self._act(name, ledger, cursor)
            await asyncio.sleep(self._chance.expovariate(1 / self._parameters.topic.pause_seconds))
            if asyncio.get_running_loop().time() > patience:
                await self._leave(ledger)
                return

    async def _leave(self, ledger: ManagedLedger) -> None:
        if self._chance.random() < 0.5:
            await ledger.close()
        else:
            await ledger.abandon()

    async def _act(self, name: str, ledger: ManagedLedger, cursor: Cursor) -> None:
        kind = self._chance.random()
        if kind < 0.45:
            self._append(name, ledger)
        elif kind < 0.8:
            self._acknowledge(name, ledger, cursor)
        elif kind < 0.85:
            self._acknowledge_up_to(name, ledger, cursor)
        elif kind < 0.88:
            try:
                async with asyncio.timeout(ROLL_SECONDS_MAX):
                    await ledger.roll()
            except (TimeoutError, MagnetarError):
                return  # It goes on rolling, or somebody else has the topic.
        else:
            await self._read(name, cursor)

    def _append(self, name: str, ledger: ManagedLedger) -> None:
        count = min(self._left, self._chance.randint(1, 4))
        if count <= 0:
            return
        self._left -= count
        size = self._chance.randint(0, self._parameters.payload_bytes_max // 4)
        payloads = [f"{name} {self._left} {number}:".encode() + bytes(size) for number in range(count)]

        def done(error: MagnetarError | None, ledger_id: int, first_entry_id: int, context: object) -> None:
            if error is None:
                self._topic.appended(name, (ledger_id, first_entry_id), payloads)
            elif isinstance(error, ManagedLedgerWriteFailed):
                ledger.appends.ready_to_create_ledger()

        ledger.appends.append(payloads, done, None)

    def _acknowledge(self, name: str, ledger: ManagedLedger, cursor: Cursor) -> None:
        """Some of the entries that this owner could have delivered."""
        known = [
            each for each in self._topic.confirmed if ledger.ledgers.contains(each) and not cursor.is_acknowledged(each)
        ]
        positions = sorted(self._chance.sample(known, min(len(known), self._chance.randint(1, 4))))
        self._topic.acknowledged(positions)
        cursor.acknowledge(positions)
        self._ask_for_receipt(name, cursor, positions)

    def _acknowledge_up_to(self, name: str, ledger: ManagedLedger, cursor: Cursor) -> None:
        known = sorted(
            each for each in self._topic.confirmed if ledger.ledgers.contains(each) and each > cursor.mark_delete
        )
        if known:
            position = known[self._chance.randrange(1 + len(known) // 4)]
            self._topic.acknowledged_up_to(position)
            cursor.acknowledge_cumulative(position)
            self._ask_for_receipt(name, cursor, [position])

    def _ask_for_receipt(self, name: str, cursor: Cursor, positions: list[Position]) -> None:
        if self._chance.random() < 0.8:
            mark = cursor.mark_delete

            def done(error: MagnetarError | None) -> None:
                if error is None:
                    self._topic.receipt(name, positions, mark)

            cursor.persist(done)

    async def _read(self, name: str, cursor: Cursor) -> None:
        if self._chance.random() < 0.3:
            cursor.rewind()
        try:
            entries = await cursor.read(self._chance.randint(1, 20), READ_BYTES_MAX)
        except MagnetarError:
            return  # Not now. At the end everything must be there.
        for entry in entries:
            self._topic.delivered(name, entry.position, bytes(entry.data))


async def look_at_the_topic(client: Client, topic: TopicWitness, history: History, parameters: Parameters) -> None:
    """The next owner, when nothing is wrong any more: it must find everything."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_SECONDS
    error: MagnetarError | None = None
    while loop.time() < deadline:
        factory = new_factory(client, parameters)
        try:
            ledger = await factory.open(TOPIC)
            cursor = await ledger.open_cursor(CURSOR, EARLIEST)
            entries = []
            for ledger_id in list(ledger.ledgers.ids):
                first, count = 0, ledger.ledgers.entries_in(ledger_id)
                while first < count:
                    some = await ledger.readers.read(ledger_id, first, count - 1)
                    entries += some
                    first += len(some)
        except MagnetarError as failure:
            error = failure
            await asyncio.sleep(RETRY_SECONDS)
            continue
        topic.found_at_the_end({entry.position: bytes(entry.data) for entry in entries}, cursor)
        return
    history.stuck.append(f"the topic cannot be read at the end: {error!r}")
