"""The replicators that one topic has at present, whatever they lead to: other clusters, or its shadow topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.broker.policies.limiter import RateLimiter, limiter_for
from magnetar.broker.replication.remote_links import RemoteLinks
from magnetar.broker.replication.replicator import Remote, Replicator

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar.broker.policies.model import EffectivePolicies
    from magnetar.broker.replication.outgoing import Outgoing, ShadowOutgoing
    from magnetar.broker.replication.world import ReplicationWorld
    from magnetar.broker.subscriptions.cursor import SubscriptionCursor
    from magnetar.broker.subscriptions.visibility import Visibility
    from magnetar.core.topic_name import TopicName
    from magnetar.managed.managed_ledger import ManagedLedger


class _Visible:
    """What the topic's transactions hide, until the topic goes: it would else be kept by its own replicators."""

    __slots__ = ("_ask",)

    def __init__(self, ask: Callable[[], Visibility | None]) -> None:
        self._ask: Callable[[], Visibility | None] | None = ask

    def __call__(self) -> Visibility | None:
        return None if self._ask is None else self._ask()

    def let_go(self) -> None:
        self._ask = None


class RunningReplicators(RemoteLinks[Replicator]):
    """What is common to them. Whoever derives from it says which ones run."""

    def __init__(
        self,
        world: ReplicationWorld,
        name: TopicName,
        ledger: ManagedLedger,
        visibility: Callable[[], Visibility | None],
    ) -> None:
        super().__init__()
        self._world = world
        self._name = name
        self._ledger = ledger
        self._visibility = _Visible(visibility)
        self._limiters: dict[str, RateLimiter | None] = {}
        ledger.appends.on_appended.append(self._wake)

    def _wake(self) -> None:
        for one in self.running.values():
            one.wake()

    def _made(
        self, what: str, cursor: SubscriptionCursor, outgoing: Outgoing | ShadowOutgoing, remote: Remote
    ) -> Replicator:
        """A replicator that is to be started; `what` it leads to, for the log."""
        world = self._world
        return Replicator(
            f"replicator of {self._name} to {what}",
            cursor,
            outgoing,
            remote,
            world.runtime,
            self._visibility,
            lambda: world.settings().policies.replication_queue_entries,
        )

    def _follow_one(self, remote: str, policies: EffectivePolicies, group_limiters: tuple[RateLimiter, ...]) -> None:
        """These policies hold for one of them from now on."""
        runtime = self._world.runtime
        what = f"replicator dispatch rate of {self._name} to {remote}"
        own = limiter_for(
            policies.replicator_dispatch_rate, self._limiters.get(remote), runtime.clock, runtime.call_later, what
        )
        self._limiters[remote] = own
        self.running[remote].follow(policies.message_ttl_seconds, own, *group_limiters)

    def _end(self, remote: str) -> Replicator | None:
        """One of them sends nothing more."""
        self._limiters.pop(remote, None)
        replicator = self.running.pop(remote, None)
        if replicator is not None:
            replicator.terminate()
        return replicator

    def _leave(self) -> None:
        """The topic is going: nobody hears of what it stores, and nobody refers to it."""
        if self._wake in self._ledger.appends.on_appended:
            self._ledger.appends.on_appended.remove(self._wake)
        self._visibility.let_go()
