"""Rules of who may do what, without a broker."""

from __future__ import annotations

from typing import Any

import pytest
from magnetar.broker.auth.principal import Principal, principal_of
from magnetar.broker.auth.rules import (
    Right,
    SubscriptionNameRefused,
    is_tenant_admin,
    may_use_subscription,
    on_namespace,
    on_topic,
)
from magnetar.broker.testing.auth import grants
from magnetar.core.topic_name import TopicName

TOPIC = TopicName.parse("persistent://acme/shop/orders")
PARTITION = TopicName.parse("persistent://acme/shop/orders-partition-3")
OTHER = TopicName.parse("persistent://acme/shop/other")

POLICIES = {
    "auth_policies": grants(
        {"maker": ["produce"], "reader": ["consume"], "app-*": ["produce"], "*-view": ["consume"]},
        {
            str(TOPIC): {"one": ["produce", "consume"], "two-*": ["consume"]},
            str(PARTITION): {"third": ["produce"]},
        },
    )
}


@pytest.mark.parametrize(
    ("role", "right", "topic", "allowed"),
    [
        ("maker", Right.PRODUCE, TOPIC, True),
        ("maker", Right.CONSUME, TOPIC, False),
        ("maker", Right.LOOKUP, TOPIC, True),
        ("reader", Right.LOOKUP, PARTITION, True),
        ("reader", Right.PRODUCE, TOPIC, False),
        ("maker", Right.ADMIN, TOPIC, False),
        ("nobody", Right.LOOKUP, TOPIC, False),
        ("one", Right.PRODUCE, TOPIC, True),
        ("one", Right.PRODUCE, PARTITION, True),
        ("one", Right.CONSUME, OTHER, False),
        ("third", Right.PRODUCE, PARTITION, True),
        ("third", Right.PRODUCE, TOPIC, False),
        ("app-1", Right.PRODUCE, TOPIC, False),
    ],
)
def test_grants_on_namespaces_topics_and_partitions(role: str, right: Right, topic: TopicName, allowed: bool) -> None:
    assert on_topic(right, topic, "", wildcards=False)(POLICIES, role) is allowed


@pytest.mark.parametrize(
    ("role", "right", "topic", "allowed"),
    [
        ("app-1", Right.PRODUCE, TOPIC, True),
        ("app-1", Right.CONSUME, TOPIC, False),
        ("app", Right.PRODUCE, TOPIC, False),
        ("a-view", Right.CONSUME, TOPIC, True),
        ("view", Right.CONSUME, TOPIC, False),
        ("two-1", Right.CONSUME, TOPIC, True),
        ("two-1", Right.CONSUME, PARTITION, False),
        ("two-1", Right.CONSUME, OTHER, False),
    ],
)
def test_wildcards_where_they_are_wanted(role: str, right: Right, topic: TopicName, allowed: bool) -> None:
    assert on_topic(right, topic, "", wildcards=True)(POLICIES, role) is allowed


@pytest.mark.parametrize(
    "name",
    [
        "persistent://acme/shop/__change_events",
        "persistent://acme/shop/__change_events-partition-0",
        "persistent://acme/shop/__transaction_buffer_snapshot",
        "persistent://acme/shop/orders-s__transaction_pending_ack",
        "persistent://pulsar/system/load-history",
        "persistent://pulsar/127.0.0.1:8080/healthcheck",
    ],
)
def test_topics_of_brokers_are_written_by_administrators_only(name: str) -> None:
    topic = TopicName.parse(name)
    everything = {"auth_policies": grants({"maker": ["produce", "consume"]}, {name: {"maker": ["produce", "consume"]}})}
    assert not on_topic(Right.PRODUCE, topic, "", wildcards=True)(everything, "maker")
    assert on_topic(Right.CONSUME, topic, "", wildcards=True)(everything, "maker")
    assert on_topic(Right.LOOKUP, topic, "", wildcards=True)(everything, "maker")
    assert on_topic(Right.CONSUME, topic, "s", wildcards=True)(everything, "maker")
    for subscription in ("__compaction", "__system_reader-0a1b", "pulsar.repl.b"):
        assert not on_topic(Right.CONSUME, topic, subscription, wildcards=True)(everything, "maker")
    assert on_topic(Right.CONSUME, TOPIC, "__compaction", wildcards=False)(POLICIES, "reader")


def test_namespaces_as_a_whole_take_no_notice_of_single_topics() -> None:
    for right, allowed in (
        (Right.LOOKUP, {"maker", "reader"}),
        (Right.PRODUCE, {"maker"}),
        (Right.CONSUME, {"reader"}),
        (Right.ADMIN, set[str]()),
    ):
        rule = on_namespace(right, wildcards=False)
        assert {role for role in ("maker", "reader", "one", "nobody") if rule(POLICIES, role)} == allowed


def test_nothing_is_granted_where_nothing_is_written() -> None:
    empty: tuple[dict[str, Any], ...] = (
        {},
        {"auth_policies": None},
        {"auth_policies": {}},
        {"auth_policies": {"namespace_auth": None}},
    )
    for policies in empty:
        assert not on_topic(Right.LOOKUP, TOPIC, "s", wildcards=True)(policies, "maker")
    assert not is_tenant_admin(None, "a")
    assert not is_tenant_admin({}, "a")
    assert is_tenant_admin({"adminRoles": ["a"]}, "a")


def test_subscriptions_may_be_reserved() -> None:
    policies = {"auth_policies": grants({"a": ["consume"], "b": ["consume"]}, subscriptions={"mine": ["a"], "all": []})}
    for role, subscription, allowed in (
        ("a", "mine", True),
        ("b", "mine", False),
        ("b", "all", True),
        ("b", "x", True),
    ):
        assert may_use_subscription(policies, role, subscription, TOPIC) is allowed
        assert on_topic(Right.CONSUME, TOPIC, subscription, wildcards=False)(policies, role) is allowed


def test_subscriptions_may_have_to_be_named_after_the_role() -> None:
    policies = {"subscription_auth_mode": "Prefix"}
    assert may_use_subscription(policies, "a", "a-1", TOPIC)
    with pytest.raises(SubscriptionNameRefused, match="like a-xxxx for topic: persistent://acme/shop/orders"):
        may_use_subscription(policies, "a", "b-1", TOPIC)


def test_proxies_name_somebody_and_others_nobody() -> None:
    proxies = ("proxy", "proxy2")
    assert principal_of("a", "", proxies) == Principal("a")
    assert principal_of("a", "b", proxies) is None
    assert principal_of("a", "a", proxies) is None
    assert principal_of("a", "a", proxies, itself_allowed=True) == Principal("a", "a")
    for original in ("", " ", "proxy", "proxy2"):
        assert principal_of("proxy", original, proxies) is None
    through = principal_of("proxy", "a", proxies)
    assert through is not None
    assert through.roles == ("proxy", "a")
