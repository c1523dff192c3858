"""The operator's simulation: seeds keep every promise, and a seed is a seed everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, Final

import pytest
from magnetar.operator.kubernetes.errors import AlreadyExists, Conflict, NotFound, Refused
from magnetar.operator.kubernetes.kinds import Manifest

from e2e.operator_simulation.objects.store import ObjectStore
from e2e.operator_simulation.operators import Operators
from e2e.operator_simulation.run import run_seed

SEEDS: Final = 4
SEEDS_PER_TEST: Final = 2


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_every_promise_is_kept(first: int) -> None:
    passes = 0
    for seed in range(first, first + SEEDS_PER_TEST):
        verdict = run_seed(seed)
        assert verdict.violations == [], f"again: python -m e2e.operator_simulation --seed {seed} --trace"
        passes += verdict.counts["passes"]
    assert passes


@pytest.mark.slow
def test_a_seed_gives_the_same_trace_twice() -> None:
    first, second = run_seed(3), run_seed(3, keep_trace=True)
    assert (first.trace_digest, first.steps) == (second.trace_digest, second.steps)
    assert first.trace_lines == []
    assert second.trace_lines


PROGRAM: Final = """
from e2e.operator_simulation.run import run_seed
print([run_seed(seed).trace_digest for seed in range(2)])
"""


@pytest.mark.slow
def test_processes_with_other_hash_seeds_give_the_same_traces() -> None:
    said = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", PROGRAM]
        said.append(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    assert said[0] == said[1]


def test_a_run_that_is_broken_off_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Operators.start

    def start_and_break_off(operators: Operators) -> None:
        start(operators)
        # Passes are about to begin: what never does is told of by Python, which fails the test.
        raise KeyboardInterrupt

    monkeypatch.setattr(Operators, "start", start_and_break_off)
    with pytest.raises(KeyboardInterrupt):
        run_seed(0)


# --- the API server that is simulated behaves as a real one where the operator leans on it


class Clock:
    """A time that stands until it is moved."""

    now = 0.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> ObjectStore:
    return ObjectStore(lambda: clock.now)


def settings(**fields: Any) -> Manifest:
    metadata = {"name": "one", "namespace": "here", **fields.pop("metadata", {})}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **fields}


def stateful(**spec: Any) -> Manifest:
    containers = [{"name": "bookie", "image": "bookie:1"}]
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": containers, **spec.pop("pod", {})}}
    usual = {"serviceName": "s", "selector": {"matchLabels": {"app": "x"}}, "template": template}
    metadata = {"name": "s", "namespace": "here"}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": {**usual, **spec}}


def test_what_is_not_applied_any_more_goes_unless_others_own_it(store: ObjectStore) -> None:
    store.apply(settings(data={"a": "1", "b": "1"}), "we")
    store.apply(settings(data={"b": "1", "c": "1"}), "they")
    assert store.apply(settings(data={"c": "2"}), "we")["data"] == {"b": "1", "c": "2"}
    assert store.apply(settings(data={"b": "1"}), "they")["data"] == {"b": "1", "c": "2"}


def test_lists_by_name_are_merged_and_keep_their_order(store: ObjectStore) -> None:
    store.apply(stateful(pod={"volumes": [{"name": "a"}, {"name": "b"}]}), "we")
    store.apply(stateful(pod={"volumes": [{"name": "theirs"}]}), "they")
    found = store.apply(stateful(pod={"volumes": [{"name": "c"}, {"name": "b"}]}), "we")
    names = [volume["name"] for volume in found["spec"]["template"]["spec"]["volumes"]]
    assert names == ["b", "theirs", "c"]


def test_what_is_scaled_by_others_stays_when_it_is_not_applied(store: ObjectStore) -> None:
    store.apply(stateful(), "we")
    store.patch(("StatefulSet", "here", "s"), {"spec": {"replicas": 5}}, "they")
    assert store.apply(stateful(), "we")["spec"]["replicas"] == 5
    store.apply(stateful(replicas=4), "we")
    assert store.apply(stateful(), "we")["spec"]["replicas"] == 1


def test_versions_and_generations_count_changes(store: ObjectStore) -> None:
    before = store.apply(stateful(replicas=3), "we")
    assert store.apply(stateful(replicas=3), "we") is before
    after = store.apply(stateful(replicas=4), "we")
    assert after["metadata"]["generation"] == before["metadata"]["generation"] + 1
    assert after["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]
    store.set_status("StatefulSet", "here", "s", {"replicas": 4})
    found = store.get("StatefulSet", "here", "s")
    assert found is not None
    assert found["metadata"]["generation"] == after["metadata"]["generation"]


def test_preconditions_are_held_to(store: ObjectStore) -> None:
    made = store.create(settings(data={"a": "1"}), "we")
    uid, key = made["metadata"]["uid"], ("ConfigMap", "here", "one")
    with pytest.raises(AlreadyExists):
        store.create(settings(), "we")
    with pytest.raises(Conflict):
        store.delete(key, uid="another")
    with pytest.raises(Conflict):
        store.apply(settings(metadata={"resourceVersion": "1"}), "we")
    with pytest.raises(Conflict):
        store.patch(key, {"metadata": {"resourceVersion": "1"}}, "we", uid=uid)
    assert store.delete(key, uid=uid)
    assert not store.delete(key, uid=uid)
    with pytest.raises(NotFound):
        store.patch(key, {}, "we")
    with pytest.raises(Conflict):
        store.apply(settings(metadata={"uid": uid}), "we")


def test_what_is_immutable_is_refused(store: ObjectStore) -> None:
    store.apply(settings(immutable=True, data={"a": "1"}), "we")
    with pytest.raises(Refused, match="immutable"):
        store.apply(settings(immutable=True, data={"a": "2"}), "we")
    store.apply(stateful(), "we")
    with pytest.raises(Refused, match="forbidden"):
        store.apply(stateful(serviceName="other"), "we")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "controller": True}
    owners = [{**owner, "uid": "1"}, {**owner, "uid": "2"}]
    with pytest.raises(Refused, match="Controller"):
        store.apply(settings(metadata={"name": "two", "ownerReferences": owners}), "we")


def test_a_finalizer_holds_an_object_until_it_is_taken_away(store: ObjectStore) -> None:
    key = ("ConfigMap", "here", "one")
    store.create(settings(metadata={"finalizers": ["we"]}), "we")
    store.delete(key)
    found = store.get(*key)
    assert found is not None
    assert "deletionTimestamp" in found["metadata"]
    with pytest.raises(Refused, match="no new finalizers"):
        store.patch(key, {"metadata": {"finalizers": ["we", "more"]}}, "they")
    store.patch(key, {"metadata": {"finalizers": []}}, "we")
    assert store.get(*key) is None


def test_orphans_lose_their_owner_and_stay(store: ObjectStore) -> None:
    owner = store.create(settings(), "we")["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "one", "uid": owner["uid"], "controller": True}
    store.create(settings(metadata={"name": "child", "ownerReferences": [reference]}), "we")
    store.delete(("ConfigMap", "here", "one"), orphan=True)
    child = store.get("ConfigMap", "here", "child")
    assert child is not None
    assert "ownerReferences" not in child["metadata"]


def test_the_past_can_be_looked_at(store: ObjectStore, clock: Clock) -> None:
    store.apply(settings(data={"a": "1"}), "we")
    clock.now = 10.0
    store.apply(settings(data={"a": "2"}), "we")
    clock.now = 12.0
    store.delete(("ConfigMap", "here", "one"))
    name = ("here", "one")
    assert name not in store.as_of("ConfigMap", 0.0)
    assert store.as_of("ConfigMap", 1.0)[name].data["data"] == {"a": "2"}
    assert store.as_of("ConfigMap", 5.0)[name].data["data"] == {"a": "1"}


def test_the_schema_of_a_resource_fills_in_what_is_left_out(store: ObjectStore) -> None:
    metadata = {"name": "blue", "namespace": "here"}
    manifest = {"apiVersion": "pulsar.magnetar.dev/v1alpha1", "kind": "Bookie", "metadata": metadata}
    made = store.create({**manifest, "spec": {"clusterName": "blue"}}, "we")
    assert made["spec"]["replicas"] == 3
    assert made["spec"]["storage"]["journal"]["size"] == "10Gi"
