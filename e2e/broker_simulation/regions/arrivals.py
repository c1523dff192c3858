"""Readers that also note where a message comes from."""

from __future__ import annotations

from typing import NamedTuple

from magnetar.broker.replicated_message import parse_position
from magnetar.broker.replicator_names import SOURCE_POSITION_PROPERTY
from magnetar.core.ids import Position
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.metadata import full_metadata

from e2e.broker_simulation.clients import Client
from e2e.broker_simulation.history import Entry
from e2e.broker_simulation.readers import Reader


class Origin(NamedTuple):
    """Where a stored entry comes from."""

    cluster: str
    """Empty: a producer of this cluster has sent it."""
    position: Position | None
    """Where it stands there, as it says."""


class Arrival(NamedTuple):
    """An entry as it is read, and where it comes from."""

    entry: Entry
    origin: Origin


def origin_of(data: bytes) -> Origin:
    """Of a stored entry, or one that was sent to a reader. `BadMetadata`."""
    metadata = full_metadata(data)
    for each in metadata.properties:
        if each.key == SOURCE_POSITION_PROPERTY:
            return Origin(metadata.replicated_from, parse_position(each.value))
    return Origin(metadata.replicated_from, None)


class ArrivalReader(Reader):
    """A reader of everything, whoever has sent it."""

    def __init__(self, client: Client, topic: str, name: str) -> None:
        super().__init__(client, topic, name, [])
        self.arrivals: list[Arrival] = []

    def take(self, command: pb.BaseCommand, rest: bytes) -> None:
        """See `End.take`."""
        before = len(self.read)
        super().take(command, rest)
        if len(self.read) > before:
            self.arrivals.append(Arrival(self.read[-1], origin_of(rest)))

    @property
    def own(self) -> list[Entry]:
        """What producers of this cluster have sent."""
        return [arrival.entry for arrival in self.arrivals if not arrival.origin.cluster]
