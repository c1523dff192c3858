"""`BalancedShedder` on simulated clusters, one round a minute, over many seeds. What these tests hold it to:

* Empty bundles: 12/2/1/1 becomes 4/4/4/4 with 8 moves, the fewest there could be, all of them in the third minute; a
  fifth broker that joins gets its share with 3 moves, three minutes later.
* Random skews of 16 to 128 bundles over 3 to 10 brokers: at rest within 10 minutes, the heaviest broker at most 1.25
  times the average or above it by less than its lightest bundle, with at most one move a bundle.
* Heavy tails, where single bundles outweigh whole brokers: splits as well, at most one for each bundle there was, and
  rest within 90 minutes.
* Nothing is moved twice within half an hour, whatever happens.
* Reports that are 30 % off, up or down at random: nothing moves in a balanced cluster in four hours; in one that was
  skewed at most 2 % of the bundles do, once an hour has passed.
* Day and night (traffic from 20 % to 180 %, half of the bundles at the other time of the day): at most a third of the
  bundles move in a day after the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import pytest
from magnetar.balance.settings import BalanceSettings, SheddingStrategy, SplitSettings
from magnetar.core.bundle import BundleName

from lib.tests.balance_cluster import SimulatedCluster, even_bundles, no_noise, spread_topics

NOISE = 0.3


def cluster_of(
    counts: str, settings: BalanceSettings | None = None, noise: Callable[[BundleName], float] = no_noise
) -> SimulatedCluster:
    """Brokers with so many empty bundles each: `12/2/1/1`."""
    cluster = SimulatedCluster(settings or BalanceSettings(), noise)
    numbers = [int(count) for count in counts.split("/")]
    bundles = iter(even_bundles(sum(numbers)))
    for number, count in enumerate(numbers):
        cluster.add_broker(number, [next(bundles) for _ in range(count)])
    return cluster


def random_cluster(
    random: Random, spread: float, noise: Callable[[BundleName], float] = no_noise
) -> tuple[SimulatedCluster, int]:
    """Bundles of up to 20 topics, strewn over brokers very unevenly; rates vary the more, the larger `spread`."""
    cluster = SimulatedCluster(BalanceSettings(), noise)
    bundles = even_bundles(random.choice([16, 32, 64, 128]))
    for number in range(random.randint(3, 10)):
        cluster.add_broker(number)
    shares = [random.random() ** 4 + 0.001 for _ in cluster.brokers]
    for bundle in bundles:
        broker = random.choices(list(cluster.brokers.values()), shares)[0]
        rates = [random.lognormvariate(3, spread) for _ in range(random.randint(0, 20))]
        broker.bundles[bundle] = spread_topics(bundle, rates)
    return cluster, len(bundles)


@pytest.mark.parametrize(
    ("before", "after", "moves"),
    [
        ("12/2/1/1", "4/4/4/4", 8),
        ("16/0/0/0", "4/4/4/4", 12),
        ("4/4/4/4/0", "4/3/3/3/3", 3),
        ("1/0", "1/0", 0),
        ("2/1/1/1", "2/1/1/1", 0),
        ("3/2", "3/2", 0),
        ("3/1", "2/2", 1),
        ("64/64/0", "44/44/40", 40),
    ],
)
def test_empty_bundles_spread_evenly_with_the_fewest_moves(before: str, after: str, moves: int) -> None:
    cluster = cluster_of(before)
    done = cluster.run(20)
    assert "/".join(map(str, cluster.counts())) == after
    assert len(cluster.moves) == moves
    assert sum(done[:2]) == 0, "nothing happens before a skew has lasted three rounds"
    assert sum(done[10:]) == 0
    assert not cluster.moved_twice()


def test_pulsars_default_leaves_such_a_skew_alone() -> None:
    cluster = cluster_of("12/2/1/1", BalanceSettings(shedding_strategy=SheddingStrategy.THRESHOLD))
    cluster.run(60)
    assert cluster.counts() == [12, 2, 1, 1]


def test_a_new_broker_gets_its_share_within_three_rounds() -> None:
    cluster = cluster_of("4/4/4/4")
    cluster.run(10)
    cluster.add_broker(9)
    assert cluster.run(3) == [0, 0, 3]
    assert cluster.counts() == [4, 3, 3, 3, 3]


@pytest.mark.parametrize("seed", range(25))
def test_any_skew_comes_to_rest(seed: int) -> None:
    random = Random(seed)
    cluster, bundles = random_cluster(random, spread=0.3)
    done = cluster.run(30)
    assert sum(done[10:]) == 0
    assert cluster.at_rest()
    assert cluster.imbalance() <= 1.25 or cluster.excess_in_bundles() < 1
    assert len(cluster.moves) <= bundles
    assert not cluster.splits
    assert not cluster.moved_twice()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_heavy_bundles_are_split_until_they_can_be_balanced(seed: int) -> None:
    cluster, bundles = random_cluster(Random(seed), spread=2)
    cluster.run(90)
    moves, splits = len(cluster.moves), len(cluster.splits)
    cluster.run(30)
    assert (len(cluster.moves), len(cluster.splits)) == (moves, splits)
    assert cluster.at_rest()
    assert splits <= bundles
    assert moves <= bundles + 4 * splits
    assert not cluster.moved_twice()


@pytest.mark.parametrize("unload_parts", [True, False])
def test_one_hot_bundle_is_split_and_spread(unload_parts: bool) -> None:
    cluster = cluster_of("4/4/4/4", BalanceSettings(split=SplitSettings(unload_parts=unload_parts)))
    hot = even_bundles(16)[0]
    for broker in cluster.brokers.values():
        for bundle in broker.bundles:
            rates = [500.0] * 20 if bundle == hot else [10.0] * 5
            broker.bundles[bundle] = spread_topics(bundle, rates)
    assert cluster.imbalance() > 2.9
    cluster.run(60)
    assert cluster.imbalance() <= 1.25
    assert len(cluster.splits) <= 8
    assert len(cluster.moves) <= 24
    before = len(cluster.moves)
    assert sum(cluster.run(60)) == 0
    assert len(cluster.moves) == before
    assert not cluster.moved_twice()


def test_a_hot_bundle_with_one_topic_is_neither_split_nor_moved() -> None:
    cluster = cluster_of("4/4/4/4")
    hot = even_bundles(16)[0]
    for broker in cluster.brokers.values():
        for bundle in broker.bundles:
            broker.bundles[bundle] = spread_topics(bundle, [10_000.0] if bundle == hot else [10.0] * 5)
    cluster.run(120)
    assert not cluster.splits
    assert [move.unload.source for move in cluster.moves] == ["broker-0:8080"] * 3, "the others make room for it"
    assert hot in cluster.brokers["broker-0:8080"].bundles
    assert "it has 1 topics and needs 2" in " ".join(cluster.balancer.outlook())


@pytest.mark.parametrize("seed", range(10))
def test_a_dead_brokers_bundles_are_shared_out(seed: int) -> None:
    cluster, _ = random_cluster(Random(seed), spread=0.3)
    cluster.run(45)
    cluster.kill(next(iter(cluster.brokers)))
    before = len(cluster.moves)
    cluster.run(45)
    assert cluster.at_rest()
    assert len(cluster.moves) - before <= 5, "placement leaves hardly anything to mend"
    assert not cluster.moved_twice()


@pytest.mark.parametrize("seed", range(10))
def test_a_draining_broker_is_emptied_at_once(seed: int) -> None:
    cluster, _ = random_cluster(Random(seed), spread=0.3)
    broker = max(cluster.brokers.values(), key=lambda one: len(one.bundles))
    count = len(broker.bundles)
    broker.draining = True
    assert cluster.round() == count
    assert not broker.bundles
    cluster.run(10)
    assert not broker.bundles, "and nothing comes back"


@pytest.mark.slow
@pytest.mark.parametrize("bundles_per_broker", [1, 2, 4, 16])
@pytest.mark.parametrize("seed", range(5))
def test_noise_moves_nothing_in_a_balanced_cluster(bundles_per_broker: int, seed: int) -> None:
    random = Random(seed)
    counts = "/".join([str(bundles_per_broker)] * 4)
    cluster = cluster_of(counts, noise=lambda _: 1 + random.uniform(-NOISE, NOISE))
    for broker in cluster.brokers.values():
        for bundle in broker.bundles:
            broker.bundles[bundle] = spread_topics(bundle, [300.0] * 5)
    assert sum(cluster.run(240)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_moves_stop_under_noise(seed: int) -> None:
    noise = Random(seed + 1_000)
    cluster, bundles = random_cluster(Random(seed), spread=0.3, noise=lambda _: 1 + noise.uniform(-NOISE, NOISE))
    cluster.run(60)
    before = len(cluster.moves)
    cluster.run(240)
    assert len(cluster.moves) - before <= bundles * 0.02
    assert not cluster.moved_twice()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_day_and_night_move_little(seed: int) -> None:
    random, noise = Random(seed), Random(seed + 1_000)
    day = 24 * 60
    phases = {bundle: random.choice([0, day // 2]) + random.uniform(-120, 120) for bundle in even_bundles(32)}

    def traffic(bundle: BundleName) -> float:
        minute = cluster.now_ms / 60_000 + phases[bundle]
        return (1 + 0.8 * math.sin(2 * math.pi * minute / day)) * (1 + noise.uniform(-NOISE, NOISE))

    cluster = cluster_of("20/10/2/0", noise=traffic)
    for broker in cluster.brokers.values():
        for bundle in broker.bundles:
            broker.bundles[bundle] = spread_topics(bundle, [random.lognormvariate(4, 0.3) for _ in range(10)])
    days = [sum(cluster.run(day)) for _ in range(3)]
    assert max(days[1:]) <= 32 / 3
    assert not cluster.splits
    assert not cluster.moved_twice()


def test_a_slow_host_is_relieved_once_and_left_alone() -> None:
    cluster = SimulatedCluster(BalanceSettings())
    bundles = iter(even_bundles(32))
    for number in range(4):
        broker = cluster.add_broker(number, msg_rate_max=8_000.0 if number else 3_000.0)
        for _ in range(8):
            bundle = next(bundles)
            broker.bundles[bundle] = spread_topics(bundle, [100.0] * 4)
    cluster.run(120)
    assert {move.unload.source for move in cluster.moves} == {"broker-0:8080"}
    assert len(cluster.moves) == 2
    assert "usage 100 % is above 85 % in 3 rounds" in cluster.moves[0].unload.reason


def test_the_order_in_which_reports_are_kept_changes_nothing() -> None:
    def decided(seed: int) -> list[str]:
        cluster, _ = random_cluster(Random(3), spread=1)
        order = Random(seed)
        brokers = list(cluster.brokers.items())
        order.shuffle(brokers)
        cluster.brokers = dict(brokers)
        for broker in cluster.brokers.values():
            bundles = list(broker.bundles.items())
            order.shuffle(bundles)
            broker.bundles = dict(bundles)
        cluster.run(30)
        return [str(move.unload) for move in cluster.moves] + [str(split) for split in cluster.splits]

    first = decided(1)
    assert first
    assert decided(2) == decided(3) == first
