"""Which Kubernetes tests run on: the one that the kubeconfig names, else a kind cluster, else our own node.

Each can be given images that were built here, without a registry."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias

from e2e.kubernetes.buildkit import builder, start_buildkit
from e2e.kubernetes.certificates import write_secret
from e2e.kubernetes.install import install
from e2e.kubernetes.node import Node
from e2e.kubernetes.places import places
from e2e.kubernetes.processes import NodeTrouble, run, succeeds
from images.build import COMPONENTS, REPOSITORY, VERSION, Builder, Wanted, build, find_builder

Kind: TypeAlias = Literal["given", "kind", "own"]

KIND_CLUSTER: Final = "magnetar-e2e"
KIND_NEEDS: Final = ("kind", "docker", "kubectl", "helm")
"""Programs: kind brings none of the others."""


@dataclass(frozen=True, slots=True)
class Current:
    """A cluster that answers."""

    kind: Kind
    environment: dict[str, str]
    """What `kubectl`, `helm` and tests need in theirs: KUBECONFIG, and a PATH with both programs."""
    node: Node | None = field(default=None, compare=False)
    """Ours, whose kubelet may be restarted; None for others."""

    def build_images(
        self, components: Sequence[str] = COMPONENTS, *, repository: str = REPOSITORY, version: str = VERSION
    ) -> None:
        """Build images of this tree where pods of this cluster find them.

        Errors: `NodeTrouble` for a cluster whose nodes are not ours: they get images from a registry; `NoBuilder`,
        `BuildFailed`."""
        wanted = Wanted(repository=repository, version=version, components=components)
        if self.node is not None:
            start_buildkit(self.node)
            build(builder(self.node), wanted)
        elif self.kind == "kind":
            # What another builder makes is not where Docker could save it from.
            local = find_builder("docker")
            build(local, wanted)
            for component in components:
                self._load(local, wanted.image(component))
        else:
            raise NodeTrouble(
                "nodes of the cluster that the kubeconfig names take images from a registry: push them there "
                "(`make images REGISTRY=… PUSH=yes`) and say so by MAGNETAR_E2E_REPOSITORY and MAGNETAR_E2E_VERSION"
            )

    def load_image(self, archive: Path) -> None:
        """Give the nodes the images of an archive that `docker save` has written. Errors: as `build_images`."""
        if self.node is not None:
            self.node.import_archive(archive)
        elif self.kind == "kind":
            run("kind", "load", "image-archive", str(archive), "--name", KIND_CLUSTER)
        else:
            raise NodeTrouble("nodes of the cluster that the kubeconfig names take images from a registry")

    def _load(self, local: Builder, image: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder) / "image.tar"
            run(local.program, "save", "--output", archive, image)
            self.load_image(archive)


def current(tell: Callable[[str], None] = print) -> Current:
    """Choose, and start what is not there yet. Errors: `NodeTrouble`."""
    if (given := given_cluster()) is not None:
        return given
    if all(map(shutil.which, KIND_NEEDS)) and succeeds("docker", "info"):
        return kind_cluster(tell)
    node = Node(places())
    if not node.is_up:
        node.check_rights()
        install(node.places, tell)
        node.up(tell)
    return Current("own", node.environment(), node)


def given_cluster() -> Current | None:
    """The one that KUBECONFIG or the user's own kubeconfig names, if it answers. It may be our own node."""
    named = os.environ.get("KUBECONFIG")
    kubeconfig = named or str(Path.home() / ".kube" / "config")
    node = Node(places())
    if kubeconfig == str(node.places.kubeconfig) and node.is_up:
        return Current("own", node.environment(), node)
    # Several files in KUBECONFIG are kubectl's to put together.
    which = () if named else ("--kubeconfig", kubeconfig)
    if shutil.which("kubectl") and succeeds("kubectl", *which, "--request-timeout=5s", "version"):
        return Current("given", {"KUBECONFIG": kubeconfig, "PATH": os.environ["PATH"]})
    if os.environ.get("KUBECONFIG"):
        raise NodeTrouble(f"the cluster that KUBECONFIG={kubeconfig} names does not answer (or there is no kubectl)")
    return None


def kind_cluster(tell: Callable[[str], None]) -> Current:
    """A kind cluster of ours, made if it is not there. The user's kubeconfig, and which context is the current one in
    it, stay as they are."""
    kubeconfig = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / KIND_CLUSTER / "kubeconfig"
    kubeconfig.parent.mkdir(parents=True, exist_ok=True)
    if KIND_CLUSTER not in run("kind", "get", "clusters").splitlines():
        tell("making a kind cluster")
        run("kind", "create", "cluster", "--name", KIND_CLUSTER, "--wait", "120s", "--kubeconfig", kubeconfig)
    write_secret(kubeconfig, run("kind", "get", "kubeconfig", "--name", KIND_CLUSTER).encode())
    return Current("kind", {"KUBECONFIG": str(kubeconfig), "PATH": os.environ["PATH"]})
