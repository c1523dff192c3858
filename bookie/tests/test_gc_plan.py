"""What a collector decides, without any file."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.bookie.gc.plan import (
    CollectionRequest,
    CompactionClock,
    CompactionKind,
    CompactionThrottle,
    DiskLevel,
    ListingDisordered,
    MissingLedgers,
    compaction_order,
    disk_level,
    time_is_up,
)
from magnetar.bookie.gc.settings import GarbageCollectionSettings
from magnetar.core.errors import SettingError
from magnetar.core.limits import MIB
from magnetar.core.setting import rows_of

SETTINGS = GarbageCollectionSettings()
IDS = st.sets(st.integers(0, 2**40) | st.integers(0, 50))


@given(local=IDS, live=IDS, parts=st.lists(st.integers(1, 10)))
def test_missing_are_the_local_ones_that_are_not_live(local: set[int], live: set[int], parts: list[int]) -> None:
    comparison = MissingLedgers(sorted(local))
    left = sorted(live)
    for count in parts:
        comparison.take(left[:count])
        left = left[count:]
    comparison.take(left)
    assert comparison.finish() == sorted(local - live)
    assert comparison.live_count == len(live)


@given(live=st.lists(st.integers(0, 20), min_size=2).filter(lambda ids: ids != sorted(set(ids))))
def test_a_disordered_listing_says_nothing(live: list[int]) -> None:
    with pytest.raises(ListingDisordered):
        MissingLedgers([1, 2, 3]).take(live)


def clock(**changes: object) -> CompactionClock:
    return CompactionClock(0.0, dataclasses.replace(SETTINGS, **changes))  # type: ignore[arg-type]


def test_compactions_come_due_and_a_major_one_resets_the_minor_clock() -> None:
    clocks = clock()
    assert clocks.choose(3_600.0, None, DiskLevel.ROOM) is None
    assert clocks.choose(3_600.1, None, DiskLevel.ROOM) is CompactionKind.MINOR
    clocks.done(CompactionKind.MINOR, 3_600.1)
    assert clocks.choose(7_000.0, None, DiskLevel.ROOM) is None
    assert clocks.choose(86_400.1, None, DiskLevel.ROOM) is CompactionKind.MAJOR
    clocks.done(CompactionKind.MAJOR, 86_400.1)
    assert clocks.choose(86_500.0, None, DiskLevel.ROOM) is None
    assert clocks.choose(90_001.0, None, DiskLevel.ROOM) is CompactionKind.MINOR


def test_full_disks_and_operators_suspend() -> None:
    clocks = clock()
    assert clocks.choose(1e9, None, DiskLevel.ALMOST_FULL) is CompactionKind.MINOR
    assert clocks.choose(1e9, None, DiskLevel.FULL) is None
    assert clocks.choose(1e9, CollectionRequest(), DiskLevel.FULL) is None
    assert clocks.choose(1e9, CollectionRequest(major=True), DiskLevel.FULL) is CompactionKind.MAJOR
    assert clocks.choose(1e9, CollectionRequest(major=False, minor=True), DiskLevel.FULL) is CompactionKind.MINOR
    clocks.major_suspended = True
    assert clocks.choose(1e9, None, DiskLevel.ROOM) is CompactionKind.MINOR
    assert clocks.choose(1e9, CollectionRequest(), DiskLevel.ROOM) is CompactionKind.MINOR
    clocks.minor_suspended = True
    assert clocks.choose(1e9, CollectionRequest(), DiskLevel.ROOM) is None
    assert clocks.choose(1e9, CollectionRequest(major=True), DiskLevel.ROOM) is CompactionKind.MAJOR


def test_asked_for_but_not_to_compact() -> None:
    assert clock().choose(1e9, CollectionRequest(major=False, minor=False), DiskLevel.ROOM) is None
    assert clock().choose(1.0, CollectionRequest(), DiskLevel.ROOM) is CompactionKind.MAJOR


def test_a_full_disk_may_force() -> None:
    clocks = clock(force_when_full=True)
    assert clocks.choose(1.0, None, DiskLevel.ROOM) is None
    assert clocks.choose(1.0, None, DiskLevel.FULL) is CompactionKind.MAJOR


def test_what_is_switched_off_can_still_be_asked_for() -> None:
    clocks = clock(major_interval_seconds=-1, minor_interval_seconds=0)
    assert clocks.choose(1e9, None, DiskLevel.ROOM) is None
    assert clocks.choose(1e9, CollectionRequest(), DiskLevel.ROOM) is CompactionKind.MAJOR
    clocks = clock(major_interval_seconds=-1, minor_interval_seconds=0, force_allowed=False)
    assert clocks.choose(1e9, CollectionRequest(major=True), DiskLevel.ROOM) is None


def test_disk_levels() -> None:
    total = 1000 * MIB
    levels = [disk_level(total, free * MIB, SETTINGS) for free in (101, 100, 64, 50, 0)]
    assert levels == [DiskLevel.ROOM, *[DiskLevel.ALMOST_FULL] * 2, *[DiskLevel.FULL] * 2]
    assert disk_level(100 * MIB, 63 * MIB, SETTINGS) is DiskLevel.FULL


@given(st.lists(st.tuples(st.integers(0, 100), st.floats(0, 1)), unique_by=lambda pair: pair[0]))
def test_the_emptiest_logs_come_first(usages: list[tuple[int, float]]) -> None:
    order = compaction_order(usages, 0.5)
    share = dict(usages)
    assert sorted(order) == sorted(log_id for log_id, usage in usages if usage < 0.5)
    assert [share[log_id] for log_id in order] == sorted(share[log_id] for log_id in order)


def test_time_limits() -> None:
    assert [time_is_up(10.0, now, 5.0) for now in (10.0, 14.9, 15.0)] == [False, False, True]
    assert not time_is_up(0.0, 1e9, -0.001)
    assert not time_is_up(0.0, 1e9, 0)


def test_the_throttle_holds_its_rate() -> None:
    by_entries = CompactionThrottle(SETTINGS)
    now = 100.0
    copied = 0
    while now < 200.0:
        now += by_entries.delay_seconds(now, 256, 10**9) + 0.001
        copied += 256
    assert copied == pytest.approx(100_000 + 1_000, rel=0.01)
    by_bytes = CompactionThrottle(dataclasses.replace(SETTINGS, throttle_by_bytes=True))
    assert by_bytes.delay_seconds(100.0, 10**9, 3_000_000) == pytest.approx(2.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"wait_seconds": 0},
        {"minor_threshold": 1.5},
        {"minor_interval_seconds": 10.0},
        {"minor_threshold": 0.5},
        {"minor_interval_seconds": 86_400.0},
        {"entries_per_second": 0},
        {"location_compaction_interval_seconds": 1.0},
        {"disk_almost_full_share": 0.99},
    ],
)
def test_settings_have_bounds(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingError):
        GarbageCollectionSettings(**wrong)  # type: ignore[arg-type]


def test_every_upstream_name_has_a_field() -> None:
    fields = {field.name for field in dataclasses.fields(GarbageCollectionSettings)}
    assert {row.path for row in rows_of(GarbageCollectionSettings)} <= fields
