"""Sees which broker that only reads is bound to a subscription, and what the owner has when one is let go of."""

from __future__ import annotations

from magnetar.broker.peers.addresses import decode_owner
from magnetar.broker.read_only.paths import binding_path
from magnetar.core.topic_name import TopicName
from magnetar.metadata.tree import NodeTable, Outcome

from e2e.broker_simulation.history import Acknowledged, Ended, History, Sought, SubscriptionHistory
from e2e.broker_simulation.metadata_witness import stored_cursor
from e2e.simulation.topic_witness import StoredAcknowledgements
from e2e.simulation.witness import Witness


class BindingsWitness:
    """Of one run."""

    def __init__(self, witness: Witness, table: NodeTable, history: History) -> None:
        """`table`: the nodes as the service has them."""
        self._witness = witness
        self._table = table
        self._history = history
        self._paths: dict[str, SubscriptionHistory] = {}

    def metadata_applied(self, outcome: Outcome, host: str, now: float) -> None:
        """The service has made an outcome so, for a host."""
        for path, record in outcome.saves:
            subscription = self._subscription(path)
            if subscription is not None:
                subscription.bindings.append((now, decode_owner(path, record.value)[0].broker_id.partition(":")[0]))
        for path, _ in outcome.removals:
            subscription = self._subscription(path)
            if subscription is not None:
                since, broker = subscription.bindings[-1]
                subscription.bindings.append((now, ""))
                if broker == host and subscription.calm(since, now):
                    self._check_stored(subscription, broker, since)

    def _subscription(self, path: str) -> SubscriptionHistory | None:
        if len(self._paths) < len(self._history.subscriptions):
            self._paths = {
                binding_path(TopicName.parse(topic), name): subscription
                for (topic, name), subscription in self._history.subscriptions.items()
            }
        return self._paths.get(path)

    def _check_stored(self, subscription: SubscriptionHistory, broker: str, since: float) -> None:
        """A broker that lets a subscription go has had its owner store what those have acknowledged who have left."""
        if any(isinstance(event, Sought) for event in subscription.events):
            return
        wanted = _acknowledged_in_order(subscription, broker, since)
        if not wanted:
            return  # It may never have been made: its owner was out of reach.
        who = f"{subscription.name} of {subscription.topic}"
        stored = stored_cursor(self._witness, self._table, subscription.topic, subscription.name)
        if stored is None:
            self._witness.accuse(f"{who}: {broker} lets go of it, and the cursor's node is not there")
            return
        found = StoredAcknowledgements(stored)
        for event in wanted:
            position = event.positions[0]
            if not (found.mark >= position if event.cumulative else found.cover(position)):
                self._witness.accuse(f"{who}: {broker} lets go of it, and its owner has not stored {position}")


def _acknowledged_in_order(subscription: SubscriptionHistory, broker: str, since: float) -> list[Acknowledged]:
    """Whole entries that were acknowledged at a broker, by those who have left since, or have asked to."""
    left = {event.session for event in subscription.events if isinstance(event, Ended)}
    found = []
    for event in subscription.events:
        if not isinstance(event, Acknowledged) or event.remaining is not None:
            continue
        session = event.session
        # Who has asked to be let go has its answer later.
        in_order = session in left and (session.ended_at is None or session.closed)
        if session.broker == broker and in_order and session.began_at >= since:
            found.append(event)
    return found
