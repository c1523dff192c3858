"""Starts the node, stops it, restarts its kubelet."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Literal, TypeAlias

from e2e.kubernetes import components
from e2e.kubernetes.archive import Image, write_archive
from e2e.kubernetes.certificates import make_certificates
from e2e.kubernetes.network import remove_network, set_up_network
from e2e.kubernetes.objects import objects
from e2e.kubernetes.places import API, BASE_IMAGE, NODE, NODE_BRIDGE, PAUSE_IMAGE, Places
from e2e.kubernetes.processes import NodeTrouble, Processes, past_proxies, run, succeeds

Forgotten: TypeAlias = Literal["nothing", "state", "images"]
"""Of a node that stops: nothing, all but what was downloaded or built, or the images as well."""

ORDER: Final = ("containerd", "etcd", "apiserver", "controller-manager", "scheduler", "kubelet", "proxy", "coredns",
                "provisioner", "buildkitd")  # fmt: skip

STATE: Final = ("etcd", "kubelet", "volumes", "cni", "pod-logs", "volume-plugins")
IMAGES_NAMESPACE: Final = "k8s.io"
"""Of containerd: the kubelet's images."""


class Node:
    """A single-node cluster below one folder."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.processes = Processes(places.state, places.logs)

    def up(self, tell: Callable[[str], None]) -> None:
        """Start what does not run yet; returns when the node is ready. `tell` hears of each step. What cannot be
        started leaves nothing behind but its logs; what ran before goes on.

        Errors: `NodeTrouble`, also when another node runs on this machine, or nothing was built yet."""
        self._check_machine()
        ran_before = self.processes.running()
        try:
            self._start(tell)
        except BaseException:
            if not ran_before:
                tell("it cannot be started: what was is stopped again")
                self.down()
            raise

    def _start(self, tell: Callable[[str], None]) -> None:
        places, processes = self.places, self.processes
        for folder in (places.state, places.logs, places.keys, places.state / "cni", places.state / "volumes"):
            folder.mkdir(parents=True, exist_ok=True)
        # Processes of pods have users that may look into neither; they pass through to their volumes.
        for folder in (places.root, places.state):
            folder.chmod(0o711)
        make_certificates(places)
        set_up_network(places)
        for name in ("containerd", "etcd", "apiserver"):
            processes.start(name, self._command(name))
        processes.wait_until("containerd", lambda: succeeds("ctr", "-a", places.runtime_socket, "version"))
        self._import_image(PAUSE_IMAGE, self._pause_archive)
        tell("containers can run")
        processes.wait_until("apiserver", lambda: succeeds(*self._kubectl("get", "--raw", "/readyz")))
        tell("the API server serves")
        for name in ("controller-manager", "scheduler", "kubelet", "proxy"):
            processes.start(name, self._command(name))
        run(*self._kubectl("apply", "--server-side", "--force-conflicts", "-f", "-"), stdin=objects())
        for name in ("coredns", "provisioner"):
            processes.start(name, self._command(name))
        processes.wait_until("kubelet", self._is_node_ready)
        # Pods are refused until their namespace has its default account.
        account = self._kubectl("get", "serviceaccount", "default")
        processes.wait_until("controller-manager", lambda: succeeds(*account))
        tell("the node is ready")
        if places.base_archive.exists():
            self._import_image(BASE_IMAGE, lambda: places.base_archive)

    def down(self, forget: Forgotten = "nothing") -> None:
        """Stop everything and take away what it has left on this machine, but nothing of another node."""
        places, processes = self.places, self.processes
        with ThreadPoolExecutor() as pool:
            list(pool.map(processes.stop, ORDER[3:]))
        # The kubelet leaves pods running. They go by the runtime, which gives their addresses and groups back.
        if places.runtime_socket.exists():
            succeeds(places.kube, "criclean", f"unix://{places.runtime_socket}")
        # In this order: without etcd the API server takes long to end. What is forgotten needs no good order.
        how = signal.SIGTERM if forget == "nothing" else signal.SIGKILL
        processes.stop("apiserver", how)
        processes.stop("etcd", how)
        processes.stop("containerd")
        # Bridges, rules and groups have fixed names: while an API server still answers, they are another node's.
        alone = not _serves()
        if alone:
            remove_network(places.kube)
        for mount in sorted(_mounts_below(places.state), reverse=True):
            succeeds("umount", "-l", mount)
        if alone:
            _remove_control_groups()
        if forget == "state":
            for name in STATE:
                shutil.rmtree(places.state / name, ignore_errors=True)
        elif forget == "images":
            shutil.rmtree(places.state, ignore_errors=True)

    def restart_kubelet(self) -> None:
        """Kill the kubelet and start it again; returns when it reports. Its pods run on."""
        self.stop_kubelet()
        self.start_kubelet()

    def stop_kubelet(self) -> None:
        """Kill the kubelet, as if the node hung: its pods run on, and after 40 s the cluster calls the node lost."""
        self.processes.stop("kubelet", signal.SIGKILL)

    def start_kubelet(self) -> None:
        """Start the kubelet that was stopped. Returns when the node is ready and it is this kubelet that says so."""
        before = self._renewed()
        self.processes.start("kubelet", self._command("kubelet"))
        self.processes.wait_until("kubelet", lambda: self._renewed() != before and self._is_node_ready())

    def status(self) -> dict[str, int | None]:
        """The number of each process, None where it does not run."""
        return {name: self.processes.pid(name) for name in ORDER}

    @property
    def is_up(self) -> bool:
        """Whether there is a cluster to talk to."""
        return all(self.processes.pid(name) is not None for name in ORDER[:6])

    def environment(self) -> dict[str, str]:
        """What people and tests need to reach it: `kubectl` and `helm` on the path."""
        path = os.environ.get("PATH", "")
        programs = str(self.places.programs)
        if programs not in path.split(os.pathsep):
            path = f"{programs}{os.pathsep}{path}"
        return {"KUBECONFIG": str(self.places.kubeconfig), "PATH": path, **past_proxies(os.environ)}

    def has_image(self, name: str) -> bool:
        """Whether pods can have this image."""
        listed = run("ctr", "-a", self.places.runtime_socket, "-n", IMAGES_NAMESPACE, "images", "ls", "-q")
        return name in listed.splitlines()

    def import_archive(self, archive: Path) -> None:
        """Give the node the images of an archive that `docker save` has written, or one like it."""
        run("ctr", "-a", self.places.runtime_socket, "-n", IMAGES_NAMESPACE, "images", "import", archive)

    def _command(self, name: str) -> components.Command:
        command: Callable[[Places], components.Command] = getattr(components, name.replace("-", "_"))
        return command(self.places)

    def _kubectl(self, *arguments: str) -> tuple[str | Path, ...]:
        return (self.places.kube, "kubectl", "--kubeconfig", self.places.kubeconfig, *arguments)

    def _is_node_ready(self) -> bool:
        return succeeds(*self._kubectl("wait", "--for=condition=Ready", f"node/{NODE}", "--timeout=5s"))

    def _renewed(self) -> str:
        """When the kubelet last said that it is alive."""
        return run(*self._kubectl("get", "lease", NODE, "-n", "kube-node-lease", "-o", "jsonpath={.spec.renewTime}"))

    def _import_image(self, name: str, archive: Callable[[], Path]) -> None:
        if not self.has_image(name):
            self.import_archive(archive())

    def _pause_archive(self) -> Path:
        path = self.places.state / "pause.tar"
        write_archive(
            Image(name=PAUSE_IMAGE, files={"/pause": self.places.programs / "pause"}, entrypoint=["/pause"]), path
        )
        return path

    @staticmethod
    def check_rights() -> None:
        """Before anything is built for it. Errors: `NodeTrouble`."""
        if os.geteuid() != 0:
            raise NodeTrouble("a node needs root: it makes bridges, mounts and containers")

    def _check_machine(self) -> None:
        self.check_rights()
        missing = [name for name in ("kube", "pause") if not (self.places.programs / name).exists()]
        if missing:
            raise NodeTrouble(f"{' and '.join(missing)} not in {self.places.programs}: run `install` first")
        ours = self.processes.running()
        if succeeds("ip", "link", "show", NODE_BRIDGE) and "containerd" not in ours and _serves():
            raise NodeTrouble(
                f"another node has {API}: two cannot share a machine. Use it (KUBERNETES_ROOT says where it is), or "
                "take it down first"
            )


def _serves() -> bool:
    """Whether some API server has the address that ours would."""
    return succeeds("curl", "-sk", "--max-time", "2", f"{API}/version")


def _mounts_below(folder: Path) -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        path = line.split()[4]
        if path.startswith(f"{folder}/"):
            yield path


def _remove_control_groups() -> None:
    """Empty ones that the kubelet has made, the innermost first. A group with processes stays, and says so to nobody:
    somebody else's pods are not ours to end."""
    root = Path("/sys/fs/cgroup")
    for top in itertools.chain(root.glob("kubepods"), root.glob("*/kubepods")):
        for folder, _, _ in os.walk(top, topdown=False):
            succeeds("rmdir", folder)
