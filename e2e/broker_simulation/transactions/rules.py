"""What must hold of transactions. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from magnetar.core.ids import Position

from e2e.broker_simulation.history import Content, History, TransactionHistory

TransactionRule = Callable[[History], Iterator[str]]


def _stored(history: History) -> dict[str, set[Content]]:
    """What readers found of each topic, in the end."""
    return {name: {entry.content for entry in topic.logs[-1]} for name, topic in history.topics.items() if topic.logs}


def _found(transaction: TransactionHistory, stored: dict[str, set[Content]]) -> list[Content]:
    return [content for topic, content in transaction.sent if content in stored.get(topic, ())]


def counts(transaction: TransactionHistory, stored: dict[str, set[Content]]) -> bool:
    """Whether it was committed, as far as anybody can tell."""
    if not transaction.commit or transaction.refused:
        return False
    return transaction.answered or bool(_found(transaction, stored))


def all_or_nothing(history: History) -> Iterator[str]:
    """What was committed is there, all of it; of what was aborted or never committed there is nothing."""
    stored = _stored(history)
    for transaction in history.transactions:
        if any(topic not in stored for topic, _ in transaction.sent):
            continue  # It was not read: the run has said so.
        found = _found(transaction, stored)
        missing = [content for _, content in transaction.sent if content not in found]
        who = f"transaction {transaction.id} of {transaction.client}"
        if counts(transaction, stored):
            if missing:
                told = "is committed" if transaction.answered else f"shows {found[0]}"
                yield f"{who} {told}, and {missing[0]} is not there"
        elif found:
            ended = "was not committed" if transaction.commit is not True else "was over before its commit"
            yield f"{who} {ended}, and {found[0]} is there"


def what_is_shown_counts(history: History) -> Iterator[str]:
    """Nobody is sent a message of a transaction that does not count."""
    stored = {
        name: {entry.position: entry for entry in topic.logs[-1]}
        for name, topic in history.topics.items()
        if topic.logs
    }
    for topic, entry in history.shown:
        if topic in stored and stored[topic].get(entry.position) != entry:
            yield f"a transactor of {topic} gets {entry}, and {stored[topic].get(entry.position)} is there"


def each_is_taken_once(history: History) -> Iterator[str]:
    """By transactions that count: an acknowledgement of another one is taken back, of one that counts it is kept."""
    stored = _stored(history)
    by: dict[tuple[str, Position, int], TransactionHistory] = {}
    for transaction in history.transactions:
        if not counts(transaction, stored):
            continue
        for topic, position, indexes in transaction.taken:
            for index in sorted(indexes):
                other = by.setdefault((topic, position, index), transaction)
                if other is not transaction:
                    yield f"message {index} of {position} of {topic} is taken by {other.id} and by {transaction.id}"


def none_is_passed_over(history: History) -> Iterator[str]:
    """In the end nothing is left of the subscription: somebody must have taken each message."""
    if not history.transactions:
        return
    stored = _stored(history)
    taken = {
        (topic, position, index)
        for transaction in history.transactions
        if counts(transaction, stored)
        for topic, position, indexes in transaction.taken
        for index in indexes
    }
    for name, topic in history.topics.items():
        for entry in topic.logs[-1] if topic.logs else ():
            for index in range(entry.content.messages):
                key = (name, entry.position, index)
                if key not in taken and key not in history.plain:
                    yield f"message {index} of {entry} of {name} is acknowledged by no transaction that counts"


def late_frames_change_nothing(history: History) -> Iterator[str]:
    """What comes after the end of its transaction is refused, and is never there."""
    stored = _stored(history)
    for message in history.late_messages:
        transaction = message.transaction
        who = f"{message.content} of transaction {transaction.id} on {message.topic}"
        if message.over and message.confirmed:
            yield f"{who} is confirmed, and was sent when that was over"
        may_count = bool(transaction.commit) and not transaction.refused
        if message.content in stored.get(message.topic, ()) and (message.over or not may_count):
            yield f"{who} is there, and {'was sent when that was over' if may_count else 'that does not count'}"
    for late in history.late_acknowledgements:
        if late.confirmed:
            what = f"{late.position} of {late.topic} is acknowledged in transaction {late.transaction.id}"
            yield f"{what}, and was when that was over"


TRANSACTION_RULES: Final[tuple[TransactionRule, ...]] = (
    all_or_nothing,
    what_is_shown_counts,
    each_is_taken_once,
    none_is_passed_over,
    late_frames_change_nothing,
)
