"""Markers, rounds and kept snapshots of replicated subscriptions."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.broker.replicated_subscriptions.entry_origins import NamedEntries, origin_of, stretches_of
from magnetar.broker.replicated_subscriptions.kept_snapshots import KeptSnapshots
from magnetar.broker.replicated_subscriptions.snapshot_round import NextStep, SnapshotRound
from magnetar.broker.replicator_names import SOURCE_POSITION_PROPERTY
from magnetar.broker.testing.sessions import message
from magnetar.core.ids import Position
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.metadata import full_metadata, metadata_bounds
from magnetar.wire.pulsar.subscription_markers import (
    CLUSTERS_MAX,
    MARKER_BYTES_MAX,
    STRETCHES_MAX,
    ClusterSnapshot,
    SnapshotRequest,
    SnapshotResponse,
    SubscriptionMarker,
    SubscriptionUpdate,
    read_marker,
    snapshot_entry,
    snapshot_request,
    snapshot_response,
    subscription_update,
)

CLUSTERS = {"west": (8, 1), "north": (9, 300)}

# Written by Apache Pulsar 4.0.8's `Markers` for the same arguments, with the time at which each was written.
APACHE = {
    "request": (
        1795841644340,
        "0e016fa24baf0000001b0a0d70756c7361722e6d61726b6572100018b4b0e983a234a0010a0a06736e61702d31120465617374",
    ),
    "response": (
        1795841645352,
        "0e018e9e445f000000210a0d70756c7361722e6d61726b6572100018a8b6e983a2343a0465617374a0010b0a06736e61702d3112150a04"
        "77657374120d080710ffffffffffffffffff01",
    ),
    "snapshot": (
        1795841647896,
        "0e013b52923e000000210a0d70756c7361722e6d61726b657210001898cae983a2343a0465617374a0010c0a06736e61702d3112040803"
        "10041a0e0a056e6f7274681205080910ac021a0c0a0477657374120408081001",
    ),
    "update": (
        1795841648336,
        "0e01253f66d80000001b0a0d70756c7361722e6d61726b6572100018d0cde983a234a0010d0a03737562120e0a056e6f72746812050809"
        "10ac02120c0a0477657374120408081001",
    ),
}


def written(name: str) -> bytes:
    """The same marker, of ours, at the time at which Apache's was written."""
    at_ms = full_metadata(bytes.fromhex(APACHE[name][1])).publish_time
    match name:
        case "request":
            return snapshot_request("snap-1", "east", at_ms)
        case "response":
            return snapshot_response(SnapshotRequest("snap-1", "east"), "west", (7, -1), at_ms)
        case "snapshot":
            return snapshot_entry(ClusterSnapshot("snap-1", (3, 4), CLUSTERS), "east", at_ms)
        case _:
            return subscription_update(SubscriptionUpdate("sub", CLUSTERS), at_ms)


def read(entry: bytes) -> SubscriptionMarker | None:
    _, payload_start = metadata_bounds(entry)
    return read_marker(full_metadata(entry).marker_type, entry[payload_start:])


@pytest.mark.parametrize("name", APACHE)
def test_markers_are_apaches_byte_for_byte(name: str) -> None:
    assert written(name).hex() == APACHE[name][1]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("request", SnapshotRequest("snap-1", "east")),
        ("response", SnapshotResponse("snap-1", "west", (7, -1))),
        ("snapshot", ClusterSnapshot("snap-1", (3, 4), CLUSTERS)),
        ("update", SubscriptionUpdate("sub", CLUSTERS)),
    ],
)
def test_apaches_markers_are_read(name: str, said: SubscriptionMarker) -> None:
    assert read(bytes.fromhex(APACHE[name][1])) == said


@pytest.mark.parametrize("marker_type", [10, 11, 12, 13])
@pytest.mark.parametrize("payload", [b"", b"\xff", b"\x0a\x05ab", b"\x0a\x01a\x12\x01"])
def test_a_damaged_marker_is_told(marker_type: int, payload: bytes) -> None:
    with pytest.raises(BadMetadata):
        read_marker(marker_type, payload)


@pytest.mark.parametrize("marker_type", [-1, 0, 9, 14, 21, 22])
def test_markers_of_other_kinds_are_none_of_these(marker_type: int) -> None:
    assert read_marker(marker_type, b"anything") is None


def test_a_marker_that_names_too_many_clusters_is_refused() -> None:
    many = {f"cluster-{index}": (1, index) for index in range(CLUSTERS_MAX + 1)}
    with pytest.raises(BadMetadata, match="1001 clusters"):
        read(subscription_update(SubscriptionUpdate("sub", many), 1))


@pytest.mark.parametrize("empty", [b"\x12\x00", b"\xc2\x3e\x00"], ids=["clusters", "single entries"])
def test_a_marker_of_many_empty_fields_is_refused_before_it_is_looked_into(empty: bytes) -> None:
    with pytest.raises(BadMetadata, match="bytes, more than 262144"):
        read_marker(13, b"\x0a\x01s" + empty * (MARKER_BYTES_MAX // len(empty)))


class TestSnapshotRound:
    def test_one_remote_cluster_is_asked_once(self) -> None:
        attempt = SnapshotRound("id", ["west"], 5)
        assert attempt.responded(SnapshotResponse("id", "west", (8, 1))) is NextStep.STORE
        assert attempt.snapshot((3, 4)) == ClusterSnapshot("id", (3, 4), {"west": (8, 1)})

    def test_two_remote_clusters_are_asked_twice_and_their_first_answers_count(self) -> None:
        attempt = SnapshotRound("id", ["west", "north"], 5)
        steps = [
            attempt.responded(SnapshotResponse("id", cluster, position))
            for cluster, position in [("west", (8, 1)), ("north", (9, 1)), ("north", (9, 7)), ("west", (8, 5))]
        ]
        assert steps == [NextStep.WAIT, NextStep.ASK_AGAIN, NextStep.WAIT, NextStep.STORE]
        assert attempt.snapshot((3, 4)).clusters == {"west": (8, 1), "north": (9, 1)}

    def test_the_same_answer_twice_is_no_second_cluster(self) -> None:
        attempt = SnapshotRound("id", ["west", "north"], 5)
        for _ in range(3):
            assert attempt.responded(SnapshotResponse("id", "west", (8, 1))) is NextStep.WAIT

    def test_a_cluster_that_was_not_asked_does_not_count(self) -> None:
        attempt = SnapshotRound("id", ["west"], 5)
        assert attempt.responded(SnapshotResponse("id", "elsewhere", (1, 1))) is NextStep.WAIT
        attempt.responded(SnapshotResponse("id", "west", (8, 1)))
        assert set(attempt.snapshot((3, 4)).clusters) == {"west"}

    def test_what_could_not_be_stored_is_tried_again_at_the_next_answer(self) -> None:
        attempt = SnapshotRound("id", ["west"], 5)
        answer = SnapshotResponse("id", "west", (8, 1))
        assert [attempt.responded(answer), attempt.responded(answer)] == [NextStep.STORE, NextStep.WAIT]
        attempt.not_stored()
        assert attempt.responded(answer) is NextStep.STORE


def entries_between(first: Position, last: Position) -> int:
    return last[1] - first[1]


def snapshot_at(entry_id: int) -> ClusterSnapshot:
    return ClusterSnapshot(f"at {entry_id}", (1, entry_id), {"west": (2, entry_id)})


class TestKeptSnapshots:
    def test_the_newest_that_is_acknowledged_is_taken_once(self) -> None:
        kept = KeptSnapshots(30, entries_between)
        for entry_id in (10, 20, 30):
            kept.add(snapshot_at(entry_id))
        assert kept.take((1, 9)) is None
        assert kept.take((1, 25)) == snapshot_at(20)
        assert kept.take((1, 25)) is None
        assert kept.take((1, 30)) == snapshot_at(30)
        assert not len(kept)

    def test_what_is_read_again_after_a_reset_replaces_what_was_kept(self) -> None:
        kept = KeptSnapshots(30, entries_between)
        for entry_id in (10, 20, 10):
            kept.add(snapshot_at(entry_id))
        assert len(kept) == 1
        assert kept.take((1, 100)) == snapshot_at(10)

    def test_the_first_and_the_last_stay_and_the_rest_is_spread(self) -> None:
        kept = KeptSnapshots(4, entries_between)
        for entry_id in (0, 1, 2, 50, 51, 100):
            kept.add(snapshot_at(entry_id))
        taken = [found.position[1] for at in range(101) if (found := kept.take((1, at))) is not None]
        assert taken[0] == 0
        assert taken[-1] == 100
        assert max(later - earlier for earlier, later in pairwise(taken)) <= 51

    def test_many_at_the_same_distance_stay_spread(self) -> None:
        """Not the newest ones alone: who is far behind tells of its progress all the way."""
        kept = KeptSnapshots(10, entries_between)
        for entry_id in range(0, 1_001, 10):
            kept.add(snapshot_at(entry_id))
        taken = [found.position[1] for at in range(1_001) if (found := kept.take((1, at))) is not None]
        assert (len(taken), taken[0], taken[-1]) == (10, 0, 1_000)
        assert max(later - earlier for earlier, later in pairwise(taken)) <= 250

    def test_after_a_reset_they_are_spread_as_from_the_beginning(self) -> None:
        kept, fresh = (KeptSnapshots(4, entries_between) for _ in range(2))
        for entry_id in (200, 300, 400, 500):
            kept.add(snapshot_at(entry_id))
        for entry_id in (0, 1, 2, 50, 51, 100):
            for one in (kept, fresh):
                one.add(snapshot_at(entry_id))
        for at in range(101):
            assert kept.take((1, at)) == fresh.take((1, at))

    @given(st.lists(st.integers(1, 50), min_size=1, max_size=200), st.integers(0, 40))
    def test_it_never_takes_more_than_is_acknowledged_and_keeps_its_bound(
        self, steps: list[int], kept_max: int
    ) -> None:
        kept = KeptSnapshots(kept_max, entries_between)
        at, added, told = 0, [], -1
        for step in steps:
            at += step
            kept.add(snapshot_at(at))
            added.append(at)
            assert len(kept) <= max(3, kept_max)
            if step % 5 == 0:
                mark_delete = at - step // 2
                found = kept.take((1, mark_delete))
                if found is not None:
                    assert told < found.position[1] <= mark_delete
                    assert found.position[1] in added
                    told = found.position[1]
        found = kept.take((1, at))
        assert found is None or found.position[1] == at


STRETCHES = {"east": [(3, 0, 4), (3, 6, 6), (5, 1, 9)], "west": [(8, 7, 7)]}


def test_single_entries_are_told_beside_what_apaches_brokers_read() -> None:
    update = SubscriptionUpdate("sub", CLUSTERS, STRETCHES)
    assert read(subscription_update(update, 1)) == update


def test_too_many_stretches_are_refused() -> None:
    many = [(1, entry_id, entry_id) for entry_id in range(0, 2 * STRETCHES_MAX + 2, 2)]
    with pytest.raises(BadMetadata, match="too many"):
        read(subscription_update(SubscriptionUpdate("sub", {}, {"east": many}), 1))


def test_an_entry_is_known_by_where_it_was_stored_first() -> None:
    source = [pb.KeyValue(key=SOURCE_POSITION_PROPERTY, value="8:7")]
    assert origin_of(message(), (1, 2), "east") == ("east", (1, 2))
    assert origin_of(message(replicated_from="west", properties=source), (1, 2), "east") == ("west", (8, 7))


@pytest.mark.parametrize("value", ["", "8", "8:x", "8:-1"])
def test_an_entry_that_does_not_say_where_it_comes_from_is_nobodys(value: str) -> None:
    properties = [pb.KeyValue(key=SOURCE_POSITION_PROPERTY, value=value)]
    assert origin_of(message(replicated_from="west", properties=properties), (1, 2), "east") is None
    assert origin_of(message(replicated_from="west"), (1, 2), "east") is None
    assert origin_of(message(marker_type=12), (1, 2), "east") is None
    assert origin_of(b"nothing", (1, 2), "east") is None


ORIGINS = st.sets(st.tuples(st.sampled_from(["east", "west"]), st.tuples(st.integers(0, 2), st.integers(0, 9))))


@given(ORIGINS)
def test_stretches_name_these_entries_and_no_others(origins: set[tuple[str, Position]]) -> None:
    named = NamedEntries(stretches_of(origins))
    everything = {
        (cluster, (ledger, entry)) for cluster in ("east", "west") for ledger in range(4) for entry in range(11)
    }
    assert {origin for origin in everything if origin in named} == origins
