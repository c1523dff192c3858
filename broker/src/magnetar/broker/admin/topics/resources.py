"""All that the admin API has of topics, in the order in which paths are tried."""

from __future__ import annotations

from typing import Final

from aiohttp import web
from magnetar.broker.admin.topics import measures as topic_measures
from magnetar.broker.admin.topics import messages as topic_messages
from magnetar.broker.admin.topics import (
    non_persistent,
    pending_acks,
    schemas,
    subscription_positions,
    subscriptions,
    topics,
    transaction_buffers,
)
from magnetar.broker.admin.topics import partitions as topic_partitions
from magnetar.broker.admin.topics import permissions as topic_permissions
from magnetar.broker.admin.topics import policies as topic_policies
from magnetar.broker.admin.topics import special_policies as topic_policies_special
from magnetar.broker.admin.topics import upkeep as topic_upkeep
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
    transaction_buffers,
    pending_acks,
)


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What these files serve."""
    return [route for resource in RESOURCES for route in resource.routes(context)]
