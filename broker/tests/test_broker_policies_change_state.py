"""What changes come to, one after the other."""

from __future__ import annotations

from magnetar.broker.policies.change_state import Before, ChangeState, differing
from magnetar.broker.policies.event_codec import Change
from magnetar.core.topic_name import TopicName

A = TopicName.parse("persistent://public/default/a")
B = TopicName.parse("persistent://public/default/b")


def test_the_last_change_counts_and_tells_what_it_found() -> None:
    state = ChangeState()
    assert state.apply(Change(A, False, "UPDATE", {"x": 1}), 1) == Before(None, None)
    assert state.apply(Change(A, False, "UPDATE", {"x": 2}), 2) == Before(1, {"x": 1})
    assert state.apply(Change(A, True, "UPDATE", {"x": 3}), 3) == Before(None, None)
    assert state.apply(Change(A, False, "DELETE", None), 4) == Before(2, {"x": 2})
    assert state.apply(Change(A, False, "DELETE", None), 5) == Before(None, None)
    assert state.get(A, is_global=False) is None
    assert state.get(A, is_global=True) == {"x": 3}
    assert state.change_id(A, is_global=True) == 3
    assert state.topics() == {A}


def test_an_insert_gives_way_to_what_is_there() -> None:
    state = ChangeState()
    state.apply(Change(A, False, "INSERT", {"x": 1}), 1)
    assert state.apply(Change(A, False, "INSERT", {"x": 2}), 2) == Before(1, {"x": 1})
    assert state.get(A, is_global=False) == {"x": 1}
    assert state.change_id(A, is_global=False) == 1


def test_local_policies_come_before_global_ones() -> None:
    state = ChangeState()
    assert state.in_force(A) == {}
    state.apply(Change(A, True, "UPDATE", {"x": 1, "y": 1, "backLogQuotaMap": {"message_age": 1, "other": 1}}), 1)
    assert state.in_force(A)["x"] == 1
    state.apply(Change(A, False, "UPDATE", {"x": 2, "backLogQuotaMap": {"message_age": 2}}), 2)
    assert state.in_force(A) == {"x": 2, "y": 1, "backLogQuotaMap": {"message_age": 2, "other": 1}}
    state.apply(Change(A, True, "DELETE", None), 3)
    assert state.in_force(A) == {"x": 2, "backLogQuotaMap": {"message_age": 2}}


def test_only_what_differs_is_told() -> None:
    before, after = ChangeState(), ChangeState()
    for state in (before, after):
        state.apply(Change(A, False, "UPDATE", {"x": 1}), 1)
    assert differing(before, after) == []
    after.apply(Change(A, True, "UPDATE", {"x": 2}), 2)  # Hidden by the local one.
    assert differing(before, after) == []
    after.apply(Change(B, False, "UPDATE", {"x": 1}), 3)
    before.apply(Change(A, False, "UPDATE", {"x": 0}), 3)
    assert differing(before, after) == [A, B]
    assert differing(after, ChangeState()) == [A, B]
