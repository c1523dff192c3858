"""Builds the images: `make images`, or `python -m images.build --help`.

Whatever builder is there is taken: Docker with buildx, nerdctl, BuildKit by its own client (`BUILDKIT_HOST` says where
it listens), or the one that `e2e.kubernetes.build_images` adds: that of the Kubernetes of `make kube-up`. All images
are built at the same time: the builder sees that they share most of their stages, and makes each of those once.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias

ROOT: Final = Path(__file__).resolve().parent.parent
COMPONENTS: Final = ("zookeeper", "bookie", "broker", "proxy", "operator", "tools", "spark")
"""Stages of the Dockerfile, and names of images."""

REPOSITORY: Final = "localhost/magnetar"
VERSION: Final = "dev"

BuilderName: TypeAlias = Literal["docker", "nerdctl", "buildkit"]

LINES_SHOWN: Final = 40
"""Of the output of a build that failed."""


class NoBuilder(Exception):
    """There is nothing on this machine that builds images, or the one that was asked for does not answer."""


class BuildFailed(Exception):
    """A builder ended with an error; the message is the end of its output."""


@dataclass(frozen=True, slots=True)
class Builder:
    """A program that builds images, and how to reach it."""

    name: BuilderName
    program: str
    base_image: str | None = None
    """The one that is at hand where it builds; None for the Dockerfile's own."""
    environment: Mapping[str, str] = field(default_factory=dict)
    host_network: bool = False
    """Whether stages have the network of the machine that builds, which a daemon must have been told to allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be built."""

    repository: str = REPOSITORY
    version: str = VERSION
    base_image: str | None = None
    components: Sequence[str] = COMPONENTS
    push: bool = False
    """To the registry that the repository names; else they stay where the builder keeps its images."""

    def image(self, component: str) -> str:
        """The name that the operator gives to pods."""
        return f"{self.repository}/{component}:{self.version}"


def revision(root: Path = ROOT) -> str:
    """The commit, with `-dirty` behind it if the tree has other content."""
    if shutil.which("git") is None:
        return "unknown"
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def build_command(builder: Builder, wanted: Wanted, component: str, commit: str) -> list[str]:
    """How one image is built."""
    arguments = {"VERSION": wanted.version, "REVISION": commit}
    if base_image := wanted.base_image or builder.base_image:
        arguments["BASE_IMAGE"] = base_image
    if builder.name == "buildkit":
        options = {"target": component} | ({"force-network-mode": "host"} if builder.host_network else {})
        options |= {f"build-arg:{name}": value for name, value in arguments.items()}
        if base_image and base_image.startswith("localhost/"):
            options["image-resolve-mode"] = "local"  # It is in no registry.
        command = [builder.program, "build", "--frontend", "dockerfile.v0", "--progress", "plain"]
        command += ["--local", f"context={ROOT}", "--local", f"dockerfile={ROOT / 'images'}"]
        command += ["--allow", "network.host"] if builder.host_network else []
        for name, value in options.items():
            command += ["--opt", f"{name}={value}"]
        pushed = ",push=true" if wanted.push else ""
        return [*command, "--output", f"type=image,name={wanted.image(component)},unpack=true{pushed}"]
    command = [builder.program, *(["buildx"] if builder.name == "docker" else []), "build", "--progress", "plain"]
    command += ["--file", str(ROOT / "images" / "Dockerfile"), "--target", component, "--tag", wanted.image(component)]
    for name, value in arguments.items():
        command += ["--build-arg", f"{name}={value}"]
    whereto = ["--push" if wanted.push else "--load"] if builder.name == "docker" else []
    return [*command, *whereto, str(ROOT)]


def push_command(builder: Builder, wanted: Wanted, component: str) -> list[str] | None:
    """How an image that is built gets to its registry; None if it has, or is not to."""
    if not wanted.push or builder.name != "nerdctl":
        return None
    return [builder.program, "push", wanted.image(component)]


def answers(*command: str) -> bool:
    """Whether a command is there and ends well."""
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def find_builder(name: str | None = None, own: Callable[[], Builder | None] | None = None) -> Builder:
    """The one that was asked for, or the first that answers; `own` is asked last. Errors: `NoBuilder`."""
    if name in (None, "docker") and answers("docker", "info") and answers("docker", "buildx", "version"):
        return Builder("docker", "docker")
    if name in (None, "nerdctl") and answers("nerdctl", "info"):
        return Builder("nerdctl", "nerdctl")
    if name in (None, "buildkit"):
        if os.environ.get("BUILDKIT_HOST") and shutil.which("buildctl"):
            return Builder("buildkit", "buildctl")
        if own is not None and (found := own()) is not None:
            return found
    raise NoBuilder(
        "nothing here builds images: install Docker with buildx or nerdctl, set BUILDKIT_HOST, or run `make kube-up`, "
        "which starts a Kubernetes with a builder (Debian 12, as root)"
    )


def build_one(builder: Builder, wanted: Wanted, component: str, commit: str) -> float:
    """Build one image. Returns how many seconds it took. Errors: `BuildFailed`."""
    began = time.monotonic()
    for command in (build_command(builder, wanted, component, commit), push_command(builder, wanted, component)):
        if command is None:
            continue
        result = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **builder.environment},
            check=False,
        )
        if result.returncode:
            lines = result.stdout.splitlines()[-LINES_SHOWN:]
            raise BuildFailed("\n".join([f"{component} cannot be built:", *lines]))
    return time.monotonic() - began


def build(builder: Builder, wanted: Wanted) -> None:
    """Build everything that is wanted, at the same time; one line for each."""
    commit = revision()
    with ThreadPoolExecutor(max_workers=len(wanted.components)) as pool:
        builds = {
            component: pool.submit(build_one, builder, wanted, component, commit) for component in wanted.components
        }
        for component, built in builds.items():
            print(f"{wanted.image(component)}: {built.result():.1f} s", flush=True)


def parse(arguments: Sequence[str] | None = None) -> tuple[Wanted, str | None]:
    """What the command line asks for, and the builder it names."""
    parser = argparse.ArgumentParser(prog="python -m images.build", description=__doc__)
    parser.add_argument("components", nargs="*", metavar="COMPONENT", help=f"of {', '.join(COMPONENTS)}; all without")
    parser.add_argument("--repository", default=REPOSITORY, help=f"what stands before their names ({REPOSITORY})")
    parser.add_argument("--version", default=VERSION, help=f"their tag ({VERSION})")
    parser.add_argument("--push", action="store_true", help="to the registry that the repository names")
    parser.add_argument("--base-image", help="an image of Debian 12 or later with Python 3.11 or later")
    parser.add_argument(
        "--builder", choices=["docker", "nerdctl", "buildkit"], help="instead of the first that is there"
    )
    found = parser.parse_args(arguments)
    if unknown := set(found.components) - set(COMPONENTS):
        parser.error(f"there is no component {', '.join(sorted(unknown))}: there are {', '.join(COMPONENTS)}")
    if found.version == "latest":
        parser.error("a version says which one it is: nobody knows what is behind `latest` tomorrow")
    components = tuple(found.components) or COMPONENTS
    wanted = Wanted(
        repository=found.repository.rstrip("/"),
        version=found.version,
        base_image=found.base_image or None,
        components=components,
        push=found.push,
    )
    return wanted, found.builder


def main(own: Callable[[], Builder | None] | None = None) -> int:
    """Run the command line. `own` finds a builder of this tree's, if there is one."""
    wanted, name = parse()
    try:
        build(find_builder(name, own), wanted)
    except (NoBuilder, BuildFailed) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
