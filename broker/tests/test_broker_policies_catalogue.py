"""The catalogue of policies: what its rows must say, and that the documentation and the model follow it."""

from __future__ import annotations

import re
from dataclasses import fields
from operator import attrgetter
from typing import Any

import pytest
from magnetar.broker.admin.namespaces.namespaces import POLICY_MEMBERS
from magnetar.broker.admin.web.access_table import need_of
from magnetar.broker.admin.web.policy_shapes import reader_of
from magnetar.broker.policies.catalogue import POLICIES, UPSTREAM, check
from magnetar.broker.policies.effective import BrokerLevel, effective_policies
from magnetar.broker.policies.event_codec import NEWER_FIELDS
from magnetar.broker.policies.event_shape import POLICIES_TYPE, named_types
from magnetar.broker.policies.model import EffectivePolicies
from magnetar.broker.policies.policy import OfNamespace, OfTopic, Policy, PolicyKind
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.core.errors import Misuse
from magnetar.managed.settings import ManagedLedgerSettings

OF_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
OF_TOPIC = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"access": "MAX_PRODUCER"}, "Apache has no PolicyName.MAX_PRODUCER"),
        ({"topic": OfTopic("a", "maxProducers")}, "Apache has no TopicPolicies.maxProducers"),
        ({"topic": OfTopic("a", "dispatchRate", also=("rate",))}, "Apache has no TopicPolicies.rate"),
        ({"namespace": OfNamespace("maxProducers")}, "Apache has no Policies.maxProducers"),
        ({"settings": ("maxProducers",)}, "brokers have no setting maxProducers"),
        ({"settings": ("maxTenants", "maxTopicsPerNamespace")}, "PolicyKind.COUNT does not come from 2 settings"),
        (
            {"kind": PolicyKind.PUBLISH_RATE, "settings": ("maxTenants",)},
            "PolicyKind.PUBLISH_RATE does not come from 1 settings",
        ),
        (
            {"kind": PolicyKind.STRATEGY, "settings": ("maxTenants",)},
            "PolicyKind.STRATEGY does not come from 1 settings",
        ),
        (
            {"kind": PolicyKind.OTHER, "topic": OfTopic("a", "dispatchRate")},
            "without a kind it needs a handler of its own to set it",
        ),
        ({"name": "producers_max"}, "another policy has producers_max"),
        ({"topic": OfTopic("b maxProducers", "dispatchRate")}, "another policy has OfTopic maxProducers"),
        ({"namespace": OfNamespace("persistence")}, "another policy has OfNamespace persistence"),
    ],
)
def test_a_bad_row_is_refused_and_named(row: dict[str, Any], said: str) -> None:
    policy = Policy(**{"name": "new", "kind": PolicyKind.COUNT, **row})
    with pytest.raises(Misuse, match=re.escape(f"the policy {policy.name}: {said}")):
        check([*POLICIES, policy])


def test_a_kind_that_there_is_not_is_refused() -> None:
    with pytest.raises(KeyError, match="OTHER"):
        reader_of(PolicyKind.OTHER, OfTopic("a"))


def test_every_kind_is_read_and_every_policy_is_read_at_each_level() -> None:
    for policy in POLICIES:
        for level in policy.levels:
            if level.serves("set"):
                assert callable(reader_of(policy.kind, level)), policy.name
    assert {policy.kind for policy in POLICIES} == set(PolicyKind)


def test_topics_have_the_members_that_apaches_schema_has() -> None:
    members = {field["name"] for field in named_types()[POLICIES_TYPE]["fields"]}
    assert {name.partition(".")[2] for name in UPSTREAM if name.startswith("TopicPolicies.")} == members | NEWER_FIELDS
    assert {key for policy in POLICIES for key in policy.topic_keys} | {"isGlobal"} == members | NEWER_FIELDS


def test_a_new_namespace_may_bring_every_member_along() -> None:
    upstream = {name.partition(".")[2] for name in UPSTREAM if name.startswith("Policies.")}
    assert upstream - set(POLICY_MEMBERS) == {"clusterThatCanDeleteNamespace"}
    assert set(POLICY_MEMBERS) <= upstream


def test_what_is_in_force_has_a_field_of_its_own() -> None:
    names = {field.name for field in fields(EffectivePolicies)}
    in_force = {policy.name for policy in POLICIES if policy.settings}
    assert {name.partition(".")[0] for name in in_force} <= names
    policies = effective_policies(BrokerLevel(BrokerSettings(), ManagedLedgerSettings()), {}, {})
    for name in in_force:
        attrgetter(name)(policies)
    stored_alone = {policy.name for policy in POLICIES if policy.name.partition(".")[0] not in names}
    assert stored_alone == {
        "allowed_clusters",
        "backlog_quota",
        "entry_filters",
        "offload",
        "property_keys_for_metrics",
        "replication",
        "retention",
        "schema_auto_update",
        "subscription_auth_mode",
    }


def test_authorization_is_asked_by_the_row() -> None:
    for policy in POLICIES:
        for base, level in ((OF_TOPIC, policy.topic), (OF_NAMESPACE, policy.namespace)):
            for path in level.paths if level is not None and policy.access else ():
                needs = {method: need_of(method, f"{base}/{path}") for method in ("PUT", "GET")}
                for method, need in needs.items():
                    if need is not None and need.policy:
                        assert (need.operation, need.policy) == ("READ" if method == "GET" else "WRITE", policy.access)
