"""Names of transaction coordinators and their logs (Pulsar `SystemTopicNames`, `MLTransactionLogImpl`)."""

from __future__ import annotations

from typing import Final, NamedTuple

from magnetar.core.topic_name import TopicName

COORDINATORS_TOPIC: Final = TopicName.parse("persistent://pulsar/system/transaction_coordinator_assign")
"""Its partitions are the coordinators: whoever owns the bundle of one runs it. Nothing is ever published there."""

LOG_CURSOR: Final = "transaction.subscription"
"""Everything before it, and what it has acknowledged, belongs to transactions that are over."""


class TransactionId(NamedTuple):
    """The id of a transaction on the wire."""

    coordinator: int
    """The most significant bits."""
    sequence: int
    """The least significant bits; each coordinator counts from 0."""

    def __str__(self) -> str:
        return f"({self.coordinator},{self.sequence})"


def coordinator_topic(coordinator: int) -> TopicName:
    """The partition that stands for a coordinator."""
    return COORDINATORS_TOPIC.partition(coordinator)


def log_name(coordinator: int) -> str:
    """The managed ledger of a coordinator's log, which no topic has."""
    return f"pulsar/system/persistent/__transaction_log_{coordinator}"
