"""What is decided about the end of a followed ledger: when to look, when to ask, what to show."""

from __future__ import annotations

import pytest
from magnetar.core.errors import PeerError
from magnetar.managed.following.list_changes import NO_LEDGER, current_of, take_over
from magnetar.managed.following.settings import FollowSettings
from magnetar.managed.following.tail import NEVER, LedgerTail, TailStep
from magnetar.managed.info_codec import LedgerInfo
from magnetar.managed.ledger_list import LedgerList, LedgerRecord

SETTINGS = FollowSettings(unconfirmed_bytes_max=4)


def taken(tail: LedgerTail) -> list[bytes]:
    shown = tail.take()
    return [] if shown is None else shown.payloads


def test_what_is_confirmed_is_shown_and_what_is_not_waits() -> None:
    tail = LedgerTail(7, SETTINGS)
    tail.saw([b"a", b"b"], 0, 1.0)
    tail.confirm(0)
    assert taken(tail) == [b"a"]
    assert (tail.shown, tail.next_entry_id, tail.waiting_entries, tail.since_seconds) == (0, 2, 1, 1.0)
    assert taken(tail) == []
    tail.saw([b"c"], 2, 2.0)
    tail.confirm(2)
    shown = tail.take()
    assert shown is not None
    assert (shown.first_entry_id, shown.payloads, shown.length_bytes) == (1, [b"b", b"c"], 3)
    assert (tail.waiting_entries, tail.since_seconds) == (0, NEVER)


def test_looks_follow_at_once_on_news_and_rarer_and_rarer_on_none() -> None:
    tail = LedgerTail(7, SETTINGS)
    assert tail.next_step(0.0) == (TailStep.LOOK, 0.0)
    pauses = []
    now = 0.0
    for _ in range(6):
        tail.saw([], 0, now)
        step, pause = tail.next_step(now)
        assert step is TailStep.PAUSE
        pauses.append(round(pause, 6))
        now += pause + 0.000001
        assert tail.next_step(now)[0] is TailStep.LOOK
    assert pauses == [0.005, 0.01, 0.02, 0.04, 0.05, 0.05]
    tail.saw([b"a"], 0, now)
    assert tail.next_step(now)[0] is TailStep.LOOK
    tail.saw([], 0, now)
    tail.confirm(0)
    tail.take()
    step, pause = tail.next_step(now)
    assert step is TailStep.PAUSE
    assert round(pause, 6) == 0.005


def test_what_is_vouched_for_again_is_no_news() -> None:
    """An entry that nobody can read yet would have bookies asked without a pause."""
    tail = LedgerTail(7, SETTINGS)
    tail.confirm(3)
    assert tail.next_step(0.0)[0] is TailStep.LOOK
    tail.saw([], 0, 0.0)
    assert tail.next_step(0.0)[0] is TailStep.PAUSE
    tail.confirm(3)
    assert tail.next_step(0.0)[0] is TailStep.PAUSE
    tail.confirm(4)
    assert tail.next_step(0.0)[0] is TailStep.LOOK


def test_the_owner_is_asked_when_nothing_new_comes_and_later_after_each_answer_that_does_not_help() -> None:
    tail = LedgerTail(7, SETTINGS)
    tail.saw([b"a"], 0, 1.0)
    assert tail.next_step(1.0)[0] is TailStep.LOOK
    tail.saw([], 0, 1.0)
    assert tail.next_step(1.0)[0] is TailStep.ASK_OWNER
    tail.asking(1.0)
    assert tail.next_step(1.0)[0] is TailStep.PAUSE  # One question at a time.
    now, pauses = 1.0, []
    for _ in range(9):
        tail.answered(-1, now)
        asked = now
        while tail.next_step(now)[0] is not TailStep.ASK_OWNER:
            step, pause = tail.next_step(now)
            if step is TailStep.LOOK:
                tail.saw([], 0, now)
            else:
                now += pause + 0.000001
        pauses.append(round(now - asked, 3))
        tail.asking(now)
    assert pauses == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]
    tail.answered(0, now)
    assert taken(tail) == [b"a"]
    assert tail.next_step(now)[0] is TailStep.PAUSE


def test_an_owner_that_is_away_is_not_asked_more_often_because_of_news() -> None:
    tail = LedgerTail(7, SETTINGS)
    tail.saw([b"a"], 0, 1.0)
    tail.saw([], 0, 1.0)
    tail.asking(1.0)
    tail.not_answered(1.0)
    assert tail.owner_away
    tail.saw([b"b"], 1, 1.05)
    tail.saw([], 0, 1.05)
    assert tail.next_step(1.05)[0] is TailStep.PAUSE
    tail.saw([], 0, 1.1)
    assert tail.next_step(1.1)[0] is TailStep.ASK_OWNER


def test_an_owner_that_stays_away_is_asked_later_each_time_and_one_that_is_back_is_not() -> None:
    tail = LedgerTail(7, SETTINGS)
    tail.saw([b"a"], 0, 1.0)
    tail.saw([], 0, 1.0)
    for pause in (0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0):
        tail.asking(1.0)
        tail.not_answered(1.0)
        tail.saw([], 1, 0.99 + pause)
        assert tail.next_step(0.99 + pause)[0] is TailStep.PAUSE
        assert tail.next_step(1.0 + pause)[0] is TailStep.ASK_OWNER
    tail.asking(9.0)
    tail.answered(-1, 9.0)
    assert not tail.owner_away
    tail.asking(9.1)
    tail.not_answered(9.1)
    assert tail.next_step(9.1 + SETTINGS.retry_seconds_min)[0] is TailStep.ASK_OWNER


def test_news_are_asked_about_soon_whatever_did_not_help_before() -> None:
    tail = LedgerTail(7, SETTINGS)
    tail.saw([b"a"], 0, 1.0)
    tail.saw([], 1, 1.0)
    for _ in range(6):
        tail.asking(1.0)
        tail.answered(-1, 1.0)
    tail.asking(3.0)
    tail.answered(-1, 3.0)
    # The last question was a moment ago: that is the shortest pause, and the next one is not longer.
    tail.saw([b"b"], 1, 3.001)
    tail.saw([], 2, 3.001)
    assert tail.next_step(3.009)[0] is not TailStep.ASK_OWNER
    assert tail.next_step(3.011)[0] is TailStep.ASK_OWNER
    tail.asking(3.011)
    tail.answered(-1, 3.02)
    assert tail.next_step(3.031)[0] is TailStep.ASK_OWNER


def test_the_next_entry_is_looked_for_as_soon_as_somebody_vouches_for_it() -> None:
    tail = LedgerTail(7, SETTINGS)
    tail.saw([], 0, 1.0)
    tail.confirm(0)
    assert tail.next_step(1.0)[0] is TailStep.LOOK


def test_what_is_vouched_for_and_not_seen_waits_too() -> None:
    tail = LedgerTail(7, SETTINGS)
    tail.confirm(4)
    assert tail.waiting_entries == 5
    tail.saw([b"a"], 0, 1.0)
    assert tail.waiting_entries == 5
    assert taken(tail) == [b"a"]
    assert tail.waiting_entries == 4


def test_room_is_what_all_looks_together_leave() -> None:
    tail = LedgerTail(7, SETTINGS)
    tail.saw([b"aa"], 0, 1.0)
    assert tail.next_step(1.0)[0] is TailStep.LOOK
    tail.saw([b"b", b"b"], 2, 1.0)
    assert tail.next_step(1.0)[0] is TailStep.ASK_OWNER


def test_bookies_are_asked_rarer_and_rarer() -> None:
    tail = LedgerTail(7, SETTINGS)
    tail.saw([b"aaaa"], 0, 1.0)
    tail.asking(1.0)
    pauses = []
    for _ in range(5):
        tail.asked_bookies(1.0)
        pauses.append(round(tail.next_step(1.0)[1], 6))
    assert pauses == [0.005, 0.01, 0.02, 0.04, 0.05]


def test_the_longest_pause_is_asked_for_each_time() -> None:
    longest = [0.01]
    tail = LedgerTail(7, FollowSettings(longest_pause_seconds=lambda: longest[0]))
    pauses = []
    for _ in range(8):
        tail.saw([], 0, 1.0)
        pauses.append(round(tail.next_step(1.0)[1], 6))
        if len(pauses) == 4:
            longest[0] = 0.4
    assert pauses == [0.005, 0.01, 0.01, 0.01, 0.08, 0.16, 0.32, 0.4]


def test_without_room_bookies_are_asked_and_not_read() -> None:
    tail = LedgerTail(7, SETTINGS)
    tail.saw([b"aaaa"], 0, 1.0)
    assert tail.next_step(1.0)[0] is TailStep.ASK_OWNER
    tail.asking(1.0)
    assert tail.next_step(1.0)[0] is TailStep.ASK_BOOKIES
    tail.asked_bookies(1.0)
    assert tail.next_step(1.0)[0] is TailStep.PAUSE


def test_what_is_vouched_for_and_not_seen_is_looked_for_and_else_shown_unseen() -> None:
    tail = LedgerTail(7, SETTINGS)
    tail.saw([], 0, 1.0)
    tail.confirm(4)
    assert tail.next_step(1.0)[0] is TailStep.LOOK
    tail.saw([b"a"], 0, 1.0)
    assert taken(tail) == [b"a"]
    assert tail.skip()
    assert (tail.shown, tail.next_entry_id) == (4, 5)
    assert not tail.skip()


@pytest.mark.parametrize(("last_entry_id", "shown"), [(2, [b"b", b"c"]), (1, [b"b"]), (0, []), (-1, [])])
def test_the_end_is_final(last_entry_id: int, shown: list[bytes]) -> None:
    tail = LedgerTail(7, SETTINGS)
    tail.saw([b"a", b"b", b"c"], 0, 1.0)
    tail.confirm(0)
    assert taken(tail) == [b"a"]
    tail.end(last_entry_id)
    tail.confirm(9)
    assert taken(tail) == shown
    assert taken(tail) == []
    assert not tail.skip()
    assert tail.waiting_entries == 0
    assert tail.next_step(99.0) == (TailStep.PAUSE, NEVER)


def test_what_was_seen_beyond_the_end_waits_no_more() -> None:
    tail = LedgerTail(7, SETTINGS)
    tail.saw([b"a", b"b", b"c", b"d"], 0, 1.0)
    tail.confirm(1)
    assert taken(tail) == [b"a", b"b"]
    tail.end(2)
    assert (tail.waiting_entries, tail.since_seconds) == (1, 1.0)
    assert taken(tail) == [b"c"]
    assert (tail.waiting_entries, tail.next_entry_id) == (0, 3)
    tail = LedgerTail(7, SETTINGS)
    tail.saw([b"a"], 0, 1.0)
    tail.end(-1)
    assert (tail.waiting_entries, tail.since_seconds) == (0, NEVER)


def info(*records: tuple[int, int], terminated_at: tuple[int, int] | None = None) -> LedgerInfo:
    """Ledgers with their counts; -1: in use."""
    stored = [LedgerRecord(each, max(0, count), 10 * max(0, count), int(count >= 0)) for each, count in records]
    return LedgerInfo(stored, terminated_at, {})


def test_the_list_is_taken_over() -> None:
    ledgers = LedgerList([])
    take_over(ledgers, info())
    assert ledgers.ids == [NO_LEDGER]
    assert ledgers.last_position() == (-1, -1)
    changes = take_over(ledgers, info((3, 5), (4, -1)))
    assert (changes.added, changes.removed) == ([3, 4], [NO_LEDGER])
    record = ledgers.get(4)
    assert record is not None
    record.entries = 2  # What is shown of it by now.
    assert not take_over(ledgers, info((3, 5), (4, -1)))
    assert ledgers.entries_in(4) == 2
    changes = take_over(ledgers, info((4, 6), (9, -1)))
    assert (changes.added, changes.removed, changes.counted) == ([9], [3], [4])
    assert [(each.ledger_id, each.entries) for each in ledgers.records()] == [(4, 6), (9, 0)]
    assert current_of(info((4, 6), (9, -1))) == 9
    take_over(ledgers, info((4, 6), (9, -1), terminated_at=(9, 3)))
    assert ledgers.entries_in(9) == 4
    assert current_of(info((9, -1), terminated_at=(9, 3))) is None
    assert current_of(info((9, 3))) is None


@pytest.mark.parametrize("ids", [(5, 4), (4, 4), (1, 9), (-2, 9)])
def test_a_list_out_of_order_is_refused_and_changes_nothing(ids: tuple[int, int]) -> None:
    ledgers = LedgerList([LedgerRecord(3, 1), LedgerRecord(4)])
    with pytest.raises(PeerError, match=r"out of order|has come before"):
        take_over(ledgers, info(*((each, -1) for each in ids)))
    assert ledgers.ids == [3, 4]


def test_what_is_told_is_looked_for_at_once_and_shown_when_it_is_seen() -> None:
    tail = LedgerTail(7, SETTINGS)
    tail.saw([], 0, 1.0)
    assert tail.next_step(1.0)[0] is TailStep.PAUSE
    tail.tell(2, 1.0)
    assert (tail.is_sought, tail.shown, tail.confirmed) == (True, -1, -1)
    assert tail.next_step(1.0)[0] is TailStep.LOOK
    tail.saw([b"a", b"b"], 0, 1.0)
    assert taken(tail) == [b"a", b"b"]
    # One that is not there is looked for at the usual pace, and not shown, whatever else comes.
    tail.saw([], 2, 1.0)
    assert tail.next_step(1.0)[0] is TailStep.PAUSE
    assert not tail.skip()
    tail.saw([b"c", b"d"], 2, 2.0)
    assert taken(tail) == [b"c"]
    assert (tail.is_sought, tail.waiting_entries) == (False, 1)
    # Who begins anew tells of older ones.
    tail.tell(0, 2.0)
    assert taken(tail) == []
    tail.tell(3, 2.0)
    assert taken(tail) == [b"d"]


def test_who_tells_of_less_takes_nothing_back() -> None:
    """Notices of two connections may cross."""
    tail = LedgerTail(7, SETTINGS)
    tail.tell(2, 0.0)
    tail.tell(0, 0.0)
    tail.saw([b"a", b"b", b"c"], 0, 0.0)
    assert taken(tail) == [b"a", b"b", b"c"]


def test_what_is_told_beyond_the_end_is_not_there() -> None:
    tail = LedgerTail(7, SETTINGS)
    tail.end(1)
    tail.tell(5, 0.0)
    assert (tail.confirmed, tail.next_step(0.0)) == (1, (TailStep.PAUSE, NEVER))


# --- an owner that tells of its end by itself

NOTICES = FollowSettings(unconfirmed_bytes_max=4, wants_notices=True)


def test_an_owner_that_may_give_notices_is_asked_first_and_once() -> None:
    tail = LedgerTail(7, NOTICES)
    assert tail.next_step(0.0) == (TailStep.ASK_OWNER, 0.0)
    tail.asking(0.0)
    assert tail.next_step(0.0)[0] is TailStep.LOOK
    tail.answered(-1, 0.1)
    tail.saw([], 0, 0.1)
    assert tail.next_step(0.1)[0] is TailStep.PAUSE
    assert tail.next_step(50.0)[0] is TailStep.LOOK


def test_an_owner_that_is_away_at_first_is_asked_again() -> None:
    tail = LedgerTail(7, NOTICES)
    tail.asking(0.0)
    tail.not_answered(0.1)
    tail.saw([], 0, 0.1)
    assert tail.next_step(0.1)[0] is TailStep.PAUSE
    assert tail.next_step(0.1 + NOTICES.retry_seconds_min)[0] is TailStep.ASK_OWNER


def with_notices() -> LedgerTail:
    """The owner gives them; nothing is there at second 1."""
    tail = LedgerTail(7, NOTICES)
    tail.use_notices(1.0, has_notices=True)
    tail.saw([], 0, 1.0)
    return tail


def test_with_notices_a_silent_ledger_is_looked_at_once_a_second_and_at_once_when_told() -> None:
    tail = with_notices()
    assert tail.next_step(1.0) == (TailStep.PAUSE, NOTICES.look_pause_seconds_max * NOTICES.rarer_with_notices)
    tail.tell(1, 1.5)
    assert tail.next_step(1.5)[0] is TailStep.LOOK
    # The bookie that was asked has it not yet: it is sought at the quick pace.
    tail.saw([], 0, 1.5)
    step, pause = tail.next_step(1.5)
    assert step is TailStep.PAUSE
    assert pause < 0.05
    tail.saw([b"a", b"b"], 0, 1.6)
    assert taken(tail) == [b"a", b"b"]


def test_what_a_notice_may_still_tell_of_is_not_asked_about() -> None:
    tail = with_notices()
    tail.saw([b"a"], 0, 2.0)
    tail.saw([], 1, 2.0)
    assert tail.next_step(2.0) == (TailStep.PAUSE, NOTICES.notice_seconds_max)
    tail.tell(-1, 2.5)  # Somebody is there and tells of others.
    assert tail.next_step(3.2)[0] is not TailStep.ASK_OWNER
    assert tail.next_step(2.5 + NOTICES.notice_seconds_max)[0] is TailStep.ASK_OWNER


def test_an_owner_with_notices_that_does_not_help_is_asked_later_each_time() -> None:
    """Else an entry that is never confirmed would cost a question a turn."""
    tail = with_notices()
    tail.saw([b"a"], 0, 2.0)
    tail.saw([], 1, 2.0)
    assert tail.next_step(3.0)[0] is TailStep.ASK_OWNER
    for pause in (0.01, 0.02, 0.04):
        tail.asking(3.0)
        tail.answered(-1, 3.0)
        assert tail.next_step(2.999 + pause)[0] is not TailStep.ASK_OWNER
        assert tail.next_step(3.0 + pause)[0] is TailStep.ASK_OWNER
    tail.asking(4.0)
    tail.not_answered(4.0)
    tail.saw([], 1, 4.0)
    assert tail.next_step(4.09)[0] is not TailStep.ASK_OWNER
    assert tail.next_step(4.1)[0] is TailStep.ASK_OWNER


def test_with_notices_the_owner_is_asked_at_once_when_there_is_no_room() -> None:
    tail = with_notices()
    tail.saw([b"abcd"], 0, 2.0)
    assert tail.next_step(2.0)[0] is TailStep.ASK_OWNER


def test_an_entry_that_is_not_confirmed_yet_is_no_notice_that_failed_to_come() -> None:
    tail = with_notices()
    tail.saw([b"a"], 0, 2.0)
    tail.saw([], 1, 2.0)
    tail.asking(3.0)
    assert tail.next_step(3.0)[0] is TailStep.LOOK
    tail.answered(-1, 3.1)
    tail.saw([], 1, 3.1)
    tail.tell(0, 3.2)
    assert taken(tail) == [b"a"]
    tail.saw([], 1, 3.2)
    rarely = NOTICES.look_pause_seconds_max * NOTICES.rarer_with_notices
    assert tail.next_step(3.2) == (TailStep.PAUSE, rarely)
    tail.saw([b"b"], 1, 4.0)
    tail.saw([], 2, 4.0)
    tail.asking(5.0)
    tail.answered(0, 5.0)
    tail.saw([], 2, 5.0)
    step, pause = tail.next_step(5.0)
    assert step is TailStep.PAUSE
    assert pause < 0.05
    assert tail.next_step(4.9 + rarely)[0] is TailStep.ASK_OWNER
    tail.asking(5.1)
    tail.answered(1, 5.1)
    assert taken(tail) == [b"b"]
    tail.saw([], 2, 5.1)
    step, pause = tail.next_step(5.1)
    assert step is TailStep.PAUSE
    assert pause < 0.05  # It confirmed that one, and did not tell.


def test_without_notices_again_the_ledger_is_looked_at_and_the_owner_asked() -> None:
    tail = with_notices()
    tail.answered(-1, 1.0)
    for _ in range(9):
        tail.saw([], 0, 1.0)
    tail.use_notices(1.1, has_notices=False)
    assert tail.next_step(1.1)[0] is TailStep.ASK_OWNER
    tail.asking(1.1)
    assert tail.next_step(1.1)[0] is TailStep.LOOK
    tail.saw([], 0, 1.1)
    step, pause = tail.next_step(1.1)
    assert step is TailStep.PAUSE
    assert round(pause, 6) == SETTINGS.look_pause_seconds_min


def test_what_waits_has_waited_since_the_look_that_brought_it() -> None:
    """A busy ledger always has entries that nobody vouches for yet: they are not the ones of an hour ago."""
    tail = LedgerTail(7, FollowSettings())
    tail.saw([b"a", b"b"], 0, 1.0)
    tail.confirm(0)
    assert taken(tail) == [b"a"]
    assert tail.since_seconds == 1.0
    tail.saw([b"c", b"d"], 2, 2.0)
    tail.confirm(1)
    assert taken(tail) == [b"b"]
    assert tail.since_seconds == 2.0
    tail.saw([b"e"], 4, 3.0)
    tail.confirm(2)
    assert taken(tail) == [b"c"]
    assert tail.since_seconds == 2.0
