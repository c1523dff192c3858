"""How brokers share a limit: parts, the limiter that holds to them, and whole clusters of both in steps of time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.broker.resource_groups.group import GroupLimits, GroupReport, Rates, ResourceGroup, limits_of
from magnetar.broker.resource_groups.group_limiter import GroupLimiter
from magnetar.broker.resource_groups.shares import FLOOR_PART, Use, share_of
from magnetar.broker.resource_groups.usage_message import REPORTS_MAX, decode_reports, encode_reports
from magnetar.core.errors import PeerError
from magnetar.wire.pulsar.generated.resource_usage_pb2 import NetworkUsage, ResourceUsage, ResourceUsageInfo

from broker.tests.subscription_stage import Timers


def parts_of(limit: float, uses: Sequence[Use]) -> list[float]:
    return [share_of(limit, use, [*uses[:index], *uses[index + 1 :]]) for index, use in enumerate(uses)]


def test_alone_a_broker_uses_all() -> None:
    assert share_of(1_000, Use(0), []) == 1_000
    assert share_of(1_000, Use(990, waits=True), []) == 1_000


def test_those_that_want_more_share_evenly_whatever_they_use_now() -> None:
    assert parts_of(1_000, [Use(900, waits=True), Use(100, waits=True)]) == [500, 500]


def test_who_needs_little_leaves_the_rest_to_the_others() -> None:
    little, much = parts_of(1_000, [Use(100), Use(800, waits=True)])
    assert 100 < little < 115
    assert much == pytest.approx(1_000 - little)


def test_nothing_of_a_limit_that_nobody_wants_is_lost() -> None:
    assert parts_of(1_000, [Use(0), Use(0)]) == [500, 500]
    assert sum(parts_of(1_000, [Use(300), Use(100), Use(0)])) == pytest.approx(1_000)


def test_apaches_brokers_are_left_what_they_take_by_themselves() -> None:
    # They compute: limit * own use / all use.
    ours = share_of(1_000, Use(200, waits=True), [Use(600, proportional=True), Use(200, waits=True)])
    assert ours == pytest.approx((1_000 - 600) / 2)
    assert share_of(1_000, Use(0), [Use(0, proportional=True)]) == 500


def test_a_broker_that_tells_lies_takes_no_more_than_its_even_part() -> None:
    for lie in (Use(1e30), Use(1e30, waits=True)):
        assert share_of(1_000, Use(900, waits=True), [lie]) == 500
    assert share_of(1_000, Use(0), [Use(1e30, proportional=True)]) == 1_000 * FLOOR_PART / 2
    as_told = share_of(1_000, Use(200, waits=True), [Use(1_000, proportional=True)])
    assert share_of(1_000, Use(200, waits=True), [Use(1e30, proportional=True)]) == as_told > 100


uses = st.builds(Use, st.floats(0, 10_000), st.booleans(), st.just(False))


@given(st.floats(1, 10_000), st.lists(uses, min_size=1, max_size=6))
def test_parts_add_up_to_the_limit(limit: float, of_all: list[Use]) -> None:
    parts = parts_of(limit, of_all)
    assert sum(parts) == pytest.approx(limit, rel=FLOOR_PART)
    assert min(parts) >= limit * FLOOR_PART / len(parts)
    for use, part in zip(of_all, parts, strict=True):
        if use.waits:
            assert part >= limit / len(parts) * 0.999


# --- the limiter


class Sender:
    """A connection whose client sends without end: so many messages with each read."""

    def __init__(self, limiter: GroupLimiter, messages: int, size_bytes: int = 100) -> None:
        self.passed = 0
        self._limiter = limiter
        self._messages = messages
        self._size_bytes = size_bytes
        self._paused = False

    def pause_reading(self, reason: str) -> None:
        del reason
        self._paused = True

    def resume_reading(self, reason: str) -> None:
        del reason
        self._paused = False

    def read(self) -> None:
        """What the loop does in a turn."""
        if not self._paused:
            self.passed += self._messages
            if self._limiter.take(self._messages, self._messages * self._size_bytes):
                self._limiter.hold(self)


def run(timers: Timers, senders: Sequence[Sender], seconds: float) -> list[int]:
    """Virtual time in steps of five milliseconds; what each sender got through."""
    before = [sender.passed for sender in senders]
    for _ in range(round(seconds * 200)):
        for sender in senders:
            sender.read()
        timers.advance(5)
    return [sender.passed - count for sender, count in zip(senders, before, strict=True)]


@pytest.mark.parametrize(("messages", "size_bytes"), [(1_000, 0), (0, 100_000)])
@pytest.mark.parametrize("senders", [1, 10])
def test_ten_seconds_hold_ten_times_the_rate(messages: int, size_bytes: int, senders: int) -> None:
    timers = Timers()
    limiter = GroupLimiter(timers, timers.call_later, "group")
    limiter.hold_to(messages, size_bytes)
    connections = [Sender(limiter, 10) for _ in range(senders)]
    for _ in range(3):
        each = run(timers, connections, 10)
        assert 9_500 <= sum(each) <= 10_500
        assert max(each) <= 1.2 * min(each), "all get their turn"


def test_a_part_that_is_no_whole_number_is_held_to() -> None:
    timers = Timers()
    limiter = GroupLimiter(timers, timers.call_later, "group")
    limiter.hold_to(10 / 3, 0)
    (passed,) = run(timers, [Sender(limiter, 1)], 60)
    assert 198 <= passed <= 202


def test_whoever_waits_goes_on_when_the_limit_goes() -> None:
    timers = Timers()
    limiter = GroupLimiter(timers, timers.call_later, "group")
    limiter.hold_to(0.001, 0)
    senders = [Sender(limiter, 10) for _ in range(3)]
    run(timers, senders, 1)
    assert limiter.lacked() == (True, False)
    limiter.hold_to(0, 0)
    assert all(not sender._paused for sender in senders)
    run(timers, senders, 1)
    assert limiter.lacked() == (False, False)
    assert limiter.messages_total == sum(sender.passed for sender in senders)
    assert limiter.bytes_total == 100 * limiter.messages_total


# --- a cluster


class Cluster:
    """Brokers that hear each other's reports within the second, as messages of the system topic."""

    def __init__(self, limit: int, demands: Sequence[float]) -> None:
        """`demands`: what the senders at each broker would send per second."""
        self.timers = Timers()
        self.groups = [ResourceGroup("g", self.timers, self.timers.call_later) for _ in demands]
        self.senders = [Sender(group.publish.limiter, 1) for group in self.groups]
        self.demands = list(demands)
        self.deaf: set[int] = set()
        self._owed = [0.0 for _ in demands]
        for group in self.groups:
            group.use_limits(GroupLimits(publish_messages=limit), len(demands))

    def run(self, seconds: int) -> list[int]:
        """What passed at each broker."""
        before = [sender.passed for sender in self.senders]
        for _ in range(seconds):
            for _ in range(200):
                self._send()
                self.timers.advance(5)
            self._tick()
        return [sender.passed - count for sender, count in zip(self.senders, before, strict=True)]

    def _send(self) -> None:
        for index, sender in enumerate(self.senders):
            # Who is held up sends later what it could not send, but not more than one second of it.
            self._owed[index] = min(self._owed[index] + self.demands[index] / 200, self.demands[index])
            while self._owed[index] >= 1 and not sender._paused:
                self._owed[index] -= 1
                sender.read()

    def _tick(self) -> None:
        now = self.timers.monotonic_seconds()
        for group in self.groups:
            group.measure(1.0, now)
        for index, group in enumerate(self.groups):
            if not group.due(now, 60.0) or index in self.deaf:
                continue
            payload = encode_reports(f"b{index}", [group.report(now)], 60.0)
            for other in self.groups:
                broker, (report,) = decode_reports(payload, 60.0)
                if other is not group:
                    other.take(broker, report, now)
        for index, group in enumerate(self.groups):
            if index in self.deaf:
                group.use_even_parts(len(self.groups))
            else:
                group.share()


@pytest.mark.parametrize(
    "demands",
    [(5_000,), (5_000, 5_000), (5_000, 0), (5_000, 100), (5_000, 400), (300, 690), (700, 600), (5_000, 5_000, 200)],
)
def test_steady_senders_get_the_limit_within_five_percent(demands: tuple[float, ...]) -> None:
    cluster = Cluster(1_000, demands)
    cluster.run(10)
    for _ in range(3):
        passed = cluster.run(10)
        assert sum(passed) == pytest.approx(10 * min(1_000, sum(demands)), rel=0.05), passed
        for demand, count in zip(demands, passed, strict=True):
            assert count >= 0.95 * 10 * min(demand, 1_000 / len(demands)), "nobody gets less than an even part"


def test_the_limit_moves_to_where_it_is_wanted_within_seconds() -> None:
    cluster = Cluster(1_000, (5_000, 0))
    cluster.run(10)
    assert cluster.run(5)[0] >= 4_800
    cluster.demands = [5_000, 5_000]
    cluster.run(3)
    first, second = cluster.run(10)
    assert first == pytest.approx(5_000, rel=0.05)
    assert second == pytest.approx(5_000, rel=0.05)
    cluster.demands = [0, 5_000]
    cluster.run(10)
    assert cluster.run(10)[1] >= 9_500


def test_a_broker_that_hears_nothing_keeps_an_even_part() -> None:
    cluster = Cluster(1_000, (5_000, 5_000))
    cluster.deaf = {0, 1}
    assert cluster.run(10) == pytest.approx([5_000, 5_000], rel=0.05)


def test_another_limit_holds_at_once_for_the_parts_there_are() -> None:
    cluster = Cluster(1_000, (5_000, 0))
    cluster.run(10)
    for group in cluster.groups:
        group.use_limits(GroupLimits(publish_messages=2_000), 2)
    assert cluster.groups[0].publish.parts[0] > 1_900
    cluster.run(2)
    assert sum(cluster.run(10)) == pytest.approx(20_000, rel=0.05)


# --- what is told


def test_what_is_told_is_read_back() -> None:
    reports = [
        GroupReport("a", Rates(10.5, 2**40, True, False), Rates(0.25, 3, False, True), True),
        GroupReport("tenant:b", Rates(), Rates(), True),
    ]
    assert decode_reports(encode_reports("pulsar://b:1", reports, 60.0), 60.0) == ("pulsar://b:1", reports)


def test_reports_of_apaches_brokers_say_nothing_of_waits_and_may_leave_out_a_side() -> None:
    usage = ResourceUsage(owner="a", publish=NetworkUsage(bytesPerPeriod=600, messagesPerPeriod=60))
    payload = ResourceUsageInfo(broker="b", usageMap=[usage]).SerializeToString()
    assert decode_reports(payload, 60.0) == ("b", [GroupReport("a", Rates(1, 10), None, False)])
    timers = Timers()
    group = ResourceGroup("a", timers, timers.call_later)
    group.take("b", GroupReport("a", Rates(5), Rates(6), False), 1.0)
    group.take("b", GroupReport("a", None, Rates(7), False), 2.0)
    assert group.heard["b"][:2] == (Rates(5), Rates(7))


def test_what_is_no_report_is_refused() -> None:
    for payload in (b"\x0a", b"", b"\x0a\xff\xff\xff\xff\x0f", b"\xff" * 100):
        with pytest.raises(PeerError):
            decode_reports(payload, 60.0)


def test_a_report_of_more_groups_than_there_can_be_is_refused() -> None:
    """256 KB of groups without a name would hold the loop for half a second."""
    reports = [GroupReport("", None, None, False)] * (REPORTS_MAX + 1)
    assert len(decode_reports(encode_reports("b", reports[1:], 60.0), 60.0)[1]) == REPORTS_MAX
    with pytest.raises(PeerError, match="the most"):
        decode_reports(encode_reports("b", reports, 60.0), 60.0)


def test_numbers_too_large_for_the_message_are_told_as_the_largest() -> None:
    (report,) = decode_reports(encode_reports("b", [GroupReport("a", Rates(1e300), Rates(), True)], 60.0), 1.0)[1]
    assert report.publish is not None
    assert report.publish.messages == float(2**64 - 1)


@pytest.mark.parametrize("value", [-1, 0, "5", True, None, 2**63, 1.5, [1]])
def test_a_stored_value_that_is_no_rate_is_no_limit(value: object) -> None:
    assert limits_of({"publishRateInMsgs": value, "dispatchRateInBytes": 7}) == GroupLimits(0, 0, 0, 7)


def test_whoever_is_gone_or_silent_counts_no_more() -> None:
    timers = Timers()
    group = ResourceGroup("a", timers, timers.call_later)
    group.take("gone", GroupReport("a", Rates(5), Rates(), True), 100.0)
    group.take("silent", GroupReport("a", Rates(5), Rates(), True), 1.0)
    group.take("there", GroupReport("a", Rates(5), Rates(), True), 100.0)
    group.forget({"silent", "there"}, 50.0)
    assert list(group.heard) == ["there"]


def test_a_newcomer_is_answered_and_small_changes_wait() -> None:
    timers = Timers()
    group = ResourceGroup("a", timers, timers.call_later)
    group.use_limits(GroupLimits(publish_messages=1_000), 1)
    assert group.due(0.0, 60.0)
    group.report(0.0)
    assert not group.due(1.0, 60.0)
    group.publish.used[0] = 19.0
    assert not group.due(1.0, 60.0)
    group.publish.used[0] = 21.0
    assert group.due(1.0, 60.0)
    group.report(1.0)
    assert not group.due(60.0, 60.0)
    assert group.due(61.0, 60.0)
    group.report(61.0)
    group.take("new", GroupReport("a", Rates(), Rates(), True), 62.0)
    assert group.due(62.0, 60.0)


def test_who_waits_for_bytes_is_told_apart_from_who_waits_for_messages() -> None:
    timers = Timers()
    group = ResourceGroup("a", timers, timers.call_later)
    group.use_limits(GroupLimits(publish_messages=1_000_000, publish_bytes=100), 1)
    group.publish.limiter.take(1, 10_000)
    group.publish.limiter.wait(lambda: None)
    group.measure(1.0, timers.monotonic_seconds())
    told = group.report(timers.monotonic_seconds()).publish
    assert told is not None
    assert (told.messages_wait, told.bytes_wait) == (False, True)


def test_a_batch_now_and_then_hardly_changes_what_is_told() -> None:
    """The last second has two fifths of the weight."""
    timers = Timers()
    group = ResourceGroup("a", timers, timers.call_later)
    group.publish.limiter.take(100, 1_000)
    group.measure(1.0, 1.0)
    assert group.publish.used == pytest.approx([40.0, 400.0])
    group.measure(1.0, 2.0)
    assert group.publish.used == pytest.approx([24.0, 240.0])


def test_a_change_of_what_goes_out_is_told_as_one_of_what_comes_in() -> None:
    timers = Timers()
    group = ResourceGroup("a", timers, timers.call_later)
    group.use_limits(GroupLimits(dispatch_messages=1_000), 1)
    group.report(0.0)
    group.dispatch.used[0] = 19.0
    assert not group.due(1.0, 60.0)
    group.dispatch.used[0] = 21.0
    assert group.due(1.0, 60.0)
