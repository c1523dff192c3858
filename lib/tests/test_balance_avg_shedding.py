"""Pulsar's AvgShedder: pairs of brokers, two thresholds, and how long each must be passed."""

from __future__ import annotations

from dataclasses import replace

from magnetar.balance.balancer import Balancer
from magnetar.balance.model import BrokerLoad, LoadSnapshot, Unload
from magnetar.balance.settings import AvgSettings, BalanceSettings, PlacementStrategy, SheddingStrategy, UniformSettings
from magnetar.core.limits import MIB

from lib.tests.balance_cluster import even_bundles
from lib.tests.test_balance_shedding import broker

AVG = BalanceSettings(shedding_strategy=SheddingStrategy.AVG, placement_strategy=PlacementStrategy.AVG)


class Rounds:
    """A balancer and the minutes that pass."""

    def __init__(self, settings: BalanceSettings = AVG) -> None:
        self.balancer = Balancer(settings)
        self.minute = 0

    def one(self, *brokers: BrokerLoad) -> list[tuple[str, str | None, float]]:
        """What a round moves: from, to, and MiB per second."""
        by_id = {one.broker_id: one for one in brokers}
        snapshot = LoadSnapshot(now_ms=60_000 * self.minute, brokers=by_id)
        self.minute += 1
        found = []
        for decision in self.balancer.decide(snapshot):
            assert isinstance(decision, Unload)
            load = by_id[decision.source].bundles[decision.bundle]
            found.append((decision.source, decision.destination, load.msg_throughput / MIB))
        return found

    def until_moved(self, *brokers: BrokerLoad) -> int:
        """The round, from 1, in which something moves; 0 when nothing does in twenty."""
        return next((number for number in range(1, 21) if self.one(*brokers)), 0)


def pair(difference: float) -> tuple[BrokerLoad, BrokerLoad]:
    """Two brokers whose usages differ so much."""
    return broker("a", [100, 100, 30], cpu=10 + difference), broker("b", [10], cpu=10)


def test_a_large_difference_is_acted_on_soon_and_a_small_one_late() -> None:
    assert Rounds().until_moved(*pair(40)) == 2
    assert Rounds().until_moved(*pair(39)) == 8
    assert Rounds().until_moved(*pair(15)) == 8
    assert Rounds().until_moved(*pair(14)) == 0


def test_the_thresholds_and_how_often_they_are_met_are_settings() -> None:
    other = replace(AVG, avg=AvgSettings(low_percent=5, high_percent=20, low_hits=4, high_hits=1))
    assert Rounds(other).until_moved(*pair(20)) == 1
    assert Rounds(other).until_moved(*pair(19)) == 4
    assert Rounds(other).until_moved(*pair(4)) == 0


def test_other_thresholds_hold_for_rounds_that_were_counted_before() -> None:
    rounds = Rounds()
    assert [rounds.one(*pair(20)) for _ in range(3)] == [[], [], []]
    rounds.balancer.settings = replace(AVG, avg=AvgSettings(low_hits=4))
    assert rounds.one(*pair(20))


def test_a_round_below_the_threshold_begins_the_count_anew() -> None:
    rounds = Rounds()
    for _ in range(7):
        assert not rounds.one(*pair(20))
    assert not rounds.one(*pair(5))
    assert [bool(rounds.one(*pair(20))) for _ in range(8)] == [False] * 7 + [True]
    rounds = Rounds()
    for _ in range(5):
        assert not rounds.one(*pair(50)) or rounds.minute == 2
        assert not rounds.one(*pair(14))


def test_a_share_of_the_difference_goes_to_the_other_of_the_pair() -> None:
    # (230 - 10) * 0.2 = 44 MiB/s.
    rounds = Rounds()
    rounds.one(*pair(50))
    assert rounds.one(*pair(50)) == [("a", "b", 30)]
    rounds = Rounds(replace(AVG, uniform=UniformSettings(unload_share_max=0.5)))
    rounds.one(*pair(50))
    assert rounds.one(*pair(50)) == [("a", "b", 100)]


def test_the_fullest_is_paired_with_the_idlest_and_the_middle_is_left_alone() -> None:
    brokers = (
        broker("a", [50, 50, 20], cpu=60),
        broker("b", [3], cpu=5),
        broker("c", [50, 50, 10], cpu=50),
        broker("d", [2], cpu=10),
        broker("e", [50, 50, 10], cpu=30),
    )
    rounds = Rounds()
    assert not rounds.one(*brokers)
    # From c 40 % above d: 21.6 MiB/s, from a 55 % above b: 23.4 MiB/s.
    assert rounds.one(*brokers) == [("a", "b", 20), ("c", "d", 10)]


def test_message_rates_count_before_throughput_and_little_is_not_moved() -> None:
    # (12 000 - 10) * 0.2 = 2 398 messages per second.
    busy = broker("a", [1, 2, 3, 4], cpu=90, rate=3_000), broker("b", [1], cpu=10)
    assert Rounds().until_moved(*busy) == 0, "each bundle has more"
    lighter = broker("a", [1, 2, 3, 4, 5, 6], cpu=90, rate=2_000), broker("b", [1], cpu=10)
    rounds = Rounds()
    assert not rounds.one(*lighter)
    assert rounds.one(*lighter) == [("a", "b", 6)], "the heaviest of equals"
    idle = broker("a", [1, 1], cpu=90), broker("b", [1], cpu=10)
    assert Rounds().until_moved(*idle) == 0
    rounds = Rounds()
    assert [rounds.one(*idle) for _ in range(2)] == [[], []]
    assert any("less than the minimum of either" in note for note in rounds.balancer.outlook())


def test_a_broker_that_has_gone_leaves_nothing_behind() -> None:
    rounds = Rounds()
    rounds.one(*pair(20))
    assert rounds.balancer._shedder._low_hits == {"a": 1, "b": 1}  # type: ignore[attr-defined]
    rounds.one(broker("a", [100], cpu=30))
    rounds.one(broker("c", [100], cpu=30), broker("d", [], cpu=30))
    assert rounds.balancer._shedder._low_hits == {}  # type: ignore[attr-defined]


def test_as_a_placement_it_takes_any_broker() -> None:
    balancer = Balancer(AVG)
    brokers = {name: broker(name, [], cpu=cpu) for name, cpu in (("a", 80), ("b", 5), ("c", 30))}
    snapshot = LoadSnapshot(now_ms=0, brokers=brokers)
    chosen = [balancer.place(bundle, snapshot).broker_id for bundle in even_bundles(60)]
    assert set(chosen) == {"a", "b", "c"}
