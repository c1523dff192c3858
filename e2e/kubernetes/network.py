"""The node's address, the way to Services and pods, and how pods get theirs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

from e2e.kubernetes.places import NODE_ADDRESS, NODE_BRIDGE, POD_BRIDGE, PODS, SERVICES, Places
from e2e.kubernetes.processes import run, succeeds

PLUGINS: Final = Path("/usr/lib/cni")
"""Where Debian puts them."""

MTU: Final = 1500
NETWORK: Final = "kube"
"""As the plugins call it in the rules that they make."""
_SHARED: Final = "CNI-HOSTPORT-"


def set_up_network(places: Places) -> None:
    """Everything that pods and Services need and no component makes; what is there stays."""
    # Packets between pods on one bridge must meet kube-proxy's rules: a Service's address is translated there, and an
    # answer that does not come back the same way is refused.
    succeeds("modprobe", "br_netfilter")  # Built into some kernels, which then have no such module.
    run("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.bridge.bridge-nf-call-iptables=1")
    if not succeeds("ip", "link", "show", NODE_BRIDGE):
        run("ip", "link", "add", NODE_BRIDGE, "type", "bridge")
        run("ip", "address", "add", f"{NODE_ADDRESS}/32", "dev", NODE_BRIDGE)
        run("ip", "link", "set", NODE_BRIDGE, "up")
    # The address is translated on the way out, but the kernel looks for a route first; a machine may have no default
    # one, and the answer would go to whichever address that one has.
    run("ip", "route", "replace", SERVICES, "dev", NODE_BRIDGE, "src", NODE_ADDRESS)
    # Docker's rules drop everything that is not its own.
    for direction in ("-i", "-o"):
        rule = ("FORWARD", direction, POD_BRIDGE, "-j", "ACCEPT")
        if not succeeds("iptables", "-C", *rule):
            run("iptables", "-I", *rule)
    folder = places.state / "cni-conf"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "10-kube.conflist").write_text(json.dumps(pod_network(places), indent=1))


def pod_network(places: Places) -> dict[str, object]:
    """What the runtime does for each pod: an address, an end on the bridge, ports of the host."""
    bridge = {
        "type": "bridge",
        "bridge": POD_BRIDGE,
        "isGateway": True,
        "ipMasq": True,
        # A pod may reach itself by its Service.
        "hairpinMode": True,
        "mtu": _mtu(),
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": PODS}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(places.state / "cni"),
        },
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": NETWORK, "plugins": [bridge, ports]}


def _mtu() -> int:
    """That of the way out of this machine: larger packets of pods would be lost in tunnels."""
    found = re.search(r"\bdev (\S+)", run("ip", "route", "show", "default"))
    path = Path(f"/sys/class/net/{found[1]}/mtu") if found else None
    return int(path.read_text()) if path is not None and path.exists() else MTU


def without_ours(rules: str) -> str:
    """Rules as `iptables-save` writes them, without Kubernetes' and our network's. Other programs have the plugins make
    chains, too: each chain's use names its network, but those that all ports of the host share."""
    lines = [line for line in rules.splitlines(keepends=True) if not re.search(r"(^:| )KUBE-", line)]
    used = re.compile(rf'name: \\?"{NETWORK}\\?" .* -j (CNI-\S+)')
    ours = {found[1] for line in lines if (found := used.search(line)) and not found[1].startswith(_SHARED)}
    lines = [line for line in lines if not ours.intersection(re.findall(r"(?:^:| )(CNI-\S+)", line))]
    if not any("CNI-DN-" in line for line in lines):
        lines = [line for line in lines if not re.search(rf"(^:| ){_SHARED}", line)]
    return "".join(lines)


def remove_network(kube: Path) -> None:
    """Take away all that is left of it."""
    succeeds(kube, "proxy", "--cleanup", "--proxy-mode", "iptables")
    # The kubelet's chains and those of the plugins nobody else removes.
    for version in ("iptables", "ip6tables"):
        if not succeeds(f"{version}-save"):
            continue  # A kernel without IPv6.
        rules = run(f"{version}-save")
        if (kept := without_ours(rules)) != rules:
            run(f"{version}-restore", stdin=kept)
    for direction in ("-i", "-o"):
        succeeds("iptables", "-D", "FORWARD", direction, POD_BRIDGE, "-j", "ACCEPT")
    for bridge in (POD_BRIDGE, NODE_BRIDGE):
        succeeds("ip", "link", "del", bridge)
