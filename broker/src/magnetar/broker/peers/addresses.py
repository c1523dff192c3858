"""How a broker is reached: its own addresses from its settings, and those of any broker in ownership nodes.

JSON: Pulsar `NamespaceEphemeralData` and `AdvertisedListener`. Listeners: Pulsar `MultipleListenerValidator`,
`ServiceConfigurationUtils.getInternalListener`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from magnetar.broker.settings.broker import BrokerSettings
from magnetar.core.errors import PeerError, SettingError

_FIELD_OF_SCHEME: Final = {
    "pulsar": "broker_service_url",
    "pulsar+ssl": "broker_service_url_tls",
    "http": "broker_http_url",
    "https": "broker_https_url",
}

_KEY_OF_FIELD: Final = {
    "broker_service_url": "brokerServiceUrl",
    "broker_service_url_tls": "brokerServiceUrlTls",
    "broker_http_url": "brokerHttpUrl",
    "broker_https_url": "brokerHttpsUrl",
}


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


def own_addresses(settings: BrokerSettings) -> BrokerAddresses:
    """What this broker tells about itself. `SettingError` for listeners that cannot be understood."""
    listeners = parse_listeners(settings.advertised_listeners)
    internal = AdvertisedListener()
    if listeners:
        name = settings.internal_listener_name or next(iter(listeners))
        if name not in listeners:
            raise SettingError(f"internalListenerName is {name}, which advertisedListeners does not name")
        internal = listeners[name]
    return BrokerAddresses(
        broker_id=settings.broker_id,
        service_url=internal.broker_service_url or settings.service_url,
        service_url_tls=internal.broker_service_url_tls or settings.service_url_tls,
        web_service_url=internal.broker_http_url or settings.web_service_url,
        web_service_url_tls=internal.broker_https_url or settings.web_service_url_tls,
        listeners=listeners,
    )


def parse_listeners(text: str) -> dict[str, AdvertisedListener]:
    """The listeners of `advertisedListeners`, in order. `SettingError`."""
    urls: dict[str, dict[str, str]] = {}
    holders: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, url = (piece.strip() for piece in part.partition(":"))
        if not name or not url:
            raise SettingError(f"advertisedListeners: {part!r} is not a listener's name, a colon and a URL")
        field, address = _field_and_address(part, url)
        named = urls.setdefault(name, {})
        if field in named:
            raise SettingError(f"advertisedListeners: {name} has two addresses for {url.partition('://')[0]}")
        if holders.setdefault(address, name) != name:
            raise SettingError(f"advertisedListeners: {holders[address]} and {name} have the same address {address}")
        named[field] = url
    return {name: AdvertisedListener(**fields) for name, fields in urls.items()}


def _field_and_address(part: str, url: str) -> tuple[str, str]:
    try:
        split = urlsplit(url)
        host, port = split.hostname, split.port
    except ValueError as error:
        raise SettingError(f"advertisedListeners: {part!r}: {error}") from None
    field = _FIELD_OF_SCHEME.get(split.scheme)
    if field is None or not host or port is None:
        schemes = ", ".join(_FIELD_OF_SCHEME)
        raise SettingError(f"advertisedListeners: {part!r} must be name:scheme://host:port with one of {schemes}")
    return field, f"{host}:{port}"


def listeners_document(listeners: Mapping[str, AdvertisedListener]) -> dict[str, dict[str, str]]:
    """Listeners as they stand in ownership nodes and load reports; what a listener has not is left out."""
    return {
        name: {key: url for field, key in _KEY_OF_FIELD.items() if (url := getattr(listener, field)) is not None}
        for name, listener in listeners.items()
    }


def listeners_of_document(document: object) -> dict[str, AdvertisedListener]:
    """The opposite of `listeners_document`; whatever is not a listener is left out."""
    if not isinstance(document, dict):
        return {}
    return {
        name: AdvertisedListener(**{field: each.get(key) for field, key in _KEY_OF_FIELD.items()})
        for name, each in document.items()
        if isinstance(each, dict)
    }


def encode_owner(addresses: BrokerAddresses, *, disabled: bool) -> bytes:
    """The value of an ownership node, with Apache's keys."""
    document: dict[str, object] = {
        "nativeUrl": addresses.service_url,
        "nativeUrlTls": addresses.service_url_tls,
        "httpUrl": addresses.web_service_url,
        "httpUrlTls": addresses.web_service_url_tls,
        "disabled": disabled,
        "advertisedListeners": listeners_document(addresses.listeners),
    }
    return json.dumps(
        {key: value for key, value in document.items() if value is not None}, separators=(",", ":")
    ).encode()


def decode_owner(path: str, value: bytes) -> tuple[BrokerAddresses, bool]:
    """Addresses of an ownership node, and whether it is disabled. `PeerError` when it is no such node.

    The node does not name the broker: its id is taken from its web address, as Apache's is made of that."""
    try:
        document = json.loads(value)
    except ValueError as error:
        raise PeerError(f"the owner at {path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise PeerError(f"the owner at {path} is not a JSON object")
    web = document.get("httpUrl") or document.get("httpUrlTls") or ""
    addresses = BrokerAddresses(
        broker_id=web.partition("://")[2].rstrip("/"),
        service_url=document.get("nativeUrl"),
        service_url_tls=document.get("nativeUrlTls"),
        web_service_url=document.get("httpUrl"),
        web_service_url_tls=document.get("httpUrlTls"),
        listeners=listeners_of_document(document.get("advertisedListeners")),
    )
    return addresses, bool(document.get("disabled"))
