"""Failover: of the connected consumers one receives; which one, every broker and client can work out.

Among the consumers of the lowest priority number, ordered by name: on a partition the partition's index picks, so that
partitions spread over consumers; on a topic without partitions a hash ring picks, so that topics do.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Final, TypeAlias

from magnetar.broker.dispatch.hash_ring import failover_distance
from magnetar.broker.dispatch.single_active import SingleActive
from magnetar.wire.pulsar.enums import SubscriptionType

if TYPE_CHECKING:
    from magnetar.broker.dispatch.consumer import Consumer


NO_PARTITION: Final = -1

Place: TypeAlias = "tuple[int, int, str, int]"
"""Of a consumer among the others: its priority, its distance from the topic on the ring (0: none picks), its name, and
its number in the order in which they came."""


class FailoverDispatcher(SingleActive):
    """Consumers in order, one of them active: a change costs the same for ten consumers and for ten thousand."""

    def __init__(self, topic_name: str, partition_index: int) -> None:
        """`NO_PARTITION`: the hash ring picks."""
        super().__init__()
        self.type = SubscriptionType.FAILOVER
        self._topic_name = topic_name
        self._partition_index = partition_index
        self._came = 0
        self._order: list[Place] = []
        self._places: dict[Consumer, Place] = {}
        self._by_number: dict[int, Consumer] = {}

    def add(self, consumer: Consumer) -> None:
        """Let a consumer in; it may become the active one."""
        number = self._came
        self._came += 1
        distance = 0 if self._partition_index >= 0 else failover_distance(self._topic_name, consumer.name)
        place = (consumer.priority_level, distance, consumer.name, number)
        self.consumers[consumer] = number
        self._places[consumer] = place
        self._by_number[number] = consumer
        insort(self._order, place)
        self._choose()

    def remove(self, consumer: Consumer) -> None:
        """Take a consumer out; another one may become active."""
        del self._by_number[self.consumers.pop(consumer)]
        del self._order[bisect_left(self._order, self._places.pop(consumer))]
        self._choose()

    def _choose(self) -> None:
        order = self._order
        if not order:
            self._active = None
            return
        best, distance, _, _ = order[0]
        # Without a ring all of the best priority; else those of them that are nearest, which have one name.
        candidates = bisect_left(order, (best, distance + 1, "", 0))
        # A point belongs to who came last to it.
        index = self._partition_index % candidates if self._partition_index >= 0 else candidates - 1
        self._active = self._by_number[order[index][3]]
