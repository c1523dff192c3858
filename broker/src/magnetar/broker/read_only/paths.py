"""Where brokers that only read are known in the metadata store. Apache's brokers do not look there, so that they hand
no bundles to those."""

from __future__ import annotations

from typing import Final

from magnetar.core.topic_name import TopicName
from magnetar.managed.paths import encode

ROOT: Final = "/read-only-brokers"

BROKERS_PATH: Final = ROOT + "/brokers"
"""The brokers that are alive, each with its report."""

LEAVING_PATH: Final = ROOT + "/leaving"
"""Those that drain or stop."""

SUBSCRIPTIONS_PATH: Final = ROOT + "/subscriptions"


def bindings_path(topic: TopicName) -> str:
    """Below it, the bindings of a topic's subscriptions."""
    return f"{SUBSCRIPTIONS_PATH}/{topic.persistence_name}"


def binding_path(topic: TopicName, subscription: str) -> str:
    """The node that says which broker serves a subscription. Encoded as a cursor's node is."""
    return f"{bindings_path(topic)}/{encode(subscription)}"
