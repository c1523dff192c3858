"""The command lines of the node's processes and the files they read. Each flag that is not Kubernetes' default has its
reason here; what has none stated is simply where something lies.

What they have in common: one of each, so nobody elects leaders; nobody profiles them; and whatever only saves a busy
production cluster from itself is off, because an idle node should cost next to nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, TypeAlias

from e2e.kubernetes.places import (
    API_PORT,
    DNS_ADDRESS,
    DOMAIN,
    ETCD_PEER_PORT,
    ETCD_PORT,
    NODE,
    NODE_ADDRESS,
    PAUSE_IMAGE,
    PODS,
    PROXY_HEALTH_PORT,
    PROXY_METRICS_PORT,
    SERVICES,
    Places,
)

Command: TypeAlias = list[str | Path]

STORAGE_CLASS: Final = "host-dir"

QUIET: Final[Command] = ["--leader-elect=false", "--bind-address", "127.0.0.1", "--profiling=false"]


def containerd(places: Places) -> Command:
    """Runs containers. Its configuration leaves out what makes it complain on machines without such file systems."""
    snapshotters = [f"io.containerd.snapshotter.v1.{name}" for name in ("aufs", "btrfs", "devmapper", "native", "zfs")]
    tracing = ["io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
    # restrict_oom_score_adj: a machine that is a container itself may not make its children safer than it is.
    text = f"""\
version = 2
root = "{places.state}/containerd"
state = "{places.state}/containerd-state"
disabled_plugins = {json.dumps([*snapshotters, *tracing])}
[grpc]
  address = "{places.runtime_socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{places.state}/cni-conf"
"""
    path = places.state / "containerd.toml"
    path.write_text(text)
    return ["containerd", "--config", path]


def etcd(places: Places) -> Command:
    """Holds the cluster's state. It does not sync: what a power failure loses is made anew. Histories are kept for
    minutes, for watchers that come back."""
    client, peer = f"http://127.0.0.1:{ETCD_PORT}", f"http://127.0.0.1:{ETCD_PEER_PORT}"
    return [
        places.kube, "etcd", "--name", NODE, "--data-dir", places.state / "etcd", "--unsafe-no-fsync",
        "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
        "--initial-advertise-peer-urls", peer, "--initial-cluster", f"{NODE}={peer}",
        "--auto-compaction-mode", "periodic", "--auto-compaction-retention", "10m", "--log-level", "warn",
    ]  # fmt: skip


def apiserver(places: Places) -> Command:
    """As kubeadm would start it: RBAC, nodes that may only touch what is theirs, extensions of the API.

    Extensions are called at the pods behind their Services (aggregator routing), kubelets by the nodes' addresses: no
    name of a node has to be known to any DNS."""
    keys = places.keys
    return [
        places.kube, "apiserver", "--bind-address", NODE_ADDRESS, "--advertise-address", NODE_ADDRESS,
        "--secure-port", str(API_PORT), "--etcd-servers", f"http://127.0.0.1:{ETCD_PORT}",
        "--tls-cert-file", keys / "apiserver.crt", "--tls-private-key-file", keys / "apiserver.key",
        "--client-ca-file", keys / "ca.crt", "--service-account-key-file", keys / "sa.pub",
        "--service-account-signing-key-file", keys / "sa.key",
        "--service-account-issuer", f"https://kubernetes.default.svc.{DOMAIN}",
        "--service-cluster-ip-range", SERVICES, "--authorization-mode", "Node,RBAC",
        "--enable-admission-plugins", "NodeRestriction", "--allow-privileged",
        "--kubelet-client-certificate", keys / "admin.crt", "--kubelet-client-key", keys / "admin.key",
        "--kubelet-certificate-authority", keys / "ca.crt", "--kubelet-preferred-address-types", "InternalIP",
        "--requestheader-client-ca-file", keys / "ca.crt", "--requestheader-allowed-names", "front-proxy-client",
        "--requestheader-username-headers", "X-Remote-User", "--requestheader-group-headers", "X-Remote-Group",
        "--requestheader-extra-headers-prefix", "X-Remote-Extra-", "--proxy-client-cert-file", keys / "front-proxy.crt",
        "--proxy-client-key-file", keys / "front-proxy.key", "--enable-aggregator-routing",
        "--enable-priority-and-fairness=false", "--profiling=false",
    ]  # fmt: skip


def controller_manager(places: Places) -> Command:
    """StatefulSets, Deployments, Jobs and the rest, each with rights of its own as in production. Tests make and
    delete much at once, which its ordinary limits would spread over minutes."""
    keys = places.keys
    kubeconfig = keys / "kube-controller-manager.conf"
    return [
        places.kube, "controller-manager", "--kubeconfig", kubeconfig, "--authentication-kubeconfig", kubeconfig,
        "--authorization-kubeconfig", kubeconfig, "--service-account-private-key-file", keys / "sa.key",
        "--root-ca-file", keys / "ca.crt", "--cluster-signing-cert-file", keys / "ca.crt",
        "--cluster-signing-key-file", keys / "ca.key", "--use-service-account-credentials",
        "--kube-api-qps", "500", "--kube-api-burst", "1000", *QUIET,
    ]  # fmt: skip


def scheduler(places: Places) -> Command:
    """Gives pods to the one node there is, or says why not."""
    kubeconfig = places.keys / "kube-scheduler.conf"
    return [
        places.kube, "scheduler", "--kubeconfig", kubeconfig, "--authentication-kubeconfig", kubeconfig,
        "--authorization-kubeconfig", kubeconfig, *QUIET,
    ]  # fmt: skip


def kubelet(places: Places) -> Command:
    """Runs the node's pods. Its configuration is a file, as most of it has no flags any more.

    Images are in no registry, so none is ever collected, and pods are evicted only when the disk or the memory is all
    but full: a developer's disk often is nearly so. The rest saves work while nothing happens."""
    keys, state = places.keys, places.state
    configuration = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE_ADDRESS,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(keys / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(keys / "kubelet-serving.crt"),
        "tlsPrivateKeyFile": str(keys / "kubelet-serving.key"),
        "containerRuntimeEndpoint": f"unix://{places.runtime_socket}",
        # There may be no systemd, and either version of control groups.
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "clusterDomain": DOMAIN,
        "clusterDNS": [DNS_ADDRESS],
        "resolvConf": "/etc/resolv.conf",
        "healthzPort": 0,
        # kube-proxy makes the chains that it needs.
        "makeIPTablesUtilChains": False,
        "podLogsDir": str(state / "pod-logs"),
        "volumePluginDir": str(state / "volume-plugins"),
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "imageMinimumGCAge": "24h",
        "serializeImagePulls": False,
        "volumeStatsAggPeriod": "-1s",
    }
    path = state / "kubelet.yaml"
    path.write_text(json.dumps(configuration, indent=1))  # JSON is YAML.
    return [
        places.kube, "kubelet", "--config", path, "--kubeconfig", keys / "kubelet.conf",
        "--root-dir", state / "kubelet", "--cert-dir", state / "kubelet-pki",
        "--hostname-override", NODE, "--node-ip", NODE_ADDRESS,
        "--housekeeping-interval", "30s", "--v", "1",
    ]  # fmt: skip


def proxy(places: Places) -> Command:
    """Translates the addresses of Services. Ports of the node are open on its own address and loopback only, never to
    the outside. Limits of connection tracking are the kernel's: the machine may not let us write them."""
    return [
        places.kube, "proxy", "--kubeconfig", places.keys / "kube-proxy.conf", "--hostname-override", NODE,
        "--proxy-mode", "iptables", "--cluster-cidr", PODS, "--nodeport-addresses", f"{NODE_ADDRESS}/32,127.0.0.0/8",
        "--healthz-bind-address", f"127.0.0.1:{PROXY_HEALTH_PORT}",
        "--metrics-bind-address", f"127.0.0.1:{PROXY_METRICS_PORT}", "--conntrack-max-per-core", "0",
        "--conntrack-tcp-timeout-established", "0s", "--conntrack-tcp-timeout-close-wait", "0s",
    ]  # fmt: skip


def coredns(places: Places) -> Command:
    """Names of Services and pods; of everything else what the machine says, if it knows a name server. Answers live
    for seconds: tests restart pods and want the new addresses."""
    forward = "\n    forward . /etc/resolv.conf" if _knows_name_server() else ""
    text = f"""\
.:53 {{
    bind {NODE_ADDRESS}
    errors
    kubernetes {DOMAIN} in-addr.arpa ip6.arpa {{
        kubeconfig {places.keys}/coredns.conf
        pods insecure
        ttl 5
    }}{forward}
    cache 5
    loadbalance
}}
"""
    path = places.state / "Corefile"
    path.write_text(text)
    return [places.kube, "coredns", "-conf", path]


def _knows_name_server() -> bool:
    path = Path("/etc/resolv.conf")
    return path.exists() and any(line.startswith("nameserver") for line in path.read_text().splitlines())


def provisioner(places: Places) -> Command:
    """Volumes as directories of this machine."""
    return [
        places.kube, "provisioner", "-kubeconfig", places.keys / "provisioner.conf", "-name", STORAGE_CLASS,
        "-root", places.state / "volumes",
    ]  # fmt: skip
