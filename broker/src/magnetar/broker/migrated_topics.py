"""Topics whose clients go on in another cluster: where that is, and what whoever comes here is told.

Facts: Pulsar `ClusterPolicies.ClusterUrl`, `ManagedLedgerImpl.MIGRATION_STATE_PROPERTY`, `ServerCnx`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from magnetar.wire.pulsar.errors import PulsarError, ServerError

MIGRATED_PROPERTY: Final = "migrated"
"""Managed-ledger property of a topic that was terminated because its cluster or namespace has moved."""

MIGRATION_COMMAND_VERSION: Final = 20
"""Clients from this version of the protocol on know TOPIC_MIGRATED (Pulsar `PulsarCommandSenderImpl`)."""


class Destination(NamedTuple):
    """The addresses of the cluster that a topic's clients go to; those that are not told are empty."""

    service_url: str
    service_url_tls: str
    broker_service_url: str
    broker_service_url_tls: str


class TopicMigrated(PulsarError):
    """The client's place is another cluster. Who is no producer or consumer hears that the topic is not here."""

    def __init__(self, topic: str, destination: Destination) -> None:
        super().__init__(ServerError.TOPIC_NOT_FOUND, f"{topic} already migrated")
        self.destination = destination
