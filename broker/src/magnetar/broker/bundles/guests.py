"""What a bundle has beside its topics, as the bundle's moves know it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from magnetar.broker.bundles.owned_bundles import OwnedBundle


class BundleGuests(Protocol):
    """What is served with a bundle beside its topics; the bundle's moves let go of it."""

    async def close_in(self, owned: OwnedBundle) -> None:
        """Before the bundle is released: serve nothing more of it, and store what there is to store."""
        ...

    async def abandon_in(self, bundles: Collection[OwnedBundle]) -> None:
        """Somebody else may own these: serve nothing more of them, and write nothing."""
        ...
