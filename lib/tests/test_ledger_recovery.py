from __future__ import annotations

import itertools

import pytest
from magnetar.ledger.recovery import EntrySearch, EntryVerdict, LastConfirmedRound
from magnetar.ledger.striping import covered

UNKNOWN, FOUND = EntryVerdict.UNKNOWN, EntryVerdict.FOUND
ABSENT, UNREADABLE = EntryVerdict.ABSENT, EntryVerdict.UNREADABLE


def verdict(write_quorum: int, ack_quorum: int, answers: str) -> EntryVerdict:
    """f = found, d = denied, e = error."""
    search = EntrySearch(write_quorum, ack_quorum)
    for answer in answers:
        if answer == "f":
            search.found(b"entry")
        elif answer == "d":
            search.denied()
        else:
            search.failed()
    return search.verdict


@pytest.mark.parametrize(
    ("write_quorum", "ack_quorum", "answers", "expected"),
    [
        (3, 2, "", UNKNOWN),
        (3, 2, "d", UNKNOWN),
        (3, 2, "dd", ABSENT),
        (3, 2, "ddf", FOUND),
        (3, 2, "de", UNKNOWN),
        (3, 2, "dee", UNREADABLE),
        (3, 2, "eed", UNREADABLE),
        (3, 2, "eee", UNREADABLE),
        (3, 2, "eef", FOUND),
        (3, 3, "d", ABSENT),
        (3, 1, "dd", UNKNOWN),
        (3, 1, "ddd", ABSENT),
        (3, 1, "dde", UNREADABLE),
        (3, 1, "edd", UNREADABLE),
        (1, 1, "d", ABSENT),
        (1, 1, "e", UNREADABLE),
    ],
)
def test_verdicts(write_quorum: int, ack_quorum: int, answers: str, expected: EntryVerdict) -> None:
    assert verdict(write_quorum, ack_quorum, answers) is expected


def test_an_acknowledged_entry_is_never_called_absent() -> None:
    for write_quorum in range(1, 6):
        for ack_quorum in range(1, write_quorum + 1):
            # The bookies that acknowledged it may be away, but they never deny it; all others may.
            for holders in range(ack_quorum, write_quorum + 1):
                for away in range(holders + 1):
                    answers = "e" * away + "d" * (write_quorum - holders)
                    assert verdict(write_quorum, ack_quorum, answers) is not ABSENT


def test_the_highest_lac_wins_with_its_length() -> None:
    heard = LastConfirmedRound(3, 3, 2)
    coverage = [heard.covered]
    heard.answered_with(0, 5, 500)
    coverage.append(heard.covered)
    heard.answered_with(2, 3, 900)
    coverage.append(heard.covered)
    assert coverage == [False, False, True]
    heard.answered(1)
    assert (heard.last_add_confirmed, heard.length_bytes, heard.answers) == (5, 500, 3)


def test_denials_count_as_answers() -> None:
    heard = LastConfirmedRound(1, 1, 1)
    heard.answered(0)
    assert (heard.covered, heard.last_add_confirmed) == (True, -1)


def test_coverage_is_the_rule_of_striping() -> None:
    for indexes in itertools.chain.from_iterable(itertools.combinations(range(5), size) for size in range(6)):
        heard = LastConfirmedRound(5, 3, 2)
        for index in indexes:
            heard.answered(index)
        assert heard.covered == covered(indexes, 5, 3, 2)
