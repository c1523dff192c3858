"""Transaction coordinators as sessions and the admin API know them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from magnetar.broker.bundles.guests import BundleGuests
from magnetar.broker.transactions.names import TransactionId
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.wire.pulsar.errors import PulsarError, ServerError

NOT_ENABLED: Final = "Transactions are not enabled."
"""The error text for clients of a broker that is set up without transactions (Pulsar `ServerCnx`)."""


class Asker(NamedTuple):
    """On whose behalf a transaction is changed."""

    role: str
    """Empty where nobody has to say who he is."""
    super_user: bool


class EndedTransaction(NamedTuple):
    """The end of a transaction, as topics and subscriptions are told it."""

    id: TransactionId
    commit: bool
    """False: it is aborted."""
    low_water_mark: int
    """The coordinator's last id before its oldest transaction that is not over, perhaps -1; 0 when there is none."""


class Participants(Protocol):
    """The topics and subscriptions of transactions, wherever they are served.

    They may be told twice, also by two coordinators of which one does not know yet that the other has replaced it.
    An `Unavailable` is worth another try soon, a `PulsarError` according to its code."""

    async def end_on_partition(self, ended: EndedTransaction, topic: str) -> None:
        """Returns when the topic has made the messages visible, or hidden them for good; also when it is gone."""
        ...

    async def end_on_subscription(self, ended: EndedTransaction, topic: str, subscription: str) -> None:
        """Returns when the subscription's acknowledgements count, or are taken back; also when it is gone."""
        ...


class CoordinatorStats(NamedTuple):
    """One coordinator, as administrators see it."""

    state: str
    last_sequence: int
    """The newest id, -1 for none."""
    low_water_mark: int
    open_transactions: int
    """Those that are not over."""
    recovery_started_ms: int
    recovery_ended_ms: int
    """0 while its log is being read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorCounts:
    """The counters of one coordinator since it was opened."""

    coordinator: int
    active: int
    """Transactions that are not over."""
    created: int
    committed: int
    aborted: int
    timed_out: int
    appended: int
    """Records of its log."""
    latencies: tuple[int, ...]
    """Commits of the last whole minute, by bucket of `LATENCY_BOUNDS_MS` and one more."""


class TransactionDetails(NamedTuple):
    """One transaction that is not over, as administrators see it."""

    id: TransactionId
    state: str
    started_ms: int
    timeout_ms: int
    owner: str
    """Empty where nobody has to say who he is."""
    partitions: tuple[str, ...]
    subscriptions: tuple[tuple[str, str], ...]
    """(topic, subscription)."""


class Coordinators(Protocol):
    """The coordinators that this broker runs; ids as on the wire. All raise `PulsarError`, and what is `Unavailable`.

    TRANSACTION_COORDINATOR_NOT_FOUND: the client looks the coordinator up and connects again."""

    async def connect(self, coordinator: int) -> None:
        """Run a coordinator whose partition this broker owns."""
        ...

    async def new_transaction(self, coordinator: int, timeout_ms: int, asker: Asker) -> TransactionId:
        """Begin one, durably. It is aborted unless it is ended within the time."""
        ...

    async def add_partitions(self, transaction: TransactionId, asker: Asker, partitions: Collection[str]) -> None:
        """Topics that have to hear how it ends, durably."""
        ...

    async def add_subscriptions(
        self, transaction: TransactionId, asker: Asker, subscriptions: Collection[tuple[str, str]]
    ) -> None:
        """(topic, subscription) that have to hear how it ends, durably."""
        ...

    async def end(self, transaction: TransactionId, asker: Asker, *, commit: bool) -> None:
        """Returns when all that take part have heard, and that it is over is durable."""
        ...


class CoordinatorService(Coordinators, BundleGuests, Protocol):
    """All that a broker knows of its coordinators. What is asked of one that it does not run: TRANSACTION_COORDINATOR_
    NOT_FOUND; of a transaction that is not there: TRANSACTION_NOT_FOUND."""

    async def stats(self, coordinator: int) -> CoordinatorStats:
        """How it stands."""
        ...

    def counts(self) -> list[CoordinatorCounts]:
        """The counters of each coordinator that this broker runs."""
        ...

    async def log_of(self, coordinator: int) -> ManagedLedger:
        """Where its log is."""
        ...

    async def newest(self, coordinator: int) -> int:
        """The newest id that it ever gave, -1 for none."""
        ...

    async def details(self, transaction: TransactionId) -> TransactionDetails:
        """One transaction."""
        ...

    async def slow(self, coordinator: int, timeout_ms: int) -> list[TransactionDetails]:
        """Its transactions that were given a longer time than this, whatever of it is over, as Apache's."""
        ...

    async def close(self) -> None:
        """Run none from now on, and store what there is to store."""
        ...


def coordinator_not_found(coordinator: int, why: str = "") -> PulsarError:
    """The client is to look the coordinator up again."""
    text = f"Transaction coordinator {coordinator} not found" + (f": {why}" if why else "")
    return PulsarError(ServerError.TRANSACTION_COORDINATOR_NOT_FOUND, text)
