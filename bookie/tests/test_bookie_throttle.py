from __future__ import annotations

import asyncio

import pytest
from magnetar.bookie.autorecovery.replication import throttle
from magnetar.bookie.autorecovery.replication.throttle import RateMeter, ReplicationThrottle


class PlayedTime:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic_seconds(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> PlayedTime:
    played = PlayedTime()
    monkeypatch.setattr(asyncio, "sleep", played.sleep)
    return played


async def test_takers_keep_to_the_rate(time: PlayedTime) -> None:
    limit = ReplicationThrottle(time, 1000)
    for _ in range(100):
        await limit.take(100)
    # 10 000 bytes at 1000 a second; the last take and the burst are let through early.
    assert time.now - 100.0 == pytest.approx(10.0 - 0.1 - throttle.BURST_SECONDS)


async def test_one_large_take_goes_ahead_and_the_next_waits(time: PlayedTime) -> None:
    limit = ReplicationThrottle(time, 1000)
    await limit.take(5000)
    assert time.now == 100.0
    await limit.take(1)
    assert time.now - 100.0 == pytest.approx(5.0 - throttle.BURST_SECONDS)


async def test_idle_time_is_not_saved_up(time: PlayedTime) -> None:
    limit = ReplicationThrottle(time, 1000)
    time.now += 1000
    start = time.now
    for _ in range(10):
        await limit.take(1000)
    assert time.now - start == pytest.approx(9.0 - throttle.BURST_SECONDS)


async def test_no_limit_and_another_limit(time: PlayedTime) -> None:
    limit = ReplicationThrottle(time)
    await asyncio.gather(*(limit.take(1 << 40) for _ in range(10)))
    assert time.now == 100.0
    limit.set_rate(1000)
    await limit.take(1000)
    await limit.take(1000)
    assert time.now > 100.5
    limit.set_rate(0)
    before = time.now
    await limit.take(1 << 40)
    await limit.take(1)
    assert time.now == before


def test_the_measured_rate() -> None:
    time = PlayedTime()
    meter = RateMeter(time)
    assert meter.bytes_per_second() == 0.0
    for _ in range(3000):
        meter.add(10)
        time.now += 0.01
    assert meter.bytes_per_second() == pytest.approx(1000, rel=0.05)
    assert meter.total_bytes == 30_000
    time.now += throttle.WINDOW_SECONDS / 2
    assert meter.bytes_per_second() == pytest.approx(500, rel=0.1)
    time.now += throttle.WINDOW_SECONDS
    assert meter.bytes_per_second() == 0.0


def test_the_rate_of_a_copy_that_has_just_begun() -> None:
    time = PlayedTime()
    meter = RateMeter(time)
    meter.add(500)
    assert meter.bytes_per_second() == pytest.approx(500)
    time.now += 2
    meter.add(500)
    assert meter.bytes_per_second() == pytest.approx(500)
