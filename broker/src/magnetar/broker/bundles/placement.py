"""What lookups and the admin API ask load management: where bundles should go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from magnetar.broker.peers.addresses import BrokerAddresses
from magnetar.core.bundle import BundleName


class LoadManager(Protocol):
    """Where bundles that nobody owns should go."""

    @property
    def leading(self) -> bool:
        """Whether this broker is the leader."""
        ...

    def leader(self) -> BrokerAddresses | None:
        """The leader, as far as known and alive."""
        ...

    def brokers(self) -> Mapping[str, BrokerAddresses]:
        """The brokers that are alive, by id; this one among them once it is registered."""
        ...

    async def place(self, bundle: BundleName) -> BrokerAddresses | None:
        """The broker that should own a bundle which nobody owns; None when none may take it."""
        ...
