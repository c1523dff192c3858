"""The topic whose partitions are a cluster's transaction coordinators (Pulsar `PulsarClusterMetadataSetup`)."""

from __future__ import annotations

import contextlib

from magnetar.broker.resources import Resources
from magnetar.broker.transactions.names import COORDINATORS_TOPIC
from magnetar.metadata.store import VersionConflict


async def initialize_coordinators(resources: Resources, count: int) -> None:
    """Make so many coordinators, unless the cluster has some; the partitions themselves are never made."""
    documents, path = resources.documents, resources.partitioned_topic_path(COORDINATORS_TOPIC)
    if not await documents.exists(path):
        # Somebody may be preparing the same cluster right now.
        with contextlib.suppress(VersionConflict):
            await documents.create(path, {"partitions": count})
