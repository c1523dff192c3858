"""Apache Pulsar's own server distribution from Maven Central: the reference for behaviour and for speed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

PULSAR_VERSION = "4.0.8"
DEFAULT_ROOT = Path("/var/lib/magnetar-peer")


def root() -> Path:
    """Where peers are unpacked: MAGNETAR_PEER_ROOT, else the default. Never inside the repository."""
    return Path(os.environ.get("MAGNETAR_PEER_ROOT", str(DEFAULT_ROOT)))


def home() -> Path:
    """The distribution's folder, fetched first when it is not there (about 250 MB).

    Raises RuntimeError when Maven is missing and subprocess.CalledProcessError when the download fails.
    """
    folder = root() / f"apache-pulsar-{PULSAR_VERSION}"
    if not (folder / "bin" / "pulsar").exists():
        _fetch(root(), "pulsar-server-distribution")
    return folder


def available() -> bool:
    """Whether a peer can be run here: unpacked already, or Java and Maven to fetch it with."""
    unpacked = (root() / f"apache-pulsar-{PULSAR_VERSION}" / "bin" / "pulsar").exists()
    return shutil.which("java") is not None and (unpacked or shutil.which("mvn") is not None)


def offloaders() -> Path:
    """The folder of Apache's offloaders, as its brokers load them; fetched first when it is not there (about 60 MB).

    Raises as `home` does.
    """
    folder = root() / f"apache-pulsar-offloaders-{PULSAR_VERSION}" / "offloaders"
    if not folder.exists():
        _fetch(root(), "pulsar-offloader-distribution")
    return folder


def _fetch(target: Path, name: str) -> None:
    if shutil.which("mvn") is None:
        raise RuntimeError(f"{name} is not unpacked and there is no Maven to fetch it with")
    target.mkdir(parents=True, exist_ok=True)
    artifact = f"org.apache.pulsar:{name}:{PULSAR_VERSION}:tar.gz:bin"
    subprocess.run(
        ["mvn", "-q", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={target}"], check=True
    )
    archive = target / f"{name}-{PULSAR_VERSION}-bin.tar.gz"
    with tarfile.open(archive) as opened:
        opened.extractall(target, filter="tar")
    archive.unlink()


def configure(source: Path, target: Path, settings: dict[str, str]) -> None:
    """Writes a copy of a properties file in which the given keys, commented out or not, have the given values."""
    kept = []
    for line in source.read_text().splitlines():
        key = line.lstrip("# ").partition("=")[0].strip()
        if key not in settings:
            kept.append(line)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join([*kept, *(f"{key}={value}" for key, value in settings.items())]) + "\n")
