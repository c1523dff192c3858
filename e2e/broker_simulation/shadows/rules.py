"""What must hold of sources and their shadows. Pure: from what clients were told and sent to what is wrong with it.

A shadow's history has the messages and receipts of its source. So whatever holds of any topic holds of it: what was
confirmed at the source is read where its receipt says, in order, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Final

from magnetar.core.ids import LATEST, Position
from magnetar.wire.pulsar.enums import SubscriptionType

from e2e.broker_simulation.checker import TOPIC_RULES, some
from e2e.broker_simulation.deliveries import SUBSCRIPTION_RULES, seeks_are_followed
from e2e.broker_simulation.history import (
    Acknowledged,
    Entry,
    History,
    Receipt,
    Session,
    Sought,
    SubscriptionHistory,
    TopicHistory,
)
from e2e.broker_simulation.transactions.rules import TRANSACTION_RULES, none_is_passed_over

NOBODY: Final = Session(-1, "nobody", SubscriptionType.SHARED, -1, "", 0.0)
"""Whose doing it is that a shadow is made anew, or that a source drops something."""


def check(history: History, sources: Mapping[str, list[str]], taken: Collection[str]) -> list[str]:
    """Everything that is wrong; empty: every promise was kept. Transactions take from the topics of `taken`."""
    violations = [*history.wrong, *history.stuck]
    for topic in history.topics.values():
        for rule in TOPIC_RULES:
            violations += some(f"{topic.name}: {what}" for what in rule(topic))
    for source, shadows in sources.items():
        for shadow in shadows:
            violations += some(all_of_the_source_is_there(history.topics[source], history.topics[shadow]))
    for subscription in history.subscriptions.values():
        topic = history.topics[subscription.topic]
        for check_subscription in SUBSCRIPTION_RULES:
            if check_subscription is seeks_are_followed and not seeks_can_be_followed(subscription, sources):
                continue
            found = check_subscription(subscription, topic)
            violations += some(f"{subscription.name} of {subscription.topic}: {what}" for what in found)
    of_taken = replace(history, topics={name: topic for name, topic in history.topics.items() if name in taken})
    for look in TRANSACTION_RULES:
        violations += some(look(of_taken if look is none_is_passed_over else history))
    return violations


def seeks_can_be_followed(subscription: SubscriptionHistory, sources: Mapping[str, list[str]]) -> bool:
    """Whether it is known where the first entry after each seek stands. Where a source cannot be asked, its shadow
    takes for the end what is shown there; and who makes a shadow anew does not say when its subscriptions went."""
    if subscription.topic in sources:
        return True
    sought = [event for event in subscription.events if isinstance(event, Sought)]
    return not any(event.position == LATEST or event.session is NOBODY for event in sought)


def all_of_the_source_is_there(source: TopicHistory, shadow: TopicHistory) -> Iterator[str]:
    """Who reads both when nothing is published any more finds the same, at the same places."""
    for number, (here, there) in enumerate(zip(source.logs, shadow.logs, strict=False)):
        for index in range(max(len(here), len(there))):
            expected = here[index] if index < len(here) else None
            entry = there[index] if index < len(there) else None
            if entry != expected:
                yield f"{shadow.name}: reading {number} has {entry} as number {index}; {source.name} has {expected}"
                break


def told_at_once(receipts: list[Receipt], arrivals: Mapping[Position, float], seconds_max: float) -> Iterator[str]:
    """When nothing is wrong, what a producer has a receipt of comes to a reader of the shadow before it would be looked
    for: the source tells it."""
    for receipt in receipts:
        assert receipt.position is not None
        at = arrivals.get(receipt.position)
        if at is None or at > receipt.told_at + seconds_max:
            late = "not at all" if at is None else f"{at - receipt.told_at:.3f} s after that"
            yield f"{receipt.content} was confirmed at {receipt.position}, and comes to a reader of the shadow {late}"


def needed(subscription: SubscriptionHistory, entries: list[Entry]) -> list[Position]:
    """Which of these entries a subscription may still want: nobody has asked for their acknowledgement."""
    if not subscription.sessions or any(isinstance(event, Sought) for event in subscription.events):
        return []
    left = {entry.position: frozenset(range(entry.content.messages)) for entry in entries}
    for event in subscription.events:
        if not isinstance(event, Acknowledged):
            continue
        for position in left:
            if position in event.positions:
                left[position] &= event.remaining or frozenset()
            elif event.cumulative and position < event.positions[0]:
                left[position] = frozenset()
    return [position for position, indexes in left.items() if indexes]
