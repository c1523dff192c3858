"""What a broker stands on, and what it touches of its process and host."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Protocol

from magnetar.admin_client.client import AdminClient
from magnetar.broker.admin.server import AdminServer
from magnetar.broker.context import BrokerContext
from magnetar.broker.offload_stores import offloader_of
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.core.clock import Clock
from magnetar.ledger.api import LedgerClient
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.metadata.store import MetadataStore
from magnetar.tiered.api import Offloader

if TYPE_CHECKING:
    from magnetar.balance.settings import BalanceSettings


class AdminPort(Protocol):
    """Where the admin API is served: `AdminServer`."""

    port_tls: int | None

    async def listen(self) -> int:
        """Take the ports; which the one without TLS is. OSError."""
        ...

    async def serve(self, context: BrokerContext) -> None:
        """Answer requests from now on."""
        ...

    async def close(self) -> None:
        """Finish the requests under way, then stop."""
        ...


def admin_server(settings: BrokerSettings) -> AdminServer:
    """The admin API on TCP, by aiohttp."""
    return AdminServer.of(settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerEnvironment:
    """What a broker touches of its process and host beside the loop: the real ones, unless simulated."""

    admin_port: Callable[[BrokerSettings], AdminPort] = admin_server
    admin_client: Callable[..., AdminClient] = AdminClient
    """Makes the client that asks other brokers; takes what `AdminClient` takes."""
    offloader: Callable[[Hashable], Offloader] = offloader_of
    """Makes what reaches the store of offloaded ledgers, of the settings that policies give it."""
    host_root: Path = Path("/")
    """Where the system's own files are that tell how full the host is."""
    rng: Random | None = None
    """For pauses and names of the broker's own client; None: any."""


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """What a broker stands on; whoever passes them closes them, after the broker."""

    store: MetadataStore
    ledgers: LedgerClient
    clock: Clock
    ledger_settings: ManagedLedgerSettings
    configuration_store: MetadataStore | None = None
    """Where the clusters of an instance keep what they share; None: in `store`."""
    balance_settings: BalanceSettings | None = None
    """How bundles are placed, split and moved; None: the defaults, loaded once there are several brokers."""
    request_stop: Callable[[], None] | None = None
    """Begins the stop of the whole process, as a signal would; None where the admin API must not."""
    environment: BrokerEnvironment = field(default_factory=BrokerEnvironment)
