"""Which ledgers are offloaded, which copies go, and what the records say of it."""

from __future__ import annotations

from uuid import UUID

import pytest
from magnetar.managed.info_codec import decode_ledger_info, encode_ledger_info
from magnetar.managed.ledger_list import LedgerRecord
from magnetar.managed.offload.choice import before, begun_and_left, bookkeeper_copies_due, due_by_policy
from magnetar.managed.offload.context import (
    at_bookies,
    begun,
    bookkeeper_owed,
    bookkeeper_settled,
    completed,
    copy_of,
    without_bookkeeper,
    without_copy,
)
from magnetar.managed.offload.owed import OWED_PREFIX, owed_objects, owed_property
from magnetar.tiered.policy import OffloadPolicy
from magnetar.wire.pulsar.generated.ml_data_formats_pb2 import ManagedLedgerInfo

UID = UUID("ffffffff-eeee-4ddd-8ccc-bbbbbbbbbbbb")
SMALL_UID = UUID("00000000-0000-4000-0000-000000000001")
NOW_MS = 1_000_000


def records(*sizes: int) -> list[LedgerRecord]:
    """Ledgers 0, 1, … of so many bytes, each with as many entries, closed 100 s before the next one; one in use."""
    count = len(sizes)
    closed = [
        LedgerRecord(ledger_id, size, size, NOW_MS - (count - ledger_id) * 100_000)
        for ledger_id, size in enumerate(sizes)
    ]
    return [*closed, LedgerRecord(count, 5, 1_000)]


def offloaded(record: LedgerRecord, now_ms: int = NOW_MS) -> LedgerRecord:
    """The record of a ledger that is in tiered storage."""
    return completed(begun(record, UID, "aws-s3", {"bucket": "b"}), now_ms)


def policy(**fields: int | None) -> OffloadPolicy:
    """A policy that names a store."""
    return OffloadPolicy(store="b", **fields)  # type: ignore[arg-type] # Fields by name.


@pytest.mark.parametrize(
    ("threshold_bytes", "chosen"),
    [(-1, []), (0, [0, 1, 2]), (10, [0, 1]), (29, [0, 1]), (30, [0]), (59, [0]), (60, []), (1 << 40, [])],
)
def test_the_newest_stay_up_to_the_threshold(threshold_bytes: int, chosen: list[int]) -> None:
    """A ledger whose bytes and those of all newer closed ones are more than the threshold is offloaded."""
    assert due_by_policy(records(30, 20, 10), policy(threshold_bytes=threshold_bytes), NOW_MS) == chosen


@pytest.mark.parametrize(
    ("threshold_ms", "chosen"), [(-1, []), (0, [0, 1, 2]), (100_001, [0, 1]), (200_000, [0, 1]), (300_001, [])]
)
def test_old_ledgers_are_offloaded(threshold_ms: int, chosen: list[int]) -> None:
    """Age counts from when the ledger was closed."""
    assert due_by_policy(records(1, 1, 1), policy(threshold_ms=threshold_ms), NOW_MS) == chosen


def test_what_is_never_offloaded() -> None:
    """What is empty, what is offloaded, the last ledger even when it is closed; without a store nothing is."""
    made = records(30, 0, 10)
    made[2] = offloaded(made[2])
    assert due_by_policy(made, policy(threshold_bytes=0), NOW_MS) == [0]
    assert due_by_policy(made, OffloadPolicy(threshold_bytes=0), NOW_MS) == []
    terminated = made[:1]
    assert due_by_policy(terminated, policy(threshold_bytes=0), NOW_MS) == []
    assert due_by_policy([], policy(threshold_bytes=0), NOW_MS) == []


def test_what_is_offloaded_already_counts_for_the_threshold() -> None:
    """It is newer all the same."""
    made = records(30, 20, 10)
    made[1] = offloaded(made[1])
    assert due_by_policy(made, policy(threshold_bytes=25), NOW_MS) == [0]


def test_an_offload_that_was_begun_is_done_again() -> None:
    """Who began it is not there any more."""
    made = records(30, 20)
    made[0] = begun(made[0], UID, "aws-s3", {})
    assert due_by_policy(made, policy(threshold_bytes=0), NOW_MS) == [0, 1]
    assert begun_and_left(made) == [0]


def test_before_a_position() -> None:
    """All ledgers before that of the position; where the first entry is that stays."""
    made = records(3, 2, 1)
    made[1] = offloaded(made[1])
    assert before(made, (2, 0)) == ([0], (2, 0))
    assert before(made, (3, 2)) == ([0, 2], (3, 0))
    assert before(made, (0, 1)) == ([], (0, 0))


def test_the_copies_at_the_bookies_go_after_the_lag() -> None:
    """Only those of complete offloads, only once, and never without a lag."""
    made = records(3, 2, 1)
    made[0] = offloaded(made[0], NOW_MS - 101)
    made[1] = begun(made[1], UID, "aws-s3", {})
    made[2] = without_bookkeeper(offloaded(made[2], 0))
    assert bookkeeper_copies_due(made, policy(deletion_lag_ms=100), NOW_MS) == [0]
    assert bookkeeper_copies_due(made, policy(deletion_lag_ms=101), NOW_MS) == []
    assert bookkeeper_copies_due(made, policy(deletion_lag_ms=None), NOW_MS) == []
    assert bookkeeper_copies_due(made, OffloadPolicy(deletion_lag_ms=0), NOW_MS) == []


@pytest.mark.parametrize("uid", [UID, SMALL_UID, UUID(int=0), UUID(int=(1 << 128) - 1)])
def test_a_uuid_is_kept_as_two_signed_words(uid: UUID) -> None:
    """Java's UUID is."""
    record = begun(records(1)[0], uid, "aws-s3", {"bucket": "b"})
    stored = ManagedLedgerInfo.FromString(encode_ledger_info([record], None, {})).ledgerInfo[0].offloadContext
    words = [(uid.int >> 64), uid.int & (1 << 64) - 1]
    assert [stored.uidMsb % (1 << 64), stored.uidLsb % (1 << 64)] == words
    found = copy_of(decode_ledger_info(encode_ledger_info([record], None, {})).records[0])
    assert found is not None
    assert (found.uid, found.driver, found.stored, found.complete) == (uid, "aws-s3", {"bucket": "b"}, False)


def test_the_steps_are_stored_as_apache_stores_them() -> None:
    """Field by field: what a step does not say is not there."""
    record = records(4)[0]
    first = begun(record, SMALL_UID, "aws-s3", {"bucket": "b", "region": "r"})
    assert first.rest is not None
    context = first.rest.offloadContext
    assert [field.name for field, _ in context.ListFields()] == ["uidMsb", "uidLsb", "driverMetadata"]
    assert [(each.key, each.value) for each in context.driverMetadata.properties] == [("bucket", "b"), ("region", "r")]
    second = completed(first, NOW_MS)
    assert second.rest is not None
    assert second.rest.offloadContext.timestamp == NOW_MS
    third = without_bookkeeper(second)
    found = copy_of(third)
    assert found is not None
    assert (found.complete, found.bookkeeper_deleted, found.offloaded_ms) == (True, True, NOW_MS)
    assert bookkeeper_owed(third)
    assert at_bookies(third)
    assert not at_bookies(bookkeeper_settled(third))
    assert record.rest is None, "the record of before stays as it was, in case that the write fails"
    assert copy_of(without_copy(first)) is None


def test_when_the_last_delayed_message_is_due_stays() -> None:
    """Retention counts from then, and the list is written with each of these records."""
    record = LedgerRecord(7, 4, 40, NOW_MS)
    record.due_ms = NOW_MS + 5
    for changed in (
        begun(record, UID, "aws-s3", {}),
        completed(begun(record, UID, "aws-s3", {}), NOW_MS),
        without_copy(record),
        without_bookkeeper(record),
        bookkeeper_settled(record),
    ):
        assert changed.due_ms == NOW_MS + 5


def test_what_others_wrote_stays() -> None:
    """Properties, segments of streaming offloads, and fields that nobody here knows."""
    stored = ManagedLedgerInfo.LedgerInfo(ledgerId=0, entries=4, size=4, timestamp=NOW_MS)
    stored.properties.add(key="theirs", value="kept")
    stored.offloadContext.offloadSegment.add(uidMsb=1, uidLsb=2)
    record = LedgerRecord(0, 4, 4, NOW_MS)
    record.rest = ManagedLedgerInfo.LedgerInfo.FromString(stored.SerializeToString() + b"\xba\x06\x03abc")
    changed = bookkeeper_settled(without_bookkeeper(offloaded(record)))
    assert changed.rest is not None
    assert [(each.key, each.value) for each in changed.rest.properties] == [("theirs", "kept")]
    assert len(changed.rest.offloadContext.offloadSegment) == 1
    assert changed.rest.SerializeToString().endswith(b"\xba\x06\x03abc")


def test_what_is_owed_comes_back_from_properties() -> None:
    """And what makes no sense is nobody's."""
    copy = copy_of(begun(records(1)[0], UID, "aws-s3", {"bucket": "b"}))
    assert copy is not None
    key, value = owed_property(7, copy)
    found = owed_objects({key: value, "other": "x"})
    assert [(each.ledger_id, each.uid, each.stored) for each in found.values()] == [(7, UID, {"bucket": "b"})]
    broken = {
        f"{OWED_PREFIX}7": "{}",
        f"{OWED_PREFIX}x.{UID}": value,
        f"{OWED_PREFIX}7.{UID}": "[" * 100_000,
        f"{OWED_PREFIX}8.{UID}": '{"stored": 3}',
        f"{OWED_PREFIX}9.{UID}": "null",
    }
    assert owed_objects(broken) == {}
