"""Mistakes in replication: what is sent again, what counts as confirmed, which cursors stay, what receivers know."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from magnetar.broker.replication import outgoing
from magnetar.broker.replication.outgoing import EntryLook, Skipped
from magnetar.broker.replication.remote_link import RemoteLink
from magnetar.broker.replication.replicator import Replicator
from magnetar.broker.replication.topic_replicators import TopicReplicators
from magnetar.broker.source_position import SourcePositions
from magnetar.client.unanswered import RelayedEntry, Unanswered
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.wire.pulsar.send_receipts import Receipt

from e2e.simulation.planting import Mistake, Patch, original


def unconfirmed_is_passed_over() -> list[Patch]:
    """After a connection was lost a replicator goes on with what it has not sent yet."""
    right = original(RemoteLink, "_disconnected")

    def disconnected(self: Replicator, error: MagnetarError) -> None:
        position = self.cursor.read_position
        right(self, error)
        self.cursor.skip_to(position)

    return [(RemoteLink, "_disconnected", disconnected)]


def receipts_are_for_all_of_a_sequence_id() -> list[Patch]:
    """A receipt counts for each entry that has the same sequence id, whoever has sent it."""

    def answered(self: Unanswered, receipts: list[Receipt]) -> list[Position]:
        stored: list[Position] = []
        for told in receipts:
            named = self._entries.get((told.sequence_id, told.highest_sequence_id))
            for entry in [] if named is None else list(self._entries.values()):
                if named is not None and entry.sequence_id == named.sequence_id:
                    self._take(entry, stored)
        return stored

    return [(Unanswered, "answered", answered)]


def cursor_goes_with_the_list() -> list[Patch]:
    """When the list names the other cluster alone, nothing is replicated any more."""

    def wanted(self: TopicReplicators) -> tuple[str, ...]:
        return () if self._policies is None else self._policies.remote_clusters

    return [(TopicReplicators, "_wanted", wanted)]


def sent_is_confirmed() -> list[Patch]:
    """An entry is acknowledged as soon as it is sent."""
    right = original(Replicator, "_send_all")

    def send_all(self: Replicator, sent: list[RelayedEntry]) -> None:
        right(self, sent)
        self.cursor.acknowledge([one.position for one in sent])

    return [(Replicator, "_send_all", send_all)]


def replicated_is_sent_on() -> list[Patch]:
    """What has come from another cluster is replicated like everything else."""
    right = original(outgoing, "reason_to_skip")

    def reason(
        look: EntryLook, remote: bytes, now_ms: int, ttl_seconds: int, aborted: Collection[tuple[int, int]]
    ) -> Skipped | None:
        found: Skipped | None = right(look, remote, now_ms, ttl_seconds, aborted)
        return None if found is Skipped.REPLICATED else found

    return [(outgoing, "reason_to_skip", reason)]


def nobody_connects_again() -> list[Patch]:
    """A replicator whose connection was lost waits for ever."""
    right = original(RemoteLink, "relay_ended")

    def relay_ended(self: RemoteLink, error: MagnetarError) -> None:
        right(self, error)
        if self._retry_timer is not None:
            self._retry_timer.cancel()

    return [(RemoteLink, "relay_ended", relay_ended)]


def positions_without_their_ledgers() -> list[Patch]:
    """A receiver tells messages of a source by the number of the entry alone."""

    def is_stored(self: SourcePositions, key: str, position: Position) -> bool:
        stored = self._stored.get(key)
        return stored is not None and position[1] <= stored[1]

    return [(SourcePositions, "is_stored", is_stored)]


def positions_are_not_replayed() -> list[Patch]:
    """A receiver that loads a topic knows of each source what was in the last snapshot."""

    def replay(self: SourcePositions, replicated_from: str, payload: bytes) -> bool:
        return True

    return [(SourcePositions, "replay", replay)]


REGION_MISTAKES: Final[dict[str, Mistake]] = {
    "cursor-goes-with-the-list": cursor_goes_with_the_list,
    "nobody-connects-again": nobody_connects_again,
    "positions-are-not-replayed": positions_are_not_replayed,
    "positions-without-their-ledgers": positions_without_their_ledgers,
    "receipts-are-for-all-of-a-sequence-id": receipts_are_for_all_of_a_sequence_id,
    "replicated-is-sent-on": replicated_is_sent_on,
    "sent-is-confirmed": sent_is_confirmed,
    "unconfirmed-is-passed-over": unconfirmed_is_passed_over,
}
