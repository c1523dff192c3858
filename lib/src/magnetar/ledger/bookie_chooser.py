"""Chooses bookies for new ensembles and for places that a failed bookie left."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from magnetar.core.clock import Clock
from magnetar.ledger.bookie_connection import BookieConnections
from magnetar.ledger.placement import choose_bookies


class BookieChooser:
    """Knows who is there and who failed lately; one per client."""

    def __init__(
        self, connections: BookieConnections, clock: Clock, rng: random.Random, quarantine_seconds: float
    ) -> None:
        self._connections = connections
        self._clock = clock
        self._rng = rng
        self._quarantine_seconds = quarantine_seconds
        # One entry per bookie that failed within the quarantine; dropped when it is over.
        self._quarantined_until: dict[str, float] = {}

    def new_ensemble(self, size: int) -> list[str]:
        """Bookies for a new ledger. Raises `NotEnoughBookies`."""
        return choose_bookies(size, self._connections.writable_bookies(), self._rng, avoided=self.avoided())

    def replacement(self, ensemble: Sequence[str], failed: Sequence[int], lost: Collection[str]) -> list[str]:
        """The ensemble with other bookies at the failed indexes, none of them from `lost`. `NotEnoughBookies`."""
        fresh = choose_bookies(
            len(failed),
            self._connections.writable_bookies(),
            self._rng,
            excluded=set(ensemble).union(lost),
            avoided=self.avoided(),
        )
        changed = list(ensemble)
        for index, bookie in zip(failed, fresh, strict=True):
            changed[index] = bookie
        return changed

    def report_failure(self, *bookie_ids: str) -> None:
        """These failed an add just now, or did not answer a read in time."""
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
