"""How the objects of an offload are named, and what is written beside them (Pulsar: DataBlockUtils)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

from magnetar.wire.offload.errors import BadOffload

FORMAT_VERSION_KEY: Final = "s3managedledgeroffloaderformatversion"
"""User metadata; stores give all names back in lower case."""
FORMAT_VERSION: Final = "1"
ROLE_KEY: Final = "role"
MANAGED_LEDGER_KEY: Final = "managedledgername"
SOFTWARE_VERSION_KEY: Final = "s3managedledgeroffloadersoftwareversion"

_INDEX: Final = "-index"
_NAME: Final = re.compile(
    r"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})(?:-ledger-(0|[1-9][0-9]{0,18}))?(-index)?"
)
_LEDGER_ID_MAX: Final = 2**63 - 1


class ObjectName(NamedTuple):
    """The parts of an object's name."""

    uid: UUID
    ledger_id: int | None
    """None in the streaming form, whose objects hold several ledgers."""
    is_index: bool


def data_key(uid: UUID, ledger_id: int) -> str:
    """The name of the object with a ledger's entries."""
    return f"{uid}-ledger-{ledger_id}"


def index_key(uid: UUID, ledger_id: int) -> str:
    """The name of the object with the index of a ledger's entries."""
    return data_key(uid, ledger_id) + _INDEX


def streaming_data_key(uid: UUID) -> str:
    """The name of the object with entries of several ledgers."""
    return str(uid)


def streaming_index_key(uid: UUID) -> str:
    """The name of the object with the index over several ledgers."""
    return str(uid) + _INDEX


def parse_object_name(key: str) -> ObjectName | None:
    """The parts of an object's name; None for an object that no offloader named."""
    match = _NAME.fullmatch(key)
    if match is None:
        return None
    ledger_id = int(match[2]) if match[2] is not None else None
    if ledger_id is not None and ledger_id > _LEDGER_ID_MAX:
        return None
    return ObjectName(UUID(match[1]), ledger_id, match[3] is not None)


def user_metadata(*, is_index: bool, managed_ledger_name: str, software_version: str) -> dict[str, str]:
    """User metadata that is stored beside an object. HTTP headers carry it: names of managed ledgers are escaped
    already, and other text that is not ASCII is escaped here."""
    return {
        FORMAT_VERSION_KEY: FORMAT_VERSION,
        ROLE_KEY: "index" if is_index else "data",
        MANAGED_LEDGER_KEY: _header_value(managed_ledger_name),
        SOFTWARE_VERSION_KEY: _header_value(software_version),
    }


def check_format_version(metadata: Mapping[str, str]) -> None:
    """Whether the object is in the format that this package reads. Raises `BadOffload`."""
    found = {name.lower(): value for name, value in metadata.items()}.get(FORMAT_VERSION_KEY)
    if found != FORMAT_VERSION:
        told = "no format version" if found is None else f"the format version {found!r}"
        raise BadOffload(f"its user metadata has {told}, where {FORMAT_VERSION!r} is read")


def _header_value(text: str) -> str:
    return "".join(char if " " <= char < "\x7f" else "".join(f"%{byte:02X}" for byte in char.encode()) for char in text)
