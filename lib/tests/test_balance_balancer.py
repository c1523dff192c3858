from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import pytest
from magnetar.balance.balancer import Balancer
from magnetar.balance.isolation import IsolationPolicy
from magnetar.balance.model import BrokerLoad, BundleLoad, LoadSnapshot, ResourceUsages, Split, Unload
from magnetar.balance.settings import BalancedSettings, BalanceSettings
from magnetar.core.bundle import BundleName
from magnetar.core.errors import SettingError

from lib.tests.balance_cluster import even_bundles

MINUTE = 60_000
BUNDLES = even_bundles(16)


def snapshot(
    minute: float, brokers: Mapping[str, list[BundleName]], *, draining: str = "", **facts: object
) -> LoadSnapshot:
    loads = {
        name: BrokerLoad(broker_id=name, bundles=dict.fromkeys(bundles, BundleLoad()), draining=name == draining)
        for name, bundles in brokers.items()
    }
    return LoadSnapshot(now_ms=int(minute * MINUTE), brokers=loads, **facts)  # type: ignore[arg-type]


def unloads(decisions: list[Split | Unload]) -> list[Unload]:
    return [decision for decision in decisions if isinstance(decision, Unload)]


def test_moves_are_reckoned_with_before_reports_show_them() -> None:
    balancer = Balancer(BalanceSettings())
    skewed = {"a": BUNDLES[:8], "b": []}
    assert [len(balancer.decide(snapshot(minute, skewed))) for minute in range(3)] == [0, 0, 4]
    assert balancer.decide(snapshot(3, skewed)) == [], "the same old report says nothing new"
    moved = {
        unload.bundle for unload in (record.decision for record in balancer.history()) if isinstance(unload, Unload)
    }
    arrived = {"a": [name for name in BUNDLES[:8] if name not in moved], "b": sorted(moved, key=str)}
    assert balancer.decide(snapshot(4, arrived)) == []


def test_a_bundle_on_its_way_is_placed_where_it_is_meant_to_go() -> None:
    balancer = Balancer(BalanceSettings())
    skewed = {"a": BUNDLES[:8], "b": [], "c": BUNDLES[8:10]}
    for minute in range(2):
        balancer.decide(snapshot(minute, skewed))
    unload = unloads(balancer.decide(snapshot(2, skewed)))[0]
    gone = {**skewed, "a": [name for name in BUNDLES[:8] if name != unload.bundle]}
    placement = balancer.place(unload.bundle, snapshot(2.1, gone))
    assert (placement.broker_id, placement.reason) == (unload.destination, "it is being moved there")
    del gone[unload.destination or ""]
    assert balancer.place(unload.bundle, snapshot(2.2, gone)).broker_id in gone


def test_a_move_that_failed_is_tried_again_after_a_while_only() -> None:
    balancer = Balancer(BalanceSettings())
    skewed = {"a": BUNDLES[:2], "b": []}
    decided: list[int] = []
    for minute in range(20):
        for decision in balancer.decide(snapshot(minute, skewed)):
            decided.append(minute)
            balancer.failed(decision)
    assert decided[0] == 2
    gaps = [later - earlier for earlier, later in itertools.pairwise(decided)]
    assert gaps
    assert min(gaps) >= 1
    assert len({str(record.decision) for record in balancer.history()}) <= 2


def test_draining_brokers_come_first_and_in_parts() -> None:
    balancer = Balancer(BalanceSettings(drain_moves_per_round_max=5))
    brokers = {"a": BUNDLES[:12], "b": BUNDLES[12:14], "c": BUNDLES[14:]}
    first = unloads(balancer.decide(snapshot(0, brokers, draining="a")))
    assert len(first) == 5
    assert first[0].reason.startswith("a is draining, 12 bundles left")
    second = balancer.drain(snapshot(0.1, brokers, draining="a"))
    third = balancer.drain(snapshot(0.2, brokers, draining="a"))
    assert [len(second), len(third)] == [5, 2]
    assert balancer.drain(snapshot(0.3, brokers, draining="a")) == []
    everything = {unload.bundle for unload in [*first, *second, *third]}
    assert everything == set(BUNDLES[:12])
    counts = [sum(unload.destination == name for unload in [*first, *second, *third]) for name in "bc"]
    assert counts == [6, 6]


def test_what_did_not_leave_a_draining_broker_in_time_is_told_again() -> None:
    balancer = Balancer(BalanceSettings())
    brokers = {"a": BUNDLES[:3], "b": []}
    assert len(balancer.decide(snapshot(0, brokers, draining="a"))) == 3
    assert len(balancer.decide(snapshot(1, brokers, draining="a"))) == 0
    assert len(balancer.decide(snapshot(2, brokers, draining="a"))) == 3


def test_a_draining_broker_without_another_says_so() -> None:
    balancer = Balancer(BalanceSettings())
    assert balancer.decide(snapshot(0, {"a": BUNDLES[:1]}, draining="a")) == []
    assert "cannot leave a, no other broker may take it" in " ".join(balancer.outlook())


def test_isolation_holds_for_moves_too() -> None:
    policies = (IsolationPolicy(name="p", namespaces=("public/default",), primary=("a",)),)
    balancer = Balancer(BalanceSettings())
    for minute in range(10):
        assert balancer.decide(snapshot(minute, {"a": BUNDLES, "b": []}, isolation_policies=policies)) == []


def test_anti_affinity_holds_for_moves_too() -> None:
    one, two = even_bundles(1, "t/one")[0], even_bundles(1, "t/two")[0]
    groups = {"t/one": "g", "t/two": "g"}
    balancer = Balancer(BalanceSettings())
    crowded = {"a": [one, *BUNDLES[:8]], "b": [two]}
    found = [
        decision
        for minute in range(5)
        for decision in unloads(balancer.decide(snapshot(minute, crowded, anti_affinity_groups=groups)))
    ]
    assert found
    assert one not in {unload.bundle for unload in found}


def test_moves_a_round_are_bounded() -> None:
    settings = BalanceSettings(balanced=BalancedSettings(moves_per_round_max=3))
    balancer = Balancer(settings)
    brokers: dict[str, list[BundleName]] = {"a": list(BUNDLES), "b": []}
    rounds: list[int] = []
    for minute in range(6):
        moves = unloads(balancer.decide(snapshot(minute, brokers)))
        rounds.append(len(moves))
        for unload in moves:
            brokers["a"].remove(unload.bundle)
            brokers["b"].append(unload.bundle)
    assert rounds == [0, 0, 3, 3, 2, 0]


def test_an_old_report_is_no_sign_that_a_move_failed() -> None:
    balancer = Balancer(BalanceSettings())
    fresh = {
        "a": BrokerLoad(broker_id="a", bundles=dict.fromkeys(BUNDLES[:8], BundleLoad())),
        "b": BrokerLoad(broker_id="b"),
    }
    for minute in range(2):
        balancer.decide(LoadSnapshot(now_ms=minute * MINUTE, brokers=fresh))
    old = {name: replace(load, reported_ms=2 * MINUTE) for name, load in fresh.items()}
    rounds = [len(balancer.decide(LoadSnapshot(now_ms=minute * MINUTE, brokers=old))) for minute in range(2, 17)]
    assert rounds == [4, *[0] * 14]
    late = {name: replace(load, reported_ms=17 * MINUTE) for name, load in fresh.items()}
    rounds = [len(balancer.decide(LoadSnapshot(now_ms=minute * MINUTE, brokers=late))) for minute in range(17, 20)]
    assert rounds == [0, 0, 4], "now they are known to be there still, and others are tried"


def test_history_is_bounded() -> None:
    balancer = Balancer(BalanceSettings(history_length_max=2))
    brokers = {"a": BUNDLES[:3], "b": []}
    balancer.decide(snapshot(0, brokers, draining="a"))
    assert len(balancer.history()) == 2
    for bundle in even_bundles(8, "t/new"):
        balancer.place(bundle, snapshot(1, brokers))
    assert len(balancer.placements()) == 2


def test_a_bundle_that_two_brokers_report_counts_where_it_goes() -> None:
    balancer = Balancer(BalanceSettings())
    skewed = {"a": BUNDLES[:3], "b": []}
    for minute in range(3):
        decisions = unloads(balancer.decide(snapshot(minute, skewed)))
    (unload,) = decisions
    both = {"a": BUNDLES[:3], "b": [unload.bundle]}
    assert balancer.decide(snapshot(3, both)) == []
    assert balancer.outlook()[0].startswith("2 brokers, 3 bundles; loads 100 to 200")


def test_an_overloaded_broker_is_relieved_by_what_is_too_much() -> None:
    loads = {
        "a": BrokerLoad(
            broker_id="a",
            usages=ResourceUsages(cpu=95),
            bundles=dict.fromkeys(BUNDLES[:8], BundleLoad(msg_rate_in=500)),
        ),
        "b": BrokerLoad(
            broker_id="b",
            usages=ResourceUsages(cpu=30),
            bundles=dict.fromkeys(BUNDLES[8:], BundleLoad(msg_rate_in=500)),
        ),
    }
    balancer = Balancer(BalanceSettings())
    rounds = [unloads(balancer.decide(LoadSnapshot(now_ms=minute * MINUTE, brokers=loads))) for minute in range(3)]
    assert [len(moves) for moves in rounds] == [0, 0, 2]
    assert rounds[2][0].reason == "a: usage 95 % is above 85 % in 3 rounds; about 12 % of it to b with 30 %"


def test_no_broker_no_decision() -> None:
    balancer = Balancer(BalanceSettings())
    assert balancer.decide(LoadSnapshot(now_ms=0, brokers={})) == []
    assert balancer.outlook()[0] == "no broker is alive"


def test_ratios_must_make_sense() -> None:
    with pytest.raises(SettingError, match="loadBalancerBalancedShedderSettleRatio"):
        BalancedSettings(trigger_ratio=1.2, settle_ratio=1.3)
