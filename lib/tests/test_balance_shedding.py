"""Pulsar's three strategies, chosen by name."""

from __future__ import annotations

from dataclasses import replace

from magnetar.balance.balancer import Balancer
from magnetar.balance.model import BrokerLoad, BundleLoad, LoadSnapshot, ResourceUsages, Unload
from magnetar.balance.settings import (
    BalanceSettings,
    PlacementStrategy,
    SheddingStrategy,
    ThresholdSettings,
    UniformSettings,
)
from magnetar.core.limits import MIB

from lib.tests.balance_cluster import even_bundles


def broker(name: str, throughputs: list[float], *, cpu: float = 0.0, rate: float = 10.0) -> BrokerLoad:
    """Bundles of so many MiB per second, each with the same message rate."""
    bundles = even_bundles(max(1, len(throughputs)), f"t/{name}")
    return BrokerLoad(
        broker_id=name,
        usages=ResourceUsages(cpu=cpu),
        bundles={
            bundle: BundleLoad(msg_throughput_in=throughput * MIB, msg_rate_in=rate)
            for bundle, throughput in zip(bundles, throughputs, strict=False)
        },
    )


def moved(settings: BalanceSettings, *brokers: BrokerLoad) -> tuple[list[float], Balancer]:
    """The throughputs of what is moved, in MiB per second, in order; and the balancer."""
    snapshot = LoadSnapshot(now_ms=0, brokers={one.broker_id: one for one in brokers})
    balancer = Balancer(settings)
    found = []
    for decision in balancer.decide(snapshot):
        assert isinstance(decision, Unload)
        assert decision.destination not in (None, decision.source)
        found.append(snapshot.brokers[decision.source].bundles[decision.bundle].msg_throughput / MIB)
    return found, balancer


def settings_of(strategy: SheddingStrategy) -> BalanceSettings:
    return BalanceSettings(shedding_strategy=strategy, placement_strategy=PlacementStrategy.LEAST_MESSAGE_RATE)


THRESHOLD = settings_of(SheddingStrategy.THRESHOLD)
OVERLOAD = settings_of(SheddingStrategy.OVERLOAD)
UNIFORM = settings_of(SheddingStrategy.UNIFORM)


def test_threshold_moves_the_busiest_until_the_excess_is_gone() -> None:
    # The average is 50, so 80 is 20 above the threshold: 25 % of 400 MiB/s are to leave.
    found, balancer = moved(THRESHOLD, broker("a", [60, 200, 40, 100], cpu=80), broker("b", [1], cpu=20))
    assert found == [200]
    record = balancer.history()[0].decision
    assert isinstance(record, Unload)
    assert "usage 80.0 % is above the average of 50.0 % by more than 10, 100.0 MiB/s are to leave" in record.reason


def test_threshold_does_nothing_for_less_than_its_minimum_or_below_the_threshold() -> None:
    found, balancer = moved(THRESHOLD, broker("a", [10, 10], cpu=80), broker("b", [1], cpu=20))
    assert found == []
    assert "less than the minimum of 10.0" in " ".join(balancer.outlook())
    assert moved(THRESHOLD, broker("a", [100, 100], cpu=59), broker("b", [1], cpu=41))[0] == []


def test_threshold_never_moves_a_brokers_only_bundle() -> None:
    found, balancer = moved(THRESHOLD, broker("a", [400], cpu=80), broker("b", [1], cpu=20))
    assert found == []
    assert "it has 1 bundle" in " ".join(balancer.outlook())


def test_threshold_helps_a_very_idle_broker_only_if_told_to() -> None:
    brokers = [broker(name, [150, 150], cpu=60) for name in "abcd"] + [broker("e", [], cpu=20)]
    assert moved(THRESHOLD, *brokers)[0] == []
    lower = replace(THRESHOLD, threshold=ThresholdSettings(lower_boundary=True))
    assert moved(lower, *brokers)[0] == [150]


def test_threshold_smooths_usages() -> None:
    balancer = Balancer(THRESHOLD)
    calm = {"a": broker("a", [100, 100], cpu=20), "b": broker("b", [1], cpu=20)}
    busy = dict(calm, a=broker("a", [100, 100], cpu=90))
    assert not balancer.decide(LoadSnapshot(now_ms=0, brokers=calm))
    rounds = [len(balancer.decide(LoadSnapshot(now_ms=60_000 * index, brokers=busy))) for index in range(1, 6)]
    assert rounds == [0, 0, 0, 1, 0], "20 + 0.1 of the distance to 90 each round passes 20 above b in the fourth"


def test_overload_looks_at_each_broker_alone() -> None:
    # 95 - 85 + 5 = 15 % of 300 MiB/s.
    found, _ = moved(OVERLOAD, broker("a", [30, 170, 100], cpu=95), broker("b", [50, 60], cpu=84))
    assert found == [170]
    assert moved(OVERLOAD, broker("a", [30, 170], cpu=84), broker("b", [], cpu=0))[0] == []


def test_uniform_moves_a_fifth_of_the_difference_in_message_rates() -> None:
    # (12 000 - 0) * 0.2 = 2 400 messages per second, and 1 000 more are let pass.
    found, _ = moved(UNIFORM, broker("a", [4, 3, 2, 1], rate=3_000), broker("b", []))
    assert found == [4], "the first of equals"
    assert moved(UNIFORM, broker("a", [1, 1], rate=1_000), broker("b", []))[0] == []


def test_uniform_goes_by_throughput_where_message_rates_are_alike() -> None:
    found, _ = moved(UNIFORM, broker("a", [30, 5, 15]), broker("b", [10], rate=25))
    assert found == [5], "8 MiB/s are a fifth of the difference"
    bounded = replace(UNIFORM, uniform=UniformSettings(unloads_per_round_max=0))
    assert moved(bounded, broker("a", [30, 5, 15]), broker("b", [10], rate=25))[0] == []


def test_nothing_is_moved_twice_within_the_grace_period() -> None:
    balancer = Balancer(OVERLOAD)
    first, second, third = (broker("a", [100, 90, 80], cpu=100), broker("b", []), broker("c", []))
    brokers = {one.broker_id: one for one in (first, second, third)}
    moves = []
    for minute in range(40):
        moves += [
            (minute, decision.bundle)
            for decision in balancer.decide(LoadSnapshot(now_ms=60_000 * minute, brokers=brokers))
            if isinstance(decision, Unload)
        ]
    again = [later - minute for minute, bundle in moves for later, other in moves if other == bundle and later > minute]
    assert again
    assert min(again) >= 30


def test_shedding_can_be_turned_off() -> None:
    off = replace(OVERLOAD, shedding_enabled=False)
    assert moved(off, broker("a", [30, 170, 100], cpu=95), broker("b", []))[0] == []
