"""What must hold of what consumers are sent. Pure.

What a broker knows when it sends is never quite what clients know then: an acknowledgement may be on its way, a
connection may be broken without anybody having noticed, and a broker that stood still may believe for a moment that it
owns what another one has taken. Each rule accuses only where none of this can be the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from magnetar.core.ids import LATEST, Position
from magnetar.wire.pulsar.enums import SubscriptionType

from e2e.broker_simulation.history import (
    Acknowledged,
    Activated,
    AskedAgain,
    Began,
    Delivered,
    Ended,
    Event,
    Granted,
    Session,
    Sought,
    SubscriptionHistory,
    Told,
    TopicHistory,
)

SubscriptionRule = Callable[[SubscriptionHistory, TopicHistory], Iterator[str]]

ORDERED: Final = (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)
LOOKS_AT_THE_END: Final = 2
"""A topic is read so often when a run has come to its end."""

COUNT_STORED_SECONDS: Final = 5.0
"""A count is stored within a second, if bookies and metadata store answer at once; they may need some seconds more."""

ALONE_SECONDS: Final = 2.0
"""For so long two brokers may believe that they serve a subscription, once they, the topic's owner and the metadata
service understand each other."""

KEYED: Final = SubscriptionType.KEY_SHARED


def deliveries_are_what_is_stored(subscription: SubscriptionHistory, topic: TopicHistory) -> Iterator[str]:
    """The entry that stands there, and of a batch no message that it has not got."""
    stored = {entry.position: entry for log in topic.logs for entry in log}
    for event in subscription.events:
        if not isinstance(event, Delivered):
            continue
        entry = event.entry
        if topic.logs and stored.get(entry.position) != entry:
            yield f"{entry} is delivered, and {stored.get(entry.position)} is stored"
        if event.indexes is not None and not event.indexes:
            yield f"{entry.position} is delivered, and no message of it is left"


def nothing_comes_after_its_acknowledgement(subscription: SubscriptionHistory, topic: TopicHistory) -> Iterator[str]:
    """Once a consumer has the receipt of an acknowledgement, no broker begins to send what it covers."""
    confirmed: dict[Position, list[Acknowledged]] = {}
    cumulative: list[Acknowledged] = []
    seeks = [event for event in subscription.events if isinstance(event, Sought)]
    for event in subscription.events:
        if isinstance(event, Told):
            asked = event.acknowledged
            if any(seek.done_at is None or seek.done_at > asked.at for seek in seeks):
                continue
            if asked.cumulative:
                cumulative.append(asked)
            for position in asked.positions:
                confirmed.setdefault(position, []).append(asked)
        elif isinstance(event, Delivered):
            position, session = event.entry.position, event.session
            candidates = [
                *confirmed.get(position, ()),
                *(asked for asked in cumulative if position < asked.positions[0]),
            ]
            every = frozenset(range(event.entry.content.messages))
            left = every if event.indexes is None else event.indexes
            for asked in candidates:
                if not _known(asked, event, subscription, topic):
                    continue
                remaining = asked.remaining if position in asked.positions else None
                wrong = left if remaining is None else left - remaining
                if wrong:
                    yield (
                        f"session {session.number} gets {sorted(wrong)} of {position} at {event.at:.6f}, whose "
                        f"acknowledgement session {asked.session.number} knew to be durable at {asked.told_at:.6f}"
                    )
                    break


def _known(asked: Acknowledged, event: Delivered, subscription: SubscriptionHistory, topic: TopicHistory) -> bool:
    """Whether a broker must have known of an acknowledgement when it sent an entry. One that only reads knows what the
    owner had when it was bound, and what was acknowledged at itself since."""
    session, told_at = event.session, asked.told_at
    assert told_at is not None
    partial = asked.remaining is not None and event.entry.position in asked.positions
    same_link = asked.session.link == session.link
    if same_link and not (session.only_reads and partial):
        return True
    if session.only_reads:
        since = subscription.bound_since(session.broker, session.began_at, event.at)
        if since is None or not (same_link or session.asked_at > told_at):
            return False
        here = asked.session.broker == session.broker
        if partial:
            # Nobody tells it what was left of a batch before it was bound.
            return here and told_at >= since
        begin = event.at - ALONE_SECONDS
        return told_at < since or here or (told_at < begin and subscription.calm(begin, event.at))
    return session.asked_at > told_at and topic.held(session.broker, session.asked_at, event.at)


def order_within_sessions(subscription: SubscriptionHistory, topic: TopicHistory) -> Iterator[str]:
    """Where one consumer gets everything, each entry comes behind those before it, unless they were asked for again."""
    if subscription.kind not in ORDERED:
        return
    last: dict[Session, Position] = {}
    jumps: dict[Session, int] = {}
    for event in subscription.events:
        if isinstance(event, AskedAgain | Activated):
            jumps[event.session] = jumps.get(event.session, 0) + 1
        elif isinstance(event, Delivered):
            session, position = event.session, event.entry.position
            if position <= last.get(session, (-1, -1)):
                if not jumps.get(session):
                    yield f"session {session.number} gets {position} after {last[session]}"
                else:
                    jumps[session] -= 1
            last[session] = position


def no_entry_is_passed_over(subscription: SubscriptionHistory, topic: TopicHistory) -> Iterator[str]:
    """Where one consumer gets everything, what lies between two entries that it gets was acknowledged by somebody; so
    was what lies before its first one."""
    if subscription.kind not in ORDERED or not topic.logs:
        return
    log = topic.last_log_of(subscription.name)
    index_of = {entry.position: index for index, entry in enumerate(log)}
    left = [frozenset(range(entry.content.messages)) for entry in log]
    up_to = -1
    next_index: dict[Session, int] = {}
    for event in subscription.events:
        if isinstance(event, Sought):
            return
        if isinstance(event, Acknowledged):
            for position in event.positions:
                index = index_of.get(position)
                if index is not None:
                    left[index] &= event.remaining or frozenset()
                    if event.cumulative:
                        up_to = max(up_to, index - 1)
        elif isinstance(event, Delivered) and event.entry.position in index_of:
            index = index_of[event.entry.position]
            begin = next_index.get(event.session, 0)
            missed = [at for at in range(begin, index) if at > up_to and left[at]]
            if missed:
                yield f"session {event.session.number} gets {event.entry.position} and not {log[missed[0]].position}"
            next_index[event.session] = index + 1


class _Holders:
    """Who holds which entries, each with its key, as far as clients know."""

    def __init__(self) -> None:
        self.of: dict[Session, dict[Position, str]] = {}
        self._left: dict[tuple[Session, Position], frozenset[int]] = {}
        """Of the messages of what is held, those that are not acknowledged."""
        self._unsure: set[Session] = set()
        """Those that have left, or wanted everything again: what is still on its way to them is others' by then."""

    def take(self, event: Delivered) -> None:
        """What is held from now on."""
        if event.session not in self._unsure:
            position, content, key = event.entry
            self.of.setdefault(event.session, {})[position] = key
            every = frozenset(range(content.messages))
            self._left[(event.session, position)] = every if event.indexes is None else event.indexes

    def knows(self, session: Session) -> bool:
        """Whether a session is none of those."""
        return session not in self._unsure

    def follow(self, event: Event) -> None:
        """What is not held any more."""
        if isinstance(event, Acknowledged):
            for session, held in self.of.items():
                for position in event.positions:
                    left = self._left.get((session, position), frozenset()) & (event.remaining or frozenset())
                    self._left[(session, position)] = left
                    if not left:
                        held.pop(position, None)
        elif isinstance(event, AskedAgain):
            for position in event.positions or ():
                self.of.get(event.session, {}).pop(position, None)
        if isinstance(event, Ended) or (isinstance(event, AskedAgain) and event.positions is None):
            self._unsure.add(event.session)
            self.of.pop(event.session, None)


def one_holder_at_a_time(subscription: SubscriptionHistory, topic: TopicHistory) -> Iterator[str]:
    """Where entries are shared out, nobody gets what another consumer holds; nor, where keys have an order, what comes
    behind an entry of the same key that another one holds."""
    if subscription.kind in ORDERED:
        return
    keyed = subscription.kind is KEYED
    holders = _Holders()
    for event in subscription.events:
        if isinstance(event, Sought):
            return
        holders.follow(event)
        if not isinstance(event, Delivered) or not holders.knows(event.session):
            continue
        session, (position, _, key) = event.session, event.entry
        for other, held in holders.of.items():
            if other is session or not _stays(other, event, subscription, topic):
                continue
            if position in held:
                yield f"session {session.number} gets {position}, which session {other.number} holds"
            elif keyed and key and any(its == key and before < position for before, its in held.items()):
                yield (
                    f"session {session.number} gets {position} of {key}, of which session {other.number} holds an "
                    "earlier entry"
                )
        holders.take(event)


def _stays(other: Session, event: Delivered, subscription: SubscriptionHistory, topic: TopicHistory) -> bool:
    """Whether the broker that sends an entry has to count with another session then: both are of one stretch of
    ownership. What a broker sent before it unloaded the topic may arrive when it serves it again."""
    if other.broker != event.session.broker or (other.ended_at is not None and not other.closed):
        return False
    begin = min(_let_in(other), _let_in(event.session))
    return subscription.same_stretch(topic, other, begin, event.at)


def _let_in(session: Session) -> float:
    """From when on its broker served it, at the latest."""
    return session.began_at if session.only_reads else session.asked_at


def keys_keep_their_order(subscription: SubscriptionHistory, topic: TopicHistory) -> Iterator[str]:
    """Of one key, an entry comes for the first time after those before it have; and to one session in order, unless it
    has asked for them again."""
    if subscription.kind is not KEYED or not topic.logs:
        return
    before: dict[Position, list[Position]] = {}
    of_key: dict[str, list[Position]] = {}
    for entry in topic.logs[-1]:
        if entry.key:
            before[entry.position] = list(of_key.setdefault(entry.key, []))
            of_key[entry.key].append(entry.position)
    seen: set[Position] = set()
    last: dict[tuple[Session, str], Position] = {}
    again: dict[Session, set[Position] | None] = {}
    for event in subscription.events:
        if isinstance(event, Sought):
            return
        if isinstance(event, AskedAgain):
            asked = again.setdefault(event.session, set())
            if event.positions is None or asked is None:
                again[event.session] = None
            else:
                asked.update(event.positions)
        elif isinstance(event, Acknowledged):
            seen.update(event.positions)  # Also of what nobody gets, as it was dropped.
        elif isinstance(event, Delivered) and event.entry.key:
            session, position = event.session, event.entry.position
            missed = [each for each in before.get(position, ()) if each not in seen]
            if position not in seen and missed:
                yield f"session {session.number} gets {position} before {missed[0]}, which is of the same key"
            seen.add(position)
            former = last.get((session, event.entry.key), (-1, -1))
            allowed = again.get(session, set())
            if position < former and allowed is not None and position not in allowed:
                yield f"session {session.number} gets {position} after {former}, which is of the same key"
            last[(session, event.entry.key)] = max(position, former)


class _Counts:
    """How often entries were asked for again, and what their holders have to be told then."""

    def __init__(self) -> None:
        self._asked: dict[Position, int] = {}
        self._everything = 0
        self.held: dict[Session, dict[Position, int]] = {}
        """What each session was told of what it holds."""
        self._least: dict[Session, dict[Position, int]] = {}

    def follow(self, event: Event) -> None:
        """What changes that."""
        if isinstance(event, AskedAgain):
            self._ask(event)
        elif isinstance(event, Acknowledged):
            for position in event.positions:
                self.held.get(event.session, {}).pop(position, None)
                for counts in self._least.values():
                    counts.pop(position, None)

    def _ask(self, event: AskedAgain) -> None:
        held = self.held.get(event.session, {})
        if event.positions is None:
            self._everything += 1
        for position in event.positions or ():
            self._asked[position] = self._asked.get(position, 0) + 1
        for position in tuple(held) if event.positions is None else event.positions:
            if position in held:
                self._least.setdefault(event.session, {})[position] = held.pop(position) + 1

    def least(self, session: Session, position: Position) -> int:
        """What a session must be told at least."""
        return self._least.get(session, {}).get(position, 0)

    def most(self, position: Position) -> int:
        """What anybody may be told at most."""
        return self._asked.get(position, 0) + self._everything


def redelivery_counts_are_kept(subscription: SubscriptionHistory, topic: TopicHistory) -> Iterator[str]:
    """A count tells how often an entry was asked for again: it grows when its holder asks, and is never higher. Where
    one consumer gets everything there is none."""
    counts = _Counts()
    shared = subscription.kind not in ORDERED
    for event in subscription.events:
        if isinstance(event, Sought):
            return
        counts.follow(event)
        if not isinstance(event, Delivered):
            continue
        position, told = event.entry.position, event.redeliveries
        most = counts.most(position) if shared else 0
        least = counts.least(event.session, position) if shared else 0
        if told > most:
            yield f"{position} comes as redelivered {told} times, and was asked for {most} times"
        if told < least:
            yield f"{position} comes as redelivered {told} times; it was asked for {least} times"
        counts.held.setdefault(event.session, {})[position] = told


def redelivery_counts_outlast_sessions(subscription: SubscriptionHistory, topic: TopicHistory) -> Iterator[str]:
    """What one session was told of an entry is the least that any later one is told, at whichever broker: the count is
    stored within a second. The broker that told it must have lived on, and its storage must have been well: that it
    answered the same session so much later is the proof. A broker that only reads takes no counts over."""
    if subscription.kind in ORDERED or any(session.only_reads for session in subscription.sessions):
        return
    proven: dict[Position, tuple[int, float]] = {}
    pending: dict[Session, list[Delivered]] = {}
    for event in subscription.events:
        if isinstance(event, Sought):
            return
        if not isinstance(event, Delivered):
            continue
        session, position = event.session, event.entry.position
        waiting = pending.setdefault(session, [])
        for earlier in [each for each in waiting if event.at >= each.at + COUNT_STORED_SECONDS]:
            waiting.remove(earlier)
            if topic.held(session.broker, earlier.at, event.at):
                its = earlier.entry.position
                least, _ = proven.get(its, (0, 0.0))
                if earlier.redeliveries > least:
                    proven[its] = earlier.redeliveries, event.at
        least, since = proven.get(position, (0, 0.0))
        if event.redeliveries < least and session.asked_at > since:
            yield f"{position} comes to session {session.number} as redelivered {event.redeliveries} times, not {least}"
        if event.redeliveries:
            waiting.append(event)


def seeks_are_followed(subscription: SubscriptionHistory, topic: TopicHistory) -> Iterator[str]:
    """Where one consumer gets everything, the first entry after a seek is the one that was wanted; after a seek to the
    end, one that was not confirmed before it."""
    if subscription.kind not in ORDERED or not topic.logs:
        return
    log = [entry.position for entry in topic.logs[-1]]
    waiting: Sought | None = None
    for event in subscription.events:
        if isinstance(event, Sought):
            waiting = event
        elif isinstance(event, Delivered) and waiting is not None and _may_come_after(event.session, waiting):
            sought, waiting = waiting, None
            if not _comes_after(event.session, sought):
                continue  # It may have been let in behind the seek: then the first entry was its.
            position, session = event.entry.position, event.session
            begin = session.began_at if session.only_reads else sought.at
            if sought.done_at is None or not subscription.same_stretch(topic, session, begin, event.at):
                continue
            if sought.position == LATEST:
                before = [receipt.position for receipt in topic.receipts if receipt.told_at < sought.at]
                wrong = position in before
            else:
                # What is trimmed by then is not found.
                there = (each for each in log if each == position or each not in topic.trimmed)
                wrong = position != next((each for each in there if each >= sought.position), position)
            if wrong:
                yield f"session {session.number} gets {position} first after the seek to {sought.position}"


def _may_come_after(session: Session, sought: Sought) -> bool:
    """Whether a session may have been let in after a seek."""
    return session.began_at > sought.at if session.only_reads else session.asked_at > sought.at


def _comes_after(session: Session, sought: Sought) -> bool:
    """Whether a session is let in after a seek. A broker that only reads lets wait who asks before."""
    if session.only_reads:
        return session.began_at > (sought.at if sought.done_at is None else sought.done_at)
    return session.asked_at > sought.at


def nothing_is_left_at_the_end(subscription: SubscriptionHistory, topic: TopicHistory) -> Iterator[str]:
    """Each message of each entry was acknowledged by somebody: what was not came again until it was."""
    if len(topic.logs) < LOOKS_AT_THE_END or any(isinstance(event, Sought) for event in subscription.events):
        return
    left = {entry.position: frozenset(range(entry.content.messages)) for entry in topic.last_log_of(subscription.name)}
    for event in subscription.events:
        if not isinstance(event, Acknowledged):
            continue
        for position in event.positions:
            left[position] = left.get(position, frozenset()) & (event.remaining or frozenset())
        if event.cumulative:
            for position in [each for each in left if each < event.positions[0]]:
                left[position] = frozenset()
    for position, indexes in left.items():
        if indexes:
            yield f"{sorted(indexes)} of {position} never came to be acknowledged"


def permits_are_respected(subscription: SubscriptionHistory, topic: TopicHistory) -> Iterator[str]:
    """Nobody gets an entry without having a permit left; a batch may overdraw them."""
    left: dict[Session, int] = {}
    for event in subscription.events:
        if isinstance(event, Granted):
            left[event.session] = left.get(event.session, 0) + event.messages
        elif isinstance(event, Delivered):
            session = event.session
            if left.get(session, 0) <= 0:
                yield f"session {session.number} gets {event.entry.position} without a permit"
            left[session] = left.get(session, 0) - (
                event.entry.content.messages if event.indexes is None else len(event.indexes)
            )


def exclusive_is_one(subscription: SubscriptionHistory, topic: TopicHistory) -> Iterator[str]:
    """A second consumer is let in when the first has left, or is gone."""
    if subscription.kind is not SubscriptionType.EXCLUSIVE:
        return
    live: dict[Session, None] = {}
    for event in subscription.events:
        if isinstance(event, Began):
            for other in live:
                stays = (other.ended_at is None or other.closed) and event.session.began_at < other.unsubscribed_at
                if stays and other.broker == event.session.broker:
                    yield f"session {event.session.number} is let in beside session {other.number}"
            live[event.session] = None
        elif isinstance(event, Ended):
            live.pop(event.session, None)


SUBSCRIPTION_RULES: Final[tuple[SubscriptionRule, ...]] = (
    deliveries_are_what_is_stored,
    nothing_comes_after_its_acknowledgement,
    order_within_sessions,
    no_entry_is_passed_over,
    nothing_is_left_at_the_end,
    one_holder_at_a_time,
    keys_keep_their_order,
    redelivery_counts_are_kept,
    redelivery_counts_outlast_sessions,
    seeks_are_followed,
    permits_are_respected,
    exclusive_is_one,
)
