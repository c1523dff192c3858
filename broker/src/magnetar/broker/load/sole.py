"""Load management of a broker that has its metadata store for itself: it leads, and everything goes to it."""

from __future__ import annotations

from collections.abc import Mapping

from magnetar.broker.load.api import BrokerAddresses
from magnetar.core.bundle import BundleName


class SoleBroker:
    """A `LoadManager` of one broker."""

    def __init__(self, own: BrokerAddresses) -> None:
        self._own = own

    @property
    def leading(self) -> bool:
        """Always."""
        return True

    def leader(self) -> BrokerAddresses | None:
        """This broker."""
        return self._own

    def brokers(self) -> Mapping[str, BrokerAddresses]:
        """This broker."""
        return {self._own.broker_id: self._own}

    async def place(self, bundle: BundleName) -> BrokerAddresses | None:
        """This broker."""
        del bundle
        return self._own

    async def start(self) -> None:
        """Nothing is registered."""

    async def unregister(self) -> None:
        """Nothing is registered."""

    async def close(self) -> None:
        """Nothing runs."""
