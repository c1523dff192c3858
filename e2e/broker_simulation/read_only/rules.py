"""What must hold of subscriptions that brokers serve that only read, beside what holds of all. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Final

from e2e.broker_simulation.deliveries import ALONE_SECONDS, SubscriptionRule
from e2e.broker_simulation.history import Delivered, Session, SubscriptionHistory, TopicHistory


def one_broker_delivers(subscription: SubscriptionHistory, topic: TopicHistory) -> Iterator[str]:
    """Of two sessions at different brokers, of which one only reads, not both get something once they have stood side
    by side for a while."""
    if not any(session.only_reads for session in subscription.sessions):
        return
    times: dict[Session, list[float]] = {}
    for event in subscription.events:
        if isinstance(event, Delivered):
            times.setdefault(event.session, []).append(event.at)
    for session, other in combinations(times, 2):
        if session.broker == other.broker or not (session.only_reads or other.only_reads):
            continue
        begin = max(session.began_at, other.began_at)
        first, second = (_when_one_is_alone(times[each], begin, subscription) for each in (session, other))
        if (first[0] and second[0]) or (first[1] and second[1]):
            yield (
                f"session {session.number} at {session.broker} and session {other.number} at {other.broker} both get "
                f"something, although both are there since {begin:.3f}"
            )


def _when_one_is_alone(times: list[float], begin: float, subscription: SubscriptionHistory) -> tuple[bool, bool]:
    """Whether a session gets something before faults begin, and after they have ended, when of two sessions that stand
    since `begin` only one may."""
    before = any(begin + ALONE_SECONDS < at < subscription.harmed_at for at in times)
    return before, any(at > max(begin, subscription.calm_since) + ALONE_SECONDS for at in times)


def who_delivers_is_bound(subscription: SubscriptionHistory, topic: TopicHistory) -> Iterator[str]:
    """A broker that only reads delivers what it is bound to, by a node that stands, or has stood just now."""
    for event in subscription.events:
        if not isinstance(event, Delivered) or not event.session.only_reads:
            continue
        begin = event.at - ALONE_SECONDS
        if subscription.calm(begin, event.at) and not subscription.bound_within(event.session.broker, begin, event.at):
            yield f"session {event.session.number} gets {event.entry.position} of {event.session.broker}, unbound"


READ_ONLY_RULES: Final[tuple[SubscriptionRule, ...]] = (one_broker_delivers, who_delivers_is_bound)
