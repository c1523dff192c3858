"""The operator's own calls to a real API server: what its plans rely on, and what the simulation's server imitates."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from magnetar.core.clock import SystemClock
from magnetar.net.free_ports import free_port
from magnetar.operator.api_server import HttpApiServer
from magnetar.operator.children.naming import OwnerResource
from magnetar.operator.events import ApiEvents
from magnetar.operator.kubernetes.errors import AlreadyExists, Conflict, NotFound, Refused
from magnetar.operator.kubernetes.login import find_login
from magnetar.operator.leader import Leader
from magnetar.operator.plan.actions import EmitEvent

from e2e.kube.kubectl import Namespace, wait_for

GROUP_VERSION = "pulsar.magnetar.dev/v1alpha1"

ATTEMPTS = 3

COME_SECONDS_MAX = 240.0
"""A garbage collector that has just started looks at all kinds first."""


@pytest.fixture
async def api(scratch: Namespace) -> AsyncIterator[HttpApiServer]:
    found = HttpApiServer(await find_login(), clock=SystemClock())
    yield found
    await found.close()


@pytest.fixture
def namespace(scratch: Namespace) -> str:
    return scratch.name


def configuration(namespace: str, name: str = "c", **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": {"a": "b"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def pool(namespace: str, **spec: Any) -> dict[str, Any]:
    metadata = {"name": "cold", "namespace": namespace}
    spec = {"clusterName": "nobody"} | spec
    return {"apiVersion": GROUP_VERSION, "kind": "Bookie", "metadata": metadata, "spec": spec}


def stateful_set(namespace: str, replicas: int = 1) -> dict[str, Any]:
    labels = {"app": "s"}
    container = {
        "name": "main",
        "image": "localhost/none:0",
        "imagePullPolicy": "Never",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "s", "namespace": namespace, "labels": labels},
        "spec": {
            "replicas": replicas,
            "serviceName": "s",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"securityContext": security, "containers": [container]},
            },
        },
    }


async def test_apply_makes_takes_over_and_takes_away(api: HttpApiServer, namespace: str) -> None:
    made = await api.apply(configuration(namespace, x="1", y="1"))
    await api.patch("ConfigMap", namespace, "c", {"data": {"z": "others"}}, uid=made["metadata"]["uid"])
    await api.apply(configuration(namespace, x="2", w="theirs"), manager="somebody-else")
    found = await api.apply(configuration(namespace, x="3"))
    assert found["data"] == {"x": "3", "z": "others", "w": "theirs"}
    assert found["metadata"]["uid"] == made["metadata"]["uid"]
    assert "managedFields" not in found["metadata"]


async def test_applying_the_same_again_changes_nothing(api: HttpApiServer, namespace: str) -> None:
    first = await api.apply(stateful_set(namespace))
    for _ in range(10):
        await asyncio.sleep(0.3)
        first = await api.apply(stateful_set(namespace))
    again = await api.apply(stateful_set(namespace))
    assert again["metadata"]["generation"] == first["metadata"]["generation"] == 1


async def test_replicas_left_out_fall_back_unless_somebody_else_has_set_them(
    api: HttpApiServer, namespace: str
) -> None:
    """Whoever applies a workload without its number must know that the number has another owner."""
    made = await api.apply(stateful_set(namespace, 3))
    without = stateful_set(namespace)
    del without["spec"]["replicas"]
    assert (await api.apply(without))["spec"]["replicas"] == 1
    await api.patch("StatefulSet", namespace, "s", {"spec": {"replicas": 2}}, uid=made["metadata"]["uid"])
    assert (await api.apply(without))["spec"]["replicas"] == 2


async def test_another_uid_is_another_object(api: HttpApiServer, namespace: str) -> None:
    uid = (await api.apply(configuration(namespace, x="1")))["metadata"]["uid"]
    other = configuration(namespace, x="2")
    other["metadata"]["uid"] = "0f5b7a5e-0000-4000-8000-000000000000"
    with pytest.raises(Conflict):
        await api.apply(other)
    with pytest.raises(Conflict):
        await api.patch("ConfigMap", namespace, "c", {"data": {"x": "2"}}, uid="another")
    with pytest.raises(Conflict):
        await api.delete("ConfigMap", namespace, "c", uid="another")
    await api.delete("ConfigMap", namespace, "c", uid=uid)
    assert await api.get("ConfigMap", namespace, "c") is None
    await api.delete("ConfigMap", namespace, "c", uid=uid)
    with pytest.raises(NotFound):
        await api.patch("ConfigMap", namespace, "c", {"data": {"x": "2"}}, uid=uid)
    with pytest.raises(Conflict):
        await api.apply(other)


async def test_a_patch_of_an_older_version_is_refused(api: HttpApiServer, namespace: str) -> None:
    first = await api.apply(configuration(namespace, x="1"))
    uid = first["metadata"]["uid"]
    patch = {"metadata": {"resourceVersion": first["metadata"]["resourceVersion"], "finalizers": ["example.com/held"]}}
    second = await api.patch("ConfigMap", namespace, "c", patch, uid=uid)
    assert second["metadata"]["finalizers"] == ["example.com/held"]
    with pytest.raises(Conflict):
        await api.patch("ConfigMap", namespace, "c", patch, uid=uid)
    await api.delete("ConfigMap", namespace, "c", uid=uid)
    held = await api.get("ConfigMap", namespace, "c")
    assert held is not None
    assert "deletionTimestamp" in held["metadata"]
    await api.patch("ConfigMap", namespace, "c", {"metadata": {"finalizers": None}}, uid=uid)
    assert await api.get("ConfigMap", namespace, "c") is None


async def test_create_is_once(api: HttpApiServer, namespace: str) -> None:
    await api.create(configuration(namespace, x="1"))
    with pytest.raises(AlreadyExists):
        await api.create(configuration(namespace, x="2"))


async def test_lists_select(api: HttpApiServer, namespace: str) -> None:
    await api.apply(configuration(namespace, "one"))
    two = configuration(namespace, "two")
    two["metadata"]["labels"]["c"] = "d"
    await api.apply(two)
    found = await api.list("ConfigMap", namespace, "a=b,!c")
    assert [(manifest["kind"], manifest["metadata"]["name"]) for manifest in found] == [("ConfigMap", "one")]
    everywhere = await api.list("ConfigMap", None, "a=b,c=d")
    assert namespace in [manifest["metadata"]["namespace"] for manifest in everywhere]
    assert await api.list("PodMonitor", namespace) == [] or await api.knows("PodMonitor")
    assert await api.knows("Bookie")


async def test_the_status_is_apart(api: HttpApiServer, namespace: str) -> None:
    identity = {"apiVersion": GROUP_VERSION, "kind": "Bookie", "metadata": {"name": "cold", "namespace": namespace}}
    with pytest.raises(NotFound):
        await api.apply_status({**identity, "status": {"phase": "Fine"}})
    made = await api.apply(pool(namespace, replicas=5))
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Fine",
        "message": "all is well",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    }
    uid = {"uid": made["metadata"]["uid"]}
    owned = {**identity, "metadata": identity["metadata"] | uid}  # type: ignore[operator]  # A dict.
    found = await _applied_status(api, {**owned, "status": {"phase": "Fine", "conditions": [condition]}})
    assert (found["status"]["phase"], found["status"]["conditions"]) == ("Fine", [condition])
    assert found["metadata"]["generation"] == made["metadata"]["generation"]
    found = await _applied_status(api, {**owned, "status": {"phase": "Finer"}})
    assert (found["status"]["phase"], found["status"].get("conditions", [])) == ("Finer", [])
    assert found["spec"]["replicas"] == 5
    with pytest.raises(Conflict):
        await api.apply_status(
            {**identity, "metadata": {"name": "cold", "namespace": namespace, "uid": "0"}, "status": {}}
        )
    with pytest.raises(Conflict):
        await api.patch("Bookie", namespace, "cold", {"spec": {"replicas": 1}}, uid="0")
    with pytest.raises(Conflict):
        await api.delete("Bookie", namespace, "cold", uid="0")
    await api.delete("Bookie", namespace, "cold", uid=made["metadata"]["uid"])


async def test_what_the_server_does_not_take_it_says_why(api: HttpApiServer, namespace: str) -> None:
    with pytest.raises(Refused, match=r"spec\.replicas"):
        await api.apply(pool(namespace, replicas=-1))
    made = await api.apply(stateful_set(namespace))
    with pytest.raises(Refused, match="updates to statefulset spec"):
        await api.patch("StatefulSet", namespace, "s", {"spec": {"serviceName": "t"}}, uid=made["metadata"]["uid"])


async def test_orphans_stay(api: HttpApiServer, namespace: str) -> None:
    uid = (await api.apply(stateful_set(namespace)))["metadata"]["uid"]

    async def pod() -> dict[str, Any] | None:
        return await api.get("Pod", namespace, "s-0")

    first = await _until(pod, lambda found: found is not None)
    await api.delete("StatefulSet", namespace, "s", uid=uid, orphan=True)
    await _until(pod, lambda found: found is not None and not found["metadata"].get("ownerReferences"))
    await _until(lambda: api.get("StatefulSet", namespace, "s"), lambda found: found is None)
    uid = (await api.apply(stateful_set(namespace)))["metadata"]["uid"]
    adopted = await _until(pod, lambda found: found is not None and bool(found["metadata"].get("ownerReferences")))
    assert adopted["metadata"]["uid"] == first["metadata"]["uid"]
    await api.delete("StatefulSet", namespace, "s", uid=uid)
    await _until(pod, lambda found: found is None or "deletionTimestamp" in found["metadata"])


async def _applied_status(api: HttpApiServer, manifest: dict[str, Any]) -> dict[str, Any]:
    """As the operator does it: an API server that has just started may apply to a copy which is a moment old, and then
    refuses what it would take the next time."""
    for _ in range(ATTEMPTS):
        try:
            return await api.apply_status(manifest)
        except Conflict:
            await asyncio.sleep(0.5)
    return await api.apply_status(manifest)


async def _until(ask: Callable[[], Any], enough: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(COME_SECONDS_MAX):
        while True:
            if enough(found := await ask()):
                return found
            await asyncio.sleep(0.2)


async def test_events_are_written_and_counted_up(
    api: HttpApiServer, namespace: str, scratch: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.operator.events.COUNT_EVERY_SECONDS", 0.0)
    target = await api.apply(configuration(namespace))
    owner = OwnerResource(kind="ConfigMap", name="c", namespace=namespace, uid=target["metadata"]["uid"])
    events = ApiEvents(api, SystemClock(), "operator-0")
    for _ in range(3):
        await events.tell(owner, EmitEvent("Warning", "DiskReplaced", "c has an empty volume"))
    (found,) = await api.list("Event", namespace)
    assert (found["reason"], found["count"], found["type"]) == ("DiskReplaced", 3, "Warning")
    assert "DiskReplaced" in scratch("get", "events")


async def test_one_of_two_leads_and_hands_over(api: HttpApiServer, namespace: str) -> None:
    def operator(identity: str) -> Leader:
        return Leader(api, SystemClock(), namespace=namespace, name="lease", identity=identity)

    first, second = operator("a"), operator("b")
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    keeping = asyncio.create_task(first.keep())
    await asyncio.sleep(6)
    assert first.leads()
    assert not waiting.done()
    keeping.cancel()
    await first.release()
    async with asyncio.timeout(5):
        await waiting
    lease = await api.get("Lease", namespace, "lease")
    assert lease is not None
    assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseTransitions"]) == ("b", 1)


@pytest.fixture
def process(scratch: Namespace, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int, Path]]:
    """An operator of this namespace alone, outside of Kubernetes."""
    port, log = free_port(), tmp_path / "log"
    environment = {**os.environ, "WATCH_NAMESPACES": scratch.name, "OPERATOR_NAMESPACE": scratch.name}
    command = [str(Path(sys.executable).with_name("magnetar-operator")), "run", "--host", "127.0.0.1"]
    with (
        log.open("wb") as into,
        subprocess.Popen([*command, "--port", str(port)], env=environment, stderr=into) as found,
    ):
        yield found, port, log
        found.kill()


def read(port: int, page: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=5) as answer:
        text: str = answer.read().decode()
    return text


def value(metrics: str, name: str) -> float:
    """All series of one name together."""
    return sum(float(found) for found in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", metrics, re.MULTILINE))


def test_a_process_watches_and_costs_little(
    scratch: Namespace, process: tuple[subprocess.Popen[bytes], int, Path], note: Callable[[str], None]
) -> None:
    running, port, log = process

    def leads() -> bool:
        try:
            return read(port, "readyz") == "leads\n"
        except OSError:
            return False

    def phase() -> str:
        return scratch("get", "bookie", "cold", "-o", "jsonpath={.status.phase}")

    wait_for("the operator leads", leads, 30)
    scratch.apply(pool(scratch.name))
    wait_for("it has looked at a resource that was made", phase, 15)
    assert read(port, "healthz") == "ok\n"
    before = read(port, "metrics")
    time.sleep(60)
    after = read(port, "metrics")

    def spent(name: str) -> float:
        return value(after, name) - value(before, name)

    megabytes = value(after, "process_resident_memory_bytes") / 1e6
    processor = spent("process_cpu_seconds_total") / 60
    calls = spent("magnetar_operator_api_calls_total")
    note(f"{megabytes:.0f} MB, {processor:.2%} of a core, {calls:.0f} calls a minute")
    assert megabytes <= 100
    assert processor <= 0.02
    assert calls <= 60
    assert spent("magnetar_operator_passes_total") <= 4
    running.send_signal(signal.SIGTERM)
    assert running.wait(15) == 0, log.read_text()
    lease = scratch("get", "lease", "magnetar-operator", "-o", "jsonpath={.spec.holderIdentity}")
    assert lease == "", "the next one need not wait"
    assert "Traceback" not in log.read_text()
    scratch("delete", "bookie", "cold")
