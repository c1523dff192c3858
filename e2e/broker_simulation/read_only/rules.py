"""What must hold of subscriptions that brokers serve that only read, beside what holds of all. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from e2e.broker_simulation.deliveries import ALONE_SECONDS, SubscriptionRule
from e2e.broker_simulation.history import Delivered, Session, SubscriptionHistory, TopicHistory


def one_broker_delivers(subscription: SubscriptionHistory, topic: TopicHistory) -> Iterator[str]:
    """Of two sessions at different brokers, of which one only reads, not both get something once they have stood side
    by side for a while."""
    if not any(session.only_reads for session in subscription.sessions):
        return
    last: dict[Session, float] = {}
    for event in subscription.events:
        if isinstance(event, Delivered):
            last[event.session] = event.at
    for session, at in last.items():
        for other, other_at in last.items():
            if session.number >= other.number or session.broker == other.broker:
                continue
            if not (session.only_reads or other.only_reads):
                continue
            since = max(session.began_at, other.began_at, subscription.calm_since) + ALONE_SECONDS
            if min(at, other_at) > since:
                yield (
                    f"session {session.number} at {session.broker} gets something at {at:.3f}, and session "
                    f"{other.number} at {other.broker} at {other_at:.3f}"
                )


def who_delivers_is_bound(subscription: SubscriptionHistory, topic: TopicHistory) -> Iterator[str]:
    """A broker that only reads delivers what it is bound to, by a node that stands, or has stood just now."""
    for event in subscription.events:
        if not isinstance(event, Delivered) or not event.session.only_reads:
            continue
        begin = event.at - ALONE_SECONDS
        if begin > subscription.calm_since and not subscription.bound_within(event.session.broker, begin, event.at):
            yield f"session {event.session.number} gets {event.entry.position} of {event.session.broker}, unbound"


READ_ONLY_RULES: Final[tuple[SubscriptionRule, ...]] = (one_broker_delivers, who_delivers_is_bound)
