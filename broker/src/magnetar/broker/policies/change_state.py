"""What the changes of a namespace's topic policies come to, one after the other. Pure."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from magnetar.broker.policies.api import TopicPolicies
from magnetar.broker.policies.event_codec import INSERT, Change
from magnetar.core.topic_name import TopicName

PER_KEY_FIELDS: Final = ("backLogQuotaMap", "subscriptionPolicies")
"""Maps whose entries are policies of their own: local ones leave the global ones of other keys in force."""


class Before(NamedTuple):
    """What a change found."""

    change_id: object
    """Of the change before of the same topic and scope; None: there was none."""
    policies: TopicPolicies | None


class ChangeState:
    """The policies of one namespace's topics, and by which change each came to be."""

    def __init__(self) -> None:
        # As many as topics with policies of their own.
        self._scopes: tuple[dict[TopicName, TopicPolicies], dict[TopicName, TopicPolicies]] = ({}, {})
        self._change_ids: tuple[dict[TopicName, object], dict[TopicName, object]] = ({}, {})

    def apply(self, change: Change, change_id: object) -> Before:
        """Take a change in; what it found. An INSERT counts only when there is nothing (Pulsar:
        `SystemTopicBasedTopicPoliciesService.refreshTopicPoliciesCache`)."""
        scope, ids = self._scopes[change.is_global], self._change_ids[change.is_global]
        before = Before(ids.get(change.topic), scope.get(change.topic))
        if change.policies is None:
            scope.pop(change.topic, None)
            ids.pop(change.topic, None)
        elif change.action != INSERT or change.topic not in scope:
            scope[change.topic] = change.policies
            ids[change.topic] = change_id
        return before

    def get(self, topic: TopicName, *, is_global: bool) -> TopicPolicies | None:
        """One scope's policies of a topic."""
        return self._scopes[is_global].get(topic)

    def change_id(self, topic: TopicName, *, is_global: bool) -> object:
        """The change that one scope's policies come from; None when there are none."""
        return self._change_ids[is_global].get(topic)

    def in_force(self, topic: TopicName) -> TopicPolicies:
        """Over both scopes: local before global."""
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

    def topics(self) -> set[TopicName]:
        """Those that have policies."""
        return {*self._scopes[False], *self._scopes[True]}


def differing(before: ChangeState, after: ChangeState) -> list[TopicName]:
    """The topics for which something else is in force, in the order of their names."""
    topics = before.topics() | after.topics()
    return sorted((topic for topic in topics if before.in_force(topic) != after.in_force(topic)), key=str)
