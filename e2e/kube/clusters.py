"""A cluster made by the operator, as a test holds it: its resource, its pods, the way in from outside."""

from __future__ import annotations

import base64
import json
import logging
import time
import urllib.request
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.operator.children.naming import FIELD_MANAGER

from e2e.kube.kubectl import Kubernetes, Manifest, Namespace, condition, is_ready, name_of, wait_for

logger: Final = logging.getLogger(__name__)

API_VERSION: Final = "pulsar.magnetar.dev/v1alpha1"
READY_SECONDS_MAX: Final = 240.0
DELETE_SECONDS_MAX: Final = 60.0
"""A machine that does a lot else included; nothing in a cluster may wait for what goes with it."""

SMALL_STORAGE: Final = {"journal": {"size": "1Gi"}, "ledgers": {"size": "2Gi"}}


def small(replicas_of_bookies: int = 3, brokers: int = 1, **further: Any) -> dict[str, Any]:
    """A spec that fits many times on a small machine: requests that a node of two processors holds."""
    little = {"requests": {"cpu": "10m", "memory": "64Mi"}}
    spec: dict[str, Any] = {
        "metadata": {"zookeeper": {"replicas": 1, "storage": {"size": "1Gi"}, "resources": little}},
        "bookkeeper": {"replicas": replicas_of_bookies, "storage": SMALL_STORAGE, "resources": little},
        "broker": {"replicas": brokers, "resources": little},
        "proxy": {"replicas": 1, "resources": little, "service": {"type": "NodePort"}},
        "deletionPolicy": "Delete",
    }
    return merged(spec, further)


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Two nested dicts as one; what stands above wins."""
    found = dict(below)
    for name, value in above.items():
        before = found.get(name)
        found[name] = merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return found


@dataclass(slots=True)
class DeployedCluster:
    """One PulsarCluster. `service_url` and `admin_url` are for clients on the machine that runs the tests."""

    namespace: Namespace
    name: str
    spec: dict[str, Any] = field(default_factory=small)

    # --- what makes it a server in the eyes of `e2e.run_clients`

    @property
    def service_url(self) -> str:
        return f"pulsar://{self._node_address()}:{self._node_port('pulsar')}"

    @property
    def admin_url(self) -> str:
        return f"http://{self._node_address()}:{self._node_port('http')}"

    @property
    def inner_service_url(self) -> str:
        """For clients in pods of the same Kubernetes cluster."""
        return f"pulsar://{self.name}-proxy.{self.namespace.name}:6650"

    def _node_address(self) -> str:
        nodes = json.loads(self.namespace.kubernetes("get", "nodes", "-o", "json"))["items"]
        addresses = nodes[0]["status"]["addresses"]
        return str(next(each["address"] for each in addresses if each["type"] == "InternalIP"))

    @property
    def read_only_service_url(self) -> str:
        """Of the read-only brokers, for clients that reach pods by their addresses."""
        return f"pulsar://{self._node_address()}:{self._node_port('pulsar', 'read-only-broker')}"

    def _node_port(self, name: str, component: str = "proxy") -> int:
        ports = self.namespace.get("service", f"{self.name}-{component}")["spec"]["ports"]
        return int(next(port["nodePort"] for port in ports if port["name"] == name))

    # --- the resource

    def apply(self, **changes: Any) -> None:
        """Make it, or change it."""
        self.spec = merged(self.spec, changes)
        self.namespace.apply(
            {"apiVersion": API_VERSION, "kind": "PulsarCluster", "metadata": {"name": self.name}, "spec": self.spec}
        )

    def resource(self) -> Manifest:
        """As it is now."""
        return self.namespace.get("pulsarcluster", self.name)

    def pool(self, name: str = "") -> Manifest:
        """A Bookie resource, by default the cluster's own pool."""
        return self.namespace.get("bookie.pulsar.magnetar.dev", name or self.name)

    def wait_ready(self, seconds_max: float = READY_SECONDS_MAX) -> float:
        """Until the newest spec is there in full; how long it took."""
        began = time.monotonic()
        wait_for(f"{self.name} is ready", self.is_ready, seconds_max)
        return time.monotonic() - began

    def is_ready(self) -> bool:
        """Whether the operator has seen the newest spec and all of it is there."""
        found = self.resource()
        ready = condition(found, "Ready")
        pools = [] if "attach" in self.spec else [self.pool()]
        return (
            all(
                condition(each, "Ready").get("status") == "True"
                and each["status"].get("observedGeneration") == each["metadata"]["generation"]
                for each in (found, *pools)
            )
            and ready.get("observedGeneration") == found["metadata"]["generation"]
        )

    def wait_condition(
        self, type_: str, status: str, words: str = "", seconds_max: float = 120.0, *, kind: str = "pulsarcluster"
    ) -> Manifest:
        """Until a condition is so and its reason or message has the words."""

        def found() -> Manifest | None:
            each = condition(self.namespace.get(kind, self.name), type_)
            text = f"{each.get('reason', '')} {each.get('message', '')}"
            return each if each.get("status") == status and words.lower() in text.lower() else None

        return wait_for(f"{kind} {self.name} is {type_}={status} {words}", found, seconds_max)

    def delete(self, seconds_max: float = DELETE_SECONDS_MAX) -> float:
        """Delete it and wait until it and its pods are gone; gives the seconds that took."""
        began = time.monotonic()
        self.namespace("delete", "pulsarcluster", self.name, "--ignore-not-found", "--wait=false")
        # The pod of `helm test` stays, for its log.
        selector = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/managed-by={FIELD_MANAGER}"
        gone = lambda: self.namespace.find("pulsarcluster", self.name) is None  # noqa: E731
        wait_for(f"{self.name} is gone", gone, seconds_max)
        wait_for(f"the pods of {self.name} are gone", lambda: not self.namespace.all("pods", selector), seconds_max)
        return time.monotonic() - began

    # --- its pods

    def pods(self, component: str) -> list[Manifest]:
        """By name."""
        return self.namespace.pods(component, self.name)

    def ready_pods(self, component: str) -> list[str]:
        """The names of those that are ready."""
        return [name_of(pod) for pod in self.pods(component) if is_ready(pod)]

    def claims(self) -> list[str]:
        """All of the cluster."""
        found = self.namespace.all("persistentvolumeclaims", f"app.kubernetes.io/instance={self.name}")
        return sorted(name_of(claim) for claim in found)

    def control_token(self) -> str:
        """Of the control ports."""
        secret = self.namespace.get("secret", f"{self.name}-control")
        return base64.b64decode(secret["data"]["token"]).decode()

    def admin(self, method: str, path: str, body: object = None) -> Any:
        """A request to the admin API from outside, through the proxy."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.admin_url + path, method=method, data=data, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text.strip() else None

    def events(self) -> list[str]:
        """What the operator said, as reason: message."""
        found = self.namespace.all("events")
        return [f"{each['reason']}: {each.get('message', '')}" for each in found]


def pod_metrics_bytes(kubernetes: Kubernetes, namespace: str, pod: str) -> int:
    """The resident memory of a pod's containers, as the kubelet counts it (working set)."""
    node = json.loads(kubernetes("get", "pod", "-n", namespace, pod, "-o", "json"))["spec"]["nodeName"]
    summary = json.loads(kubernetes("get", "--raw", f"/api/v1/nodes/{node}/proxy/stats/summary"))
    for each in summary["pods"]:
        if each["podRef"]["name"] == pod and each["podRef"]["namespace"] == namespace:
            return int(sum(container["memory"]["rssBytes"] for container in each["containers"]))
    raise AssertionError(f"the kubelet knows nothing of {namespace}/{pod}")
