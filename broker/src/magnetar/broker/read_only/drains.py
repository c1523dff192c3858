"""The drain of a broker that only reads: its consumers go to others that read. There is nothing to be handed over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from magnetar.broker.bundles.moves import BundleMoves
from magnetar.broker.bundles.owned_bundles import OwnedBundle
from magnetar.broker.load.drain import DrainRefused, Drains
from magnetar.broker.read_only.bundles import EVERYTHING, ReadOnlyBundles
from magnetar.broker.read_only.membership import ReadOnlyMembership
from magnetar.broker.settings.load import LoadSettings
from magnetar.core.bundle import BundleName

NOTHING: Final[Mapping[BundleName, OwnedBundle]] = {}
"""What operators may unload, cut or hand over: of the one bundle no other broker knows."""


class ReadOnlyDrains(Drains):
    """Done while no topic is loaded; whoever comes all the same is sent away again."""

    def __init__(
        self, load: ReadOnlyMembership, ownership: ReadOnlyBundles, moves: BundleMoves, settings: LoadSettings
    ) -> None:
        super().__init__(load, ownership, moves, settings)
        self._readers = load
        self._everything = ownership

    def _check_others(self, own_id: str) -> None:
        readers = self._readers.readers.items()
        if not any(broker_id != own_id and not one.draining for broker_id, one in readers):
            raise DrainRefused("no other read-only broker is alive that could take the consumers: start one first")

    def _to_leave(self) -> list[BundleName]:
        bundle = self._everything.owned().get(EVERYTHING)
        return [EVERYTHING] if bundle is not None and (bundle.topics or bundle.loading) else []

    async def _move(self, bundle: BundleName) -> bool:
        """Clients look their topics up again: no broker gets all of them."""
        await self._moves.unload(bundle)
        return True
