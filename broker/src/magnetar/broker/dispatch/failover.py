"""Failover: of the connected consumers one receives; which one, every broker and client can work out.

Among the consumers of the lowest priority number, ordered by name: on a partition the partition's index picks, so that
partitions spread over consumers; on a topic without partitions a hash ring picks, so that topics do.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.broker.dispatch.hash_ring import failover_index
from magnetar.broker.dispatch.single_active import SingleActive
from magnetar.wire.pulsar.enums import SubscriptionType

if TYPE_CHECKING:
    from magnetar.broker.dispatch.consumer import Consumer


NO_PARTITION: Final = -1


class FailoverDispatcher(SingleActive):
    """Consumers in order, one of them active."""

    def __init__(self, topic_name: str, partition_index: int) -> None:
        """`NO_PARTITION`: the hash ring picks."""
        super().__init__()
        self.type = SubscriptionType.FAILOVER
        self._topic_name = topic_name
        self._partition_index = partition_index

    def add(self, consumer: Consumer) -> None:
        """Let a consumer in; it may become the active one."""
        self.consumers.append(consumer)
        self.consumers.sort(key=_order)
        self._choose()

    def remove(self, consumer: Consumer) -> None:
        """Take a consumer out; another one may become active."""
        self.consumers.remove(consumer)
        self._choose()

    def _choose(self) -> None:
        if not self.consumers:
            self._active = None
            return
        best = self.consumers[0].priority_level
        candidates = [consumer for consumer in self.consumers if consumer.priority_level == best]
        if self._partition_index >= 0:
            index = self._partition_index % len(candidates)
        else:
            index = failover_index(self._topic_name, [consumer.name for consumer in candidates])
        self._active = candidates[index]


def _order(consumer: Consumer) -> tuple[int, str]:
    return consumer.priority_level, consumer.name
