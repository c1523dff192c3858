"""What changes come to, one after the other."""

from __future__ import annotations

import pytest
from magnetar.broker.policies import change_state
from magnetar.broker.policies.change_state import CHANGE_BYTES, ChangeState, PreviousPolicies, differing, size_bytes
from magnetar.broker.policies.event_codec import Change
from magnetar.core.topic_name import TopicName

A = TopicName.parse("persistent://public/default/a")
B = TopicName.parse("persistent://public/default/b")


def test_the_last_change_counts_and_tells_what_it_found() -> None:
    state = ChangeState()
    assert state.apply(Change(A, False, "UPDATE", {"x": 1}), 1) == PreviousPolicies(None, None)
    assert state.apply(Change(A, False, "UPDATE", {"x": 2}), 2) == PreviousPolicies(1, {"x": 1})
    assert state.apply(Change(A, True, "UPDATE", {"x": 3}), 3) == PreviousPolicies(None, None)
    assert state.apply(Change(A, False, "DELETE", None), 4) == PreviousPolicies(2, {"x": 2})
    assert state.apply(Change(A, False, "DELETE", None), 5) == PreviousPolicies(None, None)
    assert state.get(A, is_global=False) is None
    assert state.get(A, is_global=True) == {"x": 3}
    assert state.change_id(A, is_global=True) == 3
    assert list(state.topics()) == [A]


def test_an_insert_gives_way_to_what_is_there() -> None:
    state = ChangeState()
    state.apply(Change(A, False, "INSERT", {"x": 1}), 1)
    assert state.apply(Change(A, False, "INSERT", {"x": 2}), 2) == PreviousPolicies(1, {"x": 1})
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


def differences(before: ChangeState, after: ChangeState) -> list[TopicName]:
    return [topic for topic in differing(before, after) if topic is not None]


def test_only_what_differs_is_told() -> None:
    before, after = ChangeState(), ChangeState()
    for state in (before, after):
        state.apply(Change(A, False, "UPDATE", {"x": 1}), 1)
    assert differences(before, after) == []
    after.apply(Change(A, True, "UPDATE", {"x": 2}), 2)  # Hidden by the local one.
    assert differences(before, after) == []
    after.apply(Change(B, False, "UPDATE", {"x": 1}), 3)
    before.apply(Change(A, False, "UPDATE", {"x": 0}), 3)
    assert differences(before, after) == [A, B]
    assert differences(after, ChangeState()) == [A, B]


def test_policies_of_topics_that_somebody_made_up_take_no_more_memory_than_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(change_state, "NAMESPACE_POLICIES_BYTES_MAX", 50 * CHANGE_BYTES)
    state = ChangeState()
    taken = 0
    for number in range(1_000):
        topic = TopicName.parse(f"persistent://public/default/made-up-{number}")
        policies = {"maxMessageSize": number}
        if state.has_room(topic, policies, is_global=False):
            state.apply(Change(topic, False, "UPDATE", policies), number)
            taken += 1
    assert 20 < taken < 50
    first = TopicName.parse("persistent://public/default/made-up-0")
    assert state.has_room(first, {"maxMessageSize": 5}, is_global=False), "in the place of what is there"
    assert state.has_room(A, None, is_global=False)
    for topic in list(state.topics()):
        state.apply(Change(topic, False, "DELETE", None), 0)
    assert state.held_bytes == 0


def test_what_is_within_policies_counts() -> None:
    few = size_bytes({"subscriptionPolicies": {"s": {"dispatchRate": {"dispatchThrottlingRateInMsg": 1}}}})
    many = {f"s{number}": {"dispatchRate": {"dispatchThrottlingRateInMsg": 1}} for number in range(100)}
    assert size_bytes({"subscriptionPolicies": many}) > few + 100 * 300
    assert size_bytes({"offloadPolicies": {"bucket": "x" * 10_000}}) > 10_000 + CHANGE_BYTES
