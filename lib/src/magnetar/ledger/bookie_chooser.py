"""Chooses bookies for new ensembles and for places that a failed bookie left."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from magnetar.core.clock import Clock
from magnetar.ledger.bookie_client.bookie_connection import BookieConnections
from magnetar.ledger.placement import (
    POLICY_METADATA_KEY,
    Adherence,
    EnsemblePlacer,
    PlacementSettings,
    isolated_candidates,
    isolation_of,
)
from magnetar.ledger.topology import BookieTopology
from magnetar.metadata.store import NodeNotFound

_DEFAULT_SETTINGS: Final = PlacementSettings()
_NOTHING_KNOWN: Final = BookieTopology()
_NO_METADATA: Final[Mapping[str, bytes]] = {}


class BookieChooser:
    """Knows who is there, where they stand and who failed lately; one per client."""

    def __init__(
        self,
        connections: BookieConnections,
        clock: Clock,
        rng: random.Random,
        quarantine_seconds: float,
        settings: PlacementSettings = _DEFAULT_SETTINGS,
        places: Callable[[], BookieTopology] = lambda: _NOTHING_KNOWN,
        local_rack: str = "",
    ) -> None:
        """`places` gives the newest knowledge of racks and groups; `local_rack` is where the client is, if known."""
        self._connections = connections
        self._clock = clock
        self._rng = rng
        self._quarantine_seconds = quarantine_seconds
        self._settings = settings
        self._places = places
        self._local_rack = local_rack
        # One entry per bookie that failed within the quarantine; dropped when it is over.
        self._quarantined_until: dict[str, float] = {}

    def new_ensemble(
        self,
        size: int,
        write_quorum: int,
        custom_metadata: Mapping[str, bytes] = _NO_METADATA,
        left: Collection[str] = (),
    ) -> list[str]:
        """Bookies for a new ledger, none of those that have `left`. Raises `NotEnoughBookies`."""
        return self._fill([None] * size, write_quorum, custom_metadata, excluded=left)

    def replacement(
        self,
        ensemble: Sequence[str],
        failed: Sequence[int],
        lost: Collection[str],
        write_quorum: int,
        custom_metadata: Mapping[str, bytes] = _NO_METADATA,
    ) -> list[str]:
        """The ensemble with other bookies at the failed indexes, none of them from `lost`. `NotEnoughBookies`."""
        kept = [None if index in failed else bookie for index, bookie in enumerate(ensemble)]
        return self._fill(kept, write_quorum, custom_metadata, excluded={*ensemble, *lost})

    def registrations(self, bookie_ids: Collection[str]) -> list[str]:
        """What must be there when metadata is written that gives these bookies places."""
        return self._connections.registrations(bookie_ids)

    async def another_choice(self, missing: NodeNotFound) -> str:
        """A registration was not there: look who is, and return the id of who has left. Raises `Unavailable`."""
        await self._connections.look_again()
        return str(missing).rpartition("/")[2]

    def adheres(self, ensemble: Sequence[str], write_quorum: int) -> Adherence:
        """Whether an ensemble is spread as the policy wants it."""
        return EnsemblePlacer(self._settings, self._places(), write_quorum, self._rng).adherence(ensemble)

    def _fill(
        self,
        ensemble: Sequence[str | None],
        write_quorum: int,
        custom_metadata: Mapping[str, bytes],
        excluded: Collection[str],
    ) -> list[str]:
        places = self._places()
        groups, secondary = isolation_of(custom_metadata.get(POLICY_METADATA_KEY), self._settings)
        writable = self._connections.writable_bookies()
        candidates = isolated_candidates(writable, places, groups, secondary, len(ensemble))
        placer = EnsemblePlacer(self._settings, places, write_quorum, self._rng, self.avoided())
        return placer.fill(ensemble, [bookie for bookie in candidates if bookie not in excluded])

    def report_failure(self, *bookie_ids: str) -> None:
        """Note that these bookies failed an add just now, or did not answer a read in time."""
        until = self._clock.monotonic_seconds() + self._quarantine_seconds
        self._quarantined_until.update(dict.fromkeys(bookie_ids, until))

    def avoided(self) -> Collection[str]:
        """Bookies that failed lately: asked last, chosen only when there are no others."""
        if self._quarantined_until:
            now = self._clock.monotonic_seconds()
            self._quarantined_until = {
                bookie: until for bookie, until in self._quarantined_until.items() if until > now
            }
        return self._quarantined_until

    def in_reading_order(self, bookies: Sequence[str]) -> list[str]:
        """Near ones first, otherwise in the order given; those that failed lately come last, near or not."""
        avoided = self.avoided()
        if self._local_rack:
            places = self._places()
            bookies = sorted(bookies, key=lambda each: places.distance(each, self._local_rack))
        return sorted(bookies, key=avoided.__contains__) if avoided else list(bookies)

    def nearest(self, bookies: Sequence[str]) -> list[str]:
        """Those that are as near as the nearest one; all of them when nobody knows where the client is."""
        if not self._local_rack:
            return list(bookies)
        places = self._places()
        distances = {each: places.distance(each, self._local_rack) for each in bookies}
        least = min(distances.values(), default=0)
        return [each for each in bookies if distances[each] == least]
