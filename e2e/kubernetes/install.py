"""What a machine needs once: packages, the programs of Kubernetes from their sources, a base image.

The sources come by Go's module proxy, everything else by apt: a machine that can build software has both."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.kubernetes.archive import Image, write_archive
from e2e.kubernetes.places import BASE_IMAGE, HERE, Places
from e2e.kubernetes.processes import NodeTrouble, run

PACKAGES: Final = {
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "iptables": "iptables",
    "ip": "iproute2",
    "sysctl": "procps",
    "mmdebstrap": "mmdebstrap",
    "curl": "curl",
    "gcc": "gcc",
    "/usr/include/stdlib.h": "libc6-dev",
}
"""Packages, by the program or file that says whether it is there."""

KUBERNETES_VERSION: Final = "v1.34.4"
HELM_VERSION: Final = "v3.19.5"
GO_VERSION: Final = "1.24.9"
"""Built with, if the machine has none that is as new as the modules ask for."""
GO_NEEDED: Final = (1, 24)
GO_FETCHES_ITSELF: Final = (1, 21)
"""Since this one `go` brings the version that a module asks for."""

BASE_PACKAGES: Final = "python3,python3-venv,ca-certificates"
BASE_LEAVES_OUT: Final = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")
RELEASE: Final = "bookworm"


@dataclass(frozen=True, slots=True)
class Program:
    """A program that is built: its name, the folder with its go.mod, its package, what it is told of its version."""

    name: str
    module: Path
    package: str
    flags: tuple[str, ...] = ()


def _version_flags() -> tuple[str, ...]:
    """Kubernetes' components announce this to each other; a build without it calls itself v0.0.0, and charts that ask
    for a version of Kubernetes refuse that."""
    major, minor = KUBERNETES_VERSION.removeprefix("v").split(".")[:2]
    values = {"gitVersion": KUBERNETES_VERSION, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return tuple(f"-X {package}.{name}={value}" for package in packages for name, value in values.items())


def _helm_flags() -> tuple[str, ...]:
    """What helm takes Kubernetes for where it asks none: `helm template` and `helm lint` refuse charts for less."""
    major, minor = KUBERNETES_VERSION.removeprefix("v").split(".")[:2]
    package = "helm.sh/helm/v3"
    values = {f"{part}.k8sVersionMajor": major for part in ("pkg/chartutil", "pkg/lint/rules")}
    values |= {f"{part}.k8sVersionMinor": minor for part in ("pkg/chartutil", "pkg/lint/rules")}
    values["internal/version.version"] = HELM_VERSION
    return tuple(f"-X {package}/{name}={value}" for name, value in values.items())


PROGRAMS: Final = (
    Program("kube", HERE / "kube", ".", _version_flags()),
    Program(
        "helm", HERE / "kube", "helm.sh/helm/v3/cmd/helm",
        (*_helm_flags(), *_version_flags()),
    ),
    Program("buildkitd", HERE / "builder", "github.com/moby/buildkit/cmd/buildkitd"),
    Program("buildctl", HERE / "builder", "github.com/moby/buildkit/cmd/buildctl"),
)  # fmt: skip


def install(places: Places, tell: Callable[[str], None]) -> None:
    """Bring everything that is missing or was built of other sources: ten minutes or so on a bare machine, nothing at
    all the second time.

    Errors: `NodeTrouble`."""
    places.programs.mkdir(parents=True, exist_ok=True)
    places.downloads.mkdir(parents=True, exist_ok=True)
    install_packages(tell)
    missing = [program for program in PROGRAMS if not is_built(program, places.programs)]
    if missing:
        go = find_go(places, tell)
        for program in missing:
            tell(f"building {program.name}")
            build_program(program, places.programs, go)
    kubectl = places.programs / "kubectl"
    if not kubectl.is_symlink():
        kubectl.symlink_to("kube")
    pause = places.programs / "pause"
    if not pause.exists():
        # Static: its image has nothing else.
        run("gcc", "-Os", "-static", "-s", "-o", pause, HERE / "pause.c")
    if not places.base_archive.exists():
        tell("making the base image")
        make_base_image(places)


def install_packages(tell: Callable[[str], None], wanted: dict[str, str] | None = None) -> None:
    """Install the packages whose programs are not there."""
    packages = sorted({package for found, package in (wanted or PACKAGES).items() if not _is_there(found)})
    if not packages:
        return
    if shutil.which("apt-get") is None:
        raise NodeTrouble(f"this machine has no apt; install by hand what is in Debian's {', '.join(packages)}")
    tell(f"installing {', '.join(packages)}")
    run("apt-get", "update", "-qq")
    run(
        "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages
    )


def _is_there(program: str) -> bool:
    return Path(program).exists() if program.startswith("/") else shutil.which(program) is not None


def find_go(places: Places, tell: Callable[[str], None]) -> Path:
    """A Go that builds our modules: the machine's, or one that the machine's brings by the module proxy."""
    if shutil.which("go") is None:
        install_packages(tell, {"go": "golang-go"})
    have = go_version(Path("go"))
    if have >= GO_FETCHES_ITSELF:
        return Path("go")
    tell(f"bringing Go {GO_VERSION}, as {'.'.join(map(str, have))} is too old")
    return bring_go(places)


def bring_go(places: Places) -> Path:
    """A newer Go is a module like others, whose files come without the right to execute them."""
    machine = run("go", "env", "GOOS", "GOARCH").split()
    module = f"golang.org/toolchain@v0.0.1-go{GO_VERSION}.{machine[0]}-{machine[1]}"
    with_cache = {**os.environ, "GOMODCACHE": str(places.downloads / "go"), "GOFLAGS": "-modcacherw"}
    found = subprocess.run(
        ["go", "mod", "download", module], capture_output=True, text=True, check=False, env=with_cache
    )
    if found.returncode:
        raise NodeTrouble(f"cannot bring Go {GO_VERSION}: {found.stderr.strip()}")
    folder = places.downloads / "go" / module
    for path in _executables(folder):
        path.chmod(0o755)
    return folder / "bin" / "go"


def _executables(go: Path) -> Iterable[Path]:
    yield from (go / "bin").iterdir()
    yield from (path for path in (go / "pkg" / "tool").rglob("*") if path.is_file())


def go_version(go: Path) -> tuple[int, ...]:
    """Such as (1, 24)."""
    found = re.search(r"go(\d+)\.(\d+)", run(go, "version"))
    if found is None:
        raise NodeTrouble(f"{go} does not say which version it is")
    return int(found[1]), int(found[2])


def is_built(program: Program, folder: Path) -> bool:
    """Whether it is there, and of these sources."""
    stamp = folder / f"{program.name}.sha256"
    return (folder / program.name).exists() and stamp.exists() and stamp.read_text() == sources_digest(program)


def sources_digest(program: Program) -> str:
    """Of all that a program is built of; what it imports is named in go.sum."""
    found = hashlib.sha256(repr((program.package, program.flags)).encode())
    for path in sorted(path for path in program.module.iterdir() if path.suffix in (".go", ".mod", ".sum")):
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()


def build_program(program: Program, folder: Path, go: Path = Path("go")) -> None:
    """Build one. It is complete when it is there."""
    unfinished = folder / f"{program.name}.part"
    flags = " ".join(["-s", "-w", *program.flags])
    # Static, so that it runs anywhere; -p: each of these fills a gigabyte per compiler.
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "auto", "GOFLAGS": "-buildvcs=false"}
    command = [str(go), "build", "-p", "2", "-trimpath", "-ldflags", flags, "-o", str(unfinished), program.package]
    result = subprocess.run(command, cwd=program.module, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        raise NodeTrouble(f"{program.name} cannot be built:\n{result.stderr.strip()}")
    unfinished.rename(folder / program.name)
    (folder / f"{program.name}.sha256").write_text(sources_digest(program))


def make_base_image(places: Places) -> None:
    """Debian with Python out of packages, and this machine's CA certificates: builds go out as it does."""
    root = places.downloads / "base.tar"
    options = ['--aptopt=Acquire::Languages "none"', *(f"--dpkgopt=path-exclude={path}" for path in BASE_LEAVES_OUT)]
    run("mmdebstrap", "--variant=minbase", f"--include={BASE_PACKAGES}", *options, RELEASE, root, *_sources())
    bundle = Path("/etc/ssl/certs/ca-certificates.crt")
    files = {str(bundle): bundle} if bundle.exists() else None
    write_archive(Image(name=BASE_IMAGE, root=root, files=files), places.base_archive)
    root.unlink()


def _sources() -> list[Path]:
    """Where this machine's apt takes Debian from, if that is the release we want; else mmdebstrap's default."""
    release = Path("/etc/os-release").read_text()
    own = [Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")]
    return [path for path in own if path.exists() and RELEASE in release][:1]
