"""Whether a new schema may follow the ones that a topic has.

Facts: Pulsar 4.0 SchemaRegistryServiceImpl, KeyValueSchemaCompatibilityCheck, SchemaCompatibilityCheck.DEFAULT.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from magnetar.broker.schema import avro_checks, json_checks, protobuf_checks
from magnetar.broker.schema.avro_schema import AvroError, identity, parse
from magnetar.broker.schema.cache import WeightedCache
from magnetar.broker.schema.errors import IncompatibleSchema, InvalidSchemaData
from magnetar.broker.schema.schema_info import AVRO_TYPES, SchemaInfo, split_key_value
from magnetar.broker.schema.strategy import Strategy
from magnetar.wire.pulsar.enums import SchemaType

_MEANINGS_KEPT_BYTES_MAX: Final = 4 << 20
_MEANING_BYTES: Final = 300
"""What a kept meaning takes: two digests and their places."""


class SchemaFingerprints:
    """What Avro's schemas mean, as digests; what was asked of last is kept, so that a topic's versions need not all be
    taken apart for each new one. One thread at a time may ask."""

    def __init__(self) -> None:
        self._kept: WeightedCache[bytes, bytes] = WeightedCache(_MEANINGS_KEPT_BYTES_MAX)

    def of(self, schema: SchemaInfo) -> bytes:
        """The fingerprint of a schema: equal for schemas of the same meaning; empty for a text that has none."""
        key = schema.hash()
        found = self._kept.get(key)
        if found is None:
            meaning = _meaning(schema)
            found = b"" if meaning is None else hashlib.sha256(meaning.encode()).digest()
            self._kept.put(key, found, _MEANING_BYTES)
        return found


def same_schema(
    new: SchemaInfo, existing: Sequence[SchemaInfo], fingerprints: SchemaFingerprints | None = None
) -> int | None:
    """Where among existing schemas this one stands: the same bytes or, for Avro's types, the same meaning."""
    for index, schema in enumerate(existing):
        if schema.same_as(new):
            return index
    if new.type not in AVRO_TYPES:
        return None
    if fingerprints is None:
        fingerprints = SchemaFingerprints()
    meaning = fingerprints.of(new)
    if not meaning:
        return None
    for index, schema in enumerate(existing):
        if schema.type is new.type and fingerprints.of(schema) == meaning:
            return index
    return None


def require_compatible(existing: Sequence[SchemaInfo], new: SchemaInfo, strategy: Strategy) -> None:
    """Hold a new schema against those that the strategy looks at, of old ones, oldest first. `IncompatibleSchema`"""
    if not existing:
        return
    if strategy.transitive:
        check_all(existing, new, strategy)
    else:
        check_newest(existing[-1], new, strategy)


def check_newest(old: SchemaInfo, new: SchemaInfo, strategy: Strategy) -> None:
    """Hold a new schema against the newest old one. `IncompatibleSchema` when the strategy does not let it in."""
    if strategy is Strategy.ALWAYS_COMPATIBLE:
        return
    _require_type(old, new)
    if old.data == new.data:
        return
    if new.type is SchemaType.JSON:
        json_checks.check_newest(old, new, strategy)
    else:
        _check(new.type, [old], new, strategy)


def check_all(existing: Sequence[SchemaInfo], new: SchemaInfo, strategy: Strategy) -> None:
    """Hold a new schema against all old ones, oldest first. `IncompatibleSchema` when the strategy refuses it."""
    if strategy is Strategy.ALWAYS_COMPATIBLE:
        return
    for old in existing:
        _require_type(old, new)
    _check(new.type, existing, new, strategy)


def _require_type(old: SchemaInfo, new: SchemaInfo) -> None:
    if old.type is not new.type:
        raise IncompatibleSchema(
            f"Incompatible schema: exists schema type {old.type.name}, new schema type {new.type.name}"
        )


def _check(schema_type: SchemaType, existing: Sequence[SchemaInfo], new: SchemaInfo, strategy: Strategy) -> None:
    if schema_type in AVRO_TYPES:
        avro_checks.check(existing, new, strategy)
    elif schema_type is SchemaType.PROTOBUF_NATIVE:
        protobuf_checks.check(existing, new, strategy)
    elif schema_type is SchemaType.KEY_VALUE:
        _check_key_value(existing, new, strategy)
    elif strategy is Strategy.ALWAYS_INCOMPATIBLE and existing:
        raise IncompatibleSchema("Schema compatibility strategy is ALWAYS_INCOMPATIBLE")


def _check_key_value(existing: Sequence[SchemaInfo], new: SchemaInfo, strategy: Strategy) -> None:
    """Both sides must keep their types, and each must go with its predecessors."""
    try:
        new_key, new_value = split_key_value(new)
        old = [split_key_value(schema) for schema in existing]
    except InvalidSchemaData as error:
        raise IncompatibleSchema(error.message) from error
    for old_key, old_value in old:
        if old_key.type is not new_key.type or old_value.type is not new_value.type:
            raise IncompatibleSchema(
                "Key schemas or Value schemas are different schema type, "
                f"from key schema type is {old_key.type.name} and to key schema is {new_key.type.name}, "
                f"from value schema is {old_value.type.name} and to value schema is {new_value.type.name}"
            )
    _check(new_key.type, [key for key, _ in old], new_key, strategy)
    _check(new_value.type, [value for _, value in old], new_value, strategy)


def _meaning(schema: SchemaInfo) -> str | None:
    try:
        return identity(parse(schema.data))
    except (AvroError, RecursionError):
        return None
