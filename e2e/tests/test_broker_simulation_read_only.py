"""The judge of brokers that only read sees each broken promise, and holds nothing against a good history."""

from __future__ import annotations

import pytest

from e2e.broker_simulation.deliveries import ALONE_SECONDS
from e2e.broker_simulation.drawn.read_only import NAME
from e2e.broker_simulation.history import Session
from e2e.tests.test_broker_simulation_checker import BROKER, SHARED, Story, entry

READING = f"{NAME}0"
LONG = 2 * ALONE_SECONDS


def session_at(story: Story, broker: str, link: int) -> Session:
    """A consumer is let in there."""
    session = story.session(link=link)
    session.broker, session.began_at = broker, story.tick()
    return session


def served_story() -> Story:
    """A subscription that a broker which only reads is bound to."""
    story = Story(SHARED)
    story.subscription.bindings.append((story.now, READING))
    return story


def test_a_subscription_that_moves_in_order() -> None:
    story = served_story()
    first = session_at(story, READING, 1)
    story.gets(first, 0, 1)
    story.acks(first, 0)
    story.acks(first, 1)
    story.ends(first)
    story.subscription.bindings.append((story.tick(), ""))
    story.now += LONG
    story.gets(session_at(story, BROKER, 2), 2, 3)
    assert story.violations() == []


def test_two_brokers_that_both_deliver() -> None:
    story = served_story()
    first, second = session_at(story, READING, 1), session_at(story, BROKER, 2)
    story.gets(first, 0)
    story.gets(second, 1)
    assert story.violations() == []  # For a moment they may.
    story.now += LONG
    story.gets(first, 2)
    story.gets(second, 3)
    assert "both get something" in story.violations()[0]
    story.subscription.harmed_at = 0.0
    assert story.violations() == []  # Who is cut off does not know better.
    story.subscription.calm_since = 0.0
    assert "both get something" in story.violations()[0]


def test_a_broker_that_delivers_unbound() -> None:
    story = served_story()
    first = session_at(story, READING, 1)
    story.gets(first, 0)
    story.subscription.bindings.append((story.tick(), ""))
    story.gets(first, 1)
    assert story.violations() == []
    story.now += LONG
    story.gets(first, 2)
    assert [each for each in story.violations() if each.endswith("unbound")]


@pytest.mark.parametrize("remaining", [None, {1}])
def test_what_has_a_receipt_comes_again(remaining: set[int] | None) -> None:
    """Of a batch nobody tells what was acknowledged in part before it was bound."""
    story = Story(SHARED, entries=[entry(0, messages=2), entry(2)])
    owner = session_at(story, BROKER, 1)
    story.gets(owner, 0)
    story.acks(owner, 0, remaining=remaining)
    story.ends(owner)
    story.subscription.bindings.append((story.tick(), READING))
    story.gets(session_at(story, READING, 2), 0)
    assert bool(story.violations()) is (remaining is None)


def test_what_was_acknowledged_there_in_part_comes_again() -> None:
    story = Story(SHARED, entries=[entry(0, messages=2), entry(2)])
    story.subscription.bindings.append((story.tick(), READING))
    first = session_at(story, READING, 1)
    story.gets(first, 0)
    story.acks(first, 0, remaining={1})
    story.ends(first)
    story.gets(session_at(story, READING, 2), 0)
    assert "gets [0] of" in story.violations()[0]


def test_a_reader_that_does_not_hear_of_the_end() -> None:
    story = Story()
    story.topic.whole.append(story.log[:3])
    assert "is told that it is at the end" in story.violations()[0]
