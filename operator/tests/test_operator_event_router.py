from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Sequence
from itertools import islice
from typing import Any

import kopf
import msgspec
import pytest
import yaml
from kubernetes.aio.client.configuration import Configuration
from magnetar.operator import sweep as sweep_module
from magnetar.operator.command_line import application
from magnetar.operator.handlers import WATCHED, EventRouter, registry, watch_settings
from magnetar.operator.kubernetes.errors import Refused, ServerUnavailable
from magnetar.operator.kubernetes.login import Login
from magnetar.operator.logs import set_up
from magnetar.operator.loops import Loops
from magnetar.operator.reconcile import Key
from magnetar.operator.settings import split_names
from magnetar.operator.sweep import Sweep
from magnetar.sim.virtual_time import VirtualTimeLoop
from operator_fakes.small_kubernetes import SmallApiServer
from typer.testing import CliRunner

new_event_loop = VirtualTimeLoop

BLUE, COLD = Key("PulsarCluster", "here", "blue"), Key("Bookie", "here", "cold")


class Woken(Loops):
    """Loops that only say who was woken."""

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.known: set[Key] = set()

    def wake(self, key: Key) -> None:
        self.keys.append(key)
        self.known.add(key)

    def wake_known(self, key: Key) -> None:
        if key in self.known:
            self.keys.append(key)

    def looks_after(self, key: Key) -> bool:
        return key in self.known

    def since(self) -> list[Key]:
        found, self.keys = self.keys, []
        return found


@pytest.fixture
def woken() -> Woken:
    return Woken()


@pytest.fixture
def router(woken: Woken) -> EventRouter:
    return EventRouter(woken)


def resource(key: Key, version: int = 1, status: str = "", **spec: Any) -> dict[str, Any]:
    metadata = {
        "name": key.name,
        "namespace": key.namespace,
        "resourceVersion": str(version),
        "managedFields": [version],
    }
    return {"apiVersion": "x/v1", "kind": key.kind, "metadata": metadata, "spec": spec, "status": {"phase": status}}


def test_a_change_of_what_is_wanted_wakes(router: EventRouter, woken: Woken) -> None:
    router.resource("PulsarCluster", None, resource(BLUE))
    assert woken.since() == [BLUE]
    router.resource("PulsarCluster", "MODIFIED", resource(BLUE, 2, paused=True))
    assert woken.since() == [BLUE]


def test_its_own_status_wakes_only_those_that_go_by_it(router: EventRouter, woken: Woken) -> None:
    router.resource("PulsarCluster", None, resource(BLUE))
    router.resource("Bookie", None, resource(COLD, clusterName="blue"))
    assert woken.since() == [BLUE, BLUE, COLD]
    router.resource("PulsarCluster", "MODIFIED", resource(BLUE, 2, "Fine"))
    assert woken.since() == [COLD]
    router.resource("Bookie", "MODIFIED", resource(COLD, 2, "Fine", clusterName="blue"))
    assert woken.since() == [BLUE]


def test_deletion_wakes_until_it_is_gone(router: EventRouter, woken: Woken) -> None:
    router.resource("Bookie", None, resource(COLD, clusterName="blue"))
    deleted = resource(COLD, 2, clusterName="blue")
    deleted["metadata"]["deletionTimestamp"] = "now"
    woken.since()
    router.resource("Bookie", "MODIFIED", deleted)
    router.resource("Bookie", "DELETED", deleted)
    assert woken.since() == [COLD, COLD]
    router.resource("Bookie", "ADDED", resource(COLD, 3, clusterName="blue"))
    assert woken.since() == [COLD]


def test_children_wake_their_owners_as_far_as_there_are_any(router: EventRouter, woken: Woken) -> None:
    labels = {"app.kubernetes.io/instance": "blue", "pulsar.magnetar.dev/pool": "cold"}
    pod = {"metadata": {"name": "cold-bookie-0", "namespace": "here", "labels": labels}}
    router.child(pod)
    assert woken.since() == []
    router.resource("PulsarCluster", None, resource(BLUE))
    router.resource("Bookie", None, resource(COLD, clusterName="blue"))
    woken.since()
    router.child(pod)
    assert woken.since() == [BLUE, COLD]


async def test_the_sweep_finds_what_watches_did_not_tell(
    router: EventRouter, woken: Woken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_module, "SWEEP_SECONDS", 0.001)
    api = SmallApiServer()
    api.failures["list", "Bookie"] = [ServerUnavailable("down")]
    stored = api.put(resource(BLUE))
    router.resource("PulsarCluster", None, stored)
    api.put(resource(COLD, clusterName="blue"))
    async with asyncio.timeout(30):
        assert "Bookie here/cold" in await Sweep(api, router, ["here"]).run()
    assert COLD in woken.keys


async def test_a_namespace_that_may_not_be_read_does_not_keep_the_sweep_from_others(
    router: EventRouter, woken: Woken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_module, "SWEEP_SECONDS", 0.001)
    api = SmallApiServer()
    api.put(resource(BLUE))
    looked = api.list

    async def refuse(kind: str, namespace: str | None, selector: str = "") -> Sequence[dict[str, Any]]:
        if namespace == "gone":
            raise Refused("bookies is forbidden")
        return await looked(kind, namespace, selector)

    monkeypatch.setattr(api, "list", refuse)
    async with asyncio.timeout(5):
        assert "PulsarCluster here/blue" in await Sweep(api, router, ["gone", "here"]).run()


async def test_the_sweep_goes_on_while_watches_tell(
    router: EventRouter, woken: Woken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_module, "SWEEP_SECONDS", 0.001)
    api = SmallApiServer()
    router.resource("PulsarCluster", None, api.put(resource(BLUE)))
    sweeping = asyncio.create_task(Sweep(api, router, ()).run())
    while len(api.calls) < 20:
        await asyncio.sleep(0.001)
    assert not sweeping.done()
    assert woken.keys == [BLUE]
    sweeping.cancel()


def test_what_is_watched(router: EventRouter) -> None:
    everywhere, somewhere = watch_settings(cluster_wide=True), watch_settings(cluster_wide=False)
    assert (everywhere.scanning.disabled, somewhere.scanning.disabled) == (False, True)
    assert set(everywhere.watching.label_selectors.values()) == {"app.kubernetes.io/name=magnetar"}
    assert len(everywhere.watching.label_selectors) == len(WATCHED)
    # The API server takes whole seconds only.
    assert str(everywhere.watching.server_timeout).isdecimal()
    assert not everywhere.posting.enabled
    assert isinstance(registry(router, Login(configuration=Configuration())), kopf.OperatorRegistry)


def test_what_cannot_be_watched_is_tried_for_ever() -> None:
    """kopf ends when it gives a request up: one right that is missing would end the work in all namespaces."""
    backoffs = watch_settings(cluster_wide=True).networking.error_backoffs
    assert not isinstance(backoffs, float)
    for _ in range(2):
        pauses = list(islice(backoffs, 1000))
        assert len(pauses) == 1000
        assert (pauses[0], pauses[-1]) == (1.0, 60.0)


def test_what_is_there_at_the_start_comes_in_pages() -> None:
    """Otherwise 25 000 pods are one answer, which takes a gigabyte and nine seconds without renewing the Lease."""
    settings = watch_settings(cluster_wide=True)
    assert settings.watching.chunk_size == 250
    assert settings.queueing.idle_timeout <= 1
    body = kopf.Body({"metadata": {"name": "p", "labels": {"a": "b"}}, "spec": {"large": True}})
    patch = kopf.Patch()
    storage = settings.persistence.diffbase_storage
    storage.store(body=body, patch=patch, essence=storage.build(body=body))
    assert (storage.build(body=body), storage.fetch(body=body), dict(patch)) == ({}, None, {})


def test_names_of_namespaces() -> None:
    assert split_names("") == ()
    assert split_names(" a, b,,a ") == ("a", "b")


def test_log_lines_are_json_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        set_up("json", "info")
        logging.getLogger("magnetar.operator").warning("a %s", "word", extra={"pool": "cold"})
        found = msgspec.json.decode(capsys.readouterr().err)
        assert (found["message"], found["level"], found["pool"]) == ("a word", "WARNING", "cold")
        assert found["time"].endswith("Z")
        # kopf adds its settings to what it says of objects; they cannot be copied, and such lines were lost.
        logging.getLogger("kopf.objects").warning("odd", extra={"settings": kopf.OperatorSettings(), "thing": object()})
        found = msgspec.json.decode(capsys.readouterr().err)
        assert (found["message"], "settings" in found) == ("odd", False)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("old", FutureWarning, stacklevel=1)
        assert "FutureWarning: old" in msgspec.json.decode(capsys.readouterr().err)["message"]
        set_up("text", "debug")
        logging.getLogger("magnetar.operator").warning("a word")
        assert capsys.readouterr().err.endswith("WARNING a word\n")
    finally:
        logging.captureWarnings(capture=False)
        logging.getLogger().handlers[:], logging.getLogger().level = before


@pytest.mark.slow
def test_the_command_prints_manifests() -> None:
    printed = CliRunner().invoke(application, ["crds"])
    assert [crd["spec"]["names"]["kind"] for crd in yaml.safe_load_all(printed.stdout)] == ["PulsarCluster", "Bookie"]
    whole = list(yaml.safe_load_all(CliRunner().invoke(application, ["rbac"]).stdout))
    part = list(yaml.safe_load_all(CliRunner().invoke(application, ["rbac", "--namespaced"]).stdout))
    assert [[role["kind"] for role in roles] for roles in (whole, part)] == [["ClusterRole", "Role"], ["Role", "Role"]]
    assert len(whole[0]["rules"]) > len(part[0]["rules"])
    assert whole[1] == part[1]
    assert CliRunner().invoke(application, ["--version"]).stdout.startswith("magnetar-operator 0.")
