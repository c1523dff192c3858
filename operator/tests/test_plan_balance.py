from __future__ import annotations

from typing import Any

import msgspec
from magnetar.balance.model import BrokerLoad, BundleLoad, LoadSnapshot, ResourceUsages
from magnetar.core.bundle import BundleName, BundleRange
from magnetar.core.topic_name import NamespaceName
from magnetar.operator.plan.actions import SplitBundle, TransferBundle
from magnetar.operator.plan.balance import Balance, balance_settings
from magnetar.operator.resources.cluster import BalanceSpec

NOW_MS = 1_760_000_000_000
ROUND_MS = 60_000
BUNDLES = 16
NAMESPACE = NamespaceName("public", "default")


def balance_of(**spec: Any) -> Balance:
    return Balance(msgspec.convert({"driver": "Operator"} | spec, BalanceSpec))


def bundle(number: int) -> BundleName:
    width = 2**32 // BUNDLES
    return BundleName(NAMESPACE, BundleRange(number * width, (number + 1) * width - (number == BUNDLES - 1)))


def snapshot(round_number: int, *loads: dict[BundleName, BundleLoad], draining: str = "") -> LoadSnapshot:
    brokers = {
        f"broker-{at}:8080": BrokerLoad(
            broker_id=f"broker-{at}:8080",
            usages=ResourceUsages(cpu=20),
            bundles=load,
            draining=f"broker-{at}:8080" == draining,
        )
        for at, load in enumerate(loads)
    }
    return LoadSnapshot(
        now_ms=NOW_MS + round_number * ROUND_MS, brokers=brokers, bundle_counts={str(NAMESPACE): BUNDLES}
    )


BUSY = {bundle(number): BundleLoad(msg_rate_in=100, topics=3, producers=3) for number in range(8)}


def test_bundles_move_after_some_rounds_each_with_its_reason() -> None:
    balance = balance_of()
    rounds = [balance.round(snapshot(number, BUSY, {})) for number in range(3)]
    assert rounds[:2] == [[], []]
    moves = rounds[2]
    assert len(moves) == 4
    for move in moves:
        assert isinstance(move, TransferBundle)
        assert (move.source_broker_id, move.destination_broker_id) == ("broker-0:8080", "broker-1:8080")
        assert move.reason.startswith("broker-0:8080: load ")
    # They are on their way.
    assert balance.round(snapshot(3, BUSY, {})) == []


def test_a_move_that_fails_is_decided_again() -> None:
    balance = balance_of(movesPerRoundMax=1)
    for number in range(2):
        assert balance.round(snapshot(number, BUSY, {})) == []
    (move,) = balance.round(snapshot(2, BUSY, {}))
    balance.failed(move)
    balance.failed(move)
    found = [balance.round(snapshot(number, BUSY, {})) for number in range(3, 9)]
    assert [again.bundle for again in found[0]] != [move.bundle]
    assert all(len(some) <= 1 for some in found)
    assert any(again.bundle == move.bundle for some in found for again in some)


def test_too_heavy_bundles_are_split() -> None:
    heavy = {bundle(0): BundleLoad(msg_rate_in=50_000, topics=40, producers=40)}
    balance, whole = balance_of(), balance_of(splits=False)
    for number in range(3):
        found = balance.round(snapshot(number, heavy, {}))
        assert whole.round(snapshot(number, heavy, {})) == []
    (split,) = found
    assert isinstance(split, SplitBundle)
    assert (split.bundle, split.broker_id) == (str(bundle(0)), "broker-0:8080")
    assert split.algorithm
    assert split.reason


def test_only_the_operator_drives_and_no_moves_are_none() -> None:
    for idle in (balance_of(driver="Leader"), balance_of(driver="None"), balance_of(movesPerRoundMax=0)):
        for number in range(4):
            assert idle.round(snapshot(number, BUSY, {})) == []


def test_a_broker_that_drains_hands_over_by_itself() -> None:
    balance = balance_of()
    found = [balance.round(snapshot(number, BUSY, {}, {}, draining="broker-0:8080")) for number in range(4)]
    assert found == [[], [], [], []]
    found = [balance.round(snapshot(number, BUSY, {}, {}, draining="broker-1:8080")) for number in range(4, 8)]
    destinations = {move.destination_broker_id for some in found for move in some if isinstance(move, TransferBundle)}
    assert destinations == {"broker-2:8080"}


def test_the_settings_are_the_specs() -> None:
    settings = balance_settings(msgspec.convert({"splits": False, "movesPerRoundMax": 3}, BalanceSpec))
    assert settings.shedding_enabled
    assert (settings.split.enabled, settings.balanced.moves_per_round_max) == (False, 3)
