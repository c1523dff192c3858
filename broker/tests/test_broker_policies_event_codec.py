"""Changes of topic policies: byte for byte as Apache's brokers write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.broker.policies import event_codec
from magnetar.broker.policies.event_codec import BadEvent, Change, UnknownPolicy
from magnetar.broker.policies.event_shape import schema_text
from magnetar.core.errors import Misuse
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import MessageMetadata
from magnetar.wire.pulsar.metadata import full_metadata, metadata_bounds

# What a real standalone of Apache Pulsar 4.0.8 wrote after changes by its admin API.
VECTORS: dict[str, str] = json.loads(Path(__file__).with_name("change_events_vectors.json").read_text())["messages"]

TOPIC = TopicName.parse("persistent://public/default/t")


def vector(name: str) -> tuple[MessageMetadata, bytes]:
    """Metadata and payload."""
    message = bytes.fromhex(VECTORS[name])
    return full_metadata(message), message[metadata_bounds(message)[1] :]


def read(name: str) -> Change:
    metadata, payload = vector(name)
    if metadata.null_value:
        return event_codec.decode_removal(metadata.partition_key)
    change = event_codec.decode_change(payload, event_codec.own_schema())
    assert change is not None
    return change


@pytest.mark.parametrize("name", [name for name in VECTORS if not name.startswith("removed")])
def test_what_apache_wrote_is_written_again_to_the_byte(name: str) -> None:
    metadata, payload = vector(name)
    change = read(name)
    assert change.policies is not None
    again = event_codec.encode_update(change.topic, change.policies, is_global=change.is_global, cluster="standalone")
    assert again == payload
    assert event_codec.event_key(change.topic, is_global=change.is_global) == metadata.partition_key
    assert list(metadata.replicate_to) == ([] if change.is_global else ["standalone"])


def test_what_apache_wrote_says_what_was_set() -> None:
    assert read("one field set") == Change(
        TopicName.parse("persistent://public/default/t1"), False, "UPDATE", {"messageTTLInSeconds": 77}
    )
    quotas = read("backlog quotas").policies
    assert quotas == {
        "backLogQuotaMap": {
            "destination_storage": {
                "limit": 1048576,
                "limitSize": 1048576,
                "limitTime": 0,
                "policy": "consumer_backlog_eviction",
            },
            "message_age": {"limit": 0, "limitTime": 300, "policy": "producer_exception"},
        }
    }
    local, everywhere = read("everything, local"), read("everything, global")
    assert local.policies is not None
    assert everywhere.policies is not None
    assert (local.is_global, everywhere.is_global) == (False, True)
    assert len(local.policies) == 30
    assert local.policies["dispatchRate"] == {
        "dispatchThrottlingRateInByte": 200000,
        "dispatchThrottlingRateInMsg": 1000,
        "ratePeriodInSecond": 2,
        "relativeToPublishRate": True,
    }
    assert local.policies["subscriptionTypesEnabled"] == ["Key_Shared", "Shared"]
    assert local.policies["inactiveTopicPolicies"]["inactiveTopicDeleteMode"] == "delete_when_subscriptions_caught_up"
    assert everywhere.policies["messageTTLInSeconds"] == 77


def test_removals_name_topic_and_scope_by_the_key() -> None:
    topic = TopicName.parse("persistent://public/default/full1")
    assert read("removed, local") == Change(topic, False, "DELETE", None)
    assert read("removed, global") == Change(topic, True, "DELETE", None)
    for key in (None, "", "__G__", "a/b/c/d/e"):
        with pytest.raises(BadEvent):
            event_codec.decode_removal(key)


def test_the_schema_is_the_one_that_apache_registers() -> None:
    schema = event_codec.registered_schema()
    assert schema.type == schema.Avro
    assert schema.schema_data == schema_text().encode()
    assert json.loads(schema.schema_data)["name"] == "PulsarEvent"
    assert not schema.schema_data.endswith(b"\n")


def test_fields_that_nobody_gave_are_as_java_leaves_them() -> None:
    written = event_codec.encode_update(
        TOPIC,
        {
            "dispatchRate": {"dispatchThrottlingRateInMsg": 1},
            "backLogQuotaMap": {"destination_storage": {"limitSize": 5}},
            "offloadPolicies": {"managedLedgerOffloadedReadPriority": "tiered-storage-first"},
        },
        is_global=False,
        cluster="c",
    )
    change = event_codec.decode_change(written, event_codec.own_schema())
    assert change is not None
    assert change.policies == {
        "dispatchRate": {
            "dispatchThrottlingRateInByte": 0,
            "dispatchThrottlingRateInMsg": 1,
            "ratePeriodInSecond": 0,
            "relativeToPublishRate": False,
        },
        "backLogQuotaMap": {"destination_storage": {"limit": 5, "limitSize": 5, "limitTime": 0}},
        "offloadPolicies": {
            "managedLedgerExtraConfigurations": {},
            "managedLedgerOffloadedReadPriority": "tiered-storage-first",
        },
    }


@pytest.mark.parametrize(
    ("policies", "error"),
    [
        ({"noSuchPolicy": 1}, UnknownPolicy),
        ({"dispatchRate": {"noSuchRate": 1}}, UnknownPolicy),
        ({"dispatchRate": 7}, Misuse),
        ({"messageTTLInSeconds": "long"}, Misuse),
        ({"messageTTLInSeconds": 1 << 40}, Misuse),
        ({"schemaCompatibilityStrategy": "NO_SUCH"}, Misuse),
        ({"replicationClusters": 5}, Misuse),
        ({"backLogQuotaMap": []}, Misuse),
    ],
)
def test_policies_that_have_no_place_are_refused(policies: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        event_codec.encode_update(TOPIC, policies, is_global=False, cluster="c")


def test_policies_that_apaches_record_lacks_are_kept_beside_it() -> None:
    policies = {"subscriptionExpirationTimeInMinutes": 5, "maxMessageSize": 1}
    written = event_codec.encode_update(TOPIC, policies, is_global=False, cluster="c")
    properties = event_codec.properties_of(policies)
    assert event_codec.decode_change(written, event_codec.own_schema(), properties) == Change(
        TOPIC, False, "UPDATE", policies
    )
    apaches = event_codec.decode_change(written, event_codec.own_schema())
    assert apaches is not None
    assert apaches.policies == {"maxMessageSize": 1}
    assert event_codec.properties_of({"maxMessageSize": 1}) == {}
    with pytest.raises(BadEvent):
        event_codec.decode_change(written, event_codec.own_schema(), {event_codec.NEWER_PROPERTY: "{"})


def test_partitions_have_their_topics_policies() -> None:
    written = event_codec.encode_update(TOPIC.partition(3), {"maxMessageSize": 1}, is_global=True, cluster="c")
    change = event_codec.decode_change(written, event_codec.own_schema())
    assert change == Change(TOPIC, True, "UPDATE", {"maxMessageSize": 1})
    assert event_codec.event_key(TOPIC.partition(3), is_global=True) == f"__G__{TOPIC}"


def test_other_schemas_are_read_by_what_they_have_in_common() -> None:
    """A newer Pulsar writes fields that this schema does not have."""
    newer = json.loads(schema_text())
    policies = next(field for field in newer["fields"] if field["name"] == "topicPoliciesEvent")["type"][1]
    fields = next(field for field in policies["fields"] if field["name"] == "policies")["type"][1]["fields"]
    fields.insert(0, {"name": "aNewOne", "type": ["null", "int"], "default": None})
    schema = event_codec.read_schema(json.dumps(newer).encode())
    _, payload = vector("one field set")
    at = payload.index(b"\x02\x00\x02\x00\x00")  # Where the policies begin.
    written = payload[: at + 1] + b"\x02\x54" + payload[at + 1 :]
    change = event_codec.decode_change(written, schema)
    assert change is not None
    assert change.policies == {"aNewOne": 42, "messageTTLInSeconds": 77}
    # The schemas do not disturb each other.
    assert read("one field set").policies == {"messageTTLInSeconds": 77}


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"type": "record"}', b'"nothing"'])
def test_a_schema_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(BadEvent):
        event_codec.read_schema(data)


@settings(max_examples=200)
@given(st.binary(max_size=80), st.integers(0, 190))
def test_damaged_changes_are_refused_or_read(damage: bytes, at: int) -> None:
    _, payload = vector("one field set")
    for data in (damage, payload[:at], payload[:at] + damage + payload[at + len(damage) :]):
        try:
            event_codec.decode_change(data, event_codec.own_schema())
        except BadEvent:
            continue


@given(st.none() | st.text(max_size=40) | st.text("_/:ab-Gpartition0", max_size=40))
def test_any_key_is_a_removal_or_refused(key: str | None) -> None:
    try:
        change = event_codec.decode_removal(key)
    except BadEvent:
        return
    assert change.policies is None


NAMES_ONLY = event_codec.read_schema(
    json.dumps(
        {
            "type": "record",
            "name": "E",
            "fields": [
                {"name": "eventType", "type": "string"},
                {"name": "actionType", "type": ["null", "string", "int", "bytes"]},
                {
                    "name": "topicPoliciesEvent",
                    "type": {
                        "type": "record",
                        "name": "T",
                        "fields": [
                            {"name": name, "type": ["null", "string", "int", "bytes"]}
                            for name in ("domain", "tenant", "namespace", "topic", "policies")
                        ],
                    },
                },
            ],
        }
    ).encode()
)


@given(
    st.lists(
        st.just(b"\0")
        | st.text(max_size=8).map(lambda text: b"\2" + bytes([len(text.encode()) << 1]) + text.encode())
        | st.sampled_from([b"\4\7", b"\6\2\xff", b"\2\x14persistent", b"\2\x0cpublic", b"\2\x0cDELETE"]),
        min_size=6,
        max_size=6,
    )
)
def test_any_names_are_a_change_or_refused(parts: list[bytes]) -> None:
    try:
        change = event_codec.decode_change(b"\x18TOPIC_POLICY" + b"".join(parts), NAMES_ONLY)
    except BadEvent:
        return
    assert change is not None
    assert change.policies is None


ints = st.integers(-(2**31), 2**31 - 1)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "messageTTLInSeconds": ints,
            "compactionThreshold": st.integers(-(2**63), 2**63 - 1),
            "deduplicationEnabled": st.booleans(),
            "replicationClusters": st.lists(st.text(max_size=5), max_size=3),
            "subscriptionTypesEnabled": st.lists(st.sampled_from(["Exclusive", "Shared"]), min_size=1, max_size=2),
            "persistence": st.fixed_dictionaries(
                {
                    "bookkeeperEnsemble": ints,
                    "bookkeeperWriteQuorum": ints,
                    "bookkeeperAckQuorum": ints,
                    "managedLedgerMaxMarkDeleteRate": st.floats(allow_nan=False, allow_infinity=False),
                }
            ),
            "subscribeRate": st.fixed_dictionaries(
                {"subscribeThrottlingRatePerConsumer": ints, "ratePeriodInSecond": ints}
            ),
            "entryFilters": st.fixed_dictionaries({"entryFilterNames": st.text(max_size=9)}),
            "schemaCompatibilityStrategy": st.sampled_from(["FULL", "BACKWARD_TRANSITIVE"]),
        },
    ),
    st.booleans(),
)
def test_round_trip(policies: dict[str, Any], is_global: bool) -> None:
    written = event_codec.encode_update(TOPIC, policies, is_global=is_global, cluster="c")
    assert event_codec.decode_change(written, event_codec.own_schema()) == Change(TOPIC, is_global, "UPDATE", policies)
