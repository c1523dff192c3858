"""Mistakes in a spec stand in its status at once, by name, while all the rest is looked after; and go with the mistake.

The operator runs outside of Kubernetes, for the test's own namespace. No images are needed: nothing has to start.
"""

from __future__ import annotations

import base64
import contextlib
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from magnetar.auth.testing import make_pair
from magnetar.core.clock import SystemClock
from magnetar.net.free_ports import free_port

from e2e.kube.clusters import API_VERSION, small
from e2e.kube.kubectl import CommandFailed, Manifest, Namespace, condition, wait_for

SOON_SECONDS = 45.0
"""Of a machine that does a lot else. A quiet one says it within two."""


def _leads(port: int) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
        return bool(answer.read() == b"leads\n")
    return False


@pytest.fixture
def watched(scratch: Namespace, tmp_path: Path) -> Iterator[Namespace]:
    """A namespace that an operator looks after."""
    log = tmp_path / "log"
    environment = {**os.environ, "WATCH_NAMESPACES": scratch.name, "OPERATOR_NAMESPACE": scratch.name}
    environment["KUBECONFIG"] = scratch.kubernetes.kubeconfig
    program = str(Path(sys.executable).with_name("magnetar-operator"))
    port = free_port()
    command = [program, "run", "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as into, subprocess.Popen(command, env=environment, stderr=into) as process:
        # One that is installed may be faster: this one must not be told to stop before it listens to that.
        wait_for("the operator leads", lambda: _leads(port), 60.0)
        yield scratch
        scratch("delete", "pulsarclusters,bookies.pulsar.magnetar.dev", "--all", "--wait=false")
        process.terminate()
        try:
            assert process.wait(30) == 0, log.read_text()
        finally:
            process.kill()


def apply(namespace: Namespace, **spec: Any) -> None:
    metadata = {"name": "blue"}
    namespace.apply({"apiVersion": API_VERSION, "kind": "PulsarCluster", "metadata": metadata, "spec": small(**spec)})


def told(namespace: Namespace, type_: str, status: str, *words: str, kind: str = "pulsarcluster") -> Manifest:
    """Waits for a condition of the newest generation that says all of it."""

    def found() -> Manifest | None:
        resource = namespace.get(kind, "blue")
        each = condition(resource, type_)
        text = f"{each.get('reason', '')} {each.get('message', '')}"
        newest = resource["metadata"]["generation"] == each.get("observedGeneration")
        newest = newest and resource["status"].get("observedGeneration") == resource["metadata"]["generation"]
        return resource if newest and each["status"] == status and all(word in text for word in words) else None

    return wait_for(f"{kind} is {type_}={status}: {words}", found, SOON_SECONDS)


def cured(namespace: Namespace, *words: str) -> None:
    """Waits until a person is not asked for this any more. What else there is (no image can be had) may stay."""

    def found() -> bool:
        resource = namespace.get("pulsarcluster", "blue")
        each = condition(resource, "Stalled")
        newest = resource["metadata"]["generation"] == each.get("observedGeneration")
        return newest and not any(word in f"{each['reason']} {each['message']}" for word in words)

    wait_for(f"nothing of {words} is the matter any more", found, SOON_SECONDS)


def has_event(namespace: Namespace, reason: str, words: str) -> None:
    def found() -> bool:
        events = namespace.all("events")
        return any(each["reason"] == reason and words in each.get("message", "") for each in events)

    wait_for(f"an Event {reason}: {words}", found, SOON_SECONDS)


def is_made(namespace: Namespace, kind: str, name: str) -> None:
    wait_for(f"{kind} {name} is there", lambda: namespace.find(kind, name), SOON_SECONDS)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            {"broker": {"pod": {"affinity": {"nodeAffinityy": {}}}}},
            ("Deployment", "blue-broker", ".affinity.nodeAffinityy", "Correct spec.broker.pod.affinity"),
        ),
        (
            {"proxy": {"pod": {"tolerations": [{"efect": "NoSchedule"}]}}},
            ("blue-proxy", ".tolerations[0].efect", "Correct spec.proxy.pod.tolerations"),
        ),
        (
            {"proxy": {"pod": {"securityContext": {"runAsUser": "root"}}}},
            ("blue-proxy", "runAsUser", "Correct spec.proxy.pod.securityContext"),
        ),
    ],
)
def test_a_misspelt_field_is_told_with_its_path_and_holds_nothing_else_up(
    watched: Namespace, spec: dict[str, Any], words: tuple[str, ...]
) -> None:
    apply(watched, **spec)
    resource = told(watched, "Stalled", "True", "Refused", *words)
    assert condition(resource, "Ready")["status"] == "False"
    has_event(watched, "Refused", words[-1])
    is_made(watched, "statefulset", "blue-zookeeper")
    watched("delete", "service", "blue-zookeeper-peers")
    is_made(watched, "service", "blue-zookeeper-peers")
    apply(watched)
    cured(watched, *words)


def test_a_misspelt_field_of_zookeeper_leaves_the_others_looked_after(watched: Namespace) -> None:
    apply(watched, metadata={"zookeeper": {"pod": {"affinity": {"nodeAffinityy": {}}}}})
    told(watched, "Stalled", "True", "blue-zookeeper", "nodeAffinityy", "spec.metadata.zookeeper.pod.affinity")
    is_made(watched, "service", "blue-proxy")
    assert watched.find("statefulset", "blue-zookeeper") is None
    apply(watched)
    is_made(watched, "statefulset", "blue-zookeeper")
    cured(watched, "nodeAffinityy")


def test_a_misspelt_field_of_a_pool_is_told_by_the_pool(watched: Namespace) -> None:
    apply(watched)
    watched.apply(
        {
            "apiVersion": API_VERSION,
            "kind": "Bookie",
            "metadata": {"name": "blue"},
            "spec": {"clusterName": "blue", "pod": {"affinity": {"nodeAffinityy": {}}}},
        }
    )
    told(watched, "Stalled", "True", "blue-bookie", "Correct spec.pod.affinity of the Bookie", kind="bookies")


def test_a_list_as_a_settings_value_is_refused_with_its_path(scratch: Namespace) -> None:
    for value in ([1, 2], {"a": 1}):
        with pytest.raises(CommandFailed, match=r"spec\.broker\.settings\.maxTopics"):
            apply(scratch, broker={"settings": {"maxTopics": value}})


def test_a_spec_that_cannot_be_read_is_told_and_the_last_one_is_gone_by(watched: Namespace) -> None:
    """An empty list is what the API server lets pass."""
    apply(watched)
    is_made(watched, "statefulset", "blue-zookeeper")
    apply(watched, broker={"settings": {"maxTopics": []}})
    resource = told(watched, "Stalled", "True", "InvalidSpec", "spec.broker.settings.maxTopics is a list")
    assert condition(resource, "Ready")["status"] == "False"
    has_event(watched, "InvalidSpec", "spec.broker.settings.maxTopics")
    watched("delete", "service", "blue-zookeeper-peers")
    is_made(watched, "service", "blue-zookeeper-peers")
    watched.patch("pulsarcluster", "blue", {"spec": {"broker": {"settings": None}}})
    cured(watched, "InvalidSpec")


def secret(namespace: Namespace, **content: bytes) -> None:
    data = {name.replace("_", "."): base64.b64encode(value).decode() for name, value in content.items()}
    namespace.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "certs"}, "data": data})


def test_a_tls_secret_is_told_by_its_name_until_it_is_good(watched: Namespace) -> None:
    now_seconds = SystemClock().now_ms() / 1000
    old, good = make_pair(now_seconds, from_days=-9, to_days=-1), make_pair(now_seconds)
    apply(watched, tls={"secretName": "certs"})
    told(watched, "Stalled", "True", "SecretMissing", "Secret certs, which spec.tls.secretName names, is not there")
    has_event(watched, "SecretMissing", "Secret certs")
    secret(watched, tls_crt=good.certificate)
    # Nobody watches Secrets: a pass comes once in half a minute while something is the matter.
    told(watched, "Stalled", "True", "SecretInvalid", "Secret certs of spec.tls.secretName: it has no tls.key")
    secret(watched, tls_crt=old.certificate, tls_key=old.key)
    told(watched, "Stalled", "True", "CertificateInvalid", "tls.crt has expired at")
    secret(watched, tls_crt=good.certificate, tls_key=good.key)
    cured(watched, "SecretInvalid", "CertificateInvalid")


VOLUME = {
    "volumes": [{"name": "v", "secret": {"secretName": "mine"}}],
    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
}
MAP = VOLUME | {"volumes": [{"name": "v", "configMap": {"name": "mine"}}]}


@pytest.mark.parametrize(
    ("zookeeper", "words"),
    [
        pytest.param({"pod": VOLUME}, ('secret "mine" not found', "pod.volumes"), id="Secret"),
        pytest.param({"pod": MAP}, ('configmap "mine" not found', "pod.volumes"), id="ConfigMap"),
        pytest.param({"pod": {"serviceAccountName": "mine"}}, ('serviceaccount "mine" not found',), id="account"),
        pytest.param({"pod": {"priorityClassName": "mine"}}, ("PriorityClass with name mine",), id="priority"),
        pytest.param(
            {"storage": {"storageClassName": "mine"}}, ('storageclass.storage.k8s.io "mine" not found',), id="class"
        ),
        pytest.param({"image": "localhost/none:7"}, ("localhost/none:7", "imagePullSecrets"), id="image"),
    ],
)
def test_what_a_pod_waits_for_is_told_by_its_name(
    watched: Namespace, zookeeper: dict[str, Any], words: tuple[str, ...]
) -> None:
    apply(watched, metadata={"zookeeper": zookeeper})
    told(watched, "Stalled", "True", "PodFailing", *words)


def test_a_setting_without_effect_is_told_with_what_to_use(watched: Namespace) -> None:
    apply(watched, broker={"settings": {"metadataStoreUrl": "zk:elsewhere:2181"}})
    told(watched, "SettingsInEffect", "False", "SettingsIgnored", "spec.broker.settings.metadataStoreUrl")
    has_event(watched, "SettingsIgnored", "use spec.metadata.url")
    watched.patch("pulsarcluster", "blue", {"spec": {"broker": {"settings": None}}})
    told(watched, "SettingsInEffect", "True")
