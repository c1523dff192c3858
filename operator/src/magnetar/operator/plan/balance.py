"""Splits and moves of bundles where the operator drives them: the brokers' own balancer over what they report."""

from __future__ import annotations

from magnetar.balance.balancer import Balancer
from magnetar.balance.model import Decision, LoadSnapshot, Split
from magnetar.balance.settings import BalancedSettings, BalanceSettings, SplitSettings
from magnetar.operator.plan.actions import BundleAction, SplitBundle, TransferBundle
from magnetar.operator.resources.cluster import BalanceSpec


def balance_settings(spec: BalanceSpec) -> BalanceSettings:
    """The balancer's, under its own defaults. Brokers that drain hand over by themselves, at their own pace. Parts of a
    split stay where they are until a later round moves them: the control port's split does not let them go."""
    return BalanceSettings(
        shedding_enabled=spec.moves_per_round_max > 0,
        drain_moves_per_round_max=0,
        split=SplitSettings(enabled=spec.splits, unload_parts=False),
        balanced=BalancedSettings(moves_per_round_max=spec.moves_per_round_max),
    )


class Balance:
    """The balancer of one cluster with one spec. It remembers smoothed loads and what it moved: a new one acts only on
    what holds for some rounds."""

    def __init__(self, spec: BalanceSpec) -> None:
        self._drives = spec.driver == "Operator"
        self._balancer = Balancer(balance_settings(spec))
        self._round: dict[BundleAction, Decision] = {}

    def round(self, load: LoadSnapshot) -> list[BundleAction]:
        """What to do now, in this order, each with its reason; nothing where the operator does not drive. One that
        fails is to be told by `failed`."""
        self._round = {}
        if not self._drives:
            return []
        for decision in self._balancer.decide(load):
            action = self._action(decision)
            if action is None:
                self._balancer.failed(decision)
                continue
            self._round[action] = decision
        return list(self._round)

    def failed(self, action: BundleAction) -> None:
        """An action of the last round could not be carried out, or was not: it counts for nothing, and may be decided
        again after a while."""
        decision = self._round.pop(action, None)
        if decision is not None:
            self._balancer.failed(decision)

    def _action(self, decision: Decision) -> BundleAction | None:
        if isinstance(decision, Split):
            return SplitBundle(
                bundle=str(decision.bundle),
                broker_id=decision.broker_id,
                algorithm=decision.algorithm,
                reason=decision.reason,
            )
        if decision.destination is None:
            return None
        return TransferBundle(
            bundle=str(decision.bundle),
            source_broker_id=decision.source,
            destination_broker_id=decision.destination,
            reason=decision.reason,
        )
