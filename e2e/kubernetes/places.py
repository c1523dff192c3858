"""Where the node keeps what it has, and every address that it takes: nothing else in here names one.

Two of these cannot run on one machine at a time: kube-proxy and kubelets look after rules of iptables and
control groups that have fixed names. `up` says so when it finds the addresses taken.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent

NODE: Final = "node1"

NODE_BRIDGE: Final = "kube0"
NODE_ADDRESS: Final = "10.240.0.1"
"""On a bridge of its own: it is there on every machine, stays the same, and is reached from nowhere else."""
POD_BRIDGE: Final = "cni0"
PODS: Final = "10.244.0.0/24"
SERVICES: Final = "10.96.0.0/16"
API_SERVICE_ADDRESS: Final = "10.96.0.1"
"""The first address of the Services is always the API server's."""
DNS_ADDRESS: Final = "10.96.0.10"
DOMAIN: Final = "cluster.local"

API_PORT: Final = 6443
API: Final = f"https://{NODE_ADDRESS}:{API_PORT}"
ETCD_PORT: Final = 2379
ETCD_PEER_PORT: Final = 2380
PROXY_HEALTH_PORT: Final = 10256
PROXY_METRICS_PORT: Final = 10249
# On NODE_ADDRESS and loopback there are further the kubelet's 10250, the controller manager's 10257 and the scheduler's
# 10259, all of them Kubernetes' defaults.

DIRECT: Final = (NODE_ADDRESS, PODS, SERVICES, "127.0.0.1", "localhost", ".svc", f".{DOMAIN}")
"""What no proxy stands before, where the machine has one for the rest of the world."""

BASE_IMAGE: Final = "localhost/base:1"
"""Debian 12 with Python 3.11, from packages."""
PAUSE_IMAGE: Final = "localhost/pause:1"


@dataclass(frozen=True, slots=True)
class Places:
    """Files of one node, all below one folder outside of every repository."""

    root: Path

    @property
    def programs(self) -> Path:
        """What was built."""
        return self.root / "bin"

    @property
    def state(self) -> Path:
        """What the cluster knows, its volumes and images."""
        return self.root / "run"

    @property
    def logs(self) -> Path:
        """A file per process."""
        return self.root / "log"

    @property
    def keys(self) -> Path:
        """Keys, certificates and the components' kubeconfigs."""
        return self.root / "pki"

    @property
    def downloads(self) -> Path:
        """What was made once a machine and is imported into new clusters."""
        return self.root / "dl"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.root / "admin.conf"

    @property
    def kube(self) -> Path:
        """The program with all of Kubernetes in it."""
        return self.programs / "kube"

    @property
    def runtime_socket(self) -> Path:
        """Where containerd listens."""
        return self.state / "containerd.sock"

    @property
    def builder_socket(self) -> Path:
        """Where BuildKit listens."""
        return self.state / "buildkit.sock"

    @property
    def base_archive(self) -> Path:
        """The base image."""
        return self.downloads / "base-img.tar"


def places() -> Places:
    """Those that KUBERNETES_ROOT names. Not in a home directory: pods' processes have other users, and must reach their
    volumes."""
    return Places(Path(os.environ.get("KUBERNETES_ROOT") or "/var/lib/magnetar-e2e").absolute())
