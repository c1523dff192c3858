"""Changes of topic policies as Apache's brokers write them to `__change_events`: Avro records named PulsarEvent.

`pulsar_event.avsc` is the schema that Apache Pulsar 4.0 registers for that topic, letter by letter, so that both kinds
of brokers share one schema version. Facts: pulsar-common `events/PulsarEvent`, `TopicPoliciesEvent`,
`policies/data/TopicPolicies`; pulsar-broker `TopicPoliciesService` (keys).

Whoever may write to that topic may bring any schema and any bytes. So changes are read by `magnetar.wire.avro`, and
what they set has to fit the fields of the same names here; the Avro library writes only, what is our own.

Imported only where topic policies are: the Avro library costs a start 40 ms.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from fastavro import parse_schema, schemaless_writer
from magnetar.broker.policies.api import TopicPolicies
from magnetar.broker.policies.event_shape import (
    FieldTypeMismatch,
    check_number,
    check_policies,
    named_types,
    schema_text,
)
from magnetar.core.errors import Misuse, PeerError
from magnetar.core.topic_name import InvalidTopicName, TopicName
from magnetar.wire.avro import AvroDecoder, BadAvro, parse_record_schema, read_record
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import KeyValue, Schema

NONE: Final[Mapping[str, str]] = MappingProxyType({})

POLICIES_PATH: Final = ".topicPoliciesEvent.policies."

GLOBAL_KEY_PREFIX: Final = "__G__"

SCHEMA_PROPERTIES: Final = {"__alwaysAllowNull": "true", "__jsr310ConversionEnabled": "false"}
"""What Java's clients register beside the schema; brokers compare it, too."""

TOPIC_POLICY: Final = "TOPIC_POLICY"
INSERT: Final = "INSERT"
UPDATE: Final = "UPDATE"
DELETE: Final = "DELETE"

READ_PRIORITY: Final = "managedLedgerOffloadedReadPriority"
"""The one field whose JSON (`tiered-storage-first`) and Avro (`TIERED_STORAGE_FIRST`) differ."""

EMPTY_UNLESS_SET: Final[dict[str, Any]] = {
    "backLogQuotaMap": {},
    "subscriptionTypesEnabled": [],
    "subscriptionPolicies": {},
    "managedLedgerExtraConfigurations": {},
}
"""Fields that Apache's brokers take for granted: null instead of nothing in them fails there."""

NEWER_FIELDS: Final = frozenset({"subscriptionExpirationTimeInMinutes"})
"""Policies that Pulsar 4.0's record has no field for."""

NEWER_PROPERTY: Final = "magnetar.topic.policies"
"""The message property with such policies as JSON. Apache's brokers pass over it, and lose it when they write."""

ZEROS: Final[dict[str, Any]] = {"int": 0, "long": 0, "double": 0.0, "float": 0.0, "boolean": False, "string": ""}
"""What Java leaves in a primitive field that nobody set."""


class UnknownPolicy(Misuse):
    """A policy has a field that the schema does not know: it could not be kept."""


class BadEvent(PeerError):
    """A change that cannot be read."""


class Change(NamedTuple):
    """One change, as read. `policies` None: there are none any more."""

    topic: TopicName
    is_global: bool
    action: str
    policies: TopicPolicies | None


@cache
def own_schema() -> AvroDecoder:
    """The schema, to read by."""
    return read_schema(schema_text().encode())


@cache
def _written_schema() -> Any:
    """The schema, to write by."""
    return parse_schema(json.loads(schema_text()), named_schemas={})


def read_schema(data: bytes) -> AvroDecoder:
    """Parse a schema that a topic has. Raises `BadEvent`."""
    try:
        return parse_record_schema(data)
    except BadAvro as error:
        raise BadEvent(str(error)) from error


def registered_schema() -> Schema:
    """What a producer of changes brings along."""
    properties = [KeyValue(key=key, value=value) for key, value in SCHEMA_PROPERTIES.items()]
    return Schema(name="", schema_data=schema_text().encode(), type=Schema.Avro, properties=properties)


def event_key(topic: TopicName, *, is_global: bool) -> str:
    """The message key of a topic's policies; compaction keeps the last message of each."""
    return f"{GLOBAL_KEY_PREFIX if is_global else ''}{topic.partitioned_name()}"


def encode_update(topic: TopicName, policies: TopicPolicies, *, is_global: bool, cluster: str) -> bytes:
    """The change that sets a topic's policies of one scope. Raises `UnknownPolicy`, or `Misuse` for a wrong value.

    Local policies name the own cluster, so that geo-replication leaves them here."""
    topic = topic.partitioned_name()
    event = {
        "actionType": UPDATE,
        "eventType": TOPIC_POLICY,
        "replicateTo": None if is_global else [cluster],
        "topicPoliciesEvent": {
            "domain": topic.domain,
            "tenant": topic.tenant,
            "namespace": topic.namespace,
            "topic": topic.local_name,
            "policies": {
                **{name: value for name, value in policies.items() if name not in NEWER_FIELDS},
                "isGlobal": is_global,
            },
        },
    }
    record = _filled(json.loads(schema_text()), event, "", "")
    output = io.BytesIO()
    try:
        schemaless_writer(output, _written_schema(), record)
        written = output.getvalue()
        # What no broker of ours would read again must not be written.
        decode_change(written, own_schema())
    except (TypeError, ValueError, AttributeError, OverflowError, BadEvent) as error:
        raise Misuse(f"policies of {topic} that cannot be written: {error}") from error
    return written


def properties_of(policies: TopicPolicies) -> dict[str, str]:
    """What the message of a change carries beside its payload."""
    newer = {name: value for name, value in policies.items() if name in NEWER_FIELDS and value is not None}
    return {NEWER_PROPERTY: json.dumps(newer, separators=(",", ":"))} if newer else {}


def decode_change(payload: bytes, writer_schema: AvroDecoder, properties: Mapping[str, str] = NONE) -> Change | None:
    """Read a change; None for an event about something else. Raises `BadEvent`."""
    try:
        event = read_record(writer_schema, payload)
    except BadAvro as error:
        raise BadEvent(f"a change that cannot be read: {error}") from error
    if event.get("eventType") != TOPIC_POLICY:
        return None
    about = event.get("topicPoliciesEvent")
    if not isinstance(about, dict):
        raise BadEvent("a change of no topic's policies")
    topic, policies, action = _topic_of(about), about.get("policies"), event.get("actionType") or UPDATE
    if not isinstance(action, str) or not isinstance(policies, dict | None):
        raise BadEvent("a change whose action or policies are none")
    is_global = bool(policies and policies.get("isGlobal"))
    if policies is None or action == DELETE:
        return Change(topic, is_global, action, None)
    try:
        check_policies(policies)
    except FieldTypeMismatch as error:
        raise BadEvent(f"policies of {topic} that do not fit: {error}") from error
    return Change(topic, is_global, action, {**_set_only(policies), **_newer(properties)})


def _topic_of(about: Mapping[str, Any]) -> TopicName:
    parts = [about.get(name) for name in ("domain", "tenant", "namespace", "topic")]
    try:
        return TopicName.parse("{}://{}/{}/{}".format(*parts))
    except (InvalidTopicName, ValueError) as error:
        raise BadEvent(f"a change of a topic that is none: {error}") from error


def decode_removal(key: str | None) -> Change:
    """The change that a message without a value is. Raises `BadEvent`."""
    text = key or ""
    is_global = text.startswith(GLOBAL_KEY_PREFIX)
    try:
        topic = TopicName.parse(text.removeprefix(GLOBAL_KEY_PREFIX)).partitioned_name()
    except InvalidTopicName as error:
        raise BadEvent(f"the key of a removal is no topic: {error}") from error
    return Change(topic, is_global, DELETE, None)


def _newer(properties: Mapping[str, str]) -> TopicPolicies:
    text = properties.get(NEWER_PROPERTY)
    if text is None:
        return {}
    try:
        newer = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadEvent(f"policies beside a change that cannot be read: {error}") from error
    if not isinstance(newer, dict):
        raise BadEvent("policies beside a change that are none")
    found = {name: newer[name] for name in sorted(NEWER_FIELDS & newer.keys()) if newer[name] is not None}
    try:
        for name, value in found.items():
            check_number(value, name)
    except FieldTypeMismatch as error:
        raise BadEvent(f"policies beside a change that do not fit: {error}") from error
    return found


def _set_only(policies: dict[str, Any]) -> TopicPolicies:
    """Without what is not set, with JSON's words for values."""
    found: TopicPolicies = {}
    for name, value in policies.items():
        if name == "isGlobal" or value is None or (name in EMPTY_UNLESS_SET and not value):
            continue
        found[name] = _without_nulls(value)
    priority = found.get("offloadPolicies", {}).get(READ_PRIORITY)
    if priority is not None:
        found["offloadPolicies"][READ_PRIORITY] = priority.lower().replace("_", "-")
    return found


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return value


def _filled(schema: Any, value: Any, path: str, namespace: str) -> Any:
    """The value with every field of its records, absent ones as Java leaves them. Raises `UnknownPolicy`, `Misuse`."""
    if isinstance(schema, str):
        named = named_types().get(schema) or named_types().get(f"{namespace}.{schema}")
        return value if named is None else _filled(named, value, path, namespace)
    if isinstance(schema, list):
        return None if value is None else _filled(schema[1], value, path, namespace)
    match schema["type"]:
        case "record":
            return _filled_record(schema, value, path, schema.get("namespace", namespace))
        case "map":
            _check(isinstance(value, dict), path, value, "an object")
            return {key: _filled(schema["values"], one, f"{path}.{key}", namespace) for key, one in value.items()}
        case "array":
            _check(isinstance(value, list | tuple | set | frozenset), path, value, "a list")
            return [_filled(schema["items"], one, path, namespace) for one in value]
        case "enum":
            return value if value in schema["symbols"] else str(value).upper().replace("-", "_")
        case _:
            return value


def _filled_record(schema: dict[str, Any], value: Any, path: str, namespace: str) -> dict[str, Any]:
    _check(isinstance(value, dict), path, value, "an object")
    names = {field["name"] for field in schema["fields"]}
    unknown = sorted(value.keys() - names)
    if unknown:
        raise UnknownPolicy(f"no topic policy is called {f'{path}.{unknown[0]}'.removeprefix(POLICIES_PATH)}")
    if schema["name"] == "BacklogQuotaImpl":
        # The older name of the same limit, which older brokers go by.
        value = {"limit": value.get("limitSize", 0), **value}
    record: dict[str, Any] = {}
    for field in schema["fields"]:
        name, kind = field["name"], field["type"]
        given = value.get(name)
        if given is None:
            record[name] = EMPTY_UNLESS_SET.get(name) if isinstance(kind, list) else ZEROS[kind]
        else:
            record[name] = _filled(kind, given, f"{path}.{name}", namespace)
    return record


def _check(good: bool, path: str, value: Any, expected: str) -> None:
    if not good:
        raise Misuse(f"{path.removeprefix(POLICIES_PATH)}: {value!r} where {expected} belongs")
