"""What the changes of a namespace's topic policies come to, one after the other. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from sys import getsizeof
from typing import Any, Final, NamedTuple

from magnetar.broker.policies.api import TopicPolicies
from magnetar.broker.policies.event_codec import INSERT, Change
from magnetar.core.limits import KIB, MIB
from magnetar.core.topic_name import TopicName

POLICIES_BYTES_MAX: Final = 32 * KIB
"""Of one topic's policies as they are stored: those of three thousand subscriptions, read in 20 ms."""

NAMESPACE_POLICIES_BYTES_MAX: Final = 128 * MIB
"""What the policies of one namespace's topics take of memory: a hundred thousand topics with a few policies each.
Whether there are such topics, nobody asks who writes to the system topic, as with Apache's brokers."""

CHANGE_BYTES: Final = 1 * KIB
"""What a topic's policies cost beside their values: names, ids, tables."""

PER_KEY_FIELDS: Final = ("backLogQuotaMap", "subscriptionPolicies")
"""Maps whose entries are policies of their own: local ones leave the global ones of other keys in force."""


class PreviousPolicies(NamedTuple):
    """What a change found."""

    change_id: object
    """The id of the change before, of the same topic and scope; None: there was none."""
    policies: TopicPolicies | None


class ChangeState:
    """The policies of one namespace's topics, and by which change each came to be."""

    def __init__(self) -> None:
        # As many as topics with policies of their own.
        self._scopes: tuple[dict[TopicName, TopicPolicies], dict[TopicName, TopicPolicies]] = ({}, {})
        self._change_ids: tuple[dict[TopicName, object], dict[TopicName, object]] = ({}, {})
        self._sizes: tuple[dict[TopicName, int], dict[TopicName, int]] = ({}, {})
        self.held_bytes = 0
        """About what all of it takes of memory."""

    def has_room(self, topic: TopicName, policies: TopicPolicies | None, *, is_global: bool) -> bool:
        """Whether these may be kept of a topic in the place of those that are."""
        if policies is None:
            return True
        before = self._sizes[is_global].get(topic, 0)
        return self.held_bytes - before + size_bytes(policies) <= NAMESPACE_POLICIES_BYTES_MAX

    def apply(self, change: Change, change_id: object) -> PreviousPolicies:
        """Take a change in; what it found. An INSERT counts only when there is nothing (Pulsar:
        `SystemTopicBasedTopicPoliciesService.refreshTopicPoliciesCache`)."""
        scope, ids = self._scopes[change.is_global], self._change_ids[change.is_global]
        before = PreviousPolicies(ids.get(change.topic), scope.get(change.topic))
        if change.policies is None:
            scope.pop(change.topic, None)
            ids.pop(change.topic, None)
            self.held_bytes -= self._sizes[change.is_global].pop(change.topic, 0)
        elif change.action != INSERT or change.topic not in scope:
            scope[change.topic] = change.policies
            ids[change.topic] = change_id
            sizes, size = self._sizes[change.is_global], size_bytes(change.policies)
            self.held_bytes += size - sizes.get(change.topic, 0)
            sizes[change.topic] = size
        return before

    def get(self, topic: TopicName, *, is_global: bool) -> TopicPolicies | None:
        """One scope's policies of a topic."""
        return self._scopes[is_global].get(topic)

    def change_id(self, topic: TopicName, *, is_global: bool) -> object:
        """The change that one scope's policies come from; None when there are none."""
        return self._change_ids[is_global].get(topic)

    def in_force(self, topic: TopicName) -> TopicPolicies:
        """The policies of a topic from both scopes: local ones come before global ones."""
        local, everywhere = self._scopes[False].get(topic), self._scopes[True].get(topic)
        if not everywhere:
            return local or {}
        if not local:
            return everywhere
        merged: dict[str, Any] = {**everywhere, **local}
        for name in PER_KEY_FIELDS:
            if name in everywhere and name in local:
                merged[name] = {**everywhere[name], **local[name]}
        return merged

    def topics(self) -> dict[TopicName, None]:
        """Those that have policies, the oldest first."""
        return dict.fromkeys([*self._scopes[False], *self._scopes[True]])


def differing(before: ChangeState, after: ChangeState) -> Iterator[TopicName | None]:
    """The topics for which something else is in force; None for each other one, as that takes time, too."""
    for topic in before.topics() | after.topics():
        yield topic if before.in_force(topic) != after.in_force(topic) else None


def size_bytes(policies: TopicPolicies) -> int:
    """About what a topic's policies take of memory."""
    size = CHANGE_BYTES
    rest: list[Any] = [policies]
    while rest:
        value = rest.pop()
        size += getsizeof(value)
        if isinstance(value, dict):
            rest += [*value, *value.values()]
        elif isinstance(value, list):
            rest += value
    return size
