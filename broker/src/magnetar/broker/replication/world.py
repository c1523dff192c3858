"""What the replicators of all topics of a broker stand on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.broker.replication.remote_clusters import RemoteClusters
from magnetar.broker.replication.remote_partitions import RemotePartitions

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from magnetar.broker.resources import Resources
    from magnetar.broker.schema.registry import SchemaRegistry
    from magnetar.broker.settings.broker import BrokerSettings
    from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime


class ReplicationWorld:
    """What all replicators of a broker share."""

    def __init__(
        self,
        settings: Callable[[], BrokerSettings],
        resources: Resources,
        schemas: SchemaRegistry,
        runtime: SubscriptionRuntime,
        rng: Random,
    ) -> None:
        self.settings = settings
        self.schemas = schemas
        self.runtime = runtime
        self.remotes = RemoteClusters(resources, settings, runtime.clock, rng)
        self.partitions = RemotePartitions(resources, settings, self.remotes, rng, runtime.clock)
