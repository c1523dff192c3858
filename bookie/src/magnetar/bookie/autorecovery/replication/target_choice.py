"""Which bookies take the places of those that lost, damaged or misplaced their fragments."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Final

from magnetar.bookie.autorecovery.fragments import INCOMPLETE, BadFragments, EnsembleRepair, Segment
from magnetar.ledger.api import NotEnoughBookies
from magnetar.ledger.bookie_chooser import BookieChooser
from magnetar.ledger.bookie_client.bookie_connection import BookieConnections
from magnetar.ledger.placement import Adherence
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata

PLACES_CHANGED_MAX: Final = 2
"""Places of a segment that are changed at once for the sake of the placement policy; with three replicas two always
suffice if any change does."""


class TargetChoice:
    """Asks the client's chooser, which knows the placement policy."""

    def __init__(self, chooser: BookieChooser, connections: BookieConnections) -> None:
        self._chooser = chooser
        self._connections = connections

    def choose(self, metadata: LedgerMetadata, bad: BadFragments, excluded: Collection[str]) -> EnsembleRepair:
        """Bookies for the bad places, as many as there are; at least one. Raises `NotEnoughBookies`.

        A bookie that lives and only lacks entries keeps its place when nobody else can take it."""
        segment = bad.segment
        try:
            return self._choose_for(metadata, segment, list(bad.verdicts), excluded)
        except NotEnoughBookies as error:
            none_free = error
        # Fewer bookies than places, or a rule that all of them together cannot keep: one more replica is better.
        replacements: dict[int, str] = {}
        for index in bad.verdicts:
            try:
                move = self._choose_for(metadata, segment, [index], {*excluded, *replacements.values()})
            except NotEnoughBookies:
                writable = self._connections.writable_bookies()
                bookie = segment.bookies[index]
                if bad.verdicts[index] in INCOMPLETE and bookie in writable and bookie not in excluded:
                    replacements[index] = bookie
            else:
                replacements.update(move.replacements)
        if not replacements:
            raise none_free
        return EnsembleRepair(segment, replacements)

    def misplaced(self, metadata: LedgerMetadata, segment: Segment, excluded: Collection[str]) -> tuple[int, ...]:
        """The fewest places that other bookies must take for the segment to adhere to the placement policy; none when
        it does, or when a few changes do not help."""
        adheres = self._chooser.adheres
        if adheres(segment.bookies, segment.write_quorum) is Adherence.STRICT:
            return ()
        for count in range(1, PLACES_CHANGED_MAX + 1):
            for indexes in itertools.combinations(range(len(segment.bookies)), count):
                try:
                    move = self._choose_for(metadata, segment, indexes, excluded)
                except NotEnoughBookies:
                    continue
                changed = [move.replacements.get(index, bookie) for index, bookie in enumerate(segment.bookies)]
                if adheres(changed, segment.write_quorum) is Adherence.STRICT:
                    return indexes
        return ()

    def _choose_for(
        self, metadata: LedgerMetadata, segment: Segment, indexes: Sequence[int], excluded: Collection[str]
    ) -> EnsembleRepair:
        changed = self._chooser.replacement(
            segment.bookies, indexes, excluded, metadata.write_quorum, metadata.custom_metadata
        )
        return EnsembleRepair(segment, {index: changed[index] for index in indexes})
