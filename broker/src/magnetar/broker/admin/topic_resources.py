"""All that the admin API has of topics, in the order in which paths are tried."""

from __future__ import annotations

from typing import Final

from aiohttp import web
from magnetar.broker.admin import (
    non_persistent,
    schemas,
    subscription_positions,
    subscriptions,
    topic_measures,
    topic_messages,
    topic_partitions,
    topic_permissions,
    topic_policies,
    topic_policies_special,
    topic_upkeep,
    topics,
)
from magnetar.broker.context import BrokerContext

# `partitioned` is no bundle: the lists of a namespace come before those of a bundle.
RESOURCES: Final = (
    topics,
    non_persistent,
    topic_partitions,
    topic_measures,
    topic_messages,
    topic_upkeep,
    subscriptions,
    subscription_positions,
    topic_permissions,
    topic_policies,
    topic_policies_special,
    schemas,
)


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What these files serve."""
    return [route for resource in RESOURCES for route in resource.routes(context)]
