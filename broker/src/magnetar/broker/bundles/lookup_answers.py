"""What a lookup may be told (pulsar-protocol section 4).

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import TypeAlias

from magnetar.broker.peers.addresses import BrokerAddresses
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.topic_requests import ConnectEncoder


class Connect:
    """This broker serves it."""

    __slots__ = ("_encoders", "addresses", "ours")

    def __init__(self, addresses: BrokerAddresses, *, ours: bool) -> None:
        self.addresses = addresses
        self.ours = ours
        """Whether that is the broker that was asked."""
        self._encoders: dict[str, ConnectEncoder] = {}
        """By listener name; as many as the broker has listeners, as other names are refused."""

    def encode(self, request_id: int, listener_name: str) -> bytes:
        """The frame for a client. `PulsarError` as `client_urls`."""
        encoder = self._encoders.get(listener_name)
        if encoder is None:
            url, url_tls = client_urls(self.addresses, listener_name)
            encoder = self._encoders[listener_name] = ConnectEncoder(url, url_tls)
        return encoder.encode(request_id)


class Redirect:
    """Ask this broker, with this flag."""

    __slots__ = ("addresses", "authoritative")

    def __init__(self, addresses: BrokerAddresses, *, authoritative: bool) -> None:
        self.addresses = addresses
        self.authoritative = authoritative


Answer: TypeAlias = Connect | Redirect


def client_urls(addresses: BrokerAddresses, listener_name: str = "") -> tuple[str, str]:
    """What a client is told of a broker: its URL and that for TLS, empty where it has none.

    Raises SERVICE_NOT_READY when the broker has no listener of the name that the client asked for."""
    if not listener_name:
        return addresses.service_url or "", addresses.service_url_tls or ""
    listener = addresses.listeners.get(listener_name)
    if listener is None:
        raise PulsarError(ServerError.SERVICE_NOT_READY, f"the broker do not have {listener_name} listener")
    return listener.broker_service_url or "", listener.broker_service_url_tls or ""
