from __future__ import annotations

from typing import Any

import msgspec
from magnetar.balance.model import BrokerLoad, BundleLoad, LoadSnapshot, ResourceUsages
from magnetar.core.bundle import BundleName, BundleRange
from magnetar.core.topic_name import NamespaceName
from magnetar.operator.plan.actions import SplitBundle, TransferBundle
from magnetar.operator.plan.balance import Balance, balance_settings
from magnetar.operator.plan.conditions import timestamp
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
    told = balance.moves()
    assert [(move.kind, move.bundle) for move in told] == [("unload", move.bundle) for move in reversed(moves)]
    assert told[0].time == timestamp((NOW_MS + 2 * ROUND_MS) / 1000)
    assert "2 brokers, 8 bundles" in balance.outlook()[0]
    # They are on their way.
    assert balance.round(snapshot(3, BUSY, {})) == []
    assert balance.moves() == told


def test_a_move_that_fails_is_told_of_and_decided_again() -> None:
    balance = balance_of(movesPerRoundMax=1)
    for number in range(2):
        assert balance.round(snapshot(number, BUSY, {})) == []
    (move,) = balance.round(snapshot(2, BUSY, {}))
    balance.failed(move, "the broker is restarting")
    balance.failed(move, "once more")
    (told,) = balance.moves()
    assert told.reason == f"{move.reason}; it failed: the broker is restarting"
    found = [balance.round(snapshot(number, BUSY, {})) for number in range(3, 9)]
    assert [again.bundle for again in found[0]] != [move.bundle]
    assert all(len(some) <= 1 for some in found)
    assert any(again.bundle == move.bundle for some in found for again in some)
    # A round later nobody can say any more that it failed.
    before = balance.moves()
    balance.failed(move, "late")
    assert balance.moves() == before


def test_ten_moves_are_remembered() -> None:
    balance = balance_of(movesPerRoundMax=50)
    many = {bundle(number): BundleLoad(msg_rate_in=100, topics=3) for number in range(BUNDLES)}
    more = {BundleName(NamespaceName("public", "other"), name.range): load for name, load in many.items()}
    for number in range(3):
        moves = balance.round(snapshot(number, many | more, {}))
    assert len(moves) > 10
    assert [move.bundle for move in balance.moves()] == [move.bundle for move in reversed(moves[-10:])]


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
    (told,) = balance.moves()
    assert (told.kind, told.source, told.destination) == ("split", "broker-0:8080", "")


def test_only_the_operator_drives_and_no_moves_are_none() -> None:
    for idle in (balance_of(driver="Leader"), balance_of(driver="None"), balance_of(movesPerRoundMax=0)):
        for number in range(4):
            assert idle.round(snapshot(number, BUSY, {})) == []
        assert idle.moves() == []


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
