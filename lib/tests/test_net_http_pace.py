"""How slow an HTTP client may be."""

from __future__ import annotations

from dataclasses import replace

from magnetar.net.http.pace import HttpLimits, Pace, Traffic

LIMITS = HttpLimits(head_seconds_max=30, idle_seconds_max=75, window_seconds=30, pace_bytes_min=1_000)
QUIET = Traffic(
    received_bytes=0,
    sent_bytes=0,
    unsent_bytes=0,
    receiving=True,
    held_back=False,
    taken_bytes=0,
    body_complete=True,
)


def test_a_head_that_does_not_end() -> None:
    pace = Pace(LIMITS, 100.0)
    pace.received(125.0)
    assert pace.too_slow(129.9, QUIET) is None
    assert pace.too_slow(130.0, QUIET) == "no request in time"


def test_between_requests_and_the_next_head() -> None:
    pace = Pace(LIMITS, 0.0)
    pace.began()
    assert pace.too_slow(1_000.0, QUIET) is None, "a handler may take its time"
    pace.ended(1_000.0)
    assert pace.too_slow(1_074.9, QUIET) is None
    assert pace.too_slow(1_075.0, QUIET) == "idle"
    pace.received(1_070.0)
    pace.received(1_095.0)
    assert pace.too_slow(1_099.0, QUIET) is None
    assert pace.too_slow(1_100.0, QUIET) == "no request in time"


def test_a_body_that_trickles() -> None:
    pace = Pace(LIMITS, 0.0)
    pace.began()
    body = replace(QUIET, body_complete=False)
    for second in range(60):
        # 1 000 bytes a second are enough, for as long as it takes.
        assert pace.too_slow(second, replace(body, received_bytes=second * 1_000)) is None
    assert pace.too_slow(60, replace(body, received_bytes=60_000)) is None
    for second in range(61, 90):
        assert pace.too_slow(second, replace(body, received_bytes=60_000 + second)) is None
    assert pace.too_slow(90, replace(body, received_bytes=60_090)) == "the body does not come"


def test_each_request_has_a_time_of_its_own() -> None:
    """The end of a body is not always seen: the next one is not measured from where that began."""
    pace = Pace(LIMITS, 0.0)
    pace.began()
    body = replace(QUIET, body_complete=False)
    assert pace.too_slow(1.0, replace(body, received_bytes=100)) is None
    pace.ended(2.0)
    pace.received(60.0)
    pace.began()
    assert pace.too_slow(61.0, replace(body, received_bytes=200)) is None
    assert pace.too_slow(91.0, replace(body, received_bytes=200)) == "the body does not come"


def test_who_is_not_read_is_not_to_blame() -> None:
    pace = Pace(LIMITS, 0.0)
    pace.began()
    body = replace(QUIET, body_complete=False)
    for second in range(300):
        assert pace.too_slow(second, replace(body, receiving=False, held_back=True)) is None
    for second in range(300, 900):
        # A handler may take a byte in half a minute.
        assert pace.too_slow(second, replace(body, receiving=False, taken_bytes=second // 29)) is None
        assert pace.too_slow(second, replace(body, receiving=False, taken_bytes=second // 29, sent_bytes=1)) is None
    assert pace.too_slow(900, body) is None
    assert pace.too_slow(930, body) == "the body does not come"


def test_a_body_that_is_complete_is_waited_for_by_nobody() -> None:
    pace = Pace(LIMITS, 0.0)
    pace.began()
    for second in range(300):
        assert pace.too_slow(second, replace(QUIET, receiving=False)) is None


def test_a_body_that_nobody_takes_does_not_wait_for_ever() -> None:
    """Nothing is read meanwhile, so nobody would hear that the client is gone."""
    pace = Pace(LIMITS, 0.0)
    pace.began()
    unread = replace(QUIET, body_complete=False, receiving=False, taken_bytes=7)
    for second in range(60, 90):
        assert pace.too_slow(second, unread) is None
    assert pace.too_slow(90, unread) == "the body does not come"


def test_an_answer_that_is_not_read_also_after_its_request() -> None:
    for ended in (False, True):
        pace = Pace(LIMITS, 0.0)
        pace.began()
        if ended:
            pace.ended(0.0)
        for second in range(200):
            going = replace(QUIET, sent_bytes=second * 1_000, unsent_bytes=1)
            assert pace.too_slow(second, going) is None, "it is read slowly, and fast enough"
        stuck = replace(QUIET, sent_bytes=200_000, unsent_bytes=1)
        said = [pace.too_slow(second, stuck) for second in range(200, 260)]
        assert "the answer is not read" in said
        assert said.index("the answer is not read") <= 40


def test_an_answer_that_grows_begins_anew() -> None:
    pace = Pace(LIMITS, 0.0)
    pace.began()
    pace.ended(0.0)
    assert pace.too_slow(0.0, replace(QUIET, sent_bytes=-10, unsent_bytes=10)) is None
    assert pace.too_slow(29.0, replace(QUIET, sent_bytes=-90_000, unsent_bytes=90_000)) is None
    assert pace.too_slow(31.0, replace(QUIET, sent_bytes=-80_000, unsent_bytes=80_000)) is None
