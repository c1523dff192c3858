"""How many bookies ledgers are spread over where it is most."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from magnetar.broker.policies.effective import BrokerLevel, effective_policies
from magnetar.broker.policies.ensembles import READ_AT_ONCE, SETTINGS, Ensemble, Ensembles
from magnetar.broker.policies.model import EffectivePolicies
from magnetar.broker.resources import Resources, new_policies
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.metadata.memory import MemoryMetadataStore

LEVEL = BrokerLevel(
    BrokerSettings(cluster_name="here"), ManagedLedgerSettings(ensemble_size=2, write_quorum=2, ack_quorum=2)
)


@dataclass
class LoadedTopic:
    name: TopicName
    policies: EffectivePolicies


def persistence(ensemble: int) -> dict[str, Any]:
    return {"persistence": {"bookkeeperEnsemble": ensemble, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2}}


def loaded(name: str, own: dict[str, Any]) -> LoadedTopic:
    return LoadedTopic(TopicName.parse(name), effective_policies(LEVEL, {}, own))


async def largest(namespaces: dict[str, dict[str, Any] | None], topics: Iterable[LoadedTopic] = ()) -> Ensemble:
    store = MemoryMetadataStore()
    resources = Resources(store)
    for tenant in {name.partition("/")[0] for name in namespaces}:
        await resources.documents.create(Resources.tenant_path(tenant), {})
    for name, policies in namespaces.items():
        document = {} if policies is None else {**new_policies("here", 4), **policies}
        await resources.documents.create(Resources.namespace_path(NamespaceName.parse(name)), document)
    try:
        return await Ensembles(resources, lambda: LEVEL, lambda: topics).largest()
    finally:
        resources.close()
        await store.close()


@pytest.mark.parametrize(
    ("namespaces", "wanted"),
    [
        pytest.param({"a/b": {}}, Ensemble(2, SETTINGS), id="nobody asks for more"),
        pytest.param({"a/b": persistence(4), "a/c": persistence(3)}, Ensemble(4, "namespace a/b"), id="a namespace"),
        pytest.param({"a/b": persistence(1)}, Ensemble(2, SETTINGS), id="smaller than the quorum"),
        pytest.param({"a/b": {**persistence(4), "deleted": True}}, Ensemble(2, SETTINGS), id="being deleted"),
        pytest.param(
            {"a/b": {**persistence(4), "replication_clusters": ["there"]}}, Ensemble(2, SETTINGS), id="elsewhere"
        ),
        pytest.param({"a/b": None}, Ensemble(2, SETTINGS), id="a cluster's node of old"),
        pytest.param(
            {f"a/n{number}": persistence(2 + number % 3) for number in range(READ_AT_ONCE + 2)}
            | {"z/z": persistence(7)},
            Ensemble(7, "namespace z/z"),
            id="many",
        ),
    ],
)
async def test_the_largest_of_namespaces(namespaces: dict[str, dict[str, Any] | None], wanted: Ensemble) -> None:
    assert await largest(namespaces) == wanted


async def test_topics_that_are_loaded_count() -> None:
    name = "persistent://a/b/t"
    topics = [loaded("persistent://a/b/s", {}), loaded(name, persistence(5))]
    assert await largest({"a/b": persistence(4)}, topics) == Ensemble(5, f"topic {name}")
