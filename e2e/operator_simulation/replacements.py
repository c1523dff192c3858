"""Wishes to replace bookies: one that the operator has written down holds until the volumes it is about are gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from magnetar.operator.kubernetes.kinds import BOOKIE_POOL, Manifest

from e2e.operator_simulation.objects.store import ObjectStore

SURE_SECONDS: Final = 8.0
"""A wish that was written down for so long was seen as it is. Before that an older view may take its place."""


class Replacements:
    """Reads all statuses."""

    def __init__(self, store: ObjectStore, now: Callable[[], float]) -> None:
        self._store = store
        self._now = now
        self._since: dict[tuple[str, str], float] = {}
        """When each wish was written down: by pool and uid of a claim."""
        store.listeners.append(self._changed)

    def unmet(self) -> list[str]:
        """Volumes that are still there."""
        wished = {claim for _, claim in self._since}
        return [
            f"{claim['metadata']['name']} was to be replaced"
            for claim in self._store.all("PersistentVolumeClaim")
            if claim["metadata"]["uid"] in wished
        ]

    def _changed(self, before: Manifest | None, after: Manifest | None) -> None:
        manifest = after if after is not None else before
        assert manifest is not None
        name, uid = manifest["metadata"]["name"], manifest["metadata"]["uid"]
        if manifest["kind"] == "PersistentVolumeClaim" and after is None:
            self._since = {wish: when for wish, when in self._since.items() if wish[1] != uid}
        elif manifest["kind"] == BOOKIE_POOL:
            self._read(name, after)

    def _read(self, pool: str, manifest: Manifest | None) -> None:
        members = manifest.get("status", {}).get("members", ()) if manifest is not None else ()
        now = self._now()
        written = {(pool, claim) for member in members for claim in member.get("replacement", {}).get("claimUids", ())}
        sure = {wish for wish, when in self._since.items() if wish[0] == pool and when < now - SURE_SECONDS}
        # A pool that is made anew knows nothing of its predecessor.
        kept = written | sure if manifest is not None else set()
        others = {wish: when for wish, when in self._since.items() if wish[0] != pool}
        self._since = others | {wish: self._since.get(wish, now) for wish in sorted(kept)}
