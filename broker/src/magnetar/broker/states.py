"""The states of a broker and what it has: sessions, producers, consumers, subscriptions, topics, bundles.

An object changes its state in one method, which asks its table here."""

from __future__ import annotations

import enum
from typing import Final

from magnetar.core.transitions import Transitions


class SessionState(enum.Enum):
    """Where the handshake of a connection stands."""

    START = enum.auto()
    CONNECTING = enum.auto()
    """The client has said CONNECT, and its credentials are being checked."""
    REFUSED = enum.auto()
    """It believes to be connected, and learns from the answer to its first request that it may not come in."""
    CONNECTED = enum.auto()
    CLOSED = enum.auto()


SESSION_TRANSITIONS: Final = Transitions(
    "a session",
    {
        SessionState.START: {SessionState.CONNECTING, SessionState.CONNECTED, SessionState.CLOSED},
        SessionState.CONNECTING: {SessionState.REFUSED, SessionState.CONNECTED, SessionState.CLOSED},
        SessionState.REFUSED: {SessionState.CLOSED},
        SessionState.CONNECTED: {SessionState.CLOSED},
        # Refused by the broker, then lost by the network.
        SessionState.CLOSED: {SessionState.CLOSED},
    },
)


class ProducerState(enum.Enum):
    """Whether a producer's client may publish."""

    OPENING = enum.auto()
    """Its client waits for the answer to PRODUCER, or for exclusive access."""
    OPEN = enum.auto()
    CLOSED = enum.auto()
    """The producer's client is sent nothing more, receipts included."""


PRODUCER_TRANSITIONS: Final = Transitions(
    "a producer",
    {
        ProducerState.OPENING: {ProducerState.OPEN, ProducerState.CLOSED},
        ProducerState.OPEN: {ProducerState.CLOSED},
        # A successor of the same name takes its place before its own connection ends.
        ProducerState.CLOSED: {ProducerState.CLOSED},
    },
)


class ConsumerState(enum.Enum):
    """Whether a consumer is sent messages."""

    OPEN = enum.auto()
    BLOCKED = enum.auto()
    """It holds as many unacknowledged messages as it may."""
    CLOSED = enum.auto()


CONSUMER_TRANSITIONS: Final = Transitions(
    "a consumer",
    {
        ConsumerState.OPEN: {ConsumerState.BLOCKED, ConsumerState.CLOSED},
        ConsumerState.BLOCKED: {ConsumerState.OPEN, ConsumerState.CLOSED},
        ConsumerState.CLOSED: (),
    },
)


class SubscriptionState(enum.Enum):
    """Whether a subscription lets consumers in and sends to them."""

    OPEN = enum.auto()
    FENCED = enum.auto()
    """Its position is being reset: it lets nobody in and sends nothing until that is stored."""
    CLOSED = enum.auto()


SUBSCRIPTION_TRANSITIONS: Final = Transitions(
    "a subscription",
    {
        SubscriptionState.OPEN: {SubscriptionState.FENCED, SubscriptionState.CLOSED},
        SubscriptionState.FENCED: {SubscriptionState.OPEN, SubscriptionState.CLOSED},
        # Closed with its topic, which is then abandoned because that took too long.
        SubscriptionState.CLOSED: {SubscriptionState.CLOSED},
    },
)


class LoadedTopicState(enum.Enum):
    """Whether a loaded topic serves clients."""

    OPEN = enum.auto()
    CLOSING = enum.auto()
    """It takes nothing more; what it has taken is stored before another broker may have it."""
    ABANDONED = enum.auto()
    """It takes nothing more and writes nothing: another broker may have it already."""
    DELETING = enum.auto()


_AFTER_OPEN: Final = frozenset({LoadedTopicState.CLOSING, LoadedTopicState.ABANDONED})
"""A broker that stops closes all its topics, also those that are on their way out."""

TOPIC_TRANSITIONS: Final = Transitions(
    "a topic",
    {
        LoadedTopicState.OPEN: {*_AFTER_OPEN, LoadedTopicState.DELETING},
        LoadedTopicState.CLOSING: _AFTER_OPEN,
        LoadedTopicState.ABANDONED: _AFTER_OPEN,
        LoadedTopicState.DELETING: _AFTER_OPEN,
    },
)


class MembershipState(enum.Enum):
    """Whether bundles may come to this broker, as far as it is concerned."""

    JOINING = enum.auto()
    TAKING_PART = enum.auto()
    """Bundles may come to this broker, also while the metadata store is away."""
    LEAVING = enum.auto()
    """No bundle comes any more; the broker still serves those that it owns."""


MEMBERSHIP_TRANSITIONS: Final = Transitions(
    "a broker's membership",
    {
        MembershipState.JOINING: {MembershipState.JOINING, MembershipState.TAKING_PART, MembershipState.LEAVING},
        MembershipState.TAKING_PART: {MembershipState.LEAVING},
        # A drain that is cancelled has the broker join again.
        MembershipState.LEAVING: {MembershipState.LEAVING, MembershipState.JOINING},
    },
)


class BundleState(enum.Enum):
    """How an owned bundle stands."""

    ACTIVE = enum.auto()
    """The bundle's topics are served and loaded."""
    UNLOADING = enum.auto()
    """Its topics are being closed; no other may be loaded."""
    IN_DOUBT = enum.auto()
    """The session with the store is lost, or the node is gone: somebody else may own it already."""


BUNDLE_TRANSITIONS: Final = Transitions(
    "a bundle",
    {
        BundleState.ACTIVE: {BundleState.UNLOADING, BundleState.IN_DOUBT},
        # Claimed again, or dropped.
        BundleState.IN_DOUBT: {BundleState.ACTIVE},
        # Until it is released: what is unloaded anyway is not claimed again.
        BundleState.UNLOADING: (),
    },
)


class BufferState(enum.Enum):
    """How a topic's transaction buffer stands; the values are what statistics show
    (Pulsar: `TopicTransactionBufferState`)."""

    NONE = "None"
    INITIALIZING = "Initializing"
    """It learns what its former owner knew."""
    NO_SNAPSHOT = "NoSnapshot"
    """No transaction has written to the topic yet."""
    FIRST_SNAPSHOTTING = "FirstSnapshotting"
    """The first transactional messages wait until a snapshot says that there may be such."""
    READY = "Ready"
    CLOSE = "Close"


BUFFER_TRANSITIONS: Final = Transitions(
    "a transaction buffer",
    {
        BufferState.NONE: {BufferState.INITIALIZING, BufferState.CLOSE},
        BufferState.INITIALIZING: {BufferState.NO_SNAPSHOT, BufferState.READY, BufferState.CLOSE},
        BufferState.NO_SNAPSHOT: {BufferState.FIRST_SNAPSHOTTING, BufferState.CLOSE},
        # A snapshot that cannot be written is tried again with the next transactional message.
        BufferState.FIRST_SNAPSHOTTING: {BufferState.READY, BufferState.NO_SNAPSHOT, BufferState.CLOSE},
        BufferState.READY: {BufferState.CLOSE},
        # Closed with its topic, which may be abandoned after that.
        BufferState.CLOSE: {BufferState.CLOSE},
    },
)


class CompactionState(enum.Enum):
    """How the last compaction of a topic went. The names are those of the admin API."""

    NOT_RUN = enum.auto()
    """There was none since the topic was loaded."""
    RUNNING = enum.auto()
    SUCCESS = enum.auto()
    ERROR = enum.auto()


COMPACTION_TRANSITIONS: Final = Transitions(
    "the compaction of a topic",
    {
        CompactionState.NOT_RUN: {CompactionState.RUNNING},
        CompactionState.RUNNING: {CompactionState.SUCCESS, CompactionState.ERROR},
        CompactionState.SUCCESS: {CompactionState.RUNNING},
        CompactionState.ERROR: {CompactionState.RUNNING},
    },
)


class TransactionState(enum.Enum):
    """How a transaction stands; the numbers are those of the coordinator's log (Pulsar `TxnStatus`)."""

    OPEN = 0
    COMMITTING = 1
    """It is decided; topics and subscriptions are being told."""
    COMMITTED = 2
    ABORTING = 3
    ABORTED = 4


TRANSACTION_TRANSITIONS: Final = Transitions(
    "a transaction",
    {
        TransactionState.OPEN: {TransactionState.COMMITTING, TransactionState.ABORTING},
        TransactionState.COMMITTING: {TransactionState.COMMITTED},
        TransactionState.ABORTING: {TransactionState.ABORTED},
        TransactionState.COMMITTED: (),
        TransactionState.ABORTED: (),
    },
)


class CoordinatorState(enum.Enum):
    """Whether a transaction coordinator serves; the values are what Apache's statistics show."""

    INITIALIZING = "Initializing"
    """Its log is being read."""
    READY = "Ready"
    CLOSED = "Close"
    """It takes nothing more: its bundle is let go of, or its log cannot be written."""


COORDINATOR_TRANSITIONS: Final = Transitions(
    "a transaction coordinator",
    {
        CoordinatorState.INITIALIZING: {CoordinatorState.READY, CoordinatorState.CLOSED},
        CoordinatorState.READY: {CoordinatorState.CLOSED},
        CoordinatorState.CLOSED: {CoordinatorState.CLOSED},
    },
)
