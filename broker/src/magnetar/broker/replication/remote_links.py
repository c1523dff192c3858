"""The ways of one topic to other clusters, or to its shadows, taken together."""

from __future__ import annotations

import asyncio
from typing import Any, Generic, TypeVar

from magnetar.broker.replication.remote_link import RemoteLink
from magnetar.broker.replication.statistics import replicator_statistics

Link = TypeVar("Link", bound=RemoteLink)


class RemoteLinks(Generic[Link]):
    """Those that one topic has at present, whatever they lead to."""

    def __init__(self) -> None:
        self.running: dict[str, Link] = {}
        """By what they lead to."""

    @property
    def behind(self) -> bool:
        """Whether anybody lacks something that is to be brought."""
        return any(one.backlog for one in self.running.values())

    def update_rates(self, seconds: float) -> None:
        """Turn counters into rates."""
        for one in self.running.values():
            one.counters.update_rates(seconds)

    def stats(self) -> dict[str, Any]:
        """Their part of `replication` in the topic's statistics."""
        return {remote: replicator_statistics(one) for remote, one in self.running.items()}

    async def rest(self) -> None:
        """Nobody uses the topic: those that have brought everything close their producers, until `rouse`."""
        await asyncio.gather(*(one.rest() for one in list(self.running.values())))

    def rouse(self) -> None:
        """Somebody uses the topic again."""
        for one in self.running.values():
            one.rouse()

    def end_drained(self) -> None:
        """Nothing comes any more: those that have brought everything let go of their connections."""
        for one in self.running.values():
            if not one.backlog:
                one.terminate()
