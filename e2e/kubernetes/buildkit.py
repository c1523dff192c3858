"""BuildKit on the node's own containerd: an image that it builds is on the node at once, without a registry."""

from __future__ import annotations

from e2e.kubernetes.node import IMAGES_NAMESPACE, Node
from e2e.kubernetes.places import BASE_IMAGE, places
from e2e.kubernetes.processes import succeeds
from images.build import Builder


def start_buildkit(node: Node) -> None:
    """Start it unless it runs. Builds share the machine's network, since nothing here limits what they may fetch."""
    found = node.places
    (found.state / "buildkit").mkdir(parents=True, exist_ok=True)
    node.processes.start(
        "buildkitd",
        [
            found.programs / "buildkitd", "--root", found.state / "buildkit", "--addr", f"unix://{found.builder_socket}",
            "--oci-worker=false", "--containerd-worker=true", "--containerd-worker-addr", found.runtime_socket,
            "--containerd-worker-namespace", IMAGES_NAMESPACE, "--containerd-worker-net", "host",
            "--allow-insecure-entitlement", "network.host",
        ],
    )  # fmt: skip
    client = (found.programs / "buildctl", "--addr", f"unix://{found.builder_socket}", "debug", "workers")
    node.processes.wait_until("buildkitd", lambda: succeeds(*client))


def builder(node: Node) -> Builder:
    """How `images.build` reaches it."""
    found = node.places
    where = {"BUILDKIT_HOST": f"unix://{found.builder_socket}"}
    return Builder("buildkit", str(found.programs / "buildctl"), BASE_IMAGE, where, host_network=True)


def own_builder() -> Builder | None:
    """The one of our own Kubernetes, started if need be; None if that is not up."""
    node = Node(places())
    if not node.is_up:
        return None
    start_buildkit(node)
    return builder(node)
