"""How large a schema may be, whichever way it comes. What is stored already is read whatever its size."""

from __future__ import annotations

from typing import Final

from magnetar.broker.schema.errors import InvalidSchemaData
from magnetar.core.limits import KIB, MIB

SCHEMA_BYTES_MAX: Final = 512 * KIB
"""Of a schema's data. Apache's bound is a ledger's entry, 5 MB; judging that much would take seconds. AWS's registry
takes 170 kB, and Redpanda advises against more than 128."""

SCHEMA_PROPERTIES_MAX: Final = 4_096
"""One may be empty and costs its time all the same; clients send a handful."""

SCHEMA_PROPERTIES_CHARACTERS_MAX: Final = 64 * KIB
"""All keys and values together: those of a KEY_VALUE schema carry the properties of its sides."""

SCHEMAS_OF_TOPIC_BYTES_MAX: Final = 8 * MIB
"""All versions of a topic's schema together, as many as the broker keeps in memory for all topics: a new one is held
against all of them. A thousand usual ones."""


def check_data_size(size: int) -> None:
    """`InvalidSchemaData` for data of more bytes (or characters) than a schema may have."""
    if size > SCHEMA_BYTES_MAX:
        raise InvalidSchemaData(f"The schema has {size} bytes; at most {SCHEMA_BYTES_MAX} are taken")


def check_properties_number(number: int) -> None:
    """`InvalidSchemaData` for more properties than a schema may have."""
    if number > SCHEMA_PROPERTIES_MAX:
        raise InvalidSchemaData(f"The schema has {number} properties; at most {SCHEMA_PROPERTIES_MAX} are taken")


def check_properties_size(characters: int) -> None:
    """`InvalidSchemaData` for longer properties than a schema may have, together."""
    if characters > SCHEMA_PROPERTIES_CHARACTERS_MAX:
        raise InvalidSchemaData(
            f"The schema's properties have {characters} characters together; "
            f"at most {SCHEMA_PROPERTIES_CHARACTERS_MAX} are taken"
        )
