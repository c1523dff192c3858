"""Telling a client that it is not let in, also one that understands no ERROR before CONNECTED.

Clients on Apache's C++ library (those of C++, Python, Node.js) close a connection whose CONNECT is answered by
anything but CONNECTED, and connect again until their operation's time is over (`ClientConnection::
handleIncomingCommand`). They are told by the answer to their first request instead.
"""

from __future__ import annotations

from typing import Final

from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.errors import ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import BaseCommand

_CPP: Final = "Pulsar-CPP-"

FINAL_CODES: Final = frozenset([ServerError.AUTHENTICATION_ERROR, ServerError.AUTHORIZATION_ERROR])
"""Refusals that trying again does not change. After others these clients had better connect again."""


def heard_at_first_request(client_version: str, code: ServerError) -> bool:
    """Whether a client learns of its refusal only when a request of its is refused."""
    return client_version.startswith(_CPP) and code in FINAL_CODES


def refusal_of(command: BaseCommand, code: ServerError, text: str) -> bytes | None:
    """The answer that refuses a request; None for a command that wants no answer."""
    body = getattr(command, BaseCommand.DESCRIPTOR.fields_by_number[command.type].name)
    if "request_id" not in body.DESCRIPTOR.fields_by_name:
        return None
    request_id: int = body.request_id
    if command.type == BaseCommand.LOOKUP:
        return messages.lookup_failed(request_id, code, text)
    if command.type == BaseCommand.PARTITIONED_METADATA:
        return messages.partitioned_metadata_failed(request_id, code, text)
    return messages.error(request_id, code, text)
