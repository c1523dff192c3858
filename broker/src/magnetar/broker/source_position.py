"""How far each cluster has come whose messages are replicated to one topic.

The keys of the deduplication's snapshot are Apache's (Pulsar `MessageDeduplication`), so that brokers of both kinds
take topics over from each other. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.broker.replicated_message import read_replicated
from magnetar.broker.replicator_names import is_replicator, producer_of, source_cluster
from magnetar.managed.info_codec import size_of_properties

if TYPE_CHECKING:
    from collections.abc import Mapping

    from magnetar.core.ids import Position

LEDGER_KEY: Final = "_LID"
ENTRY_KEY: Final = "_EID"
"""How the keys of a snapshot end that hold the two halves of a position; the producer's name comes before."""

MARKER_RECEIPT: Final = 1 << 63
"""The highest sequence id in the receipt of such a marker: the lowest signed number of 64 bits, as unsigned one."""

BEFORE_ALL: Final = (-1, -1)
"""Comes before every position at a source."""

SOURCES_MAX: Final = 1_000
"""Sources of one topic whose positions are kept: more clusters than any instance has. Beyond, the one that was met
first is forgotten, and sends twice at most what it sends again."""


class SourcePositions:
    """Up to which position of each source the messages of one topic were taken, and up to which they are stored.

    Positions are ordered by ledger first. A source is known by the name of its producer."""

    __slots__ = ("_local_cluster", "_pushed", "_stored")

    def __init__(self, local_cluster: str) -> None:
        self._local_cluster = local_cluster
        self._pushed: dict[str, Position] = {}
        self._stored: dict[str, Position] = {}

    def key_of(self, producer_name: str) -> str:
        """What a producer is known by: also an old one, whose name lacks this cluster."""
        source = source_cluster(producer_name)
        return producer_name if source is None else producer_of(source, self._local_cluster)

    def take(self, key: str, position: Position) -> bool:
        """Whether a message is new, which then counts as taken."""
        pushed = self._pushed.get(key)
        if pushed is not None and position <= pushed:
            return False
        self._pushed[key] = position
        return True

    def is_stored(self, key: str, position: Position) -> bool:
        """Whether the message at a position, or one behind it, is stored."""
        stored = self._stored.get(key)
        return stored is not None and position <= stored

    def store(self, key: str, position: Position) -> None:
        """The message at a position is stored."""
        stored = self._stored.get(key)
        if stored is None or position > stored:
            if stored is None and len(self._stored) >= SOURCES_MAX:
                gone = next(iter(self._stored))
                del self._stored[gone]
                self._pushed.pop(gone, None)
            self._stored[key] = position

    def forget_taken(self) -> None:
        """What was taken and is not stored comes again."""
        self._pushed = dict(self._stored)

    # --- from one owner of the topic to the next

    def replay(self, replicated_from: str, payload: bytes) -> bool:
        """A stored entry that came from a cluster. True when it said where it stands there."""
        message = read_replicated(payload)
        if message is None or message.position is None:
            return False
        self.store(producer_of(replicated_from, self._local_cluster), message.position)
        return True

    def load(self, properties: Mapping[str, int]) -> dict[str, int]:
        """Take the positions of a snapshot; its other members are returned."""
        others: dict[str, int] = {}
        for name, number in properties.items():
            key = name.removesuffix(LEDGER_KEY).removesuffix(ENTRY_KEY)
            if key == name or not is_replicator(name):
                others[name] = number
            elif name.endswith(LEDGER_KEY) and (entry_id := properties.get(key + ENTRY_KEY)) is not None:
                self.store(self.key_of(key), (number, entry_id))
        self.forget_taken()
        return others

    def snapshot(self, count_max: int, bytes_max: int) -> dict[str, int]:
        """The members of a snapshot, at most so many and so large: both of a position, or none."""
        members: dict[str, int] = {}
        for key, (ledger_id, entry_id) in self._stored.items():
            bytes_max -= size_of_properties((key + LEDGER_KEY, key + ENTRY_KEY))
            if len(members) + 2 > count_max or bytes_max < 0:
                break
            members[key + LEDGER_KEY] = ledger_id
            members[key + ENTRY_KEY] = entry_id
        return members
