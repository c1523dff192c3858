"""What a bookie registers about itself: its endpoints, and properties that BookKeeper gives no meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError
from magnetar.wire.bookkeeper.generated.bookie_service_info_pb2 import BookieServiceInfoFormat

BOOKIE_PROTOCOL: Final = "bookie-rpc"
MACHINE_PROPERTY: Final = "magnetar.machine"
"""Our own: the machine on which the bookie runs beside others that would end with it."""
_NO_PROPERTIES: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One address that a bookie serves; fields as in BookieServiceInfoFormat."""

    id: str
    host: str
    port: int
    protocol: str = BOOKIE_PROTOCOL
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


def encode_service_info(endpoints: Sequence[Endpoint], properties: Mapping[str, str] = _NO_PROPERTIES) -> bytes:
    """The value of a bookie's registration."""
    message = BookieServiceInfoFormat()
    for endpoint in endpoints:
        message.endpoints.add(
            id=endpoint.id,
            host=endpoint.host,
            port=endpoint.port,
            protocol=endpoint.protocol,
            auth=endpoint.auth,
            extensions=endpoint.extensions,
        )
    message.properties.update(properties)
    return message.SerializeToString()


def decode_service_info(value: bytes) -> list[Endpoint]:
    """The endpoints of a registration; none when it is empty (old bookies) or no such message.

    The bookie's id is its address then, as BookKeeper itself falls back."""
    try:
        message = BookieServiceInfoFormat.FromString(value)
        return [
            Endpoint(
                id=endpoint.id,
                host=endpoint.host,
                port=endpoint.port,
                protocol=endpoint.protocol,
                auth=tuple(endpoint.auth),
                extensions=tuple(endpoint.extensions),
            )
            for endpoint in message.endpoints
        ]
    except (DecodeError, UnicodeDecodeError):
        return []


def machine_of(value: bytes) -> str:
    """The machine that a registration names; empty when it names none or is no such message."""
    try:
        return BookieServiceInfoFormat.FromString(value).properties.get(MACHINE_PROPERTY, "")
    except (DecodeError, UnicodeDecodeError):
        return ""
