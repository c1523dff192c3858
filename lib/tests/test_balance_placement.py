from collections import Counter

import pytest
from magnetar.balance.balancer import Balancer
from magnetar.balance.model import BrokerLoad, BundleLoad, LoadSnapshot, ResourceUsages
from magnetar.balance.settings import BalanceSettings, PlacementStrategy

from lib.tests.balance_cluster import even_bundles

NEW = even_bundles(64, "public/new")


def cluster(**loads: tuple[int, float, float]) -> LoadSnapshot:
    """Brokers by name: how many bundles, the message rate of each, and how full the CPU is."""
    brokers = {}
    for name, (count, rate, cpu) in loads.items():
        bundles = {bundle: BundleLoad(msg_rate_in=rate) for bundle in even_bundles(max(1, count), f"t/{name}")[:count]}
        brokers[name] = BrokerLoad(broker_id=name, usages=ResourceUsages(cpu=cpu), bundles=bundles)
    return LoadSnapshot(now_ms=0, brokers=brokers)


def placed(strategy: PlacementStrategy, snapshot: LoadSnapshot, count: int) -> Counter[str | None]:
    balancer = Balancer(BalanceSettings(placement_strategy=strategy))
    return Counter(balancer.place(bundle, snapshot).broker_id for bundle in NEW[:count])


def test_least_load_fills_up_the_emptier_brokers_with_what_it_has_just_placed() -> None:
    assert placed(PlacementStrategy.LEAST_LOAD, cluster(a=(4, 0, 0), b=(4, 0, 0), c=(0, 0, 0)), 4) == {"c": 4}
    assert placed(PlacementStrategy.LEAST_LOAD, cluster(a=(0, 0, 0), b=(0, 0, 0)), 64) == {"a": 32, "b": 32}


def test_least_load_spreads_a_namespace_among_equals() -> None:
    snapshot = cluster(a=(20, 0, 0), b=(20, 0, 0), c=(21, 0, 0), d=(40, 0, 0))
    assert placed(PlacementStrategy.LEAST_LOAD, snapshot, 3) == {"a": 1, "b": 1, "c": 1}


def test_least_load_avoids_overloaded_brokers_unless_all_are() -> None:
    assert placed(PlacementStrategy.LEAST_LOAD, cluster(a=(0, 0, 90), b=(9, 100, 10)), 3) == {"b": 3}
    assert placed(PlacementStrategy.LEAST_LOAD, cluster(a=(0, 0, 90), b=(9, 100, 90)), 3) == {"a": 3}


def test_least_message_rate_goes_by_traffic_alone() -> None:
    snapshot = cluster(a=(2, 100, 0), b=(30, 1, 0))
    assert placed(PlacementStrategy.LEAST_MESSAGE_RATE, snapshot, 1) == {"b": 1}
    assert placed(PlacementStrategy.LEAST_MESSAGE_RATE, cluster(a=(0, 0, 86), b=(9, 100, 10)), 1) == {"b": 1}


def test_least_message_rate_counts_pulsars_guess_for_what_it_has_placed() -> None:
    balancer = Balancer(
        BalanceSettings(placement_strategy=PlacementStrategy.LEAST_MESSAGE_RATE, distribute_bundles_evenly=False)
    )
    snapshot = cluster(a=(1, 250, 0), b=(0, 0, 0))
    found = [balancer.place(bundle, snapshot).broker_id for bundle in NEW[:4]]
    assert found == ["b", "b", "b", "a"]


def test_long_term_averages_count_before_what_was_reported_last() -> None:
    busy, idle = even_bundles(1, "t/a")[0], even_bundles(1, "t/b")[0]
    brokers = {
        "a": BrokerLoad(broker_id="a", bundles={busy: BundleLoad(msg_rate_in=1)}),
        "b": BrokerLoad(broker_id="b", bundles={idle: BundleLoad(msg_rate_in=2)}),
    }
    averages = {busy: BundleLoad(msg_rate_in=900), idle: BundleLoad()}
    snapshot = LoadSnapshot(now_ms=0, brokers=brokers, bundle_averages=averages)
    assert placed(PlacementStrategy.LEAST_MESSAGE_RATE, snapshot, 1) == {"b": 1}


def test_least_resource_usage_takes_those_well_below_the_average() -> None:
    snapshot = cluster(a=(0, 0, 10), b=(0, 0, 30), c=(0, 0, 80))
    settings = BalanceSettings(
        placement_strategy=PlacementStrategy.LEAST_RESOURCE_USAGE, distribute_bundles_evenly=False
    )
    balancer = Balancer(settings)
    found = Counter(balancer.place(bundle, snapshot).broker_id for bundle in NEW)
    assert set(found) == {"a", "b"}
    assert min(found.values()) > 20
    assert len(placed(PlacementStrategy.LEAST_RESOURCE_USAGE, cluster(a=(0, 0, 50), b=(0, 0, 55)), 64)) == 2


def test_round_robin_takes_turns() -> None:
    assert placed(PlacementStrategy.ROUND_ROBIN, cluster(a=(0, 0, 0), b=(5, 9, 0), c=(0, 0, 0)), 6) == {
        "a": 2,
        "b": 2,
        "c": 2,
    }


@pytest.mark.parametrize("strategy", PlacementStrategy)
def test_whoever_asks_again_hears_the_same(strategy: PlacementStrategy) -> None:
    balancer = Balancer(BalanceSettings(placement_strategy=strategy))
    snapshot = cluster(a=(0, 0, 0), b=(0, 0, 0), c=(0, 0, 0))
    first = balancer.place(NEW[0], snapshot)
    assert balancer.place(NEW[0], snapshot).broker_id == first.broker_id
    assert "a moment ago" in balancer.place(NEW[0], snapshot).reason
    assert len(balancer.placements()) == 1
