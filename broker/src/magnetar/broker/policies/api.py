"""Where topic-level policies are kept, as the admin API and enforcement see it.

A topic's policies are one JSON object with the field names of Pulsar's `TopicPolicies` (`retentionPolicies`,
`messageTTLInSeconds`, `backLogQuotaMap`, ...); a field that is absent is not set. They belong to the partitioned topic:
its partitions have no own ones. Each scope (local to this cluster, or global) has its own object; local wins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from magnetar.core.topic_name import TopicName

TopicPolicies: TypeAlias = dict[str, Any]


class TopicPolicyStore(Protocol):
    """Reads and changes topic-level policies."""

    async def get(self, topic: TopicName, *, is_global: bool = False) -> TopicPolicies | None:
        """What is set at one scope; None when nothing is. Waits until the namespace's policies are read."""
        ...

    def peek(self, topic: TopicName) -> TopicPolicies:
        """What is in force over both scopes, from memory: empty when nothing is set or nothing is read yet."""
        ...

    async def update(
        self, topic: TopicName, change: Callable[[TopicPolicies], TopicPolicies], *, is_global: bool = False
    ) -> None:
        """Change one scope; returns once this broker has read the change back."""
        ...

    async def delete(self, topic: TopicName) -> None:
        """Remove both scopes, as when the topic is deleted."""
        ...

    def watch(self, listener: Callable[[TopicName], None]) -> Callable[[], None]:
        """Be told of each topic whose policies changed; returns the way to stop."""
        ...
