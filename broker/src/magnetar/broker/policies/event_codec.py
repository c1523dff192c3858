"""Changes of topic policies as Apache's brokers write them to `__change_events`: Avro records named PulsarEvent.

`pulsar_event.avsc` is the schema that Apache Pulsar 4.0 registers for that topic, letter by letter, so that both kinds
of brokers share one schema version. Facts: pulsar-common `events/PulsarEvent`, `TopicPoliciesEvent`,
`policies/data/TopicPolicies`; pulsar-broker `TopicPoliciesService` (keys).

Imported only where topic policies are: the Avro library costs a start 40 ms.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias, cast

from fastavro import parse_schema, schemaless_reader, schemaless_writer
from magnetar.broker.policies.api import TopicPolicies
from magnetar.core.errors import Misuse, PeerError
from magnetar.core.topic_name import InvalidTopicName, NamespaceName, TopicName
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import KeyValue, Schema

AvroSchema: TypeAlias = Any
"""A parsed schema, as the Avro library gives it out."""

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
def schema_text() -> str:
    """The schema as it is registered."""
    return files("magnetar.broker.policies").joinpath("pulsar_event.avsc").read_text().rstrip("\n")


@cache
def own_schema() -> AvroSchema:
    """The schema, parsed."""
    return read_schema(schema_text().encode())


@cache
def _named_types() -> dict[str, Any]:
    named: dict[str, Any] = {}
    _collect_named(json.loads(schema_text()), "", named)
    return named


def read_schema(data: bytes) -> AvroSchema:
    """Parse a schema that a topic has. Raises `BadEvent`."""
    try:
        schema = parse_schema(json.loads(data), named_schemas={})
    except Exception as error:
        # Whatever is wrong with a schema, the library has many ways to say so.
        raise BadEvent(f"a schema that is none: {error}") from error
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise BadEvent("a schema that is no record's")
    return schema


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
        schemaless_writer(output, own_schema(), record)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Misuse(f"policies of {topic} that cannot be written: {error}") from error
    return output.getvalue()


def properties_of(policies: TopicPolicies) -> dict[str, str]:
    """What the message of a change carries beside its payload."""
    newer = {name: value for name, value in policies.items() if name in NEWER_FIELDS and value is not None}
    return {NEWER_PROPERTY: json.dumps(newer, separators=(",", ":"))} if newer else {}


def decode_change(payload: bytes, writer_schema: AvroSchema, properties: Mapping[str, str] = NONE) -> Change | None:
    """Read a change; None for an event about something else. Raises `BadEvent`."""
    try:
        event = cast("dict[str, Any]", schemaless_reader(io.BytesIO(payload), writer_schema, None))
        if event.get("eventType") != TOPIC_POLICY:
            return None
        about = event["topicPoliciesEvent"]
        topic = TopicName(about["domain"], NamespaceName(about["tenant"], about["namespace"]), about["topic"])
        policies = about.get("policies")
    except (InvalidTopicName, KeyError, TypeError, ValueError, IndexError, EOFError, AttributeError) as error:
        raise BadEvent(f"a change that cannot be read: {type(error).__name__}: {error}") from error
    is_global = bool(policies and policies.get("isGlobal"))
    action = event.get("actionType") or UPDATE
    if policies is None or action == DELETE:
        return Change(topic, is_global, action, None)
    return Change(topic, is_global, action, {**_set_only(policies), **_newer(properties)})


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
    except ValueError as error:
        raise BadEvent(f"policies beside a change that cannot be read: {error}") from error
    return {name: newer[name] for name in NEWER_FIELDS & newer.keys()} if isinstance(newer, dict) else {}


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
        named = _named_types().get(schema) or _named_types().get(f"{namespace}.{schema}")
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


def _collect_named(schema: Any, namespace: str, found: dict[str, Any]) -> None:
    """All named types of a schema, by their full names."""
    if isinstance(schema, list):
        for branch in schema:
            _collect_named(branch, namespace, found)
    elif isinstance(schema, dict):
        namespace = schema.get("namespace", namespace)
        if "name" in schema:
            found[f"{namespace}.{schema['name']}"] = schema
        for field in schema.get("fields", ()):
            _collect_named(field["type"], namespace, found)
        for inner in ("items", "values"):
            if inner in schema:
                _collect_named(schema[inner], namespace, found)
