"""The transaction coordinators of one broker: run while it owns the bundle of their partition.

Pulsar: `TransactionMetadataStoreService`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Final

from magnetar.broker.bundles.lookup import Lookup
from magnetar.broker.bundles.lookup_answers import Connect
from magnetar.broker.bundles.owned_bundles import OwnedBundle
from magnetar.broker.bundles.ownership import BundleOwnership
from magnetar.broker.resources import Resources
from magnetar.broker.slices import TimeSlice
from magnetar.broker.states import CoordinatorState
from magnetar.broker.transactions.api import (
    Asker,
    CoordinatorCounts,
    CoordinatorStats,
    TransactionDetails,
    coordinator_not_found,
)
from magnetar.broker.transactions.coordinator import CoordinatorParts, TransactionCoordinator
from magnetar.broker.transactions.coordinator_log import CoordinatorLog
from magnetar.broker.transactions.coordinator_table import Transaction
from magnetar.broker.transactions.names import COORDINATORS_TOPIC, TransactionId, coordinator_topic
from magnetar.core.errors import MagnetarError
from magnetar.managed.errors import ManagedLedgerFenced
from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.wire.pulsar.errors import PulsarError, ServerError

logger: Final = logging.getLogger(__name__)

OPEN_AGAIN_SECONDS: Final = 1.0
"""After a log could not be written: between attempts to read it anew, for as long as the bundle is this broker's.
Transactions that are decided must be ended though no client may ask again."""


class TransactionCoordinators:
    """Opens coordinators as clients connect to them, and lets go of them with their bundles."""

    def __init__(
        self, lookup: Lookup, resources: Resources, ledgers: ManagedLedgerFactory, parts: CoordinatorParts
    ) -> None:
        self._lookup = lookup
        self._ownership: BundleOwnership = lookup.ownership
        self._resources = resources
        self._ledgers = ledgers
        self._parts = parts
        self._open: dict[int, tuple[TransactionCoordinator, object]] = {}
        """With the tenure that each was opened in."""
        self._opening: dict[int, asyncio.Task[None]] = {}
        self._reopening: set[int] = set()
        self._closed = False

    # --- what clients ask for

    async def connect(self, coordinator: int) -> None:
        """Run a coordinator whose partition this broker owns; returns when its log is read. `PulsarError`, and what
        managed ledgers raise."""
        if self._closed:
            raise PulsarError(ServerError.SERVICE_NOT_READY, "The broker is shutting down")
        opening = self._opening.get(coordinator)
        if opening is None:
            served = self._serving(coordinator)
            if served is not None and served.state is CoordinatorState.READY:
                # Without a look at the store: this says nothing of transactions, and what is asked next is looked at.
                return
            opening = self._opening[coordinator] = asyncio.get_running_loop().create_task(self._take(coordinator))
            opening.add_done_callback(lambda task: self._opened(coordinator, task))
        # A client that gives up must not take the coordinator away from the others that wait for it.
        await asyncio.shield(opening)

    async def new_transaction(self, coordinator: int, timeout_ms: int, asker: Asker) -> TransactionId:
        """Begin one, durably. It is aborted unless it is ended within the time."""
        return await self.get(coordinator).new_transaction(timeout_ms, asker)

    async def add_partitions(self, transaction: TransactionId, asker: Asker, partitions: Collection[str]) -> None:
        """Topics that have to hear how it ends, durably."""
        await self.get(transaction.coordinator).add_partitions(transaction.sequence, asker, partitions)

    async def add_subscriptions(
        self, transaction: TransactionId, asker: Asker, subscriptions: Collection[tuple[str, str]]
    ) -> None:
        """(topic, subscription) that have to hear how it ends, durably."""
        await self.get(transaction.coordinator).add_subscriptions(transaction.sequence, asker, subscriptions)

    async def end(self, transaction: TransactionId, asker: Asker, *, commit: bool) -> None:
        """Returns when all that take part have heard, and that it is over is durable."""
        await self.get(transaction.coordinator).end(transaction.sequence, asker, commit=commit)

    def get(self, coordinator: int) -> TransactionCoordinator:
        """One that this broker runs. `PulsarError`"""
        found = self._serving(coordinator)
        if found is None:
            raise coordinator_not_found(coordinator)
        return found

    # --- what administrators ask for

    async def stats(self, coordinator: int) -> CoordinatorStats:
        """How it stands, also while it is opened. `PulsarError`"""
        found = self._open.get(coordinator)
        if found is None:
            raise coordinator_not_found(coordinator)
        one = found[0]
        if one.state is not CoordinatorState.INITIALIZING:
            await one.check_owner()
        return CoordinatorStats(
            state=one.state.value,
            last_sequence=one.table.last_sequence,
            low_water_mark=one.table.low_water_mark,
            open_transactions=len(one.table),
            recovery_started_ms=one.recovery_started_ms,
            recovery_ended_ms=one.recovery_ended_ms,
        )

    def counts(self) -> list[CoordinatorCounts]:
        """The counters of each coordinator that runs here."""
        now_ms = self._parts.clock.now_ms()
        return [
            CoordinatorCounts(
                coordinator=one.id,
                active=len(one.table),
                created=one.counters.created,
                committed=one.counters.committed,
                aborted=one.counters.aborted,
                timed_out=one.counters.timed_out,
                appended=one.counters.appended,
                latencies=one.counters.latencies(now_ms),
            )
            for one, _ in self._open.values()
        ]

    async def log_of(self, coordinator: int) -> ManagedLedger:
        """Where its log is. `PulsarError`"""
        return (await self._checked(coordinator)).log.ledger

    async def newest(self, coordinator: int) -> int:
        """The newest id that it ever gave, -1 for none. `PulsarError`"""
        return (await self._checked(coordinator)).table.last_sequence

    async def details(self, transaction: TransactionId) -> TransactionDetails:
        """One transaction. `PulsarError`"""
        return _details((await self._checked(transaction.coordinator)).table.get(transaction.sequence))

    async def slow(self, coordinator: int, timeout_ms: int) -> list[TransactionDetails]:
        """Its transactions that were given a longer time than this, whatever of it is over. `PulsarError`"""
        turn = TimeSlice()
        found: list[TransactionDetails] = []
        for transaction in (await self._checked(coordinator)).table:
            if turn.over:
                await turn.pause()
            if transaction.timeout_ms > timeout_ms:
                found.append(_details(transaction))
        return found

    async def _checked(self, coordinator: int) -> TransactionCoordinator:
        """One that this broker still runs, by the word of the store: what its memory says holds."""
        found = self.get(coordinator)
        await found.check_owner()
        return found

    # --- bundles

    async def close_in(self, owned: OwnedBundle) -> None:
        """Before the bundle is released: close its coordinators. None is opened any more; one that is being opened now
        would take the log away from the next owner."""
        opening = [
            task for id_, task in self._opening.items() if self._ownership.serving(coordinator_topic(id_)) is owned
        ]
        if opening:
            await asyncio.wait(opening)
        for coordinator in self._of([owned]):
            await self._close(coordinator)

    async def abandon_in(self, bundles: Collection[OwnedBundle]) -> None:
        """Somebody else may own these: let go of their coordinators."""
        for coordinator in self._of(bundles):
            await self._abandon(coordinator)

    async def close(self) -> None:
        """Close all; run none from now on."""
        self._closed = True
        if self._opening:
            await asyncio.wait(list(self._opening.values()))
        for coordinator, _ in list(self._open.values()):
            await self._close(coordinator)

    def _of(self, bundles: Collection[OwnedBundle]) -> list[TransactionCoordinator]:
        return [
            coordinator
            for coordinator, _ in list(self._open.values())
            if self._ownership.serving(coordinator_topic(coordinator.id)) in bundles
        ]

    # --- opening

    def _serving(self, coordinator: int) -> TransactionCoordinator | None:
        """One that is open, if the bundle is ours without a break since it was opened."""
        found = self._open.get(coordinator)
        if found is None:
            return None
        owned = self._ownership.serving(coordinator_topic(coordinator))
        return found[0] if owned is not None and owned.active and owned.tenure is found[1] else None

    async def _take(self, coordinator: int) -> None:
        partitions = await self._resources.partitions(COORDINATORS_TOPIC)
        if partitions is None or coordinator >= partitions:
            raise coordinator_not_found(coordinator, f"there are {partitions or 0}")
        topic = coordinator_topic(coordinator)
        owned = self._ownership.serving(topic)
        if owned is None:
            answer = await self._lookup.find(topic)
            owned = self._ownership.serving(topic)
            if owned is None or not isinstance(answer, Connect) or not answer.ours:
                raise _not_served(coordinator)
        # By the word of the store: whoever was paused would take the log away from the broker that owns it now.
        if not owned.active or not await self._ownership.still_ours(owned):
            raise _not_served(coordinator)
        left = self._open.get(coordinator)
        if left is not None:
            await self._abandon(left[0])
        await self._read(coordinator, owned)

    async def _read(self, coordinator: int, owned: OwnedBundle) -> None:
        tenure = owned.tenure
        log = await CoordinatorLog.open(self._ledgers, coordinator, self._parts.log_limits, self._parts.call_later)
        opened = TransactionCoordinator(coordinator, log, self._parts, self._failed)
        self._open[coordinator] = opened, tenure
        try:
            await opened.recover()
            self._check_served(opened)
        except BaseException:
            await asyncio.shield(self._abandon(opened))
            raise
        seconds = (opened.recovery_ended_ms - opened.recovery_started_ms) / 1000
        logger.info("transaction coordinator %d runs here, read in %.3f s", coordinator, seconds)

    def _check_served(self, opened: TransactionCoordinator) -> None:
        """While its log was read, the bundle may have gone."""
        if self._serving(opened.id) is not opened or self._closed:
            raise _not_served(opened.id)

    def _opened(self, coordinator: int, task: asyncio.Task[None]) -> None:
        del self._opening[coordinator]
        if not task.cancelled() and (error := task.exception()) is not None:  # Looked at: nobody may wait for it.
            logger.info("transaction coordinator %d is not opened: %s", coordinator, error)

    # --- letting go

    async def _close(self, coordinator: TransactionCoordinator) -> None:
        if self._forget(coordinator):
            await coordinator.close()

    async def _abandon(self, coordinator: TransactionCoordinator) -> None:
        if self._forget(coordinator):
            await coordinator.abandon()

    def _forget(self, coordinator: TransactionCoordinator) -> bool:
        found = self._open.get(coordinator.id)
        if found is None or found[0] is not coordinator:
            return False
        del self._open[coordinator.id]
        return True

    def _failed(self, coordinator: TransactionCoordinator, error: MagnetarError) -> None:
        logger.warning("transaction coordinator %d cannot write its log, letting go: %s", coordinator.id, error)
        self._parts.spawn(self._read_anew(coordinator, error))

    async def _read_anew(self, failed: TransactionCoordinator, error: MagnetarError) -> None:
        """For as long as the bundle is this broker's; what is decided must be ended, though no client may ask again."""
        await self._abandon(failed)
        coordinator, topic = failed.id, coordinator_topic(failed.id)
        if coordinator in self._reopening:
            return
        self._reopening.add(coordinator)
        # Whoever fenced it either owns the bundle, or does not know yet that it lost it.
        in_doubt = isinstance(error, ManagedLedgerFenced)
        try:
            while not self._closed and coordinator not in self._open:
                owned = self._ownership.serving(topic)
                if owned is None or not owned.active:
                    return
                if await self._try_again(coordinator, owned if in_doubt else None):
                    return
                await asyncio.sleep(OPEN_AGAIN_SECONDS)
        finally:
            self._reopening.discard(coordinator)

    async def _try_again(self, coordinator: int, in_doubt: OwnedBundle | None) -> bool:
        try:
            if in_doubt is None or await self._ownership.still_ours(in_doubt):
                await self.connect(coordinator)
                return True
        except MagnetarError as error:
            logger.info("transaction coordinator %d is not read yet: %s", coordinator, error)
        return False


def _details(transaction: Transaction) -> TransactionDetails:
    return TransactionDetails(
        id=transaction.id,
        state=transaction.state.name,
        started_ms=transaction.started_ms,
        timeout_ms=transaction.timeout_ms,
        owner=transaction.owner,
        partitions=tuple(transaction.partitions),
        subscriptions=tuple(transaction.subscriptions),
    )


def _not_served(coordinator: int) -> PulsarError:
    return PulsarError(
        ServerError.SERVICE_NOT_READY,
        f"The bundle of transaction coordinator {coordinator} is not served by this broker, please redo the lookup",
    )
