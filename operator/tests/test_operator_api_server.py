"""What is sent and how answers are read; what servers do with it is tried on a real one (e2e/kube)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from magnetar.operator.api_server import DISCOVERY_SECONDS, HttpApiServer
from magnetar.operator.kubernetes.errors import (
    AlreadyExists,
    Conflict,
    NamespaceTerminating,
    NotFound,
    Refused,
    ServerUnavailable,
)
from magnetar.operator.kubernetes.kinds import KINDS
from operator_fakes.small_kubernetes import SettableClock
from operator_fakes.wire import ScriptedKubernetes, serving

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "here", "uid": "u"}}


@pytest.fixture
async def wire() -> AsyncIterator[ScriptedKubernetes]:
    async with serving() as found:
        yield found


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def counted() -> list[tuple[str, str]]:
    return []


@pytest.fixture
async def api(
    wire: ScriptedKubernetes, clock: SettableClock, counted: list[tuple[str, str]]
) -> AsyncIterator[HttpApiServer]:
    found = HttpApiServer(wire.login(), clock=clock, asked=lambda verb, kind: counted.append((verb, kind)))
    yield found
    await found.close()


async def test_get(api: HttpApiServer, wire: ScriptedKubernetes, counted: list[tuple[str, str]]) -> None:
    wire.says({**POD, "metadata": {"name": "p", "managedFields": [1, 2]}})
    found = await api.get("Pod", "here", "p")
    assert found is not None
    assert found["metadata"] == {"name": "p"}
    assert (wire.last.method, wire.last.path) == ("GET", "/api/v1/namespaces/here/pods/p")
    wire.fails(404)
    assert await api.get("Bookie", "here", "b") is None
    assert wire.last.path == "/apis/pulsar.magnetar.dev/v1alpha1/namespaces/here/bookies/b"
    assert counted == [("get", "Pod"), ("get", "Bookie")]


async def test_list_reads_all_pages_and_says_what_items_are(api: HttpApiServer, wire: ScriptedKubernetes) -> None:
    wire.says({"items": [{"metadata": {"name": "a", "managedFields": []}}], "metadata": {"continue": "more"}})
    wire.says({"items": [{"metadata": {"name": "b"}}], "metadata": {}})
    found = await api.list("StatefulSet", None, "a=b,!c")
    assert found == [
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "a"}},
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "b"}},
    ]
    assert wire.requests[0].path == "/apis/apps/v1/statefulsets"
    assert wire.last.query == {"limit": "500", "labelSelector": "a=b,!c", "continue": "more"}
    wire.fails(404)
    assert await api.list("PodMonitor", "here") == []
    wire.says({"items": None})
    assert await api.list("Pod", "here") == []


async def test_a_list_without_an_end(api: HttpApiServer, wire: ScriptedKubernetes) -> None:
    """A server, or what stands before it, that answers a page with the way to the same page, or in a circle."""
    for rest in ("a", "b", "a"):
        wire.says({"items": [{"metadata": {"name": "p"}}], "metadata": {"continue": rest}})
    with pytest.raises(ServerUnavailable, match="list Pod: the API server gives the same page again and again"):
        await api.list("Pod", "here")


@pytest.mark.parametrize("page", [{"items": 5}, {"items": {"a": 1}}, {"items": [None]}, {"metadata": "m"}])
async def test_a_list_of_something_else(api: HttpApiServer, wire: ScriptedKubernetes, page: dict[str, Any]) -> None:
    wire.says(page)
    with pytest.raises(ServerUnavailable, match="list Pod: no answer of a Kubernetes API server"):
        await api.list("Pod", "here")


async def test_apply(api: HttpApiServer, wire: ScriptedKubernetes) -> None:
    wire.says(POD)
    await api.apply(POD)
    assert (wire.last.method, wire.last.path) == ("PATCH", "/api/v1/namespaces/here/pods/p")
    assert wire.last.query == {"fieldManager": "magnetar-operator", "force": "true"}
    assert wire.last.headers["content-type"] == "application/apply-patch+yaml"
    assert json.loads(wire.last.content) == POD


async def test_a_status_is_of_the_object_that_was_meant(api: HttpApiServer, wire: ScriptedKubernetes) -> None:
    wire.says({**POD, "metadata": {"name": "p", "uid": "u", "resourceVersion": "7"}})
    wire.says(POD)
    await api.apply_status({**POD, "status": {"a": 1}})
    assert wire.last.path == "/api/v1/namespaces/here/pods/p/status"
    assert json.loads(wire.last.content)["metadata"]["resourceVersion"] == "7"
    wire.says({**POD, "metadata": {"name": "p", "uid": "another", "resourceVersion": "8"}})
    with pytest.raises(Conflict):
        await api.apply_status({**POD, "status": {"a": 1}})
    wire.fails(404)
    with pytest.raises(NotFound):
        await api.apply_status({**POD, "status": {"a": 1}})


async def test_create(api: HttpApiServer, wire: ScriptedKubernetes) -> None:
    wire.says(POD, 201)
    await api.create(POD)
    assert (wire.last.method, wire.last.path) == ("POST", "/api/v1/namespaces/here/pods")
    assert wire.last.query["fieldValidation"] == "Strict", "else what is misspelt is left out without a word"
    wire.fails(409, reason="AlreadyExists")
    with pytest.raises(AlreadyExists):
        await api.create(POD)


async def test_patch_is_of_the_object_that_was_meant(api: HttpApiServer, wire: ScriptedKubernetes) -> None:
    wire.says(POD)
    await api.patch("Pod", "here", "p", {"metadata": {"annotations": {"a": None}}}, uid="u")
    assert wire.last.headers["content-type"] == "application/merge-patch+json"
    assert json.loads(wire.last.content) == {"metadata": {"annotations": {"a": None}, "uid": "u"}}
    wire.fails(422, "uid is immutable", field="metadata.uid")
    with pytest.raises(Conflict):
        await api.patch("Pod", "here", "p", {}, uid="u")


async def test_delete_is_of_the_object_that_was_meant(api: HttpApiServer, wire: ScriptedKubernetes) -> None:
    wire.says({})
    await api.delete("StatefulSet", "here", "s", uid="u", orphan=True)
    assert wire.last.method == "DELETE"
    assert json.loads(wire.last.content) == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "u"},
        "propagationPolicy": "Orphan",
    }
    wire.fails(404)
    await api.delete("Pod", "here", "p", uid="u")
    assert json.loads(wire.last.content)["propagationPolicy"] == "Background"
    wire.fails(409, reason="Conflict")
    with pytest.raises(Conflict):
        await api.delete("Pod", "here", "p", uid="u")


async def test_kinds_are_asked_for_now_and_then(
    api: HttpApiServer, wire: ScriptedKubernetes, clock: SettableClock
) -> None:
    wire.fails(404)
    assert not await api.knows("PodMonitor")
    assert not await api.knows("PodMonitor")
    assert wire.last.path == "/apis/monitoring.coreos.com/v1"
    clock.advance(DISCOVERY_SECONDS + 1)
    wire.says({"resources": [{"kind": "Prometheus"}, {"kind": "PodMonitor"}]})
    assert await api.knows("PodMonitor")
    clock.advance(DISCOVERY_SECONDS + 1)
    wire.says({"resources": [{"kind": "Prometheus"}]})
    assert not await api.knows("PodMonitor")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (400, Refused),
        (403, Refused),
        (422, Refused),
        (404, NotFound),
        (409, Conflict),
        (401, ServerUnavailable),
        (410, ServerUnavailable),
        (429, ServerUnavailable),
        (500, ServerUnavailable),
        (503, ServerUnavailable),
    ],
)
async def test_errors_say_what_the_server_says(
    api: HttpApiServer, wire: ScriptedKubernetes, code: int, error: type[Exception]
) -> None:
    wire.fails(code, "replicas must not be negative")
    with pytest.raises(error, match="apply Pod: replicas must not be negative"):
        await api.apply(POD)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("failed to create typed patch object (a/b; apps/v1, Kind=Deployment): .spec.x: field not declared", Refused),
        ("failed to convert new object (a/b; apps/v1, Kind=Deployment) to proper version: quantities must", Refused),
        ("etcdserver: leader changed", ServerUnavailable),
        ("etcdserver: request timed out", ServerUnavailable),
        ('Internal error occurred: failed calling webhook "w": connection refused', ServerUnavailable),
    ],
)
async def test_a_field_that_a_kind_does_not_have_is_no_outage(
    api: HttpApiServer, wire: ScriptedKubernetes, message: str, error: type[Exception]
) -> None:
    """Answers of a real server (1.34): all of them 500, most without a reason."""
    wire.fails(500, message)
    with pytest.raises(error):
        await api.apply(POD)


async def test_warnings_of_one_object(api: HttpApiServer, wire: ScriptedKubernetes) -> None:
    wire.says({"items": [{"metadata": {"name": "e", "managedFields": [1]}, "reason": "FailedMount"}]})
    assert await api.warnings("here", "u") == [{"metadata": {"name": "e"}, "reason": "FailedMount"}]
    assert wire.last.path == "/api/v1/namespaces/here/events"
    assert wire.last.query["fieldSelector"] == "involvedObject.uid=u,type=Warning"


async def test_a_namespace_that_ends_takes_nothing_new(api: HttpApiServer, wire: ScriptedKubernetes) -> None:
    causes = [{"reason": "NamespaceTerminating", "message": "it is being terminated", "field": "metadata.namespace"}]
    wire.says({"kind": "Status", "message": "m", "reason": "Forbidden", "details": {"causes": causes}}, 403)
    with pytest.raises(NamespaceTerminating):
        await api.create(POD)


async def test_a_connection_that_breaks(api: HttpApiServer, wire: ScriptedKubernetes) -> None:
    wire.breaks()
    with pytest.raises(ServerUnavailable, match=r"does not answer \(patch Lease\)"):
        await api.patch("Lease", "here", "l", {}, uid="u")


async def test_no_answer(api: HttpApiServer, wire: ScriptedKubernetes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.operator.kubernetes.client.CALL_SECONDS_MAX", 0.01)
    wire.waits()
    with pytest.raises(ServerUnavailable, match=r"does not answer in time \(get Pod\)"):
        await api.get("Pod", "here", "p")


async def test_an_answer_that_is_no_json(api: HttpApiServer, wire: ScriptedKubernetes) -> None:
    wire.replies(502, b"<html>bad gateway")
    with pytest.raises(ServerUnavailable, match="bad gateway"):
        await api.get("Pod", "here", "p")


async def test_what_is_no_answer_of_an_api_server(api: HttpApiServer, wire: ScriptedKubernetes) -> None:
    """A load balancer's page. As any other error it would end the renewing of the Lease, and the process."""
    wire.replies(200, b"<html>welcome")
    with pytest.raises(ServerUnavailable, match="no answer of a Kubernetes API server"):
        await api.get("Pod", "here", "p")


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("", 0.0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0.0)])
async def test_a_server_says_how_long_to_wait(
    api: HttpApiServer, wire: ScriptedKubernetes, header: str, seconds: float
) -> None:
    wire.says({"message": "too many requests"}, 429, headers={"Retry-After": header})
    with pytest.raises(ServerUnavailable) as caught:
        await api.get("Pod", "here", "p")
    assert caught.value.retry_after_seconds == seconds


async def test_a_kind_that_has_gone_is_asked_for_anew(api: HttpApiServer, wire: ScriptedKubernetes) -> None:
    """Else each pass ends at its PodMonitor until the old answer is forgotten, five minutes later."""
    monitor = {
        "apiVersion": KINDS["PodMonitor"].api_version,
        "kind": "PodMonitor",
        "metadata": {"name": "m", "namespace": "here"},
    }
    wire.says({"resources": [{"kind": "PodMonitor"}]})
    assert await api.knows("PodMonitor")
    wire.fails(404)
    with pytest.raises(NotFound):
        await api.apply(monitor)
    wire.fails(404)
    assert not await api.knows("PodMonitor")


async def test_who_does_not_lead_writes_nothing_but_leases(api: HttpApiServer, wire: ScriptedKubernetes) -> None:
    api.fence(lambda: False)
    with pytest.raises(ServerUnavailable, match="does not lead"):
        await api.apply(POD)
    with pytest.raises(ServerUnavailable, match="does not lead"):
        await api.delete("Pod", "here", "p", uid="u")
    assert wire.requests == []
    wire.says(POD)
    await api.get("Pod", "here", "p")
    wire.says({})
    await api.patch("Lease", "here", "l", {}, uid="u")
