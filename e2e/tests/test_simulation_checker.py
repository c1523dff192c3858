"""The simulator's judge is not blind: each broken promise, made by hand, is seen, and a good history is not."""

from __future__ import annotations

from typing import Final

import pytest

from e2e.simulation.checker import check
from e2e.simulation.history import (
    Appended,
    Confirmed,
    Event,
    History,
    Opened,
    Read,
    Replicas,
    Unreadable,
    WriterClosed,
)

PAYLOADS: Final = [b"zero", b"one", b"two", b"three"]


def opened(
    who: str, last: int, at: float, *, closed: bool = True, length_bytes: int | None = None, recovered: bool = False
) -> Opened:
    length = sum(map(len, PAYLOADS[: last + 1])) if length_bytes is None else length_bytes
    return Opened(who, recovered, closed, last, length, at - 0.1, at)


def good_events() -> list[Event]:
    return [
        Appended(0, 2, -1, 1.0),
        Confirmed(1, 1.1),
        Appended(2, 1, 1, 1.2),
        opened("reader", -1, 1.4, closed=False, length_bytes=0),
        Confirmed(2, 1.5),
        opened("reader", 1, 2.0, closed=False),
        Read("reader", 0, PAYLOADS[:2], 2.1),
        Appended(3, 1, 2, 2.2),
        WriterClosed(2, sum(map(len, PAYLOADS[:3])), 3.0),
        opened("final0", 2, 4.0, recovered=True),
        Read("final0", 0, PAYLOADS[:3], 4.1),
        opened("final1", 2, 5.0),
        Read("final1", 0, PAYLOADS[:1], 5.1),
        Read("final1", 1, PAYLOADS[1:3], 5.2),
        Replicas(1, 2, ["a", "b"]),
    ]


def judged(events: list[Event], *, finished: bool = True) -> list[str]:
    history = History()
    ledger = history.ledger(7)
    ledger.payloads = list(PAYLOADS)
    ledger.events = events
    ledger.finished = finished
    return check(history)


def test_a_good_history_is_good() -> None:
    assert judged(good_events()) == []


@pytest.mark.parametrize(
    ("event", "position", "words"),
    [
        (Confirmed(1, 1.15), 2, "was told 1 after 1"),
        (Confirmed(9, 2.3), 8, "appended 4 entries"),
        (Confirmed(3, 2.9), 8, "and lost"),
        (Confirmed(3, 9.0), 9, "past the fence"),
        (opened("other", 1, 6.0), 12, "that it ends at 1"),
        (opened("other", 2, 6.0, length_bytes=1), 12, "with 1 bytes"),
        (opened("other", 3, 2.5, closed=False), 8, "that 3 is confirmed"),
        (Read("other", 2, PAYLOADS[2:4], 2.5), 8, "2 entries from 2"),
        (Read("other", 1, [b"two"], 2.5), 8, "another entry 1"),
        (opened("other", 0, 2.5, closed=False), 8, "1 was known before"),
        (opened("other", 2, 6.0, closed=False), 12, "found it open"),
        (Unreadable("final1", 1, "gone"), 13, "cannot read entry 1"),
        (Replicas(0, 3, ["a", "b"]), 14, "3 are wanted"),
    ],
)
def test_a_broken_promise_is_seen(event: Event, position: int, words: str) -> None:
    events = good_events()
    events.insert(position, event)
    found = judged(events)
    assert any(words in violation for violation in found), found


def test_what_was_not_read_at_the_end_is_missed() -> None:
    events = [event for event in good_events() if not (isinstance(event, Read) and event.at_seconds == 5.2)]
    assert any("was not given [1, 2]" in violation for violation in judged(events))


def test_one_final_reader_is_not_enough() -> None:
    events = [event for event in good_events() if not (isinstance(event, Read) and event.who == "final1")]
    assert any("only ['final0']" in violation for violation in judged(events))


def test_a_ledger_that_nobody_could_read_is_missed() -> None:
    assert any("nobody could read" in violation for violation in judged(good_events(), finished=False))


def test_who_is_stuck_is_told() -> None:
    history = History()
    history.stuck.append("writer0 does not come to an end")
    assert check(history) == ["writer0 does not come to an end"]
