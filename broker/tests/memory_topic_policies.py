"""Topic-level policies in memory: for tests, and for a broker that has no other place for them."""

from __future__ import annotations

import copy
from collections.abc import Callable

from magnetar.broker.policies.api import TopicPolicies
from magnetar.core.topic_name import TopicName


class MemoryTopicPolicies:
    """A `TopicPolicyStore` whose policies end with the process."""

    def __init__(self) -> None:
        self._scopes: tuple[dict[TopicName, TopicPolicies], dict[TopicName, TopicPolicies]] = ({}, {})
        self._listeners: list[Callable[[TopicName], None]] = []

    async def get(self, topic: TopicName, *, is_global: bool = False) -> TopicPolicies | None:
        """What is set at one scope; None when nothing is."""
        return copy.deepcopy(self._scopes[is_global].get(topic.partitioned_name()))

    def peek(self, topic: TopicName) -> TopicPolicies:
        """What is in force over both scopes."""
        name = topic.partitioned_name()
        return {**self._scopes[True].get(name, {}), **self._scopes[False].get(name, {})}

    async def update(
        self, topic: TopicName, change: Callable[[TopicPolicies], TopicPolicies], *, is_global: bool = False
    ) -> None:
        """Change one scope."""
        name = topic.partitioned_name()
        self._scopes[is_global][name] = change(copy.deepcopy(self._scopes[is_global].get(name, {})))
        self._tell(name)

    async def delete(self, topic: TopicName) -> None:
        """Remove both scopes."""
        name = topic.partitioned_name()
        removed = [scope.pop(name, None) for scope in self._scopes]
        if any(policies is not None for policies in removed):
            self._tell(name)

    def watch(self, listener: Callable[[TopicName], None]) -> Callable[[], None]:
        """Be told of each topic whose policies changed; returns the way to stop."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _tell(self, topic: TopicName) -> None:
        for listener in list(self._listeners):
            listener(topic)
