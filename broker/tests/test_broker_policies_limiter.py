"""Token buckets and who waits at them."""

from __future__ import annotations

import pytest
from magnetar.broker.policies.broker_limits import ConnectionLimits
from magnetar.broker.policies.limiter import RateLimiter, TokenBucket, limiter_for
from magnetar.broker.policies.model import Rate
from magnetar.broker.policies.publish_buffer import PublishBuffer
from magnetar.net.refused_connections import FILES_SETTING, LimitKind
from magnetar.wire.pulsar.errors import PulsarError

from broker.tests.subscription_stage import Timers


class Reader:
    """A connection that can be held."""

    def __init__(self) -> None:
        self.reasons: set[str] = set()

    def pause_reading(self, reason: str) -> None:
        self.reasons.add(reason)

    def resume_reading(self, reason: str) -> None:
        self.reasons.discard(reason)


def limiter(timers: Timers, **rate: float) -> RateLimiter:
    return RateLimiter(Rate(**rate), timers, timers.call_later, "r")  # type: ignore[arg-type]


def test_a_bucket_fills_with_time_up_to_one_period_and_may_be_overdrawn() -> None:
    bucket = TokenBucket(10, 2, 0.0)
    assert bucket.take(4, 0.0) == 6
    assert bucket.take(0, 100.0) == 10
    assert bucket.take(25, 100.0) == -15
    assert bucket.seconds_until_token == 16 / 5
    assert bucket.take(0, 103.2) == pytest.approx(1)


def test_messages_and_bytes_each_stop() -> None:
    timers = Timers()
    both = limiter(timers, messages=10, size_bytes=1_000)
    assert not both.take(1, 100)
    assert both.room() == (9, 900)
    assert both.take(1, 900)
    timers.advance(1_000)
    assert both.take(10, 1)


def test_bytes_are_taken_also_where_messages_lack() -> None:
    both = limiter(Timers(), messages=1, size_bytes=1_000)
    assert both.take(5, 600)
    assert both.room() == (-4, 400)


def test_a_lowered_rate_leaves_nothing_saved_up() -> None:
    bucket = TokenBucket(100, 1, 0.0)
    bucket.set_rate(10, 1)
    assert bucket.take(0, 0.0) == 10
    bucket.take(15, 0.0)
    bucket.set_rate(100, 1)
    assert bucket.take(0, 0.0) == -5


def test_the_time_before_a_change_counts_at_the_rate_of_then() -> None:
    timers = Timers()
    changing = limiter(timers, messages=10)
    changing.take(10, 0)
    timers.advance(500)
    assert limiter_for(Rate(1_000), changing, timers, timers.call_later, "r") is changing
    assert changing.room()[0] == 5


def test_connections_are_held_until_tokens_return() -> None:
    timers = Timers()
    messages = limiter(timers, messages=100)
    reader = Reader()
    assert messages.take(150, 0)
    messages.hold(reader)
    messages.hold(reader)
    assert reader.reasons == {"r"}
    timers.advance(500)
    assert reader.reasons == {"r"}
    timers.advance(20)
    assert not reader.reasons
    assert timers.pending == 0
    assert messages.times == 1


def test_who_waits_has_its_turn_in_order_and_waits_again_when_nothing_is_left() -> None:
    timers = Timers()
    messages = limiter(timers, messages=10)
    turns: list[str] = []

    def takes(name: str, count: int) -> None:
        turns.append(name)
        messages.take(count, 0)

    def first() -> None:
        takes("first", 5)

    def second() -> None:
        takes("second", 1)

    messages.take(10, 0)
    messages.wait(first)
    messages.wait(second)
    timers.advance(110)
    assert turns == ["first"]
    timers.advance(500)
    assert turns == ["first", "second"]
    messages.wait(first)
    messages.forget(first)
    timers.advance(5_000)
    assert turns == ["first", "second"]
    assert timers.pending == 0


def test_a_raised_rate_and_a_lifted_one_let_go_at_once() -> None:
    timers = Timers()
    slow = limiter(timers, messages=1)
    reader = Reader()
    slow.take(1_000, 0)
    slow.hold(reader)
    assert limiter_for(Rate(5_000), slow, timers, timers.call_later, "r") is slow
    timers.advance(300)
    assert not reader.reasons
    slow.take(50_000, 0)
    slow.hold(reader)
    assert limiter_for(Rate(), slow, timers, timers.call_later, "r") is None
    assert not reader.reasons
    assert timers.pending == 0
    assert limiter_for(Rate(), None, timers, timers.call_later, "r") is None


def test_a_rate_relative_to_what_is_published() -> None:
    timers = Timers()
    relative = limiter(timers, messages=10)
    relative.set_rate(relative.rate, 90.0)
    relative.take(0, 0)
    timers.advance(1_000)
    assert relative.room()[0] == 100


def test_the_publish_buffer_holds_those_that_publish_until_half_is_stored() -> None:
    buffer = PublishBuffer(100)
    first, second = Reader(), Reader()
    buffer.add(100, first)
    assert not first.reasons
    buffer.add(20, second)
    assert second.reasons
    buffer.remove(60)
    assert second.reasons
    buffer.remove(10)
    assert not second.reasons
    buffer.add(100, second)
    assert second.reasons, "as often as it is too much"
    buffer.remove(150)
    assert not second.reasons
    unlimited = PublishBuffer(0)
    unlimited.add(1 << 40, first)
    assert not first.reasons


def test_connections_are_counted_altogether_and_by_address(caplog: pytest.LogCaptureFixture) -> None:
    clock = Timers()
    limits = ConnectionLimits(3, 2, clock.call_later)
    limits.opened("/10.0.0.1:1")
    limits.opened("/10.0.0.1:2")
    with pytest.raises(PulsarError, match=r"Reached the maximum number of connections on address/10.0.0.1:3"):
        limits.opened("/10.0.0.1:3")
    limits.opened("/10.0.0.2:1")
    with pytest.raises(PulsarError, match=r"Reached the maximum number of connections$"):
        limits.opened("/10.0.0.3:1")
    clock.advance(1_000)
    assert caplog.messages == [
        "refused 2 connections, the last one of /10.0.0.3:1: 3 connections may be open, "
        "a higher brokerMaxConnections allows more"
    ]
    assert limits.refused.counts == {**dict.fromkeys(LimitKind, 0), LimitKind.ALL: 1, LimitKind.ADDRESS: 1}
    with pytest.raises(PulsarError):
        limits.opened("/10.0.0.4:1")
    clock.advance(14_000)
    assert len(caplog.messages) == 1, "four lines a minute"
    clock.advance(1_000)
    assert caplog.messages[1].startswith("refused 1 connection, the last one of /10.0.0.4:1"), (
        "what is left is told, too"
    )
    clock.advance(60_000)
    assert len(caplog.messages) == 2
    limits.closed("/10.0.0.1:1")
    limits.opened("/10.0.0.1:3")
    assert limits.total == 3


def test_how_many_connections_are_left() -> None:
    limits = ConnectionLimits(4, 3, Timers().call_later, files_max=10)
    assert limits.left_of("10.0.0.1") == 3
    limits.opened("/10.0.0.1:1")
    limits.opened("/10.0.0.1:2")
    assert (limits.left_of("10.0.0.1"), limits.left_of("10.0.0.2")) == (1, 2)
    limits.closed("/10.0.0.1:1")
    assert limits.left_of("10.0.0.1") == 2
    assert ConnectionLimits(0, 0, Timers().call_later, files_max=10).left_of("10.0.0.1") == 10


def test_one_address_does_not_get_every_file_there_is() -> None:
    limits = ConnectionLimits(50_000, 20_000, Timers().call_later, files_max=10)
    for port in range(8):
        limits.opened(f"/10.0.0.1:{port}")
    with pytest.raises(PulsarError, match="on address"):
        limits.opened("/10.0.0.1:9")
    for port in range(2):
        limits.opened(f"/10.0.0.2:{port}")
    with pytest.raises(PulsarError, match=r"connections$"):
        limits.opened("/10.0.0.3:1")


def test_no_limit_is_what_there_are_files_for() -> None:
    limits = ConnectionLimits(0, 0, Timers().call_later, files_max=10)
    for port in range(10):
        limits.opened(f"/10.0.0.1:{port}")
    with pytest.raises(PulsarError, match=r"connections$"):
        limits.opened("/10.0.0.1:10")


def open_many(limits: ConnectionLimits) -> None:
    """More than any of the limits below, from one address."""
    for port in range(20):
        limits.opened(f"/10.0.0.1:{port}")


@pytest.mark.parametrize(
    ("total_max", "per_address_max", "files_max", "kind", "setting"),
    [
        (10, 20, 100, LimitKind.ADDRESS, "brokerMaxConnections"),
        (10, 2, 100, LimitKind.ADDRESS, "brokerMaxConnectionsPerIp"),
        (10, 0, 100, LimitKind.ALL, "brokerMaxConnections"),
        (100, 0, 10, LimitKind.FILES, FILES_SETTING),
        (100, 20, 10, LimitKind.ADDRESS, FILES_SETTING),
        (0, 0, 10, LimitKind.FILES, FILES_SETTING),
    ],
)
def test_the_log_names_what_allows_more_connections(
    total_max: int,
    per_address_max: int,
    files_max: int,
    kind: LimitKind,
    setting: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Timers()
    limits = ConnectionLimits(total_max, per_address_max, clock.call_later, files_max)
    with pytest.raises(PulsarError):
        open_many(limits)
    clock.advance(1_000)
    (line,) = caplog.messages
    assert line.endswith(f"a higher {setting} allows more")
    assert limits.refused.counts == {**dict.fromkeys(LimitKind, 0), kind: 1}
