"""Entries by where they were stored first: the same in every cluster that has them. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from magnetar.broker.replicated_message import parse_position, text_of
from magnetar.broker.replicator_names import SOURCE_POSITION_PROPERTY
from magnetar.core.ids import Position
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.metadata import full_metadata
from magnetar.wire.pulsar.subscription_markers import Stretch


def origin_of(data: bytes, position: Position, local_cluster: str) -> tuple[str, Position] | None:
    """The cluster that stored an entry first, and where; the entry stands at `position` here. None for what clients
    never see, and for what does not say where it comes from."""
    try:
        metadata = full_metadata(data)
    except BadMetadata:
        return None
    if metadata.HasField("marker_type"):
        return None
    if not metadata.replicated_from:
        return local_cluster, position
    for pair in metadata.properties:
        if pair.key == SOURCE_POSITION_PROPERTY:
            source = parse_position(text_of(pair.value))
            return None if source is None else (text_of(metadata.replicated_from), source)
    return None


def stretches_of(origins: Iterable[tuple[str, Position]]) -> dict[str, list[Stretch]]:
    """The same entries by cluster, in stretches of one ledger each, ascending."""
    found: dict[str, list[Stretch]] = {}
    for cluster, (ledger_id, entry_id) in sorted(set(origins)):
        stretches = found.setdefault(cluster, [])
        if stretches and stretches[-1][0] == ledger_id and stretches[-1][2] == entry_id - 1:
            stretches[-1] = ledger_id, stretches[-1][1], entry_id
        else:
            stretches.append((ledger_id, entry_id, entry_id))
    return found


class NamedEntries:
    """Entries that a marker names, to be asked for one by one."""

    __slots__ = ("_stretches",)

    def __init__(self, stretches: Mapping[str, Sequence[Stretch]]) -> None:
        """`stretches` are ascending."""
        self._stretches = stretches

    def __contains__(self, origin: tuple[str, Position]) -> bool:
        cluster, (ledger_id, entry_id) = origin
        stretches = self._stretches.get(cluster, ())
        index = bisect_right(stretches, (ledger_id, entry_id, (1 << 64) - 1)) - 1
        if index < 0:
            return False
        of_ledger, _, last = stretches[index]
        return of_ledger == ledger_id and entry_id <= last
