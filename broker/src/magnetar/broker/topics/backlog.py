"""How large the backlog of a topic is, and how old: what its quotas and the expiry of its messages go by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from magnetar.broker.settings.policies import BacklogQuotaPolicy
from magnetar.core.errors import MagnetarError
from magnetar.wire.pulsar.errors import BadMetadata, PulsarError, ServerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar.broker.policies.broker_limits import BrokerLimits
    from magnetar.broker.policies.model import EffectivePolicies
    from magnetar.core.clock import Clock
    from magnetar.core.ids import Position
    from magnetar.managed.cursors.cursor import Cursor
    from magnetar.managed.entry import Entry
    from magnetar.managed.managed_ledger import ManagedLedger

FAILED_READS_MAX: Final = 5
"""Of one search: each may last as long as a bookie may take to answer, and other topics wait for their turn."""

CODES: Final = {
    BacklogQuotaPolicy.HOLD: ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR,
    BacklogQuotaPolicy.REFUSE: ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION,
}


class BackloggedTopic(Protocol):
    """A stored topic, as far as it matters here."""

    @property
    def ledger(self) -> ManagedLedger: ...
    @property
    def policies(self) -> EffectivePolicies: ...
    @property
    def limits(self) -> BrokerLimits: ...
    @property
    def clock(self) -> Clock: ...


def published_since(since_ms: int, *, unreadable: bool = False) -> Callable[[Entry], bool]:
    """Whether an entry was published at or after a time (ms since 1970); `unreadable`, when nobody can tell."""

    def is_fresh(entry: Entry) -> bool:
        try:
            return entry.metadata().publish_time_ms >= since_ms
        except BadMetadata:
            return unreadable

    return is_fresh


async def first_published_since(ledger: ManagedLedger, since_ms: int, skew_ms: int) -> Position | None:
    """The first entry that was published at or after a time; None when there is none. Where an entry cannot be read, it
    is rather too early than past messages that are wanted. Ledgers that were closed so long before or after are left
    out; below 0 none is."""
    within = ledger.ledgers.indexes_around(since_ms, skew_ms) if skew_ms >= 0 else None
    return await ledger.find_first(published_since(since_ms, unreadable=True), within)


class ExpirySearch:
    """Finds how far the entries of a topic are older than a time, also past those that nobody can read.

    An unreadable one is too old when its ledger was closed before that time (Pulsar expires whole ledgers by that:
    PersistentMessageExpiryMonitor.checkExpiryByLedgerClosureTime), or when one behind it is."""

    def __init__(self, ledger: ManagedLedger, since_ms: int) -> None:
        self._ledger = ledger
        self._since_ms = since_ms
        self._is_fresh = published_since(since_ms)
        self._failed_reads = 0
        self._error: MagnetarError | None = None
        self.stands_at: Position | None = None
        """The entry that keeps all behind it: nobody can tell how old it is."""

    async def is_fresh(self, position: Position) -> bool | None:
        """Whether a confirmed entry was published at or after the time; None when nobody can tell."""
        ledger = self._ledger
        if self._failed_reads < FAILED_READS_MAX:
            try:
                return self._is_fresh(await ledger.read_entry(position))
            except MagnetarError as error:
                self._failed_reads += 1
                self._error = error
        record = ledger.ledgers.get(position[0])
        return False if record is not None and 0 < record.closed_ms < self._since_ms else None

    async def last_expired(self) -> Position | None:
        """The last entry that is too old, by binary search: publish times are taken to grow. None: there is none."""
        ledger = self._ledger
        low, high = 0, ledger.ledgers.number_of_entries()
        first_ledger = ledger.ledgers.ids[0]
        unknown = -1
        while low < high:
            middle = at = (low + high) // 2
            fresh = await self.is_fresh(ledger.ledgers.entry_at(at))
            while fresh is None and at + 1 < high and first_ledger == ledger.ledgers.ids[0]:
                if self._failed_reads >= FAILED_READS_MAX:
                    break
                at += 1
                fresh = await self.is_fresh(ledger.ledgers.entry_at(at))
            if first_ledger != ledger.ledgers.ids[0]:
                # Trimmed while we waited: the indexes count anew.
                low, high, first_ledger, unknown = 0, ledger.ledgers.number_of_entries(), ledger.ledgers.ids[0], -1
            elif fresh is False:
                low = at + 1
            else:
                high = middle
                unknown = middle if fresh is None else -1
        self.stands_at = ledger.ledgers.entry_at(low) if low == unknown else None
        if low == 0:
            return None
        if low >= ledger.ledgers.number_of_entries():
            return ledger.last_confirmed
        return ledger.ledgers.previous_position(ledger.ledgers.entry_at(low))

    @property
    def problem(self) -> str:
        """What the last read met that failed."""
        return str(self._error)


def slowest_cursor(topic: BackloggedTopic) -> Cursor | None:
    """The durable cursor that is furthest behind."""
    return min(topic.ledger.cursors.values(), key=lambda cursor: cursor.mark_delete, default=None)


def backlog_bytes(topic: BackloggedTopic) -> int:
    """What the slowest durable cursor has not acknowledged, estimated."""
    slowest = slowest_cursor(topic)
    return 0 if slowest is None else topic.ledger.ledgers.size_bytes_after(slowest.mark_delete)


def size_exceeded(topic: BackloggedTopic) -> bool:
    """Whether the backlog has reached its size."""
    limit = topic.policies.size_quota.size_bytes_max
    return limit >= 0 and backlog_bytes(topic) >= limit


def age_exceeded(topic: BackloggedTopic, now_ms: int) -> bool:
    """Whether the ledger of the oldest unacknowledged entry was closed too long ago; the ledger in use never was."""
    limit_seconds = topic.policies.age_quota.age_seconds_max
    slowest = slowest_cursor(topic)
    if limit_seconds <= 0 or slowest is None or slowest.backlog_entries == 0:
        return False
    record = topic.ledger.ledgers.get(topic.ledger.ledgers.next_position(slowest.mark_delete)[0])
    return record is not None and record.closed_ms > 0 and now_ms - record.closed_ms > limit_seconds * 1000


async def age_exceeded_precisely(topic: BackloggedTopic, now_ms: int) -> bool:
    """Whether the oldest unacknowledged entry was published too long ago. Raises what reading raises."""
    limit_seconds = topic.policies.age_quota.age_seconds_max
    slowest = slowest_cursor(topic)
    if limit_seconds <= 0 or slowest is None or slowest.backlog_entries == 0:
        return False
    oldest = await topic.ledger.read_entry(topic.ledger.ledgers.next_position(slowest.mark_delete))
    try:
        return now_ms - oldest.metadata().publish_time_ms > limit_seconds * 1000
    except BadMetadata:
        return False


async def check_quotas(topic: BackloggedTopic) -> None:
    """Raises PulsarError when a producer may not come in because of the backlog."""
    policies = topic.policies
    size_code = CODES.get(policies.size_quota.policy)
    age_code = CODES.get(policies.age_quota.policy)
    text = "Cannot create producer on topic with backlog quota exceeded"
    if size_code is not None and size_exceeded(topic):
        raise PulsarError(size_code, text)
    if age_code is not None and policies.age_quota.age_seconds_max > 0 and await _too_old(topic):
        raise PulsarError(age_code, text)


async def _too_old(topic: BackloggedTopic) -> bool:
    now_ms = topic.clock.now_ms()
    if topic.limits.settings.backlog_quota_age_precise:
        return await age_exceeded_precisely(topic, now_ms)
    return age_exceeded(topic, now_ms)
