from __future__ import annotations

from dataclasses import replace

import pytest
from magnetar.balance.balancer import Balancer
from magnetar.balance.model import BrokerLoad, BundleLoad, LoadSnapshot, Split
from magnetar.balance.settings import BalanceSettings, SplitSettings
from magnetar.core.bundle import BundleName, BundleRange
from magnetar.core.errors import SettingError
from magnetar.core.limits import MIB

from lib.tests.balance_cluster import even_bundles

MINUTE = 60_000
BUNDLE, OTHER = even_bundles(2)
LARGE = BundleLoad(topics=1_200)


class Scene:
    """One broker, whose bundles are what a test says."""

    def __init__(self, settings: SplitSettings | None = None) -> None:
        self.balancer = Balancer(BalanceSettings(shedding_enabled=False, split=settings or SplitSettings()))
        self.minute = 0
        self.counts: dict[str, int] = {}
        self.averages: dict[BundleName, BundleLoad] = {}

    def round(self, loads: dict[BundleName, BundleLoad]) -> list[Split]:
        self.minute += 1
        brokers = {"a": BrokerLoad(broker_id="a", bundles=loads), "b": BrokerLoad(broker_id="b")}
        snapshot = LoadSnapshot(
            now_ms=self.minute * MINUTE, brokers=brokers, bundle_counts=self.counts, bundle_averages=self.averages
        )
        return [decision for decision in self.balancer.decide(snapshot) if isinstance(decision, Split)]

    def rounds(self, loads: dict[BundleName, BundleLoad], count: int) -> list[Split]:
        return [split for _ in range(count) for split in self.round(loads)]


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (BundleLoad(topics=1_001), "1001 topics (limit 1000)"),
        (BundleLoad(topics=2, producers=600, consumers=401), "1001 producers and consumers (limit 1000)"),
        (BundleLoad(topics=2, msg_rate_in=15_000, msg_rate_out=15_001), "30001 messages/s (limit 30000)"),
        (BundleLoad(topics=2, msg_throughput_in=101 * MIB), "101.0 MiB/s (limit 100.0)"),
    ],
)
def test_each_limit_splits_after_three_rounds(load: BundleLoad, reason: str) -> None:
    scene = Scene()
    assert scene.rounds({BUNDLE: load, OTHER: BundleLoad()}, 2) == []
    (split,) = scene.round({BUNDLE: load, OTHER: BundleLoad()})
    assert split.bundle == BUNDLE
    assert split.broker_id == "a"
    assert split.algorithm == "range_equally_divide"
    assert split.reason == f"{reason} in 3 rounds"


def test_rates_count_as_long_term_averages() -> None:
    scene = Scene()
    scene.averages[BUNDLE] = BundleLoad(msg_rate_in=29_000)
    assert scene.rounds({BUNDLE: BundleLoad(topics=2, msg_rate_in=90_000), OTHER: BundleLoad()}, 1) == []


def test_rounds_must_follow_one_another() -> None:
    scene = Scene()
    assert scene.rounds({BUNDLE: LARGE}, 2) == []
    assert scene.round({BUNDLE: BundleLoad(topics=900)}) == []
    assert scene.rounds({BUNDLE: LARGE}, 2) == []
    assert len(scene.round({BUNDLE: LARGE})) == 1


def test_one_topic_is_never_split() -> None:
    scene = Scene()
    assert scene.rounds({BUNDLE: BundleLoad(topics=1, producers=5_000)}, 30) == []
    assert "is one topic and cannot be split" in " ".join(scene.balancer.outlook())


def test_a_namespace_gets_no_more_than_its_maximum() -> None:
    scene = Scene(SplitSettings(namespace_bundles_max=128))
    scene.counts["public/default"] = 127
    assert len(scene.rounds({BUNDLE: LARGE, OTHER: LARGE}, 3)) == 1
    scene.counts["public/default"] = 128
    assert scene.rounds({BUNDLE: LARGE, OTHER: LARGE}, 60) == []
    assert "128 of at most 128 bundles" in " ".join(scene.balancer.outlook())


def test_parts_wait_for_the_cool_down() -> None:
    scene = Scene()
    assert len(scene.rounds({BUNDLE: LARGE}, 3)) == 1
    middle = (BUNDLE.range.low + BUNDLE.range.high) // 2
    part = BundleName(BUNDLE.namespace, BundleRange(BUNDLE.range.low, middle))
    assert scene.rounds({part: LARGE}, 4) == []
    assert [split.bundle for split in scene.round({part: LARGE})] == [part]


def test_what_cannot_be_split_is_given_up_until_it_grows() -> None:
    scene = Scene()
    assert len(scene.rounds({BUNDLE: LARGE}, 120)) == 3
    assert "3 attempts did not change it" in " ".join(scene.balancer.outlook())
    assert len(scene.rounds({BUNDLE: BundleLoad(topics=1_900)}, 1)) == 1


def test_an_attempt_that_failed_elsewhere_does_not_count() -> None:
    scene = Scene()
    for _ in range(4):
        splits = scene.rounds({BUNDLE: LARGE}, 6)
        for split in splits:
            scene.balancer.failed(split)
        assert splits


def test_the_largest_come_first_where_a_round_splits_few() -> None:
    scene = Scene(SplitSettings(splits_per_round_max=1))
    found = scene.rounds({BUNDLE: LARGE, OTHER: BundleLoad(topics=5_000)}, 4)
    assert [split.bundle for split in found] == [OTHER, BUNDLE]


def test_nothing_is_split_when_turned_off_even_later() -> None:
    scene = Scene()
    scene.balancer.settings = replace(scene.balancer.settings, split=SplitSettings(enabled=False))
    assert scene.rounds({BUNDLE: LARGE}, 10) == []
    scene.balancer.settings = BalanceSettings(shedding_enabled=False)
    assert len(scene.round({BUNDLE: LARGE})) == 1


def test_the_systems_namespace_is_left_alone() -> None:
    system = even_bundles(1, "pulsar/system")[0]
    assert Scene().rounds({system: LARGE}, 10) == []


@pytest.mark.parametrize(
    "bad", [{"algorithm": "by_magic"}, {"algorithms": ("topic_count_equally_divide",)}, {"algorithms": ("by_magic",)}]
)
def test_algorithms_must_exist_and_the_default_be_supported(bad: dict[str, object]) -> None:
    with pytest.raises(SettingError, match="defaultNamespaceBundleSplitAlgorithm"):
        SplitSettings(**bad)  # type: ignore[arg-type]
