"""What can be said about a broker's settings before it starts, beyond what each of them says of itself."""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from magnetar.broker.load.broker_report import LOAD_MANAGER_CLASS
from magnetar.broker.peers.addresses import own_addresses
from magnetar.broker.policies.offload import of_broker, store_of
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.control.settings import ControlSettings
from magnetar.core.clock import SystemClock
from magnetar.core.settings_file import GivenSettings
from magnetar.net.tls import ServerTls
from magnetar.process.port_conflicts import NamedPort, refuse_equal_ports
from magnetar.process.protection import refuse_protection

logger: Final = logging.getLogger(__name__)

PROTECTIONS: Final = ("tlsEnabledWithKeyStore", "brokerClientTlsEnabledWithKeyStore", "tokenSettingPrefix")
"""What this broker cannot do yet; see `refuse_protection`."""


def check_broker(given: GivenSettings, broker: BrokerSettings, control: ControlSettings | None = None) -> None:
    """Problems of the broker that was made of what was given."""
    refuse_protection(given, PROTECTIONS)
    for look in (_try_authentication, own_addresses, _try_tls, _try_peer_access, _try_offload):
        given.attempt(partial(look, broker), None)
    _refuse_closed_ports(given)
    _refuse_equal_ports(given, broker, control)


def tell_load_manager(given: GivenSettings) -> None:
    """There is one load manager; who asks for another must not believe that it runs."""
    name = given.text("loadManagerClassName") or LOAD_MANAGER_CLASS
    if name != LOAD_MANAGER_CLASS:
        logger.warning(
            "loadManagerClassName is %s, which is not here: this broker shares bundles by the rules of %s. Apache's "
            "brokers must run that one to stand beside it, as others may keep elsewhere who owns a bundle",
            name,
            LOAD_MANAGER_CLASS,
        )


def _refuse_closed_ports(given: GivenSettings) -> None:
    """An empty value closes a port at Apache's brokers; whoever relies on that must not find it open."""
    for name in ("brokerServicePort", "webServicePort"):
        if given.emptied(name):
            given.problem(
                f"{name} is empty, and a port without TLS cannot be switched off here: give it a number and keep "
                "others from it, such as by bindAddress or by the network's rules"
            )


def _refuse_equal_ports(given: GivenSettings, broker: BrokerSettings, control: ControlSettings | None) -> None:
    host = broker.bind_address
    ports = [
        NamedPort("brokerServicePort", host, broker.broker_service_port),
        NamedPort("brokerServicePortTls", host, broker.broker_service_port_tls),
        NamedPort("webServicePort", host, broker.web_service_port),
        NamedPort("webServicePortTls", host, broker.web_service_port_tls),
    ]
    if control is not None:
        ports.append(NamedPort("controlPort", control.host, control.port))
    refuse_equal_ports(given, ports)


def _try_authentication(broker: BrokerSettings) -> None:
    """Keys and users are read."""
    if broker.access.authentication.enabled:
        from magnetar.auth.authenticator import Authenticator

        Authenticator(broker.access.authentication, SystemClock())


def _try_tls(broker: BrokerSettings) -> None:
    """Certificates of ports are read."""
    if broker.broker_service_port_tls is not None or broker.web_service_port_tls is not None:
        ServerTls(broker.tls)


def _try_offload(broker: BrokerSettings) -> None:
    """The store of offloaded ledgers is there, and is described; nobody is asked yet."""
    if broker.offload.driver:
        store_of(of_broker(broker.offload))


def _try_peer_access(broker: BrokerSettings) -> None:
    """What is shown to other brokers is read."""
    if broker.access.peers.plugin or broker.access.peers.tls_enabled:
        from magnetar.broker.peers.access import PeerAccess

        PeerAccess(broker.access.peers)
