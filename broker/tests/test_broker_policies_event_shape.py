"""Policies that fit the fields of events can be put together, whatever they are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.broker.policies.effective import BrokerLevel, effective_policies
from magnetar.broker.policies.event_shape import POLICIES_TYPE, FieldTypeMismatch, check_policies, named_types
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.managed.settings import ManagedLedgerSettings

LEVEL = BrokerLevel(BrokerSettings(), ManagedLedgerSettings())


def whole(bits: int) -> st.SearchStrategy[int]:
    most = (1 << bits - 1) - 1
    return st.sampled_from([0, 1, -1, most, ~most]) | st.integers(~most, most)


PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "int": whole(32),
    "long": whole(64),
    "boolean": st.booleans(),
    "string": st.text(max_size=4),
    "double": st.floats(allow_nan=False, allow_infinity=False),
}
KEYS = st.text(max_size=3) | st.sampled_from(["destination_storage", "message_age"])


def values(schema: Any, namespace: str) -> st.SearchStrategy[Any]:
    """What fits a type; also fewer fields than it has, and symbols of others."""
    if isinstance(schema, list):
        return st.none() | values(schema[1], namespace)
    if isinstance(schema, str):
        named = named_types().get(schema) or named_types().get(f"{namespace}.{schema}")
        return PRIMITIVES[schema] if named is None else values(named, namespace)
    namespace = schema.get("namespace", namespace)
    match schema["type"]:
        case "record":
            fields = {field["name"]: values(field["type"], namespace) for field in schema["fields"]}
            return st.fixed_dictionaries({}, optional=fields)
        case "map":
            return st.dictionaries(KEYS, values(schema["values"], namespace), max_size=2)
        case "array":
            return st.lists(values(schema["items"], namespace), max_size=3)
        case _:
            return st.sampled_from(schema["symbols"]) | st.text(max_size=3)


@settings(max_examples=200)
@given(values(named_types()[POLICIES_TYPE], ""))
def test_what_fits_can_be_put_together(policies: dict[str, Any]) -> None:
    check_policies(policies)
    put_together = effective_policies(LEVEL, {}, policies)
    assert put_together == effective_policies(LEVEL, {}, json.loads(json.dumps(policies)))


@pytest.mark.parametrize(
    "policies",
    [
        {"aNewOne": {"with": [1, None, "x", True, 0.5]}},
        {"retentionPolicies": {"aNewOne": 1}},
        {"retentionPolicies": None},
        {"schemaCompatibilityStrategy": "OF_A_NEWER_PULSAR"},
    ],
)
def test_what_newer_brokers_write_fits(policies: dict[str, Any]) -> None:
    check_policies(policies)


@pytest.mark.parametrize(
    "policies",
    [
        {"retentionPolicies": "zzz"},
        {"retentionPolicies": {"retentionTimeInMinutes": "long"}},
        {"maxProducerPerTopic": True},
        {"maxProducerPerTopic": 1 << 31},
        {"compactionThreshold": -(1 << 63) - 1},
        {"deduplicationEnabled": 1},
        {"replicationClusters": "abc"},
        {"replicationClusters": [None]},
        {"replicationClusters": [5]},
        {"subscriptionTypesEnabled": 5},
        {"subscriptionPolicies": {"s": {"dispatchRate": 5}}},
        {"backLogQuotaMap": []},
        {"persistence": {"managedLedgerMaxMarkDeleteRate": float("inf")}},
        {"schemaCompatibilityStrategy": 5},
        {"aNewOne": b"x"},
        {"aNewOne": [float("nan")]},
    ],
)
def test_what_does_not_fit_is_told(policies: dict[str, Any]) -> None:
    with pytest.raises(FieldTypeMismatch):
        check_policies(policies)
