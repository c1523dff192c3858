"""What was trimmed is no loss where nobody needed it any more, and a loss everywhere else."""

from __future__ import annotations

from magnetar.core.ids import Position
from magnetar.wire.pulsar.enums import SubscriptionType

from e2e.broker_simulation.checker import check
from e2e.broker_simulation.drawn.compaction import draw_compaction
from e2e.broker_simulation.history import (
    Acknowledged,
    Began,
    CompactedEntry,
    CompactedReading,
    Content,
    Delivered,
    Entry,
    Granted,
    History,
    Session,
    Sought,
    SubscriptionHistory,
    TopicHistory,
    Trimmed,
)

TOPIC, BROKER = "topic", "broker0"
LOG = [Entry((1, number), Content("p", number, 1), "") for number in range(4)]
"""Of which a topic has lost the first two. Messages without keys are never compacted out."""


def topic_of(*, subscriptions: frozenset[str] = frozenset({"sub"}), compacted: bool = True) -> TopicHistory:
    """As the run has it at its end."""
    topic = TopicHistory(TOPIC, deduplication=False)
    for entry in LOG:
        topic.sent[entry.content], topic.attempts[entry.content] = entry.key, 1
    topic.trimmed = {entry.position: Trimmed(entry, subscriptions, compacted) for entry in LOG[:2]}
    topic.logs = [topic.log_with(LOG[2:]), topic.log_with(LOG[2:])]
    topic.holders = [(0.0, frozenset({BROKER}))]
    return topic


def delivered(*numbers: int, sought: Position | None = None) -> SubscriptionHistory:
    """To one consumer, which acknowledges each entry; before that it may seek."""
    session = Session(0, "c", SubscriptionType.EXCLUSIVE, 1, BROKER, 1.0)
    subscription = SubscriptionHistory(TOPIC, "sub", SubscriptionType.EXCLUSIVE, [session])
    subscription.events += [Began(session), Granted(session, 100)]
    if sought is not None:
        subscription.events.append(Sought(session, 0.5, sought, done_at=0.6))
    for number in numbers:
        subscription.events += [
            Delivered(session, 2.0 + number, LOG[number], None, 0),
            Acknowledged(session, 2.5 + number, (LOG[number].position,)),
        ]
    return subscription


def wrong(topic: TopicHistory, subscription: SubscriptionHistory | None = None) -> list[str]:
    """What the judge says."""
    found = {} if subscription is None else {(TOPIC, "sub"): subscription}
    return check(History({TOPIC: topic}, found))


def test_the_log_is_what_was_trimmed_and_what_is_left() -> None:
    topic = topic_of()
    assert topic.log_with(LOG[2:]) == topic.log_with(LOG[1:]) == LOG
    # What was read out of order, or twice, is not put right.
    assert topic.log_with([LOG[3], LOG[2]]) == [LOG[3], LOG[2]]
    assert topic.log_with([LOG[2], LOG[2]]) == [LOG[2], LOG[2]]


def test_readers_may_miss_what_was_trimmed_and_nothing_else() -> None:
    topic = topic_of()
    topic.readings = [LOG[2:], [LOG[0], *LOG[2:]], LOG[1:]]
    topic.whole = [LOG[2:]]
    assert wrong(topic) == []
    topic.readings = [[LOG[0], LOG[3]]]
    topic.whole = [[LOG[0]]]
    found = wrong(topic)
    assert any(one.endswith(f"reader 0 has {LOG[3]} as number 2; it is {LOG[2]}") for one in found)
    assert any("a reader is told that it is at the end" in one for one in found)


def test_a_subscription_misses_only_what_was_trimmed_before_it_came() -> None:
    late = topic_of(subscriptions=frozenset())
    assert wrong(late, delivered(2, 3)) == []
    found = wrong(topic_of(), delivered(2, 3))
    assert any("gets (1, 2) and not (1, 0)" in one for one in found)
    assert any("[0] of (1, 1) never came to be acknowledged" in one for one in found)


def test_a_seek_goes_to_the_first_entry_that_is_left() -> None:
    topic = topic_of()
    assert wrong(topic, delivered(2, 3, sought=(1, 0))) == []
    # It may have been there at the time.
    assert wrong(topic, delivered(1, 2, 3, sought=(1, 1))) == []
    found = wrong(topic, delivered(3, sought=(1, 0)))
    assert any("gets (1, 3) first after the seek to (1, 0)" in one for one in found)


def test_who_reads_compacted_misses_only_what_was_trimmed_before_any_compaction() -> None:
    entries = [CompactedEntry(entry.position, entry.content, frozenset({0}), 9.0) for entry in LOG[2:]]
    reading = CompactedReading("reader", TOPIC, quiet=True, entries=entries, whole=True, end=(1, 3), ended_at=9.0)
    for compacted in (False, True):
        history = History({TOPIC: topic_of(compacted=compacted)}, compacted=[reading])
        found = [one for one in check(history) if "with the key None is missing" in one]
        assert bool(found) == compacted


def test_trims_are_drawn_where_they_can_be_judged() -> None:
    alone = [found for seed in range(1_000) if (found := draw_compaction(seed, alone=True)) is not None]
    assert 80 < sum(found.trims for found in alone) < 160
    assert 30 < sum(found.slow for found in alone) < 100
    beside = (draw_compaction(seed, alone=False) for seed in range(1_000))
    assert not any(found.trims or found.slow for found in beside if found is not None)
