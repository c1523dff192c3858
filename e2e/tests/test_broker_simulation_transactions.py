"""The judge of transactions is not blind: each broken promise, made by hand, is seen, and a good history is not."""

from __future__ import annotations

import pytest
from magnetar.core.ids import Position

from e2e.broker_simulation.checker import check
from e2e.broker_simulation.history import (
    Content,
    Entry,
    History,
    LateAcknowledgement,
    LateMessage,
    Taken,
    TopicHistory,
    TransactionHistory,
)
from e2e.broker_simulation.transactions.rules import counts
from e2e.broker_simulation.transactions.stragglers import is_over

IN, OUT = "in", "out"


class Story:
    """Two messages of a batch, each taken by a transaction of its own; the second one was aborted, and once more."""

    def __init__(self) -> None:
        self.batch = Entry((1, 0), Content("p", 0, 2), "")
        self.first = TransactionHistory((0, 0), "t", [(OUT, Content("t", 0, 1))], [taken((1, 0), 0)], True, True)
        self.aborted = TransactionHistory((0, 1), "t", [(OUT, Content("t", 1, 1))], [taken((1, 0), 1)], False, True)
        self.again = TransactionHistory((0, 2), "t", [(OUT, Content("t", 2, 1))], [taken((1, 0), 1)], True, True)
        self.topics = {name: TopicHistory(name, deduplication=False) for name in (IN, OUT)}
        self.out = [Entry((2, 0), Content("t", 0, 1), ""), Entry((2, 3), Content("t", 2, 1), "")]

    def history(self) -> History:
        """With all that was read."""
        self.topics[IN].logs = [[self.batch]]
        self.topics[OUT].logs = [self.out]
        for topic in self.topics.values():
            for entry in topic.logs[0]:
                topic.sent[entry.content] = ""
                topic.attempts[entry.content] = 1
        history = History(self.topics, transactions=[self.first, self.aborted, self.again])
        history.plain = {(OUT, entry.position, 0) for entry in self.out}
        history.shown = [(IN, self.batch), *((OUT, entry) for entry in self.out)]
        return history


def taken(position: Position, *indexes: int) -> Taken:
    return Taken(IN, position, frozenset(indexes))


def test_a_good_history_has_nothing_wrong() -> None:
    assert check(Story().history()) == []


def test_what_was_committed_must_be_there() -> None:
    story = Story()
    del story.out[0]
    assert "is committed, and t:0 is not there" in check(story.history())[0]


def test_of_an_unsure_commit_all_is_there_or_nothing() -> None:
    story = Story()
    story.again.answered = False
    assert check(story.history()) == []
    story.again.sent.append((OUT, Content("t", 3, 1)))
    assert "shows t:2, and t:3 is not there" in check(story.history())[0]


@pytest.mark.parametrize("how", ["aborted", "never ended", "refused"])
def test_of_what_was_not_committed_nothing_may_be_there(how: str) -> None:
    story = Story()
    story.out.insert(1, Entry((2, 1), Content("t", 1, 1), ""))
    if how != "aborted":
        story.aborted.answered = False
        story.aborted.commit = None if how == "never ended" else True
        story.aborted.refused = how == "refused"
    assert any("t:1 is there" in found for found in check(story.history()))


def test_nobody_may_be_sent_what_was_aborted() -> None:
    history = Story().history()
    history.shown.append((OUT, Entry((2, 1), Content("t", 1, 1), "")))
    assert any("a transactor of out gets" in found for found in check(history))


def test_a_message_is_taken_once() -> None:
    story = Story()
    story.again.taken.append(taken((1, 0), 0))
    assert any("message 0 of (1, 0) of in is taken by (0, 0) and by (0, 2)" in one for one in check(story.history()))


def test_no_message_is_passed_over() -> None:
    story = Story()
    story.again.taken.clear()
    assert any("message 1 of" in found and "by no transaction that counts" in found for found in check(story.history()))


def test_who_counts() -> None:
    stored = {OUT: {Content("t", 2, 1)}}
    story = Story()
    assert [counts(one, stored) for one in (story.first, story.aborted, story.again)] == [True, False, True]
    story.first.answered = story.again.answered = False
    assert [counts(one, stored) for one in (story.first, story.aborted, story.again)] == [False, False, True]


LATE = Content("s", 0, 1)


def late_story(of: str, *, over: bool, confirmed: bool, there: bool) -> History:
    """A straggler has published in one of the transactions."""
    story = Story()
    story.again.answered = False
    if there:
        story.out.insert(1, Entry((2, 1), LATE, ""))
    history = story.history()
    history.late_messages.append(LateMessage(getattr(story, of), OUT, LATE, over, confirmed))
    return history


@pytest.mark.parametrize(
    ("of", "over", "confirmed", "there", "wrong"),
    [
        ("first", True, False, False, ""),
        ("first", True, True, False, "is confirmed, and was sent when that was over"),
        ("first", True, False, True, "is there, and was sent when that was over"),
        ("first", False, True, True, ""),
        ("again", False, True, True, ""),
        ("aborted", False, True, False, ""),
        ("aborted", False, True, True, "is there, and that does not count"),
    ],
)
def test_what_comes_late_is_refused_and_is_not_there(
    of: str, over: bool, confirmed: bool, there: bool, wrong: str
) -> None:
    found = check(late_story(of, over=over, confirmed=confirmed, there=there))
    assert [one.partition(f" on {OUT} ")[2] for one in found] == ([wrong] if wrong else [])


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_late_acknowledgement_is_refused(*, confirmed: bool) -> None:
    story = Story()
    history = story.history()
    history.late_acknowledgements.append(LateAcknowledgement(story.first, IN, (1, 0), confirmed))
    assert len(check(history)) == confirmed


@pytest.mark.parametrize(
    ("commit", "answered", "left", "over"),
    [
        (True, True, False, True),
        (True, False, True, False),
        (None, False, False, False),
        (None, False, True, True),
        (False, False, True, True),
    ],
)
def test_a_transaction_is_over_when_nobody_can_commit_it(
    commit: bool | None, answered: bool, left: bool, over: bool
) -> None:
    one = TransactionHistory((0, 0), "t", commit=commit, answered=answered, left=left)
    assert is_over(one) is over
