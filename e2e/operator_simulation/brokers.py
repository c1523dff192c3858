"""Fake brokers: who has which bundle, and drains, which a broker forgets when it restarts."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final, Literal

from magnetar.control.errors import ControlRefused, RefusalReason
from magnetar.operator.plan.facts import BrokerFacts

BUNDLES: Final = 16
MOVED_PER_SECOND: Final = 2
SESSION_SECONDS: Final = 5


@dataclass(slots=True)
class Broker:
    """One that runs."""

    broker_id: str
    pod: str
    bundles: set[int] = field(default_factory=set)
    drain: Literal["None", "Running", "Done"] = "None"
    busy_since: float = 0.0
    """Since when it has had some, if it has."""
    blockers: list[str] = field(default_factory=list)


class Brokers:
    """All brokers of a cluster."""

    def __init__(self, rng: random.Random) -> None:
        self.running: dict[str, Broker] = {}
        """By broker id."""
        self._rng = rng
        self._unowned: dict[int, int] = dict.fromkeys(range(BUNDLES), 0)
        """The seconds until somebody may take them."""

    def start(self, broker_id: str, pod: str, now: float) -> Broker:
        """It has registered."""
        found = self.running[broker_id] = Broker(broker_id, pod, busy_since=now)
        return found

    def stop(self, broker: Broker, *, graceful: bool) -> None:
        """Its bundles are somebody else's at once, or when its session has ended."""
        if self.running.get(broker.broker_id) is broker:
            del self.running[broker.broker_id]
        for bundle in sorted(broker.bundles):
            self._unowned[bundle] = 0 if graceful else SESSION_SECONDS
        broker.bundles.clear()

    def facts(self, broker: Broker) -> BrokerFacts:
        """Of one that runs."""
        return BrokerFacts(
            broker_id=broker.broker_id,
            registered=True,
            leading=broker.broker_id == min(self.running, default=""),
            bundles=len(broker.bundles),
            load_percent=min(100, 5 * len(broker.bundles)),
            drain=broker.drain,
            bundles_left=len(broker.bundles) if broker.drain != "None" else 0,
            blockers=list(broker.blockers),
        )

    def start_drain(self, broker: Broker) -> None:
        """`ControlRefused`."""
        if not self._others(broker):
            raise ControlRefused(RefusalReason.FAILED_PRECONDITION, "there is no other broker to take its bundles")
        if broker.drain == "None":
            broker.drain = "Running"

    def cancel_drain(self, broker: Broker) -> None:
        """No error if none runs."""
        broker.drain = "None"
        broker.blockers = []

    def transfer(self, broker: Broker, bundle: int, destination: str) -> None:
        """`ControlRefused`."""
        other = self.running.get(destination)
        if bundle not in broker.bundles or other is None:
            raise ControlRefused(RefusalReason.NOT_FOUND, "it does not own the bundle, or the other is not there")
        broker.bundles.discard(bundle)
        other.bundles.add(bundle)

    def tick(self, now: float, *, metadata: bool) -> None:
        """A second has passed."""
        if not metadata:
            return
        takers = [broker for broker in self.running.values() if broker.drain == "None"]
        for bundle, seconds in list(self._unowned.items()):
            if seconds:
                self._unowned[bundle] -= 1
            elif takers:
                del self._unowned[bundle]
                self._rng.choice(takers).bundles.add(bundle)
        for broker in list(self.running.values()):
            if broker.drain == "Running":
                self._hand_over(broker)
            if not broker.bundles:
                broker.busy_since = now

    def _hand_over(self, broker: Broker) -> None:
        others = self._others(broker)
        broker.blockers = [] if others or not broker.bundles else ["there is no other broker"]
        for bundle in sorted(broker.bundles)[:MOVED_PER_SECOND]:
            if others:
                broker.bundles.discard(bundle)
                self._rng.choice(others).bundles.add(bundle)
        if not broker.bundles:
            broker.drain = "Done"

    def _others(self, broker: Broker) -> list[Broker]:
        return [other for other in self.running.values() if other is not broker and other.drain == "None"]
