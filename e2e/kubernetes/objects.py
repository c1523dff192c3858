"""What the API server is told once it runs: the way to DNS, the class of volumes, and rights of those two."""

from __future__ import annotations

import json
from typing import Any

from e2e.kubernetes.components import STORAGE_CLASS
from e2e.kubernetes.places import DNS_ADDRESS, NODE_ADDRESS


def objects() -> str:
    """All of them, as `kubectl apply` reads them."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [*_dns(), *_volumes()]})


def _dns() -> list[dict[str, Any]]:
    """CoreDNS runs on the node, not in a pod, so its Service has endpoints written by hand."""
    labels = {"k8s-app": "kube-dns"}
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
    reads = [
        {
            "apiGroups": [""],
            "resources": ["endpoints", "services", "pods", "namespaces"],
            "verbs": ["get", "list", "watch"],
        },
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]},
    ]
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": labels},
            "spec": {"clusterIP": DNS_ADDRESS, "ports": ports},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "kube-dns-host",
                "namespace": "kube-system",
                "labels": {"kubernetes.io/service-name": "kube-dns"},
            },
            "addressType": "IPv4",
            "ports": ports,
            "endpoints": [{"addresses": [NODE_ADDRESS], "conditions": {"ready": True}}],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "coredns"},
            "rules": reads,
        },
        _binding("coredns", "coredns", "system:coredns"),
    ]


def _volumes() -> list[dict[str, Any]]:
    return [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {
                "name": STORAGE_CLASS,
                "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
            },
            "provisioner": STORAGE_CLASS,
            "reclaimPolicy": "Delete",
            "allowVolumeExpansion": True,
            "volumeBindingMode": "WaitForFirstConsumer",
        },
        _binding("host-dir-provisioner", "system:persistent-volume-provisioner", "system:provisioner"),
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "host-dir-resizer"},
            "rules": [
                {"apiGroups": [""], "resources": ["persistentvolumes"], "verbs": ["patch"]},
                {"apiGroups": [""], "resources": ["persistentvolumeclaims/status"], "verbs": ["patch"]},
            ],
        },
        _binding("host-dir-resizer", "host-dir-resizer", "system:provisioner"),
    ]


def _binding(name: str, role: str, user: str) -> dict[str, Any]:
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "User", "apiGroup": group, "name": user}],
    }
