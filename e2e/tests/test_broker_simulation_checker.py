"""The judge of broker histories is not blind: each broken promise, made by hand, is seen, and a good history is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from magnetar.core.ids import EARLIEST, Position
from magnetar.wire.pulsar.enums import SubscriptionType

from e2e.broker_simulation.checker import check, undelivered
from e2e.broker_simulation.deliveries import COUNT_STORED_SECONDS
from e2e.broker_simulation.history import (
    GARBLED,
    Acknowledged,
    Activated,
    AskedAgain,
    Began,
    Content,
    Delivered,
    Ended,
    EndTold,
    Entry,
    Granted,
    History,
    Receipt,
    Session,
    Sought,
    SubscriptionHistory,
    Told,
    TopicHistory,
)
from e2e.broker_simulation.protocol import Link

EXCLUSIVE, SHARED = SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED
FAILOVER, KEY_SHARED = SubscriptionType.FAILOVER, SubscriptionType.KEY_SHARED
TOPIC: Final = "topic"
BROKER: Final = "broker0"


def entry(number: int, key: str = "a", messages: int = 1) -> Entry:
    """The entry of this number of the topic's one producer."""
    return Entry((1, number), Content("p", number, messages), key)


class Story:
    """A topic of some entries that were sent, confirmed and read, with one subscription."""

    def __init__(self, kind: SubscriptionType = EXCLUSIVE, *, entries: list[Entry] | None = None) -> None:
        self.log = [entry(number) for number in range(4)] if entries is None else entries
        self.topic = TopicHistory(TOPIC, deduplication=False)
        for number, one in enumerate(self.log):
            self.topic.sent[one.content] = one.key
            self.topic.attempts[one.content] = 1
            asked_at = 1.0 + number
            self.topic.receipts.append(Receipt(one.content, one.position, BROKER, 1, asked_at, asked_at + 0.5))
        self.topic.logs = [list(self.log), list(self.log)]
        self.topic.holders = [(0.0, frozenset({BROKER}))]
        self.subscription = SubscriptionHistory(TOPIC, "sub", kind)
        self.history = History({TOPIC: self.topic}, {(TOPIC, "sub"): self.subscription})
        self.now = 10.0

    def tick(self) -> float:
        """A moment later."""
        self.now += 0.1
        return self.now

    def session(self, name: str = "c", link: int = 1, permits: int = 100) -> Session:
        """A consumer is let in."""
        session = Session(len(self.subscription.sessions), name, self.subscription.kind, link, BROKER, self.tick())
        self.subscription.sessions.append(session)
        self.subscription.events += [Began(session), Granted(session, permits)]
        return session

    def gets(self, session: Session, *numbers: int, indexes: set[int] | None = None, times: int = 0) -> None:
        """Entries are delivered, by their numbers in the log."""
        for number in numbers:
            left = None if indexes is None else frozenset(indexes)
            self.subscription.events.append(Delivered(session, self.tick(), self.log[number], left, times))

    def acks(
        self,
        session: Session,
        number: int,
        *,
        told: bool = True,
        cumulative: bool = False,
        remaining: set[int] | None = None,
    ) -> None:
        """One is acknowledged, and there is a receipt."""
        left = None if remaining is None else frozenset(remaining)
        asked = Acknowledged(session, self.tick(), (self.log[number].position,), cumulative, left)
        self.subscription.events.append(asked)
        if told:
            asked.told_at = self.tick()
            self.subscription.events.append(Told(asked))

    def again(self, session: Session, *numbers: int) -> None:
        """Some are asked for again, or all."""
        positions: tuple[Position, ...] | None = tuple(self.log[number].position for number in numbers) or None
        self.subscription.events.append(AskedAgain(session, self.tick(), positions))

    def ends(self, session: Session, *, closed: bool = True) -> None:
        """A session is over."""
        session.ended_at, session.closed = self.tick(), closed
        self.subscription.events.append(Ended(session))

    def seeks(self, session: Session, position: Position) -> None:
        """A session seeks, and is answered."""
        sought = Sought(session, self.tick(), position)
        sought.done_at = self.tick()
        self.subscription.events.append(sought)

    def violations(self, *, acknowledged: bool = True) -> list[str]:
        """What the judge says, when everything is acknowledged at last."""
        if not acknowledged:
            return check(self.history)
        nobody = Session(99, "last", self.subscription.kind, 99, BROKER, self.now)
        every = Acknowledged(nobody, self.now, tuple(one.position for one in self.topic.logs[-1]))
        self.subscription.events.append(every)
        try:
            return check(self.history)
        finally:
            self.subscription.events.remove(every)


def test_a_good_history() -> None:
    story = Story()
    first = story.session()
    story.gets(first, 0, 1, 2)
    story.acks(first, 1)
    story.acks(first, 0, told=False)
    story.again(first)
    story.gets(first, 2, 3)
    story.ends(first, closed=False)
    second = story.session(link=2)
    story.gets(second, 0, 2, 3)
    story.acks(second, 3, cumulative=True)
    story.topic.readings = [story.log[:2]]
    assert story.violations() == []
    assert undelivered(story.subscription, story.log) == []


def lost(story: Story) -> None:
    story.topic.logs = [log[:3] for log in story.topic.logs]


def moved(story: Story) -> None:
    story.topic.receipts[1].position = (1, 2)


def duplicate_lost(story: Story) -> None:
    lost(story)
    story.topic.receipts[3].position = None


def invented(story: Story) -> None:
    del story.topic.sent[story.log[3].content]


def garbled(story: Story) -> None:
    story.topic.readings = [[Entry((1, 0), GARBLED, "")]]


def other_key(story: Story) -> None:
    story.topic.sent[story.log[0].content] = "b"


def stored_twice(story: Story) -> None:
    story.topic.logs[-1].append(Entry((2, 0), story.log[0].content, "a"))


def out_of_order(story: Story) -> None:
    story.topic.logs = [[Entry((1, 0), story.log[1].content, "a"), Entry((1, 1), story.log[0].content, "a")]]
    story.topic.receipts = []


def two_owners(story: Story) -> None:
    story.topic.receipts[3] = Receipt(story.log[0].content, story.log[0].position, "broker1", 2, 9.0, 9.1)


def changed(story: Story) -> None:
    story.topic.logs[0] = story.log[1:]


def reader_misses(story: Story) -> None:
    story.topic.readings = [[story.log[0], story.log[2]]]


def end_is_old(story: Story) -> None:
    story.topic.ends_told.append(EndTold((1, 1), BROKER, asked_at=story.topic.receipts[2].told_at))


def two_nodes(story: Story) -> None:
    story.topic.holders.append((3.0, frozenset({BROKER, "broker1"})))


def stuck(story: Story) -> None:
    story.history.stuck.append("somebody does not come to an end")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lost, "p:3 is confirmed at (1, 3), and reading 0 finds nothing there"),
        (moved, "p:1 is confirmed at (1, 2), and reading 0 finds p:2 there"),
        (duplicate_lost, "p:3 is confirmed as a duplicate"),
        (invented, "which nobody has sent"),
        (garbled, "which nobody has sent"),
        (other_key, "which nobody has sent"),
        (stored_twice, "is stored 2 times, and was sent less often"),
        (out_of_order, "p:0 is stored at (1, 1), behind 1 of that producer"),
        (two_owners, "broker1 has confirmed p:0 at (1, 0), which was sent after broker0 had confirmed p:2"),
        (changed, "reading 0 has"),
        (reader_misses, "reader 0 has"),
        (end_is_old, "broker0 says that (1, 1) is the last message; (1, 2) was confirmed before"),
        (two_nodes, "['broker0', 'broker1'] own its bundle"),
        (stuck, "does not come to an end"),
    ],
)
def test_what_is_wrong_with_a_topic_is_seen(spoil: Callable[[Story], None], said: str) -> None:
    story = Story()
    spoil(story)
    assert any(said in violation for violation in story.violations())


def test_the_last_message_may_be_what_was_confirmed_when_it_was_asked_for() -> None:
    story = Story()
    told_at = story.topic.receipts[2].told_at
    story.topic.ends_told += [EndTold((1, 1), BROKER, told_at - 0.1), EndTold((1, 3), BROKER, told_at)]
    assert not story.violations()


def test_a_duplicate_is_wrong_where_there_is_deduplication() -> None:
    story = Story()
    story.topic.attempts[story.log[0].content] = 2
    for log in story.topic.logs:
        log.append(Entry((2, 0), story.log[0].content, "a"))
    assert story.violations() == []
    story.topic.deduplication = True
    assert "is stored again at (2, 0)" in story.violations()[0]


def test_something_else_is_delivered_than_is_stored() -> None:
    story = Story()
    session = story.session()
    story.gets(session, 0)
    story.topic.logs = [[Entry((1, 0), Content("p", 7, 1), "a")]]
    assert any("is delivered, and" in violation for violation in story.violations())


def test_a_delivery_after_its_acknowledgement() -> None:
    story = Story()
    first = story.session()
    story.gets(first, 0)
    story.acks(first, 0)
    story.again(first)
    story.gets(first, 0)
    assert "gets [0] of (1, 0)" in story.violations()[0]


def test_a_later_session_gets_what_is_acknowledged() -> None:
    story = Story()
    first = story.session()
    story.gets(first, 0, 1)
    story.acks(first, 1, cumulative=True)
    story.ends(first)
    second = story.session(link=2)
    story.gets(second, 0)
    assert "gets [0] of (1, 0)" in story.violations()[0]
    # A broker that does not own the topic any more may not know.
    story.topic.holders.append((second.asked_at + 0.01, frozenset({"broker1"})))
    assert story.violations() == []


def test_a_seek_makes_acknowledgements_void() -> None:
    story = Story()
    first = story.session()
    story.gets(first, 0, 1)
    story.acks(first, 0)
    story.seeks(first, EARLIEST)
    story.ends(first, closed=False)
    second = story.session(link=2)
    story.gets(second, 0)
    assert story.violations() == []


def test_acknowledged_parts_of_a_batch_come_again() -> None:
    story = Story(SHARED, entries=[entry(0, messages=3)])
    first = story.session()
    story.gets(first, 0)
    story.acks(first, 0, remaining={2})
    story.ends(first)
    story.gets(story.session(link=2), 0, indexes={2})
    assert story.violations() == []
    story.gets(story.session(link=3), 0, indexes={1, 2})
    assert "gets [1] of (1, 0)" in story.violations()[0]


def test_the_rest_of_a_batch_never_comes() -> None:
    story = Story(SHARED, entries=[entry(0, messages=3)])
    session = story.session()
    story.gets(session, 0)
    story.acks(session, 0, remaining={1, 2})
    assert story.violations(acknowledged=False) == ["sub of topic: [1, 2] of (1, 0) never came to be acknowledged"]
    story.acks(session, 0, remaining={0})
    assert story.violations(acknowledged=False) == []


def test_order_within_a_session() -> None:
    story = Story(FAILOVER)
    session = story.session()
    story.gets(session, 0, 1)
    story.subscription.events.append(Activated(session, active=True))
    story.gets(session, 0, 1)
    assert story.violations() == []
    story.gets(session, 0)
    assert "gets (1, 0) after (1, 1)" in story.violations()[0]


def test_an_entry_is_passed_over() -> None:
    story = Story()
    session = story.session()
    story.gets(session, 0, 2)
    assert "gets (1, 2) and not (1, 1)" in story.violations()[0]
    assert undelivered(story.subscription, story.log) == [story.log[1], story.log[3]]


def test_an_entry_that_is_acknowledged_in_parts_is_passed_over() -> None:
    story = Story(entries=[entry(0, messages=2), entry(1)])
    session = story.session()
    story.gets(session, 0)
    story.acks(session, 0, remaining={0})
    story.acks(session, 0, remaining={1}, cumulative=True)
    story.ends(session)
    story.gets(story.session(link=2), 1)
    assert story.violations() == []


def test_what_another_one_holds() -> None:
    story = Story(SHARED)
    first, second = story.session(), story.session(link=2)
    story.gets(first, 0)
    story.gets(second, 0)
    assert "which session 0 holds" in story.violations()[0]
    first.ended_at = story.tick()  # By the network: the broker had noticed before.
    assert story.violations() == []


def test_what_was_given_back_may_go_to_another_one() -> None:
    story = Story(SHARED)
    first, second = story.session(), story.session(link=2)
    story.gets(first, 0, 1)
    story.again(first, 0)
    story.gets(second, 0, times=1)
    story.ends(first)
    story.gets(second, 1)
    assert story.violations() == []


def test_a_key_at_two_consumers() -> None:
    story = Story(KEY_SHARED)
    first, second = story.session(), story.session(link=2)
    story.gets(first, 0)
    story.gets(second, 1)
    assert "of a, of which session 0 holds an earlier entry" in story.violations()[0]


def test_a_key_out_of_order() -> None:
    story = Story(KEY_SHARED)
    session = story.session()
    story.gets(session, 1, 0)
    violations = story.violations()
    assert "gets (1, 1) before (1, 0), which is of the same key" in violations[0]
    assert "gets (1, 0) after (1, 1), which is of the same key" in violations[1]


def test_counts_of_redeliveries() -> None:
    story = Story(SHARED)
    session = story.session()
    story.gets(session, 0)
    story.again(session, 0)
    story.gets(session, 0, times=1)
    assert story.violations() == []
    story.again(session, 0)
    story.gets(session, 0, times=1)
    assert "comes as redelivered 1 times; it was asked for 2 times" in story.violations()[0]
    story.gets(session, 1, times=1)
    assert "comes as redelivered 1 times, and was asked for 0 times" in story.violations()[1]


@pytest.mark.parametrize(("seconds", "known"), [(COUNT_STORED_SECONDS + 1, True), (COUNT_STORED_SECONDS - 2, False)])
def test_counts_outlast_sessions(seconds: float, known: bool) -> None:
    """A count that a broker had the time to store is the least that later sessions are told."""
    story = Story(SHARED)
    first = story.session()
    story.gets(first, 0)
    story.again(first, 0)
    story.gets(first, 0, times=1)
    story.now += seconds
    story.gets(first, 1)
    story.ends(first, closed=False)
    second = story.session(link=2)
    story.gets(second, 0, times=1)
    assert story.violations() == []
    story.ends(second, closed=False)
    story.gets(story.session(link=3), 0)
    found = [what for what in story.violations() if "comes to session 2 as redelivered 0 times, not 1" in what]
    assert bool(found) == known


def test_a_seek_that_is_not_followed() -> None:
    story = Story()
    first = story.session()
    story.gets(first, 0, 1, 2)
    story.seeks(first, story.log[1].position)
    story.ends(first, closed=False)
    story.gets(story.session(link=2), 2)
    assert "gets (1, 2) first after the seek to (1, 1)" in story.violations()[0]


def test_a_delivery_without_a_permit() -> None:
    story = Story()
    session = story.session(permits=2)
    story.gets(session, 0, 1)
    assert story.violations() == []
    story.gets(session, 2)
    assert "gets (1, 2) without a permit" in story.violations()[0]


def test_two_exclusive_consumers() -> None:
    story = Story()
    story.session()
    story.session(link=2)
    assert "session 1 is let in beside session 0" in story.violations()[0]


@pytest.mark.parametrize(("began_at", "wrong"), [(1.0, True), (3.0, False)])
def test_who_unsubscribes_may_be_followed_before_it_is_told(began_at: float, wrong: bool) -> None:
    story = Story()
    story.session().unsubscribed_at = 2.0
    story.session(link=2).began_at = began_at
    assert bool(story.violations()) == wrong


def test_an_exclusive_consumer_at_a_former_owner() -> None:
    """It may not know yet that it owns the topic no more."""
    story = Story()
    story.session()
    story.session(link=2).broker = "broker1"
    assert story.violations() == []


async def test_who_is_at_the_other_end_behind_a_proxy() -> None:
    assert Link(1, "proxy0", "broker1").broker == "broker1"
    assert Link(2, "broker1").broker == "broker1"
