"""What of an entry goes to another cluster: names, reasons to leave it out, and metadata rewritten byte by byte."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.broker import replicator_names as names
from magnetar.broker.replication.outgoing import (
    Outgoing,
    ShadowOutgoing,
    Skipped,
    UnstoredOutgoing,
    sent_totals,
    stored_bytes,
)
from magnetar.broker.replicator_names import SOURCE_POSITION_PROPERTY
from magnetar.broker.testing.sessions import message
from magnetar.client.unanswered import RelayedEntry
from magnetar.core.errors import Misuse
from magnetar.managed.entry import Entry
from magnetar.wire.pulsar.batch import build_message
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.metadata import checksum_ok, full_metadata, metadata_bounds

AT = (12, 34)
OUTGOING = Outgoing("east", "west")


def decide(data: bytes, **changes: object) -> RelayedEntry | Skipped | bytes:
    given: dict[str, object] = {"now_ms": 10_000, "ttl_seconds": 0, "aborted": (), "schemas": {}}
    return OUTGOING.decide(data, AT, **{**given, **changes})  # type: ignore[arg-type]


def test_names_are_read_back() -> None:
    assert names.cursor_name("west") == "pulsar.repl.west"
    assert names.remote_of_cursor("pulsar.repl.west") == "west"
    assert names.producer_name("east", "west") == "pulsar.repl.east-->west"
    assert names.source_cluster("pulsar.repl.east-->west") == "east"
    assert names.source_cluster("pulsar.repl.east") == "east"


def test_other_names_are_no_names_of_replication() -> None:
    for name in ("pulsar.dedup", "subscription", "pulsar.repl", "pulsar.repl.", "pulsar.repl-shadow", "a.west"):
        assert names.remote_of_cursor(name) is None
        assert names.source_cluster(name) is None


def test_clusters_with_dots_are_refused() -> None:
    for name in ("us.west", "", "a-->b"):
        with pytest.raises(Misuse, match="without dots"):
            names.cursor_name(name)
        with pytest.raises(Misuse, match="without dots"):
            names.producer_name(name, "west")


def test_what_stays_here_has_its_reason() -> None:
    transaction: dict[str, Any] = {"txnid_most_bits": 1, "txnid_least_bits": 2}
    assert decide(b"nothing") is Skipped.UNREADABLE
    assert decide(message(marker_type=21, **transaction)) is Skipped.TRANSACTION_MARKER
    assert decide(message(marker_type=22, **transaction)) is Skipped.TRANSACTION_MARKER
    assert decide(message(**transaction), aborted={(1, 2)}) is Skipped.ABORTED
    assert decide(message(replicated_from="north")) is Skipped.REPLICATED
    assert decide(message(replicate_to=["__local__"])) is Skipped.ADDRESSED
    assert decide(message(publish_time=1_000), ttl_seconds=8) is Skipped.EXPIRED


def test_markers_of_the_remote_are_told_apart_by_type_and_by_cluster() -> None:
    for marker_type in (10, 11, 13):
        assert decide(message(marker_type=marker_type, replicated_from="west")) is Skipped.REMOTE_MARKER
        assert decide(message(marker_type=marker_type, replicated_from="north")) is Skipped.REPLICATED
        assert isinstance(decide(message(marker_type=marker_type)), RelayedEntry)
    # A snapshot is of its own cluster alone, and is not sent; one that came all the same means nothing here.
    assert decide(message(marker_type=12, replicated_from="west")) is Skipped.REPLICATED
    assert decide(message(marker_type=12, replicate_to=["east"])) is Skipped.ADDRESSED


def test_transactions_of_the_first_coordinator_are_aborted_too() -> None:
    """Its number is 0, and stands in the id's upper half."""
    assert decide(message(txnid_most_bits=0, txnid_least_bits=2), aborted={(0, 2)}) is Skipped.ABORTED


def test_an_entry_is_expired_once_its_time_is_over_and_no_sooner() -> None:
    shadow = ShadowOutgoing("east")
    for seconds, now_ms, expired in ((8, 9_000, False), (8, 9_001, True), (0, 99_000_000, False), (-1, 99_000, False)):
        data = message(publish_time=1_000)
        assert (decide(data, ttl_seconds=seconds, now_ms=now_ms) is Skipped.EXPIRED) is expired
        assert (shadow.decide(data, AT, now_ms, seconds, (), {}) is Skipped.EXPIRED) is expired


@pytest.mark.parametrize("metadata", [b"\x0a\x01p\x18\x01", b"\x0a\x01p\x10\x01", b"\x0a\x05p"])
def test_what_lacks_its_sequence_id_or_its_time_or_is_damaged_stays_here(metadata: bytes) -> None:
    data = len(metadata).to_bytes(4, "big") + metadata
    assert decide(data) is Skipped.UNREADABLE
    assert ShadowOutgoing("east").decide(data, AT, 0, 0, (), {}) is Skipped.UNREADABLE
    assert UnstoredOutgoing("east", "west").decide(data, AT) is Skipped.UNREADABLE


def test_a_shadow_is_sent_the_metadata_and_no_payload() -> None:
    """It reads the payload where it stands."""
    data = message(b"payload", sequence_id=7, properties=[pb.KeyValue(key="a", value="b")])
    sent = ShadowOutgoing("east").decide(data, AT, 0, 0, (), {})
    assert isinstance(sent, RelayedEntry)
    assert (sent.position, sent.payload, sent.shadowed, sent.sequence_id) == (AT, b"", True, 7)
    assert checksum_ok(sent.message, 0, len(sent.message))
    metadata = full_metadata(sent.message)
    assert metadata.replicated_from == "east"
    pairs = [(pair.key, pair.value) for pair in metadata.properties]
    assert pairs == [("a", "b"), (SOURCE_POSITION_PROPERTY, "12:34")]


def test_each_entry_says_its_own_position() -> None:
    """What is kept from one entry to the next must not outlive its ledger."""
    outgoing = Outgoing("east", "west")
    for position in ((3, 8), (3, 9), (4, 0), (3, 8)):
        sent = outgoing.decide(message(), position, 0, 0, (), {})
        assert isinstance(sent, RelayedEntry)
        assert full_metadata(sent.message).properties[0].value == f"{position[0]}:{position[1]}"


def test_a_marker_type_of_more_than_32_bits_is_read_as_protobuf_does() -> None:
    data = message(replicated_from="west")
    metadata = data[slice(*metadata_bounds(data))] + b"\xa0\x01\x8a\x80\x80\x80\x10"
    assert pb.MessageMetadata.FromString(metadata).marker_type == 10
    assert decide(len(metadata).to_bytes(4, "big") + metadata) is Skipped.REMOTE_MARKER


@pytest.mark.parametrize("number", [0, -1])
def test_an_entry_has_one_message_at_least(number: int) -> None:
    sent = decide(message(num_messages_in_batch=number))
    assert isinstance(sent, RelayedEntry)
    assert sent.num_messages == 1


def test_what_is_for_the_remote_is_sent() -> None:
    for data in (
        message(replicate_to=["north", "west"]),
        message(replicate_to=["west", "north"]),
        message(txnid_most_bits=1, txnid_least_bits=3),
    ):
        assert isinstance(decide(data, ttl_seconds=8, aborted={(1, 2)}, now_ms=9), RelayedEntry)


def test_a_schema_that_the_remote_lacks_is_asked_for_first() -> None:
    data = message(schema_version=b"\0\0\0\0\0\0\0\1")
    assert decide(data) == b"\0\0\0\0\0\0\0\1"
    sent = decide(data, schemas={b"\0\0\0\0\0\0\0\1": b"\0\0\0\0\0\0\0\7"})
    assert isinstance(sent, RelayedEntry)
    assert full_metadata(sent.message).schema_version == b"\0\0\0\0\0\0\0\7"


def test_an_old_source_position_is_replaced() -> None:
    sent = decide(
        message(properties=[pb.KeyValue(key=SOURCE_POSITION_PROPERTY, value="1:1"), pb.KeyValue(key="a", value="b")])
    )
    assert isinstance(sent, RelayedEntry)
    pairs = [(pair.key, pair.value) for pair in full_metadata(sent.message).properties]
    assert pairs == [("a", "b"), (SOURCE_POSITION_PROPERTY, "12:34")]


def test_what_send_says_is_the_originals() -> None:
    sent = decide(message(sequence_id=2**64 - 1, num_messages_in_batch=3, chunk_id=0, marker_type=10))
    assert isinstance(sent, RelayedEntry)
    assert (sent.sequence_id, sent.num_messages, sent.chunked, sent.marker) == (-1, 3, True, True)


def test_a_marker_of_type_0_is_one_and_a_chunk_of_number_minus_1_is_none() -> None:
    """As Apache's: the type need only be there, and the number be none below 0."""
    sent = decide(message(marker_type=0, chunk_id=-1))
    assert isinstance(sent, RelayedEntry)
    assert (sent.chunked, sent.marker) == (False, True)


METADATA = st.builds(
    pb.MessageMetadata,
    producer_name=st.text(max_size=5),
    sequence_id=st.integers(0, 2**64 - 1),
    publish_time=st.integers(0, 2**64 - 1),
    properties=st.lists(
        st.builds(pb.KeyValue, key=st.sampled_from(["a", SOURCE_POSITION_PROPERTY + "S"]), value=st.text(max_size=3)),
        max_size=3,
    ),
    partition_key=st.none() | st.text(max_size=5),
    num_messages_in_batch=st.none() | st.integers(-(2**31), 2**31 - 1),
    event_time=st.none() | st.integers(0, 2**64 - 1),
    encryption_algo=st.none() | st.text(max_size=5),
    encryption_keys=st.lists(
        st.builds(pb.EncryptionKeys, key=st.text(max_size=3), value=st.binary(max_size=3)), max_size=2
    ),
    schema_version=st.none() | st.just(b"local"),
    ordering_key=st.none() | st.binary(max_size=5),
    deliver_at_time=st.none() | st.integers(-(2**63), 2**63 - 1),
    txnid_least_bits=st.none() | st.integers(0, 2**64 - 1),
    txnid_most_bits=st.none() | st.integers(0, 2**64 - 1),
    uuid=st.none() | st.text(max_size=5),
    chunk_id=st.none() | st.integers(0, 9),
    null_value=st.none() | st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(METADATA, st.binary(max_size=20), st.booleans(), st.booleans())
def test_rewritten_metadata_is_what_protobuf_makes(
    metadata: pb.MessageMetadata, payload: bytes, checksum: bool, entry_metadata: bool
) -> None:
    data = build_message(metadata, payload, checksum=checksum)
    if entry_metadata:
        head = pb.BrokerEntryMetadata(broker_timestamp=1, index=2).SerializeToString()
        data = b"\x0e\x02" + len(head).to_bytes(4, "big") + head + data
    sent = decide(data, schemas={b"local": b"remote"})
    assert isinstance(sent, RelayedEntry)
    wanted = pb.MessageMetadata.FromString(metadata.SerializeToString())
    wanted.replicated_from = "east"
    wanted.properties.add(key=SOURCE_POSITION_PROPERTY, value="12:34")
    wanted.ClearField("txnid_least_bits")
    wanted.ClearField("txnid_most_bits")
    if wanted.schema_version:
        wanted.schema_version = b"remote"
    assert full_metadata(sent.message) == wanted
    assert sent.message[metadata_bounds(sent.message)[1] :] == payload
    assert checksum_ok(sent.message, 0, len(sent.message))


def test_a_run_ends_at_the_first_entry_that_is_not_simply_sent() -> None:
    contents = [
        *(message(), message(num_messages_in_batch=3), message(replicated_from="north"), message()),
        message(schema_version=b"v"),
    ]
    entries = [Entry(3, number, data) for number, data in enumerate(contents)]
    sent: list[RelayedEntry] = []
    assert OUTGOING.decide_run(entries, 0, 10_000, 0, (), {}, sent) == (2, Skipped.REPLICATED)
    assert OUTGOING.decide_run(entries, 3, 10_000, 0, (), {}, sent) == (4, b"v")
    assert OUTGOING.decide_run(entries, 4, 10_000, 0, (), {b"v": b"w"}, sent) == (5, None)
    assert [one.position for one in sent] == [(3, 0), (3, 1), (3, 3), (3, 4)]
    assert sent_totals(sent) == (6, sum(len(one.message) for one in sent))
    assert stored_bytes(entries) == sum(len(data) for data in contents)
