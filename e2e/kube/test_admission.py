"""Wrong resources are refused when they are applied, with a message that tells what to do: each rule of the CRDs."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from magnetar.operator.resources.crd import DEFINITIONS, custom_resource_definition
from magnetar.operator.resources.markers import RULES

from e2e.kube.kubectl import CommandFailed, Manifest, Namespace

API_VERSION = "pulsar.magnetar.dev/v1alpha1"

ATTACHED: dict[str, Any] = {"attach": {}, "metadata": {"url": "zk:there:2181"}, "readOnlyBrokers": {}}
"""Read-only brokers over a cluster that others run."""

# What is there, what it is changed to (None: it is made like that), and the rule's words.
Case = tuple[str, dict[str, Any] | None, dict[str, Any], str]

CASES: list[Case] = [
    ("PulsarCluster", None, {"bookkeeper": {"ensembleSize": 2, "writeQuorum": 3}}, "copies need as many bookies"),
    ("PulsarCluster", None, {"bookkeeper": {"ackQuorum": 3}}, "receipts cannot come from fewer copies"),
    ("PulsarCluster", None, {"bookkeeper": {"replicas": 1}}, "must be bookkeeper.ensembleSize at least"),
    (
        "PulsarCluster",
        None,
        {"bookkeeper": {"replicas": 3, "autoscaling": {"maxReplicas": 5}}},
        "leave bookkeeper.replicas out",
    ),
    (
        "PulsarCluster",
        None,
        {"bookkeeper": {"autoscaling": {"minReplicas": 1, "maxReplicas": 5}}},
        "autoscaling.minReplicas must be bookkeeper.ensembleSize at least",
    ),
    (
        "PulsarCluster",
        None,
        {"broker": {"replicas": 3, "autoscaling": {"maxReplicas": 5}}},
        "leave broker.replicas out",
    ),
    (
        "PulsarCluster",
        None,
        {"broker": {"autoscaling": {"minReplicas": 6, "maxReplicas": 5}}},
        "broker.autoscaling.minReplicas must not exceed maxReplicas",
    ),
    (
        "PulsarCluster",
        None,
        {"metadata": {"url": "zk:there:2181", "zookeeper": {"replicas": 1}}},
        "names a store that is there",
    ),
    ("PulsarCluster", {}, {"metadata": {"url": "zk:there:2181"}}, "metadata.url cannot be changed"),
    (
        "PulsarCluster",
        None,
        {"proxy": {"service": {"loadBalancerSourceRanges": ["10.0.0.0/8"]}}},
        "with type LoadBalancer only",
    ),
    (
        "PulsarCluster",
        None,
        {"readOnlyBrokers": {"replicas": 3, "autoscaling": {"maxReplicas": 5}}},
        "leave readOnlyBrokers.replicas out",
    ),
    (
        "PulsarCluster",
        None,
        {"readOnlyBrokers": {"autoscaling": {"minReplicas": 6, "maxReplicas": 5}}},
        "readOnlyBrokers.autoscaling.minReplicas must not exceed maxReplicas",
    ),
    (
        "PulsarCluster",
        None,
        {"readOnlyBrokers": {"service": {"loadBalancerClass": "internal"}}},
        "loadBalancerClass have an effect with type LoadBalancer only",
    ),
    (
        "PulsarCluster",
        None,
        {"readOnlyBrokers": {"service": {"externalTrafficPolicy": "Local"}}},
        "with the types NodePort and LoadBalancer only",
    ),
    ("PulsarCluster", None, {"attach": {}, "readOnlyBrokers": {}}, "attach needs metadata.url"),
    ("PulsarCluster", None, {"attach": {}, "metadata": {"url": "zk:there:2181"}}, "attach needs metadata.url"),
    ("PulsarCluster", None, ATTACHED | {"broker": {"replicas": 1}}, "has no brokers and bookies of its own"),
    ("PulsarCluster", None, ATTACHED | {"bookkeeper": {"replicas": 3}}, "has no brokers and bookies of its own"),
    (
        "PulsarCluster",
        {"metadata": {"url": "zk:there:2181"}, "readOnlyBrokers": {}},
        ATTACHED,
        "whether a cluster is attached, and to which, cannot be changed",
    ),
    (
        "PulsarCluster",
        ATTACHED,
        ATTACHED | {"attach": {"clusterName": "other"}},
        "whether a cluster is attached, and to which, cannot be changed",
    ),
    ("PulsarCluster", None, {"metadata": {"zookeeper": {"replicas": 2}}}, "an even number of ZooKeeper servers"),
    (
        "PulsarCluster",
        {"metadata": {"zookeeper": {"replicas": 1}}},
        {"metadata": {"zookeeper": {"replicas": 3}}},
        "the number of ZooKeeper servers cannot be changed",
    ),
    # Where nothing was said before, a field's own rule is not asked.
    (
        "PulsarCluster",
        {},
        {"metadata": {"zookeeper": {"replicas": 1}}},
        "the number of ZooKeeper servers, three where metadata.zookeeper does not say, cannot be changed",
    ),
    (
        "PulsarCluster",
        {},
        {"metadata": {"zookeeper": {"storage": {"size": "10Gi", "storageClassName": "fast"}}}},
        "the storage class of ZooKeeper's volumes, which exist, cannot be changed",
    ),
    (
        "PulsarCluster",
        {"bookkeeper": {"storage": {"ledgers": {"size": "2Gi"}}}},
        {"bookkeeper": {"storage": {"ledgers": {"size": "2Gi", "storageClassName": "fast"}}}},
        "the storage class of volumes that exist cannot be set or taken away",
    ),
    (
        "PulsarCluster",
        None,
        {"proxy": {"service": {"externalTrafficPolicy": "Local"}}},
        "with the types NodePort and LoadBalancer only",
    ),
    (
        "PulsarCluster",
        None,
        {"proxy": {"service": {"loadBalancerClass": "metal"}}},
        "loadBalancerClass may be set with type LoadBalancer only",
    ),
    (
        "PulsarCluster",
        {"bookkeeper": {"storage": {"ledgers": {"size": "2Gi"}}}},
        {"bookkeeper": {"storage": {"ledgers": {"size": "1Gi"}}}},
        "a volume cannot shrink",
    ),
    (
        "PulsarCluster",
        {"bookkeeper": {"storage": {"ledgers": {"size": "2Gi", "storageClassName": "slow"}}}},
        {"bookkeeper": {"storage": {"ledgers": {"size": "2Gi", "storageClassName": "fast"}}}},
        "the storage class of volumes that exist cannot be changed",
    ),
    (
        "PulsarCluster",
        {"bookkeeper": {"storage": {"journal": {"size": "2Gi", "count": 1}}}},
        {"bookkeeper": {"storage": {"journal": {"size": "2Gi", "count": 2}}}},
        "the number of volumes cannot be changed",
    ),
    ("Bookie", {"clusterName": "blue"}, {"clusterName": "green"}, "the cluster of a pool cannot be changed"),
    (
        "Bookie",
        None,
        {"clusterName": "blue", "autoscaling": {"minReplicas": 6, "maxReplicas": 5}},
        "autoscaling.minReplicas must not exceed maxReplicas",
    ),
]
NAMES: list[tuple[str, str, str]] = [
    ("PulsarCluster", "a" * 41, "the name may have 40 characters"),
    ("PulsarCluster", "1blue", "begins with a letter"),
    ("Bookie", "b" * 41, "the name may have 40 characters"),
    ("Bookie", "2hot", "begins with a letter"),
    ("Bookie", "hot.disks", "a to z, 0 to 9 and -"),
]


def resource(kind: str, spec: dict[str, Any], name: str = "wrong") -> Manifest:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def refusal(namespace: Namespace, manifest: Manifest) -> str:
    with pytest.raises(CommandFailed) as refused:
        namespace.apply(manifest, "--dry-run=server")
    return refused.value.output


@pytest.mark.parametrize(("kind", "before", "after", "words"), CASES, ids=[case[3] for case in CASES])
def test_a_wrong_resource_is_refused_with_a_message_that_helps(
    scratch: Namespace, kind: str, before: dict[str, Any] | None, after: dict[str, Any], words: str
) -> None:
    if before is None:
        assert words in refusal(scratch, resource(kind, after))
        return
    paused = {"paused": True} if kind == "PulsarCluster" else {}
    scratch.apply(resource(kind, before | paused, "there"))
    try:
        assert words in refusal(scratch, resource(kind, after | paused, "there"))
    finally:
        scratch("delete", kind, "there", "--wait=false")
        if kind == "Bookie":
            scratch.patch(kind, "there", {"metadata": {"finalizers": None}}) if scratch.find(kind, "there") else None


@pytest.mark.parametrize(("kind", "name", "words"), NAMES)
def test_a_name_that_cannot_become_others_is_refused(scratch: Namespace, kind: str, name: str, words: str) -> None:
    spec = {"clusterName": "blue"} if kind == "Bookie" else {}
    assert words in refusal(scratch, resource(kind, spec, name))


def messages(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for rule in schema.get(RULES, ()):
            yield rule["message"]
        for part in schema.values():
            yield from messages(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from messages(part)


def test_each_rule_is_tried_here() -> None:
    tried = [words for *_, words in CASES] + [words for *_, words in NAMES]
    for definition in DEFINITIONS:
        crd = custom_resource_definition(definition)
        for message in messages(copy.deepcopy(crd)):
            assert [words for words in tried if words in message], f"no test is refused with: {message}"


def test_misspelt_fields_and_wrong_types_are_refused(scratch: Namespace) -> None:
    assert "broekr" in refusal(scratch, resource("PulsarCluster", {"broekr": {}}))
    assert "spec.broker.replicas" in refusal(scratch, resource("PulsarCluster", {"broker": {"replicas": "three"}}))
    assert "Unsupported value" in refusal(scratch, resource("PulsarCluster", {"deletionPolicy": "Keep"}))
    size = {"bookkeeper": {"storage": {"ledgers": {"size": "ten gigabytes"}}}}
    assert "should match" in refusal(scratch, resource("PulsarCluster", size))
