"""What must hold of a history. Pure: from what clients were told to what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from magnetar.core.ids import Position

from e2e.broker_simulation.compaction.rules import COMPACTION_RULES
from e2e.broker_simulation.deliveries import SUBSCRIPTION_RULES
from e2e.broker_simulation.history import (
    GARBLED,
    Delivered,
    Entry,
    History,
    Sought,
    SubscriptionHistory,
    TopicHistory,
)
from e2e.broker_simulation.read_only.rules import READ_ONLY_RULES
from e2e.broker_simulation.transactions.rules import TRANSACTION_RULES

VIOLATIONS_MAX: Final = 20
"""Of one rule: one mistake breaks it again and again."""

TopicRule = Callable[[TopicHistory], Iterator[str]]


def check(history: History) -> list[str]:
    """Everything that is wrong; empty: every promise was kept."""
    violations = [*history.wrong, *history.stuck]
    for topic in history.topics.values():
        for rule in TOPIC_RULES:
            violations += some(f"{topic.name}: {what}" for what in rule(topic))
    for subscription in history.subscriptions.values():
        topic = history.topics[subscription.topic]
        for check_subscription in (*SUBSCRIPTION_RULES, *READ_ONLY_RULES):
            found = check_subscription(subscription, topic)
            violations += some(f"{subscription.name} of {subscription.topic}: {what}" for what in found)
    for look in (*TRANSACTION_RULES, *COMPACTION_RULES):
        violations += some(look(history))
    return violations


def some(violations: Iterator[str]) -> list[str]:
    """No more than anybody reads."""
    return [what for what, _ in zip(violations, range(VIOLATIONS_MAX), strict=False)]


def undelivered(subscription: SubscriptionHistory, log: list[Entry]) -> list[Entry]:
    """Entries that no consumer has got, and that nobody has passed over."""
    sought = [event.position for event in subscription.events if isinstance(event, Sought)]
    seen = {event.entry.position for event in subscription.events if isinstance(event, Delivered)}
    passed = max(sought, default=(-1, -1))
    # A batch of which a part is acknowledged is not delivered once more for the rest before its consumer is gone.
    return [entry for entry in log if entry.position not in seen and entry.position >= passed]


# --- topics


def what_was_confirmed_is_kept(topic: TopicHistory) -> Iterator[str]:
    """Who reads the topic finds each confirmed entry, and where the producer was told."""
    for number, log in enumerate(topic.logs):
        stored = {entry.position: entry.content for entry in log}
        contents = {entry.content for entry in log}
        for receipt in topic.receipts:
            content, position = receipt.content, receipt.position
            if position is None:
                if content not in contents:
                    yield f"{content} is confirmed as a duplicate, and reading {number} does not find it"
            elif stored.get(position) != content:
                found = stored.get(position, "nothing")
                yield f"{content} is confirmed at {position}, and reading {number} finds {found} there"


def nothing_is_invented(topic: TopicHistory) -> Iterator[str]:
    """What is read was sent, with this key, and no more often than it was sent."""
    for entries in (*topic.logs, *topic.readings):
        counts: dict[object, int] = {}
        for entry in entries:
            content = entry.content
            if content == GARBLED or topic.sent.get(content) != entry.key:
                yield f"{entry.position} is read as {content} with the key {entry.key!r}, which nobody has sent"
                continue
            counts[content] = counts.get(content, 0) + 1
            if counts[content] > topic.attempts.get(content, 0):
                yield f"{content} is stored {counts[content]} times, and was sent less often"


def order_is_kept(topic: TopicHistory) -> Iterator[str]:
    """Of each producer the first copies of its entries stand in the order in which it sent them. With deduplication
    there are no others."""
    for log in topic.logs:
        last: dict[str, int] = {}
        seen: set[object] = set()
        for entry in log:
            content = entry.content
            if content in seen:
                if topic.deduplication:
                    yield f"{content} is stored again at {entry.position} in spite of deduplication"
                continue
            seen.add(content)
            if content.sequence_id < last.get(content.producer, -1):
                yield f"{content} is stored at {entry.position}, behind {last[content.producer]} of that producer"
            last[content.producer] = max(content.sequence_id, last.get(content.producer, -1))


def confirmations_follow_time(topic: TopicHistory) -> Iterator[str]:
    """What is sent after another entry was confirmed, to whichever broker, is stored behind it: there is one owner."""
    told = sorted((receipt for receipt in topic.receipts if receipt.position), key=lambda receipt: receipt.told_at)
    asked = sorted(told, key=lambda receipt: receipt.asked_at)
    furthest: Position = (-1, -1)
    by = None
    at = 0
    for receipt in asked:
        while at < len(told) and told[at].told_at < receipt.asked_at:
            position = told[at].position
            assert position is not None
            if position > furthest:
                furthest, by = position, told[at]
            at += 1
        assert receipt.position is not None
        if by is not None and receipt.position <= furthest:
            yield (
                f"{receipt.broker} has confirmed {receipt.content} at {receipt.position}, which was sent after "
                f"{by.broker} had confirmed {by.content} at {furthest}"
            )


def all_read_the_same(topic: TopicHistory) -> Iterator[str]:
    """Whoever reads later finds the same and perhaps more; readers have missed nothing but what was trimmed."""
    if not topic.logs:
        return
    longest = topic.logs[-1]
    for name, entries in [
        *((f"reading {number}", log) for number, log in enumerate(topic.logs[:-1])),
        *((f"reader {number}", topic.log_with(read)) for number, read in enumerate(topic.readings)),
    ]:
        for index, entry in enumerate(entries):
            expected = longest[index] if index < len(longest) else None
            if entry != expected:
                yield f"{name} has {entry} as number {index}; it is {expected}"
                break


def readers_hear_of_the_end(topic: TopicHistory) -> Iterator[str]:
    """A reader that asks for the last message when nothing is published any more, and comes to it, has read all."""
    for read in topic.whole:
        if topic.logs and len(topic.log_with(read)) < len(topic.logs[0]):
            yield f"a reader is told that it is at the end behind {read[-1:]}; {topic.logs[0][-1:]} is the last entry"


def the_last_message_is_told(topic: TopicHistory) -> Iterator[str]:
    """Who asks for the last message hears of one that is not before what was confirmed by then."""
    told = [(receipt.told_at, receipt.position) for receipt in topic.receipts if receipt.position is not None]
    for end in topic.ends_told:
        confirmed = max((position for told_at, position in told if told_at <= end.asked_at), default=(-1, -1))
        if end.position < confirmed:
            yield f"{end.broker} says that {end.position} is the last message; {confirmed} was confirmed before"


def one_broker_owns_it(topic: TopicHistory) -> Iterator[str]:
    """By the metadata, in the end. Before, a node may stand for a moment of a bundle that was split meanwhile: who has
    claimed it reads the cut after that, and gives it back."""
    for moment, holders in topic.holders[-1:]:
        if len(holders) > 1:
            yield f"since {moment:.6f} {sorted(holders)} own its bundle"


TOPIC_RULES: Final[tuple[TopicRule, ...]] = (
    what_was_confirmed_is_kept,
    nothing_is_invented,
    order_is_kept,
    confirmations_follow_time,
    all_read_the_same,
    readers_hear_of_the_end,
    the_last_message_is_told,
    one_broker_owns_it,
)
