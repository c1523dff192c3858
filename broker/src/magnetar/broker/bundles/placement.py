"""What lookups and the admin API ask load management."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from magnetar.core.bundle import BundleName


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvertisedListener:
    """One set of addresses under a listener's name (Pulsar `AdvertisedListener`); None where it has none."""

    broker_service_url: str | None = None
    broker_service_url_tls: str | None = None
    broker_http_url: str | None = None
    broker_https_url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddresses:
    """How clients, tools and brokers reach a broker; None where it does not listen."""

    broker_id: str
    service_url: str | None
    service_url_tls: str | None
    web_service_url: str | None
    web_service_url_tls: str | None
    listeners: Mapping[str, AdvertisedListener] = field(default_factory=dict)


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
