"""What clients asked, were told and were sent, in the order in which it happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from magnetar.core.ids import Position
from magnetar.wire.pulsar.enums import SubscriptionType

from e2e.broker_simulation.drawn.read_only import NAME


class Content(NamedTuple):
    """What an entry holds, told from all others: who sent it, its first sequence id, and how many messages it has."""

    producer: str
    sequence_id: int
    messages: int

    def __str__(self) -> str:
        return f"{self.producer}:{self.sequence_id}" + (f"+{self.messages - 1}" if self.messages > 1 else "")


GARBLED = Content("", -1, 0)
"""Of an entry that is not what any producer made."""


class Entry(NamedTuple):
    """An entry where it is stored."""

    position: Position
    content: Content
    key: str


@dataclass(slots=True)
class Receipt:
    """A producer was told that an entry is stored."""

    content: Content
    position: Position | None
    """None: it was stored before, as the broker knows by deduplication."""
    broker: str
    link: int
    asked_at: float
    """When it was sent, this time."""
    told_at: float


@dataclass(slots=True, eq=False)
class Session:
    """A consumer, from its subscribing until one side ends that."""

    number: int
    consumer: str
    kind: SubscriptionType
    link: int
    broker: str
    asked_at: float
    """When it asked to be let in."""
    ended_at: float | None = None
    closed: bool = False
    """Ended by the consumer, which was answered; else the broker, or the network, has ended it, or nobody."""
    began_at: float = 0.0
    """When it was told that it is let in."""
    unsubscribed_at: float = float("inf")
    """When it asked for the end of the subscription, unless that was refused: others may be let in since."""

    @property
    def only_reads(self) -> bool:
        """Whether its broker does."""
        return self.broker.startswith(NAME)


@dataclass(slots=True)
class Delivered:
    """A session was sent an entry."""

    session: Session
    at: float
    entry: Entry
    indexes: frozenset[int] | None
    """Of a batch: what is not acknowledged, as the broker says; None: it says nothing."""
    redeliveries: int


@dataclass(slots=True, eq=False)
class Acknowledged:
    """A session has acknowledged entries, or parts of one."""

    session: Session
    at: float
    positions: tuple[Position, ...]
    cumulative: bool = False
    remaining: frozenset[int] | None = None
    """Of a batch that is acknowledged in part: which of its messages are not."""
    told_at: float | None = None
    """When it was told that this is durable."""


@dataclass(slots=True)
class Told:
    """An acknowledgement's receipt has come."""

    acknowledged: Acknowledged


@dataclass(slots=True)
class AskedAgain:
    """A session wants entries again: these, or all that it holds."""

    session: Session
    at: float
    positions: tuple[Position, ...] | None


@dataclass(slots=True)
class Began:
    """A session stands, as its consumer was told."""

    session: Session


@dataclass(slots=True)
class Granted:
    """A session takes so many more messages."""

    session: Session
    messages: int


@dataclass(slots=True)
class Activated:
    """A session of a Failover subscription was told whether it is the one that gets messages."""

    session: Session
    active: bool


@dataclass(slots=True)
class Ended:
    """A session is over."""

    session: Session


@dataclass(slots=True, eq=False)
class Sought:
    """A session wants to read from another place."""

    session: Session
    at: float
    position: Position
    """The first entry that is wanted."""
    done_at: float | None = None


Event: TypeAlias = Began | Granted | Activated | Delivered | Acknowledged | Told | AskedAgain | Ended | Sought


@dataclass(slots=True)
class SubscriptionHistory:
    """Of one subscription."""

    topic: str
    name: str
    kind: SubscriptionType
    sessions: list[Session] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    bindings: list[tuple[float, str]] = field(default_factory=list)
    """Which broker of those that only read was bound to it, from which moment on; empty: none."""
    harmed_at: float = float("inf")
    """Until then its brokers, clients, the topic's owner and the metadata service understand each other,"""
    calm_since: float = float("inf")
    """and from then on again."""

    def calm(self, begin: float, end: float) -> bool:
        """Whether all of them understand each other all the time from `begin` to `end`."""
        return end < self.harmed_at or begin > self.calm_since

    def bound_since(self, broker: str, begin: float, end: float) -> float | None:
        """Since when a broker was bound to it without a break; None: it was not all the time from `begin` to `end`."""
        since, bound = float("-inf"), ""
        for moment, name in self.bindings:
            if moment > end:
                break
            if moment > begin:
                return None
            since, bound = moment, name
        return since if bound == broker else None

    def bound_within(self, broker: str, begin: float, end: float) -> bool:
        """Whether a broker was bound to it at some moment from `begin` to `end`."""
        ends = [*(moment for moment, _ in self.bindings[1:]), float("inf")]
        return any(
            name == broker and moment <= end and over >= begin
            for (moment, name), over in zip(self.bindings, ends, strict=True)
        )

    def same_stretch(self, topic: TopicHistory, session: Session, begin: float, end: float) -> bool:
        """Whether the broker of a session, and no other, served the subscription all that time."""
        if session.only_reads:
            return self.bound_since(session.broker, begin, end) is not None
        return topic.held(session.broker, begin, end)


class EndTold(NamedTuple):
    """A broker has told which message is a topic's last one."""

    position: Position
    broker: str
    asked_at: float


class CompactedEntry(NamedTuple):
    """An entry that a reader with `readCompacted` has got."""

    position: Position
    content: Content
    """As it was before compaction."""
    indexes: frozenset[int]
    """Its messages that are left."""
    at: float


@dataclass(slots=True)
class CompactedReading:
    """What such a reader has got, from the first message that was left on."""

    name: str
    topic: str
    quiet: bool = False
    """Nothing was published or compacted meanwhile."""
    floor: Position = (-1, -1)
    """Of a quiet one: this far the topic was compacted for sure."""
    entries: list[CompactedEntry] = field(default_factory=list)
    resumed: list[Position] = field(default_factory=list)
    """Behind these entries it went on, after its connection was lost."""
    whole: bool = False
    """It came to the end that it was told of."""
    end: Position = (-1, -1)
    ended_at: float = float("inf")


class Trimmed(NamedTuple):
    """An entry that its topic has no more."""

    entry: Entry
    subscriptions: frozenset[str]
    """Those that there were by then: who came later never sees it."""
    compacted: bool
    """Whether the topic had a cursor of compaction by then."""


@dataclass(slots=True)
class TopicHistory:
    """Of one topic."""

    name: str
    deduplication: bool
    sent: dict[Content, str] = field(default_factory=dict)
    """Every entry that was sent, and its key."""
    attempts: dict[Content, int] = field(default_factory=dict)
    """How often each was."""
    asked: dict[Content, float] = field(default_factory=dict)
    """When each was sent for the first time."""
    compacted_up_to: Position = (-1, -1)
    """So far the topic was compacted, as somebody was told who has waited for it."""
    receipts: list[Receipt] = field(default_factory=list)
    logs: list[list[Entry]] = field(default_factory=list)
    """What was read from the first entry to the last, each time that somebody looked at the end, and what was trimmed
    by then."""
    trimmed: dict[Position, Trimmed] = field(default_factory=dict)
    readings: list[list[Entry]] = field(default_factory=list)
    """What readers have got, each from its start on."""
    whole: list[list[Entry]] = field(default_factory=list)
    """What readers have got that came to the end when nothing was published any more."""
    ends_told: list[EndTold] = field(default_factory=list)
    """To those who asked when nothing went wrong any more, and no transaction hid anything."""
    holders: list[tuple[float, frozenset[str]]] = field(default_factory=list)
    """Which brokers' nodes say that they own the topic's bundle, from which moment on."""

    def log_with(self, read: list[Entry]) -> list[Entry]:
        """All entries that there were, from what somebody has read of those that are left. What was read out of order
        is left as it is."""
        positions = [entry.position for entry in read]
        if not self.trimmed or positions != sorted(set(positions)):
            return read
        found = {position: trimmed.entry for position, trimmed in self.trimmed.items()}
        found |= {entry.position: entry for entry in read}
        return [found[position] for position in sorted(found)]

    def last_log_of(self, subscription: str) -> list[Entry]:
        """The last log, without what was trimmed before a subscription came."""
        return [entry for entry in self.logs[-1] if not self._never_seen(entry.position, subscription)]

    def _never_seen(self, position: Position, subscription: str) -> bool:
        trimmed = self.trimmed.get(position)
        return trimmed is not None and subscription not in trimmed.subscriptions

    def held(self, broker: str, begin: float, end: float) -> bool:
        """Whether a broker, and nobody else, had that node all the time."""
        before: frozenset[str] = frozenset()
        for moment, holders in self.holders:
            if moment > end:
                break
            if moment > begin and before != {broker}:
                return False
            before = holders
        return before == {broker}


class Taken(NamedTuple):
    """Messages of an entry that a transaction has acknowledged, or tried to."""

    topic: str
    position: Position
    indexes: frozenset[int]


@dataclass(slots=True, eq=False)
class TransactionHistory:
    """Of one transaction, as its client knows it."""

    id: tuple[int, int]
    client: str
    sent: list[tuple[str, Content]] = field(default_factory=list)
    """(topic, content) of what was published in it, whether or not there is a receipt."""
    taken: list[Taken] = field(default_factory=list)
    commit: bool | None = None
    """How its client wanted it to end; None: it never said."""
    answered: bool = False
    """Its client was told that it has ended so."""
    refused: bool = False
    """When its client asked for its end, for the first time, it was over: its time was."""
    left: bool = False
    """Its client does nothing more about it."""


@dataclass(slots=True, eq=False)
class LateMessage:
    """Published in a transaction by another program than the one that ends it."""

    transaction: TransactionHistory
    topic: str
    content: Content
    over: bool
    """Its transaction was over before it was sent for the first time."""
    confirmed: bool = False


@dataclass(slots=True, eq=False)
class LateAcknowledgement:
    """An acknowledgement in a transaction that was over before it was sent."""

    transaction: TransactionHistory
    topic: str
    position: Position
    confirmed: bool = False


@dataclass(slots=True)
class History:
    """Of one run."""

    topics: dict[str, TopicHistory] = field(default_factory=dict)
    subscriptions: dict[tuple[str, str], SubscriptionHistory] = field(default_factory=dict)
    stuck: list[str] = field(default_factory=list)
    """What did not happen in time although nothing was wrong any more."""
    wrong: list[str] = field(default_factory=list)
    """Answers that the protocol does not allow."""
    ends_at_first: bool = False
    """Whether the run is over once something is stuck or wrong: what is planted is found then, and each further wait
    would only last as long as patience does."""
    transactions: list[TransactionHistory] = field(default_factory=list)
    shown: list[tuple[str, Entry]] = field(default_factory=list)
    """(topic, entry) that transactors were sent."""
    plain: set[tuple[str, Position, int]] = field(default_factory=set)
    """(topic, entry, message) that transactors have acknowledged without a transaction."""
    late_messages: list[LateMessage] = field(default_factory=list)
    late_acknowledgements: list[LateAcknowledgement] = field(default_factory=list)
    """Of entries that nobody has acknowledged, when all is quiet."""
    compacted: list[CompactedReading] = field(default_factory=list)
    keeps_without_key: bool = True
    """Whether compaction leaves messages without a key."""
    links: int = 0
    on_moment: Callable[[], None] = lambda: None
    """Told when a client sends something that matters."""
    on_transaction_step: Callable[[], None] = lambda: None
    """Told when a client takes a step of a transaction."""
    on_compaction: Callable[[], None] = lambda: None
    """Told when somebody asks for a compaction."""

    def next_link(self) -> int:
        """A number for a connection."""
        self.links += 1
        return self.links

    def harmed(self, now: float) -> None:
        """Something goes wrong after which not everybody understands everybody."""
        for subscription in self.subscriptions.values():
            subscription.harmed_at = min(subscription.harmed_at, now)

    def of_topic(self, name: str) -> Iterator[SubscriptionHistory]:
        """The subscriptions of a topic."""
        return (subscription for subscription in self.subscriptions.values() if subscription.topic == name)
